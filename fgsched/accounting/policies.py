"""Find idle jobs and GPU processes outside of jobs, and choose warnings. Times are in epoch seconds."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from fgsched.accounting.records import OwnerUse, Warned
from fgsched.domain.text import shown
from fgsched.domain.times import MINUTE, format_elapsed
from fgsched.domain.units import format_indices, format_mebibytes

if TYPE_CHECKING:
    from fgsched.protocol import GpuProcessInfo  # the start of a controller imports it later

IDLE, STRANGERS = "idle", "strangers"  # names of the policies in the accounts
NO_PROCESS, MEMORY_ONLY, LATER = "no process", "memory without work", "idle later"
FIRST, SECOND = "warning 1", "warning 2"
_LEAST_PART = 0.9  # of the minutes of a window that must have been sampled
_SHARE = 0.01  # of the charged GPU seconds: a job that used less is idle


class IdleRules(Struct, frozen=True, kw_only=True):
    """The settings of the idle policy."""

    action: str = "off"  # after two warnings: "notify", "requeue" or "cancel"; "off": nothing is done
    window: int = 3600  # seconds in which a job must have computed
    grace: int = 1800  # seconds after the start that do not count
    users: tuple[str, ...] = ()  # whose jobs are exempt
    partitions: tuple[str, ...] = ()  # whose jobs are exempt


class RunningJob(Struct, frozen=True, kw_only=True):
    """A running job with GPUs."""

    id: int
    name: str
    user: str
    partition: str
    started_at: float
    was_busy: bool = False  # it computed at some time since its start


class IdleJob(Struct, frozen=True, kw_only=True):
    """A job that does not use its GPUs, and the next step of the policy."""

    job: RunningJob
    finding: str
    window: int  # seconds in which it did not compute
    charged: float  # GPU seconds in the window
    action: str  # "warning 1", "warning 2", "notify", "requeue", "cancel"; "": none now


def idle_jobs(
    rules: IdleRules,
    jobs: Iterable[RunningJob],
    uses: Iterable[OwnerUse],
    warned: Iterable[Warned],
    now: float,
) -> list[IdleJob]:
    """Return the idle jobs, by id.

    A minute without samples counts neither as idle nor as busy: a job with too few sampled minutes in the
    window is skipped.

    Args:
        rules: the settings.
        jobs: the running jobs.
        uses: minutes of the window.
        warned: the warnings of these jobs.
        now: the end of the window.
    """
    minutes: dict[int, list[OwnerUse]] = {}
    for use in uses:
        minutes.setdefault(use.job, []).append(use)
    before: dict[int, list[Warned]] = {}
    for warning in warned:
        if warning.policy == IDLE and not warning.dry:
            before.setdefault(warning.job, []).append(warning)
    idle = [_judge(rules, job, minutes.get(job.id, []), before.get(job.id, []), now) for job in jobs]
    return sorted(
        (idle_job for idle_job in idle if idle_job is not None), key=lambda idle_job: idle_job.job.id
    )


def _judge(
    rules: IdleRules, job: RunningJob, uses: list[OwnerUse], warned: list[Warned], now: float
) -> IdleJob | None:
    if job.user in rules.users or job.partition in rules.partitions:
        return None
    since = max(now - rules.window, job.started_at + rules.grace)
    uses = [use for use in uses if use.at >= since]
    if len({use.at for use in uses}) < _LEAST_PART * rules.window / MINUTE:
        return None
    charged = sum(use.charged for use in uses)
    if sum(use.used for use in uses) >= _SHARE * charged:
        return None
    return IdleJob(
        job=job,
        finding=_idle_job_text(job, uses),
        window=rules.window,
        charged=charged,
        action=_due(rules, [warning for warning in warned if warning.at >= job.started_at], now),
    )


def _idle_job_text(job: RunningJob, uses: list[OwnerUse]) -> str:
    if job.was_busy:
        return LATER
    return MEMORY_ONLY if any(use.held or use.active for use in uses) else NO_PROCESS


def _due(rules: IdleRules, warned: list[Warned], now: float) -> str:
    """Return the next step; "" if the last step was less than half a window ago, or was the final one."""
    steps = (FIRST, SECOND, rules.action if rules.action != "off" else "notify")
    if len(warned) >= len(steps) or any(warning.at > now - rules.window / 2 for warning in warned):
        return ""
    return steps[len(warned)]


_SAYS = {
    NO_PROCESS: "no process of the job has used its GPUs",
    MEMORY_ONLY: "the job has held GPU memory and has not computed on its GPUs",
    LATER: "the job has computed earlier and no longer uses its GPUs",
}
_FOLLOWS: Mapping[str, str] = {
    **{FIRST: "This is the first warning.", SECOND: "This is the second and last warning."},
    **{"requeue": "The job was requeued.", "cancel": "The job was cancelled.", "notify": "Nothing was done."},
}


def message(idle_job: IdleJob, rules: IdleRules, host: str) -> tuple[str, str]:
    """Return subject and text of the mail to the job's user."""
    minutes = rules.window // MINUTE
    next_step = {"requeue": "After that it is requeued.", "cancel": "After that it is cancelled."}
    follows = _FOLLOWS[idle_job.action]
    if idle_job.action in (FIRST, SECOND):
        follows = " ".join([follows, next_step.get(rules.action, "")]).strip()
    text = (
        f"In the last {minutes} minutes {_SAYS[idle_job.finding]}.\n{follows}\n\n"
        f"  Job        {idle_job.job.id}\n  Name       {idle_job.job.name}\n"
        f"  Charged    {idle_job.charged / 3600:.1f} GPU-hours in that time\n\n"
        f"End it with: fgcancel {idle_job.job.id}\n\nSent by the idle policy of fgsched on {host}.\n"
    )
    return f"fgsched Job_id={idle_job.job.id} Name={idle_job.job.name} Idle GPU, {idle_job.action}", text


# -- processes outside of jobs -------------------------------------------------------------------------

_AGAIN = 86_400  # seconds after which a process is reported again
_LONGEST_FINDING = 255  # characters


class StrangerRules(Struct, frozen=True, kw_only=True):
    """The settings of the policy about GPU processes outside of jobs."""

    action: str = "off"  # "report": a mail to the administrator; "warn": the user of the process gets one too
    grace: int = 600  # seconds on a GPU that do not count
    users: tuple[str, ...] = ()  # whose processes are exempt
    commands: tuple[str, ...] = ()  # patterns of exempt commands
    to: str = "root"  # address of the administrator

    def allows(self, user: str, command: str) -> bool:
        """Tell whether a process of this user and command may use GPUs outside of jobs."""
        return user in self.users or any(map(partial(fnmatchcase, command), self.commands))


class Stranger(Struct, frozen=True, kw_only=True):
    """A GPU process outside of jobs, and the next step of the policy."""

    pid: int
    user: str  # "unknown" if the host does not show it
    command: str  # without arguments
    gpus: tuple[int, ...]  # indices
    memory: int  # bytes on all GPUs
    since: float  # epoch seconds: first seen on a GPU
    action: str  # "report", "warn"; "": reported within the last day

    @property
    def finding(self) -> str:
        """Return the text that identifies the process in the accounts."""
        return f"pid {self.pid} of {self.user}: {shown(self.command)}"[:_LONGEST_FINDING]


def strangers(
    rules: StrangerRules, processes: "Iterable[GpuProcessInfo]", warned: Iterable[Warned], now: float
) -> list[Stranger]:
    """Return the GPU processes outside of jobs that the site does not allow, the largest first.

    A process is reported at most once a day.

    Args:
        rules: the settings.
        processes: all processes on GPUs, including processes of jobs.
        warned: the reports of the last day.
        now: epoch seconds.
    """
    reported = {
        warning.finding
        for warning in warned
        if warning.policy == STRANGERS and not warning.dry and warning.at > now - _AGAIN
    }
    parts: dict[int, list[GpuProcessInfo]] = {}
    for process in processes:
        if process.job is None and not rules.allows(process.user, process.command):
            parts.setdefault(process.pid, []).append(process)
    listed = [_stranger(rules, part, reported) for part in parts.values()]
    old = [stranger for stranger in listed if stranger.since <= now - rules.grace]
    return sorted(old, key=lambda stranger: (-stranger.memory, stranger.pid))


def _stranger(rules: StrangerRules, parts: "list[GpuProcessInfo]", reported: set[str]) -> Stranger:
    """Combine the entries of one process on several GPUs."""
    stranger = Stranger(
        pid=parts[0].pid,
        user=parts[0].user or "unknown",
        command=parts[0].command or "unknown",
        gpus=tuple(sorted({part.gpu for part in parts})),
        memory=sum(part.memory for part in parts),
        since=min(part.since for part in parts),
        action="warn" if rules.action == "warn" else "report",
    )
    return structs.replace(stranger, action="") if stranger.finding in reported else stranger


def stranger_report(listed: Iterable[Stranger], host: str, now: float) -> tuple[str, str]:
    """Return subject and text of the mail to the administrator. `now` in epoch seconds."""
    lines = [line for stranger in listed for line in _described(stranger, now)]
    number = sum(line.startswith("  Process") for line in lines)
    what = "process" if number == 1 else "processes"
    text = (
        f"These processes use GPUs of {host} outside of fgsched. Jobs cannot use their memory.\n\n"
        + "\n".join(lines)
        + "\nfgctl pidinfo PID shows a process now, fgreport strangers the use over time.\n"
        "Allow users or commands with strangers_users and strangers_commands in [policies] of"
        f" fgsched.toml.\n\nSent by fgsched on {host}. A process is reported at most once a day.\n"
    )
    return f"fgsched: {number} GPU {what} outside of jobs on {host}", text


def stranger_warning(listed: Iterable[Stranger], host: str, now: float) -> tuple[str, str]:
    """Return subject and text of the mail to the user of the processes. `now` in epoch seconds."""
    lines = [line for stranger in listed for line in _described(stranger, now)]
    text = (
        f"You use GPUs of {host} outside of fgsched. Other users wait for the memory that you hold.\n\n"
        + "\n".join(lines)
        + "\nEnd the process, and start the work as a job: fgsub --gpus=0.5 --wrap='COMMAND'\n\n"
        f"Sent by fgsched on {host} for its administrator.\n"
    )
    return f"fgsched: your GPU processes outside of jobs on {host}", text


def _described(stranger: Stranger, now: float) -> list[str]:
    return [
        f"  Process    {stranger.pid}",
        f"  User       {stranger.user}",
        f"  Command    {shown(stranger.command)}",
        f"  GPU        {format_indices(stranger.gpus)}",
        f"  Memory     {format_mebibytes(stranger.memory)}",
        f"  Time       {format_elapsed(now - stranger.since)} on the GPU",
        "",
    ]
