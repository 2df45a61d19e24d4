"""Check or set the enforcement of a job with GPUs before its launch, without blocking the event loop.

The hook is tested once for each driver and each build of the hook. Whether a job's environment loads it is
checked in the job, before its script. A limit of the driver is set for each job.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fgsched import gpus
from fgsched.domain.states import Tier
from fgsched.launch.launcher import PendingLaunch
from fgsched.store import GpuAllocation
from fgsched.system import cgroups

log = logging.getLogger(__name__)
_PATIENCE = 60.0  # seconds after which a query is considered lost with its process
_NOT_HELD = "its enforcement does not work: "


class EnforcementCheck:
    """`open_for` launches a job at once, or when the answer has arrived in `hear`."""

    def __init__(
        self,
        sampler: gpus.AnySampler,
        *,
        run: str,
        hook: Path,
        is_real: bool,
        driver: Callable[[], str] = str,
    ) -> None:
        """`driver` returns a text that changes with the loaded driver."""
        self._sampler = sampler
        self._run = run
        self._hook = hook
        self._is_real, self._driver = is_real, driver
        self._proved = ""  # for which driver and hook the verdict is
        self._verdict = ""  # why enforcement does not work; "": it works
        self._asked_at: float | None = None
        self._asked_for = ""
        self._waiting: list[PendingLaunch] = []  # for the verdict
        self._limiting: dict[str, PendingLaunch] = {}  # by the request

    def open_for(self, launching: PendingLaunch) -> None:
        """Launch the job, refuse it, or keep it until the check has finished."""
        tier = launching.job.tier
        if not self._is_real or not launching.allocations or tier not in (Tier.SHIM.value, Tier.DRIVER.value):
            launching.go()
        elif tier == Tier.DRIVER.value:
            self._limit(launching)
        elif self._key() == self._proved:
            self._let(launching)
        else:
            self._waiting.append(launching)
            self._ask(launching.allocations[0])

    def _let(self, launching: PendingLaunch) -> None:
        if self._verdict:
            launching.refuse(_NOT_HELD + self._verdict)
        else:
            launching.go()

    def _key(self) -> str:
        """Return a key that changes with the loaded driver and the build of the hook."""
        about = os.stat(self._hook) if self._hook.exists() else None
        driver = self._driver()
        return f"{(about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size) if about else None}{driver}"

    def _ask(self, gpu: GpuAllocation) -> None:
        if self._asked_at is not None and time.monotonic() - self._asked_at < _PATIENCE:
            return  # the answer will follow
        self._asked_at = time.monotonic()
        self._asked_for = self._key()
        about = {"run": self._run, "hook": str(self._hook), "gpu": gpu.gpu, "uuid": gpu.uuid}
        self._sampler.ask(f"{gpus.HOOK_TEST} {json.dumps(about)}")

    def _limit(self, launching: PendingLaunch) -> None:
        """Set the driver's limit on the cgroup, before the shepherd joins it."""
        try:
            cgroups.make(Path(launching.cgroup))
        except OSError as error:
            launching.refuse(f"{_NOT_HELD}{launching.cgroup}: {error.strerror}")
            return
        limits = {gpu_allocation.uuid: gpu_allocation.memory for gpu_allocation in launching.allocations}
        question = f"{gpus.LIMIT} {json.dumps({'path': launching.cgroup, 'cards': limits})}"
        self._limiting[question] = launching
        self._sampler.ask(question)

    def hear(self, answer: gpus.GpuAnswer) -> None:
        """Handle the answer to a check."""
        if answer.want.startswith(gpus.LIMIT):
            self._limited(answer)
            return
        self._proved, self._verdict, self._asked_at = self._asked_for, answer.error, None
        if answer.error:
            log.error("the enforcement of GPU memory does not work: %s", answer.error)
        waiting, self._waiting = self._waiting, []
        for launching in waiting:
            self._let(launching)
        if answer.error:
            self._proved = ""  # tested again for the next job, in case it was repaired

    def _limited(self, answer: gpus.GpuAnswer) -> None:
        launching = self._limiting.pop(answer.want, None)
        if launching is None:
            return
        if answer.error:
            with suppress(OSError):
                os.rmdir(launching.cgroup)
            launching.refuse(_NOT_HELD + answer.error)
        else:
            launching.go()

    def remind(self) -> None:
        """Repeat a check whose process was killed."""
        if self._waiting and self._asked_at is not None and time.monotonic() - self._asked_at >= _PATIENCE:
            self._ask(self._waiting[0].allocations[0])

    @property
    def verdict(self) -> str:
        """Return why the hook does not work on this host, as far as tested, or ""."""
        return self._verdict
