"""The truth about a period of a known history, counted step by step from what happened.

Nothing here uses the accounts or the reports. GPU time is in seconds of one whole GPU, as fractions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction as F
from functools import cached_property
from math import ceil

from known_history import GIB, STEP, WATTS, WHOLE, Job, KnownHost, Stranger

CLASSES = ("active", "held-idle", "reserved-empty", "free", "external", "down")
FAILED = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
KINDS = (
    *("FAILED", "TIMEOUT", "GPU out of memory", "host out of memory", "host or GPU fault", "cancelled"),
    *("deadline", "preempted"),
)
HOUR = 3600


class Sum:
    """The use of a GPU, a user or a job."""

    def __init__(self) -> None:
        self.sampled = self.packed = self.used = F(0)
        self.classes = dict.fromkeys(CLASSES, F(0))
        self.peak = 0

    @property
    def charged(self):
        return sum(list(self.classes.values())[:3])

    @property
    def idle(self):
        return self.classes["held-idle"] + self.classes["reserved-empty"]

    def add(self, other: "Sum") -> None:
        self.sampled += other.sampled
        self.packed += other.packed
        if other.used:
            self.used += other.used
        for name, seconds in other.classes.items():
            if seconds:  # most are none, and a sum of fractions takes long
                self.classes[name] += seconds
        self.peak = max(self.peak, other.peak)


def sum_of(sums: Iterable[Sum]) -> Sum:
    total = Sum()
    for part in sums:
        total.add(part)
    return total


def rank(values, percent):
    """Return the smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(1, ceil(F(len(ordered) * percent, 100))) - 1] if ordered else None


class Truth:
    """What is true of a period of a history, from step `since` up to step `until`."""

    def __init__(self, world: KnownHost, since: int, until: int, user: str = "") -> None:
        self.world, self.since, self.until, self.user = world, since, until, user
        self.gpus = range(len(world.models)) if until > 0 and since < world.steps else ()
        self.steps = range(max(0, since), min(until, world.steps))
        self.hours = F((until - since) * STEP, HOUR)
        self._spans: dict[int, list[Sum]] = {}

    # -- GPU time ----------------------------------------------------------------------------------

    @cached_property
    def measured(self):
        """What each job did in each step with samples: (step, gpu) -> (job, class, charge, used, memory)."""
        return {
            (step, gpu): [
                self._part(job, gpu, step) for job in self.world.jobs if self._is_on(job, gpu, step)
            ]
            for step in self.steps
            if not self.world.is_lost(step)
            for gpu in self.gpus
        }

    def _is_on(self, job: Job, gpu: int, step: int) -> bool:
        return gpu in job.gpus and job.holds(step)

    def _part(self, job: Job, gpu: int, step: int):
        processes = [
            process
            for process in job.processes
            if gpu in process.gpus and process.since <= step < process.until
        ]
        sm = sum(process.sm for process in processes)
        kind = "active" if sm > 100 else "held-idle" if processes else "reserved-empty"
        memory = sum(process.memory for process in processes)
        return job, kind, F(self.world.charge(job, gpu), WHOLE), F(sm, WHOLE), memory

    def strangers_at(self, gpu: int, step: int) -> list[Stranger]:
        return [
            stranger
            for stranger in self.world.strangers
            if stranger.gpu == gpu and stranger.since <= step < stranger.until
        ]

    def is_down(self, gpu: int, step: int) -> bool:
        return any(down.gpu == gpu and down.since <= step < down.until for down in self.world.downs)

    @cached_property
    def cells(self):
        """The use of each GPU in each step with samples."""
        cells_of_steps = {}
        for (step, gpu), parts in self.measured.items():
            cell = cells_of_steps[step, gpu] = Sum()
            cell.sampled = F(STEP)
            for _, kind, charge, used, memory in parts:
                cell.classes[kind] += charge * STEP
                cell.used += used * STEP
                cell.peak += memory * GIB
            cell.packed = F(STEP if parts else 0)
            strangers = self.strangers_at(gpu, step)
            uncharged = STEP - cell.charged
            if self.is_down(gpu, step):
                cell.classes["down"] = uncharged
            else:
                held = F(sum(stranger.memory for stranger in strangers), self.world.models[gpu][1])
                cell.classes["external"] = min(uncharged, held * STEP)
                cell.classes["free"] = uncharged - cell.classes["external"]
            cell.used += sum(F(stranger.sm, WHOLE) for stranger in strangers) * STEP
            cell.peak += sum(stranger.memory for stranger in strangers) * GIB
        return cells_of_steps

    @cached_property
    def by_gpu(self):
        return {gpu: sum_of(cell for (_, one), cell in self.cells.items() if one == gpu) for gpu in self.gpus}

    @cached_property
    def whole(self) -> Sum:
        return sum_of(self.by_gpu.values())

    @property
    def lost(self):
        """GPU seconds without samples."""
        return len(self.gpus) * (self.until - self.since) * STEP - self.whole.sampled

    def by(self, name) -> dict[str, Sum]:
        """The use by jobs: of each user, account, …; `name` maps a job and a GPU to it."""
        sums: dict[str, Sum] = defaultdict(Sum)
        for (_, gpu), parts in self.measured.items():
            for job, kind, charge, used, _ in parts:
                if not self.user or job.user == self.user:
                    sums[name(job, gpu)].classes[kind] += charge * STEP
                    sums[name(job, gpu)].used += used * STEP
        return sums

    @cached_property
    def users(self) -> dict[str, Sum]:
        return self.by(lambda job, gpu: job.user)

    @cached_property
    def of_jobs(self) -> Sum:
        return sum_of(self.users.values())

    def energy(self) -> int:
        return WATTS * STEP * sum(1 for _ in {step for step, _ in self.cells})

    # -- jobs --------------------------------------------------------------------------------------

    @cached_property
    def ended(self) -> list[Job]:
        return [
            job
            for job in self.world.jobs
            if job.end is not None
            and self.since <= job.end < self.until
            and job.end <= self.world.steps
            and (not self.user or job.user == self.user)
        ]

    @cached_property
    def started(self) -> list[Job]:
        return [job for job in self.ended if job.start is not None]

    @cached_property
    def failed(self) -> list[Job]:
        return [job for job in self.ended if job.state in FAILED]

    @staticmethod
    def wait(job: Job) -> int:
        return max(0, job.start - job.eligible_again) * STEP

    @cached_property
    def waits(self) -> list[int]:
        return [self.wait(job) for job in self.started]

    def runs(self, job: Job) -> int:
        """Return the seconds of the last attempt."""
        return (job.end - job.start) * STEP

    def charged(self, job: Job) -> F:
        """Return the GPU seconds of all attempts."""
        seconds = sum(until - since for since, until in job.attempts) * STEP
        return seconds * F(sum(self.world.charge(job, gpu) for gpu in job.gpus), WHOLE)

    def seen(self, job: Job) -> list[tuple[int, list]]:
        """Return (step, parts on its GPUs) of the sampled steps of a job in all its attempts."""
        steps = [step for since, until in job.attempts for step in range(since, until)]
        return [
            (step, [self._part(job, gpu, step) for gpu in job.gpus])
            for step in steps
            if 0 <= step < self.world.steps and not self.world.is_lost(step)
        ]

    def use(self, job: Job) -> Sum:
        total = Sum()
        for _, parts in self.seen(job):
            for _, kind, charge, used, memory in parts:
                total.classes[kind] += charge * STEP
                total.used += used * STEP
                total.peak = max(total.peak, memory * GIB)
        return total

    def peak(self, job: Job) -> int:
        return job.peak * GIB

    def longest_idle(self, job: Job) -> int:
        """Return the longest stretch of samples without a computing process, in seconds."""
        longest = length = 0
        before = None
        for step, parts in self.seen(job):
            is_new = before != step - 1
            before = step
            is_idle = all(kind != "active" for _, kind, *_ in parts)
            length = (0 if is_new else length) + 1 if is_idle else 0
            longest = max(longest, length)
        return longest * STEP

    def first_process(self, job: Job) -> int | None:
        """Return the seconds after the start of its attempt at which a process was first seen."""
        for step, parts in self.seen(job):
            if any(kind != "reserved-empty" for _, kind, *_ in parts):
                begin = next(since for since, until in job.attempts if since <= step < until)
                return (step + 1 - begin) * STEP
        return None

    def gpus_without_process(self, job: Job) -> int:
        """Return how many of its GPUs never had a process."""
        used = {gpu for process in job.processes for gpu in process.gpus}
        return len(set(job.gpus) - used)

    def lacking_memory(self, job: Job) -> int:
        """Return the byte-seconds of the last attempt that were requested above the peak."""
        return max(0, self.world.memory(job) - self.peak(job)) * self.runs(job) * len(job.gpus)

    def kind(self, job: Job) -> str:
        if job.state == "OUT_OF_MEMORY":
            return "GPU out of memory" if job.oom == "gpu" else "host out of memory"
        words = {"NODE_FAIL": "host or GPU fault", "CANCELLED": "cancelled", "COMPLETED": ""}
        return words.get(job.state, job.state if job.state in KINDS else job.state.lower())

    def kinds(self) -> Counter:
        return Counter(self.kind(job) for job in self.ended)

    def groups(self) -> dict[tuple, list[Job]]:
        """Return the jobs with GPUs that ran, by user, name and request."""
        groups: dict[tuple, list[Job]] = defaultdict(list)
        for job in self.started:
            if job.gpus:
                groups[job.user, job.name, len(job.gpus), job.share].append(job)
        return groups

    # -- the rest ----------------------------------------------------------------------------------

    @cached_property
    def foreign(self) -> list["Run"]:
        """Return the times in which each process was seen, the longest first."""
        runs = []
        for stranger in self.world.strangers:
            begin = None
            for step in range(self.since, self.until + 1):
                is_seen = (
                    step in self.steps
                    and stranger.since <= step < stranger.until
                    and not self.world.is_lost(step)
                )
                if is_seen and begin is None:
                    begin = step
                if not is_seen and begin is not None:
                    runs.append(Run(stranger, begin, step))
                    begin = None
        return sorted(
            _joined(runs), key=lambda run: (-run.seconds, run.user, run.command, run.since, run.gpu)
        )

    @cached_property
    def downs(self) -> list[tuple]:
        """Return (gpu, begin, end, why, is back) of each time down, as looks showed it: one step later."""
        times = []
        for down in sorted(self.world.downs, key=lambda down: (down.gpu, down.since)):
            first = 0 if down.since == 0 else self._looked(down.since)
            last = self._looked(down.until)
            before = max(
                (gap.since for gap in self.world.lost if gap.since < last <= gap.until), default=None
            )
            seen = last if before is None else before
            if first < last and first < self.until and last > self.since:
                is_back = last <= self.until and before is None and last < self.until
                times.append((down.gpu, max(first, self.since), min(seen, self.until), down.why, is_back))
        return times

    def _looked(self, step: int) -> int:
        """Return the step at whose begin a change at `step` was first seen."""
        gap = next((gap for gap in self.world.lost if gap.since <= step < gap.until), None)
        return gap.until if gap else step + 1

    def spans(self, steps: int) -> list[Sum]:
        """Return the use of all GPUs in each span of `steps` steps of the period; it is added up once."""
        if steps not in self._spans:
            self._spans[steps] = self._summed(steps)
        return self._spans[steps]

    def _summed(self, steps: int) -> list[Sum]:
        return [
            sum_of(
                cell
                for step in range(begin, min(begin + steps, self.until))
                for gpu in self.gpus
                if (cell := self.cells.get((step, gpu)))
            )
            for begin in range(self.since, self.until, steps)
        ]

    @cached_property
    def demand(self) -> dict[str, tuple[int, int, F, int]]:
        """Return lack -> seconds with a wait, job-seconds, GPU-seconds, most at once."""
        demand: dict[str, list] = {}
        for step in self.steps:
            if self.world.is_lost(step):
                continue
            waiting: dict[str, list[Job]] = defaultdict(list)
            for job in self.world.jobs:
                if job.waits(step):
                    waiting[job.lacking].append(job)
            for lacking, jobs in waiting.items():
                sums = demand.setdefault(lacking, [0, 0, F(0), 0])
                sums[0] += STEP
                sums[1] += STEP * len(jobs)
                sums[2] += STEP * sum(F(max(1, len(job.gpus)) * job.share, WHOLE) for job in jobs)
                sums[3] = max(sums[3], len(jobs))
        return {lacking: tuple(sums) for lacking, sums in demand.items()}


class Run:
    """A time in which a process, or a loop of processes, was seen without an interruption."""

    def __init__(self, process: Stranger, since: int, until: int) -> None:
        self.gpu, self.user, self.command, self.pid = process.gpu, process.user, process.command, process.pid
        self.since, self.until, self.memory = since, until, process.memory
        self.seconds = (until - since) * STEP
        self.byte_seconds = self.seconds * self.memory * GIB

    @property
    def key(self) -> tuple:
        return self.gpu, self.user, self.command, self.pid


def _joined(runs: list[Run]) -> list[Run]:
    """Join the times of one process that adjoin; more than 20 processes of a command in an hour are one."""
    pids = defaultdict(set)
    for run in runs:
        pids[run.gpu, run.user, run.command].add(run.pid)
    for run in runs:
        run.pid = 0 if len(pids[run.key[:3]]) > 20 else run.pid
    joined: list[Run] = []
    for run in sorted(runs, key=lambda one: (*one.key, one.since)):
        last = joined[-1] if joined else None
        if last and last.key == run.key and run.since <= last.until:
            last.until, last.memory = max(last.until, run.until), max(last.memory, run.memory)
            last.seconds += run.seconds
            last.byte_seconds += run.byte_seconds
        else:
            joined.append(run)
    return joined
