"""The keys by which jobs of partitions and qualities of service make room for others."""

from dataclasses import dataclass
from typing import Any

from fgsched.config import settings as kinds
from fgsched.config.settings import Kind, Unfit, key
from fgsched.domain.errors import BadUsage
from fgsched.domain.policy import MODES, Policy, PreemptRule
from fgsched.domain.times import format_limit
from fgsched.scheduling.preemption import wrong

LONGEST_GRACE = 7200  # seconds: what a command to a shepherd can carry


def _mode(*words: str) -> Kind:
    """One of these, in Slurm's capitals too."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise Unfit
        return value.lower()

    takes = " or ".join(f'"{word}"' for word in words if word)
    return Kind(takes=takes, read=read, show=lambda word: f'"{word}"')


_TIME = Kind(
    takes='a time such as "30", which are minutes, or "1:00:00"',
    read=kinds.DURATION.read,
    show=lambda seconds: f'"{format_limit(seconds) if seconds else 0}"',
)


def _grace(table: str) -> Any:
    says = "Seconds between the warning of such a job and its end."
    return key(table, kinds.WHOLE, 0, low=0, high=LONGEST_GRACE, says=says)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPrecedence:
    """Of [partitions.NAME]."""

    preempt: tuple[str, ...] = key(
        "partitions", kinds.NAMES, (), says="Partitions after it whose jobs make room for its own."
    )
    preempt_mode: str = key("partitions", _mode(*MODES), "requeue", says="How its own jobs make room.")
    preempt_grace: int = _grace("partitions")
    preempt_exempt: int = key("partitions", _TIME, 0, says="Time that its jobs run undisturbed.")

    @property
    def precedence(self) -> dict[str, Any]:
        return _made(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QosPrecedence:
    """Of [qos.NAME]."""

    preempt: tuple[str, ...] = key(
        "qos", kinds.NAMES, (), says="Those of lower priority whose jobs make room for its own."
    )
    preempt_mode: str = key(
        "qos", _mode("", *MODES), "", says="How its own jobs make room; default as their partition has it."
    )
    preempt_grace: int = _grace("qos")
    preempt_exempt: int = key("qos", _TIME, 0, says="Time that its jobs run undisturbed.")

    @property
    def precedence(self) -> dict[str, Any]:
        return _made(self)


def _made(found: PartitionPrecedence | QosPrecedence) -> dict[str, Any]:
    """The part of a partition or a quality of service that it comes to."""
    how = PreemptRule(found.preempt_mode, found.preempt_grace, found.preempt_exempt)
    return {"preempt": found.preempt, "preempt_rule": how}


def check_file(path: str, text: str, policy: Policy) -> None:
    """BadUsage with file and line if jobs would have to make room against the order."""
    if (found := wrong(policy)) is not None:
        line = kinds.line_of(text, (found.table, found.name, "preempt"))
        raise BadUsage(f"{path}:{line}: {found.why}.", found.remedy)


def checked(policy: Policy) -> Policy:
    """The same for what operators say of partitions."""
    if (found := wrong(policy)) is not None:
        raise BadUsage(found.why, found.remedy)
    return policy
