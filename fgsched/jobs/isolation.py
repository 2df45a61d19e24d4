"""What a job's process is given, as data: identity, environment, files, limits. The shepherd applies it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from fgsched.jobs.arrays import variables as array_variables
from fgsched.jobs.environment import merged
from fgsched.jobs.patterns import Values, expand
from fgsched.jobs.private import Mounts, others_of
from fgsched.jobs.tiers import is_hooked
from fgsched.model import Hold, Job, Request
from fgsched.units import format_indices, format_share

_TARGETS = {"all": 0, "shell": 1, "children": 2}
_TWINS = {  # variables that Slurm's users know under another name than SLURM_ + ours
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_NNODES": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What all jobs of a controller share."""

    host: str
    run: str  # the run directory
    hook: str  # the built libfgshim.so
    tmp: str  # what private temporary directories begin with; another controller's begin otherwise
    kill_wait: float  # seconds between SIGTERM and SIGKILL
    become_user: bool  # system mode
    visible: Mapping[str, str] = field(default_factory=dict)  # resource -> the variable that tells of it
    mounts: Mounts = field(default_factory=Mounts)  # that jobs can have of their own
    proves: bool = False  # that fences hold, in each job: there is a driver to be fenced
    tmp_key: bytes = b""  # secret of a host's controller: others must not know a name before it is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One card as the job was given it."""

    hold: Hold
    uuid: str
    cpus: tuple[int, ...] = ()  # near it; (): not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that the spawner is told about one attempt."""

    job: int
    attempt: int
    append: bool
    become_user: bool
    uid: int
    gid: int
    groups: tuple[int, ...]
    umask: int
    rlimits: tuple[tuple[int, int, int], ...]
    signal: int
    signal_target: int
    time_limit: int  # milliseconds, as all four
    signal_before: int
    grace: int
    leftover_grace: int
    run: str
    chdir: str
    stdin: str
    stdout: str
    stderr: str
    tmpdir: str
    hook: str
    args: tuple[str, ...]
    environment: bytes  # NAME=value, each ended by NUL
    mounts: str = ""  # whose namespace it has for mounts of its own: "root", "user"; "": none
    proves: bool = False  # that its fence holds, before its script
    closed: tuple[str, ...] = ()  # nodes that it is not to open
    cgroups: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (directory, file=value …)
    cpus: str = ""  # that it is bound to, such as "0-3"; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """What the host's accounts say of a job's owner."""

    home: str
    gid: int
    groups: tuple[int, ...]


def launch(job: Job, given: Sequence[Given], base: bytes, *, site: Site, owner: Person) -> Launch:
    """The launch of a job that was just reserved. `base`: its submitted environment, NUL-ended entries."""
    request = job.request
    its = files(request, _pattern_values(job, given, site, owner.home))
    tmpdir = _tmpdir(site, job)
    own = variables(job, given, site=site, tmpdir=tmpdir, error_file=its.stderr)
    early = request.early_signal
    hooked = is_hooked(job.tier, has_cards=bool(given))
    how, closed = _mounts(job, given, site=site, hooked=hooked)
    return Launch(
        job=job.id,
        attempt=job.attempt,
        append=request.append or job.restarts > 0,
        become_user=site.become_user,
        uid=job.uid,
        gid=owner.gid,
        groups=owner.groups,
        umask=request.umask,
        rlimits=request.rlimits,
        signal=early.signal if early else 0,
        signal_target=_TARGETS[early.target] if early else 0,
        time_limit=limit_of(job),
        signal_before=early.before * 1000 if early else 0,
        grace=int(site.kill_wait * 1000),
        leftover_grace=int(min(site.kill_wait, 2) * 1000),
        run=site.run,
        chdir=request.chdir,
        stdin=its.stdin,
        stdout=its.stdout,
        stderr="" if its.stderr == its.stdout else its.stderr,
        tmpdir=tmpdir,
        hook=site.hook if hooked else "",
        args=request.args,
        mounts=how,
        closed=closed,
        cpus=job.cpus,
        environment=merged(
            base, own, f"{job_dir(site.run, job.id, job.attempt)}/libfgshim.so" if hooked else ""
        ),
    )


def _mounts(job: Job, given: Sequence[Given], *, site: Site, hooked: bool) -> tuple[str, tuple[str, ...]]:
    """Whose namespace it has for mounts of its own, and which nodes are shut there."""
    site.mounts.check(hooked=hooked)
    is_shut = others_of(job.mounts) == "closed"
    closed = site.mounts.closed([card.uuid for card in given]) if is_shut else ()
    return site.mounts.how if job.mounts else "", closed


def limit_of(job: Job) -> int:
    """Milliseconds that the job may take; 0: as long as it likes."""
    limits = [job.request.time_limit * 1000] if job.request.time_limit else []
    if job.request.deadline:
        limits.append(max(1, int((job.request.deadline - (job.started_at or 0)) * 1000)))
    return min(limits, default=0)


def _tmpdir(site: Site, job: Job) -> str:
    """The private directory of a user's job in this slot; the same each time, so that it is found again."""
    place = f"{job.uid}.{job.slot}"
    if site.tmp_key:
        place += "." + blake2b(place.encode(), key=site.tmp_key, digest_size=8).hexdigest()
    return site.tmp + place


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one job, absolute; stderr is stdout where the job names none."""

    stdin: str
    stdout: str
    stderr: str


def files(request: Request, values: Values) -> Files:
    """What the patterns of a request come to for one job."""

    def path(pattern: str) -> str:
        return _path(request.chdir, expand(pattern, values))

    out = path(request.output)
    return Files(path(request.input), out, path(request.error) if request.error else out)


def job_dir(run: str, job: int, attempt: int) -> str:
    """The job's own directory: script, region, link to the hook."""
    return f"{run}/job/{job}.{attempt}"


def variables(
    job: Job, given: Sequence[Given], *, site: Site, tmpdir: str, error_file: str
) -> dict[str, str]:
    """The variables that fgsched sets, with their SLURM_ twins when asked for."""
    request = job.request
    own = {
        "FG_JOB_ID": str(job.id),
        "FG_JOB_NAME": request.name,
        "FG_JOB_PARTITION": job.partition or request.partition,
        "FG_JOB_ACCOUNT": request.account,
        "FG_JOB_QOS": request.qos,
        "FG_JOB_USER": job.user,
        "FG_SLOT": str(job.slot),
        "FG_JOB_DIR": job_dir(site.run, job.id, job.attempt),
        "FG_SUBMIT_DIR": request.submit_dir,
        "FG_SUBMIT_HOST": site.host,
        "FG_JOB_NODELIST": site.host,
        "FG_NNODES": "1",
        "FG_CPUS_ON_NODE": str(request.demand.cpus),
        "FG_CPUS_PER_TASK": str(request.demand.cpus),
        "FG_JOB_START_TIME": str(int(job.started_at or 0)),
        "FG_RESTART_COUNT": str(job.restarts),
        "FG_ERROR_FILE": error_file,
        "FG_ENFORCE": job.tier,
        "TMPDIR": tmpdir,
        **_gpu_variables(tuple(given), by_uuid=others_of(job.mounts) == "closed"),
        **_resource_variables(job, site.visible),
        **_array_variables(job),
    }
    if request.dependency:
        own["FG_JOB_DEPENDENCY"] = request.dependency
    if job.deadline is not None:
        own["FG_JOB_END_TIME"] = str(int(job.deadline))
    if request.demand.host_memory:
        own["FG_MEM_PER_NODE"] = str(request.demand.host_memory >> 20)
    if request.slurm_env:
        own.update(_slurm(own))
    return own


@lru_cache(maxsize=256)
def _gpu_variables(given: tuple[Given, ...], *, by_uuid: bool) -> Mapping[str, str]:
    """Which cards: none at all for a job that asked for none.

    Where others cannot be opened, CUDA may count without them: there an index would mean another card.
    """
    indices = ",".join(str(card.hold.gpu) for card in given)
    if not given:
        return {"CUDA_VISIBLE_DEVICES": "", "FG_JOB_GPUS": "", "FG_GPUS_ON_NODE": "0"}
    uuids = ",".join(card.uuid for card in given)
    share = sum(card.hold.share for card in given)
    cpus = format_indices(cpu for card in given for cpu in card.cpus)
    return {
        "CUDA_VISIBLE_DEVICES": uuids if by_uuid else indices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "FG_JOB_GPUS": indices,
        "FG_GPUS_ON_NODE": str(len(given)),
        "FG_GPU_FRACTION": format_share(share),
        "FG_GPU_MEM_MB": str(given[0].hold.memory >> 20),
        "FG_GPU_UUIDS": uuids,
        **({"FG_GPU_CPUS": cpus} if cpus else {}),
    }


def _resource_variables(job: Job, visible: Mapping[str, str]) -> dict[str, str]:
    """Which of the site's own resources the job was given."""
    found = {}
    for name, indices in job.resources:
        listed = ",".join(map(str, indices))
        found["FG_GRES_" + re.sub(r"[^A-Z0-9]", "_", name.upper())] = listed
        if visible.get(name):
            found[visible[name]] = listed
    return found


def _array_variables(job: Job) -> dict[str, str]:
    """Of which array it is a task, and of what others."""
    if not job.array:
        return {}
    about = {"ARRAY_JOB_ID": job.array, "ARRAY_TASK_ID": job.task}
    about |= {f"ARRAY_TASK_{name}": value for name, value in array_variables(job.request.array).items()}
    return {f"FG_{name}": str(value) for name, value in about.items()}


def _slurm(own: Mapping[str, str]) -> dict[str, str]:
    return {
        twin: value
        for name, value in own.items()
        if name.startswith("FG_")
        for twin in _TWINS.get(name, ("SLURM_" + name.removeprefix("FG_"),))
    }


def _pattern_values(job: Job, given: Sequence[Given], site: Site, home: str) -> Values:
    return Values(
        job_id=job.id,
        name=job.request.name,
        user=job.user,
        home=home,
        host=site.host.partition(".")[0],
        gpus=tuple(card.hold.gpu for card in given),
        restarts=job.restarts,
        array=job.array,
        task=job.task or 0,
    )


def _path(directory: str, name: str) -> str:
    """A name relative to the job's directory, made absolute without looking at the disk."""
    return name if name.startswith("/") else f"{directory.rstrip('/')}/{name}"
