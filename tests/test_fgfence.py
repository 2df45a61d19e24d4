"""fgfence: programs with a part of a GPU of the fake driver, without a queue."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import awaiting
import fgshim
from driver_host import hosting
from fakecuda import Card
from fakecuda.job import answers
from fgsched.cli import fgfence
from fgshim import region
from live_host import PATIENCE, processes_of

pytestmark = pytest.mark.compiler
GIB, MIB = 1 << 30, 1 << 20
OK, OOM = 0, 2
CONTEXT = 256 * MIB
COMMAND = [sys.executable, "-m", "fgsched.cli.fgfence"]


@pytest.fixture
def host(driver, tmp_path):
    """Two GPUs of 40 GiB and no controller, unless a command starts one."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    gpus = [Card("A100", 40 * GIB, context=CONTEXT) for _ in range(2)]
    with hosting(tmp_path / "home", driver, *gpus, more="[jobs]\nkill_wait = 5\n") as one:
        yield one
        one.disconnect()
        for pid in processes_of(one.path) if not one.paths.socket.exists() else ():
            with suppress(ProcessLookupError), closing_pidfd(pid) as watcher:
                select.select([watcher], [], [], PATIENCE)  # it has removed its fence and is about to end


@contextmanager
def closing_pidfd(pid):
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def fences(host):
    """The directories of the fences."""
    folder = Path(host.paths.run, "fence", "job")
    return sorted(folder.iterdir()) if folder.exists() else []


def gone(host):
    """Wait until every fence has been removed."""
    if fences(host):
        awaiting.until(Path(host.paths.run, "fence", "job"), lambda: not fences(host))
    return True


class Fenced:
    """A fakejob in a fence, which obeys line by line."""

    def __init__(self, process):
        self.process = process

    def say(self, command):
        print(command, file=self.process.stdin, flush=True)
        return answers(self.process.stdout.readline())[0]


@contextmanager
def fenced(host, *options, command=None):
    words = [*COMMAND, *options, *(command or [host.driver.program, "-"])]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=host.environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield Fenced(process)
    finally:
        process.kill()
        process.communicate()


def test_a_program_has_its_part_of_a_gpu_and_no_more(host):
    done = host.run(
        "fgfence", "--gpus=0.5", str(host.driver.program), "info", "alloc 20G", "alloc 19G", "info"
    )
    free = 20 * GIB - CONTEXT
    assert answers(done.out) == [(OK, free, 20 * GIB), (OOM,), (OK,), (OK, free - 19 * GIB, 20 * GIB)]
    assert done.status == 0
    assert done.err.startswith("fgfence: GPU 0: 20480.0 MiB refused to process ")
    assert gone(host)


def test_a_context_in_a_fence_is_charged_with_the_stacks_of_the_gpus_threads(host):
    host.driver.gpus(Card("H100", 40 * GIB, context=518 * MIB, processors=132, threads=2048))
    done = host.run("fgfence", "--gpus=0.5", str(host.driver.program), "info")
    assert answers(done.out) == [(OK, 20 * GIB - 520 * MIB, 20 * GIB)]
    assert gone(host)


def test_two_fences_on_one_gpu_each_have_their_own_part(host):
    with (
        fenced(host, "--gpus=0.25", "--gpu-list=1") as one,
        fenced(host, "--gpu-mem=30G", "--gpu-list=1") as two,
    ):
        assert one.say("info") == (OK, 10 * GIB - CONTEXT, 10 * GIB)
        assert two.say("info") == (OK, 30 * GIB - CONTEXT, 30 * GIB)
        assert two.say("alloc 29G") == (OK,)
        assert one.say("info") == (OK, 10 * GIB - CONTEXT, 10 * GIB)
        assert len(fences(host)) == 2
        done = host.run("fgfence", "--gpu-mem=1G", "--gpu-list=1", "true")
        assert done.status == 1
        assert "GPU 1: 1024M of 40960M, and your other fences have 40960M" in done.err
        with fenced(host, "--gpus=0.5") as other:  # the GPU without a fence
            assert other.say("info") == (OK, 20 * GIB - CONTEXT, 20 * GIB)
    assert gone(host)


def test_the_children_of_a_shell_share_the_part(host):
    os.mkfifo(host.path / "never")
    host.open.callback(os.close, os.open(host.path / "never", os.O_RDWR))
    first = f"{host.driver.program} 'alloc 6G' hold <never >begun & "
    second = f"until grep -q alloc begun; do :; done; {host.driver.program} 'alloc 6G'; kill $!"
    done = host.run("fgfence", "--gpu-mem=8G", "sh", "-c", first + second)
    assert answers(done.out) == [(OOM,)]
    assert answers((host.path / "begun").read_text()) == [(OK,)]


@pytest.mark.userns
@pytest.mark.parametrize(
    "inside",
    [
        ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc"],
        ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc"],
    ],
    ids=["unshare", "bubblewrap"],
)
def test_a_program_in_a_sandbox_has_the_part_and_is_no_stranger_to_the_watchdog(host, inside):
    if not shutil.which(inside[0]) or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip(f"{inside[0]} cannot make a pid namespace here")
    with fenced(host, "--gpu-mem=8G", command=[*inside, host.driver.program, "-"]) as one:
        assert one.say("alloc 7G") == (OK,)
        assert one.say("alloc 1G") == (OOM,)
        [folder] = fences(host)
        [process] = region.read(folder / "region").processes
        assert Path(f"/proc/{process.pid}/status").read_text().split("NSpid:")[1].split()[0] == str(
            process.pid
        )


def test_the_exit_status_is_the_commands(host):
    assert host.run("fgfence", "--gpus=0.5", "sh", "-c", "exit 7").status == 7
    assert host.run("fgfence", "--gpus=0.5", "no-such-command").status == 127
    with fenced(host, "--gpus=0.5", command=["sh", "-c", "echo lines; read line"]) as one:
        assert one.process.stdout.readline() == "lines\n"
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait() == -signal.SIGTERM
    assert gone(host)


def test_a_program_without_the_hook_is_ended_by_the_watchdog(host):
    env = " ".join(f"{name}={value}" for name, value in host.driver.env.items())
    os.mkfifo(host.path / "never")
    host.open.callback(os.close, os.open(host.path / "never", os.O_RDWR))
    line = f"exec env -i {env} {host.driver.program} 'alloc 1G' hold <never"
    done = host.run("fgfence", "--gpus=0.5", "sh", "-c", line)
    assert done.status == -signal.SIGTERM
    assert "fgfence: the programs are ended by the watchdog: process " in done.err
    assert "holds 1280M on GPU 0 without the hook: LD_PRELOAD was removed" in done.err
    assert gone(host)


def test_the_variables_make_the_fence_for_programs_that_others_start(host):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as lasts:
        done = host.run("fgfence", "--print-env", "--gpus=0.5", f"--pid={lasts.pid}")
        assert done.status == 0, done.err
        script = f"{done.out}\nexec {host.driver.program} info"
        said = subprocess.run(
            ["sh", "-c", script], env=host.environ, capture_output=True, text=True, check=True
        )
        assert answers(said.stdout) == [(OK, 20 * GIB - CONTEXT, 20 * GIB)]
        words = ["fgfence", "--print-env", "--json", "--gpus=0.25", f"--pid={lasts.pid}"]
        env = host.environ | json.loads(host.run(*words).out)
        said = subprocess.run(
            [host.driver.program, "info"], env=env, capture_output=True, text=True, check=True
        )
        assert answers(said.stdout) == [(OK, 10 * GIB - CONTEXT, 10 * GIB)]
        assert len(fences(host)) == 2
    assert gone(host)


def test_a_shell_puts_the_programs_that_it_starts_later_in_a_fence(host):
    words = " ".join(COMMAND)
    script = f'eval "$({words} --print-env --gpu-mem=4G --pid $$)"; {host.driver.program} info; sh -c "$0"'
    done = subprocess.run(
        ["sh", "-c", script, f"exec {host.driver.program} info"],
        env=host.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answers(done.stdout) == [(OK, 4 * GIB - CONTEXT, 4 * GIB)] * 2
    assert gone(host)


def test_a_gpu_that_a_controller_allocates_is_refused(host):
    host.live("--gpu-mem=1G")
    done = host.run("fgfence", "--gpus=0.5", "true")
    assert done.status == 1
    assert f"GPU 0 is allocated by the controller of uid {os.geteuid()} (pid " in done.err
    assert "fgrun runs a command as a job of that controller" in done.err
    assert fences(host) == []


def test_a_run_directory_in_which_others_can_write_is_refused(host):
    run = Path(host.paths.run)
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    (run / "fence").mkdir()
    (run / "fence").chmod(0o777)
    done = host.run("fgfence", "--gpus=0.5", "true")
    assert done.status == 1
    assert f"{run}/fence belongs to another user, or others can write there" in done.err


def test_a_fence_within_a_fence_is_refused(host):
    inner = [*COMMAND, "--gpus=0.1", "true"]
    done = host.run("fgfence", "--gpus=0.5", *inner)
    assert done.status == 1
    assert "this process is in a fence" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["true"], "say what the command may have"),
        (["--gpus=0.5"], "give a command, or --print-env"),
        (["--gpus=0", "true"], "a fence has at least a part of one GPU"),
        (["--gpus=half", "true"], "--gpus=half"),
        (["--gpus=1.5", "true"], "--gpus"),
        (["--gpus=1", "--gpu-list=all", "true"], "--gpu-list=all is not a list of GPUs"),
        (["--gpus=0.5", "--json", "true"], "--pid and --json belong to --print-env"),
    ],
)
def test_wrong_usage_is_explained(words, said):
    done = CliRunner().invoke(fgfence.fgfence, words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_process_that_has_ended_is_named(host):
    with subprocess.Popen(["true"]) as ended:
        pass
    done = host.run("fgfence", "--print-env", "--gpus=0.5", f"--pid={ended.pid}")
    assert done.status == 1
    assert f"there is no process {ended.pid}" in done.err


def test_a_fence_whose_watcher_was_killed_is_removed_by_the_next(host):
    with fenced(host, "--gpus=0.5") as one:
        assert one.say("info")[0] == OK
        [folder] = fences(host)
        os.kill(int(folder.name.partition(".")[0]), signal.SIGKILL)
        assert one.say("alloc 20G") == (OOM,)  # the hook limits it nevertheless
        assert host.run("fgfence", "--gpus=0.5", "true").status == 0
        assert folder in fences(host)  # its program lives
    assert host.run("fgfence", "--gpus=0.5", "true").status == 0
    assert gone(host)
