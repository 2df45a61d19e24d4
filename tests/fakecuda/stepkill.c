/* stepkill N PROGRAM ARGUMENT…: from the program's own SIGSTOP on, N more instructions, then SIGKILL.
   With STEPKILL_LOCK, the path of a region: only instructions under its lock are counted.
   Exit status 0: killed there; 1: it ended before; 2: no tracing here. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long steps = argc > 2 ? strtol(argv[1], NULL, 10) : 0;
    int status, fd = getenv("STEPKILL_LOCK") ? open(getenv("STEPKILL_LOCK"), O_RDONLY) : -1;
    volatile int *region = fd < 0 ? NULL : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    pid_t child = fork();
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        execv(argv[2], argv + 2);
        _exit(99);
    }
    for (;;) {
        if (waitpid(child, &status, 0) < 0) return 2;
        if (!WIFSTOPPED(status)) return WIFEXITED(status) && WEXITSTATUS(status) == 99 ? 2 : 1;
        if (WSTOPSIG(status) == SIGSTOP) break;
        ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status));
    }
    while (steps > 0) {
        steps -= !region || region[8];   /* the lock's first word, at byte 32 */
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 1;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 0;
}
