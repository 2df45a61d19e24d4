"""Build the parts that launch jobs: run directory, cgroups, users' directories, enforcement check."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec.structs
from msgspec import Struct

from fgsched import gpus
from fgsched.accounting.process import AccountantProcess
from fgsched.config.load import Config
from fgsched.controller.enforcementcheck import EnforcementGate
from fgsched.domain.job import Job
from fgsched.domain.policy import Policy
from fgsched.domain.states import Tier
from fgsched.domain.vendor import VendorFacts
from fgsched.launch.launcher import Cgroups, Launcher, LaunchGate, Ports
from fgsched.launch.rundir import RunDir
from fgsched.launch.shepherds import Watch
from fgsched.launch.spawner import Spawner
from fgsched.lifecycle.enforcement import MountPlan, compute_policy_of
from fgsched.lifecycle.launchspec import LaunchContext
from fgsched.mail.process import MailerProcess
from fgsched.store import Store
from fgsched.system import cgroups, containers, generations
from fgsched.system.hostusers import HostUsers
from fgsched.system.mounts import find as find_mounts
from fgsched.system.paths import Paths
from fgsched.system.process import NO_CHILDREN, Children, boot_id
from fgsched.system.spaces import Scratch, Spaces
from fgshim import library


class HelperProcesses(NamedTuple):
    """The GPUs and the helper processes. Accountant and mailer are started when requests are accepted."""

    spawner: Spawner
    sampler: gpus.AnySampler
    host_users: HostUsers
    inventory: gpus.Inventory
    accountant: AccountantProcess | None = None  # None: there are no accounts
    mailer: MailerProcess | None = None  # None: there are no mails
    sessions: tuple[HostUsers, ...] = ()  # with PAM sessions, for the start of jobs; none: PAM is not used
    inherited: Children = NO_CHILDREN  # of this process before it executed itself again


class Reports(Struct, frozen=True):
    """Receives the reports of the launcher, and answers its questions."""

    failed: Callable[[Job, str], None]  # an attempt could not be launched
    short: Callable[[Job, str], None]  # the same, for want of something that another attempt may get
    watch: Watch
    gone: Callable[[int], None]  # the shepherd of this job has ended
    cpus: Callable[[int], tuple[int, ...]]  # the CPUs near a GPU
    context: Callable[[str], tuple[int, bool]]  # GPU model -> as of region.pack
    policy: Callable[[], Policy]
    gate: LaunchGate  # what every launch passes


class LaunchParts(Struct, frozen=True):
    """The launcher and its parts."""

    launcher: Launcher
    mounts: MountPlan
    memory: cgroups.MemoryCgroup
    tier: str  # best enforcement level of the host
    spaces: Spaces | None
    pids: cgroups.PidsCgroups | None


_NAMES_OF_SLURM = Path(__file__).parents[1] / "slurm" / "bin"  # programs that jobs find first
_COMMANDS = Path(__file__).parents[1] / "cli" / "bin"  # and last: another environment may hide those in PATH


def build(
    places: Paths, config: Config, store: Store, helpers: HelperProcesses, run: RunDir, reports: Reports
) -> LaunchParts:
    """Create the launcher and its parts for a queue with the run directory `run`."""
    inventory, is_real = helpers.inventory, helpers.inventory.is_real
    vendor = inventory.vendor
    memory = cgroups.find(store.name)
    device = cgroups.for_devices(store.name) if inventory.limits and os.geteuid() == 0 else None
    mounts = find_mounts(config.preload, places.run, inventory.nodes, may_make=places.mode == "system")
    spaces, pids = _of_users(places, config, store.name)
    ports = Ports(
        spaces=spaces,
        scratch=_scratch(places, run.path, config),
        material=store.material,
        failed=reports.failed,
        short=reports.short,
        watch=reports.watch,
        gone=reports.gone,
        host_users=helpers.sessions[0] if helpers.sessions else helpers.host_users,
        cpus=reports.cpus,
        gate=reports.gate,
        context=reports.context,
        compute=lambda job: compute_policy_of(job, reports.policy()),
    )
    context = launch_context(places, run.path, config, mounts, vendor.facts)
    simulates = inventory.is_sampled and not is_real
    context = msgspec.structs.replace(context, proves=is_real and vendor.facts.is_hooked, simulates=simulates)
    launcher = Launcher(run, helpers.spawner, context, ports, Cgroups(memory, device, pids))
    tier = (Tier.DRIVER if device else Tier.SHIM if vendor.facts.is_hooked else Tier.NONE).value
    return LaunchParts(launcher, mounts, memory, tier, spaces, pids)


def enforcement_gate(helpers: HelperProcesses, run: RunDir) -> EnforcementGate:
    """Return the gate that checks the enforcement before a launch."""
    inventory = helpers.inventory
    return EnforcementGate(
        helpers.sampler,
        run=str(run.path),
        hook=library(),
        is_real=inventory.is_real,
        driver=inventory.vendor.driver_state,
    )


def run_directory(places: Paths, store: Store) -> RunDir:
    """Return the run directory of a queue.

    Its ids continue after the highest id in the files of earlier queues.
    """
    directory = generations.directory_of(places.run, store.name)
    store.raise_ids(generations.highest_id(places.run, directory))
    return RunDir(directory, boot_id())


def launch_context(
    places: Paths, run: Path, config: Config, mounts: MountPlan, vendor: VendorFacts
) -> LaunchContext:
    """Return the values that are equal for all launches."""
    podman = containers.write_podman_settings(
        run / "containers.conf", [str(places.run)], str(library()), vendor.selecting, preload=bool(mounts.how)
    )
    return LaunchContext(
        host=socket.gethostname(),
        run=str(run),
        hook=str(library()),
        tmp=config.tmp,
        kill_wait=config.kill_wait,
        become_user=places.mode == "system",
        vendor=vendor,
        no_new_privileges=config.no_new_privileges,
        visible={resource.name: resource.visible_env for resource in config.policy.resources},
        visible_devices=config.visible_devices,
        mounts=mounts,
        programs=str(_NAMES_OF_SLURM),
        commands=str(_COMMANDS),
        python=sys.executable,
        task_prolog=config.task_prolog,
        task_prolog_time=config.task_prolog_time,
        containers=containers.installed(),
        podman=podman,
    )


def _of_users(places: Paths, config: Config, name: str) -> tuple[Spaces | None, cgroups.PidsCgroups | None]:
    """Return the tmpfs and the cgroups of users; only the host's controller has them."""
    if places.mode == "user":
        return None, None
    return Spaces(places.run, size=config.run_space), cgroups.PidsCgroups(name, config.max_processes)


def _scratch(places: Paths, own: Path, config: Config) -> Scratch:
    return Scratch(own, f"{config.tmp}/fg-", for_all=places.mode == "system")
