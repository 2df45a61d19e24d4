"""The Multi-Process Service (MPS) of a vendor: the jobs that use it, and the steps of its control daemons.

A GPU has one daemon for each user whose jobs use MPS there. It is started before the first of these jobs is
launched, and ended after the last one. `plan` decides and does no I/O; `controller/mpsdaemons.py` makes the
steps and has the processes.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import COMPUTE_NONE, WHOLE, Job, MpsUse
from fgsched.domain.states import JobState
from fgsched.domain.vendor import ShareService

MOST_JOBS = 48  # on one GPU: the clients that every GPU since Volta and every driver takes
START_TIME = 20.0  # seconds in which a daemon must have started a server
DUE_TIME = 30.0  # seconds in which an earlier daemon of the user and GPU must have ended
CONFIRM_PAUSE = 0.5  # seconds until the question whether its server lives: one that fails is listed at first
ASK_PAUSE = 0.1  # seconds between two questions to a daemon that has no server yet
RETRY_TIME = 60.0  # seconds after a failed start in which no other one is tried
END_TIME = 10.0  # seconds after which a job is ended although its clients could not be
_LONGEST_PATH = 107 - len("/control_privileged")  # of a socket, as the kernel takes it
_EPOCH = 1_577_836_800  # 2020: numbers of daemons are seconds since then, with at most nine digits
_FIRST = 2**48  # ids below are those of jobs
_GPUS = 1024  # of one host

Key = tuple[int, int]  # (uid, index of the GPU)
Name = tuple[int, int, int]  # (uid, index of the GPU, number)


# -- names ------------------------------------------------------------------------------------------


def id_of(uid: int, gpu: int) -> int:
    """Return the id that a daemon has in the run directory, where jobs have theirs."""
    return _FIRST + uid * _GPUS + gpu


def is_server(job_id: int) -> bool:
    """Tell whether an id in the run directory is that of a daemon."""
    return job_id >= _FIRST


def key_of(job_id: int) -> Key:
    """Return (uid, GPU) of the id of a daemon."""
    return divmod(job_id - _FIRST, _GPUS)


# -- jobs -------------------------------------------------------------------------------------------


class MpsSettings(Struct, frozen=True, kw_only=True):
    """The settings of a site."""

    gpus: frozenset[int] = frozenset()  # indices of the GPUs with MPS
    program: str = ""  # the control program; "": it is not installed
    service: ShareService = field(default_factory=ShareService)  # of the vendor of the GPUs


OFF = MpsSettings()


def percent_of(job: Job, compute: str, settings: MpsSettings) -> int:
    """Return the part of the GPU's threads that a job may use by MPS, in percent; 0: it does not use MPS.

    MPS is for a part of one GPU. A container does not contain the directory of the daemon.

    `compute`: how the job shares compute time: hard, fair or none.
    """
    if len(job.holds) != 1 or job.holds[0].gpu not in settings.gpus or job.holds[0].share == WHOLE:
        return 0
    if job.adopted is not None or job.request.container:
        return 0
    return 100 if compute == COMPUTE_NONE else max(1, job.holds[0].share * 100 // WHOLE)


def variables(use: MpsUse, directory: str, memory: int, service: ShareService) -> dict[str, str]:
    """Return the variables of a client.

    `directory`: of the daemon. `memory`: limit of each process in bytes.
    """
    values = {"directory": directory, "percent": use.percent, "mebibytes": memory >> 20}
    return {name: template.format(**values) for name, template in service.client}


def without_variables(environment: bytes, jobs: str, service: ShareService) -> bytes:
    """Return a submitted environment without the variables of a client, if a client submitted it.

    `jobs`: directory of all job directories. The daemon of another job serves another GPU, or has ended.
    """
    if not service.directory or f"{service.directory}={jobs}/".encode() not in environment:
        return environment
    entries = [
        entry for entry in environment.split(b"\0")[:-1] if not entry.startswith(service.prefix.encode())
    ]
    return b"".join(entry + b"\0" for entry in entries)


def daemon_variables(directory: str, uuid: str, service: ShareService) -> dict[str, str]:
    """Return the variables of a daemon and of the commands to it. `uuid`: of its GPU."""
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        **{name: text.format(directory=directory, uuid=uuid) for name, text in service.daemon},
    }


def refusal(settings: MpsSettings, directory: str) -> str:
    """Return why no daemon can be started with this directory; "": it can."""
    if not settings.program:
        return f"{settings.service.program} is not installed"
    if len(directory) > _LONGEST_PATH:
        return f"the path of its directory is longer than {_LONGEST_PATH} bytes"
    return ""


# -- answers of the control program -----------------------------------------------------------------


def pids_of(output: str) -> tuple[int, ...]:
    """Return the pids in an answer of the control program, one in each line; other lines are left out."""
    words = (line.strip() for line in output.splitlines())
    return tuple(int(word) for word in words if word.isascii() and word.isdecimal())


# -- daemons ----------------------------------------------------------------------------------------


class Phase(Enum):
    """The phase of a daemon."""

    DUE = "due"  # to be started, after the end of an earlier one
    STARTING = "starting"  # launched; it has no server yet
    READY = "ready"  # it has a server
    BROKEN = "broken"  # it did not start, or it ended before its jobs
    ENDING = "ending"


class MpsDaemon(Struct, frozen=True, kw_only=True):
    """One control daemon. Times are in seconds since the epoch."""

    uid: int
    gid: int
    user: str
    gpu: int  # index
    uuid: str  # of the GPU
    number: int  # among the daemons of the user and GPU: no number is used twice
    phase: Phase = Phase.DUE
    lives: bool = False  # it has, or may have, a process
    until: float = math.inf  # end of the phase; 0: it has passed
    asks_at: float = math.inf  # when it is asked for its server; inf: not, or an answer is pending
    was_reached: bool = False  # it has answered, and got the command to start a server
    pids: tuple[int, ...] = ()  # of the servers in its last answer
    was_stopped: bool = False  # it got the command to end
    why: str = ""  # of a failure

    @property
    def key(self) -> Key:
        return self.uid, self.gpu

    @property
    def name(self) -> Name:
        return self.uid, self.gpu, self.number

    @property
    def id(self) -> int:
        return id_of(self.uid, self.gpu)


class StartDaemon(Struct, frozen=True):
    """Start the daemon."""

    server: MpsDaemon


class AskDaemon(Struct, frozen=True):
    """Ask the daemon for its server."""

    server: MpsDaemon


class StopDaemon(Struct, frozen=True):
    """End the daemon."""

    server: MpsDaemon


class Grant(Struct, frozen=True):
    """Launch a job as a client."""

    job: Job


class Refuse(Struct, frozen=True):
    """Launch a job without MPS."""

    job: Job
    why: str


class Lose(Struct, frozen=True):
    """Note that the daemon of a running job has failed."""

    job: Job
    why: str


class Withdraw(Struct, frozen=True):
    """Return a job that was cancelled before its launch."""

    job: Job


JobStep = Grant | Refuse | Lose | Withdraw
Step = StartDaemon | AskDaemon | StopDaemon | JobStep


def number_at(now: float) -> int:
    """Return the number of a daemon that is started at a time, in seconds since the epoch; at least 1."""
    return max(1, int(now) - _EPOCH)


def usable(servers: Mapping[Name, MpsDaemon], key: Key) -> MpsDaemon | None:
    """Return the daemon that a job of this user and GPU would use, or the broken one that prevents it."""
    mps_daemons = [
        server for server in servers.values() if server.key == key and server.phase is not Phase.ENDING
    ]
    return mps_daemons[0] if mps_daemons else None


def plan(
    servers: Mapping[Name, MpsDaemon], jobs: Sequence[Job], now: float
) -> Iterator[tuple[MpsDaemon, Step]]:
    """Yield the steps that are due, each with the daemon as it is afterwards.

    `jobs`: the living jobs that use MPS or ask for it. A daemon without jobs is ended. A
    broken one is kept while processes that were its clients may live, and for a time after a failed start.
    """
    for server in servers.values():
        daemon_jobs = [job for job in jobs if name_of(job) == server.name]
        match server.phase:
            case Phase.DUE if daemon_jobs and not _has_other(servers.values(), server):
                begun = {"phase": Phase.STARTING, "lives": True, "until": now + START_TIME}
                started = replace(server, **begun)
                yield started, StartDaemon(started)
            case Phase.STARTING | Phase.READY if not daemon_jobs:
                ending = replace(server, phase=Phase.ENDING, asks_at=math.inf, was_stopped=True)
                yield ending, StopDaemon(ending)
            case Phase.STARTING if now < server.until and now >= server.asks_at:
                yield replace(server, asks_at=math.inf), AskDaemon(server)
            case Phase.READY:
                yield from ((server, step) for step in _admit_clients(daemon_jobs, jobs, server.gpu))
            case Phase.BROKEN:
                yield from _broken(server, daemon_jobs)


def _has_other(servers: Iterable[MpsDaemon], server: MpsDaemon) -> bool:
    return any(mps_daemon.key == server.key and mps_daemon.name != server.name for mps_daemon in servers)


def _admit_clients(daemon_jobs: Iterable[Job], jobs: Iterable[Job], gpu: int) -> Iterator[Step]:
    """Admit jobs, up to the number of clients that a GPU takes. The processes of a job are not counted."""
    clients = sum(is_client(job) and job.holds[0].gpu == gpu for job in jobs)
    for job in daemon_jobs:
        if not is_asking(job):
            continue
        if clients >= MOST_JOBS:
            yield Refuse(job, f"{clients} jobs use MPS on GPU {gpu}, which is the most")
        else:
            clients += 1
            yield Grant(job)


def _broken(server: MpsDaemon, daemon_jobs: Sequence[Job]) -> Iterator[tuple[MpsDaemon, Step]]:
    for job in daemon_jobs:
        if is_asking(job):
            yield server, Refuse(job, server.why)
        elif is_client(job):
            yield server, Lose(job, server.why)
    if not daemon_jobs and server.lives and not server.was_stopped:
        stopped = replace(server, was_stopped=True)
        yield stopped, StopDaemon(stopped)


def at(server: MpsDaemon, now: float) -> MpsDaemon:
    """Return the daemon as it is at a time: broken if it has no server at the end of its time to start."""
    if server.phase is Phase.BROKEN and not now < server.until <= now + RETRY_TIME:  # or the clock was set
        return replace(server, until=0.0)
    if server.phase is Phase.DUE and now >= server.until:
        return broken(server, "an earlier daemon does not end", now)
    if server.phase is not Phase.STARTING or now < server.until:
        return server
    why = server.why or "no answer"
    return broken(server, f"its daemon has no server after {START_TIME:g} s: {why}", now)


def broken(server: MpsDaemon, why: str, now: float) -> MpsDaemon:
    """Return the daemon as failed. Another one is started after a while, and after the end of its jobs."""
    until = now + RETRY_TIME if server.phase is not Phase.READY else 0.0
    return replace(server, phase=Phase.BROKEN, asks_at=math.inf, until=until, why=why)


def ended(server: MpsDaemon, why: str, now: float) -> MpsDaemon | None:
    """Return a daemon whose process has ended; None: nothing has to be remembered of it."""
    if server.phase is Phase.ENDING:
        return None
    if server.phase is Phase.BROKEN:
        return replace(server, lives=False)
    return replace(broken(server, why, now), lives=False)


def is_over(server: MpsDaemon, jobs: Iterable[Job]) -> bool:
    """Tell whether a daemon that has no process can be forgotten."""
    if server.lives or server.phase not in (Phase.BROKEN, Phase.DUE):
        return False
    if server.phase is Phase.BROKEN and server.until:
        return False
    return all(name_of(job) != server.name for job in jobs)


# -- the use of a job -------------------------------------------------------------------------------


def uses(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that may have clients of a daemon, or ask for one."""
    return [job for job in jobs if job.mps is not None and job.mps.server and job.state in _ALIVE]


_ALIVE: Collection[JobState] = (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED)


def name_of(job: Job) -> Name | None:
    """Return the daemon of a job; None: it has none."""
    if job.mps is None or not job.mps.server or not job.holds:
        return None
    return job.uid, job.holds[0].gpu, job.mps.server


def is_asking(job: Job) -> bool:
    """Tell whether a job waits for its daemon."""
    return job.mps is not None and job.mps.state == "asked"


def is_client(job: Job) -> bool:
    """Tell whether a job was launched as a client of a daemon that has not failed."""
    return job.mps is not None and job.mps.state == "used"
