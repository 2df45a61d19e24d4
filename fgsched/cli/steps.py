"""Rows of steps for fgacct: the batch step of each job that ran, and names such as 12.batch and 12_3.0."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from fgsched.listing import choices
from fgsched.protocol import JobInfo

BATCH = "batch"


def split(texts: Iterable[str]) -> tuple[list[str], dict[str, set[str]]]:
    """Return lists of jobs without their steps, and the named steps of jobs: 12.0 is step 0 of job 12."""
    whole: list[str] = []
    steps: dict[str, set[str]] = {}
    plain: set[str] = set()
    for word in (word for text in texts for word in choices.parts(text)):
        job, dot, step = word.partition(".")
        whole.append(job)
        if dot and step:
            steps.setdefault(job, set()).add(step)
        else:
            plain.add(job)
    return whole, {job: named for job, named in steps.items() if job not in plain}


def rows(jobs: Iterable[JobInfo], wanted: dict[str, set[str]], *, all_steps: bool) -> Iterator[JobInfo]:
    """Yield each job followed by its steps; of jobs in `wanted`, the named steps only."""
    for job in jobs:
        named = wanted.get(str(job.id)) or wanted.get(choices.name_of(job))
        if named is None:
            yield job
        if named is not None or all_steps:
            yield from (row for row in _steps(job) if named is None or row.step in named)


def _steps(job: JobInfo) -> Sequence[JobInfo]:
    if not job.attempt or job.started_at is None:
        return []
    return [replace(job, step=BATCH, request=replace(job.request, name=BATCH, tasks=1))]
