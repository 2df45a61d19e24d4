"""Convert a submission into new jobs. Everything is checked before anything is stored."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import Request
from fgsched.domain.policy import Policy
from fgsched.domain.text import quoted
from fgsched.jobs.arrays import parse_array, size
from fgsched.jobs.dependencies import parse_dependency
from fgsched.protocol import Batch
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit, check_plain
from fgsched.scheduling.limits import Owner, check_pending
from fgsched.store import NewJob

MAX_JOBS = 20_000  # in one request
MAX_PENDING = 100_000  # of one user
_MAX_ENVIRONMENT = 2**20  # bytes
_REMEMBERED = 256  # requests


class Admission:
    """A cache of admitted requests, because many submissions are equal. Refusals are not cached."""

    def __init__(self) -> None:
        self._ground: AdmissionContext | None = None
        self._admitted: dict[tuple[Request, Submitter], Request] = {}

    def admit(self, request: Request, submitter: Submitter, ground: AdmissionContext) -> Request:
        """Admit a request like `admission.admit`, with a cache. Raises its errors."""
        if ground != self._ground or len(self._admitted) >= _REMEMBERED:
            self._ground, self._admitted = ground, {}
        found = self._admitted.get((request, submitter))
        if found is None:
            found = self._admitted[request, submitter] = admit(request, submitter, ground)
        return found


def read_submission(
    batch: Batch[Any], admitted: Callable[[Request], Request], *, max_script: int
) -> list[NewJob]:
    """Return the jobs of a submission; `max_script` is in bytes.

    Raises: Refused or BadUsage for the first part of it that cannot be taken.
    """
    if not 0 < len(batch.jobs) <= MAX_JOBS:
        raise Refused(f"{len(batch.jobs)} jobs in one request", f"Submit 1 to {MAX_JOBS} at a time.")
    requests = [_request(request, admitted) for request in batch.requests]
    scripts = [_script(text, max_script) for text in batch.scripts]
    environments = [_environment(variables, at) for at, variables in enumerate(batch.environments)]
    try:
        return [
            NewJob(
                request=requests[request],
                script=scripts[script],
                environment=environments[environment],
                held="user" if hold else "",
            )
            for request, script, environment, hold in batch.jobs
        ]
    except IndexError:
        lengths = len(requests), len(scripts), len(environments)
        raise BadUsage(f"submit: {_outside(batch, lengths)} is not a place in its list") from None


def _outside(batch: Batch[Any], lengths: tuple[int, int, int]) -> str:
    """Return the path of the first index in `jobs` that is outside its list, or ""."""
    for number, (*places, _) in enumerate(batch.jobs):
        for part, (place, length) in enumerate(zip(places, lengths, strict=True)):
            if place >= length:
                return f"$.jobs[{number}][{part}]"
    raise AssertionError("unreachable")


def _request(request: Request, admitted: Callable[[Request], Request]) -> Request:
    request = admitted(request)
    check_plain(request)
    if request.kill_invalid not in ("", "yes", "no"):
        raise BadUsage("request: kill_invalid is neither yes nor no")
    if request.array and parse_array(request.array) != (request.array, 0):
        raise BadUsage("request: array is not a list of indices in its shortest form")
    if request.dependency and str(parse_dependency(request.dependency)) != request.dependency:
        raise BadUsage("request: dependency is not written as it should be")
    return request


def _script(text: str, limit: int) -> bytes:
    script = text.encode(errors="surrogateescape")
    if len(script) > limit:
        raise BadUsage(f"script is {len(script) >> 20} MiB; limit {limit >> 20} MiB")
    if not script.startswith(b"#!") or b"\0" in script:
        raise BadUsage("a script must start with #! and hold no NUL byte")
    return script


def _environment(variables: dict[str, str], at: int) -> bytes:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadUsage(f"submit: {quoted(name)} is not a variable - at `$.environments[{at}]`")
    data = "".join(f"{name}={value}\0" for name, value in variables.items())
    block = data.encode(errors="surrogateescape")
    if len(block) > _MAX_ENVIRONMENT:
        raise BadUsage("the environment is larger than 1 MiB", "Export less, with --export.")
    return block


def room_for(jobs: Sequence[NewJob], jobtable: JobTable, user: str, policy: Policy) -> None:
    """Refuse jobs that exceed a limit of pending jobs. Raises Refused."""
    if not policy.is_capped:
        return
    more: Counter[tuple[str, Owner]] = Counter()
    for job in jobs:
        more[job.request.partition, Owner(user, job.request.account, job.request.qos)] += size(job.request)
    for (partitions, who), count in more.items():
        check_pending(partitions.split(","), who, count, policy, jobtable.waiting_in)
