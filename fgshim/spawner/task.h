/* `fgspawn task SCRIPT ARGUMENT...`: run the site's task prolog as the job's user, then execute the script. */
#pragma once

/* The environment names the prolog (FG_TASK_PROLOG) and its time limit in seconds (FG_TASK_PROLOG_TIME).
   Returns the exit status if the prolog fails or the script cannot be executed. */
int fg_run_task(char **words);
