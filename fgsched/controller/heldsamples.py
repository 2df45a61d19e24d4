"""Hold samples for the accountant in limited memory, and drop the least important ones above the limit.

A later sample of the same card or job replaces the earlier one. Minutes are dropped first, the oldest first,
and recorded as a gap; then events; then samples of jobs. The cost of an operation does not depend on the
number of held samples.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from msgspec import Raw, Struct

from fgsched.accounting.messages import Sample, encoded
from fgsched.accounting.records import Gap, GpuRecord, JobSample, Minute

log = logging.getLogger("fgsched.controller")
LOST = "samples could not be stored"


class EncodedSample(NamedTuple):
    """One encoded sample."""

    kind: type[Struct]
    data: Raw
    key: str | int = ""  # of a card or a job
    since: float = 0.0  # epoch seconds, of a minute or a gap
    until: float = 0.0  # epoch seconds

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(memoryview(self.data))


def record_of(sample: Sample) -> EncodedSample:
    """Encode a sample."""
    kind, data = type(sample), encoded(sample)
    if isinstance(sample, GpuRecord):
        return EncodedSample(kind, data, key=sample.uuid)
    if isinstance(sample, JobSample):
        return EncodedSample(kind, data, key=sample.job)
    if isinstance(sample, Minute):
        return EncodedSample(kind, data, since=float(sample.at), until=sample.at + 60.0)
    return (
        EncodedSample(kind, data, since=sample.since, until=sample.until)
        if isinstance(sample, Gap)
        else EncodedSample(kind, data)
    )


class HeldSamples:
    """Samples that wait for the accountant: at most `most` bytes, and the cards."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0  # bytes
        self._last: dict[str | int, EncodedSample] = {}  # by card
        self._jobs: dict[str | int, EncodedSample] = {}
        self._events = deque[EncodedSample]()
        self._timed = deque[EncodedSample]()
        self._lost: tuple[float, float] | None = None  # epoch seconds
        self._has_told = False

    def __len__(self) -> int:
        return (
            len(self._last)
            + len(self._jobs)
            + len(self._events)
            + len(self._timed)
            + (self._lost is not None)
        )

    def add(self, sample: Sample) -> None:
        """Hold a sample; it replaces an earlier one of its card or job."""
        self._put(record_of(sample))
        self._drop_excess()

    def take(self, size: int) -> list[EncodedSample]:
        """Remove and return about `size` bytes of samples, at least one: cards, jobs, events, minutes."""
        taken = [] if self._lost is None else [self._gap(*self._lost)]
        self._lost = None
        while len(self) and (size > 0 or not taken):
            encoded_sample = self._first()
            self._size -= encoded_sample.size
            size -= encoded_sample.size
            taken.append(encoded_sample)
        self._has_told = False
        return taken

    def back(self, records: Iterable[EncodedSample]) -> None:
        """Put back samples from `take`, except where a newer one of the same card or job is held."""
        for record in reversed(list(records)):
            self._put(record, is_newer=False)
        self._drop_excess()

    def all(self) -> Iterator[EncodedSample]:
        """Yield the samples, cards first."""
        lost = [] if self._lost is None else [self._gap(*self._lost)]
        return chain(self._last.values(), lost, self._jobs.values(), self._events, self._timed)

    def _put(self, one: EncodedSample, *, is_newer: bool = True) -> None:
        if one.kind in (GpuRecord, JobSample):
            place = self._last if one.kind is GpuRecord else self._jobs
            before = place.get(one.key)
            if before is not None and not is_newer:
                return
            self._size -= before.size if before is not None else 0
            place[one.key] = one
        else:
            queue = self._timed if one.until else self._events
            (queue.append if is_newer else queue.appendleft)(one)
        self._size += one.size

    def _first(self) -> EncodedSample:
        for place in (self._last, self._jobs):
            if place:
                return place.pop(next(iter(place)))
        return self._events.popleft() if self._events else self._timed.popleft()

    def _drop_excess(self) -> None:
        while self._size > self._most and (self._timed or self._events or self._jobs):
            if self._timed:
                encoded_sample = self._timed.popleft()
                since, until = self._lost or (encoded_sample.since, encoded_sample.until)
                self._lost = min(since, encoded_sample.since), max(until, encoded_sample.until)
            else:
                encoded_sample = (
                    self._events.popleft() if self._events else self._jobs.pop(next(iter(self._jobs)))
                )
                self._tell()
            self._size -= encoded_sample.size

    def _tell(self) -> None:
        if not self._has_told:
            log.warning(
                "events or samples of jobs are dropped: the accounts could not be written for too long"
            )
        self._has_told = True

    def _gap(self, since: float, until: float) -> EncodedSample:
        return record_of(Gap(since=since, until=until, why=LOST))
