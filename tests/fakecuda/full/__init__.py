"""The fake driver for frameworks: every name of CUDA's headers, memory with contents, and code."""

from pathlib import Path

import fakecuda
from cudapackages import CudaRuntime
from fakecuda import FakeDriver, everyname

HERE = Path(__file__).parent
SOURCES = ("contents.c", "devices.c", "pointers.c", "code.c", "queues.c")


def build(folder: Path, older: CudaRuntime, newer: CudaRuntime) -> FakeDriver:
    """Compile it into `folder`. The packages of CUDA 12 and 13 give the names and the headers."""
    driver = fakecuda.build(folder)
    abis = older.abis() | newer.abis()
    (folder / "every.c").write_text(everyname.source(abis, everyname.IDLE))
    sources = [HERE / name for name in SOURCES]
    flags = ("-isystem", str(newer.headers), "-Wno-unused-function", "-DFAKE_FULL")
    fakecuda.build_library("libcuda.so.1", folder, *sources, folder / "every.c", flags=flags)
    fakecuda.build_library("libnvidia-ml.so.1", folder, HERE / "nvml.c")
    return driver
