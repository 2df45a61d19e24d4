"""Run the prolog of a job before its launch and the epilog after its end, without blocking the event loop."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fgsched.controller.turn import EpilogDone, Event, HostShort, PrologFailed
from fgsched.domain.job import Job
from fgsched.domain.text import word_list
from fgsched.domain.units import format_share
from fgsched.hooks.filtering import MOST_OUTPUT, is_refusal
from fgsched.hooks.process import HookRunner, RelayProcess
from fgsched.hooks.programs import NO_HOOKS, HookRun, HookSettings, Ran, base
from fgsched.launch.launcher import LaunchCheck, PendingLaunch
from fgsched.lifecycle.jobvariables import common_variables
from fgsched.store import GpuAllocation
from fgsched.system.process import Watch
from fgsched.views.display import host_name

_LONGEST = 128  # characters of a value
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@+=:-]")
log = logging.getLogger(__name__)
Report = Callable[[Event], None]


def safe(text: str) -> str:
    """Return `text` with every character replaced that a shell could interpret, at most 128 characters."""
    return _UNSAFE.sub("_", text[:_LONGEST])


_SLURM = {  # our variable -> the variables of Slurm with its value
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_JOB_GPUS": ("SLURM_JOB_GPUS",),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURMD_NODENAME"),
    **{
        f"FG_{name}": (f"SLURM_{name}",)
        for name in word_list(
            """JOB_UID JOB_GID JOB_USER JOB_NAME JOB_PARTITION JOB_ACCOUNT JOB_QOS GPUS_ON_NODE CPUS_ON_NODE
            RESTART_COUNT ARRAY_JOB_ID ARRAY_TASK_ID"""
        )
    },
}


def environment(hook: str, job: Job, allocations: Sequence[GpuAllocation], host: str) -> dict[str, str]:
    """Return the variables of a prolog or epilog. Values that the job's owner chose are made safe."""
    variables = {
        **{name: safe(value) for name, value in common_variables(job, host).items()},
        "FG_JOB_UID": str(job.uid),
        "FG_JOB_GID": str(job.gid),
        "FG_JOB_GPUS": ",".join(str(gpu_allocation.gpu) for gpu_allocation in allocations),
        "FG_GPU_UUIDS": ",".join(gpu_allocation.uuid for gpu_allocation in allocations),
        "FG_GPUS_ON_NODE": str(len(allocations)),
        "FG_ATTEMPT": str(job.attempt),
    }
    if allocations:
        variables["FG_GPU_FRACTION"] = format_share(
            sum(gpu_allocation.share for gpu_allocation in allocations)
        )
    if job.task is not None:
        variables |= {"FG_ARRAY_JOB_ID": str(job.array), "FG_ARRAY_TASK_ID": str(job.task)}
    slurm = {twin: value for name, value in variables.items() for twin in _SLURM.get(name, ())}
    slurm |= {"SLURM_CLUSTER_NAME": "fgsched", "SLURM_SCRIPT_CONTEXT": f"{hook}_slurmd"}
    return base(hook) | variables | slurm | (_end(job) if hook == "epilog" else {})


def _end(job: Job) -> dict[str, str]:
    """Return the variables that only an epilog has: state and exit status of the attempt."""
    state = job.outcome.value if job.outcome else job.state.value
    if job.ended is None:
        return {"FG_JOB_STATE": state}
    code = f"{job.ended.exit_code}:{job.ended.signal}"
    status = {"SLURM_JOB_EXIT_CODE": str(job.ended.status), "SLURM_JOB_EXIT_CODE2": code}
    return {"FG_JOB_STATE": state, "FG_JOB_EXIT_CODE": code} | status


class SitePrograms:
    """The programs that the site runs around its jobs.

    It is the gate that every launch passes (`open_for`), and the engine's interface to the epilog.
    """

    def __init__(
        self,
        lock: Path,
        mode: str,
        *,
        watch: Watch,
        report: Report,
        under_way: Callable[[int], Job | None],
        gate: LaunchCheck,
    ) -> None:
        """Run no program yet.

        Args:
            lock: path of the runner's lock.
            mode: user or system.
            report: takes events of the turn.
            under_way: returns a job that was started and has not ended, by its id.
            gate: opens after the prolog.
        """
        self.settings: HookSettings = NO_HOOKS
        self._under_way, self._gate = under_way, gate
        self._runner, self._report = HookRunner(lock, watch), report
        self._relay = RelayProcess(mode, watch)
        self._ending: set[int] = set()  # jobs whose epilog runs
        self._host = host_name()

    # -- the edges ------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has outcomes."""
        return self._runner.fileno()

    def receive(self) -> None:
        """Take in the outcomes that have arrived."""
        self._runner.receive()

    def look(self) -> None:
        """Start the helper processes that are needed and do not run."""
        now = time.monotonic()
        self._runner.look(now)
        self._relay.look(now)

    @property
    def due(self) -> float | None:
        """The seconds until `look` is due; None: it is not."""
        now = time.monotonic()
        dues = self._runner.due(now), self._relay.due(now)
        return min((seconds for seconds in dues if seconds is not None), default=None)

    def configure(self, settings: HookSettings) -> None:
        """Use these settings for programs that start from now on."""
        self.settings = settings
        self._relay.configure(settings)

    def close(self) -> None:
        """End the helper processes. The next controller runs the unfinished programs again."""
        self._relay.close()
        self._runner.close()

    # -- the prolog -----------------------------------------------------------------------------

    def open_for(self, launching: PendingLaunch) -> None:
        """Launch a job after its prolog; at once if the site has none, or the process runs already."""
        if not self.settings.prolog or launching.job.adopted is not None:
            self._gate.open_for(launching)
            return
        run = HookRun(
            path=self.settings.prolog,
            seconds=self.settings.prolog_time,
            environment=environment("prolog", launching.job, launching.allocations, self._host),
            owner=launching.job.uid,
        )
        self._runner.request(run, partial(self._prolog_done, launching))

    def _prolog_done(self, launching: PendingLaunch, ran: Ran) -> None:
        job, now = launching.job, self._under_way(launching.job.id)
        if now is None or now.attempt != job.attempt:
            return  # it was ended meanwhile, and its epilog runs
        if ran.problem:
            _log("prolog", job, ran)
            self._report(PrologFailed(job.id, job.attempt, ran.problem))
        elif now.cancelled_by is not None:
            self._report(HostShort(job.id, job.attempt, "cancelled during the prolog"))
        else:
            self._gate.open_for(launching)

    # -- the submit filter ----------------------------------------------------------------------

    def filter(self, question: str, owner: int, callback: Callable[[Ran], None]) -> None:
        """Run the submit filter for a user; `callback` is called with its outcome."""
        run = HookRun(
            path=self.settings.submit_filter,
            seconds=self.settings.submit_filter_time,
            environment=base("submit_filter"),
            input=question,
            keep=MOST_OUTPUT,
            owner=owner,
        )
        self._runner.request(run, partial(_filtered, callback))

    # -- the epilog -----------------------------------------------------------------------------

    @property
    def is_configured(self) -> bool:
        """Whether the site has an epilog."""
        return bool(self.settings.epilog)

    def runs(self, job_id: int) -> bool:
        """Tell whether the epilog of this job is running."""
        return job_id in self._ending

    def run(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Run the epilog of an attempt, if it had a prolog; EpilogDone follows."""
        if not self.settings.epilog or job.adopted is not None:  # it was removed from the configuration
            self._report(EpilogDone(job.id, job.attempt))
            return
        self._ending.add(job.id)
        run = HookRun(
            path=self.settings.epilog,
            seconds=self.settings.epilog_time,
            environment=environment("epilog", job, allocations, self._host),
            owner=job.uid,
        )
        self._runner.request(run, partial(self._epilog_done, job))

    def _epilog_done(self, job: Job, ran: Ran) -> None:
        self._ending.discard(job.id)
        if ran.problem:
            _log("epilog", job, ran)
        self._report(EpilogDone(job.id, job.attempt, ran.problem))


def _filtered(callback: Callable[[Ran], None], ran: Ran) -> None:
    if ran.problem and not is_refusal(ran):
        log.warning("the submit filter %s: %s", ran.problem, ran.said or "no output")
    callback(ran)


def _log(hook: str, job: Job, ran: Ran) -> None:
    """Log why a program failed. Its output is for administrators only, so no note or reason has it."""
    log.warning("job %d: the %s %s: %s", job.id, hook, ran.problem, ran.said or "no output")
