"""The one table of hooked calls: exports, look-ups by name and the tests all come from here.

`setup.py` writes `_table.h`, `_rows.pxi` and `exports.map` from it; nothing else lists the hooked names.
"""

from pathlib import Path
from typing import NamedTuple

LINKER, CUDA, NVML = "linker", "cuda", "nvml"


class Call(NamedTuple):
    """One hooked function, as its library exports it."""

    export: str
    group: str
    library: str = CUDA
    name: str = ""  # what cuGetProcAddress calls it; "": it is not found that way
    version: int = 0  # the CUDA version whose ABI this is, as cuGetProcAddress counts
    ptsz: bool = False  # the twin whose stream 0 is the thread's own


def _memory(export: str, version: int, group: str = "memory") -> Call:
    return Call(export, group, name=export.removesuffix("_v2"), version=version)


def _with_twin(name: str, version: int, group: str) -> list[Call]:
    return [
        Call(name, group, name=name, version=version),
        Call(f"{name}_ptsz", group, name=name, version=version, ptsz=True),
    ]


def _nvml(*exports: str, group: str) -> list[Call]:
    return [Call(export, group, library=NVML) for export in exports]


def _process_lists() -> list[Call]:
    kinds = ("Compute", "Graphics", "MPSCompute")
    names = [f"nvmlDeviceGet{kind}RunningProcesses{v}" for kind in kinds for v in ("", "_v2", "_v3")]
    return _nvml(*names, group="processes")


CALLS = sorted(
    [
        Call("dlsym", "lookup", library=LINKER),
        Call("cuGetProcAddress", "lookup", name="cuGetProcAddress", version=11030),
        Call("cuGetProcAddress_v2", "lookup", name="cuGetProcAddress", version=12000),
        _memory("cuMemAlloc_v2", 3020),
        _memory("cuMemAllocPitch_v2", 3020),
        _memory("cuMemAllocManaged", 6000),
        _memory("cuMemFree_v2", 3020),
        *_with_twin("cuMemAllocAsync", 11020, "pools"),
        *_with_twin("cuMemFreeAsync", 11020, "pools"),
        _memory("cuMemCreate", 10020, "blocks"),
        _memory("cuMemRelease", 10020, "blocks"),
        _memory("cuMemMap", 10020, "blocks"),
        _memory("cuMemUnmap", 10020, "blocks"),
        _memory("cuMemRetainAllocationHandle", 11000, "blocks"),
        _memory("cuMemGetInfo_v2", 3020, "views"),
        _memory("cuDeviceTotalMem_v2", 3020, "views"),
        *_nvml("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", group="views"),
        *_process_lists(),
    ]
)

# What the hook itself asks the driver, unhooked.
ASKED = {
    CUDA: (
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2",
        "cuDeviceGetMemPool",
        "cuDeviceGetUuid",
        "cuMemPoolGetAttribute",
        "cuMemPoolTrimTo",
        "cuStreamGetCtx",
        "cuStreamGetCtx_ptsz",
        "cuStreamIsCapturing",
        "cuStreamIsCapturing_ptsz",
    ),
    NVML: ("nvmlDeviceGetUUID",),
}


def exports_map() -> str:
    """The linker's version script: the hooked names, and nothing else, can be seen from outside."""
    return "{ global: " + " ".join(f"{call.export};" for call in CALLS) + " local: *; };\n"


def header() -> str:
    """The table as C macros: FG_CALLS in the order of the names, FG_ASKED behind it."""
    rows = [
        f'    X({call.export}, {call.library}, "{call.name}", {call.version}, {int(call.ptsz)})'
        for call in CALLS
    ]
    asked = [f"    X({name}, {library})" for library, names in ASKED.items() for name in names]
    return "#define FG_CALLS(X) \\\n{}\n#define FG_ASKED(X) \\\n{}\n".format(
        " \\\n".join(rows), " \\\n".join(asked)
    )


def rows() -> str:
    """The numbers of the rows, declared for Cython."""
    names = [call.export for call in CALLS] + [name for names in ASKED.values() for name in names]
    lines = [f"    const int FG_{name}" for name in names]
    return "\n".join(["cdef extern from *:", *lines, ""])


def write(folder: Path) -> None:
    """Write what the build derives from the table, where it is not so already."""
    for name, text in (("_table.h", header()), ("_rows.pxi", rows()), ("exports.map", exports_map())):
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
