"""PyTorch: scenarios by name, one after another in one process. Amounts are MiB."""

import gc
import json
import os
import random
import subprocess
import sys
import time

import torch
import torch.multiprocessing

MIB = 1 << 20


def view():
    return [round(amount / MIB, 1) for amount in torch.cuda.mem_get_info()]


def truth():
    """Return the driver's own count: in use now, and the most at any time."""
    program = os.path.join(os.environ["LD_LIBRARY_PATH"].split(":")[0], "fakecards")
    env = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    said = subprocess.run([program], env=env, check=True, capture_output=True, text=True).stdout
    return [int(amount) / MIB for amount in said.split()[:2]]


def empty(size):
    return torch.empty(int(size * MIB), dtype=torch.uint8, device="cuda")


def until_refused(size):
    kept = []
    try:
        while len(kept) < 10_000:
            kept.append(empty(size))
    except torch.OutOfMemoryError as error:
        return kept, str(error)
    return kept, ""


def say(**facts):
    print(json.dumps(facts), flush=True)


def refusal():
    """Fill the card, be refused, and go on."""
    say(total=torch.cuda.get_device_properties(0).total_memory / MIB, view=view())
    kept, text = until_refused(64)
    say(given=64 * len(kept), view=view(), text=text)
    kept.clear()
    again = empty(600)
    say(again=view())
    del again
    torch.cuda.empty_cache()
    say(empty=view(), sum=torch.ones(1 << 20, device="cuda").cpu().sum().item())
    _, text = until_refused(5000)
    say(text=text)
    small = [torch.empty(1000, device="cuda") for _ in range(10_000)]
    say(small=view(), tensors=len(small))


def growth():
    """Allocate and free tensors of different sizes."""
    kept = []
    for size in (100, 200, 300):
        kept.append(empty(size))
        say(size=size, view=view(), reserved=torch.cuda.memory_reserved() / MIB)
    del kept[0]
    kept.append(empty(150))
    say(replaced=view())
    kept.clear()
    torch.cuda.empty_cache()
    say(empty=view())


def streams():
    """Allocate on streams of the program's own, and from a pool of its own."""
    kept = []
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(empty(100))
    say(streams=view())
    kept.clear()
    big = empty(600)
    say(freed=view())
    del big
    torch.cuda.empty_cache()
    pinned = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    copy = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    say(pinned=view(), equal=copy.numel() == pinned.numel())


def graph():
    """Capture a graph that allocates, replay it, and destroy it."""
    data = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        data + 1
    side.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result, room = data + 1, empty(64)
    say(captured=view())
    captured.replay()
    torch.cuda.synchronize()
    say(replayed=view())
    del result, room
    gc.collect()
    del captured
    gc.collect()
    torch.cuda.empty_cache()
    say(destroyed=view())


def fraction():
    torch.cuda.set_per_process_memory_fraction(0.5)
    kept, text = until_refused(32)
    say(given=32 * len(kept), text=text)


def fuzz(*seeds):
    for seed in seeds:
        take_random_steps(int(seed))


def take_random_steps(seed):
    """Do random steps: free plus the driver's own count is the limit, whenever it is asked."""
    choose, held, refused, wrong = random.Random(seed), [], 0, []
    limit, lanes = view()[1], [torch.cuda.Stream() for _ in range(3)]
    for step in range(400):
        what = choose.random()
        try:
            if what < 0.55:
                size = choose.randrange(1, 1 << choose.choice([12, 20, 25, 28]))
                with torch.cuda.stream(choose.choice(lanes)):
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            elif what < 0.9 and held:
                held.pop(choose.randrange(len(held)))
            elif what < 0.95:
                torch.cuda.empty_cache()
            elif held:
                held.pop().cpu()
        except torch.OutOfMemoryError:
            refused += 1
            held = held[len(held) // 2 :]
        if step % 10 == 9:
            free, used = torch.cuda.mem_get_info()[0] / MIB, truth()[0]
            wrong += [[step, free, used]] if free + used != limit else []
    say(refused=refused > 0, wrong=wrong, high=truth()[1] <= limit)


def hold(size):
    """Hold so much, say so, and go on when told to."""
    kept = empty(int(size))
    torch.cuda.synchronize()
    say(holds=view())
    sys.stdin.readline()
    more = torch.ones(1000, device="cuda")
    say(more=more.cpu().sum().item(), held=kept.numel() // MIB, view=view())


def first():
    """Allocate for the first time in this process: the type of the error that comes of it."""
    try:
        empty(1)
    except torch.OutOfMemoryError:
        say(error="torch.OutOfMemoryError")
    except torch.AcceleratorError as error:
        say(error="torch.AcceleratorError", text=str(error).splitlines()[0])
    else:
        say(view=view())


def receive(queue, done):
    tensor = queue.get()
    say(child=view(), shape=list(tensor.shape))
    del tensor
    done.set()


def share():
    """Give a tensor to a child process by CUDA IPC."""
    torch.multiprocessing.set_start_method("spawn")
    queue, done, tensor = torch.multiprocessing.Queue(), torch.multiprocessing.Event(), empty(200)
    say(before=view())
    child = torch.multiprocessing.Process(target=receive, args=(queue, done))
    child.start()
    queue.put(tensor)
    done.wait(120)
    child.join()
    say(after=view(), status=child.exitcode)


def processes():
    """What PyTorch's monitoring functions, which use NVML, tell."""
    kept = empty(300)
    listed = torch.cuda.list_gpu_processes()
    own = [line for line in listed.splitlines() if f"{os.getpid()}" in line]
    used = torch.cuda.device_memory_used() / MIB
    say(used=used, listed=len(listed.splitlines()) - 1, own=len(own), kept=kept.numel())


def gpus():
    """Fill each GPU that the job has."""
    count = torch.cuda.device_count()
    for at in range(count):
        kept = []
        try:
            while len(kept) < 1000:
                kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device=f"cuda:{at}"))
        except torch.OutOfMemoryError as error:
            total = torch.cuda.get_device_properties(at).total_memory // MIB
            say(gpu=at, total=total, given=32 * len(kept), refused=f"GPU {at} has a total" in str(error))
    numbers = torch.arange(100).to("cuda:0").to(f"cuda:{count - 1}")
    say(count=count, copied=bool((numbers.cpu() == torch.arange(100)).all()))


def launches(count):
    """Launch so many kernels and wait for them. Seconds, from the first launch on."""
    data = torch.zeros(1024, device="cuda")
    torch.cuda.synchronize()
    start = time.monotonic()
    for _ in range(int(count)):
        data += 1
    torch.cuda.synchronize()
    say(seconds=time.monotonic() - start)


if __name__ == "__main__":
    for scenario in sys.argv[1].split(","):
        globals()[scenario](*sys.argv[2:])
        gc.collect()
        torch.cuda.empty_cache()
