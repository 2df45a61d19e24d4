"""The sections of scripts/gpu-check, one module a few. Each is a function of the place that yields rows.

sheet       rows, and the table of a section
place       the card, a share of it without a controller, programs inside and outside
programs    what runs inside: ctypes on the driver, and PyTorch
memory      what is given, by whom it is counted
frameworks  PyTorch, JAX, CuPy, numba
views       nvidia-smi and NVML
speed       what the hook adds; shares of compute
jobs        two jobs through the controller
"""
