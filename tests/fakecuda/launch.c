/* libcuda.so.1: kernels, graphs and events on streams that have a clock.

   The handle of a function or of an instantiated graph is the time it takes, in nanoseconds. Nothing is
   computed: a stream only knows until when it is busy, by CLOCK_MONOTONIC, and an event when it will have been
   reached. A kernel with bit 62 in its handle runs until as many launches were made as its lower bits say.
   Streams of one process run side by side; sharing a card is the affair of the simulated card. */
#include <time.h>
#include "fake.h"

enum { NOT_READY = 600 };
typedef struct { uint64_t at; int recorded; } event;
typedef struct { unsigned grid[3], block[3], shared; stream *on; void *attributes; unsigned count; } config;
typedef struct { uint64_t f; unsigned grid[3], block[3], shared; stream *on; void **parameters; } one_of_many;

static uint64_t zero_busy[MAX_CARDS];   /* stream 0 of each card */
static uint64_t launches, records, last_busy;   /* last_busy: until when any stream is */

static uint64_t clock_now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}
/* A time beyond this one is counted from the end of the kernel that waits for launches. */
#define WHEN_ENDED ((uint64_t)1 << 61)
static uint64_t awaited, ended_at;   /* launches; ns */
static uint64_t time_of(uint64_t at) {
    if (at < WHEN_ENDED || __atomic_load_n(&launches, __ATOMIC_RELAXED) < awaited) return at;
    return __atomic_load_n(&ended_at, __ATOMIC_RELAXED) + (at - WHEN_ENDED);
}
static uint64_t *busy_of(stream *s) {
    if (s && s != (stream *)1 && s != (stream *)2) return &s->busy;
    return fake_current() ? &zero_busy[fake_current()->card] : NULL;
}
static int run(stream *s, uint64_t takes, int own) {
    uint64_t *busy = busy_of(s), seen, now;
    if (!busy) return INVALID_CONTEXT;
    if (fake_duration) takes = fake_duration(takes);
    now = clock_now();
    if (takes >> 62) {
        awaited = takes & 0xffff;
        takes = (*busy = WHEN_ENDED) / WHEN_ENDED;
    }
    if (launches + 1 == awaited) __atomic_store_n(&ended_at, now, __ATOMIC_RELAXED);
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    if (!takes || fake_is_capturing(s, own)) return OK;
    seen = __atomic_load_n(busy, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(busy, &seen, (time_of(seen) > now ? seen : now) + takes, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) ;
    if (__atomic_load_n(busy, __ATOMIC_RELAXED) > last_busy) last_busy = *busy;
    return OK;
}
static int launch(stream *s, uint64_t f, int own) {
    int status = fake_load_kernel && !fake_is_capturing(s, own) ? fake_load_kernel(&f) : OK;
    return status ? status : run(s, f, own);
}
static void compute(uint64_t f, void **parameters) { if (fake_compute) fake_compute(f, parameters); }
/* How many launches the driver has seen, for tests and benchmarks. */
__attribute__((visibility("default"))) uint64_t fake_launches(void) { return launches; }
/* How many events it was asked to record. */
__attribute__((visibility("default"))) uint64_t fake_records(void) { return records; }

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPED gx, gy, gz, bx, by, bz, shared
#define LAUNCHES(SUFFIX, OWN)                                                                                     \
    DRIVER(cuLaunchKernel##SUFFIX, (uint64_t f, SHAPE, stream *s, void **parameters, void **extra),               \
           (f, SHAPED, s, parameters, extra)) { (void)(gx + gy + gz + bx + by + bz + shared); (void)extra; compute(f, parameters); return launch(s, f, OWN); } \
    DRIVER(cuLaunchKernelEx##SUFFIX, (const config *how, uint64_t f, void **parameters, void **extra),             \
           (how, f, parameters, extra)) { (void)extra; compute(f, parameters); return launch(how->on, f, OWN); }     \
    DRIVER(cuLaunchCooperativeKernel##SUFFIX, (uint64_t f, SHAPE, stream *s, void **parameters),                   \
           (f, SHAPED, s, parameters)) { (void)(gx + gy + gz + bx + by + bz + shared); (void)parameters; return launch(s, f, OWN); } \
    DRIVER(cuGraphLaunch##SUFFIX, (uint64_t graph, stream *s), (graph, s)) {                                       \
        uint64_t takes;                                                                                            \
        int status = fake_graph_memory(graph, s, &takes);                                                          \
        return status ? status : run(s, takes, OWN);                                                               \
    }                                                                                                              \
    DRIVER(cuEventRecord##SUFFIX, (event *e, stream *s), (e, s)) {                                                 \
        uint64_t *busy = busy_of(s), now = clock_now();                                                            \
        if (!busy) return INVALID_CONTEXT;                                                                         \
        if (fake_is_capturing(s, OWN)) return CAPTURE_UNSUPPORTED;                                                 \
        __atomic_add_fetch(&records, 1, __ATOMIC_RELAXED);                                                         \
        e->at = time_of(*busy) > now ? *busy : now;                                                                         \
        e->recorded = 1;                                                                                           \
        return OK;                                                                                                 \
    }
LAUNCHES(, 0)
LAUNCHES(_ptsz, 1)
DRIVER(cuLaunchCooperativeKernelMultiDevice, (one_of_many *list, unsigned count, unsigned flags), (list, count, flags)) {
    int status = OK;
    (void)flags;
    for (unsigned i = 0; i < count && !status; i++) status = launch(list[i].on, list[i].f, 0);
    return status;
}
DRIVER(cuLaunch, (uint64_t f), (f)) { return launch(NULL, f, 0); }
DRIVER(cuLaunchGrid, (uint64_t f, int width, int height), (f, width, height)) { (void)(width + height); return launch(NULL, f, 0); }
DRIVER(cuLaunchGridAsync, (uint64_t f, int width, int height, stream *s), (f, width, height, s)) { (void)(width + height); return launch(s, f, 0); }

DRIVER(cuEventCreate, (event **out, unsigned flags), (out, flags)) {
    (void)flags;
    if (!fake_current()) return INVALID_CONTEXT;
    return (*out = calloc(1, sizeof **out)) ? OK : OUT_OF_MEMORY;
}
DRIVER(cuEventDestroy_v2, (event *e), (e)) { return e ? (free(e), OK) : INVALID_HANDLE; }
DRIVER(cuEventQuery, (event *e), (e)) { return !e->recorded || clock_now() >= time_of(e->at) ? OK : NOT_READY; }
DRIVER(cuEventElapsedTime, (float *ms, event *from, event *to), (ms, from, to)) {
    if (!from->recorded || !to->recorded) return INVALID_HANDLE;
    if (clock_now() < time_of(from->at) || clock_now() < time_of(to->at)) return NOT_READY;
    return *ms = (float)((double)((int64_t)(time_of(to->at) - time_of(from->at))) * 1e-6), OK;
}
DRIVER(cuThreadExchangeStreamCaptureMode, (int *mode), (mode)) {
    static __thread int now_in;
    int was = now_in;
    now_in = *mode;
    return *mode = was, OK;
}
static void rest_until(const uint64_t *end) {
    uint64_t now;
    while (time_of(*end) > (now = clock_now())) {
        uint64_t left = *end >= WHEN_ENDED && time_of(*end) == *end ? 1000000 : time_of(*end) - now;
        struct timespec rest = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        nanosleep(&rest, NULL);
    }
}
/* Until a stream has nothing more to do. */
void fake_wait(stream *s) {
    uint64_t *busy = busy_of(s);
    if (busy) rest_until(busy);
}
void fake_wait_all(void) { rest_until(&last_busy); }
int fake_is_busy(stream *s) {
    uint64_t *busy = busy_of(s);
    return busy && time_of(*busy) > clock_now();
}
