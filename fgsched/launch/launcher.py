"""The world of processes as the conductor asks for it: attempts begun, watched, signalled, forgotten."""

import logging
import signal
import struct
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import fgshim.region as region
from msgspec.structs import replace

from fgsched.domain.errors import FgschedError, Refused, StorageError
from fgsched.domain.job import Job
from fgsched.domain.states import Tier
from fgsched.jobs import pacing
from fgsched.jobs.launchcontext import AssignedGpu, JobOwner, LaunchContext, job_dir
from fgsched.jobs.launchspec import LAST_WAIT, launch, limit_of
from fgsched.jobs.lifecycle import Seen, Shepherd
from fgsched.launch import commands
from fgsched.launch.following import Following, Watch
from fgsched.launch.message import pack
from fgsched.launch.rundir import RunDir
from fgsched.launch.spawner import Spawner
from fgsched.store import Allocation
from fgsched.system.accounts import Account, Accounts
from fgsched.system.cgroups import MemoryCgroup, PidsCgroups
from fgsched.system.logins import Logins
from fgsched.system.process import (
    Identity,
    descendants,
    is_alive,
    kill,
    marked,
    may_be_of,
    parents,
    started_below,
)
from fgsched.system.spaces import Scratch, Spaces
from fgsched.system.supervisors import supervisor_above

log = logging.getLogger(__name__)
_SLACK = 10.0  # seconds beyond its grace after which the end of such a job is not left to its spawner
_LOOK = 0.1  # seconds for which one look at the processes of all jobs is used
Places = tuple[tuple[str, tuple[str, ...]], ...]  # (directory, settings) of each cgroup
_LAST_WAIT = LAST_WAIT / 1000  # seconds
_TARGETS = {"all": 0, "shell": 1, "children": 2}


@dataclass(frozen=True, slots=True)
class Launching:
    """A launch that waits for its fence."""

    job: Job
    given: Sequence[Allocation]
    go: Callable[[], None]
    refuse: Callable[[str], None]
    cgroup: str = ""  # the job's, where the driver is to limit it


class EnforcementGate(Protocol):
    """Whoever proves a job's fence before it is launched."""

    def open_for(self, launching: Launching) -> None: ...


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where jobs' cgroups can be made."""

    memory: MemoryCgroup
    devices: Path | None = None  # of version 2: where the driver can limit device memory
    pids: PidsCgroups | None = None  # of users, whose processes are limited

    def of_job(self, job: Job) -> Places:
        """(directory, settings) of each cgroup that the job is to join."""
        limit, name = job.request.demand.host_memory, f"fgsched-{job.id}.{job.attempt}"
        place = self.memory.of_job(name, limit) if limit else None
        places = [place] if place else []
        device = self.device_of(job)
        if device and not any(directory == device for directory, _ in places):
            places.append((device, ()))
        if self.pids and self.pids.kind == "v2" and places:
            return tuple((directory, (*settings, *self.pids.setting)) for directory, settings in places)
        return tuple(places)

    def shared(self, job: Job, own: Places) -> str:
        """The user's cgroup that the job is to join beside its own; "": none."""
        if self.pids is None or (own and self.pids.kind == "v2"):
            return ""
        return self.pids.of_user(job.uid)

    def device_of(self, job: Job) -> str:
        """The directory in which the driver limits it; "" where it does not."""
        if self.devices is None or job.tier != Tier.DRIVER.value:
            return ""
        return str(self.devices / f"fgsched-{job.id}.{job.attempt}")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the shepherds' doings are reported and their needs are met."""

    material: Callable[[int], tuple[bytes, bytes]]  # job -> script, environment
    failed: Callable[[Job, str], None]  # an attempt could not be begun
    short: Callable[[Job, str], None]  # the same, and another one may succeed
    watch: Watch  # do this once a process has ended
    gone: Callable[[int], None]  # a job whose shepherd has ended
    accounts: Accounts  # as whom jobs are started
    gate: EnforcementGate  # lets launches through
    cpus: Callable[[int], tuple[int, ...]] = lambda index: ()  # those near a card
    context: Callable[[str], int] = lambda model: 0  # what one costs on such a card, in bytes
    compute: Callable[[Job], str] = lambda job: pacing.NONE  # how a job shares the time of its cards
    spaces: Spaces | None = None  # where the directories of users' jobs lie, if not in the run directory
    scratch: Scratch | None = None  # where their TMPDIRs are


class Launcher:
    """The real launcher: a run directory, a spawner, and the shepherds that are followed."""

    def __init__(
        self, run: RunDir, spawner: Spawner, site: LaunchContext, ports: Ports, cgroups: Cgroups
    ) -> None:
        self.run = run
        self.spawner = spawner
        self.boot = run.boot
        self._site = site
        self._ports = ports
        self._cgroups = cgroups
        self._following = Following(ports.watch, ports.gone)
        self._accounts, self._logins = ports.accounts, Logins()
        self._killed_at: dict[int, float] = {}  # since when what is left of lost jobs is killed
        self._asked_at: dict[int, float] = {}  # since when jobs without a shepherd are to end
        self._looked_at = -_LOOK  # when the processes of all jobs were last looked for
        self._processes: Mapping[str, Sequence[Identity]] = {}  # by the directory of their job
        self._parents: Mapping[int, int] = {}

    def obey(self, site: LaunchContext) -> None:
        """What all jobs that start from now on share; whether there is a driver stays as it is."""
        self._site = replace(site, proves=self._site.proves)

    def start(self, job: Job, given: Sequence[Allocation]) -> None:
        launching = Launching(
            job,
            given,
            go=lambda: self._launch(job, given),
            refuse=lambda why: self._ports.failed(job, why),
            cgroup=self._cgroups.device_of(job),
        )
        self._ports.gate.open_for(launching)

    def _launch(self, job: Job, given: Sequence[Allocation]) -> None:
        """Launch it as the user whom the host has now: at once, or when the name service has told."""
        self._accounts.look_up(job.uid, partial(self._launch_as, job, given))

    def _launch_as(self, job: Job, given: Sequence[Allocation], account: Account | None) -> None:
        try:
            self.spawner.send(self._message(job, given, account))
        except StorageError:
            raise
        except (FgschedError, ValueError, struct.error) as error:
            self._ports.failed(job, str(error))
        except OSError as error:  # of the directories that it is given
            self._ports.short(job, f"could not be started: {error}")
        except Exception as error:  # another job's answer may have come with this one
            log.exception("job %d: its launch cannot be told", job.id)
            self._ports.failed(job, f"internal error: {type(error).__name__}: {error}")

    def _message(self, job: Job, given: Sequence[Allocation], account: Account | None) -> bytes:
        script, environment = self._ports.material(job.id)
        cards = [AssignedGpu(hold=one.hold, uuid=one.uuid, cpus=self._ports.cpus(one.gpu)) for one in given]
        owner = _person(job, account, become=self._site.become_user)
        owner = self._settled(job, owner, account.by_name if account else {})
        places = self._cgroups.of_job(job)
        spec = launch(job, cards, environment, site=self._site, owner=owner, cgroups=places)
        if shared := self._cgroups.shared(job, places):
            spec = spec._replace(shared=shared)
        return pack(spec, script, self._region(job, given) if given and spec.hook else b"")

    def _settled(self, job: Job, owner: JobOwner, groups: Mapping[str, int]) -> JobOwner:
        """The owner with the directories and limits that jobs of this user are given."""
        space = self._ports.spaces.of(job.uid) if self._ports.spaces else ""
        scratch = self._ports.scratch.of(job.uid, owner.gid) if self._ports.scratch else ""
        prefix = f"{space}/{self.run.path.name}-" if space else ""  # ids are one queue's own
        limits = self._logins.of(job.user, job.uid, groups) if self._site.become_user else {}
        return replace(owner, space=prefix, scratch=scratch, limits=limits)

    def _region(self, job: Job, given: Sequence[Allocation]) -> bytes:
        """The head of the region that the hook of a job counts in."""
        limits = [(one.gpu, one.uuid, one.memory) for one in given]
        policy = self._ports.compute(job)
        budgets = [(policy, one.share) for one in given]
        contexts = [self._ports.context(one.model) for one in given]
        head: bytes = region.pack(job.id, job.attempt, limits, budgets, contexts)
        return head

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        self._following.follow(job.id, shepherd)

    def hears(self, job: Job) -> bool:
        """Whether the job has a supervisor that an order can be given to."""
        return self._following.pidfd(job.id) is not None or self._supervisor(job) is not None

    def cancel(self, job: Job) -> bool:
        return self._command(job, commands.value_of(commands.CANCEL))

    def requeue(self, job: Job) -> bool:
        return self._command(job, commands.value_of(commands.CANCEL, number=commands.DUE_TO_REQUEUE))

    def preempt(self, job: Job) -> bool:
        grace, early = job.preemption.grace if job.preemption else 0, job.request.early_signal
        if not grace:
            return self._command(job, commands.value_of(commands.CANCEL, number=commands.DUE_TO_PREEMPTION))
        number, target = (early.signal, early.target) if early else (signal.SIGTERM, "all")
        value = commands.value_of(commands.PREEMPT, number=number, target=_TARGETS[target], seconds=grace)
        return self._command(job, value)

    def suspend(self, job: Job) -> bool:
        return self._command(job, commands.value_of(commands.SUSPEND))

    def resume(self, job: Job) -> bool:
        return self._command(job, commands.value_of(commands.RESUME))

    def relimit(self, job: Job) -> bool:
        seconds = -(-limit_of(job) // 1000)
        return self._command(job, commands.LIMIT | seconds >> 24 | (seconds & 0xFF_FFFF) << 8)

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        return self._command(job, commands.value_of(commands.DELIVER, number=signal, target=_TARGETS[target]))

    def _command(self, job: Job, value: int) -> bool:
        """To its shepherd, or to the spawner that inherited the job from it. False: to nobody."""
        pidfd = self._following.pidfd(job.id)
        if pidfd is not None and commands.give(pidfd, job.id, job.attempt, value):
            return True
        supervisor = self._supervisor(job)
        if supervisor is None:
            return False
        if supervisor.pid == self.spawner.pid:  # its socket has room where its queue of signals has none
            self.spawner.command(job.id, job.attempt, value)
            return True
        return commands.give_to(supervisor, job.id, job.attempt, value)

    def _supervisor(self, job: Job) -> Identity | None:
        """The shepherd or the spawner, of whatever controller, below which processes of the job run."""
        left = marked(job_dir(str(self.run.path), job.id, job.attempt), job.uid)
        above = parents() if left else {}
        found = (supervisor_above(one.pid, above) for one in left)
        return next((one for one in found if one is not None), None)

    def seize(self, job: Job) -> Seen:
        return self.run.result(job.id, job.attempt) or self.run.seize(job.id, job.attempt)

    def hunt(self, job: Job) -> bool:
        left, above = self._left(job)
        is_late = self._is_late(job)
        # A spawner that inherited the job obeys orders and brings its true end, unless it is stuck.
        ours = [one for one in left if is_late or supervisor_above(one.pid, above) is None]
        for one in ours:
            kill(one, signal.SIGKILL)
        return not left or (len(ours) == len(left) and self._survives(job, left))

    def _left(self, job: Job) -> tuple[list[Identity], Mapping[int, int]]:
        """(the living processes of a job, the parent of every process).

        One look at all processes serves all jobs for a tenth of a second. Before a job is said to have none,
        it gets a look of its own, since one may have been forked meanwhile.
        """
        now = time.monotonic()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            self._processes, self._parents = started_below(f"{self.run.path}/job/"), parents()
        place = job_dir(str(self.run.path), job.id, job.attempt)
        known = [one for one in self._processes.get(place, ()) if is_alive(one)]
        left = [one for one in known if may_be_of(one.pid, job.uid)]
        return left or marked(place, job.uid), self._parents

    def _survives(self, job: Job, left: Sequence[Identity]) -> bool:
        """Whether processes have outlived a KILL for so long that nothing ends them; the log names them."""
        now = time.monotonic()
        if now - self._killed_at.setdefault(job.id, now) < _LAST_WAIT:
            return False
        pids = ", ".join(str(one.pid) for one in left)
        log.warning("job %d: left behind, since no SIGKILL ends them: processes %s", job.id, pids)
        return True

    def _is_late(self, job: Job) -> bool:
        """Whether a job without a shepherd is to end and has had all the time there is for it."""
        if not (job.is_to_end or job.is_being_preempted or job.wish):
            return False
        now = time.monotonic()
        grace = job.preemption.grace if job.is_being_preempted and job.preemption else 0
        return now - self._asked_at.setdefault(job.id, now) > grace + self._site.kill_wait + _SLACK

    def forget(self, job: Job) -> None:
        self._asked_at.pop(job.id, None)
        self._killed_at.pop(job.id, None)
        self._following.leave(job.id)
        self.run.forget(job.id, job.attempt)
        if job.supervisor_lost:
            self.run.clear(job.id, job.attempt)

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        for job, attempt in self.run.leftovers():
            if (job, attempt) not in keep:
                log.warning("job %d: removing what attempt %d left behind", job, attempt)
                self.run.forget(job, attempt)
                self.run.clear(job, attempt)

    def tidy(self, slots: set[int]) -> None:
        """Remove the empty directories of users, but for the numbers that running jobs have."""
        if self._ports.scratch:
            self._ports.scratch.tidy(slots)
        if self._ports.spaces:
            self._ports.spaces.leave()
        if self._cgroups.pids:
            self._cgroups.pids.leave()

    def pids(self, job: Job) -> list[int]:
        """The processes of a running job, its batch shell first."""
        shepherd = self.shepherd(job)
        return [one.pid for one in descendants(shepherd.pid)] if shepherd else []

    def shepherd(self, job: Job) -> Shepherd | None:
        seen = self.run.look(job.id, job.attempt)
        return getattr(seen, "shepherd", None)


def _person(job: Job, account: Account | None, *, become: bool) -> JobOwner:
    """Whom a job is started as; refuses if its owner is not the one who submitted it any more."""
    if not become:
        return JobOwner(home=account.home if account else "/", gid=job.gid, groups=())
    if account is None:
        raise Refused(f"user {job.user} (uid {job.uid}) no longer exists")
    if account.name != job.user:
        raise Refused(f"uid {job.uid} belongs to {account.name} now, and the job to {job.user}")
    return JobOwner(home=account.home, gid=account.gid, groups=account.groups)
