"""The checks of `fgsched doctor`: each is OK, a warning, or a failure with a remedy."""

import os
import pwd
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fgsched import gpus, protocol
from fgsched.accounting import guard
from fgsched.client import Client, NotRunning
from fgsched.config import contradictions
from fgsched.config.contradictions import doubts
from fgsched.config.load import Config, load
from fgsched.domain.errors import FgschedError, StorageError
from fgsched.domain.job import WHOLE, Gpu, GpuState
from fgsched.domain.units import format_mebibytes, format_share
from fgsched.gpus import mig, vendors
from fgsched.protocol import About, InternalErrors, Ping
from fgsched.store import Store, files
from fgsched.store.connection import may_lose_commits, version
from fgsched.store.recovering import Recovered, recover
from fgsched.system import cgroups, generations, logins, mounts, ownhost
from fgsched.system.disk import has_used_up_quota
from fgsched.system.paths import Paths, taken
from fgsched.system.runplace import file_system, open_to_others
from fgshim import library, spawner

OK, WARN, FAIL = "OK", "WARN", "FAIL"
_DEADLINE = 20  # seconds for a program that takes milliseconds
_OLDEST = (3, 11)
_LONG = 3600.0  # seconds that a mail may wait
_SPACE = 100 << 20  # bytes; with less there is a warning
_NO_SPACE = 1 << 20  # bytes that a controller needs to start


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    check: str
    verdict: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:<5}{self.check:<12}{self.text}" + (
            f"\n{'':17}{self.remedy}" if self.remedy else ""
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """The report of the running controller, or None."""

    about: About | None  # None: no controller runs
    queue: str
    open_jobs: frozenset[int]
    why: str = ""  # why no controller can be asked
    remedy: str = ""
    gpus: tuple[Gpu, ...] = ()  # of the controller


def examine(paths: Paths) -> list[CheckResult]:
    """Run all checks in order. A check that raises an exception is reported as a failure."""
    findings = [*installation(), *_settings(paths)]
    try:
        seen = _ask(paths)
    except FgschedError as error:
        return [*findings, CheckResult("controller", FAIL, error.cause, error.remedy)]
    for check in _CHECKS:
        try:
            findings.append(check(paths, seen))
        except (FgschedError, OSError) as error:
            cause = error.cause if isinstance(error, FgschedError) else str(error)
            findings.append(
                CheckResult(
                    check.__name__.strip("_").replace("_", " "), FAIL, cause, getattr(error, "remedy", "")
                )
            )
    return findings


def installation() -> list[CheckResult]:
    """Check the installed files, without a controller."""
    return [_python(), _hook(), _spawner()]


def _ask(paths: Paths) -> _Seen:
    with Client(paths, may_start=False, is_prompt=True) as client:
        try:
            about = client.call(Ping())
        except NotRunning as error:
            if client.was_there:
                raise
            return _Seen(None, "", frozenset(), error.cause, error.remedy)
        jobs = client.call(protocol.ListQueue(fields=("id",))).jobs
        queue, open_jobs = client.call(protocol.CheckQueue()).queue, frozenset(job.id for job in jobs)
        host_gpus = tuple(gpu.gpu for gpu in client.call(protocol.ListGpus()).gpus)
        return _Seen(about, queue, open_jobs, gpus=host_gpus)


# -- installation -----------------------------------------------------------------------------------


def _python() -> CheckResult:
    text = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < _OLDEST:
        return CheckResult("python", FAIL, text, "fgsched needs Python 3.11 or later.")
    return CheckResult("python", OK, text)


def _hook() -> CheckResult:
    """Preload the hook and check the dynamic linker's messages."""
    path = library()
    if not path.exists():
        return CheckResult("hook", FAIL, f"{path} is missing", "Install fgsched again, which builds it.")
    done = subprocess.run(
        ["/bin/sh", "-c", ":"],
        env={"LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
    )
    if done.returncode or done.stderr:
        return CheckResult("hook", FAIL, f"{path}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return CheckResult("hook", OK, f"{path} can be preloaded")


def _spawner() -> CheckResult:
    """Start the spawner; it ends when its socket is closed."""
    path = spawner()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            child = subprocess.Popen(
                [path, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd="/", env={}
            )
        except OSError as error:
            return CheckResult("spawner", FAIL, f"{path}: {error.strerror}", "Install fgsched again.")
        theirs.close()
        ours.close()
        try:
            status = child.wait(_DEADLINE)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
    return CheckResult(
        "spawner", FAIL if status else OK, f"{path} " + (f"exits with {status}" if status else "runs")
    )


def _settings(paths: Paths) -> Iterator[CheckResult]:
    try:
        config = load(paths)
    except FgschedError as error:
        yield CheckResult("settings", FAIL, error.cause, error.remedy)
        return
    note = "" if paths.config_file.exists() else " does not exist: the defaults apply"
    yield CheckResult("settings", OK, f"{paths.config_file}{note}")
    yield _host_size(config)


def _host_size(config: Config) -> CheckResult:
    """Warn if the configuration names more CPUs or memory than the host has."""
    warnings = doubts(config, contradictions.this_host())
    if warnings:
        return CheckResult("host size", WARN, "; ".join(warnings), contradictions.REMEDY)
    return CheckResult("host size", OK, "the host has the CPUs and the memory of the settings")


# -- the running controller -------------------------------------------------------------------------


def _controller(paths: Paths, seen: _Seen) -> CheckResult:
    if not seen.about:
        if paths.mode == "system":
            return CheckResult("controller", WARN, seen.why, seen.remedy)
        return CheckResult("controller", OK, f"{seen.why}; your next command starts one")
    return CheckResult("controller", OK, f"pid {seen.about.pid}, {seen.about.mode} mode, answers")


def _host(paths: Paths, seen: _Seen) -> CheckResult:
    """Check that the queue belongs to this host, and that its file system has locks."""
    here, owner = ownhost.this_host(), ownhost.owner_of(paths.state)
    kind = file_system(paths.state)
    name = f"{here.name}, {f'machine {here.machine[:8]}' if here.machine else 'without a machine id'}"
    if owner is None:
        return CheckResult("host", OK, f"{name}; the queue belongs to no host yet ({kind})")
    ownhost.refuse_another_host(paths.state)
    return CheckResult("host", OK, f"the queue belongs to this host ({name}; {paths.state} is on {kind})")


def _run_directory(paths: Paths, seen: _Seen) -> CheckResult:
    paths.check(os.geteuid())
    if not paths.run.exists():
        return CheckResult("run dir", OK, f"{paths.run} does not exist yet")
    link = f"{paths.run_link} -> " if paths.run_link else ""
    return CheckResult("run dir", OK, f"{link}{paths.run}")


def _queue(paths: Paths, seen: _Seen) -> CheckResult:
    """Check the queue file; take the controller's lock meanwhile if no controller runs."""
    if seen.about and seen.about.queue_note:
        return CheckResult(
            "queue", FAIL, seen.about.queue_note, "Free some space on its disk. No job is lost."
        )
    if seen.about:
        answer = seen.queue
    elif not os.access(paths.state, os.X_OK) and paths.state.exists():
        return CheckResult("queue", OK, "only root can read it")
    else:
        paths.refuse_lost_state()
        if not paths.queue.exists():
            return CheckResult("queue", OK, f"{paths.queue} does not exist yet")
        answer = _checked(paths)
    if answer != "ok":
        remedy = "Stop the controller, and recover the readable rows with: fgsched doctor --recover."
        return CheckResult("queue", FAIL, f"{paths.queue}: {answer}", remedy)
    return CheckResult("queue", OK, f"{paths.queue} is intact")


def _checked(paths: Paths) -> str:
    """Return "ok", or what is damaged in the queue of a controller that is not running."""
    from fgsched.store import Store

    with taken(paths):
        store = Store(paths.queue)
        answer = store.check()
        store.close()
    return answer


def _accounts(paths: Paths, seen: _Seen) -> CheckResult:
    """Check that the accounts are there and can be written."""
    if seen.about and seen.about.accounts_note:
        return CheckResult("accounts", WARN, seen.about.accounts_note)
    if paths.state.exists() and not os.access(paths.state, os.X_OK):
        return CheckResult("accounts", OK, "only root can read them")
    if not paths.accounts.exists():
        guard.refuse_missing(paths.accounts)
        return CheckResult("accounts", OK, f"{paths.accounts} does not exist yet")
    if why := guard.damage(paths.accounts):
        return CheckResult("accounts", FAIL, why, guard.REMEDY)
    return CheckResult("accounts", OK, f"{paths.accounts} are intact")


def _mails(paths: Paths, seen: _Seen) -> CheckResult:
    """Warn if mails wait for long: the mail server does not answer, or their disk is full."""
    if paths.state.exists() and not os.access(paths.state, os.X_OK):
        return CheckResult("mails", OK, "only root can read their queue")
    folders = [place for place in (paths.mail / "new", paths.mail / "reports/new") if place.is_dir()]
    since = [entry.stat().st_mtime for place in folders for entry in os.scandir(place)]
    if not since or time.time() - min(since) < _LONG:
        return CheckResult("mails", OK, f"{len(since)} mails wait" if since else "no mail waits")
    text = f"{len(since)} mails wait, the first since {time.strftime('%F %H:%M', time.localtime(min(since)))}"
    return CheckResult("mails", WARN, text, f"{paths.log} says why. They are tried again.")


def _private(paths: Paths, seen: _Seen) -> CheckResult:
    """Warn if other users can read files of the state."""
    exposed = open_to_others(paths)
    if not exposed:
        return CheckResult("privacy", OK, "no other user can read the queue, the accounts or the logs")
    text = f"other users can read {', '.join(map(str, exposed))}"
    return CheckResult("privacy", WARN, text, "fgsched restart makes them private.")


def _space(paths: Paths, seen: _Seen) -> CheckResult:
    """Check the space for the queue: on a full disk nothing is submitted, and no controller starts."""
    place = next(candidate for candidate in (paths.state, *paths.state.parents) if candidate.exists())
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    text = f"{free >> 20}M are left for {paths.state}"
    if space.f_files and not space.f_favail:
        free, text = 0, f"no new file can be made in {paths.state}: its disk has no inode left"
    if has_used_up_quota(place):
        free, text = 0, f"the quota for {place} is used up"
    if free >= _SPACE:
        return CheckResult("disk", OK, text)
    remedy = "Free some: on a full disk nothing is submitted, and a stopped controller does not start."
    return CheckResult("disk", FAIL if free < _NO_SPACE else WARN, text, remedy)


def _sqlite(paths: Paths, seen: _Seen) -> CheckResult:
    text = ".".join(str(part) for part in version())
    if not may_lose_commits(version()):
        return CheckResult("sqlite", OK, text)
    why = "can lose commits when two connections write; fgsched opens only one"
    remedy = "Do not open the queue with another program; SQLite 3.51.3 has the fix."
    return CheckResult("sqlite", WARN, f"{text} {why}", remedy)


def _logout(paths: Paths, seen: _Seen) -> CheckResult:
    """Warn if the end of a login ends the user's controller and its jobs."""
    if seen.about is None or paths.mode == "system":
        return CheckResult("logout", OK, "no controller of a user runs here")
    if why := logins.reason_for(seen.about.pid, _user()):
        return CheckResult("logout", WARN, why, logins.surviving_start(_user()))
    return CheckResult("logout", OK, "a logout ends neither the controller nor its jobs")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _cgroup(paths: Paths, seen: _Seen) -> CheckResult:
    if seen.about:
        held, note = seen.about.host_memory_held_by, seen.about.host_memory_note
    else:
        memory_cgroup = cgroups.probe()
        held, note = (f"cgroup {memory_cgroup.kind}" if memory_cgroup.kind else ""), memory_cgroup.note
    if held:
        return CheckResult("cgroup", OK, f"the host memory of jobs is limited by {held}")
    return CheckResult("cgroup", WARN, f"the host memory of jobs is counted but not enforced: {note}")


def _run_space(paths: Paths, seen: _Seen) -> CheckResult:
    """Check whether one user can fill the run directory."""
    if paths.mode == "user":
        return CheckResult("run space", OK, "all jobs belong to one user")
    if not seen.about:
        return CheckResult("run space", OK, "the controller mounts it when jobs start")
    if note := seen.about.run_space_note:
        return CheckResult("run space", WARN, f"the jobs of one user can fill the run directory: {note}")
    size = format_mebibytes(seen.about.run_space)
    return CheckResult("run space", OK, f"each user has {size} of the run directory")


def _processes_of_users(paths: Paths, seen: _Seen) -> CheckResult:
    """Check whether one user's jobs can use up the processes of the host."""
    if paths.mode == "user" or not seen.about:
        return CheckResult("pids", OK, "the user's own limits apply")
    if not seen.about.pids_held:
        return CheckResult("pids", WARN, f"only RLIMIT_NPROC limits a fork bomb: {seen.about.pids_note}")
    return CheckResult("pids", OK, "the processes of each user's jobs are limited by a cgroup")


def _preload(paths: Paths, seen: _Seen) -> CheckResult:
    """Report how jobs load the hook, and whether they can open other GPUs."""
    if seen.about:
        word, note, others = seen.about.preload, seen.about.preload_note, seen.about.other_gpus
    else:
        config = _config(paths)
        with tempfile.TemporaryDirectory(prefix="fg-") as run:
            mount_plan = mounts.find(config.preload, Path(run), gpus.discover(config, os.environ).nodes)
        word, note, others = mount_plan.word, mount_plan.note, mount_plan.others
    if word == "namespace":
        return CheckResult(
            "preload", OK, f"jobs keep the hook in {mounts.PRELOAD}; their other GPUs are {others}"
        )
    return CheckResult("preload", WARN, f"programs that clear their environment lose the hook: {note}")


def _driver(paths: Paths, seen: _Seen) -> CheckResult:
    if seen.about:
        count, source, note = seen.about.gpus, seen.about.source, seen.about.note
    else:
        inventory = gpus.discover(_config(paths), os.environ)
        count, source, note = len(inventory.gpus), inventory.source, inventory.note
    visible = seen.about.visible if seen.about else os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = f"; limited by CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
    plural = "" if count == 1 else "s"
    text = f"{count} GPU{plural} from {source}" + (f": {note}" if note else "") + limited
    return CheckResult("GPUs", OK if count and source != "none" else WARN, text)


def _processes(paths: Paths, seen: _Seen) -> CheckResult:
    """Check whether the pids that the driver reports exist on this host."""
    pids = seen.about.unresolved_pids if seen.about else []
    if not pids:
        return CheckResult("processes", OK, "every process on a GPU was found on this host")
    return CheckResult(
        "processes",
        WARN,
        f"the driver lists pids that do not exist in this PID namespace: {', '.join(map(str, pids))}",
        "In a container, run the controller in the PID namespace of the host (--pid=host). Otherwise the end "
        "of every job takes clean_timeout and makes its GPU suspect.",
    )


def _enforcement(paths: Paths, seen: _Seen) -> CheckResult:
    """Report the result of the controller's test of the hook, if a job has caused one."""
    if not seen.about or seen.about.source != "nvml":
        return CheckResult("enforcement", OK, _nothing_to_enforce(seen))
    if seen.about.fence:
        text = f"it does not hold: {seen.about.fence}"
        return CheckResult("enforcement", FAIL, text, "Jobs with GPUs are refused.")
    text = f"the share of jobs is enforced by {seen.about.enforce}"
    return CheckResult("enforcement", OK, f"{text}; fgsched doctor --enforcement tests it")


def _mps(paths: Paths, seen: _Seen) -> CheckResult:
    """Check whether jobs can use the Multi-Process Service where the site wants it."""
    config = _config(paths)
    if not config.has_mps:
        return CheckResult("MPS", OK, "no GPU has MPS")
    service = vendors.of_host().facts.service
    if mps_program := config.mps_program(service):
        return CheckResult("MPS", OK, f"one daemon for each user and GPU, by {mps_program}")
    program = config.mps_control or service.program
    text = f"{program} is not installed: the hook paces jobs instead"
    return CheckResult("MPS", WARN, text, "Install NVIDIA's package with it, or set mps_control in [gpus].")


def _oversubscribed(paths: Paths, seen: _Seen) -> CheckResult:
    """Warn if jobs may hold more of a GPU than it has."""
    config = _config(paths)
    factors = {"every GPU": config.oversubscribe} | {
        f"GPU {index}": factor for index, factor in sorted(config.oversubscribed_gpus.items())
    }
    factors_text = [f"{name} by {format_share(factor)}" for name, factor in factors.items() if factor > WHOLE]
    if not factors_text:
        return CheckResult("capacity", OK, "jobs hold at most what a GPU has")
    text = f"{', '.join(factors_text)}: the GPU memory of jobs is not guaranteed"
    return CheckResult("capacity", WARN, text, "Without oversubscribe in the settings it is.")


def _unusable(paths: Paths, seen: _Seen) -> CheckResult:
    """Warn of GPUs that take no jobs because of a fault."""
    unusable = [gpu for gpu in seen.gpus if gpu.state in (GpuState.SUSPECT, GpuState.DOWN)]
    if not unusable:
        return CheckResult("GPU states", OK, "no GPU is suspect or down")
    text = "; ".join(
        f"GPU {gpu.index} is {gpu.state.value}: {gpu.note or 'no reason is known'}" for gpu in unusable
    )
    resume = f"fgctl resume gpu={','.join(str(gpu.index) for gpu in unusable)}"
    return CheckResult("GPU states", WARN, text, f"They take no jobs. When the cause has ended: {resume}")


def _mig(paths: Paths, seen: _Seen) -> CheckResult:
    """Report MIG instances, and how an administrator makes them."""
    host_gpus = seen.gpus if seen.about else gpus.discover(_config(paths), os.environ).gpus
    is_well, text, remedy = check_mig(host_gpus)
    return CheckResult("MIG", OK if is_well else WARN, text, remedy)


def _nothing_to_enforce(seen: _Seen) -> str:
    if not seen.about:
        return "the controller tests it when a job with GPUs starts"
    if seen.about.source == "sim":
        return "the GPUs are simulated: jobs use none of them"
    return "this host has no GPU"


def _config(paths: Paths) -> Config:
    try:
        return load(paths)
    except FgschedError:
        return Config()  # the settings check has reported the error


def _leftovers(paths: Paths, seen: _Seen) -> CheckResult:
    """Find claims and results of jobs that have ended or are unknown."""
    claims = [paths.run / name for name in ("claim", "result")]
    if any(folder.exists() and not os.access(folder, os.R_OK) for folder in claims):
        return CheckResult("claims", OK, "only root can read them")
    leftovers = {
        int(entry.name.partition(".")[0])
        for folder in claims
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.name.partition(".")[0].isdigit() and entry.is_symlink() and os.readlink(entry) != "T"
    }
    if leftovers and not seen.about:
        return CheckResult("claims", OK, f"jobs that run or ended without a controller: {len(leftovers)}")
    remaining = sorted(leftovers - seen.open_jobs)
    if remaining:
        return CheckResult(
            "claims", WARN, f"left over: {remaining}", "The next start of the controller removes them."
        )
    return CheckResult("claims", OK, "no claim is left over")


def _internal(paths: Paths, seen: _Seen) -> CheckResult:
    """Report internal errors that the controller survived."""
    errors = seen.about.internal_errors if seen.about else InternalErrors()
    if not errors.count:
        return CheckResult("faults", OK, "no internal error since the start of the controller")
    last = time.strftime("%F %T", time.localtime(errors.at))
    text = f"{errors.count} internal errors; the last at {last}: {errors.last}"
    return CheckResult("faults", WARN, text, f"Report it with the traceback in the log: {paths.log}")


def _earlier(paths: Paths, seen: _Seen) -> CheckResult:
    """Find running jobs of an earlier queue."""
    if seen.about:
        earlier_jobs = [(earlier_job.job, earlier_job.pid) for earlier_job in seen.about.earlier_jobs]
    elif not os.access(paths.run, os.R_OK | os.X_OK):
        earlier_jobs = []
    else:
        queue_marker = files.read_marker(paths.queue)
        own_run = paths.run / queue_marker.queue if queue_marker else paths.run
        jobs = [
            job for place in generations.others(paths.run, own_run) for job in generations.living_jobs(place)
        ]
        earlier_jobs = [(job.job, job.processes[0].pid) for job in jobs]
    if not earlier_jobs:
        return CheckResult("earlier", OK, "no job of an earlier queue runs")
    listed = ", ".join(f"job {job} (pid {pid})" for job, pid in earlier_jobs)
    return CheckResult(
        "earlier",
        WARN,
        f"jobs of an earlier queue run: {listed}",
        "Their GPUs are suspect until they end; fgctl resume gpu=N makes one available at once.",
    )


# -- `fgsched doctor --recover` --------------------------------------------------------------------


_SHOWN = 20  # ids, or ranges of ids, of one kind


def recovered(paths: Paths) -> str:
    """Recover the queue if it is damaged, and return a report."""
    with taken(paths):
        why, now = _why(paths), time.time()
        ending = f"damaged-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
        accounts = guard.recover(paths.accounts, ending)
        if not why:
            return f"{paths.queue} is whole, and has all its commits: nothing was changed.\n{accounts}"
        queue_marker = files.read_marker(paths.queue)
        own_run = paths.run / queue_marker.queue if queue_marker else paths.run
        is_present = paths.run.is_dir()
        report = recover(
            paths.queue,
            started=generations.last_attempts(own_run) if is_present else {},
            beyond=generations.highest_id(paths.run, paths.run / "none") if is_present else 0,
            ending=ending,
            now=now,
        )
    return f"{why}\n\n" + "".join(f"{line}\n" for line in _recovery_text(paths, report)) + accounts


def _why(paths: Paths) -> str:
    """Return the damage of the queue, or "" if it can be opened."""
    try:
        with closing(Store(paths.queue)) as store:
            answer = store.check()
    except StorageError as error:
        return error.cause
    return "" if answer == "ok" else f"{paths.queue} is damaged: {answer}"


def _recovery_text(paths: Paths, report: Recovered) -> list[str]:
    saved = ", ".join(f"{count} {table}" for table, count in sorted(report.rows.items())) or "none"
    lines = [f"Recovered into a new queue, {report.name}. Rows that were saved: {saved}."]
    if report.refused:
        bad = ", ".join(f"{count} {table}" for table, count in sorted(report.refused.items()))
        lines.append(f"Rows that were read and make no sense: {bad}.")
    if report.given_up:
        lines.append(f"Tables of which a part could not be looked at: {', '.join(report.given_up)}.")
    if report.doubtful:
        pages = _ranges(map(str, report.doubtful), len(report.doubtful))
        lines.append(
            f"The write-ahead log was damaged where it has page {pages}: rows there may differ in a few bits."
        )
    if report.commits is None:
        lines.append("How many commits are missing is not known.")
    else:
        lines.append(f"Commits that are missing: {report.commits}.")
    if report.missing_jobs:
        ranges = (f"{low}-{high}" if high > low else str(low) for low, high in report.missing_jobs)
        lines.append(
            f"Ids without a job: {_ranges(ranges, len(report.missing_jobs))}. The next job gets"
            f" {report.last_job + 1}."
        )
    lines += _about_jobs(report)
    folder, ending = report.damaged_files.parent, report.damaged_files.suffix[1:]
    lines.append(f"The damaged files are kept as {folder}/queue.*.{ending}.")
    return lines


def _about_jobs(report: Recovered) -> list[str]:
    """Return what a recovery has done with jobs that waited or ran."""
    lines = []
    if report.held:
        lines.append(
            f"Jobs that waited are held, since they may have run in commits that are missing:"
            f" {_ranges(map(str, report.held), len(report.held))}."
            " fgctl show job tells more; fgctl release lets one start."
        )
    if report.under_way:
        ran = _ranges(map(str, report.under_way), len(report.under_way))
        lines.append(
            f"Running jobs have ended, status unknown: {ran}."
            " Their processes continue; their GPUs are allocated again after these processes have ended."
        )
    if report.without_script:
        without_script = _ranges(map(str, report.without_script), len(report.without_script))
        lines.append(f"Jobs that waited and whose scripts are lost are cancelled: {without_script}.")
    return lines


def _ranges(texts: Iterable[str], count: int) -> str:
    shown = [text for text, _ in zip(texts, range(_SHOWN), strict=False)]
    return ", ".join(shown) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")


_CAPABLE = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b", re.I)


def check_mig(gpus: Sequence[Gpu]) -> tuple[bool, str, str]:
    """Return (whether all is well, the finding, the remedy)."""
    empty = [gpu for gpu in gpus if gpu.state is GpuState.DOWN and gpu.note == mig.NO_INSTANCES]
    if empty:
        listed = ", ".join(str(gpu.index) for gpu in empty)
        return False, f"GPU {listed} is in MIG mode and has no instances", commands(empty[0], is_on=True)
    layouts = _layouts(gpu for gpu in gpus if gpu.mig)
    capable = [gpu for gpu in gpus if gpu.mig is None and _CAPABLE.search(gpu.model)]
    can = f"GPU {', '.join(str(gpu.index) for gpu in capable)} can have MIG instances" if capable else ""
    description = "; ".join([*layouts, *([can] if can else [])])
    return (
        True,
        description or "no GPU has MIG instances",
        commands(capable[0], is_on=False) if capable else "",
    )


def _layouts(instances: Iterable[Gpu]) -> list[str]:
    """Return the instances of each GPU in words."""
    layouts: dict[int, Counter[str]] = {}
    for gpu in instances:
        layouts.setdefault(gpu.mig.gpu if gpu.mig else -1, Counter())[gpu.profile] += 1
    return [
        f"GPU {index} has " + ", ".join(f"{count} × {profile}" for profile, count in profiles.items())
        for index, profiles in layouts.items()
    ]


def commands(gpu: Gpu, *, is_on: bool) -> str:
    """Return what an administrator runs to make instances; fgsched does not."""
    steps = [] if is_on else [f"nvidia-smi -i {gpu.index} -mig 1"]
    steps += [f"nvidia-smi mig -i {gpu.index} -lgip", f"nvidia-smi mig -i {gpu.index} -cgi PROFILE,… -C"]
    return f"As root, without jobs on the card: {'; '.join(steps)}; then restart the controller."


_CHECKS: tuple[Callable[[Paths, _Seen], CheckResult], ...] = (  # in their order
    _controller,
    _host,
    _logout,
    _run_directory,
    _queue,
    _accounts,
    _mails,
    _private,
    _space,
    _sqlite,
    _cgroup,
    _run_space,
    _processes_of_users,
    _preload,
    _driver,
    _processes,
    _enforcement,
    _mps,
    _oversubscribed,
    _mig,
    _unusable,
    _leftovers,
    _earlier,
    _internal,
)
