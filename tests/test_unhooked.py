"""Processes that the dynamic linker does not load the hook into, and the reason that is shown."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

import fakecuda
from fgsched.system.preloading import why_not_preloaded

PRELOAD = {"LD_PRELOAD": "/nonexistent/libfgshim.so"}
WAITS = b'#include <unistd.h>\nint main(void) { write(1, ".", 1); pause(); }\n'


@contextmanager
def running(*command, env):
    """A process that executes the program."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.read(1) == b"."
        yield process.pid
        process.kill()


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """build(flags…) -> a program that writes a dot and waits."""
    folder = tmp_path_factory.mktemp("programs")

    def make(*flags: str) -> Path:
        path = folder / f"waits{len(list(folder.iterdir()))}"
        words = [fakecuda.compiler() or "", "-x", "c", "-", "-o", path, *flags]
        if subprocess.run(words, input=WAITS, capture_output=True, check=False).returncode:
            pytest.skip(f"the C compiler cannot build with {' '.join(flags)}")
        return path

    return make


@pytest.mark.compiler
@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program_is_known(build, flag):
    with running(build(flag), env=PRELOAD) as pid:
        assert why_not_preloaded(pid) == "it is statically linked"


@pytest.mark.compiler
def test_a_program_of_musl_is_known_by_its_dynamic_linker(build, tmp_path):
    linker = tmp_path / "ld-musl-x86_64.so.1"
    linker.symlink_to("/lib64/ld-linux-x86-64.so.2")
    with running(build(f"-Wl,--dynamic-linker={linker}"), env=PRELOAD) as pid:
        assert why_not_preloaded(pid) == "it uses the C library musl"


@pytest.mark.compiler
def test_a_program_with_another_environment_is_known(build):
    with running(build("-O1"), env={}) as pid:
        assert why_not_preloaded(pid) == "LD_PRELOAD was removed"


@pytest.mark.compiler
@pytest.mark.root
def test_a_setuid_program_is_known(build, disk):
    if os.statvfs(disk).f_flag & os.ST_NOSUID:
        pytest.skip("no setuid programs in /tmp here")
    program = shutil.copy(build("-O1"), disk / "setuid")
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    with running(program, env=PRELOAD) as pid:
        assert why_not_preloaded(pid) == "it has the privileges of its file: setuid or capabilities"


@pytest.mark.compiler
def test_a_program_that_has_the_variable_is_not_explained(build):
    with running(build("-O1"), env=PRELOAD) as pid:
        assert why_not_preloaded(pid) == ""


def test_a_process_that_has_ended_is_not_explained():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert why_not_preloaded(process.pid) == ""
