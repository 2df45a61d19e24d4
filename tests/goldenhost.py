"""A host whose clock stands still, with jobs in all states, and everything that commands print of them.

The corpus in `tests/data/golden` was recorded from it; `test_golden.py` compares.
"""

import json
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from fgsched import protocol
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import JobSample
from fgsched.domain.job import Job, JobUsage
from fgsched.domain.states import JobState
from fgsched.store.store import Store
from live_host import PATIENCE, Home, attempts

BEGIN = 1_767_614_400  # 2026-01-05T12:00:00 UTC
CONFIG = """
[host]
cpus = 64
memory = "256G"
[gpus]
max_jobs_per_gpu = 9
[jobs]
kill_wait = 5
[mail]
send = "off"
[resources]
matlab = 1
[accounting]
move_after = "1-00:00:00"
[accounts.lab]
[accounts.physics]
shares = 3
[qos.high]
[partitions.main]
default = true
max_time = "2-00:00:00"
[partitions.urgent]
preempt = ["spare"]
[partitions.spare]
preempt_mode = "cancel"
[partitions.again]
preempt_mode = "requeue"
[partitions.closed]
state = "down"
"""


class GoldenHost(Home):
    """A home whose commands and controller see the time that `at` sets, on a host of one name in a domain."""

    _library: Path
    _now: Path

    def build(self, place: Path) -> None:
        """Compile the clock and the name of the host into `place`."""
        self._library, self._now = place / "fake.so", place / "now"
        sources = [Path(__file__).with_name(name) for name in ("fakeclock.c", "fakename.c")]
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self._library, *sources], check=True)
        self.at(0)

    def at(self, seconds: int) -> None:
        """Set the clock to `seconds` after the beginning."""
        new = self._now.with_suffix(".new")
        new.write_text(f"@{BEGIN + seconds}")
        new.rename(self._now)
        if seconds:  # a controller that sleeps does not see its clock
            self.client.call(protocol.Reconfigure())

    @property
    def environ(self) -> dict[str, str]:
        fake = {"FAKE_CLOCK": str(self._now), "FAKE_NAME": "HOST.example.org"}
        ours = {"LD_PRELOAD": str(self._library), "FG_SLURM_ENV": "1", "COLUMNS": "200"}
        return super().environ | fake | ours

    def kill_controller(self) -> None:
        """End the controller at once; its jobs go on."""
        pid = int(self.paths.lock.read_text())
        watched = os.pidfd_open(pid)
        self.disconnect()
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        assert select.select([watched], [], [], PATIENCE)[0]
        os.close(watched)

    def sub(self, *words: str) -> int:
        """Submit with fgsub; return the id."""
        done = self.run("fgsub", "--parsable", *words)
        assert done.status == 0, done.err
        return int(done.out.split(";")[0])

    def until(self, job: int | str, *states: JobState) -> None:
        """Ask until a job has one of these states."""
        for _ in attempts():
            if self.client.call(protocol.ShowJob(id=job)).state in states:
                return
        raise AssertionError(f"job {job} is {self.client.call(protocol.ShowJob(id=job)).state}, not {states}")


_SLEEP = ("--wrap", "exec sleep 1000000")


def play(host: GoldenHost) -> None:
    """Bring jobs into all states, each change at its own second."""
    _end_jobs(host)
    _stop_jobs(host)
    _run_jobs(host)
    _queue_jobs(host)
    host.at(400)


def _running(host: GoldenHost, *words: str) -> int:
    """Submit a job that runs until it is ended; return its id once it runs."""
    job = host.sub(*words, *_SLEEP)
    host.until(job, JobState.RUNNING)
    return job


def _end_jobs(host: GoldenHost) -> None:
    """Run jobs that end by themselves or at their time limit."""
    host.wait(host.sub("--gpus=0.25", "-J", "done", "--wrap", "exit 0"))
    host.at(10)
    host.wait(
        host.sub(
            "--gpus=2", "--gpu-mem=4G", "-c", "4", "--mem=8G", "-t", "90", "-J", "failed", "--wrap", "exit 3"
        )
    )
    host.at(20)
    host.wait(host.sub("--gpus=0.5", "-J", "signalled", "--wrap", "kill -11 $$"))
    host.at(30)
    host.wait(
        host.sub("-J", "cpu-only", "-c", "2", "--comment", "a comment", "--wckey", "tag", "--wrap", "exit 0")
    )
    long = _running(host, "--gpus=0.5", "-J", "timeout", "-t", "1s")  # as the system's clock has it
    host.wait(long)


def _stop_jobs(host: GoldenHost) -> None:
    """Cancel, preempt and requeue jobs, and let a deadline pass."""
    host.at(95)
    cancelled = _running(host, "--gpus=1", "-J", "cancelled")
    host.at(100)
    host.run("fgcancel", str(cancelled))
    host.wait(cancelled)
    held = host.sub("--gpus=1", "-H", "-J", "cancelled-pending", *_SLEEP)
    host.at(110)
    host.run("fgcancel", str(held))
    spare = _running(host, "--gpus=4", "-p", "spare", "-J", "preempted")
    host.at(120)
    urgent = _running(host, "--gpus=4", "-p", "urgent", "-J", "urgent")
    host.wait(spare)
    host.at(130)
    host.run("fgcancel", str(urgent))
    host.wait(urgent)
    late = host.sub(
        "--gpus=1", "-H", "-J", "deadline", "-t", "1", "--deadline", "2026-01-05T12:03:40", *_SLEEP
    )
    host.at(225)
    host.wait(late)
    host.at(230)
    again = _running(host, "--gpus=0.125", "-J", "requeued", "--requeue")
    host.run("fgctl", "requeue", str(again))
    host.at(300)
    host.until(again, JobState.RUNNING)


def _run_jobs(host: GoldenHost) -> None:
    """Start jobs that still run at the end, one of them suspended, and an array."""
    host.at(310)
    _running(host, "--gpus=0.3", "-J", "share", "--gpu-compute=hard", "-t", "1-12:00:00")
    _running(host, "--gpus=h100:1", "-J", "typed", "--mail-type=END,FAIL", "--mail-user=ann@example.org")
    _running(host, "-n", "4", "-c", "2", "--mem-per-cpu=1G", "-J", "tasks", "-A", "physics", "-q", "high")
    _running(host, "--gpus=0.2", "-J", "licence", "--nice=5", "--gres=matlab:1")
    host.at(320)
    paused = _running(host, "--gpus=0.1", "-J", "suspended")
    host.at(330)
    host.run("fgctl", "suspend", str(paused))
    host.until(paused, JobState.SUSPENDED)
    array = host.sub(
        "--gpus=0.05", "-a", "0-4%2", "-J", "array", "--wrap", "[ $FG_ARRAY_TASK_ID = 0 ] || sleep 1000000"
    )
    host.wait(f"{array}_0")
    host.until(f"{array}_1", JobState.RUNNING)
    host.until(f"{array}_2", JobState.RUNNING)


def _queue_jobs(host: GoldenHost) -> None:
    """Submit jobs that wait, each for another reason."""
    host.at(340)
    host.sub("--gpus=4", "-J", "resources", *_SLEEP)
    host.sub("--gpus=4", "-J", "priority", "--nice=100", *_SLEEP)
    host.sub("--gpus=0.1", "-J", "licences", "--gres=matlab:1", *_SLEEP)
    host.sub("-J", "dependency", "-d", "afterok:17", *_SLEEP)
    host.sub("-J", "begin", "-b", "2026-01-06T08:00:00", *_SLEEP)
    host.sub("-J", "held", "-H", *_SLEEP)
    host.sub("-J", "down", "-p", "closed", *_SLEEP)
    host.sub("-J", "never", "-d", "afterok:2", "--kill-on-invalid-dep=no", *_SLEEP)
    host.sub("-J", "by-deadline", "-t", "10", "--deadline", "2026-01-06T12:00:00", "-p", "closed", *_SLEEP)
    host.sub("-a", "1-3", "-H", "-J", "held-array", *_SLEEP)
    host.sub(
        "--gres=gpu:2",
        "--exclusive",
        "-J",
        "gres",
        "--signal=B:USR1@60",
        "--no-requeue",
        "--open-mode=append",
        *_SLEEP,
    )


def settle(host: GoldenHost) -> None:
    """Kill the controller, and set the times and the use that the kernel measured."""
    host.kill_controller()
    store = Store(host.paths.queue)
    records = store.history(since=0, until=2**40, uid=None, after=0, page=1000).records
    jobs = {job.id: job for job in (*(record.job for record in records), *store.open_jobs())}
    with store.write():
        for job in jobs.values():
            if job.started_at:
                assert store.save(job, _settled_job(job), now=BEGIN)
    _settle_events(store)
    store.close()
    ledger = Ledger(host.paths.accounts)
    with ledger.write():
        ledger.add_samples(JobSample(job=job, usage=_USAGE) for job in jobs if job % 3 == 1)
    ledger.close()
    host.at(400)


# A start that arrives with its end has the time of the shepherd, whose clock is that of the system.
_START_AT_ITS_LAUNCH = """
UPDATE event SET at = (SELECT at FROM event AS launch
                       WHERE (launch.job, launch.attempt, launch.new) = (event.job, event.attempt, event.old))
WHERE old = ? AND new = ?
"""


def _settle_events(store: Store) -> None:
    """Set the times of steps. A store only adds steps, and its checksums know no write past it."""
    with store.write():
        store._db.execute("DELETE FROM event WHERE old = new")
        store._db.execute("UPDATE event SET at = ? + 7 * job WHERE at > ?", (BEGIN, BEGIN + 3600))
        store._db.execute(_START_AT_ITS_LAUNCH, (JobState.STARTING.word, JobState.RUNNING.word))
        for job, started in _RESTARTED.items():
            store._db.execute("UPDATE event SET at = ? WHERE job = ?", (BEGIN + started, job))


def move(host: GoldenHost) -> None:
    """Let ended jobs move at once, and wait until they are in the accounts alone."""
    (host.path / "fgsched.toml").write_text(CONFIG.replace("1-00:00:00", "0"))
    host.at(500)
    ended = {job["id"] for job in host.history() if job["ended_at"]}
    for _ in attempts():
        host.run("fgq", "-h")
        left = ended & _in_queue(host.paths.queue)
        if left <= _STAYING:
            return
    raise AssertionError(f"jobs {left} do not move")


def _in_queue(path: Path) -> set[int]:
    """Return the ids in a queue that is in use, from a copy of its files."""
    with tempfile.TemporaryDirectory() as place:
        for file in path.parent.glob("queue.db*"):
            shutil.copy(file, place)
        with closing(sqlite3.connect(f"{place}/queue.db")) as queue:
            return {number for (number,) in queue.execute("SELECT id FROM job")}


_STAYING = {2, 18}  # a job depends on it; a task of an array that is not over
_RESTARTED = {11: 300}  # seconds after the beginning
_USAGE = JobUsage(
    sampled=60.0,
    charged=30.0,
    active=20.0,
    held=6.0,
    empty=4.0,
    used=12.5,
    memory=60.0 * 2**31,
    peak=3 << 30,
    with_process=55.0,
    busy=40.0,
    longest_idle=5.0,
    first_process=2.0,
    energy=9000.0,
    read=5 << 20,
    written=7 << 20,
    neighbours=((12, 30.0),),
)


def _settled_job(job: Job) -> Job:
    """Return a started job with times and use that follow from its id."""
    started = BEGIN + _RESTARTED[job.id] if job.id in _RESTARTED else job.submitted_at + 1
    if job.id in _RESTARTED:  # the clock may be set before or after the end of the first attempt
        job = replace(job, opened_at=float(started))
    if job.ended_at is None:
        return replace(
            job,
            started_at=started,
            suspended_at=job.suspended_at and started + 10,
            charged_before=job.restarts * 10.0,
        )
    ended = job.ended and replace(
        job.ended,
        cpu_seconds=1.5 * job.id,
        max_rss=(40 + job.id) << 20,
        gpu_peak=(job.id % 4) << 30,
        disk_read=job.id << 20,
        disk_written=job.id << 21,
        refusals=job.id % 2,
    )
    return replace(job, started_at=started, ended_at=started + 7 * job.id, ended=ended)


# -- what commands print --------------------------------------------------------------------------


_WIDTH = 200  # of a column of a table: no value is cut, however long the path of the home is
CORPUS = Path(__file__).with_name("data") / "golden"
_TABLES = {  # how a table of all columns is asked for, and whether its names come by fgq's -O or fgacct's -o
    "fgq": ("fgq", "-t", "all", "-r", "-S", "i", "-h", "-O"),
    "squeue": ("squeue", "-t", "all", "-r", "-S", "i", "-h", "-O"),
    "fgacct": ("fgacct", "-a", "-S", "2026-01-05", "-n", "-P", "-o"),
    "sacct": ("sacct", "-a", "-S", "2026-01-05", "-n", "-P", "-o"),
}
_TEXTS = {
    "fgq-default": ("fgq",),
    "fgq-long": ("fgq", "-l"),
    "fgq-start": ("fgq", "--start"),
    "fgq-why": ("fgq", "--why"),
    "fgq-letters": (
        "fgq",
        "-h",
        "-r",
        "-S",
        "i",
        "-o",
        "|".join(f"%{letter}" for letter in "aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOpPqQrRsStTuUvVwWxXyYzZ"),
    ),
    "squeue-default": ("squeue",),
    "squeue-long": ("squeue", "-l"),
    "squeue-steps": ("squeue", "-s"),
    "fgacct-default": ("fgacct", "-a", "-S", "2026-01-05"),
    "fgacct-long": ("fgacct", "-a", "-l", "-S", "2026-01-05"),
    "sacct-default": ("sacct", "-a", "-S", "2026-01-05"),
    "sacct-long": ("sacct", "-a", "-l", "-S", "2026-01-05"),
    "scontrol-jobs": ("scontrol", "show", "job"),
    "scontrol-details": ("scontrol", "-d", "show", "job"),
    "scontrol-lines": ("scontrol", "-o", "show", "job"),
    "scontrol-host": ("scontrol", "show", "node"),
    "scontrol-partitions": ("scontrol", "show", "partition"),
    "fgctl-gpus": ("fgctl", "show", "gpu"),
    "fgctl-partitions": ("fgctl", "show", "partition"),
    "sinfo": ("sinfo",),
    "fginfo": ("fginfo",),
    "fgeff": ("fgeff", "1-33"),
    "sprio": ("sprio", "-l"),
    "fgprio": ("fgprio",),
    "fgstat": ("fgstat",),
    "fgreport-status": ("fgreport", "status"),
}
_REPORTS = {  # of the accounts: of ended jobs that are no longer in the queue
    "fgreport-top": ("fgreport", "top", "--since", "2026-01-05"),
    "fgreport-failures": ("fgreport", "failures", "--since", "2026-01-05"),
    "fgreport-waits": ("fgreport", "waits", "--since", "2026-01-05"),
}
_IN_A_JOB = {"variables": ("fgrun", "sh", "-c", "env -u FAKE_NAME | grep HOST | sort")}
_DOCUMENTS = {
    "fgq-json": ("fgq", "-t", "all", "-r", "--json"),
    "fgacct-json": ("fgacct", "-a", "-S", "2026-01-05", "--json"),
    "squeue-json": ("squeue", "-t", "all", "--json"),
    "sacct-json": ("sacct", "-a", "-S", "2026-01-05", "--json"),
    "fgctl-json": ("fgctl", "show", "--json", "job"),
    "fginfo-json": ("fginfo", "--json"),
    "fgstat-json": ("fgstat", "-a", "--json"),
    "fgtop-json": ("fgtop", "--json"),
    "fgeff-json": ("fgeff", "1-31", "--json"),
}
_VARIED_JOBS = (1, 2, 5, 11, 12, 16, 18, 19, 21)  # one of each kind of end, an array and its tasks
_BY_JOB = (  # commands that take one job, and the jobs for which they are run
    (("fgctl", "show", "job"), range(1, 32)),
    (("fgctl", "show", "-o", "job"), _VARIED_JOBS),
    (("seff",), _VARIED_JOBS),
    (("sstat", "-a", "-P", "-j"), _VARIED_JOBS),
)


def outputs(host: GoldenHost, wanted: Collection[str] = ()) -> dict[str, str]:
    """Return what each command prints, by the name of its file; `wanted` names some of them."""
    makers: dict[str, Callable[[], str]] = {
        **{name: partial(_table, host, name) for name in _TABLES},
        **{name: partial(_run, host, words) for name, words in _TEXTS.items()},
        **{name: partial(_document, host, words) for name, words in _DOCUMENTS.items()},
        **{"-".join(words): partial(_of_each_job, host, words, jobs) for words, jobs in _BY_JOB},
    }
    return {name: _settled(host, make()) for name, make in makers.items() if not wanted or name in wanted}


def _document(host: GoldenHost, words: Sequence[str]) -> str:
    """Return a JSON document without its `meta`."""
    document = json.loads(_run(host, words))
    del document["meta"]
    for job in document.get("jobs", []):
        if "rss" in job:  # of processes that run
            job |= dict.fromkeys(("cpu_seconds", "rss", "disk_read", "disk_written"), "FIGURE")
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _of_each_job(host: GoldenHost, words: Sequence[str], jobs: Sequence[int]) -> str:
    """Return what a command prints of each of these jobs."""
    return "\n".join(f"== {job}\n{_run(host, (*words, str(job)))}" for job in jobs)


def moved(host: GoldenHost) -> dict[str, str]:
    """Return what commands print of ended jobs that are no longer in the queue."""
    move(host)
    texts = outputs(host, _OF_MOVED)
    host.at(4000)  # reports are of whole hours
    texts |= {name: _settled(host, _run(host, words)) for name, words in (_REPORTS | _IN_A_JOB).items()}
    return {f"moved-{name}": text for name, text in texts.items()}


_OF_MOVED = ("fgacct", "sacct", "fgacct-json", "sacct-json", "fgctl-show-job", "seff")


def _run(host: GoldenHost, words: Sequence[str]) -> str:
    """Return all that a command prints, and its exit status unless it is 0."""
    name, *rest = words
    done = host.run(name, *rest)
    end = f"exit {done.status}\n" if done.status else ""
    return f"{done.out}{done.err}{end}"


def _table(host: GoldenHost, name: str) -> str:
    """Return a table with one line for each column of each job."""
    words, columns = _TABLES[name], (CORPUS / f"{name}.columns").read_text().split()
    if words[-1] == "-O":
        text = _run(host, (*words, ",".join(f"{column}:{_WIDTH}" for column in columns)))
        rows = [
            [line[at : at + _WIDTH].rstrip() for at in range(0, _WIDTH * len(columns), _WIDTH)]
            for line in text.splitlines()
        ]
    else:
        rows = [line.split("|") for line in _run(host, (*words, ",".join(columns))).splitlines()]
    return "\n".join(
        f"== {number}\n" + "".join(f"{name} = {value}\n" for name, value in zip(columns, row, strict=True))
        for number, row in enumerate(rows)
    )


def _settled(host: GoldenHost, text: str) -> str:
    """Replace what differs between two runs: paths, limits and figures of processes."""
    for value, word in (
        (str(host.paths.run.resolve()), "RUN"),
        (str(host.path), "HOME"),
        (str(Path(sys.executable)), "PYTHON"),
    ):
        text = text.replace(value, word)
    for pattern, word in _VARYING:
        text = re.sub(pattern, word, text)
    return text


_VARYING = (
    (r'(?s)"rlimits": \[.*?\]\s*\]', '"rlimits": "LIMITS"'),
    (r"(?m)^(\S+\.batch\|+)\S+$", r"\1FIGURES"),  # of a process that runs
    (r"(?m)(  00:00:00  )\d+M(   [\d:]+)$", r"\1RSS\2"),  # of fgstat: memory of a shell
    (r"CPULoad=\S+", "CPULoad=LOAD"),
    (r"(?m)^   OS=.* $", "   OS=SYSTEM "),
    (r"(BootTime|SlurmdStartTime|LastBusyTime)=\S+", r"\1=TIME"),
)


@contextmanager
def golden(place: Path) -> Iterator[GoldenHost]:
    """Yield the host after all has happened."""
    host = GoldenHost(place / "home", devices="sim:4x16G:H100", config=CONFIG)
    host.build(place)
    try:
        play(host)
        settle(host)
        yield host
    finally:
        host.leave()


def main() -> int:
    """Record the corpus anew."""
    with tempfile.TemporaryDirectory() as place, golden(Path(place)) as host:
        for name, text in (outputs(host) | moved(host)).items():
            (CORPUS / f"{name}.txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
