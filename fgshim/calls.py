"""The table of hooked calls, from which exports, look-ups by name and tests are generated.

`setup.py` writes `hook/_calls.h`, `hook/_calls.pxi` and `hook/exports.map` from it; nothing else lists the
hooked names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LINKER, CUDA, NVML = "linker", "cuda", "nvml"
PTSZ, PTDS = "_ptsz", "_ptds"  # suffix of the export of a per-thread variant


class Call(NamedTuple):
    """One hooked function, as its library exports it."""

    export: str
    group: str
    library: str = CUDA
    name: str = ""  # the name that cuGetProcAddress takes; "": none
    version: int = 0  # the CUDA version of this ABI, as cuGetProcAddress counts
    twin: str = ""  # PTSZ or PTDS: stream 0 is the calling thread's stream


def cuda(
    group: str, name: str, *versions: int, ptsz: Sequence[int] = (), ptds: Sequence[int] = ()
) -> list[Call]:
    """Return the rows of all ABIs of a name, oldest first: the second one is exported as name_v2, and so on.

    A per-thread variant (twin) belongs to the ABI of its own version, or to the newest ABI if it is newer.
    """
    exports = {v: name if at == 0 else f"{name}_v{at + 1}" for at, v in enumerate(versions)}
    rows = [Call(export, group, name=name, version=v) for v, export in exports.items()]
    for twin, numbers in ((PTSZ, ptsz), (PTDS, ptds)):
        for v in numbers:
            export = exports.get(v, exports[versions[-1]]) + twin
            rows.append(Call(export, group, name=name, version=v, twin=twin))
    return rows


def linker(*exports: str) -> list[Call]:
    return [Call(export, "lookup", library=LINKER) for export in exports]


def nvml(group: str, *exports: str) -> list[Call]:
    return [Call(export, group, library=NVML) for export in exports]


PROCESS_LISTS = [
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
]
LOOKUP = [*linker("dlmopen", "dlopen", "dlsym", "dlvsym"), *cuda("lookup", "cuGetProcAddress", 11030, 12000)]
MEMORY = [
    *cuda("memory", "cuMemAlloc", 2000, 3020),
    *cuda("memory", "cuMemAllocPitch", 2000, 3020),
    *cuda("memory", "cuMemAllocManaged", 6000),
    *cuda("memory", "cuMemFree", 2000, 3020),
]
POOLS = [
    *cuda("pools", "cuMemAllocAsync", 11020, ptsz=[11020]),
    *cuda("pools", "cuMemFreeAsync", 11020, ptsz=[11020]),
    *cuda("pools", "cuMemAllocFromPoolAsync", 11020, ptsz=[11020]),
    *cuda("pools", "cuMemPoolCreate", 11020),
    *cuda("pools", "cuMemPoolDestroy", 11020),
    *cuda("pools", "cuMemPoolSetAttribute", 11020),
    *cuda("pools", "cuMemPoolTrimTo", 11020),
    *cuda("pools", "cuDeviceSetMemPool", 11020),
    *cuda("pools", "cuMemSetMemPool", 13000),
    *cuda("pools", "cuMemGetDefaultMemPool", 13000),
    *cuda("pools", "cuMemGetMemPool", 13000),
]
# After these calls a pool may keep less memory.
WAITS = [
    *cuda("waits", "cuStreamSynchronize", 2000, ptsz=[7000]),
    *cuda("waits", "cuEventSynchronize", 2000),
    *cuda("waits", "cuCtxSynchronize", 2000, 13000),
]
ARRAYS = [
    *cuda("arrays", "cuArrayCreate", 2000, 3020),
    *cuda("arrays", "cuArray3DCreate", 2000, 3020),
    *cuda("arrays", "cuArrayDestroy", 2000),
    *cuda("arrays", "cuMipmappedArrayCreate", 5000),
    *cuda("arrays", "cuMipmappedArrayDestroy", 5000),
]
CONTEXTS = [
    *cuda("contexts", "cuCtxCreate", 2000, 3020, 11040, 12050),
    *cuda("contexts", "cuGLCtxCreate", 2000, 3020),
    *cuda("contexts", "cuVDPAUCtxCreate", 3010, 3020),
    *cuda("contexts", "cuDevicePrimaryCtxRetain", 7000),
    *cuda("contexts", "cuGreenCtxCreate", 12040),
    *cuda("contexts", "cuCtxDestroy", 2000, 4000),
    *cuda("contexts", "cuCtxDetach", 2000),
    *cuda("contexts", "cuDevicePrimaryCtxRelease", 7000, 11000),
    *cuda("contexts", "cuDevicePrimaryCtxReset", 7000, 11000),
    *cuda("contexts", "cuCtxFromGreenCtx", 12040),
    *cuda("contexts", "cuGreenCtxDestroy", 12040),
]
LIMITS = [*cuda("limits", "cuCtxSetLimit", 3010)]
# Code, with the variables and the local memory of kernels.
CODE = [
    *cuda("code", "cuModuleLoad", 2000),
    *cuda("code", "cuModuleLoadData", 2000),
    *cuda("code", "cuModuleLoadDataEx", 2010),
    *cuda("code", "cuModuleLoadFatBinary", 2000),
    *cuda("code", "cuModuleUnload", 2000),
    *cuda("code", "cuModuleGetFunction", 2000),
    *cuda("code", "cuModuleGetGlobal", 2000, 3020),
    *cuda("code", "cuLibraryLoadData", 12000),
    *cuda("code", "cuLibraryLoadFromFile", 12000),
    *cuda("code", "cuLibraryUnload", 12000),
    *cuda("code", "cuLibraryGetKernel", 12000),
    *cuda("code", "cuLibraryEnumerateKernels", 12040),
    *cuda("code", "cuLibraryGetModule", 12000),
    *cuda("code", "cuLibraryGetGlobal", 12000),
    *cuda("code", "cuLibraryGetManaged", 12000),
    *cuda("code", "cuLibraryGetUnifiedFunction", 12000),
    *cuda("code", "cuKernelGetFunction", 12000),
    *cuda("code", "cuFuncLoad", 12040),
]
GRAPHS = [
    *cuda("graphs", "cuGraphInstantiate", 10000, 11000),
    *cuda("graphs", "cuGraphInstantiateWithFlags", 11040),
    *cuda("graphs", "cuGraphInstantiateWithParams", 12000, ptsz=[12000]),
    *cuda("graphs", "cuGraphUpload", 11010, ptsz=[11010]),
    *cuda("graphs", "cuGraphLaunch", 10000, ptsz=[10000]),
    *cuda("graphs", "cuGraphExecDestroy", 10000),
    *cuda("graphs", "cuDeviceGraphMemTrim", 11040),
]
BLOCKS = [
    *cuda("blocks", "cuMemCreate", 10020),
    *cuda("blocks", "cuMemRelease", 10020),
    *cuda("blocks", "cuMemMap", 10020),
    *cuda("blocks", "cuMemUnmap", 10020),
    *cuda("blocks", "cuMemRetainAllocationHandle", 11000),
    *cuda("blocks", "cuMemMapArrayAsync", 11010, ptsz=[11010]),
]
IMPORTS = [
    *cuda("imports", "cuIpcGetMemHandle", 4010),
    *cuda("imports", "cuIpcOpenMemHandle", 4010, 11000),
    *cuda("imports", "cuIpcCloseMemHandle", 4010),
    *cuda("imports", "cuMemExportToShareableHandle", 10020),
    *cuda("imports", "cuMemImportFromShareableHandle", 10020),
]
START = cuda("visible", "cuInit", 2000)
VIEWS = [
    *cuda("views", "cuMemGetInfo", 2000, 3020),
    *cuda("views", "cuDeviceTotalMem", 2000, 3020),
    *nvml("views", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
    *nvml(
        "cards",
        *("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlDeviceGetIndex"),
        *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleBySerial"),
        *("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2"),
        *("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"),
        *("nvmlDeviceGetTopologyNearestGpus", "nvmlSystemGetTopologyGpuSet", "nvmlUnitGetDevices"),
        "nvmlDeviceGetMigDeviceHandleByIndex",
    ),
    *nvml(
        "processes",
        *PROCESS_LISTS,
        *("nvmlDeviceGetAccountingPids", "nvmlDeviceGetAccountingStats", "nvmlDeviceGetAccountingStats_v2"),
        *("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetEncoderSessions", "nvmlDeviceGetFBCSessions"),
        *("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetRunningProcessDetailList"),
        *("nvmlSystemGetProcessName", "nvmlInternalGetExportTable"),
    ),
]


def launches() -> list[Call]:
    """Return the rows of the calls that launch work on a GPU."""
    return [
        *cuda("launch", "cuLaunchKernel", 4000, ptsz=[7000]),
        *cuda("launch", "cuLaunchKernelEx", 11060, ptsz=[11060]),
        *cuda("launch", "cuLaunchCooperativeKernel", 9000, ptsz=[9000]),
        *cuda("launch", "cuLaunchCooperativeKernelMultiDevice", 9000),
        *cuda("launch", "cuLaunch", 2000),
        *cuda("launch", "cuStreamDestroy", 2000, 4000),  # its work is no longer watched
        *cuda("launch", "cuLaunchGrid", 2000),
        *cuda("launch", "cuLaunchGridAsync", 2000),
    ]


CALLS = sorted(
    [
        *launches(),
        *LOOKUP,
        *MEMORY,
        *POOLS,
        *WAITS,
        *BLOCKS,
        *IMPORTS,
        *ARRAYS,
        *CONTEXTS,
        *LIMITS,
        *CODE,
        *GRAPHS,
        *START,
        *VIEWS,
    ]
)

# Functions that the hook calls and does not hook.
ASKED = {
    CUDA: (
        "cuArrayGetMemoryRequirements",
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxGetLimit",
        "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2",
        "cuDeviceGetAttribute",
        "cuDeviceGetDefaultMemPool",
        "cuDeviceGetGraphMemAttribute",
        "cuDeviceGetMemPool",
        "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxGetState",
        "cuEventCreate",
        "cuEventElapsedTime",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventRecord_ptsz",
        "cuFuncGetAttribute",
        "cuGraphChildGraphNodeGetGraph",
        "cuGraphGetNodes",
        "cuGraphMemAllocNodeGetParams",
        "cuGraphNodeGetType",
        "cuMemGetAddressRange_v2",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMemPoolGetAttribute",
        "cuMipmappedArrayGetMemoryRequirements",
        "cuStreamGetCtx",
        "cuStreamGetCtx_ptsz",
        "cuStreamIsCapturing",
        "cuStreamIsCapturing_ptsz",
        "cuThreadExchangeStreamCaptureMode",
    ),
    NVML: (
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceGetUUID",
        "nvmlInit_v2",
        "nvmlSystemGetDriverVersion",
    ),
}


def exports_map() -> str:
    """Return the linker's version script, which exports the hooked names and nothing else."""
    return "{ global: " + " ".join(f"{call.export};" for call in CALLS) + " local: *; };\n"


def header() -> str:
    """Return the table as C macros: FG_CALLS in the order of the names, then FG_ASKED."""
    rows = [
        f'    X({call.export}, {call.library}, "{call.name}", {call.version}, {int(bool(call.twin))})'
        for call in CALLS
    ]
    asked = [f"    X({name}, {library})" for library, names in ASKED.items() for name in names]
    return "#define FG_CALLS(X) \\\n{}\n#define FG_ASKED(X) \\\n{}\n".format(
        " \\\n".join(rows), " \\\n".join(asked)
    )


def rows() -> str:
    """Return the numbers of the rows as Cython declarations."""
    names = [call.export for call in CALLS] + [name for names in ASKED.values() for name in names]
    lines = [f"    const int FG_{name}" for name in names]
    return "\n".join(['cdef extern from "call_table.h":', *lines, ""])


def write(folder: Path) -> None:
    """Write the generated files, if their content has changed."""
    for name, text in (("_calls.h", header()), ("_calls.pxi", rows()), ("exports.map", exports_map())):
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
