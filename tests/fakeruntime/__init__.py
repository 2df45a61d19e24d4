"""The libraries beside the driver that PyTorch and JAX need, for the fake driver.

`libcudart.so.13` is cudart.c. The others are made of what PyTorch imports of them: every function reports an
error, but those of cuBLAS succeed and compute nothing. Only the headers of NVIDIA's runtime are needed.
"""

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import fakecuda
from cudapackages import CudaRuntime

HERE = Path(__file__).parent
CUDART, CUDNN = "libcudart.so.13", "libcudnn.so.9"
NVIDIAS = re.compile(r"lib(cu(?!da\.)|nccl|nvrtc|nvshmem|nvToolsExt)")
IMPORT = re.compile(r"\s+U (\w+)(?:@(\S+))?$", re.MULTILINE)
UNVERSIONED = re.compile(r"p?nccl|cuFile|cufile|nvshmem|cusparseLt|cudnn|nvrtc|cu[a-z]+")


@dataclass(slots=True)
class Imports:
    """What PyTorch's libraries take of NVIDIA's."""

    needed: set[str] = field(default_factory=set)  # names of libraries
    version_of: dict[str, str] = field(default_factory=dict)  # version of symbols -> library
    names: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by version, or ""


def imports(torch: Path) -> Imports:
    """Read the imports of the libraries in `torch/lib`."""
    found, own = Imports(), set()
    for library in sorted((torch / "lib").glob("*.so")):
        dynamic, symbols = _output("readelf", "-dVW", library), _output("nm", "--dynamic", library)
        found.needed |= {name for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic) if NVIDIAS.match(name)}
        for name, versions in re.findall(r"File: (\S+).*\n((?:.*Name: .*\n)+)", dynamic):
            found.version_of |= dict.fromkeys(re.findall(r"Name: (\S+)", versions), name)
        own |= set(re.findall(r" [TWViDBR] (\w+)$", symbols, re.MULTILINE))
        for name, version in IMPORT.findall(symbols):
            found.names[version].add(name)
    found.names[""] = {name for name in found.names[""] - own if UNVERSIONED.match(name)}
    return found


def build_for_torch(folder: Path, torch: Path, runtime: CudaRuntime) -> Path:
    """Compile all libraries into `folder`, for the PyTorch that is unpacked at `torch`."""
    _build_cudart(folder, runtime)
    taken = imports(torch)
    for library in sorted(taken.needed - {CUDART}):
        _build_stub(folder, library, taken)
    return folder


def build_for_jax(folder: Path, runtime: CudaRuntime) -> Path:
    """Compile the two libraries that JAX opens."""
    _build_cudart(folder, runtime)
    flags = ("-fvisibility=default", "-shared", "-fPIC", f"-Wl,-soname,{CUDNN}")
    fakecuda.compile_c([HERE / "cudnn.c"], folder / CUDNN, *flags)
    return folder


def _build_cudart(folder: Path, runtime: CudaRuntime) -> None:
    folder.mkdir()
    flags = ("-shared", "-fPIC", "-Wextra", f"-I{HERE / 'include'}", "-isystem", str(runtime.headers))
    linked = (f"-Wl,-soname,{CUDART}", f"-Wl,--version-script={HERE / 'cudart.map'}", "-ldl", "-pthread")
    fakecuda.compile_c([HERE / "cudart.c"], folder / CUDART, *flags, *linked)


def _build_stub(folder: Path, library: str, taken: Imports) -> None:
    """Compile a library whose functions do nothing. Names without a version are in each library."""
    versions = {version for version, of in taken.version_of.items() if of == library}
    nodes = {version: taken.names[version] for version in sorted(versions) if taken.names[version]}
    names = set().union(taken.names[""], *nodes.values())
    source, script = folder / f"{library}.c", folder / f"{library}.map"
    status = {name: 0 if name.startswith("cublas") else 1 for name in sorted(names)}
    source.write_text("".join(f"int {name}(void) {{ return {value}; }}\n" for name, value in status.items()))
    exported = [f"{version} {{ global: {'; '.join(sorted(of))}; }};\n" for version, of in nodes.items()]
    script.write_text("".join(exported))
    flags = ["-w", "-fvisibility=default", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library}"]
    fakecuda.compile_c(
        [source], folder / library, *flags, *([f"-Wl,--version-script={script}"] if nodes else [])
    )


def _output(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
