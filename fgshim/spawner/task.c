#include "task.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_OUTPUT = 1 << 20, CANNOT_EXECUTE = 127, OUTPUT = 3 }; /* OUTPUT: the descriptor of the prolog's output */

static char output[MOST_OUTPUT + 1];
static size_t used;

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000;
}

pid_t fg_start_task_prolog(const char *program, char **variables) {
    char *words[] = {(char *)program, NULL};
    volatile int error = 0;
    int ends[2];
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid = vfork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
        dup2(ends[1], 1);
        execve(program, words, variables);
        error = errno;
        _exit(CANNOT_EXECUTE);
    }
    if (pid > 0 && error)
        waitpid(pid, NULL, 0);
    else if (pid > 0)
        dup2(ends[0], OUTPUT) == ends[0] ? fcntl(OUTPUT, F_SETFD, 0) : close(ends[0]);
    close(ends[1]);
    if (error)
        errno = error;
    return error ? -1 : pid;
}

/* Read what has arrived; what does not fit is dropped. */
static void take(int source) {
    static char rest[4096];
    ssize_t size;
    do {
        size_t room = MOST_OUTPUT - used;
        size = room ? read(source, output + used, room) : read(source, rest, sizeof rest);
        if (size > 0 && room)
            used += (size_t)size;
    } while (size > 0);
}

/* Collect the output of the prolog until it ends. Returns its status as wait(2) gives it, -1: it was late. */
static int collect(pid_t pid, long until) {
    struct pollfd events[] = {{OUTPUT, POLLIN, 0}, {(int)syscall(SYS_pidfd_open, pid, 0), POLLIN, 0}};
    int status = 0;
    for (;;) {
        long left = until - milliseconds();
        if (left <= 0 || poll(events, 2, (int)left) == 0) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        take(OUTPUT);
        if (events[0].revents & POLLHUP)
            events[0].fd = -1;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            take(OUTPUT);
            close(events[1].fd);
            return status;
        }
    }
}

static int wait_for(pid_t pid, long seconds) {
    int status;
    fcntl(OUTPUT, F_SETFL, O_NONBLOCK);
    status = collect(pid, milliseconds() + seconds * 1000);
    close(OUTPUT);
    return status;
}

/* Apply one line of output as Slurm does: export NAME=value, unset NAME, print text. Others are ignored. */
static void apply(char *line) {
    if (strncmp(line, "export ", 7) == 0) {
        char *name = line + 7, *equals;
        name += strspn(name, " \t");
        equals = strchr(name, '=');
        if (equals && equals > name) {
            *equals = 0;
            setenv(name, equals + 1, 1);
        }
    } else if (strncmp(line, "unset ", 6) == 0) {
        char *name = line + 6 + strspn(line + 6, " \t");
        name[strcspn(name, " \t")] = 0;
        unsetenv(name);
    } else if (strncmp(line, "print ", 6) == 0) {
        dprintf(1, "%s\n", line + 6);
    }
}

/* Execute the interpreter of a script whose directory is mounted noexec, as the kernel would. */
static void interpret(char **words) {
    static char line[256];
    char *program, *option, **own;
    size_t count = 0;
    int fd = open(words[0], O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (size < 3 || strncmp(line, "#!", 2) != 0)
        return;
    line[strcspn(line, "\n")] = 0;
    program = line + 2 + strspn(line + 2, " \t");
    option = program + strcspn(program, " \t");
    if (*option) {
        *option++ = 0;
        option += strspn(option, " \t");
    }
    while (words[count])
        count++;
    own = calloc(count + 3, sizeof *own);
    if (!own || !*program)
        return;
    own[0] = program;
    own[1] = option;
    memcpy(own + (*option ? 2 : 1), words, (count + 1) * sizeof *own);
    execv(program, own);
}

int fg_run_task(char **words) {
    const char *program = getenv("FG_TASK_PROLOG"), *seconds = getenv("FG_TASK_PROLOG_TIME");
    if (!seconds)
        seconds = "30";
    pid_t pid = (pid_t)atol(*words++);
    int status = pid > 0 ? wait_for(pid, atol(seconds)) : 0;
    char *line, *next;
    if (status != 0) {
        if (status > 0 && WIFEXITED(status))
            dprintf(2, "fgsched: task prolog %s: exited with status %d\n", program, WEXITSTATUS(status));
        else if (status > 0)
            dprintf(2, "fgsched: task prolog %s: was killed by signal %d\n", program, WTERMSIG(status));
        else
            dprintf(2, "fgsched: task prolog %s: did not end within %s s\n", program, seconds);
        return status > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    unsetenv("FG_TASK_PROLOG");
    unsetenv("FG_TASK_PROLOG_TIME");
    output[used] = 0;
    for (line = output; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = 0;
        apply(line);
    }
    execv(words[0], words);
    if (errno == EACCES)
        interpret(words);
    dprintf(2, "fgsched: %s: %s\n", words[0], strerror(errno));
    return CANNOT_EXECUTE;
}
