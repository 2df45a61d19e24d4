"""The hook's generated C under the address, thread and undefined-behaviour sanitizers."""

import subprocess

import pytest

import sanitized
from awaiting import PATIENCE
from fakecuda.job import answers

pytestmark = [pytest.mark.compiler, pytest.mark.sanitizer]
HISTORIES = {
    "plain": "alloc 1G|alloc 1|free 0|free 0|managed 3M|pitch 100000 100|free 2|alloc-null 1",
    "threads": "race 8 400 8M|race-hold 8 16M|reset-primary|primary|race 4 100 3M|info",
    "pools": "pool|from 0 16M|async 16M|pool-destroy 0|afree 1|free 2|sync|race-async 8 200 2M",
    "blocks": "|".join(f"create 2M|map {at}|retain {at + 1}|release {at}" for at in range(0, 60, 3)),
    "arrays": "array 1000 1000 3 32 4 1|mipmap 512 512 0 32 4 0 9|array-end 0|mipmap-end 1|array-end 0",
    "graphs": "stream|capture|async 64M|afree 0|graph|instantiate 1|launch 2|upload 2|exec-end 2",
    "many": "|".join([f"alloc {at + 1}" for at in range(1500)] + [f"free {at}" for at in range(1500)]),
    "forks": "alloc 64M|async 64M|fork alloc 1M|fork free 0|fork info|free 0|afree 1|info",
    "contexts": "context|alloc 8M|array 64 64 0 32 1 0|context-end 0|primary|alloc 1G|release-primary",
    "nonsense": "alloc 0xffffffffffffffff|pitch 0xffffffffffffffff 0xffffffffffffffff|free-address 7"
    "|array 0xffffffffffffffff 0xffffffffffffffff 9 99 9 0|mipmap 9 9 9 99 9 0 99|release 5",
}


@pytest.fixture(scope="session", params=sanitized.SANITIZERS)
def build(request):
    """(runtime, the hook's library) under each sanitizer."""
    runtime = sanitized.runtime(request.param)
    return runtime, sanitized.build(request.param)


@pytest.fixture
def run(build, job, driver):
    """run(command, …) -> what the program answered; the sanitizer has had nothing to say."""
    runtime, library = build
    own = job.folder / "libfgshim.so"
    own.unlink()
    own.symlink_to(library)

    def obey(*commands):
        extra = {"LD_PRELOAD": f"{runtime}:{own}", "ASAN_OPTIONS": "detect_leaks=0"}
        words = [*sanitized.without_random_addresses(), driver.linked, *commands]
        env = job.environment(**extra)
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return answers(done.stdout)

    return obey


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_no_sanitizer_has_anything_to_say(run, history):
    commands = history.split("|")
    assert len(run(*commands)) >= len(commands)


@pytest.mark.parametrize("build", ["address"], indirect=True)
def test_what_others_write_into_the_region_is_no_error_of_memory(run, job):
    whole = bytearray(job.region_file.read_bytes())
    whole[1200:] = b"\xff" * (len(whole) - 1200)  # behind the head: every slot and every share
    job.region_file.write_bytes(whole)
    refused, *_ = run("alloc 2M", "free 0", "info", "create 2M")
    assert refused == (2,)


@pytest.mark.parametrize(
    "flags", ["-fsanitize=address -static-libasan", "-fsanitize=thread", "-fsanitize=undefined"]
)
def test_a_program_that_a_user_builds_with_a_sanitizer_starts_in_a_job(flags, job, tmp_path):
    """A sanitizer's runtime calls dlsym before its own strcmp can be called."""
    sanitized.runtime(flags.split()[0].removeprefix("-fsanitize="))
    (tmp_path / "program.c").write_text('#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n')
    words = ["gcc", *flags.split(), tmp_path / "program.c", "-o", tmp_path / "program"]
    subprocess.run(words, check=True)
    program = [*sanitized.without_random_addresses(), tmp_path / "program"]
    done = subprocess.run(program, env=job.environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("runs\n", 0), done.stderr
