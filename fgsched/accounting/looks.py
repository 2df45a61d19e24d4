"""One look at the GPUs, as the controller hands it to the accounts: what jobs hold and what processes do."""

from collections.abc import Mapping

from msgspec import Struct

from fgsched.accounting.records import Owner


class ProcessLook(Struct, frozen=True, kw_only=True, gc=False):
    """A process on a GPU."""

    pid: int
    memory: int = 0  # bytes
    busy: int | None = None  # ten-thousandths of the GPU's compute time since the last look; None: unknown
    job: int | None = None  # to which it belongs; None: to no job that runs
    user: str = ""  # of a foreign process
    command: str = ""  # of a foreign process
    has_ended: bool = False


class GpuLook(Struct, frozen=True, kw_only=True):
    """A GPU."""

    uuid: str
    size: int  # bytes for jobs
    used: int = 0  # bytes
    foreign: int = 0  # bytes of processes that belong to no job
    processes: tuple[ProcessLook, ...] = ()
    state: str = "ok"  # another one: it is down for new jobs
    why: str = ""  # reason of another state
    utilisation: int | None = None  # percent
    temperature: int | None = None  # degrees Celsius
    energy: int | None = None  # millijoules, of a counter
    throttled: tuple[str, ...] | None = None
    ecc: int | None = None  # errors that could not be corrected
    xids: tuple[int, ...] = ()
    remap: str = ""


class JobLook(Struct, frozen=True, kw_only=True):
    """A job that holds GPUs."""

    id: int
    owner: Owner
    started_at: float  # epoch seconds
    charged: Mapping[str, int]  # UUID -> ten-thousandths of the GPU
    is_ending: bool = False  # its processes have ended


class Waiting(Struct, frozen=True, kw_only=True, gc=False):
    """Pending jobs that wait for the same thing."""

    reason: str
    lacking: str
    model: str
    jobs: int
    share: int  # ten-thousandths of GPUs that they ask for together


class Look(Struct, frozen=True, kw_only=True):
    """Everything that one look shows."""

    wall: float  # epoch seconds
    clock: float  # monotonic seconds
    gpus: tuple[GpuLook, ...] = ()
    jobs: tuple[JobLook, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    error: str = ""  # why there is no look
    driver: str = ""  # version of the driver; "": unknown
