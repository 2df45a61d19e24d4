"""Handle submissions: read the command line, ask the filter of the site, check everything, and store jobs."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched import protocol
from fgsched.config.schema import Config
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.eventloop import EventLoop, Handler
from fgsched.controller.handlers.dependencies import Conditions, UnmetConditions
from fgsched.controller.handlers.registration import writes
from fgsched.controller.hooking import SitePrograms
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import BadUsage, Busy, FgschedError, Refused
from fgsched.domain.job import Job, Request
from fgsched.domain.policy import Policy
from fgsched.domain.states import Reason
from fgsched.domain.text import quoted
from fgsched.domain.units import SubmitContext, format_mebibytes
from fgsched.domain.waiting import gate_of
from fgsched.gpus import vendors
from fgsched.hooks.filtering import (
    Pair,
    Unusable,
    Who,
    blamed,
    changed_fields,
    judged,
    pairs_of,
    question,
    rebuilt,
)
from fgsched.hooks.programs import Ran
from fgsched.lifecycle.arrays import parse_array, size
from fgsched.lifecycle.dependencies import parse_dependency
from fgsched.lifecycle.enforcement import check_tier
from fgsched.lifecycle.mail import parse_mail_types
from fgsched.lifecycle.transitions import follow
from fgsched.mail.letters import NO_MAIL, MailSettings, check_address
from fgsched.protocol import Batch, LineSubmitted, ParsedLine, Problem, SubmitLine
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit, check_plain
from fgsched.scheduling.limits import LimitedUser, check_pending
from fgsched.server import ClientConnection
from fgsched.store import NewJob, Store
from fgsched.submission.options import HelpAsked, given, read
from fgsched.submission.prepare import Prepared, Submission, SubmissionPreparer
from fgsched.submission.questions import Asking, Unknown
from fgsched.submission.request import (
    NO_GPU,
    explained,
    parts,
    says_no_gpu,
    submitted,
    wants_hint,
    warnings,
)
from fgsched.system.paths import Paths
from fgsched.views.wording import why

# -- the command line of fgsub ---------------------------------------------------------------------


_ELSEWHERE = LineSubmitted(elsewhere=True)
_PREFIXES = ("FGSUB_", "SBATCH_")  # of variables that are options
_LONGEST = 4096  # characters of one, as of a word: a line is read between two turns
SubmitPrepared = Callable[[Caller, Submission, str, float], protocol.Submitted]


class LineHandlers:
    """The handler of command lines."""

    def __init__(
        self,
        submit: SubmitPrepared,
        site: Callable[[Caller], SubmitContext],
        is_filtered: Callable[[], bool] = bool,
    ) -> None:
        """`is_filtered`: whether the site has a submit filter. Then the client gets what was read."""
        self._submit, self._site, self._is_filtered = submit, site, is_filtered
        self._vendor = vendors.of_host().facts  # the controller restarts when a late driver answers

    @writes(SubmitLine)
    def submit_line(self, caller: Caller, call: SubmitLine, now: float) -> LineSubmitted:
        """Queue the job of a line, or ask its sender about it.

        Raises: BadUsage or Refused for a wrong line; NotPermitted for a uid without an account.
        """
        caller.must_have_account()
        here, site = Asking(call), self._site(caller)
        try:
            job = self._prepared(call, here, site)
        except (HelpAsked, _ForWorker):
            return _ELSEWHERE
        except (Unknown, FgschedError):
            if not here.open:
                raise
            return _asked(call, here)
        hint = _hint(call, job, here, site)
        if here.open:
            return _asked(call, here)
        if not call.asks and (self._is_filtered() or hint or _is_for_client(job.flags)):
            return _ELSEWHERE
        return self._answered(caller, call, job, hint, now)

    def _prepared(self, call: SubmitLine, here: Asking, site: SubmitContext) -> Prepared:
        """Return the submission of a line. Raises Unknown, _ForWorker, HelpAsked, or its refusal."""
        if any(len(variable) > _LONGEST for variable in call.environ if variable.startswith(_PREFIXES)):
            raise _ForWorker
        settings, words = read(call.words)
        if given(settings, "batch") is not None:
            raise _ForWorker
        preparer = SubmissionPreparer(here, site=site, name=call.name, vendor=self._vendor)
        return preparer.prepare(settings, words)

    def _answered(
        self, caller: Caller, call: SubmitLine, job: Prepared, hint: str, now: float
    ) -> LineSubmitted:
        notes = f"{call.name}: note: {NO_GPU}\n" if call.terminal and says_no_gpu(job) else ""
        text = warnings([job], call.name, is_for_person=call.terminal)
        answer = LineSubmitted(err=text + notes, flags=job.flags, hint=hint)
        if job.flags.explain:
            return replace(answer, out=explained(job))
        if job.flags.test or self._is_filtered():
            return replace(answer, parsed=ParsedLine(**parts([job])))
        try:
            made = self._submit(caller, job.submission, call.key, now)
        except FgschedError as error:
            if not call.asks:
                raise
            return replace(answer, refusal=Problem.of(error))
        return replace(
            answer,
            first=made.first,
            out="" if job.flags.quiet or job.flags.json else submitted(job.flags, made.first),
            err=warnings([job], call.name, made.warnings, is_for_person=call.terminal) + notes,
        )


class _ForWorker(Exception):
    """Raised for a line that takes too long to be read here: a list of submissions, or a long option."""


def _asked(call: SubmitLine, here: Asking) -> LineSubmitted:
    """Return the open questions, or the checks that take their place for a native sender."""
    if call.asks:
        return LineSubmitted(questions=list(dict.fromkeys(here.open)))
    return LineSubmitted(checks=list(dict.fromkeys(here.checks))) if here.are_checks_enough else _ELSEWHERE


def _hint(call: SubmitLine, job: Prepared, here: Asking, site: SubmitContext) -> str:
    """Return the name of a job whose last runs are compared with its request; "" for a program."""
    is_wanted = call.terminal and site.hints and wants_hint(job, here.environ)
    return job.submission.request.name if is_wanted else ""


def _is_for_client(flags: protocol.Flags) -> bool:
    """Tell whether the sender has more to do than to print the answer."""
    return flags.json or flags.wait or flags.test


# -- the submit filter of the site. The event loop does not wait for it --------------------


log = logging.getLogger(__name__)
_MOST = 32  # submissions of one user about which the filter is asked at a time


class _FilteredSubmission(Struct):
    """A submission about which the filter is being asked."""

    connection: ClientConnection
    caller: Caller
    call: protocol.Submit
    open_pairs: list[Pair]
    judged_pairs: list[tuple[Pair, Request]] = field(default_factory=list)


class SubmitFilter:
    """Passes submissions through the filter, one question after another, and then to their handler."""

    def __init__(self, site_programs: SitePrograms, loop: EventLoop, submit: Handler) -> None:
        self._site_programs, self._loop, self._submit = site_programs, loop, submit
        self._waiting: dict[
            int, list[ClientConnection]
        ] = {}  # uid -> connections, of which some have an answer
        self._asking: Counter[int] = Counter()  # uid -> questions without an answer
        self._later: dict[
            int, list[_FilteredSubmission]
        ] = {}  # uid -> submissions with a question that is not asked yet

    @property
    def is_configured(self) -> bool:
        """Whether the site has a filter."""
        return bool(self._site_programs.settings.submit_filter)

    def ask(self, connection: ClientConnection, caller: Caller, call: protocol.Submit) -> None:
        """Ask the filter, then submit, or refuse.

        Raises:
            Busy: the user waits on too many connections.
            NotPermitted: the uid has no account, so that no limit of users holds for it.
        """
        caller.must_have_account()
        self._loop.refuse_to_wait(connection)
        self._refuse_more(connection, caller.uid)
        connection.is_waiting = True
        self._next(_FilteredSubmission(connection, caller, call, pairs_of(call)[::-1]))

    def _refuse_more(self, connection: ClientConnection, uid: int) -> None:
        """Note that a user waits for the filter. Raises Busy if this user has many submissions there."""
        client_connections = self._waiting.get(uid, [])
        waiting = [
            client_connection
            for client_connection in client_connections
            if client_connection is not connection
            and client_connection.is_waiting
            and not client_connection.is_closed
        ]
        if len(waiting) >= _MOST:
            raise Busy(f"uid {uid} has {_MOST} submissions that the submit filter has not answered")
        self._waiting[uid] = [*waiting, connection]

    def _next(self, asked: _FilteredSubmission) -> None:
        connection, caller = asked.connection, asked.caller
        if connection.is_closed:
            return
        if asked.open_pairs:
            self._later.setdefault(caller.uid, []).append(asked)
            self._ask_more(caller.uid)
            return
        connection.is_waiting = False
        submit = partial(self._submit, caller, rebuilt(asked.call, asked.judged_pairs))
        fields = changed_fields(asked.call, asked.judged_pairs)
        self._loop.write(
            connection, partial(_after_changes, submit, fields) if fields else submit, caller.name
        )

    def _ask_more(self, uid: int) -> None:
        """Ask the next questions of a user. One whose asker has gone is not asked, and takes no memory."""
        later = [asked for asked in self._later.pop(uid, ()) if not asked.connection.is_closed]
        free = _MOST - self._asking[uid]
        if later[free:]:
            self._later[uid] = later[free:]
        for asked in later[:free]:
            caller = asked.caller
            who = Who(user=caller.name, uid=caller.uid, gid=caller.gid, operator=caller.is_operator)
            self._asking[uid] += 1
            text = question(asked.call, asked.open_pairs[-1], who)
            self._site_programs.filter(text, uid, partial(self._answered, asked))

    def _answered(self, asked: _FilteredSubmission, ran: Ran) -> None:
        uid = asked.caller.uid
        self._asking[uid] -= 1
        if not self._asking[uid]:
            del self._asking[uid]
        try:
            self._judge(asked, ran)
        finally:
            self._ask_more(uid)

    def _judge(self, asked: _FilteredSubmission, ran: Ran) -> None:
        pair, connection = asked.open_pairs.pop(), asked.connection
        try:
            asked.judged_pairs.append((pair, judged(asked.call.requests[pair[0]], ran)))
        except FgschedError as error:
            if isinstance(error, Unusable):
                name = asked.call.requests[pair[0]].name
                log.warning(
                    "the answer of the submit filter about %r of %s: %s", name, asked.caller.name, error.why
                )
            connection.is_waiting = False
            refusal = blamed(asked.call, pair, error)
            self._loop.finish(connection, lambda: connection.fail(refusal))
            return
        self._next(asked)


def _after_changes(submit: Callable[[float], Any], fields: list[str], now: float) -> Any:
    """Submit what the filter changed. A refusal says so: the user did not ask for these values."""
    try:
        return submit(now)
    except FgschedError as error:
        changed = f"The submit filter of this site had changed: {', '.join(fields)}."
        error.remedy = f"{error.remedy} {changed}".lstrip()
        raise


# -- the handler of submissions --------------------------------------------------------------------

FIRST_USER = 1000  # uids below it are root's and of services


class Rules(Struct, frozen=True):
    """The configuration of submissions."""

    max_script: int
    default_time: int  # seconds; 0: none
    least_uid: int = 0  # lowest uid that may own jobs
    tiers: tuple[str, ...] = ()  # levels that a job may request
    kill_invalid: bool = False  # cancel jobs whose dependency can never be met, unless they request otherwise
    max_jobs: int = 100_000  # unfinished jobs of one user
    max_material: int = 0  # bytes of scripts and environments of a user's open jobs; 0: no limit
    kept_material: int = 0  # bytes of ended jobs that are kept; more counts until it is deleted
    mail: MailSettings = NO_MAIL


def rules_of(paths: Paths, config: Config) -> Rules:
    """Return the rules for submissions from the configuration."""
    may_be_root = paths.mode == "user" or config.allow_root_jobs
    return Rules(
        config.max_script,
        config.default_time,
        least_uid=0 if may_be_root else FIRST_USER,
        tiers=config.tiers,
        kill_invalid=config.kill_invalid_depend,
        max_jobs=config.max_jobs_per_user,
        max_material=config.max_bytes_per_user,
        kept_material=config.keep_scripts_size,
        mail=config.mails,
    )


class _SubmissionOrigin(Struct, frozen=True):
    """Where a submission comes from."""

    key: str  # of the client
    inside: int  # id of the job in which the client runs; 0: none


class SubmissionHandlers:
    """The handler of submissions, with the quota and the labels of users since the start."""

    def __init__(self, engine: Engine, rules: Rules) -> None:
        self._engine = engine
        self.rules = rules
        self._quota = MaterialQuota(engine.store)
        self.labels = Labels()

    @writes(protocol.Submit)
    def submit(self, caller: Caller, call: protocol.Submit, now: float) -> protocol.Submitted:
        """Queue jobs; a key that was used before returns the ids of the jobs that it made then."""
        return self._queued(caller, self._read(caller, call), call, now)

    def submit_prepared(
        self, caller: Caller, submission: Submission, key: str, now: float
    ) -> protocol.Submitted:
        """Queue the job of a command line, as `submit` does."""
        caller.may_own_jobs(self.rules.least_uid)
        job = NewJob(
            request=_admitted(submission.request, caller.submitter, self.ground, self.rules),
            script=_checked(submission.script, self.rules.max_script),
            environment=_environment(submission.environment, 0),
            held="user" if submission.hold else "",
        )
        return self._queued(caller, [job], _SubmissionOrigin(key=key, inside=submission.inside), now)

    def _queued(
        self, caller: Caller, jobs: list[NewJob], source: _SubmissionOrigin | protocol.Submit, now: float
    ) -> protocol.Submitted:
        engine, key = self._engine, source.key
        known = engine.store.submitted(caller.uid, key)
        if known is None:
            jobs = self._settled(caller, jobs, source.inside, now)
            size = self._quota.check(caller.uid, jobs, self.rules.max_material, self.rules.kept_material)
            who = (caller.uid, caller.gid, caller.name)
            made = engine.store.submit(jobs, key=key, submitter=who, now=now)
            for job in made:
                engine.jobtable.put(job)
            engine.log.submitted(made[0], len(made))
            self._quota.add(caller.uid, size)
            self.labels.add(caller.uid, jobs)
            known = range(made[0].id, made[-1].id + 1)
        warnings = self._about_dependencies(jobs, now)
        chain = _about_chain(engine.jobtable.jobs.get(known.start))
        return protocol.Submitted(first=known.start, count=len(known), warnings=chain + warnings)

    def _about_dependencies(self, jobs: Sequence[NewJob], now: float) -> tuple[str, ...]:
        """Return warnings about dependencies that can never be met."""
        requests = [job.request for job in jobs if job.request.dependency]
        if not requests:
            return ()
        unmet, kill_invalid = UnmetConditions(self._engine, now), self.rules.kill_invalid
        texts = [unmet.warning(request, kill_invalid=kill_invalid) for request in requests]
        return tuple(dict.fromkeys(filter(None, texts)))

    def tried(self, caller: Caller, batch: protocol.Batch[Any], now: float) -> list[NewJob]:
        """Return the jobs that a submission would make, or refuse it as `submit` does; nothing is stored."""
        jobs = self._settled(caller, self._read(caller, batch), batch.inside, now)
        self._quota.check(caller.uid, jobs, self.rules.max_material, self.rules.kept_material)
        return jobs

    def _read(self, caller: Caller, batch: protocol.Batch[Any]) -> list[NewJob]:
        caller.may_own_jobs(self.rules.least_uid)
        return read_submission(batch, caller.submitter, self.ground, self.rules)

    def _settled(self, caller: Caller, jobs: list[NewJob], inside: int, now: float) -> list[NewJob]:
        """Complete the jobs with values that the controller determines.

        Raises Refused if they are too many.
        """
        jobtable = self._engine.jobtable
        pending = jobtable.open_of(caller.name)
        most = self.rules.max_jobs
        if pending + sum([size(job.request) for job in jobs]) > most:
            raise Refused(f"{caller.name} has {pending} jobs already", f"{most} is the limit.")
        room_for(jobs, jobtable, caller.name, self._engine.policy)
        conditions = Conditions(self._engine, kill_invalid=self.rules.kill_invalid)
        conditions.refuse_too_many(jobs, caller)
        settled: list[NewJob] = []
        try:
            for job in jobs:
                settled.append(conditions.settled(job, caller, now))
        except FgschedError as error:
            error.job = len(settled)
            raise
        parent = jobtable.jobs.get(inside)
        if parent is None or not parent.state.holds or not caller.owns(parent):
            return settled
        link = follow(parent, now, max_requeue=self._engine.limits.max_requeue)
        return [replace(job, **link) for job in settled] if link else settled

    @property
    def ground(self) -> AdmissionContext:
        """Return the host and the policy to which requests are submitted."""
        engine = self._engine
        return AdmissionContext(
            gpus=engine.gpu_states.gpus,
            are_gpus_unknown=engine.gpu_states.is_unknown,
            limits=engine.limits,
            policy=engine.policy,
            default_time=self.rules.default_time,
            tier=engine.tier,
        )


# -- quota of scripts and environments -------------------------------------------------------------


def _about_chain(job: Job | None) -> tuple[str, ...]:
    """Return the warning about a job that is delayed or held as the next job of a chain; () for another."""
    if job is None or not job.links or not (job.not_before or job.reason is Reason.HELD_MAX_REQUEUE):
        return ()
    reason = Reason.HELD_MAX_REQUEUE if job.held else Reason.BEGIN_TIME
    return (f"job {job.id} was {why(gate_of(job, reason))}",)


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


def _admitted(request: Request, submitter: Submitter, ground: AdmissionContext, rules: Rules) -> Request:
    """Check a request, and return it with the site's defaults. Raises BadUsage, Refused, NotPermitted."""
    request = admit(request, submitter, ground)
    check_plain(request)
    if request.kill_invalid not in ("", "yes", "no"):
        raise BadUsage("request: kill_invalid is neither yes nor no")
    if request.array and parse_array(request.array) != (request.array, 0):
        raise BadUsage("request: array is not a list of indices in its shortest form")
    if request.dependency and str(parse_dependency(request.dependency)) != request.dependency:
        raise BadUsage("request: dependency is not written as it should be")
    check_tier(request.tier, rules.tiers, ground.tier)
    check_mail(request, rules.mail)
    return request


def read_submission(
    batch: Batch[Any], submitter: Submitter, ground: AdmissionContext, rules: Rules
) -> list[NewJob]:
    """Return the jobs of a submission. Raises Refused, BadUsage or NotPermitted for its first fault."""
    if not 0 < len(batch.jobs) <= MAX_JOBS:
        raise Refused(f"{len(batch.jobs)} jobs in one request", f"Submit 1 to {MAX_JOBS} at a time.")
    requests = _requests(batch, submitter, ground, rules)
    scripts = [_checked(text.encode(errors="surrogateescape"), rules.max_script) for text in batch.scripts]
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


def _requests(
    batch: Batch[Any], submitter: Submitter, ground: AdmissionContext, rules: Rules
) -> list[Request]:
    """Return the admitted requests; an error names the first job with the refused request."""
    length = sum([len(request.dependency) for request in batch.requests])
    if length > _DEPENDENCIES:
        raise Refused(
            f"Job dependency problem: {length} characters in one request", f"{_DEPENDENCIES} is the limit."
        )
    found: list[Request] = []
    try:
        for request in batch.requests:
            found.append(_admitted(request, submitter, ground, rules))
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


def _checked(script: bytes, limit: int) -> bytes:
    """Return a script after the checks of its text. Raises BadUsage."""
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
            names = (("account", request.account), ("qos", request.qos))
            for label in [f"{option}={name}" for option, name in names if name]:
                labels = self._of.setdefault(uid, {})
                labels[label] = None
                if len(labels) > _LABELS:
                    del labels[next(iter(labels))]


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


def check_mail(request: Request, settings: MailSettings) -> None:
    """Refuse a type of mail that is unknown, and an address to which the site may send no mail.

    A host that sends no mails takes every address, so that scripts from elsewhere run there.
    Raises: BadUsage, Refused.
    """
    if request.mail_type and parse_mail_types(request.mail_type) != request.mail_type:
        raise BadUsage("request: mail_type is not a list of types in their order")
    for address in request.mail_user.split(",") if request.mail_user and settings.way != "off" else ():
        check_address(address, settings)
