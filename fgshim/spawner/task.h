/* The site's task prolog, as the job's user. The job's child starts it, so that a prolog that cannot be executed is the
   reason of a failed launch; `fgspawn task PID SCRIPT ARGUMENT...` then waits for it and executes the script. */
#pragma once
#include <sys/types.h>

/* Start the prolog in a process group of its own, with its output in a pipe at descriptor 3, which must be free. Returns
   its pid; -1 with errno if it cannot be executed. */
pid_t fg_start_task_prolog(const char *program, char **variables);

/* `words`: PID of the prolog (0: none), script, arguments. The environment names the prolog (FG_TASK_PROLOG) and its time
   limit in seconds (FG_TASK_PROLOG_TIME). Returns the exit status if the prolog fails or the script cannot be executed. */
int fg_run_task(char **words);
