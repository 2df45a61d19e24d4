"""Answer which processes use the GPUs, and to which job a process belongs."""

import time
from collections.abc import Callable, Mapping

from fgsched import gpus, protocol
from fgsched.controller.caller import Caller
from fgsched.controller.gpumonitor import Seen
from fgsched.controller.handlers.registration import reads
from fgsched.domain.job import Job
from fgsched.system.process import started_with

_LONGEST_STEP = 9  # digits


class SeenProcesses:
    """The processes of the last query of the GPUs."""

    def __init__(self) -> None:
        self.seen, self.answer = Seen({}, set(), {}), gpus.GpuAnswer(want=gpus.READING)
        self.since: dict[tuple[int, int], float] = {}  # (GPU, pid) -> epoch seconds
        self.at: float | None = None  # epoch seconds of the query

    def keep(self, seen: Seen, answer: gpus.GpuAnswer) -> None:
        """Keep a look at the GPUs. A GPU that did not answer keeps the times of its processes."""
        self.seen, self.answer, self.at = seen, answer, time.time()
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
        processes: SeenProcesses,
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
            for index, reading in self._last.seen.readings.items()
            for process in reading.processes
            if self._may_see(caller, process.pid)
        ]

    def _may_see(self, caller: Caller, pid: int) -> bool:
        if not caller.is_confined:
            return True
        job, person = self._last.seen.owners.get(pid), self._last.answer.people.get(pid)
        return self._is_shown(caller, job) if job is not None else bool(person and person.uid == caller.uid)

    def _is_shown(self, caller: Caller, job_id: int) -> bool:
        """Tell whether the caller may see a running job. A job that has ended meanwhile is hidden."""
        job = self._open_jobs().get(job_id)
        return not caller.is_confined or (job is not None and caller.may_see(job))

    def _process(self, gpu: int, pid: int, memory: int, busy: int | None) -> protocol.GpuProcessInfo:
        job = self._last.seen.owners.get(pid)
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
