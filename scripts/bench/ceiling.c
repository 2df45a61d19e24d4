/* Measure the maximum rate of this host: ceiling SCRIPT COUNT FLIGHT [VARIABLE=VALUE ...]
 * Executes SCRIPT COUNT times, FLIGHT at a time, with fork, exec and wait only, and prints jobs per second. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char **variables;

static void start(char *script)
{
    char *const arguments[] = {script, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        execve(script, arguments, variables);
        _exit(127);
    }
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
}

static void finish(void)
{
    int status;
    if (wait(&status) < 0 || status != 0) {
        fprintf(stderr, "the script fails: status %d\n", status);
        exit(1);
    }
}

static double since(const struct timespec *then)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9;
}

int main(int argc, char **argv)
{
    struct timespec begin;
    if (argc < 4) {
        fprintf(stderr, "usage: ceiling SCRIPT COUNT FLIGHT [VARIABLE=VALUE ...]\n");
        return 2;
    }
    variables = argv + 4;
    int count = atoi(argv[2]), flight = atoi(argv[3]), running = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++, running++) {
        if (running == flight) {
            finish();
            running--;
        }
        start(argv[1]);
    }
    while (running-- > 0)
        finish();
    printf("%.0f\n", count / since(&begin));
    return 0;
}
