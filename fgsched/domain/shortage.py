"""The words for running out of device memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Device memory that a job asked for last and did not get."""

    gpu: int  # index
    asked: int  # bytes
    held: int  # bytes that it had on that card


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """Why a job ran out of device memory, and who else was on the card."""

    gpu: int  # index
    asked: int  # bytes; 0: nothing was refused, the watchdog saw too much
    held: int
    limit: int
    jobs: tuple[tuple[int, int], ...] = ()  # (id, bytes that it was given)
    strangers: int = 0  # bytes of processes that belong to no job
