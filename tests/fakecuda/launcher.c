/* launcher WAY NANOSECONDS COUNT [SYNC]: launch kernels that take so long, and tell what came of it.
   WAY: kernel, ex, cooperative, many, graph, grid, gridasync, one; SYNC: launches after which it waits for the card.
   LAUNCHER_TWINS=1 takes the per-thread twins, LAUNCHER_VIA=lookup asks cuGetProcAddress, LAUNCHER_CAPTURE=1
   records instead, LAUNCHER_STREAMS=N takes N streams in turn and tells the number of events that the driver recorded,
   LAUNCHER_UNTIL=N makes the first kernel run until N launches were made, LAUNCHER_GREEN=1 launches in a green context, which
   it destroys before the kernels have ended, LAUNCHER_SETUID=1 calls setuid() in another thread after half of the launches,
   LAUNCHER_ERRNO=1 takes a changed errno for an error (1000 and more), LAUNCHER_CONTEXTS=N launches in N contexts in turn,
   LAUNCHER_CALLS=1 counts, in the second half, the launches that the host did not interrupt and that had the turn from beginning
   to end, without an arbiter those that the host interrupted for less than 19 ms. It tells, in place of what follows: status, their number, their system calls, the
   number of the last one, and how many launches of the second half waited for the hook's lock. Prints: status, launches that
   the driver saw, microseconds until all of it was done. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include "arbiter.h"
#include "turn_page.h"

typedef struct { unsigned grid[3], block[3], shared; void *on, *attributes; unsigned count; } config;
typedef struct { void *f; unsigned grid[3], block[3], shared; void *on; void **parameters; } one_of_many;
static void *driver, *stream;
static int twins, lookup;

static void *find(const char *name, const char *old, int has_twin) {
    int (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    char twin[80];
    void *found = NULL;
    int status;
    snprintf(twin, sizeof twin, "%s_ptsz", name);
    if (lookup) ask(old, &found, 12080, twins && has_twin ? 2 : 0, &status);
    else found = dlsym(driver, twins && has_twin ? twin : name);
    if (!found) { fprintf(stderr, "launcher: there is no %s\n", name); exit(1); }
    return found;
}
static uint64_t microseconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000u + (uint64_t)at.tv_nsec / 1000u;
}
#define GRID 1, 1, 1, 1, 1, 1, 0
#define UNSIGNEDS unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
static void *call;
static void resolve(const char *way) {
    if (!strcmp(way, "kernel")) call = find("cuLaunchKernel", "cuLaunchKernel", 1);
    if (!strcmp(way, "ex")) call = find("cuLaunchKernelEx", "cuLaunchKernelEx", 1);
    if (!strcmp(way, "cooperative")) call = find("cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", 1);
    if (!strcmp(way, "many")) call = find("cuLaunchCooperativeKernelMultiDevice", "cuLaunchCooperativeKernelMultiDevice", 0);
    if (!strcmp(way, "graph")) call = find("cuGraphLaunch", "cuGraphLaunch", 1);
    if (!strcmp(way, "grid")) call = find("cuLaunchGrid", "cuLaunchGrid", 0);
    if (!strcmp(way, "gridasync")) call = find("cuLaunchGridAsync", "cuLaunchGridAsync", 0);
    if (!strcmp(way, "one")) call = find("cuLaunch", "cuLaunch", 0);
}
static int launch(const char *way, void *f) {
    config how = {{1, 1, 1}, {1, 1, 1}, 0, stream, NULL, 0};
    one_of_many many = {f, {1, 1, 1}, {1, 1, 1}, 0, stream, NULL};
    switch (*way == 'g' ? way[4] : *way) {
    case 'k': return ((int (*)(void *, UNSIGNEDS, void *, void **, void **))call)(f, GRID, stream, NULL, NULL);
    case 'e': return ((int (*)(config *, void *, void **, void **))call)(&how, f, NULL, NULL);
    case 'c': return ((int (*)(void *, UNSIGNEDS, void *, void **))call)(f, GRID, stream, NULL);
    case 'm': return ((int (*)(one_of_many *, unsigned, unsigned))call)(&many, 1, 0);
    case 'h': return ((int (*)(void *, void *))call)(f, stream);
    case 'a': return ((int (*)(void *, int, int, void *))call)(f, 1, 1, stream);
    case 0: return ((int (*)(void *, int, int))call)(f, 1, 1);
    default: return ((int (*)(void *))call)(f);
    }
}
static uint32_t peek(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static volatile sig_atomic_t calls, lock_waits, last_call, is_disturbed;
static struct { fg_turn_page *page; int is_held; long calls, launches, calls_held; uint64_t ends[2]; } counted;
#define COUNTED 0x46474647   /* as the sixth argument, which no system call of the hook's launches reads */
#define LOCK_NAP 10000       /* ns: the hook sleeps so long only if the host has stopped the thread that has its lock */
/* A system call of this thread was stopped: count and make it. A turn that was parked meanwhile is resumed, and one that was
   taken is waited for: such a launch did not have it. */
static void count_call(int number, siginfo_t *about, void *at) {
    long long *of = ((ucontext_t *)at)->uc_mcontext.gregs;
    int saved = errno, is_lock_wait = about->si_syscall == SYS_nanosleep && ((const struct timespec *)of[REG_RDI])->tv_nsec == LOCK_NAP;
    const fg_turn_page *page = counted.page;
    (void)number;
    lock_waits += is_lock_wait;
    is_disturbed |= is_lock_wait || (page && (peek(&page->resumed) || peek(&page->word) != FG_TURN_HELD));
    calls++;
    last_call = about->si_syscall;
    long result = syscall(about->si_syscall, of[REG_RDI], of[REG_RSI], of[REG_RDX], of[REG_R10], of[REG_R8], COUNTED);
    of[REG_RAX] = result < 0 ? -errno : result;
    errno = saved;
}
/* From now on count the system calls of this thread, but writes, the return from the handler and the exit. */
static int count_calls(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, COUNTED, 5, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    struct sigaction how = {.sa_sigaction = count_call, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &how, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
#define UNINTERRUPTED 50   /* microseconds: the arbiter takes no turn from a job that launches again so soon */
#define AWAKE 19000        /* without an arbiter: the hook's thread has not gone to sleep yet, so no launch has to wake it */
static fg_turn_page *turn_page(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long at = 0;
    while (!at && maps && fgets(line, sizeof line, maps)) if (strstr(line, "fgsched turns")) sscanf(line, "%lx", &at);
    if (maps) fclose(maps);
    return (fg_turn_page *)at;
}
static int has_turn(void) { return !counted.page || peek(&counted.page->word) == FG_TURN_HELD; }
static void before_launch(void) {
    counted.is_held = has_turn();
    counted.calls = calls;
    is_disturbed = 0;
}
static void after_launch(void) {   /* the time is that since before the last launch: neither was interrupted */
    uint64_t now = microseconds(), most = counted.page ? UNINTERRUPTED : AWAKE;
    int is_counted = !is_disturbed && counted.is_held && has_turn() && now - counted.ends[1] < most;
    counted.launches += is_counted;
    counted.calls_held += is_counted ? calls - counted.calls : 0;
    counted.ends[1] = counted.ends[0];
    counted.ends[0] = now;
}
static void *change_user(void *unused) {
    (void)unused;
    return (void *)(intptr_t)setuid(getuid());
}
static int change_user_in_a_thread(void) {
    pthread_t thread;
    void *status = NULL;
    return pthread_create(&thread, NULL, change_user, NULL) || pthread_join(thread, &status) || status;
}
static int enter_green(void **green) {
    void *context;
    int status = ((int (*)(void **, void *, int, unsigned))find("cuGreenCtxCreate", "cuGreenCtxCreate", 0))(green, NULL, 0, 1);
    status |= ((int (*)(void **, void *))find("cuCtxFromGreenCtx", "cuCtxFromGreenCtx", 0))(&context, *green);
    return status | ((int (*)(void *))find("cuCtxSetCurrent", "cuCtxSetCurrent", 0))(context);
}
static int end_green(void *green, void *context) {
    int status = ((int (*)(void *))find("cuGreenCtxDestroy", "cuGreenCtxDestroy", 0))(green);
    return status | ((int (*)(void *))find("cuCtxSetCurrent", "cuCtxSetCurrent", 0))(context);
}
int main(int argc, char **argv) {
    long count = argc > 3 ? atol(argv[3]) : 1, sync = argc > 4 ? atol(argv[4]) : 0;
    void *context, *f = (void *)(uintptr_t)strtoull(argv[2], NULL, 10), *graph;
    int status, own = getenv("LAUNCHER_STREAM") != NULL;
    twins = getenv("LAUNCHER_TWINS") != NULL;
    lookup = getenv("LAUNCHER_VIA") != NULL;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t (*seen)(void) = dlsym(driver, "fake_launches");
    int (*wait)(void *) = find("cuStreamSynchronize", "cuStreamSynchronize", 1);
    resolve(argv[1]);
    ((int (*)(unsigned))find("cuInit", "cuInit", 0))(0);
    ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 0))(&context, 0);
    status = ((int (*)(void *))find("cuCtxSetCurrent", "cuCtxSetCurrent", 0))(context);
    if (own || getenv("LAUNCHER_CAPTURE")) status |= ((int (*)(void **, unsigned))find("cuStreamCreate", "cuStreamCreate", 0))(&stream, 0);
    if (getenv("LAUNCHER_CAPTURE")) status |= ((int (*)(void *, int))find("cuStreamBeginCapture_v2", "cuStreamBeginCapture", 1))(stream, 0);
    long streams = getenv("LAUNCHER_STREAMS") ? atol(getenv("LAUNCHER_STREAMS")) : 0;
    void *several[64];
    uint64_t (*records)(void) = dlsym(driver, "fake_records");
    for (long i = 0; i < streams; i++) status |= ((int (*)(void **, unsigned))find("cuStreamCreate", "cuStreamCreate", 0))(&several[i], 0);
    void *green = NULL;
    if (getenv("LAUNCHER_GREEN")) status |= enter_green(&green);
    int checks = getenv("LAUNCHER_ERRNO") != NULL, changes_user = getenv("LAUNCHER_SETUID") != NULL;
    long contexts = getenv("LAUNCHER_CONTEXTS") ? atol(getenv("LAUNCHER_CONTEXTS")) : 0;
    void *other[64];
    int (*set_context)(void *) = find("cuCtxSetCurrent", "cuCtxSetCurrent", 0), counts = getenv("LAUNCHER_CALLS") != NULL;
    long counts_from = counts ? count / 2 : count;
    for (long i = 0; i < contexts; i++) status |= ((int (*)(void **, unsigned, int))find("cuCtxCreate_v2", "cuCtxCreate", 0))(&other[i], 0, 0);
    uint64_t began = microseconds();
    const char *until = getenv("LAUNCHER_UNTIL");
    for (long i = 0; i < count && !status; i++) {
        if (streams) stream = several[i % streams];
        if (contexts) status |= set_context(other[i % contexts]);
        if (i == counts_from) {
            counted.page = turn_page();
            status |= count_calls();
        }
        if (i >= counts_from) before_launch();
        errno = 0;
        status = launch(argv[1], until && !i ? (void *)((uintptr_t)1 << 62 | strtoull(until, NULL, 10)) : f);
        if (i >= counts_from) after_launch();
        if (checks && errno) status = 1000 + errno;
        if (changes_user && i == count / 2) status |= change_user_in_a_thread();
        if (sync && !((i + 1) % sync)) status |= wait(stream);
    }
    if (counts) {
        printf("%d %ld %ld %ld %ld\n", status, counted.launches, counted.calls_held, (long)last_call, (long)lock_waits);
        fflush(stdout);
        _exit(0);
    }
    if (contexts) {
        for (long i = 0; i < contexts; i++) status |= set_context(other[i]) | wait(NULL);
    }
    if (getenv("LAUNCHER_CAPTURE")) status |= ((int (*)(void *, void **))find("cuStreamEndCapture", "cuStreamEndCapture", 1))(stream, &graph);
    if (green) status |= end_green(green, context);
    status |= wait(stream);
    if (streams) printf("%d %llu %llu\n", status, (unsigned long long)seen(), (unsigned long long)records());
    else printf("%d %llu %llu\n", status, (unsigned long long)seen(), (unsigned long long)(microseconds() - began));
    return 0;
}
