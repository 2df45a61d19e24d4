"""Decide which mails are due when a job changes, and parse --mail-type and --mail-user."""

from fgsched.domain.job import Job
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import BadValue, lazy_regex

BEGIN, END, FAIL, REQUEUE, INVALID_DEPEND = "BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND"
TIME_LIMIT, ARRAY_TASKS = "TIME_LIMIT", "ARRAY_TASKS"
PARTS = {"TIME_LIMIT_90": 90, "TIME_LIMIT_80": 80, "TIME_LIMIT_50": 50}  # per cent of the time limit
TYPES = (BEGIN, END, FAIL, REQUEUE, INVALID_DEPEND, TIME_LIMIT, *PARTS, ARRAY_TASKS)
_ALL = {BEGIN, END, FAIL, REQUEUE, INVALID_DEPEND}
_WITHOUT_EFFECT = {"STAGE_OUT"}  # Slurm's burst buffers
_MOST_ADDRESSES = 10
_LONGEST_ADDRESS = 254
_ADDRESS = lazy_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_.+='-]{0,63}(@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*)?"
)


def parse_mail_types(text: str) -> str:
    """Parse a list of mail types into its canonical form; "" is none. Raises BadValue."""
    mail_types: set[str] = set()
    for word in text.upper().split(","):
        name = word.strip()
        if name == "NONE":
            return ""
        if name not in TYPES and name not in _WITHOUT_EFFECT and name != "ALL":
            raise BadValue(text, f": {word!r} is not one of NONE, ALL, {', '.join(TYPES)}")
        mail_types |= _ALL if name == "ALL" else {name}
    return ",".join(name for name in TYPES if name in mail_types)


def usable_addresses(text: str) -> str:
    """Return the addresses of a list to which mails can be sent: "" for $USER@DOMAIN."""
    return ",".join([address for address in text.split(",") if is_address(address)][:_MOST_ADDRESSES])


def parse_mail_user(text: str) -> str:
    """Parse one or several addresses, separated by commas. Raises BadValue."""
    addresses = text.split(",")
    for address in addresses:
        if not is_address(address):
            raise BadValue(text, ": an address is a user name, or NAME@DOMAIN in ASCII")
    if len(addresses) > _MOST_ADDRESSES:
        raise BadValue(text, f": at most {_MOST_ADDRESSES} addresses")
    return text


def is_address(text: str) -> bool:
    """Tell whether a text is a user name or NAME@DOMAIN that no mail program takes for an option."""
    return len(text) <= _LONGEST_ADDRESS and bool(_ADDRESS.fullmatch(text))


def types_of(job: Job) -> list[str]:
    """Return the types of mails that a job asked for."""
    return job.request.mail_type.split(",") if job.request.mail_type else []


def wants(job: Job, kind: str) -> bool:
    """Tell whether a job asked for mails of a type."""
    return kind in types_of(job)


def recipients(job: Job) -> tuple[str, ...]:
    """Return the addresses of the mails of a job, by default that of its user."""
    return tuple((job.request.mail_user or job.user).split(","))


def events(before: Job, after: Job) -> list[str]:
    """Return the types of the mails that a change makes due, among the types that the job asked for.

    A failed job gets one mail: FAIL, or END if it asked for END only. A cancelled job has ended.
    """
    kinds = []
    if _has_begun(before, after):
        kinds.append(BEGIN)
    if after.state.is_final:
        kinds += [TIME_LIMIT] if after.state is JobState.TIMEOUT else []
        has_failed = after.state not in (JobState.COMPLETED, JobState.CANCELLED)
        kinds.append(FAIL if has_failed and wants(after, FAIL) else END)
    elif after.state is JobState.PENDING and after.restarts > before.restarts:
        kinds.append(REQUEUE)
    if after.reason is Reason.DEPENDENCY_NEVER is not before.reason:
        kinds.append(INVALID_DEPEND)
    return [kind for kind in kinds if wants(after, kind)]


def _has_begun(before: Job, after: Job) -> bool:
    """Tell whether a job began to run; its start and its end may arrive together."""
    if before.state is not JobState.STARTING:
        return False
    if after.state is JobState.RUNNING:
        return True
    return after.ended is not None and after.reason is not Reason.LAUNCH_FAILURE


def next_part(job: Job, now: float) -> tuple[float, str] | None:
    """Return (epoch seconds, type) of the earliest mail about the used part of the time limit after `now`."""
    times = [(at, kind) for kind in PARTS if wants(job, kind) and (at := part_at(job, kind)) > now]
    return min(times, default=None)


def part_at(job: Job, kind: str) -> float:
    """Return when a running job has used a part of its time limit, in epoch seconds; 0: it has none."""
    if job.started_at is None or not job.request.time_limit:
        return 0.0
    return job.started_at + job.suspended + job.request.time_limit * PARTS[kind] / 100
