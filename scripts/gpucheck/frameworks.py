"""PyTorch with its allocators and its processes; other frameworks as far as installed (items 4 and 5)."""

import json
import shutil
import subprocess
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
# Each program prints the size of the GPU that it sees, what it allocated until it was refused, and the error.
_FILL = """
import json
had, kept, error = 0, [], ""
try:
    while had < 1 << 40:
        kept.append(take(64 << 20)); had += 64 << 20
except Exception as refusal:
    error = type(refusal).__name__ + ": " + str(refusal).strip().splitlines()[0][:80]
print(json.dumps({"total": total, "had": had, "error": error}))
"""
_OTHERS = {
    "jax": """
import jax, jax.numpy
total = jax.devices()[0].memory_stats()["bytes_limit"]
def take(size): return jax.numpy.zeros(size, dtype=jax.numpy.uint8).block_until_ready()
""",
    "cupy": """
import cupy
total = cupy.cuda.Device().mem_info[1]
def take(size): return cupy.cuda.alloc(size)
""",
    "numba.cuda": """
import numpy
from numba import cuda
total = cuda.current_context().get_memory_info()[1]
def take(size): return cuda.device_array(size, dtype=numpy.uint8)
""",
    "rmm": """
import rmm
pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0)
rmm.mr.set_current_device_resource(pool)
total = rmm.mr.available_device_memory()[1]
def take(size): return rmm.DeviceBuffer(size=size)
""",
}
_VLLM = """
import json, os, sys, torch
about = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
}
def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    json.dump(about, open(os.path.join(sys.argv[1], "config.json"), "w"))
    from vllm import LLM, SamplingParams
    model = LLM(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
        max_model_len=512, gpu_memory_utilization=0.8)
    made = model.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, detokenize=False))
    free, total = torch.cuda.mem_get_info()
    count = len(made[0].outputs[0].token_ids)
    print(json.dumps({"total": total, "had": total - free, "error": "" if count == 4 else f"{count} tokens"}))
if __name__ == "__main__": main()
"""


def torch(place: Place) -> Iterator[Row]:
    """Run PyTorch on a quarter of the GPU (item 4)."""
    torch_or_not(place)
    with place.share(0.25) as share:
        for name, setting in _ALLOCATORS.items():
            yield _told(share, f"past the limit: {name}", _PAST, PYTORCH_CUDA_ALLOC_CONF=setting)
        for name, code in _TORCH.items():
            yield _told(share, name, code)


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
    """Check that other frameworks see the share as the GPU, and meet its limit (item 5)."""
    with place.share(0.25) as share:
        for name, code in _OTHERS.items():
            if not place.has(name):
                yield row(name, None, "not installed here")
                continue
            yield from _met(share, name, share.run(place.python, "-c", code + _FILL), is_refused=True)
        if not place.has("vllm"):
            yield row("vllm", None, "not installed here")
            return
        file = share.folder / "vllm.py"
        file.write_text(_VLLM)
        done = share.run(place.python, str(file), str(share.folder / "model"))
        yield from _met(share, "vllm", done, is_refused=False)


def _met(
    share: Share, name: str, done: "subprocess.CompletedProcess[str]", *, is_refused: bool
) -> Iterator[Row]:
    """Compare what a framework saw and allocated with the share."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        yield row(name, False, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:160])
        return
    found = json.loads(lines[-1])
    total, had, error = found["total"], found["had"], found["error"]
    # JAX allocates three quarters of what it sees at once.
    sees = near(total, share.limit) or near(total, share.limit * 3 // 4)
    yield row(f"{name}: sees the share", sees, f"{total >> 20} of {share.limit >> 20} MiB")
    within = 0 < had <= share.limit and bool(error) == is_refused
    yield row(
        f"{name}: meets the limit", within, f"{had / share.limit:.1%} of the limit; {error or 'no error'}"
    )
