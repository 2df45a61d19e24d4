#define FG_CALLS(X) \
    X(cuArray3DCreate, cuda, "cuArray3DCreate", 2000, 0) \
    X(cuArray3DCreate_v2, cuda, "cuArray3DCreate", 3020, 0) \
    X(cuArrayCreate, cuda, "cuArrayCreate", 2000, 0) \
    X(cuArrayCreate_v2, cuda, "cuArrayCreate", 3020, 0) \
    X(cuArrayDestroy, cuda, "cuArrayDestroy", 2000, 0) \
    X(cuCtxCreate, cuda, "cuCtxCreate", 2000, 0) \
    X(cuCtxCreate_v2, cuda, "cuCtxCreate", 3020, 0) \
    X(cuCtxCreate_v3, cuda, "cuCtxCreate", 11040, 0) \
    X(cuCtxCreate_v4, cuda, "cuCtxCreate", 12050, 0) \
    X(cuCtxDestroy, cuda, "cuCtxDestroy", 2000, 0) \
    X(cuCtxDestroy_v2, cuda, "cuCtxDestroy", 4000, 0) \
    X(cuCtxDetach, cuda, "cuCtxDetach", 2000, 0) \
    X(cuCtxFromGreenCtx, cuda, "cuCtxFromGreenCtx", 12040, 0) \
    X(cuCtxSynchronize, cuda, "cuCtxSynchronize", 2000, 0) \
    X(cuCtxSynchronize_v2, cuda, "cuCtxSynchronize", 13000, 0) \
    X(cuDeviceGraphMemTrim, cuda, "cuDeviceGraphMemTrim", 11040, 0) \
    X(cuDevicePrimaryCtxRelease, cuda, "cuDevicePrimaryCtxRelease", 7000, 0) \
    X(cuDevicePrimaryCtxRelease_v2, cuda, "cuDevicePrimaryCtxRelease", 11000, 0) \
    X(cuDevicePrimaryCtxReset, cuda, "cuDevicePrimaryCtxReset", 7000, 0) \
    X(cuDevicePrimaryCtxReset_v2, cuda, "cuDevicePrimaryCtxReset", 11000, 0) \
    X(cuDevicePrimaryCtxRetain, cuda, "cuDevicePrimaryCtxRetain", 7000, 0) \
    X(cuDeviceTotalMem, cuda, "cuDeviceTotalMem", 2000, 0) \
    X(cuDeviceTotalMem_v2, cuda, "cuDeviceTotalMem", 3020, 0) \
    X(cuEventSynchronize, cuda, "cuEventSynchronize", 2000, 0) \
    X(cuGetProcAddress, cuda, "cuGetProcAddress", 11030, 0) \
    X(cuGetProcAddress_v2, cuda, "cuGetProcAddress", 12000, 0) \
    X(cuGraphExecDestroy, cuda, "cuGraphExecDestroy", 10000, 0) \
    X(cuGraphInstantiate, cuda, "cuGraphInstantiate", 10000, 0) \
    X(cuGraphInstantiateWithFlags, cuda, "cuGraphInstantiateWithFlags", 11040, 0) \
    X(cuGraphInstantiateWithParams, cuda, "cuGraphInstantiateWithParams", 12000, 0) \
    X(cuGraphInstantiateWithParams_ptsz, cuda, "cuGraphInstantiateWithParams", 12000, 1) \
    X(cuGraphInstantiate_v2, cuda, "cuGraphInstantiate", 11000, 0) \
    X(cuGraphLaunch, cuda, "cuGraphLaunch", 10000, 0) \
    X(cuGraphLaunch_ptsz, cuda, "cuGraphLaunch", 10000, 1) \
    X(cuGraphUpload, cuda, "cuGraphUpload", 11010, 0) \
    X(cuGraphUpload_ptsz, cuda, "cuGraphUpload", 11010, 1) \
    X(cuGreenCtxCreate, cuda, "cuGreenCtxCreate", 12040, 0) \
    X(cuGreenCtxDestroy, cuda, "cuGreenCtxDestroy", 12040, 0) \
    X(cuIpcCloseMemHandle, cuda, "cuIpcCloseMemHandle", 4010, 0) \
    X(cuIpcGetMemHandle, cuda, "cuIpcGetMemHandle", 4010, 0) \
    X(cuIpcOpenMemHandle, cuda, "cuIpcOpenMemHandle", 4010, 0) \
    X(cuIpcOpenMemHandle_v2, cuda, "cuIpcOpenMemHandle", 11000, 0) \
    X(cuLaunch, cuda, "cuLaunch", 2000, 0) \
    X(cuLaunchCooperativeKernel, cuda, "cuLaunchCooperativeKernel", 9000, 0) \
    X(cuLaunchCooperativeKernelMultiDevice, cuda, "cuLaunchCooperativeKernelMultiDevice", 9000, 0) \
    X(cuLaunchCooperativeKernel_ptsz, cuda, "cuLaunchCooperativeKernel", 9000, 1) \
    X(cuLaunchGrid, cuda, "cuLaunchGrid", 2000, 0) \
    X(cuLaunchGridAsync, cuda, "cuLaunchGridAsync", 2000, 0) \
    X(cuLaunchKernel, cuda, "cuLaunchKernel", 4000, 0) \
    X(cuLaunchKernelEx, cuda, "cuLaunchKernelEx", 11060, 0) \
    X(cuLaunchKernelEx_ptsz, cuda, "cuLaunchKernelEx", 11060, 1) \
    X(cuLaunchKernel_ptsz, cuda, "cuLaunchKernel", 7000, 1) \
    X(cuMemAlloc, cuda, "cuMemAlloc", 2000, 0) \
    X(cuMemAllocAsync, cuda, "cuMemAllocAsync", 11020, 0) \
    X(cuMemAllocAsync_ptsz, cuda, "cuMemAllocAsync", 11020, 1) \
    X(cuMemAllocFromPoolAsync, cuda, "cuMemAllocFromPoolAsync", 11020, 0) \
    X(cuMemAllocFromPoolAsync_ptsz, cuda, "cuMemAllocFromPoolAsync", 11020, 1) \
    X(cuMemAllocManaged, cuda, "cuMemAllocManaged", 6000, 0) \
    X(cuMemAllocPitch, cuda, "cuMemAllocPitch", 2000, 0) \
    X(cuMemAllocPitch_v2, cuda, "cuMemAllocPitch", 3020, 0) \
    X(cuMemAlloc_v2, cuda, "cuMemAlloc", 3020, 0) \
    X(cuMemCreate, cuda, "cuMemCreate", 10020, 0) \
    X(cuMemExportToShareableHandle, cuda, "cuMemExportToShareableHandle", 10020, 0) \
    X(cuMemFree, cuda, "cuMemFree", 2000, 0) \
    X(cuMemFreeAsync, cuda, "cuMemFreeAsync", 11020, 0) \
    X(cuMemFreeAsync_ptsz, cuda, "cuMemFreeAsync", 11020, 1) \
    X(cuMemFree_v2, cuda, "cuMemFree", 3020, 0) \
    X(cuMemGetInfo, cuda, "cuMemGetInfo", 2000, 0) \
    X(cuMemGetInfo_v2, cuda, "cuMemGetInfo", 3020, 0) \
    X(cuMemImportFromShareableHandle, cuda, "cuMemImportFromShareableHandle", 10020, 0) \
    X(cuMemMap, cuda, "cuMemMap", 10020, 0) \
    X(cuMemMapArrayAsync, cuda, "cuMemMapArrayAsync", 11010, 0) \
    X(cuMemMapArrayAsync_ptsz, cuda, "cuMemMapArrayAsync", 11010, 1) \
    X(cuMemPoolCreate, cuda, "cuMemPoolCreate", 11020, 0) \
    X(cuMemPoolDestroy, cuda, "cuMemPoolDestroy", 11020, 0) \
    X(cuMemPoolSetAttribute, cuda, "cuMemPoolSetAttribute", 11020, 0) \
    X(cuMemPoolTrimTo, cuda, "cuMemPoolTrimTo", 11020, 0) \
    X(cuMemRelease, cuda, "cuMemRelease", 10020, 0) \
    X(cuMemRetainAllocationHandle, cuda, "cuMemRetainAllocationHandle", 11000, 0) \
    X(cuMemUnmap, cuda, "cuMemUnmap", 10020, 0) \
    X(cuMipmappedArrayCreate, cuda, "cuMipmappedArrayCreate", 5000, 0) \
    X(cuMipmappedArrayDestroy, cuda, "cuMipmappedArrayDestroy", 5000, 0) \
    X(cuStreamSynchronize, cuda, "cuStreamSynchronize", 2000, 0) \
    X(cuStreamSynchronize_ptsz, cuda, "cuStreamSynchronize", 7000, 1) \
    X(dlmopen, linker, "", 0, 0) \
    X(dlopen, linker, "", 0, 0) \
    X(dlsym, linker, "", 0, 0) \
    X(dlvsym, linker, "", 0, 0) \
    X(nvmlDeviceGetAccountingPids, nvml, "", 0, 0) \
    X(nvmlDeviceGetAccountingStats, nvml, "", 0, 0) \
    X(nvmlDeviceGetAccountingStats_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetComputeRunningProcesses, nvml, "", 0, 0) \
    X(nvmlDeviceGetComputeRunningProcesses_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetComputeRunningProcesses_v3, nvml, "", 0, 0) \
    X(nvmlDeviceGetCount, nvml, "", 0, 0) \
    X(nvmlDeviceGetCount_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetGraphicsRunningProcesses, nvml, "", 0, 0) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByIndex, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByIndex_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByPciBusId, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByPciBusId_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleBySerial, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByUUID, nvml, "", 0, 0) \
    X(nvmlDeviceGetHandleByUUIDV, nvml, "", 0, 0) \
    X(nvmlDeviceGetIndex, nvml, "", 0, 0) \
    X(nvmlDeviceGetMPSComputeRunningProcesses, nvml, "", 0, 0) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvml, "", 0, 0) \
    X(nvmlDeviceGetMemoryInfo, nvml, "", 0, 0) \
    X(nvmlDeviceGetMemoryInfo_v2, nvml, "", 0, 0) \
    X(nvmlDeviceGetProcessUtilization, nvml, "", 0, 0) \
    X(nvmlDeviceGetProcessesUtilizationInfo, nvml, "", 0, 0) \
    X(nvmlDeviceGetRunningProcessDetailList, nvml, "", 0, 0) \
    X(nvmlDeviceGetTopologyNearestGpus, nvml, "", 0, 0) \
    X(nvmlInternalGetExportTable, nvml, "", 0, 0) \
    X(nvmlSystemGetProcessName, nvml, "", 0, 0) \
    X(nvmlSystemGetTopologyGpuSet, nvml, "", 0, 0) \
    X(nvmlUnitGetDevices, nvml, "", 0, 0)
#define FG_ASKED(X) \
    X(cuArrayGetMemoryRequirements, cuda) \
    X(cuCtxGetCurrent, cuda) \
    X(cuCtxGetDevice, cuda) \
    X(cuCtxPopCurrent_v2, cuda) \
    X(cuCtxPushCurrent_v2, cuda) \
    X(cuDeviceGetDefaultMemPool, cuda) \
    X(cuDeviceGetGraphMemAttribute, cuda) \
    X(cuDeviceGetMemPool, cuda) \
    X(cuDeviceGetUuid, cuda) \
    X(cuDevicePrimaryCtxGetState, cuda) \
    X(cuEventCreate, cuda) \
    X(cuEventElapsedTime, cuda) \
    X(cuEventQuery, cuda) \
    X(cuEventRecord, cuda) \
    X(cuEventRecord_ptsz, cuda) \
    X(cuGraphChildGraphNodeGetGraph, cuda) \
    X(cuGraphGetNodes, cuda) \
    X(cuGraphMemAllocNodeGetParams, cuda) \
    X(cuGraphNodeGetType, cuda) \
    X(cuMemGetAddressRange_v2, cuda) \
    X(cuMemGetAllocationPropertiesFromHandle, cuda) \
    X(cuMemPoolGetAttribute, cuda) \
    X(cuMipmappedArrayGetMemoryRequirements, cuda) \
    X(cuStreamGetCtx, cuda) \
    X(cuStreamGetCtx_ptsz, cuda) \
    X(cuStreamIsCapturing, cuda) \
    X(cuStreamIsCapturing_ptsz, cuda) \
    X(cuThreadExchangeStreamCaptureMode, cuda) \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvml) \
    X(nvmlDeviceGetUUID, nvml) \
    X(nvmlSystemGetDriverVersion, nvml)
