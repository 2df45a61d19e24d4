/* probe: programs for scripts/gpu-check that use the driver alone. They need no Python, no PyTorch and no nvcc: the driver
 * compiles their kernel from PTX. Each prints one line of JSON.
 *
 *   probe calibrate                  turns of the kernel's loop in a microsecond on a free GPU, and its multiprocessors
 *   probe memory BYTES               what the ways to take BYTES take that are no plain allocations
 *   probe costs COUNT                nanoseconds of calls of the driver, over COUNT calls each
 *   probe loop US WAIT SECONDS START STREAMS WIDTH THINK
 *                                    kernels of US microseconds from the clock's second START on, in STREAMS streams, each on
 *                                    WIDTH of the GPU; a wait after every WAIT kernels (0: none), then THINK microseconds
 *   probe requests US COUNT RATE SECONDS START
 *                                    COUNT kernels of US microseconds at random times, RATE a second; their latencies
 *   probe fill PART                  take PART of the memory that the driver reports as free, and hold it until the input ends
 *   probe clock SECONDS              the time that START counts, in SECONDS
 *
 * TURNS: the result of `calibrate`. PROBE_OUT: a file that receives the line, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t address;
typedef struct { int32_t kind, id; } place;   /* CUmemLocation */
enum { PINNED = 1, MANAGED = 2, NOWHERE = 0, ON_DEVICE = 1 };                       /* of CUDA's headers */
enum { STACK = 0, HEAP = 2, KEEP = 4, RESERVED = 5, MULTIPROCESSORS = 16, NON_BLOCKING = 1 };
enum { STREAMS = 32, BLOCK = 1024, OUTPUTS = 60000, LATENCIES = 100000 };
#define MIB ((size_t)1 << 20)

#define NEEDED(X)                                                                                                  \
    X(cuInit, (unsigned)) X(cuDriverGetVersion, (int *)) X(cuDeviceGetAttribute, (int *, int, int))                \
    X(cuDevicePrimaryCtxRetain, (void **, int)) X(cuCtxSetCurrent, (void *)) X(cuCtxSynchronize, (void))           \
    X(cuMemAlloc_v2, (address *, size_t)) X(cuMemFree_v2, (address)) X(cuMemGetInfo_v2, (size_t *, size_t *))      \
    X(cuModuleLoadData, (void **, const void *)) X(cuModuleGetFunction, (void **, void *, const char *))           \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    X(cuStreamCreate, (void **, unsigned)) X(cuStreamSynchronize, (void *))
#define POSSIBLE(X)                                                                                                \
    X(cuCtxSetLimit, (int, size_t)) X(cuMemsetD8_v2, (address, unsigned char, size_t))                             \
    X(cuMemGetDefaultMemPool, (void **, place *, int)) X(cuMemGetMemPool, (void **, place *, int))                 \
    X(cuDeviceGetDefaultMemPool, (void **, int)) X(cuDeviceGetMemPool, (void **, int))                             \
    X(cuMemPoolSetAttribute, (void *, int, void *)) X(cuMemPoolGetAttribute, (void *, int, void *))                \
    X(cuMemAllocFromPoolAsync, (address *, size_t, void *, void *)) X(cuMemAllocManaged, (address *, size_t, unsigned)) \
    X(cuMemAllocAsync, (address *, size_t, void *)) X(cuMemFreeAsync, (address, void *))                           \
    X(cuEventCreate, (void **, unsigned)) X(cuEventRecord, (void *, void *)) X(cuEventQuery, (void *))             \
    X(cuStreamGetCtx, (void *, void **)) X(cuStreamIsCapturing, (void *, int *)) X(cuCtxGetCurrent, (void **))
#define DECLARE(name, parameters) static int (*name) parameters;
NEEDED(DECLARE) POSSIBLE(DECLARE)

static void *context, *kernel, *streams[STREAMS];
static address out;
static int processors = 132;
static double turns = 30;   /* of the kernel's loop in a microsecond */

/* -- output ------------------------------------------------------------------------------------------------------ */

static char line[16384];
static void add(const char *format, ...) {
    va_list list;
    va_start(list, format);
    size_t used = strlen(line);
    vsnprintf(line + used, sizeof line - used, format, list);
    va_end(list);
}
static void tell(void) {
    const char *path = getenv("PROBE_OUT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) { fprintf(file, "%s\n", line); fclose(file); }
    puts(line);
    fflush(stdout);
}
static void give_up(const char *what, int status) {
    line[0] = 0;
    add("{\"not here\": \"%s: status %d\"}", what, status);
    tell();
    exit(0);
}

/* -- the clock --------------------------------------------------------------------------------------------------- */

static double now(void) {   /* seconds */
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}
static void wait_until(double second) {
    struct timespec at = {(time_t)second, (long)((second - (double)(time_t)second) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) ;
}

/* -- the GPU ----------------------------------------------------------------------------------------------------- */

static void start(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) give_up("there is no libcuda.so.1", 0);
#define FIND(name, parameters) *(void **)&name = dlsym(driver, #name);
#define REQUIRE(name, parameters) FIND(name, parameters) if (!name) give_up("the driver has no " #name, 0);
    NEEDED(REQUIRE) POSSIBLE(FIND)
    int status = cuInit(0);
    if (status) give_up("cuInit", status);
    if ((status = cuDevicePrimaryCtxRetain(&context, 0))) give_up("a context", status);
    cuCtxSetCurrent(context);
    cuDeviceGetAttribute(&processors, MULTIPROCESSORS, 0);
    if (getenv("TURNS")) turns = atof(getenv("TURNS"));
}
static const char HEAD[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
static const char SPIN[] =   /* a loop of n turns; the result is written only to keep the loop */
    ".visible .entry spin(.param .u64 n, .param .u64 out) {\n"
    ".reg .u64 %i,%n,%o; .reg .u32 %a; .reg .pred %p;\n"
    "ld.param.u64 %n,[n]; ld.param.u64 %o,[out]; mov.u64 %i,0; mov.u32 %a,1;\n"
    "L: mad.lo.u32 %a,%a,1664525,1013904223; add.u64 %i,%i,1; setp.lt.u64 %p,%i,%n; @%p bra L;\n"
    "setp.ne.u32 %p,%a,7; @%p bra E; st.global.u32 [%o],%a;\nE: ret; }\n";
static void load_kernel(void) {
    char code[4096];
    void *module;
    snprintf(code, sizeof code, "%s%s", HEAD, SPIN);
    int status = cuModuleLoadData(&module, code);
    if (status) give_up("the kernel", status);
    cuModuleGetFunction(&kernel, module, "spin");
    cuMemAlloc_v2(&out, MIB);
    for (int at = 0; at < STREAMS; at++) cuStreamCreate(&streams[at], NON_BLOCKING);
}
/* Two blocks of 1024 threads fill a multiprocessor. */
static int launch(double us, void *stream, long number, double width) {
    uint64_t count = (uint64_t)(us * turns) + 1, at = out + 16 * (uint64_t)(number % OUTPUTS);
    void *parameters[] = {&count, &at};
    unsigned grid = (unsigned)(2 * processors * width);
    return cuLaunchKernel(kernel, grid ? grid : 1, 1, 1, BLOCK, 1, 1, 0, stream, parameters, NULL);
}
static size_t free_bytes(void) {
    size_t bytes = 0, total;
    cuMemGetInfo_v2(&bytes, &total);
    return bytes;
}

/* -- calibrate --------------------------------------------------------------------------------------------------- */

static void calibrate(void) {
    double best = 1e9;
    load_kernel();
    turns = 1000;
    launch(10, streams[0], 0, 1);
    cuCtxSynchronize();
    for (int run = 0; run < 8; run++) {
        double began = now();
        for (int at = 0; at < 10; at++) launch(20, streams[0], at, 1);
        cuCtxSynchronize();
        double us = (now() - began) * 1e6 / 10;
        if (us < best) best = us;
    }
    add("{\"turns\": %.4f, \"processors\": %d}", 20 * turns / best, processors);
}

/* -- memory ------------------------------------------------------------------------------------------------------ */

static int first = 1;
/* Report one way: its status, the bytes asked for, and by how much the free memory fell. */
static void way(const char *name, int status, size_t asked, size_t before, size_t after) {
    add("%s{\"way\": \"%s\", \"status\": %d, \"asked\": %zu, \"fell\": %zd}", first ? "" : ", ", name, status, asked,
        (ssize_t)(before - after));
    first = 0;
}
static void run_once(void) {
    launch(5, streams[0], 0, 1);
    cuCtxSynchronize();
}
static void try_limit(const char *name, int limit, size_t bytes, size_t asked) {
    if (!cuCtxSetLimit) return;
    size_t before = free_bytes();
    int status = cuCtxSetLimit(limit, bytes);
    size_t at_call = free_bytes();
    way(name, status, asked, before, at_call);
    run_once();
    char text[80];
    snprintf(text, sizeof text, "%s, after a kernel", name);
    way(text, status, asked, before, free_bytes());
}
static void try_pool(const char *name, void *pool, int status, size_t bytes) {
    address at;
    size_t before = free_bytes();
    if (!status) status = cuMemAllocFromPoolAsync(&at, bytes, pool, streams[0]);
    if (!status && cuMemsetD8_v2) cuMemsetD8_v2(at, 1, bytes);
    cuCtxSynchronize();
    way(name, status, bytes, before, free_bytes());
    if (!status && cuMemFreeAsync) cuMemFreeAsync(at, streams[0]);
    cuCtxSynchronize();
}
static void try_pools(size_t bytes) {
    place nowhere = {NOWHERE, 0}, device = {ON_DEVICE, 0};
    void *pool = NULL;
    if (!cuMemAllocFromPoolAsync) return;
    if (cuDeviceGetDefaultMemPool) {
        int status = cuDeviceGetDefaultMemPool(&pool, 0);
        try_pool("the default pool", pool, status, bytes);
    }
#define BY(call, kind, where) \
    if (call) { int status = call(&pool, &where, kind); try_pool(#call "(" #where ", " #kind ")", pool, status, bytes); }
    BY(cuMemGetDefaultMemPool, PINNED, device)
    BY(cuMemGetDefaultMemPool, MANAGED, nowhere)
    BY(cuMemGetDefaultMemPool, MANAGED, device)
    BY(cuMemGetMemPool, PINNED, device)
    BY(cuMemGetMemPool, MANAGED, nowhere)
    BY(cuMemGetMemPool, MANAGED, device)
}
static void try_variables(size_t bytes) {
    char code[512];
    void *module;
    snprintf(code, sizeof code, "%s.visible .global .align 8 .b8 big[%zu];\n.visible .entry k(.param .u64 o) { .reg .u64 %%a,%%b; "
             "mov.u64 %%a,big; cvta.global.u64 %%b,%%a; ld.param.u64 %%a,[o]; st.global.u64 [%%a],%%b; ret; }\n", HEAD, bytes);
    size_t before = free_bytes();
    int status = cuModuleLoadData(&module, code);
    way("variables of a module", status, bytes, before, free_bytes());
}
static void try_memory(size_t bytes) {
    address at;
    load_kernel();
    run_once();
    add("{\"free\": %zu, \"ways\": [", free_bytes());
    try_pools(bytes);
    try_variables(bytes);
    try_limit("a heap", HEAP, bytes, bytes);
    try_limit("stacks of 16 KiB", STACK, 16 << 10, (size_t)processors * 2048 * (16 << 10));
    size_t before = free_bytes();
    int status = cuMemAllocManaged ? cuMemAllocManaged(&at, bytes, 1) : -1;
    way("managed memory", status, bytes, before, free_bytes());
    add("]}");
}

/* -- costs ------------------------------------------------------------------------------------------------------- */

#define COST(call, times, body)                                                                                    \
    if (call) {                                                                                                     \
        double began = now();                                                                                       \
        for (long at = 0; at < (times); at++) { body; }                                                             \
        add("%s\"%s\": %.0f", first ? "" : ", ", name, (now() - began) * 1e9 / (double)(times));                    \
        first = 0;                                                                                                  \
        cuCtxSynchronize();                                                                                         \
    }
static void time_launches(const char *name, long count, int number) {
    COST(cuLaunchKernel, count, launch(0.01, streams[at % number], at, 0.01))
}
static void costs(long count) {
    void *event = NULL, *pool = NULL, *any;
    int capturing;
    uint64_t bytes, keep = ~0ull;
    address memory;
    const char *name;
    load_kernel();
    if (cuEventCreate) cuEventCreate(&event, 0);
    if (cuDeviceGetDefaultMemPool && cuMemPoolSetAttribute && !cuDeviceGetDefaultMemPool(&pool, 0))
        cuMemPoolSetAttribute(pool, KEEP, &keep);
    add("{");
    name = "cuEventRecord"; COST(event, count, cuEventRecord(event, streams[0]))
    name = "cuEventQuery"; COST(event, count, cuEventQuery(event))
    name = "cuMemPoolGetAttribute"; COST(pool, count, cuMemPoolGetAttribute(pool, RESERVED, &bytes))
    name = "cuStreamGetCtx"; COST(cuStreamGetCtx, count, cuStreamGetCtx(streams[0], &any))
    name = "cuStreamIsCapturing"; COST(cuStreamIsCapturing, count, cuStreamIsCapturing(streams[0], &capturing))
    name = "cuCtxGetCurrent"; COST(cuCtxGetCurrent, count, cuCtxGetCurrent(&any))
    name = "cuMemGetInfo"; COST(cuMemGetInfo_v2, count / 10 + 1, free_bytes())
    name = "cuMemAlloc and cuMemFree of 2 MiB"; COST(cuMemAlloc_v2, count / 10 + 1, cuMemAlloc_v2(&memory, 2 * MIB); cuMemFree_v2(memory))
    name = "cuMemAllocAsync and cuMemFreeAsync of 1 MiB"; COST(cuMemAllocAsync, count, cuMemAllocAsync(&memory, MIB, streams[0]); cuMemFreeAsync(memory, streams[0]))
    time_launches("a launch, 1 stream", count, 1);
    time_launches("a launch, 8 streams", count, 8);
    time_launches("a launch, 16 streams", count, 16);
    time_launches("a launch, 32 streams", count, 32);
    add("}");
}

/* -- work -------------------------------------------------------------------------------------------------------- */

typedef struct { double us, width, think; int wait, streams; } work;

/* The part of the GPU that `count` kernels are, side by side as far as their widths fit. */
static double used(const work *w, long count) {
    double beside = w->width * w->streams >= 1 ? w->width : 1.0 / w->streams;
    return (double)count * w->us / 1e6 * beside;
}
static void loop(const work *w, double seconds, double begin) {
    double end = begin + seconds, ended;
    long count = 0;
    load_kernel();
    launch(w->us, streams[0], 0, w->width);
    cuCtxSynchronize();
    wait_until(begin);
    while (now() < end) {
        int status = launch(w->us, streams[count % w->streams], count, w->width);
        if (status) give_up("a launch", status);
        count++;
        if (w->wait && count % w->wait == 0) {
            cuCtxSynchronize();
            if (w->think > 0) wait_until(now() + w->think / 1e6);
        } else if (!w->wait && count % 256 == 0) cuStreamSynchronize(streams[(count + 1) % w->streams]);
    }
    cuCtxSynchronize();
    ended = now();
    add("{\"kernels\": %ld, \"seconds\": %.4f, \"part\": %.4f}", count, ended - begin, used(w, count) / (ended - begin));
}
static int compare(const void *one, const void *other) {
    double x = *(const double *)one, y = *(const double *)other;
    return (x > y) - (x < y);
}
static void requests(double us, int kernels, double rate, double seconds, double begin) {
    static double latency[LATENCIES];
    double end = begin + seconds, next = begin;
    long count = 0;
    load_kernel();
    launch(us, streams[0], 0, 1);
    cuCtxSynchronize();
    for (srand(7); next < end && count < LATENCIES; count++) {
        wait_until(next);
        for (int at = 0; at < kernels; at++) launch(us, streams[0], at, 1);
        cuCtxSynchronize();
        latency[count] = (now() - next) * 1e3;
        next += -log(1 - (double)rand() / ((double)RAND_MAX + 1)) / rate;
    }
    qsort(latency, (size_t)count, sizeof *latency, compare);
    add("{\"requests\": %ld, \"p50\": %.3f, \"p99\": %.3f, \"alone\": %.3f}", count, count ? latency[count / 2] : 0,
        count ? latency[count * 99 / 100] : 0, us * kernels / 1e3);
}
static void fill(double part) {
    address at;
    char any;
    size_t bytes = free_bytes(), asked = (size_t)((double)bytes * part) / (2 * MIB) * (2 * MIB);
    int status = cuMemAlloc_v2(&at, asked);
    add("{\"free\": %zu, \"asked\": %zu, \"status\": %d}", bytes, asked, status);
    tell();
    while (read(0, &any, 1) > 0) ;
}

int main(int count, char **words) {
    const char *verb = count > 1 ? words[1] : "";
#define NUMBER(at, usual) (count > (at) ? atof(words[at]) : (usual))
    if (!strcmp(verb, "clock")) return printf("%.4f\n", now() + NUMBER(2, 0)), 0;
    start();
    if (!strcmp(verb, "fill")) return fill(NUMBER(2, 0.95)), 0;
    if (!strcmp(verb, "calibrate")) calibrate();
    else if (!strcmp(verb, "memory")) try_memory((size_t)NUMBER(2, 1e9) / (2 * MIB) * (2 * MIB));
    else if (!strcmp(verb, "costs")) costs((long)NUMBER(2, 20000));
    else if (!strcmp(verb, "loop")) {
        work w = {NUMBER(2, 100), NUMBER(7, 1), NUMBER(8, 0), (int)NUMBER(3, 0), (int)NUMBER(6, 1)};
        loop(&w, NUMBER(4, 3), NUMBER(5, now() + 1));
    } else if (!strcmp(verb, "requests")) requests(NUMBER(2, 50), (int)NUMBER(3, 20), NUMBER(4, 50), NUMBER(5, 3), NUMBER(6, now() + 1));
    else return 2;
    tell();
    return 0;
}
