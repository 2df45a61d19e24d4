/* fgsub, fgq and scancel without an interpreter: the controller reads the command line and answers.
 *
 * The program is installed as fgsub and fgq; `--named=` gives the name of Slurm by which it is called. If it
 * cannot do what a line asks for, it executes the Python command in its place.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

/* Write the path of this program; return its name, or NULL. */
static char *own_path(char *path, size_t room)
{
    ssize_t size = readlink("/proc/self/exe", path, room - 1);
    if (size <= 0)
        return NULL;
    path[size] = '\0';
    char *end = strrchr(path, '/');
    return end ? end + 1 : NULL;
}

/* Execute the Python command, which stands beside this program. Does not return. */
static void leave_to_python(const struct command *command)
{
    char path[4096 + sizeof "fgsched"];
    char *name = own_path(path, 4096);
    size_t count = 0;
    while (command->words[count])
        count++;
    char **arguments = calloc(count + 5, sizeof *arguments);
    if (name && arguments) {
        strcpy(name, "fgsched");
        arguments[0] = path;
        arguments[1] = "front-end";
        arguments[2] = (char *)command->name;
        arguments[3] = command->is_sent ? (char *)command->key : "";
        memcpy(arguments + 4, command->words, count * sizeof *arguments);
        execv(path, arguments);
    }
    fprintf(stderr, "%s: error: cannot run the fgsched beside this program: %s\n"
                    "Install fgsched again.\n", command->name, strerror(errno));
    _exit(7);
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
    if (strcmp(command->name, "fgq") == 0 || strcmp(command->name, "squeue") == 0)
        return show_queue(command);
    return strcmp(command->name, "scancel") == 0 ? cancel(command) : submit(command);
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
