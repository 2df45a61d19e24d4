"""The directories of earlier queues: their results are no new job's, and their cards are given to none."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders import a_gpu
from crashing import await_end, controller_of
from fgsched.controller.gpustate import GpuStates
from fgsched.domain.job import GpuState
from fgsched.system import generations
from fgsched.system.process import descendants, identify, kill
from fgsched.system.spaces import Scratch
from live_host import attempts, living

OLD, NEW = "0123abcd", "89abcdef"


@contextmanager
def sleeping(**environment):
    """A process that lives as long as the block, started with these variables."""
    script, pipe = "echo; read line", subprocess.PIPE
    with subprocess.Popen(["/bin/sh", "-c", script], env=environment, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()  # before that, it may still be in the midst of execve
        try:
            yield identify(process.pid)
        finally:
            process.kill()


def claim(place, name, identity, kind="claim"):
    for each in ("claim", "result", "job"):
        (place / each).mkdir(parents=True, exist_ok=True)
    os.symlink(f"P:{identity.pid}:{identity.start}:{identity.boot}", place / kind / name)
    (place / "job" / name).mkdir(exist_ok=True)


def ended(place, name):
    """An attempt whose processes are all gone."""
    with sleeping() as identity:
        claim(place, name, identity)
    os.symlink("whatever", place / "result" / name)


def entries(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def test_each_queue_has_a_directory_of_its_own_and_the_plain_names_lead_there(tmp_path):
    own = generations.directory_of(tmp_path, NEW)
    generations.link(tmp_path, own)
    assert own == tmp_path / NEW
    assert own.stat().st_mode & 0o777 == 0o711
    assert {kind: os.readlink(tmp_path / kind) for kind in ("claim", "result", "job")} == {
        "claim": f"{NEW}/claim",
        "result": f"{NEW}/result",
        "job": f"{NEW}/job",
    }


def test_a_living_job_of_an_earlier_queue_is_found_with_its_cards(tmp_path):
    mark = {"FG_JOB_DIR": f"{tmp_path / OLD}/job/7.2", "FG_GPU_UUIDS": "GPU-0,GPU-1", "FG_JOB_GPUS": "0,1"}
    with sleeping() as shepherd, sleeping(**mark) as process:
        claim(tmp_path / OLD, "7.2", shepherd)
        generations.close(tmp_path / OLD)
        assert generations.living_jobs(tmp_path / OLD) == [
            generations.Earlier(OLD, 7, 2, (shepherd, process), frozenset({"GPU-0", "GPU-1"}))
        ]


def test_a_job_whose_processes_do_not_tell_may_be_on_any_card(tmp_path):
    with sleeping() as shepherd:
        claim(tmp_path / OLD, "7.2", shepherd)
        generations.close(tmp_path / OLD)
        (found,) = generations.living_jobs(tmp_path / OLD)
    assert found.gpus is None


def test_no_launch_that_is_still_on_its_way_begins_in_an_earlier_queue(tmp_path):
    with sleeping() as shepherd:
        claim(tmp_path / OLD, "7.2", shepherd)
        generations.close(tmp_path / OLD)
    with pytest.raises(FileNotFoundError):
        os.symlink("P:1:1:x", tmp_path / OLD / "claim" / "8.1")


def test_what_an_earlier_queue_left_is_removed_once_its_jobs_are_over(tmp_path):
    with sleeping() as shepherd:
        claim(tmp_path / OLD, "7.2", shepherd)
        ended(tmp_path / OLD, "6.1")
        generations.close(tmp_path / OLD)
        alive = {(one.job, one.attempt) for one in generations.living_jobs(tmp_path / OLD)}
        generations.remove_ended(tmp_path / OLD, alive, os.rmdir)
        assert entries(tmp_path / OLD) == ["claimed", "claimed/7.2", "job", "job/7.2", "result"]
    assert generations.living_jobs(tmp_path / OLD) == []
    (tmp_path / OLD / "job" / ".4711.3").mkdir()  # what its spawner, which was killed, kept for the next job
    (tmp_path / OLD / "containers.conf").touch()
    scratch = Scratch(tmp_path / OLD, f"{tmp_path}/fg-", for_all=False)
    Path(scratch.of(os.geteuid(), os.getegid()), "0").mkdir()  # TMPDIR of a job
    scratch.close()
    generations.remove_ended(tmp_path / OLD, (), os.rmdir)
    assert entries(tmp_path) == []


def test_a_queue_that_is_brought_back_has_its_claims_again(tmp_path):
    with sleeping() as shepherd:
        claim(tmp_path / OLD, "7.2", shepherd)
        generations.close(tmp_path / OLD)
        assert generations.directory_of(tmp_path, OLD) == tmp_path / OLD
        assert entries(tmp_path / OLD) == ["claim", "claim/7.2", "job", "job/7.2", "result"]


def test_a_number_that_no_queue_gave_out_is_no_id(tmp_path):
    own = generations.directory_of(tmp_path, NEW)
    (tmp_path / OLD / "claim").mkdir(parents=True)
    for name in ("12.1", f"{10**30}.1", "٣.1", "x.1"):
        (tmp_path / OLD / "claim" / name).symlink_to("T")
    assert generations.highest_id(tmp_path, own) == 12


# -- cards -------------------------------------------------------------------------------------------


def test_cards_of_earlier_jobs_are_suspect_until_these_are_over():
    states = GpuStates([a_gpu(0), a_gpu(1)])
    states.occupy({"1"}, "job 7 of an earlier queue (pid 5) runs", 2.0)
    assert [(gpu.state, gpu.note) for gpu in states.gpus] == [
        (GpuState.OK, ""),
        (GpuState.SUSPECT, "job 7 of an earlier queue (pid 5) runs"),
    ]
    states.vacate(3.0)
    assert [gpu.state for gpu in states.gpus] == [GpuState.OK, GpuState.OK]


def test_an_operator_takes_a_card_back_for_good():
    states = GpuStates([a_gpu(0), a_gpu(1)])
    states.occupy(None, "runs", 2.0)
    states.resume(0, 3.0)
    states.vacate(4.0)
    states.occupy(None, "runs", 4.0)
    assert [gpu.state for gpu in states.gpus] == [GpuState.OK, GpuState.SUSPECT]


# -- a controller ------------------------------------------------------------------------------------


def stop(home):
    """Stop its controller, and wait until it is gone."""
    controller = os.pidfd_open(controller_of(home))
    home.client.ask("stop")
    home.disconnect()
    await_end(controller)


@pytest.mark.compiler
def test_a_new_queue_waits_for_the_cards_of_the_jobs_that_the_one_before_left(tmp_path):
    with living(tmp_path / "home", devices="sim:1x16G") as home:
        ready, gate = home.path / "ready", home.path / "go"
        os.mkfifo(ready)
        os.mkfifo(gate)
        old = home.submit(f"echo >{ready}; read line <{gate}; exit 9", share=10000)
        ready.read_text()
        stop(home)
        for name in ("queue.db", "queue.initialised", "queue.commits"):
            (home.path / name).unlink()
        new = home.submit("exit 0", share=10000)
        assert new == old + 1, "ids go on"
        (gpu,) = home.gpus()
        assert (gpu["state"], gpu["note"].startswith(f"job {old} of an earlier queue (pid ")) == (
            "suspect",
            True,
        )
        doctor = home.run("fgsched", "doctor").out
        assert f"WARN earlier     jobs of an earlier queue run: job {old} (pid " in doctor
        gate.write_text("go\n")
        (done,) = home.wait(new)
        assert (done["state"], done["exit_code"]) == ("COMPLETED", 0)
        assert home.client.ask("ping")["earlier_jobs"] == []


@pytest.mark.compiler
def test_an_operator_may_give_such_a_card_out(tmp_path):
    with living(tmp_path / "home", devices="sim:1x16G") as home:
        home.running(share=10000)
        stop(home)
        for name in ("queue.db", "queue.initialised"):
            (home.path / name).unlink()
        new = home.submit("exit 0", share=10000)
        (one,) = home.client.ask("ping")["earlier_jobs"]
        assert home.run("fgctl", "resume", "gpu=0").status == 0
        home.wait(new)
        (shell,) = descendants(one["pid"])
        kill(shell, signal.SIGKILL)
        assert any(home.client.ask("ping")["earlier_jobs"] == [] for _ in attempts())


@pytest.mark.compiler
def test_no_junk_in_the_directory_of_an_earlier_queue_keeps_a_controller_from_starting(tmp_path):
    with living(tmp_path / "home") as home:
        home.ended()
        stop(home)
        place = home.paths.run / OLD
        for kind in ("claim", "claimed", "result", "job"):
            (place / kind / "5.1").mkdir(parents=True)
            (place / kind / "notes").write_text("mine")
            (place / kind / f"{10**30}.1").symlink_to("\udce9")
        (home.paths.run / NEW).write_text("a file")
        (home.paths.run / "00000000").symlink_to("nowhere")
        assert home.ended() == 6, "ids go on after those of which anything is left"
