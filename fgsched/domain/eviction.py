"""The word for a job that has to make room for another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A job has to make room for another. Durable before the first signal."""

    by: int  # the other job
    at: float  # seconds since the epoch
    mode: str  # "requeue", "cancel" or "suspend"
    attempt: int  # of which this is said; 0: it was let go on
    grace: int = 0  # seconds between the warning and the end
    until: float = 0.0  # it has surely ended by then
