/* Execute the Python command so that no variable of the caller changes the interpreter or its libraries.
 *
 * `fgsched-python`, which the installer of the package wrote, names the interpreter in its first lines. `-I` makes
 * that ignore PYTHONHOME, PYTHONPATH and their like. Jobs shall get the variables of the loader: they are put aside
 * under other names, and fgsched/system/preloading.py restores them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

#define ASIDE "FG_CALLER_" /* as in fgsched/system/preloading.py */

static const char *const of_loader[] = {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"};

/* Cut the first word at `at`, which may be quoted; NULL: there is no path. */
static char *path_at(char *at)
{
    at += strspn(at, " ");
    bool is_quoted = *at == '"' || *at == '\'';
    char *end = is_quoted ? strchr(at + 1, *at) : at + strcspn(at, " \n");
    if (!end)
        return NULL;
    *end = '\0';
    at += is_quoted;
    return *at == '/' ? at : NULL;
}

/* Return the interpreter of a script, in `text`; NULL: its first lines name none.
   A path that is long or has spaces is in the second line: '''exec' "/the path/python" "$0" "$@" */
static char *interpreter_of(const char *script, char *text, size_t room)
{
    static const char called[] = "#!/bin/sh\n'''exec' ";
    int fd = open(script, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, room - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (size < 2)
        return NULL;
    text[size] = '\0';
    if (strncmp(text, called, sizeof called - 1) == 0)
        return path_at(text + sizeof called - 1);
    return text[0] == '#' && text[1] == '!' ? path_at(text + 2) : NULL;
}

/* Tell whether a folder of libraries is the interpreter's own, <prefix>/lib: it may be found by the variable alone. */
static bool is_of_interpreter(const char *folder, size_t size, const char *interpreter)
{
    char path[PATH_MAX], real[PATH_MAX], own[PATH_MAX];
    if (size == 0 || size >= sizeof path || !realpath(interpreter, own))
        return false;
    memcpy(path, folder, size);
    path[size] = '\0';
    for (int each = 0; each < 2; each++) { /* the program, and its folder */
        char *end = strrchr(own, '/');
        if (!end)
            return false;
        *end = '\0';
    }
    size_t prefix = strlen(own);
    return realpath(path, real) && strncmp(real, own, prefix) == 0 &&
           (strcmp(real + prefix, "/lib") == 0 || strcmp(real + prefix, "/lib64") == 0);
}

/* Reduce LD_LIBRARY_PATH to what the interpreter may need. */
static void keep_own_libraries(const char *all, const char *interpreter)
{
    for (const char *at = all; at; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
        size_t size = strcspn(at, ":");
        char *folder = is_of_interpreter(at, size, interpreter) ? strndup(at, size) : NULL;
        if (folder)
            setenv("LD_LIBRARY_PATH", folder, 1);
        free(folder);
    }
}

static void put_loader_aside(const char *interpreter)
{
    char name[64];
    for (size_t each = 0; each < sizeof of_loader / sizeof *of_loader; each++) {
        const char *value = getenv(of_loader[each]);
        snprintf(name, sizeof name, "%s%s", ASIDE, of_loader[each]);
        unsetenv(name);
        if (!value || setenv(name, value, 1) != 0)
            continue;
        unsetenv(of_loader[each]);
        if (each == 0)
            keep_own_libraries(getenv(name), interpreter);
    }
}

/* Fill the arguments of the Python command; NULL: there is no memory. */
static char **arguments_of(const struct command *command, char *interpreter, char *script)
{
    size_t count = 0;
    while (command->words[count])
        count++;
    char **arguments = calloc(count + 6, sizeof *arguments);
    if (!arguments)
        return NULL;
    arguments[0] = interpreter;
    arguments[1] = "-I";
    arguments[2] = script;
    arguments[3] = (char *)command->name;
    arguments[4] = command->is_sent ? (char *)command->key : "";
    memcpy(arguments + 5, command->words, count * sizeof *arguments);
    return arguments;
}

void leave_to_python(const struct command *command)
{
    char script[4096 + sizeof "fgsched-python"], beside[sizeof script], text[8192];
    char *name = own_path(script, 4096);
    if (name) {
        strcpy(name, "python3");
        strcpy(beside, script);
        strcpy(name, "fgsched-python");
        char *interpreter = interpreter_of(script, text, sizeof text);
        interpreter = interpreter ? interpreter : beside;
        char **arguments = access(script, R_OK) == 0 ? arguments_of(command, interpreter, script) : NULL;
        if (arguments) {
            put_loader_aside(interpreter);
            execv(interpreter, arguments);
        }
    }
    fprintf(stderr, "%s: error: cannot run the fgsched-python beside this program: %s\n"
                    "Install fgsched again.\n", command->name, strerror(errno));
    _exit(7);
}
