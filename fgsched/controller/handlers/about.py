"""Describe the controller: version, host, directories, enforcement and log of decisions."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched import PROTOCOL, __version__, gpus
from fgsched.config.keys import document
from fgsched.config.schema import Config
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import LEVELS, DecisionLog
from fgsched.domain.job import Gpu
from fgsched.domain.policy import Defaults, Policy
from fgsched.domain.times import format_limit
from fgsched.domain.units import SubmitContext, format_mebibytes
from fgsched.lifecycle.enforcement import MountPlan
from fgsched.protocol import About, InternalErrors, JobOfEarlierQueue, LogLine, LogLines, ShowLog
from fgsched.system.cgroups import MemoryCgroup, PidsCgroups
from fgsched.system.hostusers import HostUsers
from fgsched.system.nice import hard_limits
from fgsched.system.paths import Paths
from fgsched.system.spaces import Spaces
from fgsched.views.display import host_name


class ControllerInfo(Struct, frozen=True):
    """The controller's host, configuration and enforcement, for `ping`."""

    paths: Paths
    config: Config
    inventory: gpus.Inventory
    memory: MemoryCgroup
    host_users: HostUsers
    tier: str  # how jobs are held to their share, if they do not say
    mounts: MountPlan
    fence: Callable[[], str]  # returns why the hook does not work, as far as tested
    unresolved_pids: Callable[[], Sequence[int]]  # returns the pids that GPUs list and no process here has
    earlier_jobs: Callable[[], list[JobOfEarlierQueue]]  # returns the jobs of earlier queues that still run
    context_memory: Callable[[], int]  # returns the bytes of the smallest context on a GPU; 0: no GPU
    spaces: Spaces | None = None  # of the users, in the run directory of a host's controller
    pids: PidsCgroups | None = None  # of the users, where a host's controller can make them
    accounts_note: Callable[[], str] = str  # returns why nothing can be stored in the accounts
    queue_note: Callable[[], str] = str  # returns why the queue cannot be written
    started_at: float = field(default_factory=time.time)  # seconds since the epoch
    hard_limits: tuple[tuple[int, int], ...] = field(default_factory=hard_limits)  # (resource, limit)
    devices: str = field(default_factory=lambda: os.environ.get("FG_DEVICES", ""))

    def described(self, site: SubmitContext, errors: InternalErrors, *, operator: bool) -> About:
        """Return the answer to `ping`; `operator` tells whether the caller is one."""
        paths, memory = self.paths, self.memory
        return About(
            version=__version__,
            protocol=PROTOCOL,
            pid=os.getpid(),
            mode=paths.mode,
            state=str(paths.state),
            run_dir=str(paths.run),
            **_of_gpus(self.inventory),
            enforce=self.tier,
            fence=self.fence(),
            unresolved_pids=list(self.unresolved_pids()),
            earlier_jobs=self.earlier_jobs(),
            started_at=self.started_at,
            host=host_name(),
            host_memory_held_by=f"cgroup {memory.kind}" if memory.kind else "",
            host_memory_note=memory.note,
            pids_held=bool(self.pids and self.pids.kind),
            pids_note=self.pids.note if self.pids else "",
            run_space_note=self.spaces.note if self.spaces else "",
            preload=self.mounts.word,
            preload_note=self.mounts.note,
            other_gpus=self.mounts.others,
            internal_errors=errors,
            operator=operator,
            watchdog=self.config.watchdog,
            interval=self.config.interval,
            run_space=self.config.run_space,
            site=site,
            config=document(self.config),
            queue_size=_size(paths.queue),
            accounts_size=_size(paths.accounts),
            accounts_note=self.accounts_note(),
            queue_note=self.queue_note(),
        )

    def site(self, policy: Policy) -> SubmitContext:
        """Return the settings with which commands read a submission, as far as all users have the same."""
        gpus = self.inventory.gpus
        return replace(
            self.config.site,
            resources=tuple(resource.name for resource in policy.resources),
            partition=policy.default.name,
            partitions=tuple(partition.name for partition in policy.partitions),
            reservations=tuple(reservation.name for reservation in policy.reservations),
            defaults={partition.name: _as_options(partition.defaults) for partition in policy.partitions},
            undefined=tuple(
                option for option, names in (("account", policy.accounts), ("qos", policy.qos)) if not names
            ),
            gpu_features=tuple(dict.fromkeys(name for gpu in gpus for name in (*gpu.features, gpu.model))),
            partition_gpus=_whole_gpus(policy, gpus),
            own=self.paths.mode == "user",
            limits=self.hard_limits,
            devices=self.devices,
            config_file=str(self.paths.config_file),
        )


def _as_options(defaults: Defaults) -> dict[str, str]:
    """Return the defaults of a partition as options of fgsub."""
    texts = {
        "gpus": defaults.gpus,
        "gpu-mem": defaults.gpu_mem,
        "cpus-per-task": str(defaults.cpus or ""),
        "mem": format_mebibytes(defaults.memory) if defaults.memory else "",
        "time": format_limit(defaults.time) if defaults.time else "",
    }
    return {option: text for option, text in texts.items() if text}


def _whole_gpus(policy: Policy, gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return the number of whole GPUs of each partition."""
    whole = [gpu.index for gpu in gpus if not gpu.profile]
    return {
        partition.name: sum(not partition.gpus or index in partition.gpus for index in whole)
        for partition in policy.partitions
    }


def _of_gpus(inventory: gpus.Inventory) -> dict[str, Any]:
    """Return the fields about the GPUs, and what limits them."""
    selection = inventory.vendor.facts.selection
    return {
        "source": inventory.source,
        "note": f"{inventory.note}; asked again until it answers" if inventory.is_late else inventory.note,
        "gpus": len(inventory.gpus),
        "visible": os.environ.get(selection),
        "selection": selection,
    }


def _size(file: Path) -> int:
    """Return the bytes of a file with its write-ahead log; 0: it is missing."""
    size = 0
    for path in (file, file.with_name(f"{file.name}-wal")):
        with suppress(OSError):
            size += path.stat().st_size
    return size


def log_lines(log: DecisionLog, caller: Caller, call: ShowLog) -> LogLines:
    """Return the lines in memory that the caller may see: all for operators, else those about own jobs."""
    uid = None if caller.is_operator else caller.uid
    lines = log.lines(uid=uid, job=call.job)
    return LogLines(
        lines=[
            LogLine(at=decision_line.at, level=LEVELS[decision_line.level], text=decision_line.text)
            for decision_line in lines
        ]
    )
