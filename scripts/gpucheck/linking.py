"""Check every way of finding CUDA: per-thread streams, runtimes, linking, RPATH, env -i (items 11, 12)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fgshim import spawner
from gpucheck.place import MIB, Place, Share
from gpucheck.sheet import Row, row

_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long);
int main(int argc, char **argv) {
    unsigned long long at; void *context; size_t limit = strtoull(argv[1], NULL, 10);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    int inside = cuMemAlloc_v2(&at, limit / 4), past = cuMemAlloc_v2(&at, limit * 2);
    printf("%d %d\\n", inside, past); return 0;
}
"""
_RUNTIME = """
#include <cstdio>
#include <cstdlib>
int main(int argc, char **argv) {
    void *at; size_t limit = strtoull(argv[1], NULL, 10);
    int inside = cudaMalloc(&at, limit / 4), past = cudaMalloc(&at, limit * 2);
    printf("%d %d\\n", inside, past); return 0;
}
"""


def streams(place: Place) -> Iterator[Row]:
    """Check that the per-thread default stream gives the results of the plain one (item 11)."""
    with place.share(0.25) as share:
        found = share.ask("twins", share.limit)
        same = found["plain"] == found["per thread"] == [0, 2]
        yield row("cuMemAllocAsync, within and past the limit", same, f"{found}")
        nvcc = _nvcc()
        for flavour in ("legacy", "per-thread"):
            words = [nvcc, f"--default-stream={flavour}"] if nvcc else []
            yield _built(share, f"nvcc --default-stream={flavour}", _RUNTIME, "cu", words)


def ways(place: Place) -> Iterator[Row]:
    """Check programs linked with the driver, each runtime, RPATH, and without an environment (item 12)."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = _libcuda()
    with place.share(0.25) as share:
        linked = [compiler, "-Wl,--no-as-needed", library] if compiler and library else []
        yield _built(share, "linked with the driver", _DRIVER, "c", linked)
        runpath = [*linked, f"-Wl,-rpath,{Path(library).parent}"] if linked and library else []
        yield _built(share, "linked with RUNPATH", _DRIVER, "c", runpath)
        rpath = [*runpath, "-Wl,--disable-new-dtags"] if runpath else []
        yield _built(share, "linked with RPATH", _DRIVER, "c", rpath)
        nvcc = _nvcc()
        for kind in ("static", "shared"):
            words = [nvcc, f"--cudart={kind}"] if nvcc else []
            yield _built(share, f"the runtime, {kind}", _RUNTIME, "cu", words)
        yield _cleared(share, _DRIVER, linked)


def _cleared(share: Share, code: str, words: list[str]) -> Row:
    """Check a program without LD_PRELOAD, in a mount namespace as for jobs with GPUs."""
    from fgsched.system.mounts import why_not

    how = "root" if os.geteuid() == 0 else "user"
    if why := why_not(how, share.folder):
        return row("env -i", None, why)
    if (made := _built(share, "env -i", code, "c", words)).holds is not True:
        return made
    preload = share.folder / "preload"
    preload.write_text(f"{share.folder}/libfgshim.so\n")
    kept = [f"{name}={value}" for name, value in share.place.env.items()]
    program = [str(share.folder / "program"), str(share.limit)]
    ran = share.place.run(str(spawner()), "mounts", how, str(preload), "/usr/bin/env", *kept, *program)
    return row(
        "env -i", ran.stdout.split() == ["0", "2"], f"statuses {(ran.stdout or ran.stderr).strip()[-120:]}"
    )


def _nvcc() -> str | None:
    """Return an nvcc that works; a file in PATH is not sufficient."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    try:
        works = (
            found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        works = False
    return found if works else None


def _libcuda() -> str | None:
    """Return the file that the linker would load; the test programs use the same libraries."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and Path(folder, "libcuda.so.1").exists():
            return str(Path(folder, "libcuda.so.1"))
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"):
        if Path(folder, "libcuda.so.1").exists():
            return str(Path(folder, "libcuda.so.1"))
    return None


def _built(share: Share, what: str, code: str, kind: str, words: list[str]) -> Row:
    """Build and run a program that allocates memory below and above the limit."""
    if not words:
        tool = "nvcc that works" if kind == "cu" else "C compiler, or no libcuda.so.1 to link with"
        return row(what, None, f"there is no {tool} here")
    source, program = share.folder / f"program.{kind}", share.folder / "program"
    source.write_text(code)
    compiler, *flags = words
    done = share.place.run(compiler, str(source), "-o", str(program), *flags)
    if done.returncode:
        return row(what, None, f"it cannot be compiled here: {done.stderr.strip()[-120:]}")
    bare = share.place.run(str(program), str(2 * MIB))
    if bare.stdout.split() != ["0", "0"]:
        return row(
            what, None, f"it does not work without the hook: {(bare.stderr or bare.stdout).strip()[-120:]}"
        )
    ran = share.run(str(program), str(share.limit))
    return row(
        what, ran.stdout.split() == ["0", "2"], f"statuses {(ran.stdout or ran.stderr).strip()[-120:]}"
    )
