"""Test programs of PyTorch: torch_programs.py VERB [ARGUMENT]… prints lines of JSON.

A program that is measured beside others prints {} when it is ready, and begins when a line arrives on stdin.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

MIB = 1 << 20
_WIDTH, _BATCH = 1024, 512  # of the trained model
_AT_ONCE = 10  # steps between two marks
_SMALL = 1 << 14  # elements of the small kernel
_LARGE = 8192  # rows of the matrices of the hungry program


def _wait() -> None:
    """Report that the program is ready, and wait for a line."""
    print("{}", flush=True)
    sys.stdin.readline()


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    inputs, targets = torch.randn(2, _BATCH, _WIDTH).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), inputs, targets


def _stepper() -> Callable[[], torch.Tensor]:
    """Return a function that trains one step and returns the loss."""
    model, optimizer, inputs, targets = _model()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return a function that replays a step as one graph of kernels."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def train(seconds: str, how: str = "kernels") -> None:
    """Train a small model for some seconds after each line of stdin.

    Prints [seconds since the epoch, steps so far, loss] of every ten steps.
    """
    step = _stepper()
    for _ in range(3):
        step()
    if how == "graph":
        step = _captured(step)
    torch.cuda.synchronize()
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps({"marks": _marks(step, float(seconds))}), flush=True)


def _marks(step: Callable[[], torch.Tensor], seconds: float) -> list[list[float]]:
    marks, until, count = [[time.time(), 0.0, 0.0]], time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for _ in range(_AT_ONCE):
            loss = step()
        count += _AT_ONCE
        marks.append([time.time(), count, float(loss)])  # waits for the kernels
    return marks


def latency(seconds: str) -> dict[str, Any]:
    """Launch a small kernel and wait for it, again and again. Return the microseconds of each."""
    values = torch.zeros(_SMALL, device="cuda")
    values.add_(1)
    torch.cuda.synchronize()
    _wait()
    found, until = [], time.monotonic() + float(seconds)
    while time.monotonic() < until:
        began = time.perf_counter_ns()
        values.add_(1)
        torch.cuda.synchronize()
        found.append((time.perf_counter_ns() - began) / 1000)
        time.sleep(0.001)
    return {"us": found}


def _until_told(done: threading.Event) -> None:
    sys.stdin.readline()
    done.set()


def hungry(rows: str = str(_LARGE)) -> None:
    """Keep the GPU busy with large matrix products until stdin ends or a line arrives."""
    one = torch.randn(int(rows), int(rows), device="cuda", dtype=torch.bfloat16)
    done = threading.Event()
    print("{}", flush=True)
    threading.Thread(target=_until_told, args=(done,), daemon=True).start()
    while not done.is_set():
        for _ in range(4):
            one @ one
        torch.cuda.synchronize()


def views(size: str) -> dict[str, Any]:
    """Hold `size` bytes. Return {interface to the memory of the GPU: [total, used] in bytes}."""
    kept = torch.empty(int(size), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    found = {"torch": [total, total - free]}
    found["torch properties"] = [torch.cuda.get_device_properties(0).total_memory, total - free]
    with suppress(ImportError):
        found["pynvml"] = _of_nvml()
    if program := shutil.which("nvidia-smi"):
        found["nvidia-smi"] = _of_smi(program)
    del kept
    return found


def _of_nvml() -> list[int]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return [memory.total, memory.used]


def _of_smi(program: str) -> list[int]:
    words = [program, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [int(part) * MIB for part in said.splitlines()[0].split(",")]


def nccl(file: str, rank: str, ranks: str) -> dict[str, Any]:
    """Add up a tensor over ranks that share the GPU. `file`: where they meet."""
    import datetime

    import torch.distributed as group

    group.init_process_group(
        "nccl",
        init_method=f"file://{file}",
        rank=int(rank),
        world_size=int(ranks),
        timeout=datetime.timedelta(seconds=20),
    )
    values = torch.full((1 << 20,), int(rank) + 1.0, device="cuda")
    group.all_reduce(values)
    total = float(values[0])
    group.destroy_process_group()
    return {"sum": total, "expected": int(ranks) * (int(ranks) + 1) / 2}


VERBS = {one.__name__: one for one in (train, latency, hungry, views, nccl)}


def main() -> None:
    try:
        found = VERBS[sys.argv[1]](*sys.argv[2:])
    except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
        found = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
