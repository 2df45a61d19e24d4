/* fakejob: a CUDA program that does as it is told, one command an argument; "-" takes commands from stdin.
   Each prints one line: the verb, the driver's status, and what there is to say. Things are numbered from 0 in
   the order of the commands that make them. Built twice: against the driver (LINKED), and looking it up itself
   (FAKEJOB_VIA=dlsym, or =lookup for cuGetProcAddress; FAKEJOB_TWINS=1: the per-thread twins). */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef struct { u64 key; char rest[56]; } ipc;
#define DOMAIN (1 << 8)   /* the second of a card's locality domains, beside the device */
#define CALLS(X)                                                                                                  \
    X(cuInit, "cuInit", (unsigned)) X(cuDeviceGet, "cuDeviceGet", (int *, int))                                     \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int)) X(cuCtxSetCurrent, "cuCtxSetCurrent", (void *)) \
    X(cuMemAlloc_v2, "cuMemAlloc", (u64 *, size_t)) X(cuMemFree_v2, "cuMemFree", (u64))                              \
    X(cuMemAllocManaged, "cuMemAllocManaged", (u64 *, size_t, unsigned))                                            \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", (u64 *, size_t *, size_t, size_t, unsigned))                           \
    X(cuMemGetInfo_v2, "cuMemGetInfo", (size_t *, size_t *)) X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", (size_t *, int)) \
    X(cuMemCreate, "cuMemCreate", (u64 *, size_t, const void *, u64)) X(cuMemRelease, "cuMemRelease", (u64))         \
    X(cuMemMap, "cuMemMap", (u64, size_t, size_t, u64, u64)) X(cuMemUnmap, "cuMemUnmap", (u64, size_t))              \
    X(cuMemAddressReserve, "cuMemAddressReserve", (u64 *, size_t, size_t, u64, u64))                                \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", (u64 *, void *))                                  \
    X(cuStreamCreate, "cuStreamCreate", (void **, unsigned)) X(cuDeviceGetMemPool, "cuDeviceGetMemPool", (void **, int)) \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (void *, int, void *)) X(cuMemPoolTrimTo, "cuMemPoolTrimTo", (void *, size_t)) \
    X(cuMemPoolCreate, "cuMemPoolCreate", (void **, const void *)) X(cuMemPoolDestroy, "cuMemPoolDestroy", (void *)) \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", (int, void *)) X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (void **, int)) \
    X(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", (void **, const void *, int)) X(cuMemGetMemPool, "cuMemGetMemPool", (void **, const void *, int)) X(cuMemSetMemPool, "cuMemSetMemPool", (const void *, int, void *))                              \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void)) X(cuEventSynchronize, "cuEventSynchronize", (void *))            \
    X(cuCheckpointProcessLock, "cuCheckpointProcessLock", (int, void *)) X(cuCheckpointProcessUnlock, "cuCheckpointProcessUnlock", (int, void *)) \
    X(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", (int, void *)) X(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", (int, void *)) \
    X(cuCtxDestroy_v2, "cuCtxDestroy", (void *)) X(cuCtxSetLimit, "cuCtxSetLimit", (int, size_t)) X(cuCtxGetLimit, "cuCtxGetLimit", (size_t *, int)) \
    X(cuModuleLoad, "cuModuleLoad", (void **, const char *)) X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *)) \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", (void **, const void *, unsigned, void *, void *)) X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", (void **, const void *)) \
    X(cuModuleUnload, "cuModuleUnload", (void *)) X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *)) \
    X(cuModuleGetGlobal_v2, "cuModuleGetGlobal", (u64 *, size_t *, void *, const char *))                            \
    X(cuLibraryLoadData, "cuLibraryLoadData", (void **, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
    X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", (void **, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
    X(cuLibraryUnload, "cuLibraryUnload", (void *)) X(cuLibraryGetModule, "cuLibraryGetModule", (void **, void *))    \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", (void **, void *, const char *)) X(cuLibraryEnumerateKernels, "cuLibraryEnumerateKernels", (void **, unsigned, void *)) \
    X(cuLibraryGetGlobal, "cuLibraryGetGlobal", (u64 *, size_t *, void *, const char *))                             \
    X(cuKernelGetFunction, "cuKernelGetFunction", (void **, void *)) X(cuFuncLoad, "cuFuncLoad", (void *))           \
    X(cuCtxAttach, "cuCtxAttach", (void **, unsigned)) X(cuCtxDetach, "cuCtxDetach", (void *))                       \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", (int)) X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", (int)) \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", (void **, void *, int, unsigned)) X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", (void **, void *)) \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", (void *))                                                              \
    X(cuArrayCreate_v2, "cuArrayCreate", (void **, const void *)) X(cuArray3DCreate_v2, "cuArray3DCreate", (void **, const void *)) \
    X(cuArrayDestroy, "cuArrayDestroy", (void *)) X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", (void **, const void *, unsigned)) \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", (void *)) X(cuGraphCreate, "cuGraphCreate", (void **, unsigned)) \
    X(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode", (void **, void *, const void *, size_t, void *))         \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long))             \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (void *, u64)) X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", (u64 *, ipc, unsigned)) \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (u64)) X(cuMulticastCreate, "cuMulticastCreate", (u64 *, const void *)) \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", (void *, u64, int, u64))                         \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", (u64 *, void *, int))                        \
    X(cuImportExternalMemory, "cuImportExternalMemory", (void **, const void *)) X(cuDestroyExternalMemory, "cuDestroyExternalMemory", (void *)) \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", (u64 *, void *, const void *))             \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (void *)) X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", (int))
#define TWINS(X)                                                                                                  \
    X(cuMemAllocAsync, "cuMemAllocAsync", (u64 *, size_t, void *)) X(cuMemFreeAsync, "cuMemFreeAsync", (u64, void *)) \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", (void *, int)) X(cuStreamEndCapture, "cuStreamEndCapture", (void *, void **)) \
    X(cuLaunchKernel, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", (const void *, void *, void **, void **))                                \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **)) \
    X(cuStreamSynchronize, "cuStreamSynchronize", (void *))                                                         \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", (u64 *, size_t, void *, void *))                           \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", (void **, void *, void *))                       \
    X(cuMemMapArrayAsync, "cuMemMapArrayAsync", (void *, unsigned, void *))                                          \
    X(cuGraphUpload, "cuGraphUpload", (void *, void *)) X(cuGraphLaunch, "cuGraphLaunch", (void *, void *))
/* Whose ABIs differ so much that the newest is not what was meant. */
#define OF_VERSIONS(X)                                                                                            \
    X(cuCtxCreate, "cuCtxCreate", 2000, (void **, unsigned, int)) X(cuCtxCreate_v2, "cuCtxCreate", 3020, (void **, unsigned, int)) \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, (void **, void *, int, unsigned, int))                                  \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, (void **, void *, unsigned, int))                                       \
    X(cuGLCtxCreate, "cuGLCtxCreate", 2000, (void **, unsigned, int)) X(cuGLCtxCreate_v2, "cuGLCtxCreate", 3020, (void **, unsigned, int)) \
    X(cuVDPAUCtxCreate, "cuVDPAUCtxCreate", 3010, (void **, unsigned, int, uint32_t, void *))                       \
    X(cuVDPAUCtxCreate_v2, "cuVDPAUCtxCreate", 3020, (void **, unsigned, int, uint32_t, void *))
#define DECLARE_ONE(name, text, version, parameters) DECLARE(name, text, parameters)
#ifdef LINKED
#define DECLARE(name, text, parameters) extern int name parameters;
CALLS(DECLARE) TWINS(DECLARE) OF_VERSIONS(DECLARE_ONE)
static int resolve(void) { return 0; }
#else
#define DECLARE(name, text, parameters) static int (*name) parameters;
CALLS(DECLARE) TWINS(DECLARE) OF_VERSIONS(DECLARE_ONE)
static int resolve(void) {
    const char *via = getenv("FAKEJOB_VIA"), *own = getenv("FAKEJOB_TWINS");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 1;
    int (*find)(const char *, void **, int, u64, int *) = dlsym(driver, "cuGetProcAddress_v2");
    int look = via && !strcmp(via, "lookup"), status;
#define FIND(name, text, parameters) if (look) find(text, (void **)&name, 12080, own ? 2 : 0, &status); else *(void **)&name = dlsym(driver, #name);
#define FIND_TWIN(name, text, parameters) if (look || !own) { FIND(name, text, parameters) } else *(void **)&name = dlsym(driver, #name "_ptsz");
#define FIND_ONE(name, text, version, parameters) if (look) find(text, (void **)&name, version, 0, &status); else *(void **)&name = dlsym(driver, #name);
    CALLS(FIND) TWINS(FIND_TWIN) OF_VERSIONS(FIND_ONE)
    return 0;
}
#endif

static struct { u64 address, size; } thing[65536];
static size_t things;
static void *stream, *pool, *home;   /* home: the context that it begins with */
static int device;

static u64 number(char **at) {
    u64 value = strtoull(*at, at, 0);
    int shift = **at == 'K' ? 10 : **at == 'M' ? 20 : **at == 'G' ? 30 : 0;
    if (shift) ++*at;
    return value << shift;
}
static int started(void) {
    static int done = -1;
    if (done >= 0) return done;
    if (resolve() || cuInit(0)) return done = 1;
    if (getenv("FAKEJOB_BARE")) return done = 0;
    int status = cuDevicePrimaryCtxRetain(&home, device);
    if (status) return status;   /* tried again by the next command */
    return done = cuCtxSetCurrent(home) || cuDeviceGetMemPool(&pool, device);
}
typedef struct { int32_t type, handles, where, id; void *win32; u64 flags; } prop;

struct racer { u64 size; int in_order, rounds, asked, refused, lost; unsigned seed; void *context; pthread_t thread; };
static void *race(void *data) {
    struct racer *r = data;
    u64 held[64];
    int n = 0, status;
    cuCtxSetCurrent(r->context);
    for (int i = 0; i < r->rounds; i++) {
        u64 size = r->size * (u64)(1 + rand_r(&r->seed) % 4);
        if (n && (n == 64 || rand_r(&r->seed) % 3 == 0)) { r->lost += (r->in_order ? cuMemFreeAsync(held[--n], NULL) : cuMemFree_v2(held[--n])) != 0; continue; }
        status = r->in_order ? cuMemAllocAsync(&held[n], size, NULL) : cuMemAlloc_v2(&held[n], size);
        r->asked++;
        if (!status) n++;
        else if (status == 2) r->refused++; else r->lost++;
    }
    while (n) r->lost += cuMemFree_v2(held[--n]) != 0;
    return NULL;
}
static int race_all(int in_order, u64 threads, u64 rounds, u64 size, u64 *refused, u64 *asked) {
    struct racer racer[64];
    void *context;
    int lost = 0;
    cuDevicePrimaryCtxRetain(&context, device);
    for (u64 i = 0; i < threads && i < 64; i++) {
        racer[i] = (struct racer){.size = size, .in_order = in_order, .rounds = (int)rounds, .seed = (unsigned)(getpid() * 64 + (int)i), .context = context};
        pthread_create(&racer[i].thread, NULL, race, &racer[i]);
    }
    for (u64 i = 0; i < threads && i < 64; i++) {
        pthread_join(racer[i].thread, NULL);
        *refused += (u64)racer[i].refused;
        *asked += (u64)racer[i].asked;
        lost += racer[i].lost;
    }
    return lost;
}

/* Threads that each take one thing, and end. */
static void *take_one(void *data) {
    struct racer *r = data;
    u64 made;
    cuCtxSetCurrent(r->context);
    r->lost = cuMemAlloc_v2(&made, r->size);
    return NULL;
}
static int take_all(u64 threads, u64 size) {
    struct racer racer[64];
    void *context;
    int lost = 0;
    cuDevicePrimaryCtxRetain(&context, device);
    for (u64 i = 0; i < threads && i < 64; i++) {
        racer[i] = (struct racer){.size = size, .context = context};
        pthread_create(&racer[i].thread, NULL, take_one, &racer[i]);
    }
    for (u64 i = 0; i < threads && i < 64; i++) {
        pthread_join(racer[i].thread, NULL);
        lost += racer[i].lost;
    }
    return lost;
}

static void obey(char *line);
static int is(char **at, const char *verb) {
    size_t n = strlen(verb);
    if (strncmp(*at, verb, n) || ((*at)[n] && (*at)[n] != ' ')) return 0;
    *at += n;
    return 1;
}
/* Memory: make a thing, or end one. */
static int memory(char *line, int *status) {
    char *at = line;
    size_t pitch = 0, i;
    u64 made = 0, size = 0;
    if (is(&at, "alloc")) *status = cuMemAlloc_v2(&made, size = number(&at));
    else if (is(&at, "managed")) *status = cuMemAllocManaged(&made, size = number(&at), 1);
    else if (is(&at, "pitch")) { size = number(&at); *status = cuMemAllocPitch_v2(&made, &pitch, size, number(&at), 4); }
    else if (is(&at, "async")) *status = cuMemAllocAsync(&made, size = number(&at), stream);
    else if (is(&at, "create")) {
        size = number(&at);
        prop p = {1, 0, 1, device, NULL, 0};
        if (*at == ' ') { p.where = (int)number(&at); p.id = p.where == 6 ? device | DOMAIN : 0; }
        *status = cuMemCreate(&made, size, &p, 0);
    } else if (is(&at, "map")) {
        i = number(&at);
        size = *at == ' ' ? number(&at) : thing[i].size;
        *status = cuMemAddressReserve(&made, size, 0, 0, 0);
        if (!*status) *status = cuMemMap(made, size, 0, thing[i].address, 0);
    } else if (is(&at, "retain")) { i = number(&at); size = thing[i].size; *status = cuMemRetainAllocationHandle(&made, (void *)(thing[i].address + size / 2)); }
    else {
        if (is(&at, "free")) *status = cuMemFree_v2(thing[number(&at)].address);
        else if (is(&at, "afree")) *status = cuMemFreeAsync(thing[number(&at)].address, stream);
        else if (is(&at, "release")) *status = cuMemRelease(thing[number(&at)].address);
        else if (is(&at, "unmap")) { i = number(&at); *status = cuMemUnmap(thing[i].address, thing[i].size); }
        else return 0;
        return 1;
    }
    thing[things].address = made;
    thing[things++].size = size;
    return 1;
}
static void made_thing(u64 made, u64 size) {
    thing[things].address = made;
    thing[things++].size = size;
}
static void *object(char **at) { return (void *)thing[number(at)].address; }
/* Pools by name, and arrays. */
static int pools_and_arrays(char *line, int *status) {
    char *at = line;
    void *made = NULL;
    if (is(&at, "pool")) {   /* [location type [allocation type]] */
        struct { int32_t type, handles, where, id; void *win32; u64 most; char rest[56]; } p = {1, 0, 1, device, NULL, 0, ""};
        if (*at == ' ') p.where = (int)number(&at);
        if (p.where == 6) p.id |= DOMAIN;
        if (*at == ' ') p.type = (int)number(&at);
        { *status = cuMemPoolCreate(&made, &p); made_thing((u64)made, 0); }
    } else if (is(&at, "default-pool")) { *status = cuDeviceGetDefaultMemPool(&made, device); made_thing((u64)made, 0); }
    else if (is(&at, "local-pool")) {
        int32_t location[2] = {6, device | DOMAIN};
        *status = cuMemGetDefaultMemPool(&made, location, 1);
        made_thing((u64)made, 0);
    } else if (is(&at, "managed-pool")) {   /* LOCATION-TYPE: the default pool of managed memory there */
        int32_t location[2] = {(int)number(&at), device};
        *status = cuMemGetDefaultMemPool(&made, location, 2);
        made_thing((u64)made, 0);
    } else if (is(&at, "current-pool")) {   /* LOCATION-TYPE ALLOCATION-TYPE: the pool that serves there */
        int32_t location[2] = {(int)number(&at), device};
        *status = cuMemGetMemPool(&made, location, (int)number(&at));
        made_thing((u64)made, 0);
    } else if (is(&at, "serve-pool")) {     /* NUMBER LOCATION-TYPE ALLOCATION-TYPE: let a pool serve there */
        void *own = object(&at);
        int32_t location[2] = {(int)number(&at), device};
        *status = cuMemSetMemPool(location, (int)number(&at), own);
    } else if (is(&at, "from")) {
        u64 where = 0, size;
        void *from = object(&at);
        size = number(&at);
        *status = cuMemAllocFromPoolAsync(&where, size, from, stream);
        made_thing(where, size);
    } else if (is(&at, "set-pool")) *status = cuDeviceSetMemPool(device, object(&at));
    else if (is(&at, "pool-threshold")) { void *p = object(&at); u64 v = number(&at); *status = cuMemPoolSetAttribute(p, 4, &v); }
    else if (is(&at, "pool-trim")) { void *p = object(&at); *status = cuMemPoolTrimTo(p, number(&at)); }
    else if (is(&at, "pool-destroy")) *status = cuMemPoolDestroy(object(&at));
    else if (is(&at, "array") || is(&at, "mipmap")) {   /* WIDTH HEIGHT DEPTH FORMAT CHANNELS FLAGS LEVELS; depth and flags 0: the flat call */
        struct { u64 w, h, d; int32_t format; uint32_t channels, flags; } a;
        a.w = number(&at); a.h = number(&at); a.d = number(&at);
        a.format = (int)number(&at); a.channels = (unsigned)number(&at); a.flags = (unsigned)number(&at);
        struct { u64 w, h; int32_t format; uint32_t channels; } flat = {a.w, a.h, a.format, a.channels};
        if (line[0] == 'm') *status = cuMipmappedArrayCreate(&made, &a, (unsigned)number(&at));
        else *status = a.d || a.flags ? cuArray3DCreate_v2(&made, &a) : cuArrayCreate_v2(&made, &flat);
        made_thing((u64)made, 0);
    } else if (is(&at, "array-end")) *status = cuArrayDestroy(object(&at));
    else if (is(&at, "mipmap-end")) *status = cuMipmappedArrayDestroy(object(&at));
    else return 0;
    return 1;
}
static void free_all(void) {
    for (size_t i = 0; i < things; i++) printf("exit %d\n", cuMemFree_v2(thing[i].address));
}
/* Contexts, and graphs. */
static int contexts_and_graphs(char *line, int *status) {
    char *at = line;
    void *made = NULL;
    if (is(&at, "context")) {   /* [of which ABI] */
        int abi = *at ? (int)number(&at) : 2;
        *status = abi == 1 ? cuCtxCreate(&made, 0, device) : abi == 2 ? cuCtxCreate_v2(&made, 0, device)
                  : abi == 3 ? cuCtxCreate_v3(&made, NULL, 0, 0, device) : abi == 4 ? cuCtxCreate_v4(&made, NULL, 0, device)
                  : abi == 5 ? cuGLCtxCreate(&made, 0, device) : abi == 6 ? cuGLCtxCreate_v2(&made, 0, device)
                  : abi == 7 ? cuVDPAUCtxCreate(&made, 0, device, 7, (void *)8) : cuVDPAUCtxCreate_v2(&made, 0, device, 7, (void *)8);
        made_thing((u64)made, 0);
    }
    else if (is(&at, "context-end")) *status = cuCtxDestroy_v2(object(&at));
    else if (is(&at, "at-exit")) *status = atexit(free_all);
    else if (is(&at, "attach")) *status = cuCtxAttach(&made, 0);
    else if (is(&at, "detach")) *status = cuCtxDetach(object(&at));
    else if (is(&at, "primary")) { *status = cuDevicePrimaryCtxRetain(&made, device); if (!*status) *status = cuCtxSetCurrent(made); }
    else if (is(&at, "release-primary")) *status = cuDevicePrimaryCtxRelease_v2(device);
    else if (is(&at, "reset-primary")) *status = cuDevicePrimaryCtxReset_v2(device);
    else if (is(&at, "green")) {
        void *green = NULL;
        if (!(*status = cuGreenCtxCreate(&green, NULL, device, 1))) *status = cuCtxFromGreenCtx(&made, green) || cuCtxSetCurrent(made);
        made_thing((u64)green, 0);
    } else if (is(&at, "green-end")) *status = cuGreenCtxDestroy(object(&at));
    else if (is(&at, "graph")) { *status = cuStreamEndCapture(stream, &made); made_thing((u64)made, 0); }
    else if (is(&at, "within")) {
        void *node, *child = object(&at);
        *status = cuGraphCreate(&made, 0) || cuGraphAddChildGraphNode(&node, made, NULL, 0, child);
        made_thing((u64)made, 0);
    } else if (is(&at, "instantiate")) { void *g = object(&at); *status = cuGraphInstantiateWithFlags(&made, g, 0); made_thing((u64)made, 0); }
    else if (is(&at, "instantiate-with")) {   /* GRAPH FLAGS */
        struct { u64 flags; void *on, *node; int result; } how = {0, stream, NULL, 0};
        void *g = object(&at);
        how.flags = number(&at);
        *status = cuGraphInstantiateWithParams(&made, g, &how);
        made_thing((u64)made, 0);
    } else if (is(&at, "launch")) *status = cuGraphLaunch(object(&at), stream);
    else if (is(&at, "upload")) *status = cuGraphUpload(object(&at), stream);
    else if (is(&at, "exec-end")) *status = cuGraphExecDestroy(object(&at));
    else if (is(&at, "trim-graphs")) *status = cuDeviceGraphMemTrim(device);
    else if (is(&at, "sync-all")) *status = cuCtxSynchronize();
    else if (is(&at, "sync-event")) *status = cuEventSynchronize(NULL);
    else return 0;
    return 1;
}
/* An image for the fake driver: code.c. */
static char *image(u64 bytes, u64 local, int as_file) {
    static char text[256], path[] = "/tmp/fakejob-image-XXXXXX";
    FILE *file;
    snprintf(text, sizeof text, "an image: global %llu local %llu", (unsigned long long)bytes, (unsigned long long)local);
    if (!as_file) return text;
    strcpy(path, "/tmp/fakejob-image-XXXXXX");
    if (!(file = fdopen(mkstemp(path), "w"))) return NULL;
    fputs(text, file);
    fclose(file);
    return path;
}
static int load_by(char *at, int is_library, void **made) {
    char how[16] = "";
    int status, shift = 0;
    sscanf(at, "%15s%n", how, &shift);
    at += shift;
    int as_file = !strcmp(how, "file");
    u64 bytes = number(&at), local = number(&at);
    char *from = image(bytes, local, as_file);
    if (is_library) status = as_file ? cuLibraryLoadFromFile(made, from, 0, 0, 0, 0, 0, 0) : cuLibraryLoadData(made, from, 0, 0, 0, 0, 0, 0);
    else if (as_file) status = cuModuleLoad(made, from);
    else status = !strcmp(how, "ex") ? cuModuleLoadDataEx(made, from, 0, 0, 0) : !strcmp(how, "fat") ? cuModuleLoadFatBinary(made, from) : cuModuleLoadData(made, from);
    if (as_file) unlink(from);
    return status;
}
static int launch_by(void *f, const char *how) {
    struct { unsigned shape[7]; void *on, *attributes; unsigned count; } config = {{1, 1, 1, 1, 1, 1, 0}, stream, NULL, 0};
    if (strstr(how, "ex")) return cuLaunchKernelEx(&config, f, NULL, NULL);
    if (strstr(how, "cooperative")) return cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}
/* Limits of the context, and code. */
static int code(char *line, int *status, u64 *a) {
    char *at = line;
    void *made = NULL;
    size_t bytes = 0;
    if (is(&at, "limit")) { int which = (int)number(&at); *status = cuCtxSetLimit(which, number(&at)); return 1; }
    if (is(&at, "checkpoint")) { *status = cuCheckpointProcessLock(getpid(), NULL) || cuCheckpointProcessCheckpoint(getpid(), NULL); return 1; }
    if (is(&at, "restore")) {
        if (!(*status = cuCheckpointProcessRestore(getpid(), NULL))) *status = cuCheckpointProcessUnlock(getpid(), NULL);
        return 1;
    }
    if (is(&at, "get-limit")) { *status = cuCtxGetLimit((size_t *)a, (int)number(&at)); return 1; }
    if (is(&at, "module-end")) { *status = cuModuleUnload(object(&at)); return 1; }
    if (is(&at, "library-end")) { *status = cuLibraryUnload(object(&at)); return 1; }
    if (is(&at, "load-function")) { *status = cuFuncLoad(object(&at)); return 1; }
    if (is(&at, "run")) { void *f = object(&at); *status = launch_by(f, at); return 1; }
    if (is(&at, "global")) { *status = cuModuleGetGlobal_v2(a, &bytes, object(&at), "v"); *a = bytes; return 1; }
    if (is(&at, "library-global")) { *status = cuLibraryGetGlobal(a, &bytes, object(&at), "v"); *a = bytes; return 1; }
    if (is(&at, "module")) *status = load_by(at, 0, &made);
    else if (is(&at, "library")) *status = load_by(at, 1, &made);
    else if (is(&at, "function")) *status = cuModuleGetFunction(&made, object(&at), "k");
    else if (is(&at, "kernel")) *status = cuLibraryGetKernel(&made, object(&at), "k");
    else if (is(&at, "kernels")) *status = cuLibraryEnumerateKernels(&made, 1, object(&at));
    else if (is(&at, "kernel-function")) *status = cuKernelGetFunction(&made, object(&at));
    else if (is(&at, "library-module")) *status = cuLibraryGetModule(&made, object(&at));
    else return 0;
    made_thing((u64)made, 0);
    return 1;
}
/* Memory from elsewhere. */
static int imports(char *line, int *status, u64 *a) {
    char *at = line;
    ipc handle = {0, "a handle"};
    u64 made = 0;
    if (is(&at, "ipc-give")) { u64 i = number(&at); *status = cuIpcGetMemHandle(&handle, thing[i].address + thing[i].size / 2); *a = handle.key; }
    else if (is(&at, "ipc-open")) { handle.key = number(&at); *status = cuIpcOpenMemHandle_v2(&made, handle, 1); made_thing(made, 0); }
    else if (is(&at, "ipc-close")) *status = cuIpcCloseMemHandle(thing[number(&at)].address);
    else if (is(&at, "export")) *status = cuMemExportToShareableHandle(a, thing[number(&at)].address, 1, 0);
    else if (is(&at, "import")) { u64 key = number(&at); *status = cuMemImportFromShareableHandle(&made, (void *)key, 1); made_thing(made, number(&at)); }
    else if (is(&at, "map-part") || is(&at, "unmap-part")) {   /* ARRAY PART [HANDLE] */
        struct { int32_t kind; u64 array; int32_t part_kind; u64 part[4]; int32_t what, handle_kind; u64 handle, offset; uint32_t rest[4]; } p = {0};
        p.array = thing[number(&at)].address;
        p.part[0] = number(&at);
        p.what = line[0] == 'm' ? 1 : 2;
        if (p.what == 1) p.handle = thing[number(&at)].address;
        *status = cuMemMapArrayAsync(&p, 1, stream);
    } else if (is(&at, "multicast")) { *status = cuMulticastCreate(&made, NULL); made_thing(made, 0); }
    else if (is(&at, "external")) {
        void *outer;
        u64 how[3] = {0, number(&at), 0};
        *status = cuImportExternalMemory(&outer, NULL) || cuExternalMemoryGetMappedBuffer(&made, outer, how) || cuDestroyExternalMemory(outer);
        made_thing(made, how[1]);
    } else return 0;
    return 1;
}
/* What is said about the card, and streams. */
static int ask(char *line, int *status, u64 *a, u64 *b) {
    char *at = line;
    void *graph;
    if (is(&at, "info")) *status = cuMemGetInfo_v2((size_t *)a, (size_t *)b);
    else if (is(&at, "info-free")) *status = cuMemGetInfo_v2((size_t *)a, NULL);
    else if (is(&at, "info-null")) *status = cuMemGetInfo_v2(NULL, NULL);
    else if (is(&at, "alloc-null")) *status = cuMemAlloc_v2(NULL, number(&at));
    else if (is(&at, "free-address")) *status = cuMemFree_v2(number(&at));
    else if (is(&at, "total")) *status = cuDeviceTotalMem_v2((size_t *)a, device);
    else if (is(&at, "stream")) *status = cuStreamCreate(&stream, 0);
    else if (is(&at, "capture")) *status = cuStreamBeginCapture_v2(stream, 0);
    else if (is(&at, "end-capture")) *status = cuStreamEndCapture(stream, &graph);
    else if (is(&at, "sync")) *status = cuStreamSynchronize(stream);
    else if (is(&at, "threshold")) { *a = number(&at); *status = cuMemPoolSetAttribute(pool, 4, a); }
    else if (is(&at, "trim")) *status = cuMemPoolTrimTo(pool, number(&at));
    else if (is(&at, "errno")) { errno = 77; u64 p; *status = cuMemAlloc_v2(&p, number(&at)); *a = (u64)errno; }
    else if (is(&at, "race-hold")) { u64 t = number(&at); *status = take_all(t, number(&at)); }
    else if (is(&at, "race")) { u64 t = number(&at), r = number(&at); *status = race_all(0, t, r, number(&at), a, b); }
    else if (is(&at, "race-async")) { u64 t = number(&at), r = number(&at); *status = race_all(1, t, r, number(&at), a, b); }
    else return 0;
    return 1;
}
/* A thread that is cancelled while it does something, or before: then the status stays -1. */
struct cancelled { char *line; int status; };
static void *end_here(void *data) {
    struct cancelled *c = data;
    int status = -1;
    if (home) cuCtxSetCurrent(home);
    pthread_cancel(pthread_self());
    if (memory(c->line, &status) || contexts_and_graphs(c->line, &status)) c->status = status;
    pthread_testcancel();
    return NULL;
}
static int cancel(char *line) {
    struct cancelled c = {line + 1, -1};
    void *end = NULL;
    pthread_t thread;
    pthread_create(&thread, NULL, end_here, &c);
    pthread_join(thread, &end);
    return end == PTHREAD_CANCELED ? c.status : -2;
}
/* A tool that does something, once, in the midst of a call of the driver. */
static char tool_call[64], tool_line[256];
static void tool(const char *call) {
    if (strcmp(call, tool_call)) return;
    tool_call[0] = 0;
    obey(tool_line);
}
/* A thread that does something in the midst of a call. The call waits for it, but not if it waits for the call. */
static pthread_t meanwhile_thread;
static int meanwhile_runs;
static void *do_meanwhile(void *data) { return obey(data), NULL; }
static void meanwhile(const char *call) {
    struct timespec until;
    if (strcmp(call, tool_call)) return;
    tool_call[0] = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    meanwhile_runs = !pthread_create(&meanwhile_thread, NULL, do_meanwhile, tool_line);
    if (meanwhile_runs) meanwhile_runs = pthread_timedjoin_np(meanwhile_thread, NULL, &until) != 0;
}
static void end_meanwhile(void) {
    if (!meanwhile_runs || pthread_equal(pthread_self(), meanwhile_thread)) return;
    pthread_join(meanwhile_thread, NULL);
    meanwhile_runs = 0;
}
static int subscribe(const char *line, void (*what)(const char *)) {   /* CALL COMMAND */
    void (*to)(void (*)(const char *)) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver) *(void **)&to = dlsym(driver, "fake_subscribe");
    if (!to || sscanf(line, "%63s %255[^\n]", tool_call, tool_line) != 2) return 1;
    to(what);
    alarm(60);  /* whoever waits for himself waits for ever */
    return 0;
}
/* What becomes of this process. */
static int live(char *line, int *status) {
    char *at = line, text[64];
    if (is(&at, "hold")) *status = !fgets(text, sizeof text, stdin);
    else if (is(&at, "pid")) *status = getpid();
    else if (is(&at, "shell")) { while (*at == ' ') at++; *status = system(at); }
    else if (is(&at, "kill")) raise((int)number(&at));
    else if (is(&at, "exit")) exit((int)number(&at));
    else if (is(&at, "_exit")) _exit((int)number(&at));
    else if (is(&at, "exec")) { while (*at == ' ') at++; execl("/bin/sh", "sh", "-c", at, NULL); *status = errno; }
    else if (is(&at, "fork")) {   /* the child does the rest of the line, and ends */
        pid_t child = fork();
        if (!child) { while (*at == ' ') at++; obey(at); _exit(0); }
        waitpid(child, status, 0);
    } else if (is(&at, "forget")) {   /* a child that outlives this process */
        if (!fork()) { while (*at == ' ') at++; obey(at); _exit(0); }
        *status = 0;
    } else return 0;
    return 1;
}
static void obey(char *line) {
    char verb[32] = "";
    int status = -1;
    u64 a = 0, b = 0;
    sscanf(line, "%31s", verb);
    if (!strcmp(verb, "cancelled") && (status = started()) == 0) status = cancel(line + strlen(verb));
    else if (!strcmp(verb, "tool") && (status = started()) == 0) status = subscribe(line + strlen(verb), tool);
    else if (!strcmp(verb, "meanwhile") && (status = started()) == 0) status = subscribe(line + strlen(verb), meanwhile);
    else if (!strcmp(verb, "device")) { char *at = line + 6; device = (int)number(&at); status = 0; }
    else if (!live(line, &status) && (status = started()) == 0 && !memory(line, &status) && !pools_and_arrays(line, &status)
             && !contexts_and_graphs(line, &status) && !code(line, &status, &a) && !imports(line, &status, &a) && !ask(line, &status, &a, &b)) status = -1;
    end_meanwhile();
    if (a || b) printf("%s %d %llu %llu\n", verb, status, (unsigned long long)a, (unsigned long long)b);
    else printf("%s %d\n", verb, status);
    fflush(stdout);
}
int main(int argc, char **argv) {
    char line[4096];
    setvbuf(stdin, NULL, _IONBF, 0);   /* what follows an exec is for the next program */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-")) { obey(argv[i]); continue; }
        while (fgets(line, sizeof line, stdin)) { line[strcspn(line, "\n")] = 0; obey(line); }
    }
    return 0;
}
