"""Answer which processes use the GPUs, and to which job a process belongs."""

import time
from collections.abc import Callable
from typing import Any

from fgsched import gpus, protocol
from fgsched.controller.caller import Caller
from fgsched.controller.gpumonitor import GpuMonitor, Seen
from fgsched.system.process import started_with

_LONGEST_STEP = 9  # digits


class ProcessHandlers:
    """Keep the processes of the last query of the GPUs, and answer the requests of `calls`."""

    def __init__(self, monitor: GpuMonitor, user_name: Callable[[int], str]) -> None:
        """Take the looks of `monitor`; `user_name` returns the name of a uid."""
        self._monitor, self._user_name = monitor, user_name
        self._seen, self._answer = Seen({}, set(), {}), gpus.Answer(want=gpus.READING)
        self._since: dict[tuple[int, int], float] = {}  # (GPU, pid) -> epoch seconds
        self._seen_at: float | None = None
        monitor.shown = self._see
        self.calls: dict[type[protocol.Call[Any]], Callable[[Caller, Any, float], Any]] = {
            protocol.ListGpuProcesses: self._list,
            protocol.ShowProcess: self._show,
        }

    def _see(self, seen: Seen, answer: gpus.Answer) -> None:
        """Keep a look at the GPUs. A GPU that did not answer keeps the times of its processes."""
        self._seen, self._answer, self._seen_at = seen, answer, time.time()
        before, self._since = self._since, {}
        for index, reading in seen.readings.items():
            if reading.error:
                self._since |= {key: since for key, since in before.items() if key[0] == index}
            for one in reading.processes:
                self._since[index, one.pid] = before.get((index, one.pid), self._seen_at)

    def _list(self, caller: Caller, call: protocol.ListGpuProcesses, now: float) -> protocol.GpuProcesses:
        return protocol.GpuProcesses(processes=self._processes(), seen_at=self._seen_at)

    def _show(self, caller: Caller, call: protocol.ShowProcess, now: float) -> protocol.ProcessInfo:
        on_gpus = [one for one in self._processes() if one.pid == call.pid]
        job = next((one.job for one in on_gpus), None) or self._monitor.job_of(call.pid)
        step = started_with(call.pid, "SLURM_STEP_ID") if job is not None else ""
        step = step if step.isdecimal() and len(step) <= _LONGEST_STEP else ""  # a user sets it
        return protocol.ProcessInfo(job=job, step=step, on_gpus=on_gpus, seen_at=self._seen_at)

    def _processes(self) -> list[protocol.GpuProcessInfo]:
        return [
            self._process(index, one.pid, one.memory, one.busy)
            for index, reading in self._seen.readings.items()
            for one in reading.processes
        ]

    def _process(self, gpu: int, pid: int, memory: int, busy: int | None) -> protocol.GpuProcessInfo:
        job = self._seen.owners.get(pid)
        person = self._answer.people.get(pid) if job is None else None
        return protocol.GpuProcessInfo(
            pid=pid,
            gpu=gpu,
            memory=memory,
            busy=busy,
            since=self._since[gpu, pid],
            job=job,
            user=self._user_name(person.uid) if person else "",
            command=person.command if person else "",
        )
