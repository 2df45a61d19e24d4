"""The watchdog: what a look at the cards says of each running job, charged at once and told on."""

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from fgsched.controller.events import WatchdogFinding
from fgsched.controller.faults import Faults
from fgsched.controller.seeing import Seen
from fgsched.domain.job import GpuProcess, Job, JobState, Reading
from fgsched.jobs.watchdog import UNFENCED, Memory, Policy, Sight, Use, judge
from fgsched.launch.regions import Slot, charge, charged, see, slots
from fgsched.system.process import maps

_HOOK = "libfgshim.so"


class Watching:
    """Remembers one look for the next; what it tells is durable once the conductor has taken it in."""

    def __init__(
        self,
        run: str,
        policy: Policy,
        tell: Callable[[WatchdogFinding], None],
        learn: Callable[[int, int], None] = lambda gpu, size: None,
        faults: Faults | None = None,
    ) -> None:
        """`learn`: (card, bytes that the contexts of a process were seen to cost there)."""
        self._run = run
        self._learn = learn
        self.policy = policy
        self._tell = tell
        self._faults = faults or Faults()
        self._before: dict[tuple[int, int], Memory] = {}  # (job, attempt) -> what the last look left

    @property
    def is_suspicious(self) -> bool:
        """Whether something was wrong at the last look: the next one decides."""
        return any(memory.faults for memory in self._before.values())

    def look(self, seen: Seen, holding: Mapping[int, Job]) -> None:
        """Judge every running job by what was seen. A card that did not answer says nothing."""
        before, self._before = self._before, {}
        silent = {gpu for gpu, reading in seen.readings.items() if reading.error and not reading.is_lost}
        for job in holding.values():
            if job.state is not JobState.RUNNING or not job.holds or job.is_to_end:
                continue
            was = before.get((job.id, job.attempt))
            with self._faults.contained(f"the watchdog of job {job.id}"):
                self._judge(job, seen, was, silent)

    def _judge(self, job: Job, seen: Seen, was: Memory | None, silent: Collection[int]) -> None:
        """Charge one job, and tell what is wrong with it. `was`: what the last look left, if any."""
        key = job.id, job.attempt
        self._before[key] = was or Memory()
        counted = self._counted(job, seen)
        sights = _sights(job, seen, counted)
        verdict = judge(job.tier, sights, was or Memory(), self.policy, silent=silent)
        self._before[key] = verdict.memory
        if was is None:  # one look shows no charge; an earlier controller's stays for the next
            self._before[key] = replace(verdict.memory, charged=charged(self._run, job))
        elif verdict.charges:
            charge(self._run, job, verdict.charges)
        for (gpu, pid), size in verdict.seen.items():
            see(self._run, job, counted[gpu][pid], size)
        for gpu, size in verdict.costs.items():
            self._learn(gpu, size)
        if verdict.warn or verdict.end:
            self._tell(WatchdogFinding(job.id, job.attempt, verdict.warn, verdict.end))

    def _counted(self, job: Job, seen: Seen) -> Mapping[int, Mapping[int, Slot]]:
        """{card: {pid: slot}}, where a process of the job was seen."""
        is_there = job.tier != UNFENCED and job.id in seen.owners.values()
        return slots(self._run, job) if is_there else {}


def _sights(job: Job, seen: Seen, counted: Mapping[int, Mapping[int, Slot]]) -> list[Sight]:
    limits = {hold.gpu: hold.memory for hold in job.holds}
    pids = {pid for pid, owner in seen.owners.items() if owner == job.id}
    sights = []
    for index, reading in seen.readings.items():
        uses = _uses(reading, pids, counted.get(index, {}))
        is_ours = index in limits and (reading.is_lost or not reading.error)
        if uses or is_ours:
            limit = limits.get(index)
            sights.append(Sight(gpu=index, limit=limit, uses=uses, is_lost=reading.is_lost))
    return sights


def _uses(reading: Reading, pids: set[int], counted: Mapping[int, Slot]) -> tuple[Use, ...]:
    return tuple(_use(one, counted.get(one.pid)) for one in reading.processes if one.pid in pids)


def _use(seen: GpuProcess, slot: Slot | None) -> Use:
    """One that has taken nothing yet, or is about to end, has no slot and may have the hook all the same."""
    if slot is None:
        is_bare = maps(seen.pid, _HOOK) is False
        return Use(pid=seen.pid, memory=seen.memory, tracked=None if is_bare else 0)
    counts = {"tracked": slot.tracked, "past": slot.past}
    return Use(pid=seen.pid, memory=seen.memory, **counts, mark=slot.mark, has_context=slot.has_context)
