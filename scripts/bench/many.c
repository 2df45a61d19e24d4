/* Measure calls of a process that holds many allocations: many COUNT
 * After COUNT allocations of 4 KiB: prints, for each call, its name and the median and the 99th percentile of single calls
 * in nanoseconds. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TIMES = 1000, BLOCK = 2 << 20 };
static uint64_t taken[TIMES], block[TIMES], place[TIMES];
static int (*allocate)(uint64_t *, size_t), (*end)(uint64_t), (*create)(uint64_t *, size_t, const void *, uint64_t);
static int (*reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t), (*map)(uint64_t, size_t, size_t, uint64_t, uint64_t);
static int (*retain)(uint64_t *, void *), (*release)(uint64_t), (*unmap)(uint64_t, size_t);

static int by_size(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}
static void fail(const char *what)
{
    fprintf(stderr, "many: %s failed\n", what);
    exit(1);
}
static void *find(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) fail(name);
    return found;
}
static int map_one(int at) { return map(place[at], BLOCK, 0, block[at], 0); }
static int retain_one(int at)
{
    uint64_t handle;
    return retain(&handle, (void *)(place[at] + 4096));
}
static int release_one(int at) { return release(block[at]); }
static int unmap_one(int at) { return unmap(place[at], BLOCK); }
static int pair(int at)
{
    uint64_t address;
    (void)at;
    return allocate(&address, 4096) || end(address);
}
static void measure(const char *name, int (*call)(int))
{
    struct timespec before, after;
    for (int at = 0; at < TIMES; at++) {
        clock_gettime(CLOCK_MONOTONIC, &before);
        if (call(at)) fail(name);
        clock_gettime(CLOCK_MONOTONIC, &after);
        taken[at] = (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000u + (uint64_t)after.tv_nsec - (uint64_t)before.tv_nsec;
    }
    qsort(taken, TIMES, sizeof *taken, by_size);
    printf("%s %llu %llu\n", name, (unsigned long long)taken[TIMES / 2], (unsigned long long)taken[TIMES * 99 / 100]);
}
static void prepare(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!driver) fail("libcuda.so.1");
    *(void **)&allocate = find(driver, "cuMemAlloc_v2");
    *(void **)&end = find(driver, "cuMemFree_v2");
    *(void **)&create = find(driver, "cuMemCreate");
    *(void **)&reserve = find(driver, "cuMemAddressReserve");
    *(void **)&map = find(driver, "cuMemMap");
    *(void **)&retain = find(driver, "cuMemRetainAllocationHandle");
    *(void **)&release = find(driver, "cuMemRelease");
    *(void **)&unmap = find(driver, "cuMemUnmap");
    int (*init)(unsigned), (*primary)(void **, int), (*set)(void *);
    *(void **)&init = find(driver, "cuInit");
    *(void **)&primary = find(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = find(driver, "cuCtxSetCurrent");
    if (init(0) || primary(&context, 0) || set(context)) fail("the start");
}
int main(int argc, char **argv)
{
    const struct { int32_t type, handles, where, id; void *more; uint64_t flags; } about = {1, 0, 1, 0, NULL, 0};
    uint64_t address;
    prepare();
    for (long left = argc > 1 ? atol(argv[1]) : 0; left > 0; left--)
        if (allocate(&address, 4096)) fail("an allocation");
    for (int at = 0; at < TIMES; at++)
        if (create(&block[at], BLOCK, &about, 0) || reserve(&place[at], BLOCK, 0, 0, 0)) fail("a block");
    measure("map", map_one);
    measure("retain", retain_one);
    measure("release", release_one);
    measure("unmap", unmap_one);
    measure("pair", pair);
    return 0;
}
