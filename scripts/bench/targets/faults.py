"""T5: calls of the operating system that fail, in the controller and in the spawner and its shepherds.

In the controller a preloaded layer fails calls on files of the state and run directories, and calls that
make processes and sockets. The spawner is a static program: strace fails its calls. After each fault the
controller must accept jobs again. Each acknowledged job must run once and end with its exit code, or be
a failed launch.
"""

import errno
import os
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import bench

from targets.layer import CALLS, Layer, layered
from targets.rows import Row

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR, errno.ENOMEM)
NATIVE = (
    *("openat", "write", "fsync", "rename", "symlink", "unlink", "unlinkat", "fork", "clone", "mkdir"),
    *("sendto", "recvmsg", "ftruncate", "mmap", "dup2", "chdir", "setsid", "prctl", "execve", "wait4"),
)
CONFIG = "[host]\ncpus = 64\n[jobs]\nmax_requeue = 1000\n"
SCRIPT = "#!/bin/sh\necho $FG_JOB_ID >>{witness}\nexit {code}\n"
RETRIED = {"Unreachable", "ConnectionError", "StorageError", "TimedOut", "OurFault", "Refused", "BadUsage"}
FREQUENT, RARE = 60, 12  # calls after which a fault comes at most
PATIENCE = 60  # seconds for a controller without faults


def run(target: str, seed: int, size: int) -> list[Row]:
    row = Row(target, seed, 0)
    luck = random.Random(seed)
    of_controller = round(size * 0.6)
    in_controller(row, luck, of_controller)
    if shutil.which("strace"):
        in_spawner(row, luck, size - of_controller)
    return [row]


# -- the controller -------------------------------------------------------------------------------


class Sweep:
    """One home whose controllers meet faults; everything that was acknowledged, and its expected end."""

    def __init__(self, it: bench.Home, layer: Layer, luck: random.Random) -> None:
        self.it, self.layer, self.luck = it, layer, luck
        self.expected: dict[int, int] = {}
        self.findings: list[str] = []
        self.errors: Counter[str] = Counter()
        self.worst = 0.0

    def fault(self) -> bool:
        """Let calls fail while jobs are submitted; return whether the fault was met."""
        call, error = self.luck.choice(list(CALLS)), self.luck.choice(ERRORS)
        is_frequent = call in ("write", "sync", "socket")
        skip = self.luck.randrange(FREQUENT if is_frequent else RARE)
        times = self.luck.choice((1, 1, 3, 1000))
        is_start = self.luck.random() < (0.3 if is_frequent else 0.8)  # where most of the others are made
        told = f"{call} {errno.errorcode[error]} after {skip}, {times} times{', from a start' * is_start}"
        if is_start:
            self.kill()
        hits = self.layer.control.hits
        self.layer.fail(call, error, skip=skip, times=times)
        codes = [self.luck.randrange(7) for _ in range(self.luck.choice((1, 2, 4)))]
        request = self.request(codes)
        answer = self.tried(request, 1.5)
        if answer:
            self.wait(answer, 1.0)
        self.layer.heal()
        healed = time.monotonic()
        answer = answer or self.tried(request, PATIENCE)
        if not answer:
            self.findings.append(f"{told}: no submission is accepted afterwards")
            return True
        ids = range(answer["first"], answer["first"] + answer["count"])
        self.expected.update(zip(ids, codes, strict=True))
        if not self.wait(answer, PATIENCE):
            self.findings.append(f"{told}: jobs from {answer['first']} on do not end")
        self.worst = max(self.worst, (time.monotonic() - healed) * 1000)
        return self.layer.control.hits > hits

    def kill(self) -> None:
        with suppress(OSError, ValueError):
            os.kill(self.it.pid, signal.SIGKILL)

    def request(self, codes: list[int]) -> dict[str, Any]:
        request = bench.submission(self.it, "", 1)
        request["requests"][0]["output"] = "/dev/null"  # type: ignore[index]
        scripts = [SCRIPT.format(witness=self.it.path / "witness", code=code) for code in codes]
        jobs = [[0, place, 0, False] for place in range(len(codes))]
        return request | {"key": secrets.token_hex(16), "scripts": scripts, "jobs": jobs}

    def tried(self, request: dict[str, Any], seconds: float) -> dict[str, int]:
        """Repeat a submission until it is acknowledged or the time is up."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                with self.it.client() as client:
                    return client.ask("submit", patience=5, **request)
            except Exception as error:
                if type(error).__name__ not in RETRIED:
                    raise
                self.errors[type(error).__name__] += 1
                time.sleep(0.02)
        return {}

    def wait(self, answer: dict[str, int], seconds: float) -> bool:
        ids = list(range(answer["first"], answer["first"] + answer["count"]))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                with self.it.client() as client:
                    client.ask("wait", ids=ids, patience=max(0.1, until - time.monotonic()))
                    return True
            except Exception as error:
                if type(error).__name__ not in RETRIED:
                    raise
                time.sleep(0.02)
        return False


def in_controller(row: Row, luck: random.Random, size: int) -> None:
    with layered(program="fgsched.controller") as layer, bench.home(config=CONFIG) as it:
        (it.path / "witness").touch()
        sweep, tries = Sweep(it, layer, luck), 0
        while row.done < size and tries < 3 * size:
            tries += 1
            row.done += sweep.fault()
        sweep.kill()
        judge(sweep, row)
        log = it.paths.log.read_text(errors="replace")
    row.findings += sweep.findings
    row.worst = sweep.worst
    row.notes |= {
        "faults that no call met": tries - row.done,
        "submissions refused or repeated meanwhile": sweep.errors.total(),
        "answers of an internal error": sweep.errors["OurFault"],
        "tracebacks in the log": log.count("Traceback"),
    }


FIELDS = ["id", "state", "reason", "exit_code", "lost", "detail"]


def judge(sweep: Sweep, row: Row) -> None:
    """Compare acknowledged jobs, jobs that ran, and the queue."""
    found: dict[int, dict[str, Any]] = {}
    after: int | None = 0
    with sweep.it.client() as client:
        while after is not None:
            page = client.ask("history", since=0, after=after, fields=FIELDS)
            found |= {job["id"]: job for job in page["jobs"]}
            after = page.get("next")
        whole = client.ask("check", patience=120)["queue"]
    ran = Counter(map(int, (sweep.it.path / "witness").read_text().split()))
    row.jobs += len(sweep.expected)
    row.lost += len(sweep.expected.keys() - found.keys())
    row.twice += sum(count > 1 for count in ran.values())
    failed = {job for job, one in found.items() if one.get("state") == "FAILED" and job not in ran}
    row.notes["launches that failed"] = len(failed)
    for job, code in sweep.expected.items():
        end = found.get(job, {})
        is_right = (end.get("state"), end.get("exit_code", 0)) == ("FAILED" if code else "COMPLETED", code)
        if job in found and not is_right and job not in failed:
            row.wrong += 1
            row.findings.append(f"job {job} (code {code}, ran {ran[job]} times): {end}")
        row.never += job in found and job not in ran and job not in failed
    row.findings += [] if whole == "ok" else [f"integrity: {whole}"]


# -- the spawner and its shepherds ----------------------------------------------------------------


def in_spawner(row: Row, luck: random.Random, size: int) -> None:
    for number in range(size):
        call, error, when = luck.choice(NATIVE), luck.choice(ERRORS), luck.randrange(1, 13)
        name = errno.errorcode[error]
        told = f"spawner: {call} {name} at the {when}th call"
        place = Path(tempfile.mkdtemp(prefix="fgfault-"))
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={name}:when={when}")
        try:
            problem = launch_under(place, ("strace", "-f", "-qq", "-o", "/dev/null", *inject), row)
            row.findings += [f"{told}: {problem}"] if problem else []
        finally:
            shutil.rmtree(place, ignore_errors=True)
        row.done += 1
        row.notes["faults in spawner and shepherds"] = number + 1


def launch_under(place: Path, before: tuple[str, ...], row: Row) -> str:
    """Launch one job by a spawner under strace; return the fault of its end."""
    from spawner_driver import Result, Spawner

    witness, link = place / "witness", place / "run" / "result" / "1.1"
    spawner = Spawner(place / "run", before=before)
    said = -1
    try:
        job = spawner.launch(
            f"#!/bin/sh\necho ran >>{witness} && exit 5\nexit 9\n", env={"PATH": os.environ["PATH"]}
        )
        said = job.answer.errno
    except (AssertionError, OSError):
        row.notes["spawners that ended"] = row.notes.get("spawners that ended", 0) + 1
    spawner.socket.close()
    try:
        spawner.process.communicate(timeout=40)  # it waits for its shepherds
    except Exception:
        spawner.process.kill()
        spawner.process.communicate()
        return "it does not end"
    ran = len(witness.read_text().split()) if witness.exists() else 0
    row.jobs += 1
    row.twice += ran > 1
    if not link.is_symlink():
        claimed = (place / "run" / "claim" / "1.1").is_symlink()
        told = f"it ran, and there is no result (claim: {claimed}, answer {said})"
        return told if ran and said == 0 else ""
    result = Result.read(link)
    # strace fails calls of the job, too: it may end with another status of its own, but never with success
    is_wrong = result.cause == "launch" if ran else result.exit_code == 5 and result.cause == "exit"
    if is_wrong or (result.cause == "exit" and result.exit_code == 0):
        row.wrong += 1
        return f"it ran {ran} times and ended as {result.cause} {result.exit_code}, errno {result.errno}"
    return ""
