"""Programs under the hook in the hands of valgrind and gdb."""

import shutil
import subprocess

import pytest

from fakecuda.job import answers

pytestmark = [pytest.mark.compiler, pytest.mark.tools]
OK, OOM = 0, 2
GIB = 1 << 30


@pytest.fixture(params=["valgrind", "gdb"])
def tool(request):
    """Where each is; skips where it is not."""
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"no {request.param} here")
    return path


@pytest.mark.parametrize("tool", ["valgrind"], indirect=True)
def test_valgrind_finds_no_use_of_memory_that_is_not_there(tool, job):
    words = [tool, "-q", "--error-exitcode=9", job.driver.program]
    commands = ["alloc 512M", "alloc 1G", "async 16M", "create 2M", "free 0", "info"]
    done = subprocess.run(
        [*words, *commands], env=job.environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [status for status, *_ in answers(done.stdout)] == [OK, OOM, OK, OK, OK, OK]


@pytest.mark.parametrize("tool", ["gdb"], indirect=True)
def test_a_debugger_that_comes_and_goes_changes_nothing(tool, job):
    live = job.start()
    assert live.say("alloc 512M") == (OK,)
    script = ["-ex", "info symbol cuMemAlloc_v2", "-ex", "thread apply all backtrace", "-ex", "detach"]
    words = [tool, "-nx", "-q", "-batch", "-p", str(live.process.pid), *script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if "ptrace: Operation not permitted" in done.stderr:
        live.end()
        pytest.skip("a program may not be traced here")
    assert "cuMemAlloc_v2 in section .text of" in done.stdout
    assert "libfgshim.so" in done.stdout
    assert live.say("alloc 1G") == (OOM,)
    assert live.say("info") == (OK, GIB // 2, GIB)
    live.end()
