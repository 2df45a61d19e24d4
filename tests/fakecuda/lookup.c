/* libcuda.so.1: cuGetProcAddress. It gives addresses that dlsym does not. */
#include "fake.h"

#define ROWS(X)                                                                                                   \
    X(cuInit, cuInit, 2000) X(cuDriverGetVersion, cuDriverGetVersion, 2020) X(cuDeviceGetCount, cuDeviceGetCount, 2000) \
    X(cuDeviceGet, cuDeviceGet, 2000) X(cuDeviceGetName, cuDeviceGetName, 2000) X(cuDeviceGetUuid, cuDeviceGetUuid, 9020) \
    X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040) X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020)                    \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000) \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000) X(cuCtxCreate, cuCtxCreate, 2000) X(cuCtxCreate, cuCtxCreate_v2, 3020) \
    X(cuGLCtxCreate, cuGLCtxCreate, 2000) X(cuGLCtxCreate, cuGLCtxCreate_v2, 3020) X(cuVDPAUCtxCreate, cuVDPAUCtxCreate, 3010) \
    X(cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2, 3020) X(cuMemSetMemPool, cuMemSetMemPool, 13000)                        \
    X(cuCtxCreate, cuCtxCreate_v3, 11040) X(cuCtxCreate, cuCtxCreate_v4, 12050)                                      \
    X(cuCtxDestroy, cuCtxDestroy_v2, 4000) X(cuCtxSetCurrent, cuCtxSetCurrent, 4000) X(cuCtxGetCurrent, cuCtxGetCurrent, 4000) \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000) X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                      \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000) X(cuCtxSynchronize, cuCtxSynchronize, 2000)                              \
    X(cuMemAlloc, cuMemAlloc, 2000) X(cuMemAlloc, cuMemAlloc_v2, 3020) X(cuMemAllocPitch, cuMemAllocPitch, 2000) X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020) \
    X(cuDeviceTotalMem, cuDeviceTotalMem, 2000) X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000) \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000) X(cuMemFree, cuMemFree, 2000) X(cuMemFree, cuMemFree_v2, 3020)     \
    X(cuMemGetInfo, cuMemGetInfo, 2000) X(cuMemGetInfo, cuMemGetInfo_v2, 3020) X(cuMemCreate, cuMemCreate, 10020)   \
    X(cuMemRelease, cuMemRelease, 10020) X(cuMemMap, cuMemMap, 10020) X(cuMemUnmap, cuMemUnmap, 10020)              \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020) X(cuMemAddressFree, cuMemAddressFree, 10020)                  \
    X(cuMemSetAccess, cuMemSetAccess, 10020) X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020)  \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000) X(cuStreamCreate, cuStreamCreate, 2000)       \
    X(cuStreamDestroy, cuStreamDestroy, 2000) X(cuStreamDestroy, cuStreamDestroy_v2, 4000) X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020) \
    X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020) X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020)                \
    X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000) X(cuMemGetMemPool, cuMemGetMemPool, 13000)                                                         \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020) X(cuMemPoolDestroy, cuMemPoolDestroy, 11020)                          \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020) X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020)                \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020) X(cuGraphDestroy, cuGraphDestroy, 10000)                  \
    X(cuGetErrorString, cuGetErrorString, 6000) X(cuGetErrorName, cuGetErrorName, 6000) X(cuGetExportTable, cuGetExportTable, 3000) \
    X(cuLaunch, cuLaunch, 2000) X(cuLaunchGrid, cuLaunchGrid, 2000) X(cuLaunchGridAsync, cuLaunchGridAsync, 2000)    \
    X(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000)                              \
    X(cuEventCreate, cuEventCreate, 2000) X(cuEventDestroy, cuEventDestroy_v2, 4000) X(cuEventQuery, cuEventQuery, 2000) \
    X(cuEventElapsedTime, cuEventElapsedTime, 2000)                                                                  \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)                                   \
    X(cuArrayCreate, cuArrayCreate, 2000) X(cuArrayCreate, cuArrayCreate_v2, 3020) X(cuArray3DCreate, cuArray3DCreate, 2000) \
    X(cuArray3DCreate, cuArray3DCreate_v2, 3020) X(cuArrayDestroy, cuArrayDestroy, 2000)                             \
    X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000) X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000) \
    X(cuArrayGetMemoryRequirements, cuArrayGetMemoryRequirements, 11060)                                             \
    X(cuMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements, 11060)                           \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020) X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010)             \
    X(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010) X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000)              \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010) X(cuImportExternalMemory, cuImportExternalMemory, 10000)       \
    X(cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer, 10000)                                       \
    X(cuDestroyExternalMemory, cuDestroyExternalMemory, 10000) X(cuMulticastCreate, cuMulticastCreate, 12010)        \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020)                                             \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020)                                         \
    X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020)                         \
    X(cuCtxDestroy, cuCtxDestroy, 2000) X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000)                \
    X(cuCtxAttach, cuCtxAttach, 2000) X(cuCtxDetach, cuCtxDetach, 2000)                                              \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000) X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000) \
    X(cuGreenCtxCreate, cuGreenCtxCreate, 12040) X(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040)                      \
    X(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040) X(cuCtxSynchronize, cuCtxSynchronize_v2, 13000)                   \
    X(cuEventSynchronize, cuEventSynchronize, 2000) X(cuGraphCreate, cuGraphCreate, 10000)                           \
    X(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, 10000) X(cuGraphGetNodes, cuGraphGetNodes, 10000)          \
    X(cuGraphNodeGetType, cuGraphNodeGetType, 10000) X(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, 10000) \
    X(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, 11040) X(cuGraphInstantiate, cuGraphInstantiate, 10000) \
    X(cuGraphInstantiate, cuGraphInstantiate_v2, 11000) X(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000)    \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040) X(cuGraphExecDestroy, cuGraphExecDestroy, 10000) \
    X(cuCheckpointProcessLock, cuCheckpointProcessLock, 12080) X(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock, 12080) \
    X(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint, 12080)                                           \
    X(cuCheckpointProcessRestore, cuCheckpointProcessRestore, 12080)                                                 \
    X(cuCheckpointProcessGetState, cuCheckpointProcessGetState, 12080)                                               \
    X(cuCtxGetLimit, cuCtxGetLimit, 3010) X(cuCtxSetLimit, cuCtxSetLimit, 3010) X(cuModuleLoad, cuModuleLoad, 2000)  \
    X(cuModuleLoadData, cuModuleLoadData, 2000) X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010)                      \
    X(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000) X(cuModuleUnload, cuModuleUnload, 2000)                    \
    X(cuModuleGetFunction, cuModuleGetFunction, 2000) X(cuModuleGetGlobal, cuModuleGetGlobal, 2000)                  \
    X(cuModuleGetGlobal, cuModuleGetGlobal_v2, 3020) X(cuLibraryLoadData, cuLibraryLoadData, 12000)                  \
    X(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000) X(cuLibraryUnload, cuLibraryUnload, 12000)                \
    X(cuLibraryGetKernel, cuLibraryGetKernel, 12000) X(cuLibraryGetModule, cuLibraryGetModule, 12000)                \
    X(cuLibraryGetGlobal, cuLibraryGetGlobal, 12000) X(cuLibraryGetManaged, cuLibraryGetManaged, 12000)              \
    X(cuLibraryGetUnifiedFunction, cuLibraryGetUnifiedFunction, 12000)                                               \
    X(cuLibraryEnumerateKernels, cuLibraryEnumerateKernels, 12040)                                                   \
    X(cuKernelGetFunction, cuKernelGetFunction, 12000) X(cuFuncLoad, cuFuncLoad, 12040)                              \
    X(cuFuncGetAttribute, cuFuncGetAttribute, 2020)                                                                  \
    X(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040) X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040)
#define TWINS(X)                                                                                                  \
    X(cuStreamIsCapturing, 10000) X(cuStreamGetCtx, 9020) X(cuStreamEndCapture, 10000) X(cuStreamSynchronize, 2000) \
    X(cuMemAllocAsync, 11020) X(cuMemFreeAsync, 11020) X(cuMemAllocFromPoolAsync, 11020) \
    X(cuLaunchKernel, 4000) X(cuLaunchKernelEx, 11060) X(cuLaunchCooperativeKernel, 9000) X(cuGraphLaunch, 10000)     \
    X(cuMemMapArrayAsync, 11010) X(cuEventRecord, 2000) X(cuGraphUpload, 11010) X(cuGraphInstantiateWithParams, 12000)

/* Of every name of CUDA's headers, where everyname.py has made them: then they stand for these. */
typedef struct fake_row { const char *name; void *at; int version, own; } fake_row;
extern const fake_row fake_rows[] __attribute__((weak));
extern const int fake_row_count __attribute__((weak));

#define DECLARE(name, symbol, version) extern int in_##symbol();
#define DECLARE_TWINS(name, version) extern int in_##name(), in_##name##_ptsz();
#define ROW(name, symbol, version) {#name, (void *)in_##symbol, version, 0},
#define TWIN_ROWS(name, version) {#name, (void *)in_##name, version, 0}, {#name, (void *)in_##name##_ptsz, version, 1},
ROWS(DECLARE)
TWINS(DECLARE_TWINS)
extern int in_cuStreamBeginCapture_v2(), in_cuStreamBeginCapture_v2_ptsz(), in_cuGetProcAddress(), in_cuGetProcAddress_v2();
static const fake_row own_rows[] = {
    ROWS(ROW) TWINS(TWIN_ROWS)
    {"cuStreamBeginCapture", (void *)in_cuStreamBeginCapture_v2, 10010, 0},
    {"cuStreamBeginCapture", (void *)in_cuStreamBeginCapture_v2_ptsz, 10010, 1},
    {"cuGetProcAddress", (void *)in_cuGetProcAddress, 11030, 0},
    {"cuGetProcAddress", (void *)in_cuGetProcAddress_v2, 12000, 0},
};

/* status: 0 found, 1 no such name, 2 only in a later version. Of one name the latest ABI that is old enough. */
DRIVER(cuGetProcAddress_v2, (const char *name, void **at, int version, uint64_t flags, int *status),
       (name, at, version, flags, status)) {
    int best = -1, known = 0;
    if (!name || !at || flags > 2) return INVALID_VALUE;
    const fake_row *rows = &fake_row_count ? fake_rows : own_rows;
    int count = &fake_row_count ? fake_row_count : (int)(sizeof own_rows / sizeof *own_rows);
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) || (rows[i].own && flags != 2) || rows[i].version > fake_api()) continue;
        known = 1;
        if (rows[i].version > version && !getenv("FAKE_CUDA_ONE_ABI")) continue;   /* a driver without the older ones */
        if (best < 0 || rows[i].own > rows[best].own
            || (rows[i].own == rows[best].own && rows[i].version > rows[best].version)) best = i;
    }
    *at = best < 0 ? NULL : rows[best].at;
    if (status) *status = best >= 0 ? 0 : known ? 2 : 1;
    return best < 0 ? NOT_FOUND : OK;
}
DRIVER(cuGetProcAddress, (const char *name, void **at, int version, uint64_t flags), (name, at, version, flags)) {
    return in_cuGetProcAddress_v2(name, at, version, flags, NULL);
}
