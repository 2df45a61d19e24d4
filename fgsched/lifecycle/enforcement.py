"""Enforcement of a job's share of a GPU: memory limits, mount namespaces and the sharing of compute time."""

from collections.abc import Collection, Container, Mapping, Sequence

from msgspec import Struct, field

from fgsched.domain.errors import Refused
from fgsched.domain.job import COMPUTE_NONE, WHOLE, Gpu, Job
from fgsched.domain.policy import Policy
from fgsched.domain.states import Tier

HOOKED = frozenset({Tier.DRIVER.value, Tier.MIG.value, Tier.SHIM.value})
TIERS = tuple(tier.value for tier in Tier)


def check_tier(tier: str, allowed: Container[str], best: str) -> None:
    """Check a requested enforcement level; "" is the strongest level of the host.

    Raises:
        Refused: the site does not permit the level, or the host does not support it.
    """
    if not tier:
        return
    if tier == Tier.MIG.value:
        raise Refused(
            "--tier=mig: this level follows from the device",
            "Ask for a MIG instance: --gpu-type=PROFILE. fginfo lists them.",
        )
    if tier not in allowed:
        raise Refused(
            f"--tier={tier}: this site does not allow it",
            "Its administrator can: tiers in [fence] of the settings.",
        )
    if tier == Tier.DRIVER.value and best != tier:
        raise Refused(
            "--tier=driver: the driver of this host does not limit device memory by cgroup",
            "fgsched doctor --enforcement tells what holds here; leave --tier out to get the best of it.",
        )


def tier_of(tier: str, best: str, gpus: Sequence[tuple[Gpu, int]] = ()) -> str:
    """Return the enforcement level of a job with these GPUs and shares (ten-thousandths).

    The driver's limits do not exist on MIG instances. The hardware limits a job that has whole ones; the
    hook limits a job on a part of one.
    """
    level = tier or best
    if not any(gpu.mig for gpu, _ in gpus) or level in (Tier.WATCHDOG.value, Tier.NONE.value):
        return level
    is_alone = all(gpu.mig and gpu.mig.is_alone and share == WHOLE for gpu, share in gpus)
    return Tier.MIG.value if is_alone and tier != Tier.SHIM.value else Tier.SHIM.value


def is_hooked(tier: str, *, has_gpus: bool) -> bool:
    """Tell whether the hook is preloaded. It is also used for jobs without GPUs, to refuse all GPU memory."""
    return tier in HOOKED or not has_gpus


# -- mount namespaces ----------------------------------------------------------------------------------


PRELOAD, DEVICES = "preload", "devices"


class MountPlan(Struct, frozen=True, kw_only=True, gc=False):
    """The mount namespaces that this host can provide."""

    how: str = ""  # kind of mount namespaces: "root", "user"; "": none
    note: str = ""  # why none
    is_required: bool = False  # every job with the hook has one, or does not start
    nodes: Sequence[str] = ()  # of all GPUs and MIG instances of the host
    nodes_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # UUID -> nodes

    @property
    def word(self) -> str:
        return "namespace" if self.how else "environment"

    @property
    def others(self) -> str:
        """Whether a job can open the device nodes of other GPUs: closed or open."""
        return "closed" if self.how and self.nodes_of else "open"

    def of(self, uuids: Collection[str], *, hooked: bool) -> str:
        """Return the type of namespace of a job with these GPUs.

        A job without GPUs has no GPU memory to limit. It gets no namespace by default, because one costs
        short jobs a tenth of their rate.
        """
        if not self.how or not (uuids or self.is_required):
            return ""
        has_nodes = self.nodes_of and all(uuid in self.nodes_of for uuid in uuids)
        return ",".join([PRELOAD] * hooked + [DEVICES] * bool(has_nodes))

    def closed(self, uuids: Collection[str]) -> tuple[str, ...]:
        """Return the device nodes that a job with these GPUs must not open."""
        own_nodes = {node for uuid in uuids for node in self.nodes_of[uuid]}
        return tuple(node for node in self.nodes if node not in own_nodes)

    def check(self, *, hooked: bool) -> None:
        """Check that a job with the hook gets a namespace, if the site requires one. Raises Refused."""
        if self.is_required and hooked and not self.how:
            raise Refused(
                f'its hook could be lost, and preload = "namespace" is set: {self.note}',
                'preload = "auto" in [fence] of the settings starts jobs all the same.',
            )


def preload_of(mounts: str, *, hooked: bool) -> str:
    """Return the preload mode of a job: namespace, environment or none."""
    if PRELOAD in mounts.split(","):
        return "namespace"
    return "environment" if hooked else "none"


def others_of(mounts: str) -> str:
    """Return whether a job could open the device nodes of other GPUs."""
    return "closed" if DEVICES in mounts.split(",") else "open"


# -- compute time -------------------------------------------------------------


def compute_policy_of(job: Job, site: Policy) -> str:
    """Return the requested policy, or that of the partition or site. Only fractions of a GPU are paced."""
    demand = job.request.demand
    is_whole = all(hold.share == WHOLE for hold in job.holds) if job.holds else demand.is_whole
    if not demand.gpus or is_whole:
        return COMPUTE_NONE
    partition = site.partition(job.partition or job.request.partition)
    return job.request.gpu_compute or (partition.gpu_compute if partition else "") or site.gpu_compute
