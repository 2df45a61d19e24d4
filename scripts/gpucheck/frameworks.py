"""PyTorch with its allocators and its processes; JAX, CuPy and numba if installed (items 4 and 5)."""

import json
import shutil
from collections.abc import Iterator, Sequence

from gpucheck.place import Place, Share, near, torch_or_not
from gpucheck.sheet import Row, row

_HEAD = "import json, os, sys, torch\n"
_PAST = """
blocks = []
try:
    while True: blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except Exception as error:
    kind, text = type(error).__name__, str(error)
had = sum(block.numel() for block in blocks)
blocks = None
torch.cuda.empty_cache()
again = torch.empty(64 << 20, dtype=torch.uint8, device="cuda").numel()
good = kind == "OutOfMemoryError" and "INTERNAL ASSERT" not in text and again
print(json.dumps({"good": bool(good), "seen": f"{kind} after {had >> 20} MiB, then {again >> 20} MiB again"}))
"""
_ALLOCATORS = {
    "native": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
_LOADER = """
from torch.utils.data import DataLoader
def main():
    torch.ones(1, device="cuda")
    loader = DataLoader(list(range(32)), batch_size=8, num_workers=2, multiprocessing_context="%s")
    total = sum(int(batch.cuda().sum()) for batch in loader)
    print(json.dumps({"good": total == 496, "seen": f"sum {total}"}))
if __name__ == "__main__": main()
"""
_SHARED = """
import torch.multiprocessing as mp
def child(tensor, queue): queue.put(float(tensor.sum()))
def main():
    context = mp.get_context("spawn")
    tensor, queue = torch.ones(8 << 20, device="cuda"), context.SimpleQueue()
    process = context.Process(target=child, args=(tensor, queue)); process.start()
    total = queue.get(); process.join()
    print(json.dumps({"good": total == 8 << 20, "seen": f"the other process sums {total:.0f}"}))
if __name__ == "__main__": main()
"""
_COMPILED = """
f = torch.compile(lambda x: (x * 2 + 1).relu().sum())
x = torch.ones(1 << 16, device="cuda")
print(json.dumps({"good": float(f(x)) == 3 << 16, "seen": "a Triton kernel"}))
"""
_GRAPH = """
x = torch.ones(1 << 16, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side): y = x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): y = x * 2
x.fill_(3.0); graph.replay(); torch.cuda.synchronize()
print(json.dumps({"good": float(y[0]) == 6.0, "seen": f"replayed: {float(y[0])}"}))
"""
_TORCH = {
    "DataLoader, forked": _LOADER % "fork",
    "DataLoader, spawned": _LOADER % "spawn",
    "tensors shared between processes": _SHARED,
    "torch.compile": _COMPILED,
    "CUDA graph": _GRAPH,
}
_COMPILERS = ("cc", "gcc", "clang")
_OTHERS = {
    "jax": "import jax; s = jax.devices()[0].memory_stats(); print(json.dumps({'limit': s['bytes_limit']}))",
    "cupy": "import cupy; print(json.dumps({'limit': cupy.cuda.Device().mem_info[1]}))",
    "numba.cuda": "from numba import cuda as c; i = c.current_context().get_memory_info();"
    " print(json.dumps({'limit': i[1]}))",
}


def torch(place: Place) -> Iterator[Row]:
    """Run PyTorch on a quarter of the GPU (item 4)."""
    torch_or_not(place)
    with place.share(0.25) as share:
        for name, setting in _ALLOCATORS.items():
            yield _told(share, f"past the limit: {name}", _PAST, PYTORCH_CUDA_ALLOC_CONF=setting)
        for name, code in _TORCH.items():
            yield _told(share, name, code)
    yield row("two ranks of NCCL on one card", None, "NCCL refuses two ranks on one card")


def _told(share: Share, what: str, code: str, **env: str) -> Row:
    """Run a script from a file, because spawned processes read it again."""
    file = share.folder / "check.py"
    file.write_text(_HEAD + code)
    done = share.run(share.place.python, str(file), **env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        errors = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        if (why := _no_compiler(share, errors)) is not None:
            return row(what, None, f"it needs a C compiler, and none is here: {why[:120]}")
        return row(what, False, errors[-1][:160])
    found = json.loads(lines[-1])
    return row(what, found["good"], found["seen"])


def _no_compiler(share: Share, errors: Sequence[str]) -> str | None:
    """Return the error of a missing compiler; a compiler that exists and is not found is a failure."""
    env = share.place.env
    if env.get("CC") or any(shutil.which(name, path=env.get("PATH")) for name in _COMPILERS):
        return None
    return next((line.strip() for line in errors if "C compiler" in line), None)


def others(place: Place) -> Iterator[Row]:
    """Check that other frameworks see the share as the GPU (item 5)."""
    with place.share(0.25) as share:
        for name, code in _OTHERS.items():
            if not place.has(name):
                yield row(name, None, "not installed here")
                continue
            done = share.run(place.python, "-c", f"import json; {code}")
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            limit = int(json.loads(lines[-1])["limit"]) if lines else 0
            # JAX takes three quarters of what it sees.
            good = near(limit, share.limit) or near(limit, share.limit * 3 // 4)
            yield row(
                name,
                good,
                f"it sees {limit >> 20} of {share.limit >> 20} MiB {done.stderr[-100:] if not lines else ''}",
            )
