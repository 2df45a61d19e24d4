"""Send ended jobs and samples to the accountant, and limit the memory of samples that wait.

One message is under way at a time. Its records are dropped when the accountant has acknowledged it. If the
accountant ends before that, they are sent again: a record that is stored twice changes nothing. Ended jobs
wait in the queue. Samples wait in memory; above a limit the oldest are dropped, and recorded as a gap.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec import Raw, Struct
from msgspec.structs import replace

from fgsched.accounting.messages import (
    UNREADABLE,
    AccountantProcess,
    Answer,
    Archive,
    Backup,
    Keep,
    Order,
    Sample,
    batch_line,
    encoded,
    line,
)
from fgsched.accounting.records import Gap, GpuRecord, JobAccount, JobSample, Minute, Warned
from fgsched.config.schema import Config
from fgsched.controller.jobtable import JobTable
from fgsched.controller.moving import Mover, PastJobs, Site
from fgsched.domain.errors import FgschedError, OurFault, Refused, StorageError
from fgsched.store import Store
from fgsched.store.store import Unreadable
from fgsched.system.paths import Paths
from fgsched.system.process import Watch
from fgsched.views.display import host_name

LOST = "samples could not be stored"


# -- samples in limited memory ---------------------------------------------------------------------
#
# A later sample of the same GPU or job replaces the earlier one. Minutes are dropped first, the oldest first,
# and recorded as a gap; then events; then samples of jobs. The cost of an operation does not depend on the
# number of held samples.


class EncodedSample(NamedTuple):
    """One encoded sample."""

    kind: type[Struct]
    data: Raw
    key: str | int = ""  # of a GPU or a job
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
    """Samples that wait for the accountant: at most `most` bytes, and the GPUs."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0  # bytes
        self._last: dict[str | int, EncodedSample] = {}  # by GPU
        self._jobs: dict[str | int, EncodedSample] = {}
        self._events = deque[EncodedSample]()
        self._timed = deque[EncodedSample]()
        self._lost: tuple[float, float] | None = None  # epoch seconds
        self._has_warned = False

    def __len__(self) -> int:
        return (
            len(self._last)
            + len(self._jobs)
            + len(self._events)
            + len(self._timed)
            + (self._lost is not None)
        )

    def add(self, sample: Sample) -> None:
        """Hold a sample; it replaces an earlier one of its GPU or job."""
        self._put(record_of(sample))
        self._drop_excess()

    def take(self, size: int) -> list[EncodedSample]:
        """Remove and return about `size` bytes of samples, at least one: GPUs, jobs, events, minutes."""
        batch = [] if self._lost is None else [self._gap(*self._lost)]
        self._lost = None
        while len(self) and (size > 0 or not batch):
            encoded_sample = self._first()
            self._size -= encoded_sample.size
            size -= encoded_sample.size
            batch.append(encoded_sample)
        self._has_warned = False
        return batch

    def back(self, records: Iterable[EncodedSample]) -> None:
        """Put back samples from `take`, except where a newer one of the same GPU or job is held."""
        for record in reversed(list(records)):
            self._put(record, is_newer=False)
        self._drop_excess()

    def all(self) -> Iterator[EncodedSample]:
        """Yield the samples, GPUs first."""
        gaps = [] if self._lost is None else [self._gap(*self._lost)]
        return chain(self._last.values(), gaps, self._jobs.values(), self._events, self._timed)

    def _put(self, sample: EncodedSample, *, is_newer: bool = True) -> None:
        if sample.kind in (GpuRecord, JobSample):
            place = self._last if sample.kind is GpuRecord else self._jobs
            before = place.get(sample.key)
            if before is not None and not is_newer:
                return
            self._size -= before.size if before is not None else 0
            place[sample.key] = sample
        else:
            queue = self._timed if sample.until else self._events
            (queue.append if is_newer else queue.appendleft)(sample)
        self._size += sample.size

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
                self._warn_of_dropped()
            self._size -= encoded_sample.size

    def _warn_of_dropped(self) -> None:
        if not self._has_warned:
            log.warning(
                "events or samples of jobs are dropped: the accounts could not be written for too long"
            )
        self._has_warned = True

    def _gap(self, since: float, until: float) -> EncodedSample:
        return record_of(Gap(since=since, until=until, why=LOST))


log = logging.getLogger("fgsched.controller")
_HELD = 16 << 20  # bytes of samples that wait at most
_MESSAGE = 96 << 10  # bytes of a message: one that fits into the socket's buffer, as a rule
_PAUSE = 1.0  # seconds after a first failure; it doubles with each further one
_LONGEST_PAUSE = 300.0
_REMEMBERED = 30 * 86_400.0  # seconds for which the runs of a job name are remembered for forecasts
_GATHER = 1.0  # seconds for which samples are gathered: each message costs a commit and a turn
_FLUSH = 0.02  # seconds until the next attempt, if a message did not fit into the socket
Then = Callable[[Answer], None]


class _UnderWay(NamedTuple):
    number: int
    samples: list[EncodedSample]
    jobs: list[int]
    then: Then | None = None  # of an order


class Bookkeeper:
    """The controller's side of the accountant. No method blocks."""

    def __init__(self, process: AccountantProcess, jobs: Mover, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._process, self._jobs, self._clock = process, jobs, clock
        self._held = HeldSamples(_HELD)
        self._under_way: _UnderWay | None = None
        self._orders: deque[tuple[Order, Callable[[], None], Then]] = deque()
        self._number = self._failures = 0
        self._is_alive = bool(process.pid)
        self._not_before = self._gather_until = 0.0
        self.trouble = ""  # why nothing can be stored; "": the last message was stored
        self.file_size = 0  # bytes

    def begin(self, watch: Watch) -> None:
        """Watch the process; `watch` calls back once when the process of a pidfd has ended."""
        self._process.begin(watch, self._ended)

    def send(self, *records: Sample) -> None:
        """Store these records soon. Never fails; samples that cannot be stored for long become a gap."""
        for record in records:
            self._held.add(record)

    def order(self, order: Order, begin: Callable[[], None], then: Then) -> None:
        """Send an order to the accountant after earlier orders, and before samples and jobs.

        `begin` is called when it is sent. `then` is called once, with the answer or an error.
        """
        self._orders.append((order, begin, then))

    def keep(self, keep: Keep) -> None:
        """Send changed retention times to the accountant."""
        self._process.keep = keep
        self._process.send(line(keep))

    @property
    def waiting(self) -> int:
        """The number of records that wait to be sent."""
        return len(self._held)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has answers."""
        return self._process.fileno()

    def due(self) -> float | None:
        """Return the seconds until `look` has something to do; None if nothing is due."""
        if self._under_way is not None:
            return _FLUSH if self._process.has_unsent else None
        now = self._clock()
        if self._orders or not self._is_alive:
            pause: float | None = 0.0
        else:
            flush_pause = self._gather_until - now if self._held else None
            pause = min(
                (seconds for seconds in (flush_pause, self._jobs.due(now)) if seconds is not None),
                default=None,
            )
        return None if pause is None else max(pause, self._not_before - now, 0.0)

    def look(self, wall: float) -> None:
        """Send the next message, if it is time and none is under way. `wall` in epoch seconds."""
        if self._process.has_unsent:
            self._process.flush()
        now = self._clock()
        if self._under_way is not None or now < self._not_before:
            return
        if not self._is_alive:
            self._restart()
            return
        if self._orders:
            self._send_order(*self._orders.popleft())
            return
        jobs = self._jobs.next_jobs(now, wall)
        if jobs or (self._held and now >= self._gather_until):
            self._gather_until = now + _GATHER
            self._send(jobs)

    def receive(self) -> None:
        """Take in the answers of the accountant."""
        for answer in self._process.receive():
            if self._under_way is not None and answer.number in (self._under_way.number, UNREADABLE):
                self._answered(self._under_way, answer)

    def finish(self) -> None:
        """Send the held samples without waiting for an answer. For the end of the controller."""
        if self._held and self._process.pid:
            self._process.send(
                batch_line(
                    0, [(encoded_sample.kind, encoded_sample.data) for encoded_sample in self._held.all()]
                )
            )

    # -- messages -------------------------------------------------------------------------------

    def _send(self, jobs: Sequence[JobAccount]) -> None:
        records = [(JobAccount, encoded(job)) for job in jobs]
        size = sum(len(memoryview(record)) for _, record in records)
        samples = self._held.take(_MESSAGE - size)
        self._number += 1
        self._under_way = _UnderWay(self._number, samples, [job.id for job in jobs])
        self._process.send(
            batch_line(self._number, [*((sample.kind, sample.data) for sample in samples), *records])
        )

    def _send_order(self, order: Order, begin: Callable[[], None], then: Then) -> None:
        self._number += 1
        try:
            begin()
        except FgschedError as error:
            then(_failed(self._number, error))
            return
        except Exception as error:  # the client must get an answer
            log.exception("an order for the accountant could not be sent")
            cause = f"{type(error).__name__}: {error}"
            then(_failed(self._number, OurFault(cause, "The log of the controller has more.")))
            return
        self._under_way = _UnderWay(self._number, [], [], then)
        self._process.send(line(replace(order, number=self._number)))

    def _answered(self, sent: _UnderWay, answer: Answer) -> None:
        self._under_way = None
        if sent.then is not None:
            sent.then(answer)
            return
        if answer.error:
            self._put_back(sent)
            self._fail(
                ". ".join(sentence.rstrip(".") for sentence in (answer.error, answer.remedy) if sentence)
            )
            return
        if self.trouble:
            log.warning("the accounts can be written again")
        self.trouble, self._failures, self.file_size = "", 0, answer.size
        if sent.jobs:
            self._jobs.stored(sent.jobs, answer.refused)

    def _put_back(self, sent: _UnderWay) -> None:
        if sent.jobs:
            self._jobs.back()
        self._held.back(sent.samples)

    # -- the process ----------------------------------------------------------------------------

    def _restart(self) -> None:
        try:
            self._process.start()
        except OSError as error:
            self._fail(f"the accountant cannot be started: {error}")
            return
        self._is_alive = True

    def _ended(self) -> None:
        """Take back the records that the ended process did not acknowledge."""
        self._is_alive = False
        self.receive()
        sent, self._under_way = self._under_way, None
        if sent is not None and sent.then is not None:
            sent.then(_failed(sent.number, StorageError("the accountant has ended", "Repeat the command.")))
        elif sent is not None:
            self._put_back(sent)
        self._fail("the accountant has ended")

    def _fail(self, why: str) -> None:
        """Wait before the next message; the pause doubles with each failure in a row."""
        if why != self.trouble:
            log.warning("ended jobs stay in the queue, and samples in memory: %s", why)
        self.trouble = why
        self._not_before = self._clock() + min(_LONGEST_PAUSE, _PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, 20)


def _failed(number: int, error: FgschedError) -> Answer:
    return Answer(number=number, error=error.cause, remedy=error.remedy, exit=int(error.exit_code))


# -- the accounts as parts of the controller -----------------------------------------------------------


class Accounts:
    """The accounts of a controller: moved jobs, the move, and the accountant, if there is one."""

    def __init__(
        self,
        accountant: AccountantProcess | None,
        paths: Paths,
        config: Config,
        store: Store,
        jobtable: Callable[[], JobTable],
    ) -> None:
        """Look up moved jobs in the accounts; `jobtable` returns the present table."""
        self.past_jobs = PastJobs(paths.accounts)
        store.use_moved(self.past_jobs)
        self._mover = Mover(store, self.past_jobs, Site(jobtable, host_name()), config.move_after)
        self.bookkeeper = Bookkeeper(accountant, self._mover, time.monotonic) if accountant else None
        self._store = store

    @property
    def send(self) -> Callable[..., None] | None:
        """Send records to the accountant; None: the controller keeps no accounts."""
        return self.bookkeeper.send if self.bookkeeper is not None else None

    def begin(self, watch: Callable[[Any, Callable[[], None]], None], watch_once: Watch, wall: float) -> None:
        """Take part in the event loop. `wall` in epoch seconds."""
        try:
            self._store.raise_ids(self.past_jobs.last_id())
            self.past_jobs.read_runs(wall - _REMEMBERED)
        except Unreadable as error:
            log.warning("%s %s", error.cause, error.remedy)
        if self.bookkeeper is not None:
            watch(self.bookkeeper, self.bookkeeper.receive)
            self.bookkeeper.begin(watch_once)

    @property
    def trouble(self) -> str:
        """Why the accounts cannot be written; "": they can, or the settings disable them."""
        return self.bookkeeper.trouble if self.bookkeeper is not None else ""

    @property
    def due(self) -> float | None:
        """The seconds until `look` has something to do; None if nothing is due."""
        return self.bookkeeper.due() if self.bookkeeper is not None else None

    def look(self, wall: float) -> None:
        """Send the next message to the accountant, if it is time. `wall` in epoch seconds."""
        if self.bookkeeper is not None:
            self.bookkeeper.look(wall)

    def back_up(self, file: str, then: Then) -> None:
        """Copy queue and accounts into `file`; `then` is called with the answer. Raises Refused."""
        order = Backup(number=0, queue=str(self._store.path), file=file)

        def told(answer: Answer) -> None:
            self._store.hold_file(hold=False)
            then(answer)

        self._enabled_bookkeeper().order(order, lambda: self._store.hold_file(hold=True), told)

    def archive(self, file: str, before: int, then: Then) -> None:
        """Move records from before `before` (epoch seconds) to `file`; `then` gets the answer.

        Raises:
            Refused: there are no accounts.
        """
        self._enabled_bookkeeper().order(Archive(number=0, before=before, file=file), lambda: None, then)

    def note(self, warned: Warned) -> None:
        """Store the warning or action of a policy. Raises Refused if there are no accounts."""
        self._enabled_bookkeeper().send(warned)

    def _enabled_bookkeeper(self) -> Bookkeeper:
        if self.bookkeeper is None:
            raise Refused(
                "this controller keeps no accounts", "Set enabled = true in [accounting] and restart it."
            )
        return self.bookkeeper

    def ended(self) -> None:
        """Note that jobs have ended."""
        self._mover.ended(time.monotonic())

    def configure(self, config: Config) -> None:
        """Use changed settings."""
        self._mover.move_after = config.move_after
        self._mover.ended(time.monotonic())
        if self.bookkeeper is not None:
            self.bookkeeper.keep(keep_of(config))

    def close(self) -> None:
        """Send the waiting samples without waiting for an answer, and close the accounts."""
        if self.bookkeeper is not None:
            self.bookkeeper.finish()
        self.past_jobs.close()


def accountant_of(paths: Paths, config: Config) -> AccountantProcess | None:
    """Return the accountant, which `Bookkeeper` starts in the first round; None without accounts.

    On two processors its imports would delay the first answer.
    """
    return AccountantProcess(paths.accounts, keep_of(config)) if config.accounting else None


def keep_of(config: Config) -> Keep:
    """Return how long samples are kept."""
    return Keep(minutes=config.keep_minutes, hours=config.keep_hours, days=config.keep_days)
