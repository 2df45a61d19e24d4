"""The sections of scripts/gpu-check. Each section is a function of the place that yields rows.

sheet       rows, and the table of a section
place       the card, a share of it without a controller, programs inside and outside
programs    what runs inside: ctypes on the driver
memory      allocations and their accounting
frameworks  PyTorch, JAX, CuPy, numba, RMM, vLLM
views       nvidia-smi and NVML
speed       what the hook adds to calls; shares of compute
training    two trainings at once; what the hook costs a training; graphs of kernels
neighbours  latency beside a hungry program; NCCL; all views of one program
watching    how soon the watchdog ends a job
jobs        two jobs through the controller
torch_programs  what runs inside, with PyTorch
report      the page of all tables
"""
