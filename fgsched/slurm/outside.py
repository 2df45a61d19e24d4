"""srun and salloc outside a job: allocate, run in the foreground, and speak as Slurm does."""

import os
import sys
from collections.abc import Mapping, Sequence

from fgsched.cli.fgrun import Foreground, run_inside, shell
from fgsched.domain.errors import FgschedError, NoSuchJob, Refused, Unreachable
from fgsched.domain.job import Request
from fgsched.domain.states import JobState
from fgsched.lifecycle.jobscript import command_line
from fgsched.protocol import JobInfo
from fgsched.slurm.getopt import in_slurms_words, of_salloc, parse
from fgsched.slurm.step import StepRefused
from fgsched.submission.options import AnySetting, heterogeneous
from fgsched.submission.options import read as read_options
from fgsched.views.display import host_name, shown_time
from fgsched.views.options import rows_of

_OF_THE_JOB, _OF_THE_STEP = (
    [row.name for row in rows_of("srun", "salloc") if part in row.part.split()] for part in ("job", "step")
)
_NO_SHELL = ["sleep", "infinity"]  # holds an allocation until its time limit or its cancellation
_FLAGS = ("--slurm-env",)


class _Srun(Foreground):
    """srun outside a job."""

    name = "srun"

    def _inner(self, request: Request) -> str:
        """Return the step, which enters a container itself."""
        return command_line(self.command)

    def ended(self, job: JobInfo) -> str:
        """Return Slurm's line about a job that did not end by itself."""
        if job.state is JobState.TIMEOUT:
            where = f"STEP {job.id}.0 ON {host_name()}"
            when = shown_time(job.ended_at)
            return f"slurmstepd: error: *** {where} CANCELLED AT {when} DUE TO TIME LIMIT ***"
        if job.state is JobState.CANCELLED:
            return f"{self.name}: Job allocation {job.id} has been revoked"
        return f"{self.name}: error: job {job.id} ended as {job.state.value}"


class _Salloc(_Srun):
    """salloc."""

    name = "salloc"
    queued = ("Pending job allocation {job}", *Foreground.queued)
    _job = 0
    is_quiet = False

    def started(self, job: int) -> None:
        """Say that the allocation was granted."""
        self._job = job
        self._say(f"Granted job allocation {job}")

    def run(self) -> int:
        """Run the command within the allocation, which ends with it."""
        code = super().run()
        if self._job and not self.leaves:
            self._say(f"Relinquishing job allocation {self._job}")
        return code

    def _say(self, text: str) -> None:
        if not self.is_quiet:
            print(f"salloc: {text}", file=sys.stderr, flush=True)


def srun(options: Mapping[str, str], command: Sequence[str]) -> int:
    """Allocate, run the tasks in the foreground, and return the highest exit code. Raises StepRefused."""
    if not command:
        raise StepRefused("srun: fatal: No command given to execute.", 1)
    title = {"job-name": os.path.basename(command[0])[:255]} if "job-name" not in options else {}
    settings = _settings({**options, **title}, "srun")
    gpus_each = options.get("gpus-per-task", "")
    of_the_step = (
        [*_OF_THE_STEP, "gpus-per-task"] if gpus_each.rpartition(":")[2].isdecimal() else _OF_THE_STEP
    )
    inner = ["srun", *_spelled(options, of_the_step), "--", *command]
    return _run(_Srun(settings, inner, is_terminal="pty" in options), options)


def join(options: Mapping[str, str], command: Sequence[str]) -> int:
    """Run a step inside another running job of the caller; return its exit code. Raises StepRefused."""
    if not command:
        raise StepRefused("srun: fatal: No command given to execute.", 1)
    job = options["jobid"]
    if not job.isdecimal():
        raise StepRefused(f'srun: error: Invalid numeric value "{job}" for --jobid.', 1)
    inner = ["srun", *_spelled(options, [*_OF_THE_STEP, "chdir", "export", "gpus-per-task"]), "--", *command]
    try:
        return run_inside(
            int(job), inner, name="srun", is_terminal="pty" in options, quiet="quiet" in options
        )
    except NoSuchJob:
        action = f"srun: error: Unable to confirm allocation for job {job}"
        raise StepRefused(f"{action}: Invalid job id specified", 1) from None
    except FgschedError as error:
        raise StepRefused(f"srun: error: Unable to create step for job {job}: {error.cause}", 1) from None


def salloc(words: Sequence[str]) -> int:
    """Allocate, run a command or a shell, and return its exit code. Raises BadLine or Refusal."""
    typed, command = parse("salloc", words, permute=False)
    if command[:1] == [":"]:
        error = heterogeneous("':' between the options of several components")
        raise StepRefused(f"salloc: error: {error.cause}\n{error.remedy}", 1)
    options = of_salloc(os.environ, dict(typed))
    leaves = "no-shell" in options
    if leaves:
        command = []
    title = {"job-name": os.path.basename(command[0])[:255] if command else "interactive"}
    settings = _settings({**title, **options}, "salloc")
    is_terminal = os.isatty(0) and os.isatty(1) and not leaves
    inner = _NO_SHELL if leaves else command or [shell(os.environ)]
    foreground = _Salloc(settings, inner, is_terminal=is_terminal)
    if leaves:
        foreground.leaves, foreground.streams = True, ()
    foreground.is_quiet = "quiet" in options
    return _run(foreground, options)


def _settings(options: Mapping[str, str], name: str) -> list[AnySetting]:
    """Return the options of the job. Raises StepRefused for a value that is not one."""
    try:
        return read_options([*_spelled(options, _OF_THE_JOB), *_FLAGS])[0]
    except FgschedError as error:
        raise StepRefused(f"{name}: error: {error.cause}", 1) from None


def _spelled(options: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [f"--{name}={text}" if text else f"--{name}" for name, text in options.items() if name in names]


def _run(foreground: Foreground, options: Mapping[str, str]) -> int:
    """Run a job in the foreground. Raises StepRefused, in the words of Slurm."""
    name = foreground.name
    if "immediate" in options:
        seconds = options["immediate"] or "1"
        if not seconds.isdecimal():
            raise StepRefused(f"{name}: error: Invalid --immediate specification: {seconds}", 1)
        foreground.patience = int(seconds)
    try:
        return foreground.run()
    except Refused as error:
        action = "Unable to allocate resources" if name == "srun" else "Job submit/allocate failed"
        raise StepRefused(f"{name}: error: {action}: {in_slurms_words(error.cause)}", 1) from None
    except Unreachable as error:
        action = f"{name}: error: Unable to allocate resources: Unable to contact slurm controller"
        raise StepRefused(f"{action} ({error.cause})", 1) from None
    except FgschedError as error:
        raise StepRefused(f"{name}: error: {error.cause}", 1) from None
