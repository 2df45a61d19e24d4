/* libcudart.so.13 for PyTorch on the fake driver: the functions that PyTorch imports, each by the calls of the driver
   interface that CUDA's documentation names for it.

   NVIDIA's runtime makes sure that the driver is NVIDIA's, which the fake one is not. Like it, this one opens
   libcuda.so.1 and asks cuGetProcAddress_v2 for every other function, so it meets the hook in the same place. It is
   compiled with CUDA's headers: prototypes and structures are NVIDIA's. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#define API __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
_Static_assert(sizeof(struct cudaDeviceProp) == 1008, "PyTorch is compiled with the structure of CUDA 13");
typedef CUresult (*look_up_t)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

/* The driver. */
static look_up_t look_up;
static CUresult started;
static CUresult is_missing(void) { return CUDA_ERROR_NOT_FOUND; }
static void *driver_function(const char *name, int version) {
    void *found = NULL;
    if (!look_up || look_up(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL) || !found) return (void *)is_missing;
    return found;
}
#define CU_OF(prototype, name, version) \
    (*({ static __typeof__(&prototype) at; if (!at) at = (__typeof__(&prototype))driver_function(name, version); at; }))
#define CU(name) CU_OF(name, #name, CUDA_VERSION)
#define CU_12(name) CU_OF(name, #name, 12080)   /* cuda.h declares the ABI of CUDA 12 under this name */
static void start_once(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library) look_up = (look_up_t)dlsym(library, "cuGetProcAddress_v2");
    started = look_up ? CU(cuInit)(0) : (CUresult)cudaErrorInsufficientDriver;
}
static CUresult start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return started;
}

/* Errors have the numbers of the driver's. "Not ready" is an answer, and is not remembered. */
static __thread cudaError_t last_error;
static cudaError_t told(CUresult status) {
    if (status && status != CUDA_ERROR_NOT_READY) last_error = (cudaError_t)status;
    return (cudaError_t)status;
}
static const struct { cudaError_t error; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
API const char *cudaGetErrorName(cudaError_t error) {
    for (unsigned at = 0; at < sizeof errors / sizeof *errors; at++) if (errors[at].error == error) return errors[at].name;
    return "cudaErrorUnknown";
}
API const char *cudaGetErrorString(cudaError_t error) {
    for (unsigned at = 0; at < sizeof errors / sizeof *errors; at++) if (errors[at].error == error) return errors[at].text;
    return "unknown error";
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API cudaError_t cudaGetLastError(void) {
    cudaError_t was = last_error;
    last_error = cudaSuccess;
    return was;
}

/* A thread works in the primary context of its device, which is retained once in a process. */
enum { DEVICES = 64 };
static __thread int own_device;
static CUresult enter_device(int device) {
    static CUcontext primary[DEVICES];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CUresult status = start();
    if (status || device < 0 || device >= DEVICES) return status ? status : CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!primary[device]) status = CU(cuDevicePrimaryCtxRetain)(&primary[device], device);
    pthread_mutex_unlock(&lock);
    return status ? status : CU(cuCtxSetCurrent)(primary[device]);
}
static CUresult enter(void) {
    CUcontext current = NULL;
    CUresult status = start();
    if (!status) status = CU(cuCtxGetCurrent)(&current);
    return status || current ? status : enter_device(own_device);
}
#define AFTER(entered, call) ({ CUresult status_ = entered; told(status_ ? status_ : (call)); })
#define STARTED(call) AFTER(start(), call)    /* needs no context */
#define ENTERED(call) AFTER(enter(), call)
static cudaError_t is_unsupported(void) { return told(CUDA_ERROR_NOT_SUPPORTED); }

API cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    cudaError_t error = STARTED(CU(cuDeviceGetCount)(count));
    return error || *count ? error : told(CUDA_ERROR_NO_DEVICE);
}
API cudaError_t cudaSetDevice(int device) {
    CUresult status = enter_device(device);
    if (!status) own_device = device;
    return told(status);
}
API cudaError_t cudaGetDevice(int *device) {
    CUcontext current = NULL;
    *device = own_device;
    return STARTED(CU(cuCtxGetCurrent)(&current) || !current ? CUDA_SUCCESS : CU_12(cuCtxGetDevice)(device));
}
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = 0;
    (void)start();
    return look_up ? (cudaError_t)CU(cuDriverGetVersion)(version) : cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    return STARTED(CU(cuDeviceGetAttribute)(value, (CUdevice_attribute)which, device));
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) { return STARTED(CU(cuDeviceGetPCIBusId)(text, room, device)); }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return STARTED(CU(cuDeviceCanAccessPeer)(can, device, peer)); }
API cudaError_t cudaDeviceEnablePeerAccess(int peer UNUSED, unsigned flags UNUSED) { return is_unsupported(); }
API cudaError_t cudaDeviceSynchronize(void) { return ENTERED(CU_12(cuCtxSynchronize)()); }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return ENTERED(CU(cuCtxGetStreamPriorityRange)(least, greatest)); }
API cudaError_t cudaProfilerStart(void) { return told(enter()); }
API cudaError_t cudaProfilerStop(void) { return told(enter()); }

static int value_of(CUdevice_attribute which, int device) {
    int value = 0;
    return CU(cuDeviceGetAttribute)(&value, which, device) ? 0 : value;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    cudaError_t error = STARTED(CU(cuDeviceGetName)(out->name, sizeof out->name, device));
    if (error) return error;
    CU(cuDeviceGetUuid)((CUuuid *)&out->uuid, device);
    CU(cuDeviceTotalMem)(&out->totalGlobalMem, device);
#define PROPERTY(field, attribute) out->field = (__typeof__(out->field))value_of(CU_DEVICE_ATTRIBUTE_##attribute, device)
    PROPERTY(major, COMPUTE_CAPABILITY_MAJOR);
    PROPERTY(minor, COMPUTE_CAPABILITY_MINOR);
    PROPERTY(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
    PROPERTY(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    PROPERTY(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    PROPERTY(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK);
    PROPERTY(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
    PROPERTY(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
    PROPERTY(warpSize, WARP_SIZE);
    PROPERTY(memPitch, MAX_PITCH);
    PROPERTY(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
    PROPERTY(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
    PROPERTY(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
    PROPERTY(maxThreadsDim[0], MAX_BLOCK_DIM_X);
    PROPERTY(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
    PROPERTY(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
    PROPERTY(maxGridSize[0], MAX_GRID_DIM_X);
    PROPERTY(maxGridSize[1], MAX_GRID_DIM_Y);
    PROPERTY(maxGridSize[2], MAX_GRID_DIM_Z);
    PROPERTY(totalConstMem, TOTAL_CONSTANT_MEMORY);
    PROPERTY(textureAlignment, TEXTURE_ALIGNMENT);
    PROPERTY(multiProcessorCount, MULTIPROCESSOR_COUNT);
    PROPERTY(canMapHostMemory, CAN_MAP_HOST_MEMORY);
    PROPERTY(concurrentKernels, CONCURRENT_KERNELS);
    PROPERTY(ECCEnabled, ECC_ENABLED);
    PROPERTY(pciBusID, PCI_BUS_ID);
    PROPERTY(asyncEngineCount, ASYNC_ENGINE_COUNT);
    PROPERTY(unifiedAddressing, UNIFIED_ADDRESSING);
    PROPERTY(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
    PROPERTY(l2CacheSize, L2_CACHE_SIZE);
    PROPERTY(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
    PROPERTY(managedMemory, MANAGED_MEMORY);
    PROPERTY(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
    PROPERTY(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED);
    PROPERTY(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    PROPERTY(cooperativeLaunch, COOPERATIVE_LAUNCH);
    PROPERTY(hostRegisterSupported, HOST_REGISTER_SUPPORTED);
    PROPERTY(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
    PROPERTY(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES);
    PROPERTY(ipcEventSupported, IPC_EVENT_SUPPORTED);
    PROPERTY(clusterLaunch, CLUSTER_LAUNCH);
    return cudaSuccess;
}

/* Memory. */
#define DEVICE(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
API cudaError_t cudaMalloc(void **out, size_t bytes) {
    if (bytes) return ENTERED(CU(cuMemAlloc)((CUdeviceptr *)out, bytes));
    *out = NULL;
    return told(enter());
}
API cudaError_t cudaFree(void *at) { return at ? ENTERED(CU(cuMemFree)(DEVICE(at))) : told(enter()); }
API cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t on) { return ENTERED(CU(cuMemAllocAsync)((CUdeviceptr *)out, bytes, on)); }
API cudaError_t cudaFreeAsync(void *at, cudaStream_t on) { return ENTERED(CU(cuMemFreeAsync)(DEVICE(at), on)); }
API cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags) { return ENTERED(CU(cuMemAllocManaged)((CUdeviceptr *)out, bytes, flags)); }
API cudaError_t cudaMallocHost(void **out, size_t bytes) { return ENTERED(CU(cuMemHostAlloc)(out, bytes, 0)); }
API cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) { return ENTERED(CU(cuMemHostAlloc)(out, bytes, flags)); }
API cudaError_t cudaFreeHost(void *at) { return at ? ENTERED(CU(cuMemFreeHost)(at)) : cudaSuccess; }
API cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags) { return ENTERED(CU(cuMemHostRegister)(at, bytes, flags)); }
API cudaError_t cudaHostUnregister(void *at) { return ENTERED(CU(cuMemHostUnregister)(at)); }
API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { return ENTERED(CU(cuMemGetInfo)(free, total)); }
API cudaError_t cudaMemset(void *at, int value, size_t bytes) { return ENTERED(CU(cuMemsetD8)(DEVICE(at), (unsigned char)value, bytes)); }
API cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t on) { return ENTERED(CU(cuMemsetD8Async)(DEVICE(at), (unsigned char)value, bytes, on)); }
static CUresult copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    switch (kind) {
    case cudaMemcpyHostToDevice: return CU(cuMemcpyHtoD)(DEVICE(to), from, bytes);
    case cudaMemcpyDeviceToHost: return CU(cuMemcpyDtoH)(to, DEVICE(from), bytes);
    case cudaMemcpyDeviceToDevice: return CU(cuMemcpyDtoD)(DEVICE(to), DEVICE(from), bytes);
    default: return CU(cuMemcpy)(DEVICE(to), DEVICE(from), bytes);
    }
}
static CUresult copy_on(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, CUstream on) {
    switch (kind) {
    case cudaMemcpyHostToDevice: return CU(cuMemcpyHtoDAsync)(DEVICE(to), from, bytes, on);
    case cudaMemcpyDeviceToHost: return CU(cuMemcpyDtoHAsync)(to, DEVICE(from), bytes, on);
    case cudaMemcpyDeviceToDevice: return CU(cuMemcpyDtoDAsync)(DEVICE(to), DEVICE(from), bytes, on);
    default: return CU(cuMemcpyAsync)(DEVICE(to), DEVICE(from), bytes, on);
    }
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { return ENTERED(copy(to, from, bytes, kind)); }
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t on) { return ENTERED(copy_on(to, from, bytes, kind, on)); }
API cudaError_t cudaMemcpyPeerAsync(void *to, int device UNUSED, const void *from, int from_device UNUSED, size_t bytes, cudaStream_t on) {
    return ENTERED(CU(cuMemcpyAsync)(DEVICE(to), DEVICE(from), bytes, on));
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind UNUSED, cudaStream_t on) {
    CUDA_MEMCPY2D how = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = DEVICE(from), .srcPitch = from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = DEVICE(to), .dstPitch = pitch,
        .WidthInBytes = width, .Height = height,
    };
    return ENTERED(CU(cuMemcpy2DAsync)(&how, on));
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
    CUmemorytype type = 0;
    int is_managed = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *into[] = {&type, &is_managed, &out->device};
    memset(out, 0, sizeof *out);
    cudaError_t error = ENTERED(CU(cuPointerGetAttributes)(3, which, into, DEVICE(at)));
    out->type = is_managed ? cudaMemoryTypeManaged : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : type ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    out->devicePointer = type ? (void *)at : NULL;
    out->hostPointer = out->type == cudaMemoryTypeDevice ? NULL : (void *)at;
    return error;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device) { return STARTED(CU(cuDeviceGetDefaultMemPool)(out, device)); }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) { return ENTERED(CU(cuMemPoolGetAttribute)(pool, (CUmemPool_attribute)which, value)); }
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) { return ENTERED(CU(cuMemPoolSetAttribute)(pool, (CUmemPool_attribute)which, value)); }
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *how, size_t count) { return ENTERED(CU(cuMemPoolSetAccess)(pool, (const CUmemAccessDesc *)how, count)); }
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) { return ENTERED(CU(cuMemPoolTrimTo)(pool, keep)); }
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *at) { return ENTERED(CU(cuIpcGetMemHandle)((CUipcMemHandle *)out, DEVICE(at))); }
API cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t from, unsigned flags) {
    CUipcMemHandle handle;
    memcpy(&handle, &from, sizeof handle);
    return ENTERED(CU(cuIpcOpenMemHandle)((CUdeviceptr *)out, handle, flags));
}
API cudaError_t cudaIpcCloseMemHandle(void *at) { return ENTERED(CU(cuIpcCloseMemHandle)(DEVICE(at))); }
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event) { return ENTERED(CU(cuIpcGetEventHandle)((CUipcEventHandle *)out, event)); }
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t from) {
    CUipcEventHandle handle;
    memcpy(&handle, &from, sizeof handle);
    return ENTERED(CU(cuIpcOpenEventHandle)(out, handle));
}

/* Streams and events. */
API cudaError_t cudaStreamCreate(cudaStream_t *out) { return ENTERED(CU(cuStreamCreate)(out, 0)); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) { return ENTERED(CU(cuStreamCreate)(out, flags)); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) { return ENTERED(CU(cuStreamCreateWithPriority)(out, flags, priority)); }
API cudaError_t cudaStreamDestroy(cudaStream_t on) { return ENTERED(CU(cuStreamDestroy)(on)); }
API cudaError_t cudaStreamSynchronize(cudaStream_t on) { return ENTERED(CU(cuStreamSynchronize)(on)); }
API cudaError_t cudaStreamQuery(cudaStream_t on) { return ENTERED(CU(cuStreamQuery)(on)); }
API cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t event, unsigned flags) { return ENTERED(CU(cuStreamWaitEvent)(on, event, flags)); }
API cudaError_t cudaStreamGetPriority(cudaStream_t on, int *priority) { return ENTERED(CU(cuStreamGetPriority)(on, priority)); }
API cudaError_t cudaStreamAddCallback(cudaStream_t on, cudaStreamCallback_t call, void *data, unsigned flags) { return ENTERED(CU(cuStreamAddCallback)(on, (CUstreamCallback)call, data, flags)); }
API cudaError_t cudaLaunchHostFunc(cudaStream_t on, cudaHostFn_t call, void *data) { return ENTERED(CU_12(cuLaunchHostFunc)(on, call, data)); }
API cudaError_t cudaStreamIsCapturing(cudaStream_t on, enum cudaStreamCaptureStatus *status) { return ENTERED(CU(cuStreamIsCapturing)(on, (CUstreamCaptureStatus *)status)); }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t on, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    return ENTERED(CU(cuStreamGetCaptureInfo)(on, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, nodes, (const CUgraphEdgeData **)edges, count));
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t on, enum cudaStreamCaptureMode mode) { return ENTERED(CU(cuStreamBeginCapture)(on, (CUstreamCaptureMode)mode)); }
API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t on, cudaGraph_t graph, const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode) {
    return ENTERED(CU(cuStreamBeginCaptureToGraph)(on, graph, nodes, (const CUgraphEdgeData *)edges, count, (CUstreamCaptureMode)mode));
}
API cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *graph) { return ENTERED(CU(cuStreamEndCapture)(on, graph)); }
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t on UNUSED, cudaGraphNode_t *nodes UNUSED, const cudaGraphEdgeData *edges UNUSED, size_t count UNUSED, unsigned flags UNUSED) { return is_unsupported(); }
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return STARTED(CU(cuThreadExchangeStreamCaptureMode)((CUstreamCaptureMode *)mode)); }
API cudaError_t cudaEventCreate(cudaEvent_t *out) { return ENTERED(CU(cuEventCreate)(out, 0)); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) { return ENTERED(CU(cuEventCreate)(out, flags)); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return ENTERED(CU(cuEventDestroy)(event)); }
API cudaError_t cudaEventQuery(cudaEvent_t event) { return ENTERED(CU(cuEventQuery)(event)); }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on) { return ENTERED(CU(cuEventRecord)(event, on)); }
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t on, unsigned flags) { return ENTERED(CU(cuEventRecordWithFlags)(event, on, flags)); }
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return ENTERED(CU(cuEventSynchronize)(event)); }
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) { return ENTERED(CU(cuEventElapsedTime)(milliseconds, from, to)); }

/* Graphs. */
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) { return ENTERED(CU(cuGraphInstantiateWithFlags)(out, graph, flags)); }
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) { return ENTERED(CU(cuGraphInstantiateWithFlags)(out, graph, flags)); }
API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t on) { return ENTERED(CU(cuGraphLaunch)(graph, on)); }
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return ENTERED(CU(cuGraphDestroy)(graph)); }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return ENTERED(CU(cuGraphExecDestroy)(graph)); }
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { return ENTERED(CU(cuGraphGetNodes)(graph, nodes, count)); }
API cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) { return ENTERED(CU(cuGraphRetainUserObject)(graph, object, count, flags)); }
API cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *data UNUSED, cudaHostFn_t end UNUSED, unsigned count UNUSED, unsigned flags UNUSED) {
    *out = malloc(1);
    return cudaSuccess;
}
API cudaError_t cudaUserObjectRelease(cudaUserObject_t object UNUSED, unsigned count UNUSED) { return cudaSuccess; }
API cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType which, void *value) { return STARTED(CU(cuDeviceGetGraphMemAttribute)(device, (CUgraphMem_attribute)which, value)); }
API cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType which, void *value) { return STARTED(CU(cuDeviceSetGraphMemAttribute)(device, (CUgraphMem_attribute)which, value)); }
API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node UNUSED, cudaGraphNode_t *nodes UNUSED, cudaGraphEdgeData *edges UNUSED, size_t *count UNUSED) { return is_unsupported(); }
API cudaError_t cudaGraphAddNode(cudaGraphNode_t *out UNUSED, cudaGraph_t graph UNUSED, const cudaGraphNode_t *nodes UNUSED, const cudaGraphEdgeData *edges UNUSED, size_t count UNUSED, struct cudaGraphNodeParams *how UNUSED) { return is_unsupported(); }
API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *out UNUSED, cudaGraph_t graph UNUSED, unsigned value UNUSED, unsigned flags UNUSED) { return is_unsupported(); }

/* Code. A compiled library registers its images before main, with an address of the host for each kernel and variable. */
typedef struct { const void *code; CUlibrary library; } image;
typedef struct { const void *host; const char *name; image *of; CUkernel kernel; } symbol;
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;
static symbol *symbols;   /* a hash table with open addressing */
static size_t places, taken;

static symbol *place_of(const void *host) {
    size_t at = (size_t)host / 16 * 0x9e3779b97f4a7c15u >> 20 & (places - 1);
    while (symbols[at].host && symbols[at].host != host) at = (at + 1) & (places - 1);
    return &symbols[at];
}
static void grow(void) {
    symbol *old = symbols;
    size_t count = places;
    places = places ? 2 * places : 1 << 16;
    symbols = calloc(places, sizeof *symbols);
    for (size_t at = 0; at < count; at++) if (old[at].host) *place_of(old[at].host) = old[at];
    free(old);
}
static void register_symbol(void **of, const void *host, const char *name) {
    pthread_mutex_lock(&registering);
    if (taken >= places / 2) grow();
    symbol *place = place_of(host);
    taken += !place->host;
    *place = (symbol){host, name, (image *)of, NULL};
    pthread_mutex_unlock(&registering);
}
/* Under the lock. Its image is loaded at the first use. */
static CUresult known_symbol(const void *host, symbol **out) {
    symbol *found = *out = places ? place_of(host) : NULL;
    if (!found || !found->host) return CUDA_ERROR_INVALID_HANDLE;
    if (found->of->library) return CUDA_SUCCESS;
    return CU(cuLibraryLoadData)(&found->of->library, found->of->code, NULL, NULL, 0, NULL, NULL, 0);
}
static CUresult kernel_of(const void *host, CUkernel *out) {
    symbol *found;
    CUresult status = enter();
    pthread_mutex_lock(&registering);
    if (!status) status = known_symbol(host, &found);
    if (!status && !found->kernel) status = CU(cuLibraryGetKernel)(&found->kernel, found->of->library, found->name);
    if (!status) *out = found->kernel;
    pthread_mutex_unlock(&registering);
    return status;
}
static CUresult address_of(const void *host, CUdeviceptr *out) {
    symbol *found;
    size_t bytes;
    CUresult status = enter();
    pthread_mutex_lock(&registering);
    if (!status) status = known_symbol(host, &found);
    if (!status) status = CU(cuLibraryGetGlobal)(out, &bytes, found->of->library, found->name);
    pthread_mutex_unlock(&registering);
    return status;
}
API void **__cudaRegisterFatBinary(const void *code) {
    image *made = calloc(1, sizeof *made);
    made->code = code;
    return (void **)made;
}
API void __cudaRegisterFatBinaryEnd(void **of UNUSED) {}
API void __cudaUnregisterFatBinary(void **of UNUSED) {}
API void __cudaRegisterFunction(void **of, const void *host, char *a UNUSED, const char *name, int b UNUSED, void *c UNUSED, void *d UNUSED, void *e UNUSED, void *f UNUSED, int *g UNUSED) {
    register_symbol(of, host, name);
}
API void __cudaRegisterVar(void **of, const void *host, char *a UNUSED, const char *name, int b UNUSED, size_t c UNUSED, int d UNUSED, int e UNUSED) {
    register_symbol(of, host, name);
}
/* The shape in the brackets of kernel<<<…>>>, until the kernel is launched. */
typedef struct { dim3 grid, block; size_t shared; CUstream on; } shape;
static __thread shape pushed[16];
static __thread unsigned depth;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream on) {
    if (depth == 16) return cudaErrorInvalidValue;
    pushed[depth++] = (shape){grid, block, shared, on};
    return cudaSuccess;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *on) {
    if (!depth) return told((CUresult)cudaErrorMissingConfiguration);
    shape top = pushed[--depth];
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *(CUstream *)on = top.on;
    return cudaSuccess;
}
static CUresult launch(CUkernel kernel, dim3 grid, dim3 block, void **parameters, size_t shared, CUstream on) {
    return CU(cuLaunchKernel)((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, on, parameters, NULL);
}
API cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host) { return told(kernel_of(host, (CUkernel *)out)); }
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t on) {
    return ENTERED(launch((CUkernel)kernel, grid, block, parameters, shared, on));
}
API cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t on) {
    CUkernel kernel;
    return AFTER(kernel_of(host, &kernel), launch(kernel, grid, block, parameters, shared, on));
}
API cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t on) {
    CUkernel kernel;
    return AFTER(kernel_of(host, &kernel), CU(cuLaunchCooperativeKernel)((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, on, parameters));
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *host, void **parameters) {
    CUkernel kernel;
    CUlaunchConfig same = {
        how->gridDim.x, how->gridDim.y, how->gridDim.z, how->blockDim.x, how->blockDim.y, how->blockDim.z,
        (unsigned)how->dynamicSmemBytes, how->stream, (CUlaunchAttribute *)how->attrs, how->numAttrs,
    };
    return AFTER(kernel_of(host, &kernel), CU(cuLaunchKernelEx)(&same, (CUfunction)kernel, parameters, NULL));
}
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    CUkernel kernel = NULL;
    CUresult status = kernel_of(host, &kernel);
    memset(out, 0, sizeof *out);
#define OF_KERNEL(field, attribute) ({                                                                              \
        int value = 0;                                                                                               \
        if (!status) status = CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_##attribute, kernel, own_device);  \
        out->field = (__typeof__(out->field))value; })
    OF_KERNEL(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
    OF_KERNEL(numRegs, NUM_REGS);
    OF_KERNEL(ptxVersion, PTX_VERSION);
    OF_KERNEL(binaryVersion, BINARY_VERSION);
    OF_KERNEL(maxDynamicSharedSizeBytes, MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return told(status);
}
API cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value) {
    CUkernel kernel;
    return AFTER(kernel_of(host, &kernel), CU(cuKernelSetAttribute)((CUfunction_attribute)which, value, kernel, own_device));
}
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute which, int value, int device) {
    return ENTERED(CU(cuKernelSetAttribute)((CUfunction_attribute)which, value, (CUkernel)kernel, device));
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *host, int block, size_t shared, unsigned flags) {
    CUkernel kernel;
    return AFTER(kernel_of(host, &kernel), CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(count, (CUfunction)kernel, block, shared, flags));
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *host, int block, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, host, block, shared, 0);
}
API cudaError_t cudaGetSymbolAddress(void **out, const void *host) { return told(address_of(host, (CUdeviceptr *)out)); }
API cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind UNUSED) {
    CUdeviceptr address;
    return AFTER(address_of(host, &address), CU(cuMemcpyHtoD)(address + offset, from, bytes));
}
API cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *code, enum cudaJitOption *a UNUSED, void **b UNUSED, unsigned c UNUSED, enum cudaLibraryOption *d UNUSED, void **e UNUSED, unsigned f UNUSED) {
    return ENTERED(CU(cuLibraryLoadData)((CUlibrary *)out, code, NULL, NULL, 0, NULL, NULL, 0));
}
API cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *out, const char *path, enum cudaJitOption *a UNUSED, void **b UNUSED, unsigned c UNUSED, enum cudaLibraryOption *d UNUSED, void **e UNUSED, unsigned f UNUSED) {
    return ENTERED(CU(cuLibraryLoadFromFile)((CUlibrary *)out, path, NULL, NULL, 0, NULL, NULL, 0));
}
API cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return ENTERED(CU(cuLibraryUnload)((CUlibrary)library)); }
API cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t library, const char *name) { return ENTERED(CU(cuLibraryGetKernel)((CUkernel *)out, (CUlibrary)library, name)); }
API cudaError_t cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library) { return ENTERED(CU(cuLibraryGetKernelCount)(count, (CUlibrary)library)); }
API cudaError_t cudaLibraryGetGlobal(void **out, size_t *bytes, cudaLibrary_t library, const char *name) { return ENTERED(CU(cuLibraryGetGlobal)((CUdeviceptr *)out, bytes, (CUlibrary)library, name)); }
API cudaError_t cudaLibraryGetManaged(void **out, size_t *bytes, cudaLibrary_t library, const char *name) { return ENTERED(CU(cuLibraryGetManaged)((CUdeviceptr *)out, bytes, (CUlibrary)library, name)); }
API cudaError_t cudaLibraryGetUnifiedFunction(void **out UNUSED, cudaLibrary_t library UNUSED, const char *name UNUSED) { return is_unsupported(); }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    (void)start();
    *out = NULL;
    if (!look_up) return told(started);
    CUresult status = look_up(name, out, (int)version, flags ? flags : CU_GET_PROC_ADDRESS_LEGACY_STREAM, &result);
    if (found) *found = (enum cudaDriverEntryPointQueryResult)result;
    return status == CUDA_ERROR_NOT_FOUND ? cudaSuccess : told(status);
}
