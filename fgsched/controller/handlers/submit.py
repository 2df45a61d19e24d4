"""Convert a submission into new jobs. Everything is checked before anything is stored."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import BadUsage, FgschedError, NotPermitted, Refused
from fgsched.domain.job import Job, Request
from fgsched.domain.policy import Policy
from fgsched.domain.states import Reason
from fgsched.domain.text import quoted
from fgsched.domain.units import format_mebibytes
from fgsched.lifecycle.arrays import bits_of, lowest, parse_array, size
from fgsched.lifecycle.dependencies import LAST, Term, for_task, parse_dependency
from fgsched.lifecycle.enforcement import check_tier
from fgsched.lifecycle.mail import parse_mail_types
from fgsched.mail.letters import MailSettings, check_address
from fgsched.protocol import Batch
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit, check_plain
from fgsched.scheduling.limits import LimitedUser, check_pending
from fgsched.store import NewJob, Store

# -- quota of scripts and environments -------------------------------------------------------------


_REST = 20  # times as long as counting took is waited before it is counted again: 5 % of the time at most


class _Count(Struct):
    """The bytes of one user, as an upper bound: recently ended jobs are still counted."""

    size: int
    again_at: float = 0.0


class MaterialQuota:
    """Counts submitted bytes. Ended jobs are subtracted only when the quota seems to be exceeded."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._counts: dict[int, _Count] = {}

    def check(self, uid: int, jobs: Sequence[NewJob], most: int, kept: int = 0) -> int:
        """Return the bytes that these jobs add. Raises Refused above `most` bytes (0 is no limit).

        `kept`: bytes of a user's ended jobs that are kept. What is above them counts until it is deleted.
        """
        texts = {id(text): text for job in jobs for text in (job.script, job.environment)}.values()
        size = sum(map(len, texts))
        if not most:
            return size
        count = self._counts.get(uid) or self._counted(uid, kept)
        if count.size + size > most:
            size = sum(len(text) for text in texts if not self._store.idle.has(uid, text))
        if count.size + size > most and self._clock() >= count.again_at:
            count = self._counted(uid, kept)
        if count.size + size > most:
            raise Refused(
                f"scripts and environments of your jobs have {format_mebibytes(count.size)},"
                f" this submission adds {format_mebibytes(size)}, and {format_mebibytes(most)} is the limit",
                "Wait until some jobs have ended, cancel some, or keep data in files instead of scripts.",
            )
        return size

    def add(self, uid: int, size: int) -> None:
        """Count `size` bytes as submitted."""
        if count := self._counts.get(uid):
            count.size += size

    def _counted(self, uid: int, kept: int) -> _Count:
        begun = self._clock()
        size = sum(self._store.idle.open_material(uid).values())
        size += max(0, self._store.idle.ended_material(uid) - kept)
        ended = self._clock()
        count = self._counts[uid] = _Count(size, ended + _REST * (ended - begun))
        return count


# -- submissions -----------------------------------------------------------------------------------


MAX_JOBS = 20_000  # in one request
_MAX_ENVIRONMENT = 2**20  # bytes
_DEPENDENCIES = 400_000  # characters of all dependencies in one request


class AdmissionGround(Struct, frozen=True):
    """What the checks of a request depend on, apart from its user."""

    context: AdmissionContext
    tiers: tuple[str, ...]  # that a job may request
    tier: str  # of the host
    mail: MailSettings
    max_script: int  # bytes


def _admitted(request: Request, submitter: Submitter, ground: AdmissionGround) -> Request:
    """Check a request, and return it with the site's defaults. Raises BadUsage, Refused, NotPermitted."""
    request = admit(request, submitter, ground.context)
    check_plain(request)
    if request.kill_invalid not in ("", "yes", "no"):
        raise BadUsage("request: kill_invalid is neither yes nor no")
    if request.array and parse_array(request.array) != (request.array, 0):
        raise BadUsage("request: array is not a list of indices in its shortest form")
    if request.dependency and str(parse_dependency(request.dependency)) != request.dependency:
        raise BadUsage("request: dependency is not written as it should be")
    check_tier(request.tier, ground.tiers, ground.tier)
    check_mail(request, ground.mail)
    return request


def read_submission(batch: Batch[Any], submitter: Submitter, ground: AdmissionGround) -> list[NewJob]:
    """Return the jobs of a submission. Raises Refused, BadUsage or NotPermitted for its first fault."""
    if not 0 < len(batch.jobs) <= MAX_JOBS:
        raise Refused(f"{len(batch.jobs)} jobs in one request", f"Submit 1 to {MAX_JOBS} at a time.")
    requests = _requests(batch, submitter, ground)
    scripts = [_script(text, ground.max_script) for text in batch.scripts]
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


def _requests(batch: Batch[Any], submitter: Submitter, ground: AdmissionGround) -> list[Request]:
    """Return the admitted requests; an error names the first job with the refused request."""
    length = sum([len(request.dependency) for request in batch.requests])
    if length > _DEPENDENCIES:
        raise Refused(
            f"Job dependency problem: {length} characters in one request", f"{_DEPENDENCIES} is the limit."
        )
    found: list[Request] = []
    try:
        for request in batch.requests:
            found.append(_admitted(request, submitter, ground))
    except FgschedError as error:
        error.job = next((at for at, job in enumerate(batch.jobs) if job[0] == len(found)), None)
        raise
    return found


def _outside(batch: Batch[Any], lengths: tuple[int, int, int]) -> str:
    """Return the path of the first index in `jobs` that is outside its list, or ""."""
    for number, (*places, _) in enumerate(batch.jobs):
        for part, (place, length) in enumerate(zip(places, lengths, strict=True)):
            if place >= length:
                return f"$.jobs[{number}][{part}]"
    raise AssertionError("unreachable")


def _script(text: str, limit: int) -> bytes:
    script = text.encode(errors="surrogateescape")
    if len(script) > limit:
        raise BadUsage(f"script has {len(script)} bytes; limit {limit >> 20} MiB")
    if not script.startswith(b"#!") or b"\0" in script:
        raise BadUsage("a script must start with #! and hold no NUL byte")
    return script


def _environment(variables: dict[str, str], at: int) -> bytes:
    data = "".join([f"{name}={value}\0" for name, value in variables.items()])
    if "" in variables or "=" in "".join(variables) or data.count("\0") > len(variables):
        bad = next(name for name, value in variables.items() if not _is_variable(name, value))
        raise BadUsage(f"submit: {quoted(bad)} is not a variable - at `$.environments[{at}]`")
    block = data.encode(errors="surrogateescape")
    if len(block) > _MAX_ENVIRONMENT:
        raise BadUsage("the environment is larger than 1 MiB", "Export less, with --export.")
    return block


def _is_variable(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value


_LABELS = 32  # of a user that are remembered


class Labels:
    """The accounts and QOS of users' jobs since the start of the controller.

    Where the site defines none, a warning about a name is printed once.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[str, None]] = {}

    def of(self, uid: int) -> tuple[str, ...]:
        """Return the names of a user, as "account=NAME" and "qos=NAME"."""
        return tuple(self._of.get(uid, ()))

    def add(self, uid: int, jobs: Sequence[NewJob]) -> None:
        """Add the names of jobs that were submitted; the oldest are forgotten."""
        for request in {id(job.request): job.request for job in jobs}.values():
            for label in filter(None, (_label("account", request.account), _label("qos", request.qos))):
                labels = self._of.setdefault(uid, {})
                labels[label] = None
                if len(labels) > _LABELS:
                    del labels[next(iter(labels))]


def _label(option: str, name: str) -> str:
    return f"{option}={name}" if name else ""


def room_for(jobs: Sequence[NewJob], jobtable: JobTable, user: str, policy: Policy) -> None:
    """Refuse jobs that exceed a limit of pending jobs. Raises Refused."""
    if not policy.is_capped:
        return
    more: Counter[tuple[str, LimitedUser]] = Counter()
    for job in jobs:
        more[job.request.partition, LimitedUser(user, job.request.account, job.request.qos)] += size(
            job.request
        )
    for (partitions, who), count in more.items():
        check_pending(partitions.split(","), who, count, policy, jobtable.waiting_in)


_CONDITIONS = 20_000  # of the dependencies of all jobs in one request
_ALL_CONDITIONS = 200_000  # of a user's pending jobs: each takes about 100 bytes of memory


class Conditions:
    """Checks of a request that depend on open and ended jobs."""

    def __init__(self, engine: Engine, *, kill_invalid: bool) -> None:
        self._engine = engine
        self._kill_invalid = "yes" if kill_invalid else "no"
        self._targets: dict[int, Job | None] = {}  # jobs that were looked up
        self._settled_requests: dict[
            int, Request
        ] = {}  # id of a request of several jobs -> the completed one

    def refuse_too_many(self, jobs: Sequence[NewJob], caller: Caller) -> None:
        """Refuse jobs with too many conditions, which are kept in memory. Raises Refused."""
        more = sum([_conditions(job.request) for job in jobs if job.request.dependency])
        if more > _CONDITIONS:
            raise Refused(
                f"Job dependency problem: {more} conditions in one request", f"{_CONDITIONS} is the limit."
            )
        self._refuse_all(more, caller.uid)

    def _refuse_all(self, more: int, uid: int) -> None:
        here = self._engine.jobtable.wait_index.conditions[uid]
        if more and here + more > _ALL_CONDITIONS:
            raise Refused(
                f"Job dependency problem: your pending jobs have {here} conditions, and this adds {more}",
                f"{_ALL_CONDITIONS} is the limit. Depend on a whole array instead of its tasks.",
            )

    def settled(self, job: NewJob, caller: Caller, now: float) -> NewJob:
        """Complete the job with values that the controller determines. Raises Refused."""
        request = self._settled_requests.get(id(job.request))
        if request is None:
            request = self._settled_requests[id(job.request)] = self._completed(job.request, caller, now)
        return job if request is job.request else replace(job, request=request)

    def _completed(self, request: Request, caller: Caller, now: float) -> Request:
        if request.dependency:
            request = replace(
                request,
                dependency=self.dependency(request, caller),
                kill_invalid=request.kill_invalid or self._kill_invalid,
            )
        check_times(request, now)
        return request

    def changed(self, job: Job, request: Request, caller: Caller, now: float) -> Job:
        """Return the job after its request was changed. Raises Refused."""
        after = replace(job, request=request)
        if request.dependency != job.request.dependency:
            self._refuse_all(_conditions(request), job.uid)
            settled = self.dependency(request, caller)
            self.refuse_cycle(job, settled)
            reason = Reason.NONE if job.reason is Reason.DEPENDENCY_NEVER else job.reason
            depends = for_task(settled, job.task) if job.task is not None else settled
            kill = request.kill_invalid or self._kill_invalid
            request = replace(request, dependency=settled, kill_invalid=kill)
            opened_at = now if job.depends and not depends else job.opened_at
            after = replace(job, request=request, depends=depends, reason=reason, opened_at=opened_at)
        if (request.begin, request.deadline) != (job.request.begin, job.request.deadline):
            check_times(request, now)
        return after

    def dependency(self, request: Request, caller: Caller) -> str:
        """Return the dependency with `last` replaced by its job. Raises Refused for an unknown job."""
        if not request.dependency:
            return ""
        dependency = parse_dependency(request.dependency)
        terms = tuple(self._settled(term, caller, request) for term in dependency.terms)
        return str(replace(dependency, terms=terms))

    def _settled(self, term: Term, caller: Caller, request: Request) -> Term:
        if term.kind == "singleton":
            return term
        if term.job == LAST:
            last = self._engine.store.tasks.last_of(caller.uid)
            if last is None:
                raise Refused(
                    "Job dependency problem: you have submitted no job before", "Name one by its id."
                )
            term = replace(term, job=last)
        target = self._target(term.job)
        if target is None or not caller.may_see(target):
            raise Refused(
                f"Job dependency problem: job {term.job} does not exist", "fgq and fgacct list jobs."
            )
        if not caller.owns(target) and not caller.is_operator:
            raise NotPermitted(
                f"Job dependency problem: job {term.job} belongs to another user",
                "Depend on jobs of your own.",
            )
        _check_tasks(term, target, request)
        # a job without tasks has none that correspond: as in Slurm, each task waits for the job itself
        return replace(term, kind="afterok") if term.kind == "aftercorr" and not target.array else term

    def _target(self, job_id: int) -> Job | None:
        if job_id not in self._targets:
            job = self._engine.jobtable.jobs.get(job_id)
            past = self._engine.store.past(job_id) if job is None else None
            self._targets[job_id] = past.job if past is not None else job
        return self._targets[job_id]

    def refuse_cycle(self, job: Job, dependency: str) -> None:
        """Refuse a dependency that leads back to the job itself. Raises Refused."""
        goal = job.array or job.id
        path = self._path(dependency, goal)
        if path:
            around = " → ".join(map(str, [goal, *path]))
            raise Refused(f"Job dependency problem: cycle: {around}", "Jobs cannot wait for each other.")

    def _path(self, dependency: str, goal: int) -> list[int]:
        """Return the chain of dependencies from a job to job `goal`; empty if there is none."""
        seen: set[int] = set()
        stack: list[tuple[str, list[int]]] = [(dependency, [])]
        while stack:
            text, way = stack.pop()
            for term in parse_dependency(text).terms if text else ():
                job = self._engine.jobtable.jobs.get(term.job)
                target = (job.array or job.id) if job else term.job
                if target == goal:
                    return [*way, goal]
                if job is not None and target not in seen:
                    seen.add(target)
                    stack.append((job.depends, [*way, target]))
        return []


def _conditions(request: Request) -> int:
    return len(parse_dependency(request.dependency).terms) if request.dependency else 0


def _check_tasks(term: Term, target: Job, request: Request) -> None:
    """Refuse a dependency on tasks that are not in the array."""
    there = bits_of(target.request.array) if target.array else 0
    if term.task is not None and not there >> term.task & 1:
        raise Refused(
            f"Job dependency problem: job {term.job} has no task {term.task}", "fgq -j lists its tasks."
        )
    if term.kind == "aftercorr" and term.task is None and request.array and target.array == target.id:
        missing = bits_of(request.array) & ~there
        if missing:
            raise Refused(
                f"Job dependency problem: array {term.job} has no task {lowest(missing)}",
                "With aftercorr each task depends on the task with its index.",
            )


def check_times(request: Request, now: float) -> None:
    """Refuse a job that could not end before its deadline even if it started at `now`. Raises Refused."""
    if request.deadline and max(now, request.begin) + request.time_limit >= request.deadline:
        raise Refused(
            "the job cannot end before its deadline", "Give a later --deadline, or a shorter --time."
        )


def check_mail(request: Request, settings: MailSettings) -> None:
    """Refuse a type of mail that is unknown, and an address to which the site may send no mail.

    A host that sends no mails takes every address, so that scripts from elsewhere run there.
    Raises: BadUsage, Refused.
    """
    if request.mail_type and parse_mail_types(request.mail_type) != request.mail_type:
        raise BadUsage("request: mail_type is not a list of types in their order")
    for address in request.mail_user.split(",") if request.mail_user and settings.way != "off" else ():
        check_address(address, settings)
