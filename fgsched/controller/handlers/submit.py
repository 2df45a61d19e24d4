"""A submission on the socket -> what the store writes down. All of it is checked before any of it is."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import Request
from fgsched.domain.policy import Policy
from fgsched.jobs.arrays import parse_array, size
from fgsched.jobs.dependencies import parse_dependency
from fgsched.jobs.records import check_plain, from_record
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit
from fgsched.scheduling.limits import Owner, check_pending
from fgsched.store import NewJob

MAX_JOBS = 20_000  # in one request
MAX_PENDING = 100_000  # of one user
_MAX_ENVIRONMENT = 2**20
_REMEMBERED = 256  # requests
_FIELDS = {"key", "scripts", "environments", "requests", "jobs"}


class Admission:
    """Remembers what became of requests: many submissions have the same. A refusal is always found anew."""

    def __init__(self) -> None:
        self._ground: AdmissionContext | None = None
        self._admitted: dict[tuple[Request, Submitter], Request] = {}

    def admit(self, request: Request, submitter: Submitter, ground: AdmissionContext) -> Request:
        """`admission.admit`; what it says depends on nothing else."""
        if ground != self._ground or len(self._admitted) >= _REMEMBERED:
            self._ground, self._admitted = ground, {}
        found = self._admitted.get((request, submitter))
        if found is None:
            found = self._admitted[request, submitter] = admit(request, submitter, ground)
        return found


def read_submission(
    arguments: dict[str, Any], admitted: Callable[[Request], Request], *, max_script: int
) -> tuple[str, list[NewJob]]:
    """(key, jobs) of a submission; refuses the whole of it for the first job that cannot be taken.

    `jobs` holds [request, script, environment, hold] for each job: three places
    in the lists beside it, and whether it is held. Equal ones are sent once.
    """
    if unknown := set(arguments) - _FIELDS:
        raise BadUsage(f"submit: unknown field {min(unknown)[:80]!r}")
    key = arguments.get("key")
    if not isinstance(key, str) or not 16 <= len(key) <= 128 or not key.isascii():
        raise BadUsage("submit: the key is not a text of 16 to 128 ASCII characters")
    jobs = _list(arguments, "jobs")
    if not 0 < len(jobs) <= MAX_JOBS:
        raise Refused(f"{len(jobs)} jobs in one request", f"Submit 1 to {MAX_JOBS} at a time.")
    requests = [_request(record, admitted) for record in _list(arguments, "requests")]
    scripts = [_script(text, max_script) for text in _list(arguments, "scripts")]
    environments = [_environment(entry) for entry in _list(arguments, "environments")]
    try:
        return key, [
            NewJob(
                request=requests[_place(r)],
                script=scripts[_place(s)],
                environment=environments[_place(e)],
                held="user" if hold else "",
            )
            for r, s, e, hold in jobs
        ]
    except (TypeError, ValueError, IndexError):
        raise BadUsage("submit: jobs do not fit the lists beside them") from None


def _place(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _list(arguments: dict[str, Any], name: str) -> list[Any]:
    value = arguments.get(name)
    if not isinstance(value, list):
        raise BadUsage(f"submit: {name} is not a list")
    return value


def _request(record: Any, admitted: Callable[[Request], Request]) -> Request:
    request = admitted(from_record(record))
    check_plain(request)
    if request.kill_invalid not in ("", "yes", "no"):
        raise BadUsage("request: kill_invalid is neither yes nor no")
    if request.array and parse_array(request.array) != (request.array, 0):
        raise BadUsage("request: array is not a list of indices in its shortest form")
    if request.dependency and str(parse_dependency(request.dependency)) != request.dependency:
        raise BadUsage("request: dependency is not written as it should be")
    return request


def _script(text: Any, limit: int) -> bytes:
    if not isinstance(text, str):
        raise BadUsage("submit: a script is not a text")
    script = text.encode(errors="surrogateescape")
    if len(script) > limit:
        raise BadUsage(f"script is {len(script) >> 20} MiB; limit {limit >> 20} MiB")
    if not script.startswith(b"#!") or b"\0" in script:
        raise BadUsage("a script must start with #! and hold no NUL byte")
    return script


def _environment(entry: Any) -> bytes:
    if not isinstance(entry, dict):
        raise BadUsage("submit: an environment is not an object")
    for name, value in entry.items():
        if not name or "=" in name or "\0" in name or not isinstance(value, str) or "\0" in value:
            raise BadUsage(f"submit: {name[:80]!r} is not a variable")
    data = "".join(f"{name}={value}\0" for name, value in entry.items()).encode(errors="surrogateescape")
    if len(data) > _MAX_ENVIRONMENT:
        raise BadUsage("the environment is larger than 1 MiB", "Export less, with --export.")
    return data


def room_for(jobs: Sequence[NewJob], jobtable: JobTable, user: str, policy: Policy) -> None:
    """Refused if a limit of jobs that wait would be passed."""
    if not policy.is_capped:
        return
    more: Counter[tuple[str, Owner]] = Counter()
    for job in jobs:
        more[job.request.partition, Owner(user, job.request.account, job.request.qos)] += size(job.request)
    for (partitions, who), count in more.items():
        check_pending(partitions.split(","), who, count, policy, jobtable.waiting_in)
