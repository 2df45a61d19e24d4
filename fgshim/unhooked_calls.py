"""Calls that concern device memory, graphs or launches and are not hooked, each with the reason.

A test compares these names and calls.py with CUDA's headers: a new name belongs in one of the two.
"""

import re

CONCERNS = re.compile(
    r"cu(Mem(?!Advise|cpy|set|Prefetch|Discard|Batch)|Array(?!\w*Get)|MipmappedArray(?!Get)|Ipc\w*Mem|ImportExternalMemory"
    r"|ExternalMemory|DestroyExternalMemory|Multicast(?!Get)|LogicalEndpoint(?!Get)|Graph(AddNode|AddMem(Alloc|Free)|Inst|Launch|Upload|Exec)"
    r"|Graphics\w*(Register|Map)|Graphics\w*Unregister|GraphicsUnmap|GL(Register|Map)|Launch|CtxCreate|CtxDestroy|CtxAttach|CtxDetach|CtxSetLimit|CtxFromGreen"
    r"|GreenCtx(Create|Destroy)|DevicePrimaryCtx|DeviceTotalMem|Device\w*MemPool|Device\w*GraphMem|Checkpoint"
    r"|Stream(Begin|End)\w*|Module(Load|Unload)|Library(Load|Unload)|LinkComplete|Get(ProcAddress|ExportTable))"
)

UNTOUCHED: dict[str, tuple[str, ...]] = {
    "host memory: the job's limit of host memory counts it": (
        *("cuMemAllocHost", "cuMemFreeHost", "cuMemHostAlloc", "cuMemHostGetDevicePointer"),
        *("cuMemHostGetFlags", "cuMemHostRegister", "cuMemHostUnregister"),
    ),
    "addresses without memory, and who may use it": (
        *("cuMemAddressFree", "cuMemAddressReserve", "cuMemPoolSetAccess", "cuMemSetAccess"),
    ),
    "a question about one's own memory": (
        *("cuMemGetAccess", "cuMemGetAddressRange", "cuMemGetAllocationGranularity"),
        *("cuMemGetAllocationPropertiesFromHandle", "cuMemGetHandleForAddressRange", "cuMemGetLocationInfo"),
        *("cuMemPoolGetAccess", "cuMemPoolGetAttribute", "cuMemRangeGetAttribute", "cuMemRangeGetAttributes"),
        *("cuDeviceGetDefaultMemPool", "cuDeviceGetGraphMemAttribute", "cuDeviceGetMemPool"),
        *("cuDevicePrimaryCtxGetState", "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuGraphExecGetFlags"),
        *("cuGraphExecGetId", "cuCheckpointProcessGetRestoreThreadId", "cuCheckpointProcessGetState"),
    ),
    "changes no size": (
        *("cuDevicePrimaryCtxSetFlags", "cuDeviceSetGraphMemAttribute", "cuGraphicsResourceSetMapFlags"),
        *("cuGraphicsUnmapResources", "cuGraphicsUnregisterResource", "cuGraphicsMapResources"),
        *("cuGraphExecBatchMemOpNodeSetParams", "cuGraphExecEventRecordNodeSetEvent"),
        *("cuGraphExecEventWaitNodeSetEvent", "cuGraphExecExternalSemaphoresSignalNodeSetParams"),
        *("cuGraphExecExternalSemaphoresWaitNodeSetParams", "cuGraphExecHostNodeSetParams"),
        *("cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams"),
        *("cuGraphicsResourceGetMappedMipmappedArray", "cuGraphicsResourceGetMappedPointer"),
        *("cuGraphicsResourceGetMappedEglFrame",),
        *("cuGraphicsSubResourceGetMappedArray", "cuGLMapBufferObject", "cuGLMapBufferObjectAsync"),
    ),
    "hands out, binds or records what is counted when it is made": (
        *("cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle"),
        *("cuMulticastAddDevice", "cuMulticastBindAddr", "cuMulticastBindMem", "cuMulticastCreate"),
        *(
            "cuMulticastUnbind",
            "cuLogicalEndpointAddDevice",
            "cuLogicalEndpointBindAddr",
            "cuLogicalEndpointBindMem",
        ),
        *(
            "cuLogicalEndpointCreate",
            "cuLogicalEndpointDestroy",
            "cuLogicalEndpointExport",
            "cuLogicalEndpointIdRelease",
        ),
        *(
            "cuLogicalEndpointIdReserve",
            "cuLogicalEndpointImport",
            "cuLogicalEndpointQuery",
            "cuLogicalEndpointUnbind",
        ),
        *("cuStreamBeginCapture", "cuStreamBeginCaptureToCig", "cuStreamBeginCaptureToGraph"),
        *("cuStreamBeginRecaptureToGraph", "cuStreamEndCapture", "cuStreamEndCaptureToCig"),
    ),
    "memory of another interface or another program: the watchdog sees it": (
        *("cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuDestroyExternalMemory"),
        *(
            "cuExternalMemoryGetMappedMipmappedArray",
            "cuGLRegisterBufferObject",
            "cuGraphicsEGLRegisterImage",
        ),
        *("cuGraphicsGLRegisterBuffer", "cuGraphicsGLRegisterImage", "cuGraphicsVDPAURegisterOutputSurface"),
        *("cuGraphicsVDPAURegisterVideoSurface",),
    ),
    "code and what it brings along: the watchdog sees it": (
        *("cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLinkComplete", "cuModuleLoad"),
        *(
            "cuModuleLoadData",
            "cuModuleLoadDataEx",
            "cuModuleLoadFatBinary",
            "cuModuleUnload",
            "cuCtxSetLimit",
        ),
    ),
    "no work for the card": ("cuLaunchHostFunc",),
    "private tables of the driver, whose layout nobody promises": ("cuGetExportTable",),
    "a context that is there already": ("cuCtxAttach",),
    "another process's pool, counted there": (
        *("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer"),
    ),
    "which pool serves is asked at each allocation": ("cuDeviceSetMemPool", "cuMemSetMemPool"),
    "a graph's nodes are read when it is instantiated": (
        *("cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode", "cuGraphAddNode"),
    ),
    "what is stored away stays counted, for it comes back": (
        *("cuCheckpointOperationComplete", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock"),
        *("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"),
    ),
    "no launch, and the next one is timed anew": (
        *("cuGraphExecUpdate", "cuGraphExecChildGraphNodeSetParams"),
        *("cuGraphExecKernelNodeSetParams", "cuGraphExecNodeSetParams"),
    ),
}


def unhooked() -> dict[str, str]:
    """name -> why it is left to the driver."""
    return {name: reason for reason, names in UNTOUCHED.items() for name in names}
