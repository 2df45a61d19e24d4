/* Measure one call of the driver: calls KIND COUNT [strict]
 * KIND: memory (an allocation and its free), beside (the same, while another small allocation lives), launch (an empty
 * kernel, followed by 1 us of computation), view (cuMemGetInfo), refusal (an allocation above the limit).
 * Prints nanoseconds per call: wall-clock time, processor time, and the median of single calls.
 * strict: after a first round, a system call ends the process (seccomp); "ok" means that there was none. */
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY, BESIDE, LAUNCH, VIEW, REFUSAL };
static int (*allocate)(uint64_t *, size_t), (*end)(uint64_t), (*view)(size_t *, size_t *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static unsigned singles[1 << 14];

static uint64_t at(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "calls: %s failed\n", what);
    exit(1);
}

static void *find(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) fail(name);
    return found;
}

static void once(int kind)
{
    uint64_t address;
    size_t free, total;
    if (kind <= BESIDE) {
        if (allocate(&address, 4096) || end(address)) fail("an allocation");
    } else if (kind == VIEW) {
        if (view(&free, &total)) fail("a view");
    } else if (kind == REFUSAL) {
        if (allocate(&address, (size_t)1 << 49) != 2) fail("a refusal");
    } else {
        if (launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) fail("a launch");
        for (volatile int i = 0; i < 500; i++) ;   /* what a program does between two launches */
    }
}

static int by_size(const void *a, const void *b)
{
    return *(const unsigned *)a > *(const unsigned *)b ? 1 : -1;
}

static void start(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!driver) fail("dlopen");
    allocate = find(driver, "cuMemAlloc_v2");
    end = find(driver, "cuMemFree_v2");
    launch = find(driver, "cuLaunchKernel");
    view = find(driver, "cuMemGetInfo_v2");
    if (((int (*)(unsigned))find(driver, "cuInit"))(0)) fail("cuInit");
    if (((int (*)(void **, int))find(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)) fail("a context");
    if (((int (*)(void *))find(driver, "cuCtxSetCurrent"))(context)) fail("a context");
}

/* From now on only write and exit. Not seccomp's strict mode, which forbids reading the processor's clock too. */
static void be_strict(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
}

int main(int argc, char **argv)
{
    const char *kinds[] = {"memory", "beside", "launch", "view", "refusal"};
    int kind = 0;
    while (kind < REFUSAL && argc > 1 && strcmp(argv[1], kinds[kind])) kind++;
    long count = argc > 2 ? atol(argv[2]) : 0, n = 0;
    uint64_t other;
    start();
    if (kind == BESIDE && allocate(&other, 4096)) fail("an allocation");
    for (long i = 0; i < 1000; i++) once(kind);
    usleep(30000);   /* a paced job saves up what it may use at once */
    for (long i = 0; i < 1000; i++) once(kind);   /* and takes up a turn that it has left */
    if (argc > 3) {
        be_strict();
        for (long i = 0; i < count; i++) once(kind);
        if (write(1, "ok\n", 3) != 3) syscall(SYS_exit, 1);
        syscall(SYS_exit, 0);
    }
    uint64_t began = at(CLOCK_MONOTONIC), worked = at(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < count; i++) once(kind);
    uint64_t took = at(CLOCK_MONOTONIC) - began, work = at(CLOCK_PROCESS_CPUTIME_ID) - worked;
    for (; n < (long)(sizeof singles / sizeof *singles) && n < count; n++) {
        uint64_t from = at(CLOCK_MONOTONIC);
        once(kind);
        singles[n] = (unsigned)(at(CLOCK_MONOTONIC) - from);
    }
    qsort(singles, (size_t)n, sizeof *singles, by_size);
    printf("%.1f %.1f %u\n", (double)took / (double)count, (double)work / (double)count, n ? singles[n / 2] : 0);
    return 0;
}
