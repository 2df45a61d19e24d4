"""Answer which processes use the GPUs, and make one that was started outside of fgsched a job."""

import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fgsched import gpus, protocol
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.gpumonitor import GpuObservation
from fgsched.controller.handlers.about import ControllerInfo
from fgsched.controller.handlers.registration import reads, writes
from fgsched.controller.handlers.submission import SubmissionHandlers
from fgsched.controller.starting import begin
from fgsched.controller.turn import AskGpus
from fgsched.domain.errors import BadUsage, Busy, FgschedError, NotPermitted, Refused
from fgsched.domain.job import COMPUTE_NONE, WHOLE, AdoptedProcess, Demand, Hold, Job, Reading, Request
from fgsched.domain.states import Tier
from fgsched.domain.units import MIB, format_mebibytes, format_share
from fgsched.gpus import vendors
from fgsched.launch import adopted as program
from fgsched.scheduling.admission import admit
from fgsched.scheduling.placement import Room, cost
from fgsched.scheduling.planner import JobStart
from fgsched.store import NewJob
from fgsched.system.process import Identity, ancestry, identify, owner_of, started_with

_Who = tuple[int, int, str]  # uid, gid, user name


class GpuUse(Struct, frozen=True):
    """What a process and its descendants use on one GPU."""

    memory: int = 0  # bytes
    pids: tuple[int, ...] = ()


def uses_of(pid: int, readings: Mapping[int, Reading], above: Mapping[int, int]) -> dict[int, GpuUse]:
    """Return what a process and its descendants use, by GPU. `above`: {pid: parent pid}."""
    gpu_uses: dict[int, GpuUse] = {}
    for index, reading in readings.items():
        gpu_processes = [process for process in reading.processes if _is_below(process.pid, pid, above)]
        if gpu_processes:
            gpu_uses[index] = GpuUse(
                sum(gpu_process.memory for gpu_process in gpu_processes),
                tuple(gpu_process.pid for gpu_process in gpu_processes),
            )
    return gpu_uses


def _parents_of(readings: Iterable[Reading]) -> dict[int, int]:
    """Return {pid: parent pid} of the processes on GPUs and their ancestors; other processes are not read."""
    pids = {process.pid for reading in readings for process in reading.processes}
    return {child: parent for pid in pids for child, parent in ancestry(pid).items()}


def _is_below(pid: int, top: int, above: Mapping[int, int]) -> bool:
    for _ in range(len(above) + 1):  # a pid that was given out again can make a circle
        if pid == top or pid <= 1:
            break
        pid = above.get(pid, 0)
    return pid == top


def demand_for(requested: Demand, uses: Mapping[int, GpuUse], pid: int) -> Demand:
    """Return the demand of the job: one GPU for each that is used, and at least the memory in use.

    Raises:
        BadUsage: another number of GPUs is asked for, or the driver does not tell the memory.
    """
    is_whole_number = requested.gpus > 1 or requested.share == WHOLE
    if is_whole_number and requested.gpus != len(uses):
        listed = ",".join(map(str, sorted(uses)))
        raise BadUsage(
            f"process {pid} uses {len(uses)} GPUs ({listed}), and {requested.gpus} are asked for",
            f"Give --gpus={len(uses)}, or choose GPUs with --gpu.",
        )
    if requested.share or requested.memory or requested.memory_part:
        return replace(requested, gpus=len(uses))
    most = max(use.memory for use in uses.values())
    if not most:
        raise BadUsage(
            f"the driver does not tell the memory of process {pid}", "Give --gpus or --gpu-mem, as for fgsub."
        )
    return replace(requested, gpus=len(uses), memory=-(-most // MIB) * MIB)


def holds_for(
    demand: Demand, rooms: Iterable[Room], uses: Mapping[int, GpuUse], *, step: int, most: int
) -> tuple[Hold, ...]:
    """Return what the job holds on each GPU that the process uses.

    Args:
        rooms: the free capacity of the GPUs. The memory of the process counts as used in it.
        step: the site's step of shares, in ten-thousandths.
        most: jobs on one GPU; 0: no limit.

    Raises:
        Refused: a GPU has too little left, or the job would hold less memory than the process uses.
    """
    holds = []
    for room in rooms:
        if (use := uses.get(room.gpu.index)) is not None:
            hold = cost(demand, room.gpu, step)
            _check_hold(hold, use, room, most)
            holds.append(hold)
    return tuple(holds)


def _check_hold(hold: Hold, use: GpuUse, room: Room, most: int) -> None:
    label, free = f"GPU {room.gpu.index}", room.memory + use.memory
    if hold.memory < use.memory:
        used = format_mebibytes(use.memory)
        raise Refused(
            f"the process uses {used} on {label}, and the job would hold {format_mebibytes(hold.memory)}",
            f"Give --gpu-mem={used}, or a larger --gpus.",
        )
    if hold.share > room.share or hold.memory > free:
        raise Refused(
            f"{label} has {format_share(max(0, room.share))} and {format_mebibytes(max(0, free))} left, and"
            f" the job needs {format_share(hold.share)} and {format_mebibytes(hold.memory)}",
            "Give less with --gpus or --gpu-mem, or repeat this when jobs on it have ended: fginfo -g",
        )
    if most and room.jobs >= most:
        raise Refused(f"{label} has {room.jobs} jobs, which is the limit", "Repeat this when one has ended.")


def _answer(job: int, holds: Sequence[Hold]) -> protocol.Adopted:
    first = holds[0]
    gpus = [hold.gpu for hold in holds]
    return protocol.Adopted(job=job, gpus=gpus, share=first.share, memory=first.memory)


class AdoptHandlers:
    """Answer the requests of `calls`, in the transaction of the turn."""

    def __init__(
        self,
        engine: Engine,
        submissions: SubmissionHandlers,
        job_of: Callable[[int], int | None],
        person: Callable[[int], tuple[int, str] | None],
        python: str,
    ) -> None:
        """Take the parts of the controller that are asked.

        Args:
            job_of: returns the running job of a process.
            person: returns (gid, name) of a uid whose processes this controller can adopt.
            python: interpreter of the job's program.
        """
        self._engine, self._submissions, self._job_of = engine, submissions, job_of
        self._person, self._python = person, python

    @writes(protocol.Adopt)
    def adopt(self, caller: Caller, call: protocol.Adopt, now: float) -> protocol.Adopted:
        """Start a job for a process. Everything is checked before anything is stored.

        Raises:
            BadUsage, Refused, NotPermitted: the process cannot become a job, or not of this caller.
            Busy: the GPUs have to be queried first.
        """
        process = identify(call.pid)
        if process is None:
            raise Refused(f"there is no process {call.pid}", "It may have ended. ps lists the processes.")
        owner = self._owner(caller, call.pid)
        if (submitted_ids := self._engine.store.submitted(owner[0], call.key)) is not None:
            past = self._engine.store.past(submitted_ids.start)
            assert past is not None
            return _answer(submitted_ids.start, [gpu_allocation.hold for gpu_allocation in past.allocated])
        uses = self._uses(call, now)
        request, start = self._request(caller, call, uses, owner)
        job = self._started(call.key, process, request, owner, start, now)
        return _answer(job, start.holds)

    def _owner(self, caller: Caller, pid: int) -> _Who:
        """Return the owner of the process, who becomes the owner of the job."""
        uid = owner_of(pid)
        if uid != caller.uid and not caller.is_operator:
            raise NotPermitted(
                f"process {pid} belongs to another user", "Its owner or an operator may adopt it."
            )
        person = None if uid is None else self._person(uid)
        if uid is None or person is None:
            raise Refused(
                f"process {pid} belongs to a user who can have no jobs of this controller",
                "A user's controller adopts processes of this user only, the host's those of all users.",
            )
        gid, name = person
        Caller(uid, gid, name, is_operator=False).may_own_jobs(self._submissions.rules.least_uid)
        return uid, gid, name

    def _uses(self, call: protocol.Adopt, now: float) -> dict[int, GpuUse]:
        """Return what the process uses, on the wanted GPUs."""
        if (job := self._job_of(call.pid)) is not None:
            raise Refused(f"process {call.pid} belongs to job {job} already", f"fgctl show job {job}")
        if not self._engine.gpu_states.is_recent(now):
            self._engine.then(AskGpus())
            raise Busy("the GPUs did not answer yet", "Repeat the command.")
        readings = self._engine.gpu_states.readings
        gpu_uses = uses_of(call.pid, readings, _parents_of(readings.values()))
        if not gpu_uses:
            query = vendors.of_host().facts.query
            raise Refused(
                f"process {call.pid} uses no GPU",
                f"{query} and fgreport strangers list GPU processes; one that has just begun is seen soon.",
            )
        for pid in sorted({pid for use in gpu_uses.values() for pid in use.pids}):
            if (job := self._job_of(pid)) is not None:
                raise Refused(f"process {pid}, which it started, belongs to job {job}", "Adopt another one.")
        if missing := set(call.gpus) - gpu_uses.keys():
            listed = ",".join(map(str, sorted(gpu_uses)))
            raise Refused(f"process {call.pid} does not use GPU {min(missing)}", f"It uses GPU {listed}.")
        return {index: use for index, use in gpu_uses.items() if not call.gpus or index in call.gpus}

    def _request(
        self, caller: Caller, call: protocol.Adopt, uses: Mapping[int, GpuUse], owner: _Who
    ) -> tuple[Request, JobStart]:
        """Return the request of the job, and its start; the first partition that admits it has the job."""
        request = Request(
            name=call.name,
            demand=demand_for(call.demand, uses, call.pid),
            time_limit=call.time_limit,
            output="/dev/null",
            umask=0o077,
            comment=f"adopted process {call.pid}; its exit status is not known",
            submit_line=shlex.join(["fgctl", "adopt", str(call.pid)]),
            tier=Tier.NONE.value,
            gpu_compute=COMPUTE_NONE,
            requeue=False,
        )
        engine, refusal = self._engine, None
        for name in self._partitions(uses):
            try:
                submitter = replace(caller.submitter, user=owner[2])
                admitted = admit(replace(request, partition=name), submitter, self._submissions.ground)
            except FgschedError as error:
                refusal = refusal or error
                continue
            partition = engine.policy.partition(name)
            assert partition is not None
            limits = partition.limits(engine.limits)
            step, most = limits.share_step, limits.max_jobs_per_gpu
            holds = holds_for(admitted.demand, self._rooms(), uses, step=step, most=most)
            return admitted, JobStart(0, holds, name)
        raise refusal or Refused(
            f"no partition has GPU {','.join(map(str, sorted(uses)))}", "fginfo lists the partitions."
        )

    def _partitions(self, uses: Mapping[int, GpuUse]) -> Sequence[str]:
        """Return the partitions that have all GPUs of the process, the default one first."""
        policy = self._engine.policy
        ordered = dict.fromkeys([policy.default.name, *(partition.name for partition in policy.partitions)])
        gpus = {name: partition.gpus for name in ordered if (partition := policy.partition(name))}
        return [name for name, indices in gpus.items() if not indices or uses.keys() <= set(indices)]

    def _rooms(self) -> list[Room]:
        states = self._engine.gpu_states
        return self._engine.jobtable.rooms(states.gpus, states.readings)

    def _started(
        self, key: str, process: Identity, request: Request, owner: _Who, start: JobStart, now: float
    ) -> int:
        """Store the job, and start it beside the queue: the process runs already."""
        engine = self._engine
        words = (process.pid, process.start, engine.limits.kill_wait)
        command = shlex.join([self._python, "-I", "-S", str(Path(program.__file__)), *map(str, words)])
        new = NewJob(request=request, script=f"#!/bin/sh\nexec {command}\n".encode(), environment=b"")
        (stored_job,) = engine.store.submit([new], key=key, submitter=owner, now=now)
        engine.log.submitted(stored_job, 1)
        job = stored_job.changed(adopted=AdoptedProcess(pid=process.pid, start=process.start))
        engine.store.save(stored_job, job, now=now)
        engine.jobtable.put(job)
        begin(engine, start._replace(job_id=job.id), now)
        return job.id


def host_user_of(about: ControllerInfo, uid: int) -> tuple[int, str] | None:
    """Return (gid, name) of a user who can own jobs of this controller. Raises Busy."""
    if about.paths.mode == "user" and uid != os.geteuid():
        return None
    about.host_users.is_known(uid)  # it is looked up, if it is not known
    host_user = about.host_users.of(uid)
    if host_user is None:
        return (os.getegid(), str(uid)) if uid == os.geteuid() else None
    return host_user.gid, host_user.name


# -- which processes use the GPUs ----------------------------------------------------------------------


_LONGEST_STEP = 9  # digits


class ListedProcesses:
    """The processes of the last query of the GPUs."""

    def __init__(self) -> None:
        self.observation, self.answer = GpuObservation({}, set(), {}), gpus.GpuAnswer(want=gpus.READING)
        self.since: dict[tuple[int, int], float] = {}  # (GPU, pid) -> epoch seconds
        self.at: float | None = None  # epoch seconds of the query

    def keep(self, seen: GpuObservation, answer: gpus.GpuAnswer) -> None:
        """Keep a look at the GPUs. A GPU that did not answer keeps the times of its processes."""
        self.observation, self.answer, self.at = seen, answer, time.time()
        before, self.since = self.since, {}
        for index, reading in seen.readings.items():
            if reading.error:
                self.since |= {key: since for key, since in before.items() if key[0] == index}
            for process in reading.processes:
                self.since[index, process.pid] = before.get((index, process.pid), self.at)


class ProcessHandlers:
    """Answer requests about the processes of the last query of the GPUs."""

    def __init__(
        self,
        processes: ListedProcesses,
        job_of: Callable[[int], int | None],
        user_name: Callable[[int], str],
        open_jobs: Callable[[], Mapping[int, Job]],
    ) -> None:
        """Answer from `processes`.

        Args:
            job_of: returns the running job of a pid.
            user_name: returns the name of a uid.
            open_jobs: returns {id: job}.
        """
        self._last, self._job_of = processes, job_of
        self._user_name, self._open_jobs = user_name, open_jobs

    @reads(protocol.ListGpuProcesses)
    def _list(self, caller: Caller, call: protocol.ListGpuProcesses, now: float) -> protocol.GpuProcesses:
        return protocol.GpuProcesses(processes=self._processes(caller), seen_at=self._last.at)

    @reads(protocol.ShowProcess)
    def _show(self, caller: Caller, call: protocol.ShowProcess, now: float) -> protocol.ProcessInfo:
        on_gpus = [process for process in self._processes(caller) if process.pid == call.pid]
        job = next((gpu.job for gpu in on_gpus), None) or self._job_of(call.pid)
        if job is not None and not self._is_shown(caller, job):
            job = None
        step = started_with(call.pid, "SLURM_STEP_ID") if job is not None else ""
        step = step if step.isdecimal() and len(step) <= _LONGEST_STEP else ""  # a user sets it
        return protocol.ProcessInfo(job=job, step=step, on_gpus=on_gpus, seen_at=self._last.at)

    def _processes(self, caller: Caller) -> list[protocol.GpuProcessInfo]:
        """Return the processes on the GPUs that the caller may see."""
        return [
            self._process(index, process.pid, process.memory, process.busy)
            for index, reading in self._last.observation.readings.items()
            for process in reading.processes
            if self._may_see(caller, process.pid)
        ]

    def _may_see(self, caller: Caller, pid: int) -> bool:
        if not caller.is_confined:
            return True
        job, person = self._last.observation.owners.get(pid), self._last.answer.people.get(pid)
        return self._is_shown(caller, job) if job is not None else bool(person and person.uid == caller.uid)

    def _is_shown(self, caller: Caller, job_id: int) -> bool:
        """Tell whether the caller may see a running job. A job that has ended meanwhile is hidden."""
        job = self._open_jobs().get(job_id)
        return not caller.is_confined or (job is not None and caller.may_see(job))

    def _process(self, gpu: int, pid: int, memory: int, busy: int | None) -> protocol.GpuProcessInfo:
        job = self._last.observation.owners.get(pid)
        person = self._last.answer.people.get(pid) if job is None else None
        return protocol.GpuProcessInfo(
            pid=pid,
            gpu=gpu,
            memory=memory,
            busy=busy,
            since=self._last.since[gpu, pid],
            job=job,
            user=self._user_name(person.uid) if person else "",
            command=person.command if person else "",
        )
