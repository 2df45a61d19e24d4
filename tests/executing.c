/* A program whose child waits inside execve(2), with the lock of its identity held: the child shares its memory with
 * this program, which waits for a page of FILE with the memory map locked. A reader of most files of the child in /proc
 * waits, too: stat, io, auxv, environ, maps and the links.
 *
 *     executing FILE UID          prints the pid of the child, and goes on when a byte comes over standard input
 *     executing FILE UID itself   the other way round: this program executes, and its child waits for the page */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static char stack[65536], path[64], text[1024];
static char *words[] = {"sleep", "1000000", NULL};
static int file;

static int waits(void) {
    int fd = open(path, O_RDONLY);
    long got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    char *state = strrchr(text, ')');
    return state && state[2] == 'D';
}

static int execute(void *unused) {
    (void)unused;
    while (!waits()) usleep(1000);
    execv("/bin/sleep", words);
    return 1;
}

static int map(void *unused) {
    (void)unused;
    getchar();
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    file = open(arguments[1], O_RDONLY);
    unsigned uid = (unsigned)atoi(arguments[2]);
    if (file < 0 || setresuid(uid, uid, uid) < 0) return 1;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    memset(stack, 1, sizeof stack);
    memset(text, 1, sizeof text);
    int executes = count > 3;
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    int child = clone(executes ? map : execute, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    if (executes) snprintf(path, sizeof path, "/proc/%d/stat", child);
    printf("%d\n", executes ? getpid() : child);
    fflush(stdout);
    return executes ? execute(NULL) : map(NULL);
}
