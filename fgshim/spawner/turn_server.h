/* The arbiter: `fgspawn turns DESCRIPTOR LOCK`, a process of its own that gives the jobs of each shared GPU their turns. */
#pragma once

int fg_give_turns(int controller, const char *lock);
