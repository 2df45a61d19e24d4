"""What the hook does not do: nothing is changed, said or started in a program that it is loaded into."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import fgshim

pytestmark = pytest.mark.compiler
MARK = 77  # an errno that nobody sets

# What a program sees of itself: all but where things lie in memory.
SELF = """
import json, os
def status():
    words = ("Threads", "SigBlk", "SigIgn", "SigCgt", "Umask", "NoNewPrivs", "Seccomp", "FDSize")
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {word: lines[word].strip().split("/")[0] for word in words if word in lines}
def look():
    maps = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if len(line.split()) > 5}
    names = {os.path.basename(name) for name in maps if name.startswith("/")}
    fds = len(os.listdir("/proc/self/fd"))
    variables = sorted(set(os.environ) - {"LD_PRELOAD"})
    return {"status": status(), "fds": fds, "names": sorted(names), "variables": variables}
"""
USE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, at, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
given = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64 << 20))
refused = cuda.cuMemAlloc_v2(ctypes.byref(size), ctypes.c_size_t(9 << 30))
"""


@pytest.fixture
def run(job, driver):
    """run(hooked, code, **more environment) -> what that bit of Python prints as JSON; nothing on stderr."""

    def obey(hooked, code, **extra):
        env = job.environment(**extra) if hooked else {**os.environ, **driver.env, **extra}
        words = [sys.executable, "-c", SELF + code]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.stderr, done.returncode) == ("", 0)
        return json.loads(done.stdout)

    return obey


def test_a_program_without_cuda_sees_a_library_more_and_nothing_else(run):
    alone, hooked = run(False, "print(json.dumps(look()))"), run(True, "print(json.dumps(look()))")
    assert set(hooked.pop("names")) - set(alone.pop("names")) == {"libfgshim.so"}
    assert hooked == alone


def test_a_program_with_cuda_gets_no_thread_no_handler_and_no_descriptor(run):
    code = USE + "print(json.dumps([given, refused, look()]))"
    alone, hooked = run(False, code), run(True, code)
    assert hooked[:2] == alone[:2] == [0, 2]
    assert set(hooked[2].pop("names")) - set(alone[2].pop("names")) == {"libfgshim.so", "region"}
    assert hooked == alone


@pytest.mark.parametrize(
    "words", [["true"], ["false"], ["ls", "/"], ["sh", "-c", "exit 7"], ["no-such-program"]]
)
def test_an_ordinary_program_says_and_returns_what_it_did(job, words):
    words = ["env", *words] if words == ["no-such-program"] else words
    alone, hooked = (
        subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        for env in ({**os.environ}, job.environment())
    )
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_the_library_cannot_start_processes_catch_signals_leave_or_speak():
    if not fgshim.library().exists() or shutil.which("nm") is None:
        pytest.skip("needs the built hook, and nm to look into it")
    said = subprocess.run(["nm", "-D", "--undefined-only", fgshim.library()], check=True, capture_output=True)
    # It may start a thread, at the first launch in a turn: a process with CUDA has threads of its own.
    needs = set(re.findall(r" [Uw] ([^@\s]+)", said.stdout.decode()))
    starts = "clone|v?fork|system|signal|sigaction|.*sigmask|setenv|chdir|umask"
    ends = ".*atexit|_?exit|abort|.*printf|f?puts|std(out|err)|perror|malloc|free"
    assert [name for name in needs if re.fullmatch(f"{starts}|{ends}", name)] == []


def test_without_a_driver_there_is_none_under_the_hook_either(run):
    code = """
import ctypes
said = []
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError as error:
        said.append(str(error))
own = ctypes.CDLL(None)
names = "cuInit", "cuMemAlloc_v2", "nvmlInit_v2", "nvmlDeviceGetCount_v2", "dlsym"
said += [hasattr(own, name) for name in names]
print(json.dumps(said))
"""
    empty = {"LD_LIBRARY_PATH": "/nowhere"}
    alone, hooked = run(False, code, **empty), run(True, code, **empty)
    if alone[0] is True or not isinstance(alone[0], str):
        pytest.skip("a driver is installed here")
    assert hooked == alone
    assert "libcuda.so.1" in hooked[0]


def test_without_a_driver_pynvml_says_what_it_says_without_the_hook(run):
    pytest.importorskip("pynvml")
    code = """
import pynvml
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    print(json.dumps(str(error)))
"""
    empty = {"LD_LIBRARY_PATH": "/nowhere"}
    assert run(True, code, **empty) == run(False, code, **empty) == "NVML Shared Library Not Found"


FIRST_CALLS = [
    "cuda.cuInit(0)",
    "cuda.cuDeviceTotalMem_v2(out, 0)",
    "cuda.cuMemAlloc_v2(out, size)",
    "cuda.cuMemGetInfo_v2(out, out)",
    "cuda.cuMemFree_v2(ctypes.c_uint64(1))",
    "cuda.cuGetProcAddress_v2(b'cuMemAlloc', out, 12000, ctypes.c_uint64(0), None)",
    "nvml.nvmlInit_v2()",
    "nvml.nvmlDeviceGetCount_v2(out)",
    "nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))",
    "nvml.nvmlDeviceGetMemoryInfo(device, out)",
    "nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, out, None)",
    "nvml.nvmlSystemGetProcessName(1, out, 64)",
]


@pytest.mark.parametrize("last", range(len(FIRST_CALLS)))
def test_errno_stays_what_it_was_whatever_is_called_first(run, last):
    """Each call as the first one that finds the driver, with what must go before it in the library itself."""
    before = [
        call for call in FIRST_CALLS[:last] if "nvmlInit" in call or "cuInit" in call or "HandleBy" in call
    ]
    code = f"""
import ctypes
cuda, nvml = (ctypes.CDLL(name, use_errno=True) for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
room, size, device = ctypes.create_string_buffer(4096), ctypes.c_size_t(1 << 20), ctypes.c_void_p()
out = ctypes.byref(room)
{"; ".join(before) or "pass"}
call = lambda: {FIRST_CALLS[last]}
{FIRST_CALLS[last].split("(")[0]}  # looked up before errno is set
ctypes.set_errno({MARK})
call()
print(json.dumps(ctypes.get_errno()))
"""
    assert run(True, code) == MARK
