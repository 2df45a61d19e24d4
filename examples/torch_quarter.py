"""Run one training step of PyTorch and print the memory that the job sees."""

import sys

try:
    import torch
except ImportError:
    sys.exit("There is no torch in this Python; PYTHON=/path/to/python selects another interpreter.")
if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device: no GPU, no driver, or a job without --gpus.")

MIB = 1 << 20


def tell_memory(when: str) -> None:
    """Print free and total memory. In a job the total is the job's limit, not the size of the GPU."""
    free, total = (amount // MIB for amount in torch.cuda.mem_get_info())
    print(f"{when}: {free} of {total} MiB free")


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    tell_memory("before")
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = torch.randn(256, 1024, device="cuda")
    labels = torch.randint(10, (256,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(samples), labels)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
    tell_memory("after")
    try:
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print("twice the share: refused, as expected")
    else:
        sys.exit("twice the share was allocated: the memory limit is not effective")


main()
