"""Inputs of a launch other than the job: site, allocated GPUs, and owner."""

from collections.abc import Mapping

from msgspec import Struct, field

from fgsched.domain.job import Hold
from fgsched.jobs.enforcement import MountPlan
from fgsched.jobs.rlimits import Limits


class LaunchContext(Struct, frozen=True, kw_only=True):
    """Values that are equal for all jobs of a controller."""

    host: str
    run: str  # the run directory
    hook: str  # the built libfgshim.so
    tmp: str  # where private temporary directories are, but for users who have a place of their own
    kill_wait: float  # seconds between SIGTERM and SIGKILL
    become_user: bool  # system mode
    visible: Mapping[str, str] = field(default_factory=dict)  # resource -> the variable with its indices
    mounts: MountPlan = field(default_factory=MountPlan)  # that jobs can have of their own
    proves: bool = False  # that fences hold, in each job: there is a driver to be fenced


class AssignedGpu(Struct, frozen=True, kw_only=True, gc=False):
    """One GPU with the job's share of it."""

    hold: Hold
    uuid: str
    cpus: tuple[int, ...] = ()  # near it; (): not known


class JobOwner(Struct, frozen=True, kw_only=True):
    """The account of a job's owner on the host."""

    home: str
    gid: int
    groups: tuple[int, ...]
    space: str = ""  # what the real paths of the owner's job directories begin with
    scratch: str = ""  # the owner's directory for TMPDIRs
    limits: Limits = field(default_factory=dict)  # of the owner's login; {}: those of the submission are kept


def job_dir(run: str, job: int, attempt: int) -> str:
    """Return the directory of an attempt: script, region, link to the hook."""
    return f"{run}/job/{job}.{attempt}"
