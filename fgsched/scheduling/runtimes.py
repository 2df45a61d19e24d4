"""Estimate run times from earlier runs of the same work by the same user."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import DecodeError, Struct, json

from fgsched.domain.job import Job, Request
from fgsched.domain.states import JobState

KEPT = 30  # runs of each kind of work
LEAST = 3  # runs that an estimate needs: of fewer, the median is one of the extremes
_INTERACTIVE = frozenset({"bash", "sh", "dash", "zsh", "fish", "tcsh", "csh", "ksh"})
_FROM_INPUT = frozenset({"fgsub", "sbatch", "stdin"})  # names of jobs whose script came from standard input
_DEFAULT = frozenset({"wrap", "fgrun", "srun", "salloc", "interactive", "python", "python3", *_INTERACTIVE})
_NAMES = ("-J", "--job-name")  # options of fgsub
Work = tuple[int, str]  # uid, what `work_of` returns


def work_of(request: Request) -> str:
    """Return what tells runs of the same work apart from others, as `work_of_line`."""
    return work_of_line(request.name, request.submit_line, request.submit_dir)


def work_of_line(name: str, submit_line: str, directory: str) -> str:
    """Return what tells runs of the same work apart from others; "": nothing does.

    It is the job's name if a user has chosen it. A default name, such as wrap or that of the script, says
    nothing; then it is the line of the submission with its directory. A shell for a person, or a script that
    was read from standard input, says nothing about another one.
    """
    words = submit_line.split()
    if not _is_default_job_name(name, words):
        return name
    last = _last_part(words[-1]) if words else ""
    if not words or name in _FROM_INPUT or last in _INTERACTIVE:
        return ""
    return f"{directory}\n{submit_line}"


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


class _SubmitWords(Struct):
    submit_line: str = ""
    submit_dir: str = "/"


def work_of_request(name: str, request: str) -> str:
    """Return `work_of` a job, from its request as JSON; a damaged one tells nothing."""
    try:
        line = json.decode(request, type=_SubmitWords)
    except (DecodeError, ValueError):
        return ""
    return work_of_line(name, line.submit_line, line.submit_dir)


def _is_default_job_name(name: str, words: Sequence[str]) -> bool:
    if any(word in _NAMES and after == name for word, after in pairwise(words)):
        return False
    return name in _DEFAULT | _FROM_INPUT or any(_last_part(word) == name for word in words)


class CompletedRun(Struct, frozen=True):
    """One completed run."""

    uid: int
    work: str  # as `work_of` returns it
    elapsed: float  # seconds
    time_limit: int  # seconds; 0: none


def completed_run(job: Job) -> CompletedRun | None:
    """Return the run of a job; None if the job has not completed."""
    if job.state is not JobState.COMPLETED or job.started_at is None or job.ended_at is None:
        return None
    elapsed = job.ended_at - job.started_at - job.suspended
    return CompletedRun(job.uid, work_of(job.request), elapsed, job.request.time_limit)


class RunHistory:
    """The latest runs of each kind of work, newest first."""

    def __init__(self, runs: Iterable[CompletedRun] = ()) -> None:
        self._runs: dict[Work, list[CompletedRun]] = {}
        for run in runs:
            completed_runs = self._runs.setdefault((run.uid, run.work), []) if run.work else []
            if len(completed_runs) < KEPT:
                completed_runs.append(run)

    def likely(self, work: Work, time_limit: int, part: float = 0.5, *, elapsed: float = 0.0) -> float | None:
        """Return the seconds that `part` of the runs did not exceed; None: not known.

        Runs that the present one, which runs since `elapsed` seconds, has outlived are no evidence, and an
        estimate needs `LEAST` others. With a time limit (seconds) the fraction of the limit that was used is
        scaled to this limit.
        """
        lengths = [length for length in self._lengths(work, time_limit) if length > elapsed]
        return _quantile(lengths, part) if len(lengths) >= LEAST else None

    def _lengths(self, work: Work, time_limit: int) -> list[float]:
        """Return the run times of earlier runs in seconds, scaled to a time limit."""
        runs = self._runs.get(work, [])
        limited = [run for run in runs if run.time_limit]
        if time_limit and limited:
            return [min(1.0, run.elapsed / run.time_limit) * time_limit for run in limited]
        return [min(run.elapsed, time_limit) if time_limit else run.elapsed for run in runs]


def _quantile(values: Sequence[float], part: float) -> float:
    """Return the value that `part` of the values do not exceed; of two middle values the upper."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
