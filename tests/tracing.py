"""A process outside a job that traces one of the job's, and never waits for it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

TRACE_EXIT = 0x40  # PTRACE_O_TRACEEXIT: stop at the exit, also at that by SIGKILL
_SEIZE = """import ctypes, sys
pid, options = map(int, sys.argv[1:])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
done = ptrace(0x4206, ctypes.c_long(pid), None, ctypes.c_void_p(options))
print("traced" if done == 0 else "refused", flush=True)
sys.stdin.read()
"""


@contextmanager
def traced(pid: int, options: int = 0) -> Iterator[None]:
    """The process is traced (PTRACE_SEIZE) until the block is left."""
    words = [sys.executable, "-c", _SEIZE, str(pid), str(options)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        try:
            if tracer.stdout.readline() != "traced\n":
                pytest.skip("this host lets nobody trace")
            yield
        finally:
            tracer.stdin.close()
