/* A command under its own name: execute the fgsub beside it, which tells the interpreter which command to run.
 *
 * fgsub is static and large; this program is small, so that an installation has one copy for each command.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    char path[4096 + sizeof "fgsub"], named[4096 + sizeof "--named="];
    ssize_t size = readlink("/proc/self/exe", path, 4096 - 1);
    char **words = calloc((size_t)count + 2, sizeof *words);
    path[size > 0 ? size : 0] = '\0';
    char *end = strrchr(path, '/');
    if (end && words) {
        snprintf(named, sizeof named, "--named=%s", end + 1);
        strcpy(end + 1, "fgsub");
        words[0] = path;
        words[1] = named;
        if (count > 1)
            memcpy(words + 2, arguments + 1, (size_t)(count - 1) * sizeof *words);
        execv(path, words);
    }
    fprintf(stderr, "%s: error: cannot run the fgsub beside this program: %s\nInstall fgsched again.\n",
            count > 0 ? arguments[0] : "fgsched", strerror(errno));
    return 7;
}
