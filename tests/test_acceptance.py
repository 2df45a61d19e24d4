"""What the documents that fgsched answers to show by example, done with the real commands on simulated cards.

The numbers are those of the list of acceptance cases. The cases that need a driver are in
test_acceptance_driver.py.
"""

import os
import select
from contextlib import contextmanager

from awaiting import rest
from fgsched.domain.states import JobState
from live_host import PATIENCE, living

STATES, STATE_AND_CARDS = "%i %t", "%i %t %g"


class Queue:
    """Jobs that run until they are cancelled, each submitted by fgsub."""

    def __init__(self, home):
        self.home = home
        os.mkfifo(home.path / "gate")
        self.gate = os.open(home.path / "gate", os.O_RDWR)

    def submit(self, *options, count=1):
        """`count` jobs alike; their ids."""
        words = ["--parsable", "--output=/dev/null", *options, "--wrap", "echo >gate; exec sleep 1000000"]
        done = [self.home.run("fgsub", *words) for _ in range(count)]
        assert {(one.status, one.err) for one in done} == {(0, "")}
        return [int(one.out) for one in done]

    def until(self, running):
        """Wait until so many more jobs run."""
        while running:
            assert select.select([self.gate], [], [], PATIENCE)[0], self.home.run("fgq").out
            running -= len(os.read(self.gate, running))
        while any(job.state is JobState.STARTING for job in self.home.queue("state")):
            rest()  # a script can be faster than the report of its start

    def rows(self, form):
        done = self.home.run("fgq", "-h", "-o", form)
        assert (done.status, done.err) == (0, "")
        return sorted(tuple(line.split()) for line in done.lines)

    def states(self):
        return [state for _, state in self.rows(STATES)]

    def gpus(self):
        """The index that each running job has."""
        return [row[2] for row in self.rows(STATE_AND_CARDS)]

    def shown(self, job):
        """{key: value} of `fgctl show job`."""
        done = self.home.run("fgctl", "show", "job", str(job))
        assert done.status == 0
        words = [word for line in done.lines for word in line.split("  ") if "=" in word]
        return dict(word.strip().split("=", 1) for word in words)


@contextmanager
def queue_of(tmp_path, devices, **about):
    """Yield an empty queue on simulated cards."""
    with living(tmp_path / "home", devices=devices, **about) as home:
        queue = Queue(home)
        try:
            yield queue
        finally:
            os.close(queue.gate)


def test_a1_the_third_of_three_jobs_of_6_gib_waits_on_a_card_of_16_and_is_told_the_bytes(tmp_path):
    with queue_of(tmp_path, "sim:1x16G") as q:
        jobs = q.submit("--gpu-mem=6G", count=3)
        q.until(running=2)
        assert q.states() == ["R", "R", "PD"]
        assert q.shown(jobs[2])["Reason"] == "GpuMemory"
        assert q.shown(jobs[2])["Why"] == "needs 6144M of GPU memory; GPU 0 has 4096M left"


def test_a2_of_four_jobs_of_0_3_three_run_on_one_card(tmp_path):
    with queue_of(tmp_path, "sim:1x16G") as q:
        jobs = q.submit("--gpus=0.3", count=4)
        q.until(running=3)
        assert q.states() == ["R", "R", "R", "PD"]
        assert q.shown(jobs[3])["Why"] == "needs 0.3 of one GPU; GPU 0 has 0.1 left"


def test_a2_of_four_jobs_of_0_3_four_run_on_two_cards(tmp_path):
    with queue_of(tmp_path, "sim:2x16G") as q:
        q.submit("--gpus=0.3", count=4)
        q.until(running=4)
        assert q.states() == ["R"] * 4
        assert q.gpus() == ["0", "0", "0", "1"]


def test_a3_two_halves_run_on_one_card_and_never_more_than_the_whole_of_it(tmp_path):
    with queue_of(tmp_path, "sim:1x16G") as q:
        q.submit("--gpus=1/2", count=3)
        q.until(running=2)
        assert q.states() == ["R", "R", "PD"]
        (gpu,) = q.home.run("fginfo", "-g", "-h").lines
        assert gpu.split()[3] == "1/1"


def test_a4_a_controller_that_sees_two_of_four_cards_gives_out_those(tmp_path):
    with queue_of(tmp_path, "sim:4x16G") as q:
        begun = q.home.run("fgq", "-h", env={"CUDA_VISIBLE_DEVICES": "1,3"})
        assert begun.status == 0, begun.err
        shown = q.home.run("fginfo", "-g", "-h").lines
        assert [line.split()[0] for line in shown] == ["1", "3"]
        q.submit("--gpus=1")
        q.until(running=1)
        script = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $FG_JOB_GPUS" >seen'
        assert q.home.run("fgsub", "--gpus=1", "--wait", "--wrap", script).status == 0
        assert (q.home.path / "seen").read_text() == "PCI_BUS_ID 0 3\n"


def test_a5_two_jobs_with_whole_gpus_get_one_each(tmp_path):
    with queue_of(tmp_path, "sim:2x16G") as q:
        q.submit("--gpus=1", count=2)
        q.until(running=2)
        assert q.gpus() == ["0", "1"]


def test_a6_four_quarters_run_together_on_one_card_and_four_cpus(tmp_path):
    with queue_of(tmp_path, "sim:1x16G", config="[host]\ncpus = 4\n") as q:
        jobs = q.submit("--gpus=0.25", count=4)
        q.until(running=4)
        assert q.states() == ["R"] * 4
        assert {q.shown(job)["GpuMem"] for job in jobs} == {"4096M"}


def test_a7_three_halves_fill_the_first_of_two_cards_before_the_second(tmp_path):
    with queue_of(tmp_path, "sim:2x16G") as q:
        q.submit("--gpus=0.5", count=3)
        q.until(running=3)
        assert q.gpus() == ["0", "0", "1"]


def test_a9_a_type_chooses_the_card_on_a_host_of_two_kinds(tmp_path):
    with queue_of(tmp_path, "sim:1x16G:V100,1x40G:A100") as q:
        first = q.submit("--gpus=a100:0.5")
        second = q.submit("--gpus=0.5", "--gpu-type=v100")
        q.until(running=2)
        assert [q.shown(job)["GpuIdx"] for job in (*first, *second)] == ["1", "0"]


def test_a9_a_type_that_the_host_has_not_is_refused_by_name(tmp_path):
    with queue_of(tmp_path, "sim:1x16G:V100,1x40G:A100") as q:
        done = q.home.run("fgsub", "--gpus=h200:1", "--wrap", "true")
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("fgsub: error: Batch job submission failed: ")
        assert "h200" in done.err
        assert "V100" in done.err
        assert "A100" in done.err
        assert q.states() == []


def test_a11_an_unknown_resource_is_refused_with_what_was_meant(home):
    done = home.run("fgsub", "--gres=gpus:1", "--wrap", "true")
    assert (done.status, done.out) == (2, "")
    assert "there is no 'gpus' here; did you mean gpu?" in done.err
    assert home.run("fgq", "-h").out == ""


def test_a12_half_a_unit_of_two_in_a_gpu_is_a_quarter_of_the_card(tmp_path):
    with queue_of(tmp_path, "sim:1x8G", config="[gpus]\nfgpu_per_gpu = 2\n") as q:
        script = 'echo "$FG_GPU_FRACTION $FG_GPU_MEM_MB" >seen'
        done = q.home.run("fgsub", "--parsable", "--fgpu=0.5", "--wait", "--wrap", script)
        assert done.status == 0
        assert (q.home.path / "seen").read_text() == "0.25 2048\n"
        shown = q.shown(done.out.strip())
        assert (shown["GpuFraction"], shown["GpuMem"]) == ("0.25", "2048M")


def test_a14_a_queue_of_halves_fills_two_cards_with_four_jobs_and_the_fifth_waits(tmp_path):
    with queue_of(
        tmp_path, "sim:2x16G", config="[host]\ncpus = 64\n[partitions]\nhalf_gpu.gpus = 0.5\n"
    ) as q:
        jobs = q.submit("--partition=half_gpu", count=5)
        q.until(running=4)
        assert q.states() == ["R", "R", "R", "R", "PD"]
        shown = [q.shown(job) for job in jobs[:4]]
        assert [one["GpuIdx"] for one in shown] == ["0", "0", "1", "1"]
        assert {one["GpuFraction"] for one in shown} == {"0.5"}


def test_a16_queues_of_two_a_quarter_a_half_and_one_gpu_share_three_cards(tmp_path):
    sizes = {"dual": 2, "quarter": 0.25, "half": 0.5, "single": 1}
    tables = "".join(f"{name}.gpus = {size}\n" for name, size in sizes.items())
    with queue_of(tmp_path, "sim:3x16G", config=f"[host]\ncpus = 64\n[partitions]\n{tables}") as q:
        jobs = [q.submit(f"--partition={name}")[0] for name in sizes]
        q.until(running=3)
        shown = [q.shown(job) for job in jobs]
        assert [one["JobState"] for one in shown] == ["RUNNING"] * 3 + ["PENDING"]
        assert sum(float(one["GpuFraction"]) for one in shown[:3]) == 2.75
        assert q.home.run("fgcancel", str(jobs[0])).status == 0
        q.until(running=1)
        assert q.shown(jobs[3])["JobState"] == "RUNNING"


def test_a18_the_eleventh_job_of_a_queue_of_ten_waits_and_the_limit_is_named(tmp_path):
    config = "[host]\ncpus = 64\n[partitions.ten]\nmax_running = 10\n"
    with queue_of(tmp_path, "sim:1x16G", config=config) as q:
        jobs = q.submit("--partition=ten", "--gpus=0.01", count=11)
        q.until(running=10)
        last = q.shown(jobs[10])
        assert (last["JobState"], last["Reason"]) == ("PENDING", "QOSGrpJobsLimit")
        assert "10" in last["Why"]


def test_a15_amounts_off_the_step_are_refused_with_their_neighbours(tmp_path):
    with queue_of(tmp_path, "sim:1x16G", config="[gpus]\nshare_step = 0.125\n") as q:
        for amount, low, high in (("0.3", "0.25", "0.375"), ("1.25", "1", "2")):
            done = q.home.run("fgsub", f"--gpus={amount}", "--wrap", "true")
            assert (done.status, done.out) == (2, "")
            assert f"use {low} or {high}" in done.err
        assert q.home.run("fgsub", "--gpus=0.125", "--wait", "--wrap", "true").status == 0


def test_a17_a_fifth_job_waits_where_a_card_takes_four(tmp_path):
    config = "[host]\ncpus = 64\n[gpus]\nmax_jobs_per_gpu = 4\n"
    with queue_of(tmp_path, "sim:1x16G", config=config) as q:
        jobs = q.submit("--gpus=0.1", count=5)
        q.until(running=4)
        assert q.states() == ["R", "R", "R", "R", "PD"]
        assert q.shown(jobs[4])["Reason"] == "GpuMaxJobs"
