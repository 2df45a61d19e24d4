"""Functions of libcuda that are not hooked, each with the reason.

The list is complete: tests compare these names and calls.py with CUDA's headers and with the exports of
NVIDIA's own libraries. A name that is new there has to be added here or in calls.py.
"""

UNHOOKED: dict[str, str] = {
    "host memory: the job's limit of host memory counts it": """
        cuMemAllocHost cuMemFreeHost cuMemHostAlloc cuMemHostGetDevicePointer cuMemHostGetFlags
        cuMemHostRegister cuMemHostUnregister""",
    "addresses without memory, and access to it": """
        cuMemAddressFree cuMemAddressReserve cuMemPoolSetAccess cuMemSetAccess cuCtxDisablePeerAccess
        cuCtxEnablePeerAccess""",
    "a query about the process's own memory": """
        cuMemGetAccess cuMemGetAddressRange cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle cuMemGetAttribute cuMemGetHandleForAddressRange
        cuMemGetLocationInfo cuMemPoolGetAccess cuMemPoolGetAttribute cuMemRangeGetAttribute
        cuMemRangeGetAttributes cuDeviceGetDefaultMemPool cuDeviceGetGraphMemAttribute cuDeviceGetMemPool
        cuDevicePrimaryCtxGetState cuGraphExecGetFlags
        cuGraphExecGetId cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute cuArray3DGetDescriptor
        cuArrayGetDescriptor cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties
        cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties
        cuMulticastGetGranularity cuLogicalEndpointGetLimits""",
    "a query about the driver or a device": """
        cuDriverGetVersion cuGetErrorName cuGetErrorString cuDeviceCanAccessPeer
        cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId
        cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceGetCount cuDeviceGetDevResource
        cuDeviceGetExecAffinitySupport cuDeviceGetFabricClusterUuid cuDeviceGetHostAtomicCapabilities
        cuDeviceGetLuid cuDeviceGetName cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities
        cuDeviceGetP2PAttribute cuDeviceGetPCIBusId cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth
        cuDeviceGetUuid cuDeviceRegisterAsyncNotification cuDeviceUnregisterAsyncNotification cuGLGetDevices
        cuVDPAUGetDevice cuWGLGetDevice cuDevResourceGenerateDesc cuDevSmResourceSplit
        cuDevSmResourceSplitByCount""",
    "a query about a context, or a property of it": """
        cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevResource cuCtxGetDevice
        cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig
        cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPushCurrent cuCtxResetPersistingL2Cache
        cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetSharedMemConfig cuGreenCtxGetDevResource
        cuGreenCtxGetId cuFlushGPUDirectRDMAWrites""",
    "copies or fills memory, or advises the driver where to keep it; it is counted since its allocation": """
        cuMemcpy cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync
        cuMemcpy3DBatchAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync cuMemcpyAsync
        cuMemcpyAtoA cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyBatchAsync cuMemcpyDtoA
        cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync
        cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyWithAttributesAsync
        cuFabricCpyBatchAsync cuMemBatchDecompressAsync cuMemsetD16 cuMemsetD16Async cuMemsetD2D16
        cuMemsetD2D16Async cuMemsetD2D32 cuMemsetD2D32Async cuMemsetD2D8 cuMemsetD2D8Async cuMemsetD32
        cuMemsetD32Async cuMemsetD8 cuMemsetD8Async cuMemAdvise cuMemDiscardAndPrefetchBatchAsync
        cuMemDiscardBatchAsync cuMemPrefetchAsync cuMemPrefetchBatchAsync cuStreamAttachMemAsync""",
    "streams and events: their memory belongs to the context": """
        cuStreamAddCallback cuStreamBatchMemOp cuStreamCopyAttributes cuStreamCreate
        cuStreamCreateWithPriority cuStreamGetAttribute cuStreamGetCaptureInfo
        cuStreamGetCtx cuStreamGetDevResource cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx
        cuStreamGetId cuStreamGetPriority cuStreamIsCapturing cuStreamQuery cuStreamSetAttribute
        cuStreamUpdateCaptureDependencies cuStreamWaitEvent cuStreamWaitValue32 cuStreamWaitValue64
        cuStreamWriteValue32 cuStreamWriteValue64 cuGreenCtxStreamCreate cuGreenCtxRecordEvent
        cuGreenCtxWaitEvent cuCtxRecordEvent cuCtxWaitEvent cuThreadExchangeStreamCaptureMode cuEventCreate
        cuEventCreateFromEGLSync cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord
        cuEventRecordWithFlags cuIpcGetEventHandle cuIpcOpenEventHandle cuDestroyExternalSemaphore
        cuImportExternalSemaphore cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync""",
    "changes no size": """
        cuDevicePrimaryCtxSetFlags cuDeviceSetGraphMemAttribute cuGraphicsResourceSetMapFlags
        cuGraphicsUnmapResources cuGraphicsUnregisterResource cuGraphicsMapResources
        cuGraphExecBatchMemOpNodeSetParams cuGraphExecEventRecordNodeSetEvent
        cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecHostNodeSetParams
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
        cuGraphicsResourceGetMappedEglFrame cuGraphicsSubResourceGetMappedArray cuGLMapBufferObject
        cuGLMapBufferObjectAsync cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject
        cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject cuGLInit""",
    "textures and surfaces: views of memory that is counted": """
        cuModuleGetSurfRef cuModuleGetTexRef cuSurfObjectCreate cuSurfObjectDestroy
        cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col
        cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
        cuTensorMapSetAllocationClass cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
        cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy
        cuTexRefGetAddress cuTexRefGetAddressMode cuTexRefGetArray cuTexRefGetBorderColor
        cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy
        cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp
        cuTexRefGetMipmappedArray cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddressMode
        cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
        cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray""",
    "exports, binds or records memory that is counted when it is allocated": """
        cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMulticastAddDevice cuMulticastBindAddr
        cuMulticastBindMem cuMulticastCreate cuMulticastUnbind cuLogicalEndpointAddDevice
        cuLogicalEndpointBindAddr cuLogicalEndpointBindMem cuLogicalEndpointCreate cuLogicalEndpointDestroy
        cuLogicalEndpointExport cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
        cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind cuStreamBeginCapture
        cuStreamBeginCaptureToCig cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph
        cuStreamEndCapture cuStreamEndCaptureToCig""",
    "memory of another interface or another program: the watchdog measures it": """
        cuImportExternalMemory cuExternalMemoryGetMappedBuffer cuDestroyExternalMemory
        cuExternalMemoryGetMappedMipmappedArray cuGLRegisterBufferObject cuGraphicsEGLRegisterImage
        cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsVDPAURegisterOutputSurface
        cuGraphicsVDPAURegisterVideoSurface cuEGLApiInit cuEGLStreamConsumerAcquireFrame
        cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags cuEGLStreamConsumerDisconnect
        cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
        cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame""",
    "makes code in memory of the host: it is measured when it is loaded": """
        cuLinkComplete cuLinkAddData cuLinkAddFile cuLinkCreate cuLinkDestroy""",
    "a query about code, or a property of the next launch": """
        cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamCount cuFuncGetParamInfo
        cuFuncIsLoaded cuFuncSetAttribute cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig
        cuFuncSetSharedSize cuKernelGetAttribute cuKernelGetLibrary cuKernelGetName
        cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig
        cuLibraryGetKernelCount
        cuModuleEnumerateFunctions
        cuModuleGetFunctionCount cuModuleGetLoadingMode
        cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
        cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
        cuOccupancyMaxPotentialClusterSize cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti
        cuParamSetv""",
    "runs on the host": "cuLaunchHostFunc",
    "debuggers, profilers and logs": """
        cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback cuCoredumpGetAttribute
        cuCoredumpGetAttributeGlobal cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback
        cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuLogsCurrent cuLogsDumpToFile
        cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback cuProfilerInitialize
        cuProfilerStart cuProfilerStop cudbgApiAttach cudbgApiClientPid cudbgApiClientRevision
        cudbgApiDetach cudbgApiInit cudbgAttachHandlerAvailable cudbgDebuggerCapabilities
        cudbgDebuggerInitialized cudbgDetachSuspendedDevicesMask cudbgEnableIntegratedMemcheck
        cudbgEnableLaunchBlocking cudbgEnablePreemptionDebugging cudbgGetAPI cudbgGetAPIVersion
        cudbgInjectionPath cudbgIpcFlag cudbgMain cudbgReportDriverApiError cudbgReportDriverApiErrorFlags
        cudbgReportDriverInternalError cudbgReportedDriverApiErrorCode
        cudbgReportedDriverApiErrorFuncNameAddr cudbgReportedDriverApiErrorFuncNameSize
        cudbgReportedDriverInternalErrorCode cudbgResumeForAttachDetach cudbgRpcEnabled cudbgSessionId
        cudbgUseExternalDebugger""",
    "private tables of the driver, whose layout is not documented": "cuGetExportTable",
    "a reference to an existing context": "cuCtxAttach",
    "a pool of another process, which is charged for it": """
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer""",
    "builds a graph: its nodes are read when it is instantiated": """
        cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddEmptyNode
        cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddMemAllocNode
        cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode
        cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph
        cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy
        cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
        cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
        cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
        cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams
        cuGraphGetEdges cuGraphGetId cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeGetParams
        cuGraphHostNodeSetParams cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeGetParams cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams
        cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams
        cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams
        cuGraphNodeFindInClone cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies
        cuGraphNodeGetDependentNodes cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams
        cuGraphNodeGetToolsId cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams
        cuGraphReleaseUserObject cuGraphRemoveDependencies cuGraphRetainUserObject cuUserObjectCreate
        cuUserObjectRelease cuUserObjectRetain""",
    "the memory of a suspended process stays counted, because it returns": """
        cuCheckpointOperationComplete cuCheckpointProcessCheckpoint cuCheckpointProcessLock
        cuCheckpointProcessRestore cuCheckpointProcessUnlock""",
    "does not launch; the next launch is timed again": """
        cuGraphExecUpdate cuGraphExecChildGraphNodeSetParams cuGraphExecKernelNodeSetParams
        cuGraphExecNodeSetParams""",
}


def unhooked() -> dict[str, str]:
    """Return the names that are left to the driver, each with the reason."""
    return {name: reason for reason, names in UNHOOKED.items() for name in names.split()}
