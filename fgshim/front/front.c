/* fgsub, fgq and scancel without an interpreter: the controller reads the command line and answers.
 *
 * The program is installed as fgsub and fgq; `--named=` gives another name by which it is called: one of Slurm, or of
 * the other commands. If it cannot do what a line asks for, it executes the Python command in its place.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

char *own_path(char *path, size_t room)
{
    ssize_t size = readlink("/proc/self/exe", path, room - 1);
    if (size <= 0)
        return NULL;
    path[size] = '\0';
    char *end = strrchr(path, '/');
    return end ? end + 1 : NULL;
}

/* Tell whether a shell asks for completions, which click gives. */
static bool is_completion(const char *name)
{
    char variable[64];
    snprintf(variable, sizeof variable, "_%s_COMPLETE", name);
    for (char *at = variable; *at; at++)
        *at = (char)toupper(*at);
    return getenv(variable) != NULL;
}

/* Run a command; -1: the Python command has to do it. */
static int run(struct command *command)
{
    if (is_completion(command->name) || !are_streams_open()) /* a socket would become the standard output */
        return -1;
    if (isatty(2) && (has_variables("FG_DEVICES", NULL) || has_variables("FG_CONFIG", NULL) ||
                      has_variables("FGSCHED_CONFIG", NULL))) /* the Python command warns that they have no effect */
        return -1;
    if (strcmp(command->name, "fgq") == 0 || strcmp(command->name, "squeue") == 0)
        return show_queue(command);
    if (strcmp(command->name, "scancel") == 0)
        return cancel(command);
    return strcmp(command->name, "fgsub") == 0 || strcmp(command->name, "sbatch") == 0 ? submit(command) : -1;
}

int main(int count, char **arguments)
{
    static const char named[] = "--named=";
    char path[4096];
    const char *own = own_path(path, sizeof path);
    struct command command = {.name = own && strcmp(own, "fgq") == 0 ? "fgq" : "fgsub"};
    command.words = arguments + (count > 0);
    if (count > 1 && strncmp(arguments[1], named, sizeof named - 1) == 0) {
        command.name = arguments[1] + sizeof named - 1;
        command.words++;
    }
    int status = run(&command);
    if (status < 0)
        leave_to_python(&command);
    return status;
}
