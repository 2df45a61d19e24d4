"""Add each look at the GPUs to the samples, and send completed records to the accountant."""

import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fgsched import gpus
from fgsched.accounting.messages import Sample
from fgsched.accounting.records import GpuRecord
from fgsched.accounting.samples import GpuLook, JobLook, Look, ProcessLook, Samples, Waiting
from fgsched.controller.engine import Engine
from fgsched.controller.gpumonitor import GpuObservation
from fgsched.controller.gpustate import BY_ITSELF
from fgsched.controller.moving import PastJobs, owner_of
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import NOT_ENDED, WHOLE, Demand, Gpu, GpuProcess, Job, JobUsage, Reading
from fgsched.domain.states import JobState
from fgsched.domain.waiting import Shortfall
from fgsched.gpus.simulated import JobLoad, parse_load
from fgsched.lifecycle.launchspec import SIMULATED_LOAD, STEPS_LOAD, job_dir
from fgsched.lifecycle.transitions import Shepherd
from fgsched.protocol import OnGpu
from fgsched.store.store import Unreadable
from fgsched.system.hostusers import HostUsers

log = logging.getLogger("fgsched.controller")
_CARDS = 3600.0  # seconds between two records of a GPU
_DEMAND = 15.0  # seconds between two computations of the demand of pending jobs
_ENDED = 2000  # jobs whose use is kept in memory
_KINDS = 500  # of pending jobs, that are examined
_LONGEST_LOAD = 256  # bytes
_LONGEST_PASSWD = 1 << 20  # bytes
_LACKING = {
    **{"share": "share", "memory": "memory", "cards": "gpus", "jobs": "gpus", "type": "type", "cpus": "cpus"},
    **{"host memory": "host_memory", "gpus": ""},
}


class SampledUsage:
    """The sums of samples of open jobs, and of the last jobs that have ended."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two looks."""
        self.samples = Samples(interval)
        self.ended: dict[int, JobUsage] = {}  # of the last jobs, until the accounts have them

    def of(self, job: Job) -> JobUsage | None:
        """Return the sums of samples of an open job, or of one of the last 2,000 ended jobs; None: none."""
        return self.samples.usage(job.id) or self.ended.get(job.id)


class Sampling:
    """The samples of a controller."""

    def __init__(
        self, engine: Engine, host_users: HostUsers, send: Callable[..., None] | None, sampled: SampledUsage
    ) -> None:
        """Begin without a look.

        Args:
            host_users: looks up names of users.
            send: sends records to the accountant; None: the controller keeps no accounts.
            sampled: has the sums from then on.
        """
        self._engine, self._user_names = engine, UserNames(host_users)
        self._send = send or _discard
        self._sampled = sampled
        self._began_at = time.time()
        self._last_look: Look | None = None
        self._gpus: tuple[Gpu, ...] = ()  # that were recorded
        self._gpus_at = self._waiting_at = float("-inf")  # monotonic seconds
        self._waiting: tuple[Waiting, ...] = ()

    def begin(self, past: PastJobs) -> None:
        """Continue the samples of an earlier controller."""
        if self._send is _discard:
            return
        interval, holding = self._sampled.samples.interval, self._engine.jobtable.holding
        try:
            self._sampled.samples = Samples(interval, past.sampled_until())
            for job, usage in past.samples_of(holding).items():
                self._sampled.samples.restore(job, usage)
        except Unreadable as error:
            log.warning("%s %s", error.cause, error.remedy)

    def configure(self, interval: float) -> None:
        """Use another interval between two looks, in seconds."""
        self._sampled.samples.interval = interval

    def user_name(self, uid: int) -> str:
        """Return the name of a user; "uid 1000" until it is known."""
        return self._user_names.name(uid)

    def use_now(self, job: Job) -> list[OnGpu]:
        """Return the use of each GPU by a running job in the last look."""
        charged = {
            gpu_allocation.uuid: gpu_allocation.gpu
            for gpu_allocation in self._engine.jobtable.allocations.get(job.id, ())
        }
        uses = []
        for gpu in self._last_look.gpus if self._last_look is not None else ():
            if gpu.uuid in charged:
                process_looks = [process for process in gpu.processes if process.job == job.id]
                busy = [process_look.busy for process_look in process_looks if process_look.busy is not None]
                total = sum(busy) if busy or not process_looks else None
                memory = sum(process_look.memory for process_look in process_looks)
                uses.append(OnGpu(gpu=charged[gpu.uuid], memory=memory, busy=total))
        return uses

    def add_look(self, gpu_view: GpuObservation, answer: gpus.GpuAnswer) -> None:
        """Add one look at the GPUs to the samples."""
        wall, clock = time.time(), time.monotonic()
        self._record_gpus(wall, clock)
        look = self._look(gpu_view, answer, wall, clock)
        self._last_look = None if look.error else look
        self._send(*self._sampled.samples.look(look))

    def ended(self, jobs: Iterable[Job]) -> None:
        """Send the sums of jobs that have ended."""
        records: list[Sample] = []
        for job in jobs:
            ended = job.ended or NOT_ENDED
            for record in self._sampled.samples.end(job.id, read=ended.disk_read, written=ended.disk_written):
                self._sampled.ended[job.id] = record.usage
                records.append(record)
        for job_id in list(self._sampled.ended)[: max(0, len(self._sampled.ended) - _ENDED)]:
            del self._sampled.ended[job_id]
        self._send(*records)

    def finish(self) -> None:
        """Send the records of the incomplete minute. For the end of the controller."""
        self._send(*self._gpus_of(time.time()), *self._sampled.samples.finish())

    # -- a look ---------------------------------------------------------------------------------

    def _look(self, gpu_view: GpuObservation, answer: gpus.GpuAnswer, wall: float, clock: float) -> Look:
        if answer.error or not gpu_view.readings:
            return Look(wall=wall, clock=clock, error=answer.error or "there is no GPU")
        states = self._engine.gpu_states
        return Look(
            wall=wall,
            clock=clock,
            gpus=tuple(
                self._gpu(states.gpu(index), reading, gpu_view, answer.people)
                for index, reading in gpu_view.readings.items()
                if index in states
            ),
            jobs=tuple(self._jobs()),
            driver=answer.driver,
            waiting=self._demand(clock),
        )

    def _gpu(
        self, gpu: Gpu, reading: Reading, gpu_view: GpuObservation, people: Mapping[int, gpus.Person]
    ) -> GpuLook:
        process_looks = [self._process(process, gpu_view.owners, people) for process in reading.processes]
        looks = [
            ProcessLook(pid=gpu_process.pid, busy=gpu_process.busy, has_ended=True)
            for gpu_process in reading.past
        ]
        return GpuLook(
            uuid=gpu.uuid,
            size=gpu.usable,
            used=reading.used,
            foreign=reading.external,
            processes=(*process_looks, *looks),
            state=gpu.state.value,
            why=gpu.note.removesuffix(BY_ITSELF),
            utilisation=reading.utilisation,
            temperature=reading.temperature,
            energy=reading.energy,
            throttled=reading.throttled,
            ecc=reading.ecc,
            xids=reading.xids,
            remap=reading.remap,
        )

    def _process(
        self, process: GpuProcess, owners: Mapping[int, int], people: Mapping[int, gpus.Person]
    ) -> ProcessLook:
        job = owners.get(process.pid)
        if job is not None:
            return ProcessLook(pid=process.pid, memory=process.memory, busy=process.busy, job=job)
        person = people.get(process.pid)
        user = self._user_names.name(person.uid) if person else "unknown"
        command = person.command if person else ""
        return ProcessLook(
            pid=process.pid, memory=process.memory, busy=process.busy, user=user, command=command
        )

    def _jobs(self) -> Iterator[JobLook]:
        jobtable = self._engine.jobtable
        for job in jobtable.holding.values():
            gpu_allocations = jobtable.allocations.get(job.id, ())
            if gpu_allocations and job.started_at is not None:
                yield JobLook(
                    id=job.id,
                    owner=owner_of(job),
                    started_at=job.started_at,
                    charged={
                        gpu_allocation.uuid: gpu_allocation.charged for gpu_allocation in gpu_allocations
                    },
                    is_ending=job.state is JobState.COMPLETING,
                )

    def _demand(self, clock: float) -> tuple[Waiting, ...]:
        if clock - self._waiting_at >= _DEMAND:
            self._waiting_at = clock
            size = max((gpu.usable for gpu in self._engine.gpu_states.gpus), default=0)
            self._waiting = tuple(waiting(self._engine.jobtable.waiting_kinds(_KINDS), size))
        return self._waiting

    # -- the GPUs -------------------------------------------------------------------------------

    def _record_gpus(self, wall: float, clock: float) -> None:
        gpus_now = tuple(_plain(gpu) for gpu in self._engine.gpu_states.gpus)
        if gpus_now != self._gpus or clock - self._gpus_at >= _CARDS:
            self._gpus, self._gpus_at = gpus_now, clock
            self._send(*self._gpus_of(wall))

    def _gpus_of(self, wall: float) -> Iterator[GpuRecord]:
        for gpu in self._gpus:
            yield GpuRecord(
                uuid=gpu.uuid,
                gpu=gpu.index,
                model=gpu.model,
                total=gpu.total,
                since=self._began_at,
                until=wall,
            )


def _discard(*records: Sample) -> None:
    """Drop records: the controller keeps no accounts."""


def _plain(gpu: Gpu) -> Gpu:
    return Gpu(index=gpu.index, uuid=gpu.uuid, model=gpu.model, total=gpu.total)


def waiting(kinds: Iterable[tuple[Demand, int, Shortfall]], size: int) -> Iterator[Waiting]:
    """Sum up (demand, jobs, shortfall) by reason, lack and model; `size`: bytes of the largest GPU."""
    jobs: Counter[tuple[str, str, str]] = Counter()
    shares: Counter[tuple[str, str, str]] = Counter()
    for demand, count, short in kinds:
        key = short.reason.word, _LACKING.get(short.what, "resource"), demand.gpu_type
        share = demand.share or demand.memory_part or min(WHOLE, demand.memory * WHOLE // max(1, size))
        jobs[key] += count
        shares[key] += count * share * demand.gpus
    for key, count in jobs.items():
        reason, lacking, model = key
        yield Waiting(reason=reason, lacking=lacking, model=model, jobs=count, share=shares[key])


# -- users of foreign processes ------------------------------------------------------------------------


class UserNames:
    """The names of users, without waiting for the name service."""

    def __init__(self, host_users: HostUsers, passwd: Path = Path("/etc/passwd")) -> None:
        self._host_users, self._passwd = host_users, passwd
        self._local: dict[int, str] | None = None

    def name(self, uid: int) -> str:
        """Return the name of a user; "uid 1000" until it is known."""
        if self._local is None:
            self._local = _local_names(self._passwd)
        if uid in self._local:
            return self._local[uid]
        self._host_users.is_known(uid)  # it is looked up, if it is not known
        host_user = self._host_users.cached(uid)
        return host_user.name if host_user else f"uid {uid}"


def _local_names(passwd: Path) -> dict[int, str]:
    """Return the names of the users in a file of the host."""
    local_names: dict[int, str] = {}
    with suppress(OSError), passwd.open(errors="replace") as file:
        for line in file.read(_LONGEST_PASSWD).splitlines():
            name, _, fields = line.partition(":")
            uid = fields.split(":")[1:2]
            if uid and uid[0].isdecimal():
                local_names.setdefault(int(uid[0]), name)
    return local_names


# -- loads of jobs on simulated GPUs -------------------------------------------------------------------


def job_loads(engine: Engine, run: str, shepherd_of: Callable[[Job], Shepherd | None]) -> Iterator[JobLoad]:
    """Yield the loads that running jobs set for simulated GPUs, with the pids of their shepherds."""
    for job in engine.jobtable.holding.values():
        if job.holds and job.state is JobState.RUNNING and (text := _text(job_dir(run, job.id, job.attempt))):
            with suppress(BadUsage, ValueError):
                if (shepherd := shepherd_of(job)) is not None:
                    yield parse_load(text, gpus=tuple(hold.gpu for hold in job.holds), pid=shepherd.pid)


def _text(directory: str) -> str:
    """Return the load file of a job directory; "" if there is none."""
    return next(filter(None, (_content(f"{directory}/{name}") for name in (STEPS_LOAD, SIMULATED_LOAD))), "")


def _content(path: str) -> str:
    """Return the beginning of a regular file, else "". Never blocks: the user may have made a FIFO."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            return os.read(fd, _LONGEST_LOAD).decode(errors="replace") if is_file else ""
        finally:
            os.close(fd)
    return ""
