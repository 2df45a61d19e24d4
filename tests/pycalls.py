"""Functions that the tests of the Python interface run in jobs; the module imports little."""

import os
import signal
import subprocess
import sys
import time


def add(first, second=0):
    return first + second


def fail(text):
    raise LookupError(text)


class OddError(Exception):
    """One that cannot be read again: it needs two arguments and passes on none."""

    def __init__(self, first, second):
        super().__init__()


def fail_oddly():
    raise OddError(1, 2)


def leave(code):
    sys.exit(code)


def die(number):
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), number)


def drop(code):
    os._exit(code)


def generator():
    return (number for number in range(3))


def wait_for_ever(gate=None):
    if gate:
        with open(gate, "w") as file:
            file.write("runs\n")
    while True:
        signal.pause()


def count(path):
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path)


def speak(text):
    print(text)
    print(text.upper(), file=sys.stderr)


def exceed(program, amount):
    """Ask the driver for more memory than the job has, as a framework does."""
    done = subprocess.run([program, f"alloc {amount}"], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("alloc 0"):
        raise MemoryError(done.stdout)
    time.sleep(0)
