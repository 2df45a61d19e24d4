"""The request for the socket that submits prepared jobs, and the texts of fgsub about them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fgsched.protocol import Flags
from fgsched.submission.options import NOTES

if TYPE_CHECKING:  # fgsub seldom reads its line itself
    from fgsched.submission.prepare import Prepared

NO_GPU = "no GPU was asked for, so the job sees none; --gpus=0.5 asks for half of one, --gpus=0 says so"


def parts(jobs: "Sequence[Prepared]") -> dict[str, Any]:
    """Return the fields of a `Batch`; parts that several jobs share are included once."""
    requests, scripts, environments = _DistinctValues(), _DistinctValues(), _DistinctValues()
    rows = []
    for job in jobs:
        submission = job.submission
        request = submission.request
        rows.append(
            (
                requests.place(request, request),
                scripts.place(submission.script, submission.script.decode(errors="surrogateescape")),
                environments.place(id(submission.environment), submission.environment),
                submission.hold,
            )
        )
    return {
        "requests": requests.values,
        "scripts": scripts.values,
        "environments": environments.values,
        "jobs": rows,
        "inside": jobs[0].submission.inside if jobs else 0,
    }


class _DistinctValues:
    """A list of distinct values, with the index of each."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indices: dict[Any, int] = {}

    def place(self, key: Any, value: Any) -> int:
        if key not in self._indices:
            self._indices[key] = len(self.values)
            self.values.append(value)
        return self._indices[key]


def warnings(jobs: "Sequence[Prepared]", name: str, more: Sequence[str] = (), *, is_for_person: bool) -> str:
    """Return the warnings about jobs, one in a line; `name`: of the command that prints them.

    To a program sbatch says nothing, as in Slurm: many programs take both streams for the id of the job.
    The warnings are in the record of the job.

    Args:
        more: the warnings of the controller.
        is_for_person: whether standard error is a terminal.
    """
    if name == "sbatch" and not is_for_person:
        return ""
    texts = dict.fromkeys((*(text for job in jobs for text in job.warnings), *more))
    return "".join(f"{name}: warning: {text}\n" for text in texts)


def submitted(flags: Flags, job: int) -> str:
    """Return the line that tells the id of a job."""
    return f"{job}\n" if flags.parsable else f"Submitted batch job {job}\n"


def explained(job: "Prepared") -> str:
    """Return the table of --explain-options."""
    rows = job.explained()
    width = max(len(option) for option, _, _ in rows)
    return "".join(f"{option:<{width}}  {value}  ({origin})\n" for option, value, origin in rows)


def says_no_gpu(job: "Prepared") -> bool:
    """Tell whether a person should learn that the job gets no GPU: nothing was said about GPUs."""
    return not {"gpus", "gpu-mem"} & job.settings.keys() and not _is_terse(job)


def wants_hint(job: "Prepared", environ: Mapping[str, str]) -> bool:
    """Tell whether to compare the request with the last runs; FGSUB_HINT=no switches that off."""
    if not job.submission.request.demand.gpus or environ.get(NOTES, "").lower() == "no":
        return False
    return not _is_terse(job)


def _is_terse(job: "Prepared") -> bool:
    """Tell whether a program reads the output."""
    return job.flags.quiet or job.flags.parsable or job.flags.json
