"""Launch attempts of jobs, follow their shepherds, send them commands, and clean up after them."""

import logging
import os
import signal
import stat
import struct
import time
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import fgshim.region as region
from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.errors import FgschedError, Refused, StorageError
from fgsched.domain.job import COMPUTE_NONE, AdoptedProcess, Job
from fgsched.domain.jobsteps import TABLE, JobStep, closed, read_table, stored
from fgsched.domain.states import Tier
from fgsched.launch import shepherds
from fgsched.launch.adopted import ORDER
from fgsched.launch.rundir import RunDir
from fgsched.launch.shepherds import Following
from fgsched.launch.spawner import Spawner, pack
from fgsched.lifecycle.containers import wrapped
from fgsched.lifecycle.launchspec import (
    LAST_WAIT,
    TARGETS,
    AssignedGpu,
    JobOwner,
    LaunchContext,
    ResourceLimits,
    job_dir,
    launch,
    limit_of,
)
from fgsched.lifecycle.mps import is_client, is_server, without_variables
from fgsched.lifecycle.transitions import Result, Seen, Shepherd, ShepherdGone
from fgsched.store import GpuAllocation
from fgsched.system.cgroups import MemoryCgroup, PidsCgroups, oom_kills, remove_if_empty
from fgsched.system.hostusers import HostUser, HostUsers
from fgsched.system.logins import Logins
from fgsched.system.process import (
    Identity,
    Watch,
    descendants,
    handles,
    is_alive,
    kill,
    may_be_of,
    owner_of,
    parents,
    processes_of_job,
    started_below,
    supervisor_above,
)
from fgsched.system.safeopen import open_beneath
from fgsched.system.spaces import Scratch, Spaces

NAME = "steps/table"  # in the directory of a job
log = logging.getLogger(__name__)
_SLACK = 10.0  # seconds after the grace period in which the spawner may still end an inherited job
_SCAN_MAX_AGE = 0.1  # seconds for which a scan of all processes is reused
Places = tuple[tuple[str, tuple[str, ...]], ...]  # (directory, settings) of each cgroup
_LAST_WAIT = LAST_WAIT / 1000  # seconds
_DAEMON_GRACE = 1000  # milliseconds between SIGTERM and SIGKILL for a daemon
_NEVER_HANDLED = (signal.SIGKILL, signal.SIGSTOP)


class _Scan(NamedTuple):
    """The processes of the jobs of a user at a time."""

    at: float  # monotonic seconds
    processes: Mapping[str, Sequence[Identity]]  # by job directory
    parents: Mapping[int, int]  # of all processes


def is_left(run: Path, job: Job) -> bool:
    """Return whether the directory of a job still exists; its shepherd leaves one that has steps."""
    return os.path.lexists(f"{run}/job/{job.id}.{job.attempt}")


def read(run: Path, job: Job) -> list[JobStep]:
    """Return the steps of a job by number; [] if there are none or they cannot be read.

    Links and mounts of the user are not followed, and a file that would block is not opened.
    """
    try:
        return read_table(_table(f"{run}/job/{job.id}.{job.attempt}", job.uid))
    except OSError:
        return []


def read_running(run: Path, job: Job, boot: str) -> list[JobStep]:
    """Return the steps of a running job by number; a step whose srun was killed has ended.

    Args:
        boot: id of the current boot.
    """
    return [
        step if not step.pid or is_alive(Identity(step.pid, step.start, boot)) else closed(step, None)
        for step in read(run, job)
    ]


def _table(directory: str, owner: int) -> bytes:
    """Return the table of a job's steps. Raises OSError."""
    if os.path.islink(directory):  # in system mode, into the space of the user
        directory = os.readlink(directory)
    above, name = os.path.split(directory)
    place = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = open_beneath(f"{name}/{NAME}", place, os.O_RDONLY)
    finally:
        os.close(place)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            return b""
        return os.pread(descriptor, TABLE, 0)
    finally:
        os.close(descriptor)


class PendingLaunch(Struct, frozen=True):
    """A launch that waits until its enforcement has been verified."""

    job: Job
    allocations: Sequence[GpuAllocation]
    go: Callable[[], None]
    refuse: Callable[[str], None]  # takes the reason
    cgroup: str = ""  # directory in which the driver limits the job; "" if it does not


class LaunchCheck(Protocol):
    """Verifies that a job's limits can be enforced before it is launched."""

    def open_for(self, launching: PendingLaunch) -> None:
        """Verify, then call `launching.go` or `launching.refuse`; may return before."""


class Cgroups(Struct, frozen=True):
    """The parent cgroups of the jobs' cgroups."""

    memory: MemoryCgroup
    devices: Path | None = None  # cgroup v2 below which the driver can limit GPU memory
    pids: PidsCgroups | None = None  # limit the number of processes per user

    def of_job(self, job: Job) -> Places:
        """Return (directory, settings) of each cgroup that the job joins."""
        limit, name = job.request.demand.host_memory, f"fgsched-{job.id}.{job.attempt}"
        place = self.memory.of_job(name, limit) if limit else None
        places = [place] if place else []
        device = self.device_of(job)
        if device and not any(directory == device for directory, _ in places):
            places.append((device, ()))
        if self.pids and self.pids.kind == "v2" and places:
            return tuple((directory, (*settings, *self.pids.setting)) for directory, settings in places)
        return tuple(places)

    def shared(self, job: Job, places: Places) -> str:
        """Return the user's cgroup that the job joins in addition to its `places`; "" if there is none.

        Raises:
            OSError: the cgroup cannot be created.
        """
        if self.pids is None or (places and self.pids.kind == "v2"):
            return ""
        return self.pids.of_user(job.uid)

    def device_of(self, job: Job) -> str:
        """Return the directory in which the driver limits the job; "" if the driver does not."""
        if self.devices is None or job.tier != Tier.DRIVER.value:
            return ""
        return str(self.devices / f"fgsched-{job.id}.{job.attempt}")

    def leave(self) -> None:
        """Remove the cgroups without processes. That of the queue stays as long as a job is in it."""
        if self.pids:
            self.pids.leave()
        if self.memory.kind == "v2":
            remove_if_empty(self.memory.root)
        if self.devices:
            remove_if_empty(self.devices)


class Ports(Struct, frozen=True):
    """The launcher's inputs and callbacks in the controller."""

    material: Callable[[int], tuple[bytes, bytes]]  # job -> script, environment
    failed: Callable[[Job, str], None]  # an attempt cannot be started: the reason
    short: Callable[[Job, str], None]  # an attempt could not be started, but another one may succeed
    watch: Watch  # calls a function when a process has exited
    shepherd_ended: Callable[[int], None]  # the shepherd of a job has exited
    host_users: HostUsers  # as whom jobs are started
    launch_check: LaunchCheck
    cpus: Callable[[int], tuple[int, ...]] = lambda index: ()  # GPU -> CPUs near it
    context: Callable[[str], tuple[int, bool]] = lambda model: (0, False)  # GPU model -> as of region.pack
    compute: Callable[[Job], str] = lambda job: COMPUTE_NONE  # job -> how it shares GPU compute time
    spaces: Spaces | None = None  # for job directories, if not in the run directory
    scratch: Scratch | None = None  # for TMPDIRs


class Launcher:
    """Starts and ends attempts of jobs as processes of this host.

    An order to a job returns whether it was delivered to the supervisor of the job: its shepherd, or the
    spawner that inherited the job when the shepherd was killed.
    """

    def __init__(
        self, run: RunDir, spawner: Spawner, site: LaunchContext, ports: Ports, cgroups: Cgroups
    ) -> None:
        self.run = run
        self.spawner = spawner
        self.boot = run.boot
        self._site = site
        self._ports = ports
        self._cgroups = cgroups
        self._following = Following(ports.watch, ports.shepherd_ended)
        self._host_users, self._logins = ports.host_users, Logins()
        self._killed_at: dict[int, float] = {}  # job -> time of the first SIGKILL to its processes
        self._asked_at: dict[int, float] = {}  # job without a shepherd -> time of the order to end
        self._uncleaned: set[int] = set()  # ended jobs whose directories exist
        self._scans: dict[int, _Scan] = {}  # by the owner of the jobs

    def reconfigure(self, site: LaunchContext) -> None:
        """Use `site` for jobs that start from now on; `proves` and `simulates` stay."""
        self._site = replace(site, proves=self._site.proves, simulates=self._site.simulates)

    def start(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Start an attempt once its enforcement is verified; a failure is reported to the ports."""
        launching = PendingLaunch(
            job,
            allocations,
            go=lambda: self._launch(job, allocations),
            refuse=lambda why: self._ports.failed(job, why),
            cgroup=self._cgroups.device_of(job),
        )
        self._ports.launch_check.open_for(launching)

    def _launch(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Launch with the current data of the user, after a query of the name service if necessary."""
        self._host_users.look_up(job.uid, partial(self._launch_as, job, allocations))

    def _launch_as(self, job: Job, allocations: Sequence[GpuAllocation], host_user: HostUser | None) -> None:
        try:
            self.spawner.send(self._message(job, allocations, host_user))
        except StorageError:
            raise
        except (FgschedError, ValueError, struct.error) as error:
            self._ports.failed(job, str(error))
        except OSError as error:  # of the job's directories
            self._ports.short(job, f"could not be started: {error}")
        except Exception as error:  # the callbacks of other jobs follow in the same call
            log.exception("job %d: the launch message cannot be made", job.id)
            self._ports.failed(job, f"internal error: {type(error).__name__}: {error}")

    def _message(self, job: Job, allocations: Sequence[GpuAllocation], host_user: HostUser | None) -> bytes:
        script, environment = self._ports.material(job.id)
        environment = without_variables(environment, f"{self.run.path}/job", self._site.vendor.service)
        gpus = [
            AssignedGpu(
                hold=gpu_allocation.hold, uuid=gpu_allocation.uuid, cpus=self._ports.cpus(gpu_allocation.gpu)
            )
            for gpu_allocation in allocations
        ]
        owner = _owner(job, host_user, become=self._site.become_user)
        owner = self._with_directories(job, owner, host_user)
        places = self._cgroups.of_job(job)
        spec = launch(job, gpus, environment, site=self._site, owner=owner, cgroups=places)
        if shared := self._cgroups.shared(job, places):
            spec = spec._replace(shared=shared)
        script = wrapped(script, job.request) if job.request.container else script
        return pack(spec, script, self._region_header(job, allocations) if allocations and spec.hook else b"")

    def _with_directories(self, job: Job, owner: JobOwner, host_user: HostUser | None) -> JobOwner:
        """Return the owner with the directories and login limits of the user's jobs."""
        space = self._ports.spaces.of(job.uid) if self._ports.spaces else ""
        scratch = (
            self._ports.scratch.of(job.uid, host_user.gid if host_user else owner.gid)
            if self._ports.scratch
            else ""
        )
        prefix = f"{space}/{self.run.path.name}-" if space else ""  # job ids are unique only in a queue
        limits = self._login_limits(job, host_user) if self._site.become_user else {}
        return replace(owner, directory_prefix=prefix, scratch=scratch, limits=limits)

    def _login_limits(self, job: Job, host_user: HostUser | None) -> ResourceLimits:
        """Return the limits of the owner's login: of a PAM session, or those of limits.conf."""
        if host_user is not None and host_user.limits is not None:
            return host_user.limits
        return self._logins.of(job.user, job.uid, host_user.by_name if host_user else {})

    def _region_header(self, job: Job, allocations: Sequence[GpuAllocation]) -> bytes:
        """Return the initial header of a job's region."""
        limits = [
            (gpu_allocation.gpu, gpu_allocation.uuid, gpu_allocation.memory) for gpu_allocation in allocations
        ]
        policy = COMPUTE_NONE if is_client(job) else self._ports.compute(job)
        budgets = [(policy, gpu_allocation.share) for gpu_allocation in allocations]
        contexts = [self._ports.context(gpu_allocation.model) for gpu_allocation in allocations]
        head: bytes = region.pack(job.id, job.attempt, limits, budgets, contexts)
        return head

    def start_daemon(self, job: Job, script: bytes, environment: Mapping[str, str]) -> None:
        """Start a program as a user, with a shepherd of its own; a failure is reported to the ports.

        `job` is no job of the queue: it names the daemon and its user. The program has no GPU memory limit.
        """
        self._host_users.look_up(job.uid, partial(self._start_daemon_as, job, script, environment))

    def _start_daemon_as(
        self, job: Job, script: bytes, environment: Mapping[str, str], host_user: HostUser | None
    ) -> None:
        try:
            owner = _owner(job, host_user, become=self._site.become_user)
            owner = self._with_directories(job, owner, host_user)
            spec = launch(job, (), b"", site=self._site, owner=owner)._replace(
                hook="",
                mounts="",
                closed=(),
                proves=False,
                task_prolog=False,
                tmpdir="",
                grace=_DAEMON_GRACE,
                leftover_grace=_DAEMON_GRACE,
                shared=self._cgroups.shared(job, ()),
                environment="".join(f"{name}={value}\0" for name, value in environment.items()).encode(),
            )
            self.spawner.send(pack(spec, script, b""))
        except StorageError:
            raise
        except (FgschedError, ValueError, OSError, struct.error) as error:
            self._ports.failed(job, str(error))

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        """Report when the shepherd of a job exits; at once if it has exited."""
        self._following.follow(job.id, shepherd)

    def has_supervisor(self, job: Job) -> bool:
        """Return whether the job has a supervisor that accepts orders."""
        return self._following.pidfd(job.id) is not None or self._supervisor(job) is not None

    def cancel(self, job: Job) -> bool:
        """Order the end of a job."""
        return self._command(job, shepherds.encode(shepherds.CANCEL))

    def requeue(self, job: Job) -> bool:
        """Order the end of a job that is requeued; a line on its standard error reports this."""
        return self._command(job, shepherds.encode(shepherds.CANCEL, number=shepherds.FOR_REQUEUE))

    def preempt(self, job: Job) -> bool:
        """Order a warning to a job, and its end after its grace period; a second order changes nothing."""
        grace, early = job.preemption.grace if job.preemption else 0, job.request.early_signal
        if not grace:
            return self._command(job, shepherds.encode(shepherds.CANCEL, number=shepherds.FOR_PREEMPTION))
        number, target = (early.signal, early.target) if early else (signal.SIGTERM, "all")
        value = shepherds.encode(shepherds.PREEMPT, number=number, target=TARGETS[target], seconds=grace)
        return self._command(job, value)

    def suspend(self, job: Job) -> bool:
        """Order the processes of a job and its time limit to stop."""
        return self._command(job, shepherds.encode(shepherds.SUSPEND))

    def resume(self, job: Job) -> bool:
        """Order a suspended job to continue."""
        return self._command(job, shepherds.encode(shepherds.RESUME))

    def relimit(self, job: Job) -> bool:
        """Send the current time limit of a job to its supervisor."""
        return self._command(job, shepherds.encode_limit(-(-limit_of(job) // 1000)))

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        """Order a signal to a job; `target` is "all", "shell" or "children".

        The helper of an adopted process forwards only the signals that a process can handle.
        """
        if job.adopted is not None and signal in _NEVER_HANDLED:
            is_own = owner_of(job.adopted.pid) == job.uid  # it can have changed to another user
            return is_own and kill(_adopted(job.adopted, job.boot), signal)
        return self._command(job, shepherds.encode(shepherds.DELIVER, number=signal, target=TARGETS[target]))

    def join(self, job: Job, caller: int) -> bool:
        """Order the start of an agent in a job; `caller` is in the name of its caller's socket."""
        return self._command(job, shepherds.encode_join(caller))

    def _command(self, job: Job, value: int) -> bool:
        """Send a command to the shepherd of a job, or to the spawner that inherited the job."""
        if not self._is_ready(job):
            return False
        pidfd = self._following.pidfd(job.id)
        if pidfd is not None and shepherds.send(pidfd, job.id, job.attempt, value):
            return True
        supervisor = self._supervisor(job)
        if supervisor is None:
            return False
        if supervisor.pid == self.spawner.pid:  # by socket, which works when its queue of signals is full
            self.spawner.command(job.id, job.attempt, value)
            return True
        return shepherds.send_to(supervisor, job.id, job.attempt, value)

    def _is_ready(self, job: Job) -> bool:
        """Return whether commands reach the process of a job.

        While the helper of an adopted process has no handlers yet, a command would end the helper, and the
        process would continue without a job.
        """
        shepherd = self.shepherd(job) if job.adopted is not None else None
        return shepherd is None or any(
            handles(descendant.pid, ORDER) for descendant in descendants(shepherd.pid)
        )

    def _supervisor(self, job: Job) -> Identity | None:
        """Return the spawner that inherited the job, or the shepherd or spawner above its processes."""
        if holder := self.run.holder(job.id, job.attempt):
            return holder
        processes = processes_of_job(job_dir(str(self.run.path), job.id, job.attempt), job.uid)
        parent_of = parents() if processes else {}
        identities = (supervisor_above(identity.pid, parent_of) for identity in processes)
        return next((identity for identity in identities if identity is not None), None)

    def seize(self, job: Job) -> Seen:
        """Return the status of an attempt; after this call an attempt that was not claimed cannot start."""
        status = self.run.result(job.id, job.attempt) or self.run.seize(job.id, job.attempt)
        return self._with_steps(job, status) if isinstance(status, Result | ShepherdGone) else status

    def _with_steps(self, job: Job, status: Result | ShepherdGone) -> Result | ShepherdGone:
        """Add the steps that the directory of an ended job has; `forget` removes the directory."""
        if not is_left(self.run.path, job):
            return status
        self._uncleaned.add(job.id)
        steps = read(self.run.path, job)
        if isinstance(status, Result):
            return status._replace(srun_steps=stored(steps, status.ended_at))
        return replace(status, srun_steps=stored(steps, None))

    def steps(self, job: Job) -> list[JobStep]:
        """Return the steps of a running job, by number."""
        return read_running(self.run.path, job, self.boot)

    def kill_remaining(self, job: Job) -> bool:
        """Kill the processes of a job without a shepherd; return True once there are none.

        Processes that survive SIGKILL for 30 seconds are logged and abandoned.
        """
        is_late = self._is_late(job)
        if not is_late and self._has_spawner(job):
            return False  # its processes need not have the variables of the job any more
        identities, parent_of = self._living(job)
        # A spawner that inherited the job carries out orders and reports its end, unless it hangs.
        orphaned = [
            identity
            for identity in identities
            if is_late or supervisor_above(identity.pid, parent_of) is None
        ]
        for identity in orphaned:
            kill(identity, signal.SIGKILL)
        return not identities or (len(orphaned) == len(identities) and self._survives(job, identities))

    def _has_spawner(self, job: Job) -> bool:
        """Tell whether a spawner has taken a job over from its killed shepherd, or is to do so."""
        run = self.run
        return run.holder(job.id, job.attempt) is not None or run.is_unheard(job.id, job.attempt)

    def _living(self, job: Job) -> tuple[list[Identity], Mapping[int, int]]:
        """Return (living processes of a job, {pid: parent pid}).

        A scan of the processes of a user is shared by the user's jobs for 0.1 seconds. Before a job is
        reported to have no processes, a separate scan is made: a process may have been forked since.
        """
        now = time.monotonic()
        self._scans = {uid: scan for uid, scan in self._scans.items() if now - scan.at < _SCAN_MAX_AGE}
        if (scan := self._scans.get(job.uid)) is None:
            processes = started_below(f"{self.run.path}/job/", {job.uid})
            scan = self._scans[job.uid] = _Scan(now, processes, parents())
        place = job_dir(str(self.run.path), job.id, job.attempt)
        identities = [identity for identity in scan.processes.get(place, ()) if is_alive(identity)]
        left = [identity for identity in identities if may_be_of(identity.pid, job.uid)]
        return left or processes_of_job(place, job.uid), scan.parents

    def _survives(self, job: Job, processes: Sequence[Identity]) -> bool:
        """Return whether processes have survived SIGKILL too long; then the log names them."""
        now = time.monotonic()
        if now - self._killed_at.setdefault(job.id, now) < _LAST_WAIT:
            return False
        pids = ", ".join(str(identity.pid) for identity in processes)
        log.warning("job %d: processes %s survive SIGKILL and are left behind", job.id, pids)
        return True

    def _is_late(self, job: Job) -> bool:
        """Tell whether a job without a shepherd has not ended within the grace time of the order to end."""
        order = job.ending_preemption
        if not (job.is_to_end or order or job.wish):
            return False
        now = time.monotonic()
        grace = order.grace if order else 0
        return now - self._asked_at.setdefault(job.id, now) > grace + self._site.kill_wait + _SLACK

    def forget(self, job: Job) -> None:
        """Remove the files of an attempt whose end is committed."""
        self._asked_at.pop(job.id, None)
        self._killed_at.pop(job.id, None)
        self._following.leave(job.id)
        self.run.forget(job.id, job.attempt)
        if job.supervisor_lost or job.id in self._uncleaned:
            self._uncleaned.discard(job.id)
            self.run.clear(job.id, job.attempt)

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        """Remove the files of all attempts but `keep`, (job, attempt)."""
        self.run.remove_spares()
        for job, attempt in self.run.leftovers():
            if (job, attempt) not in keep and not is_server(job):
                log.warning("job %d: removing the files that attempt %d left", job, attempt)
                self.run.forget(job, attempt)
                self.run.clear(job, attempt)

    def oom_kills(self, job: Job) -> int:
        """Return how many processes of a running job the kernel has killed for host memory."""
        if not (job.state.holds and job.request.demand.host_memory):
            return 0
        return max((oom_kills(Path(place)) for place, _ in self._cgroups.of_job(job)), default=0)

    def tidy(self, slots: set[int]) -> None:
        """Remove empty directories and cgroups of users.

        Args:
            slots: numbers of the slots of running jobs, whose directories stay.
        """
        if self._ports.scratch:
            self._ports.scratch.tidy(slots)
        if self._ports.spaces:
            self._ports.spaces.leave()
        self._cgroups.leave()

    def pids(self, job: Job) -> list[int]:
        """Return the pids of a running job, its batch shell first."""
        shepherd = self.shepherd(job)
        pids = [descendant.pid for descendant in descendants(shepherd.pid)] if shepherd else []
        if job.adopted is None or not is_alive(_adopted(job.adopted, job.boot)):
            return pids
        return [*pids, job.adopted.pid, *(descendant.pid for descendant in descendants(job.adopted.pid))]

    def shepherd(self, job: Job) -> Shepherd | None:
        """Return the living shepherd of a job, if there is one."""
        status = self.run.look(job.id, job.attempt)
        return getattr(status, "shepherd", None)


def _adopted(process: AdoptedProcess, boot: str) -> Identity:
    return Identity(process.pid, process.start, boot)


def _owner(job: Job, host_user: HostUser | None, *, become: bool) -> JobOwner:
    """Return the account under which a job is started. Refuse if the uid now belongs to another user."""
    if not become:
        return JobOwner(home=host_user.home if host_user else "/", gid=job.gid, groups=())
    if host_user is None:
        raise Refused(f"user {job.user} (uid {job.uid}) no longer exists")
    if host_user.name != job.user:
        raise Refused(f"uid {job.uid} now belongs to {host_user.name}, but the job belongs to {job.user}")
    if host_user.refusal:
        raise Refused(f"PAM refuses a session of {job.user}: {host_user.refusal}")
    gid = job.gid if job.gid in host_user.groups else host_user.gid
    return JobOwner(home=host_user.home, gid=gid, groups=host_user.groups)
