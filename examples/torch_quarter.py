"""One training step of PyTorch, and what it sees of the card it shares."""

import sys

try:
    import torch
except ImportError:
    sys.exit("There is no torch in this Python; PYTHON=/path/to/python chooses another.")
if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device: no card, no driver, or a job without --gpus.")

MIB = 1 << 20


def tell_memory(when: str) -> None:
    """What the driver reports inside a job is the job's share, not the card."""
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
        print("twice the share: refused, as it should be")
    else:
        sys.exit("twice the share was granted: nothing holds this job to its share")


main()
