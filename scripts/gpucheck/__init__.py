"""The sections of scripts/gpu-check. Each section is a function of the place that yields rows.

sheet       rows, and the table of a section
place       the card, a share of it without a controller, programs inside and outside
programs    what runs inside: ctypes on the driver, and PyTorch
memory      allocations and their accounting
frameworks  PyTorch, JAX, CuPy, numba
views       nvidia-smi and NVML
speed       what the hook adds; shares of compute
jobs        two jobs through the controller
"""
