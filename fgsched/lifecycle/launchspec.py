"""Describe a launch as data: identity, environment, files, limits. The shepherd applies it."""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct, field

from fgsched.domain.job import Hold, Job, Request, is_instance
from fgsched.domain.text import word_list
from fgsched.domain.units import format_indices, format_share, parse_indices
from fgsched.domain.vendor import VendorFacts
from fgsched.lifecycle import containers, mps
from fgsched.lifecycle.arrays import variables as array_variables
from fgsched.lifecycle.enforcement import MountPlan, is_hooked, others_of, preload_of
from fgsched.lifecycle.filenames import PatternValues, expand, needs_the_job
from fgsched.lifecycle.jobvariables import MARK, WORDS, VisibleDevices, common_variables, is_of_job, words_of
from fgsched.lifecycle.mps import is_client

# -- resource limits ----------------------------------------------------------


UNLIMITED = -1
ResourceLimits = dict[int, tuple[int, int]]  # resource -> (soft, hard)


def lower(limit: int, other: int) -> int:
    """Return the lower of two limits, where a negative number is unlimited."""
    return max(limit, other) if UNLIMITED in (limit, other) else min(limit, other)


def merge_limits(
    login: ResourceLimits, requests: Iterable[tuple[int, int, int]]
) -> tuple[tuple[int, int, int], ...]:
    """Return the limits of a job: the requested limits, capped by the limits of the login."""
    requested = {number: (soft, hard) for number, soft, hard in requests}
    merged = []
    for number, (soft, hard) in sorted(login.items()):
        own_soft, own_hard = requested.get(number, (soft, hard))
        most = lower(own_hard, hard)
        merged.append((number, lower(own_soft, most), most))
    return tuple(merged)


# -- inputs other than the job: site, allocated GPUs, owner -------------------


SIMULATED_LOAD = "load"  # file in the directory of a job, with its load of simulated GPUs
STEPS_LOAD = f"steps/{SIMULATED_LOAD}"  # if the directory of the job is root's


class LaunchContext(Struct, frozen=True, kw_only=True):
    """Values that are equal for all jobs of a controller."""

    host: str
    run: str  # the run directory
    hook: str  # the built libfgshim.so
    tmp: str  # parent of private temporary directories; users can have separate ones
    kill_wait: float  # seconds between SIGTERM and SIGKILL
    become_user: bool  # system mode
    vendor: VendorFacts  # of the GPUs of the host
    no_new_privileges: bool = False  # setuid programs run as the job's user
    visible: Mapping[str, str] = field(default_factory=dict)  # resource -> the variable with its indices
    visible_devices: VisibleDevices = "numbers"
    mounts: MountPlan = field(default_factory=MountPlan)  # that jobs can have of their own
    programs: str = ""  # directory of commands that jobs find first: the names of Slurm
    commands: str = ""  # directory of commands that jobs find last: those of fgsched
    python: str = ""  # interpreter of these commands
    proves: bool = False  # that fences hold, in each job: there is a driver to be fenced
    simulates: bool = False  # GPUs, whose load jobs may set
    task_prolog: str = ""  # program of the site that runs as the user before the script; "": none
    task_prolog_time: float = 30  # seconds
    containers: tuple[str, ...] = ()  # runtimes that are installed, of lifecycle/containers.py
    podman: Mapping[str, str] = field(default_factory=dict)  # variable with the settings of podman


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
    directory_prefix: str = ""  # beginning of the real paths of the owner's job directories
    scratch: str = ""  # the owner's directory for TMPDIRs
    limits: ResourceLimits = field(
        default_factory=dict
    )  # of the owner's login; {}: those of the submission are kept


def job_dir(run: str, job: int, attempt: int) -> str:
    """Return the directory of an attempt: script, region, link to the hook."""
    return f"{run}/job/{job}.{attempt}"


# -- CPUs near the job's GPUs -------------------------------------------------


class CpuBinding(Struct, frozen=True, kw_only=True, gc=False):
    """How this host binds jobs to CPUs."""

    allowed: frozenset[int] = frozenset()  # CPUs on which jobs may run; empty: no job is bound

    def of(self, near: tuple[tuple[int, ...], ...], count: int, bound: Iterable[tuple[str, int]]) -> str:
        """Return the CPUs to which a job that requested `count` CPUs is bound, such as "0-3".

        "" for no binding.

        `near` are the CPUs near each of its GPUs. `bound` are the CPUs and the requested number of each job
        that is already bound. A job may use all CPUs if those near its GPUs are all CPUs, or are used up.
        """
        chosen = _near(near, self.allowed) if near else ""
        if not chosen:
            return ""
        near_cpus = _listed(chosen)
        bound_count = sum(
            requested for bound_cpus, requested in bound if not near_cpus.isdisjoint(_listed(bound_cpus))
        )
        return chosen if bound_count + count <= len(near_cpus) else ""


@lru_cache(maxsize=256)
def _near(gpus: tuple[tuple[int, ...], ...], allowed: frozenset[int]) -> str:
    """Return the CPUs near any of the GPUs; "" if they are unknown for one GPU or are all CPUs."""
    chosen = allowed.intersection(cpu for gpu in gpus for cpu in gpu) if all(gpus) else allowed
    return format_indices(chosen) if chosen != allowed else ""


@lru_cache(maxsize=256)
def _listed(cpus: str) -> frozenset[int]:
    return frozenset(parse_indices(cpus))


# -- environment variables ----------------------------------------------------


_SLURM = {  # our variable -> those of Slurm with its value
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_NNODES": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"),
    "FG_CPUS_ON_NODE": ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"),
    "FG_JOB_GPUS": ("SLURM_JOB_GPUS",),
    "TMPDIR": ("SLURM_TMPDIR",),
    **{
        f"FG_{name}": (f"SLURM_{name}",)
        for name in word_list(
            """JOB_NAME JOB_PARTITION JOB_ACCOUNT JOB_QOS JOB_USER JOB_START_TIME JOB_END_TIME JOB_DEPENDENCY
            SUBMIT_DIR SUBMIT_HOST GPUS_ON_NODE RESTART_COUNT ARRAY_JOB_ID ARRAY_TASK_ID
            ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP"""
        )
    },
}
_OF_BATCH_SHELL = {  # variables of Slurm that are the same for the script of every job
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"), "0"),
    "SLURM_PRIO_PROCESS": "0",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    "SLURM_CLUSTER_NAME": "fgsched",
    "SLURM_OOM_KILL_STEP": "0",
}
_YEAR = 365 * 86_400  # seconds: Slurm's end time of a job without a time limit


def variables(
    job: Job, gpus: Sequence[AssignedGpu], *, site: LaunchContext, tmpdir: str, error_file: str
) -> dict[str, str]:
    """Return the variables of a job, with their SLURM_ equivalents if requested."""
    request = job.request
    job_variables = {
        **common_variables(job, site.host),
        "FG_JOB_DIR": job_dir(site.run, job.id, job.attempt),
        "FG_SUBMIT_DIR": request.submit_dir,
        "FG_SUBMIT_HOST": site.host,
        "FG_NNODES": "1",
        "FG_CPUS_PER_TASK": str(request.task_cpus or max(1, request.demand.cpus // request.tasks)),
        "FG_NTASKS": str(request.tasks),
        "FG_JOB_START_TIME": str(int(job.start_time)),
        "FG_ERROR_FILE": error_file,
        "FG_ENFORCE": job.tier,
        "TMPDIR": tmpdir,
        **(_variables_of_site(job, gpus, site) if gpus else _programs(site)),
        **_gpu_variables(tuple(gpus), _words(job, gpus, site), site.vendor),
        **_resource_variables(job, site.visible),
        **_array_variables(job),
    }
    if request.dependency:
        job_variables["FG_JOB_DEPENDENCY"] = request.dependency
    if job.deadline is not None:
        job_variables["FG_JOB_END_TIME"] = str(int(job.deadline))
    if request.demand.host_memory:
        job_variables["FG_MEM_PER_NODE"] = str(request.demand.host_memory >> 20)
    if request.slurm_env:
        job_variables.update(_slurm(job, job_variables, site.vendor))
    return job_variables


def _programs(site: LaunchContext) -> dict[str, str]:
    """Return the variables with programs of the site."""
    programs = {"FG_PYTHON": site.python} if site.python else {}
    if site.task_prolog:
        programs |= {
            "FG_TASK_PROLOG": site.task_prolog,
            "FG_TASK_PROLOG_TIME": str(int(site.task_prolog_time)),
        }
    return programs


def _variables_of_site(job: Job, gpus: Sequence[AssignedGpu], site: LaunchContext) -> dict[str, str]:
    """Return the variables of a job with GPUs that only some sites have."""
    directory = job_dir(site.run, job.id, job.attempt)
    load = {"FG_SIM_LOAD": f"{directory}/{_load_file(job, site)}"} if site.simulates else {}
    load |= _mps_variables(job, gpus[0].hold.memory, site)
    return {**_programs(site), **load, **_container_variables(job, directory, site)}


def _load_file(job: Job, site: LaunchContext) -> str:
    """Return the name of the load file below the job's directory, where the job's user can write.

    The directory is root's if it has the hook of a mount namespace; then only `steps` is the user's.
    """
    is_of_root = site.become_user and bool(site.mounts.how and job.mounts)
    return STEPS_LOAD if is_of_root and is_hooked(job.tier, has_gpus=True) else SIMULATED_LOAD


def _mps_variables(job: Job, memory: int, site: LaunchContext) -> dict[str, str]:
    """Return the variables of a client of MPS. `memory`: limit of the job in bytes."""
    name = mps.name_of(job)
    if job.mps is None or name is None or not is_client(job):
        return {}
    uid, gpu, number = name
    return mps.variables(job.mps, job_dir(site.run, mps.id_of(uid, gpu), number), memory, site.vendor.service)


def _container_variables(job: Job, directory: str, site: LaunchContext) -> dict[str, str]:
    """Return the variables for containers that a job with GPUs starts; none without a runtime or the hook."""
    if not (site.containers or site.podman) or not is_hooked(job.tier, has_gpus=True):
        return {}
    has_preload = preload_of(job.mounts, hooked=True) == "namespace"
    own_binds = containers.variables(directory, site.hook, site.containers, preload=has_preload)
    return {**own_binds, **site.podman}


def _words(job: Job, gpus: Sequence[AssignedGpu], site: LaunchContext) -> tuple[str, ...]:
    """Return the words that select the job's GPUs. The server of MPS numbers GPUs in its own way."""
    hooked = is_hooked(job.tier, has_gpus=True)
    setting = "uuids" if is_client(job) and not hooked else site.visible_devices
    pairs = [(gpu.hold.gpu, gpu.uuid) for gpu in gpus]
    return words_of(pairs, setting, hooked=hooked, other_nodes=others_of(job.mounts))


@lru_cache(maxsize=256)
def _gpu_variables(
    gpus: tuple[AssignedGpu, ...], words: tuple[str, ...], vendor: VendorFacts
) -> Mapping[str, str]:
    """Return the variables that select the job's GPUs; an empty list hides all GPUs."""
    indices = ",".join(str(gpu.hold.gpu) for gpu in gpus)
    if not gpus:
        return {vendor.selection: "", "FG_JOB_GPUS": "", "FG_GPUS_ON_NODE": "0"}
    uuids = ",".join(gpu.uuid for gpu in gpus)
    share = sum(gpu.hold.share for gpu in gpus)
    cpus = format_indices(cpu for gpu in gpus for cpu in gpu.cpus)
    return {
        vendor.selection: ",".join(words),
        **dict(vendor.constant),
        "FG_JOB_GPUS": indices,
        "FG_GPUS_ON_NODE": str(len(gpus)),
        "FG_GPU_FRACTION": format_share(share),
        "FG_GPU_MEM_MB": str(gpus[0].hold.memory >> 20),
        "FG_GPU_UUIDS": uuids,
        WORDS: ",".join(words),
        **({vendor.uuids: uuids} if vendor.uuids and any(is_instance(gpu.uuid) for gpu in gpus) else {}),
        **({"FG_GPU_CPUS": cpus} if cpus else {}),
    }


def _resource_variables(job: Job, visible: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the units of site resources that the job received."""
    units = {}
    for name, indices in job.resources:
        listed = ",".join(map(str, indices))
        units["FG_GRES_" + re.sub(r"[^A-Z0-9]", "_", name.upper())] = listed
        if visible.get(name):
            units[visible[name]] = listed
    return units


def _array_variables(job: Job) -> dict[str, str]:
    """Return the variables that describe the array of a task."""
    if not job.array:
        return {}
    about = {"ARRAY_JOB_ID": job.array, "ARRAY_TASK_ID": job.task}
    about |= {f"ARRAY_TASK_{name}": value for name, value in array_variables(job.request.array).items()}
    return {f"FG_{name}": str(value) for name, value in about.items()}


def _slurm(job: Job, job_variables: Mapping[str, str], vendor: VendorFacts) -> dict[str, str]:
    """Return the variables that Slurm sets in the shell of a batch script, as far as one host has them."""
    twins = {**_SLURM, vendor.selection: vendor.aliases}
    slurm_variables = {
        twin: value for name, value in job_variables.items() if value for twin in twins.get(name, ())
    }
    for name in ("SLURM_RESTART_COUNT", "SLURM_GPUS_ON_NODE"):
        if slurm_variables.get(name) == "0":  # then Slurm does not set it
            del slurm_variables[name]
    slurm_variables.setdefault("SLURM_JOB_END_TIME", str(int(job.start_time) + _YEAR))
    return slurm_variables | _OF_BATCH_SHELL | {"SLURM_JOB_UID": str(job.uid), "SLURM_JOB_GID": str(job.gid)}


# -- the environment -----------------------------------------------------------------------------------

_USUAL_PATH = b"/usr/local/bin:/usr/bin:/bin"
_OF_CONTAINERS = (
    *(f"{runtime}_BIND" for runtime in containers.RUNTIMES),
    containers.PODMAN,
    containers.OLDER_PODMAN,
)


def merge_environment(
    base: bytes, job_variables: Mapping[str, str], hook: str, programs: str = "", commands: str = ""
) -> bytes:
    """Return the submitted environment, overridden by `job_variables`, with the hook ahead of other preloads.

    Args:
        programs: directory of commands that comes first in PATH.
        commands: directory of commands that comes last in PATH.
    """
    job_variables = _with_binds(base, job_variables)
    inherited, preload, path = _kept(base, frozenset(job_variables))
    if programs:
        path = programs.encode(errors="surrogateescape") + b":" + (path or _USUAL_PATH)
    if commands:
        path = (path or _USUAL_PATH) + b":" + commands.encode(errors="surrogateescape")
    inherited += b"PATH=" + path + b"\0" if path else b""
    own_text = "".join([f"{name}={value}\0" for name, value in job_variables.items()])
    whole = inherited + own_text.encode(errors="surrogateescape")
    libraries = hook.encode(errors="surrogateescape") + preload if hook else preload[1:]
    return whole + b"LD_PRELOAD=" + libraries + b"\0" if libraries else whole


def _with_binds(base: bytes, job_variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of a job, with the submitted mounts of containers behind its own.

    Settings of podman that the user has named are kept.
    """
    with_binds = {}
    for name in _OF_CONTAINERS:
        if name not in job_variables:
            continue
        _, is_set, tail = (b"\0" + base).partition(f"\0{name}=".encode())
        if is_set and (value := tail.partition(b"\0")[0].decode(errors="surrogateescape")):
            with_binds[name] = f"{job_variables[name]},{value}" if name.endswith("_BIND") else value
    return {**job_variables, **with_binds} if with_binds else job_variables


@lru_cache(maxsize=64)
def _kept(base: bytes, own_names: frozenset[str]) -> tuple[bytes, bytes, bytes]:
    """Return (remaining submitted environment, its LD_PRELOAD, its PATH).

    Jobs of one submission share the result.
    """
    inherited, preload, path = [], b"", b""
    is_inherited = (b"\0" + base).find(f"\0{MARK}=".encode()) >= 0  # by a client that is a job, as it was
    for entry in base.split(b"\0")[:-1]:
        name, _, value = entry.partition(b"=")
        if is_inherited and is_of_job(name.decode(errors="surrogateescape")):
            continue
        if name == b"LD_PRELOAD":
            preload = b":" + value if value else b""
        elif name == b"PATH":
            path = value
        elif name.decode(errors="surrogateescape") not in own_names:
            inherited.append(entry + b"\0")
    return b"".join(inherited), preload, path


# -- the launch ---------------------------------------------------------------


Cgroups = tuple[tuple[str, tuple[str, ...]], ...]  # (directory, file=value …) of each
AssignedGpus = Sequence[AssignedGpu]
LAST_WAIT = 30_000  # milliseconds: a driver that resets a GPU takes seconds
TARGETS = {"all": 0, "shell": 1, "children": 2}


class Files(Struct, frozen=True, gc=False):
    """The absolute file names of one job; stderr equals stdout if the job names none."""

    stdin: str
    stdout: str
    stderr: str
    makes: bool = False  # their directories, which depend on the job

    @property
    def errors(self) -> str:
        """The file of stderr, or "" if it is that of stdout."""
        return "" if self.stderr == self.stdout else self.stderr


class LaunchMessage(NamedTuple):
    """The launch message of one attempt, as data."""

    job: int
    attempt: int
    append: bool
    become_user: bool
    uid: int
    gid: int
    groups: tuple[int, ...]
    umask: int
    rlimits: tuple[tuple[int, int, int], ...]
    early_signal: tuple[int, int, int]  # (signal, target, milliseconds before the time limit); zeros: none
    time_limit: int  # milliseconds; 0: none
    grace: int  # milliseconds between SIGTERM and SIGKILL
    leftover_grace: int  # milliseconds between SIGTERM and SIGKILL for processes that the script left
    last_wait: int  # milliseconds after SIGKILL, until a surviving process is left behind
    run: str
    directory_prefix: str  # prefix of the real path of the job directory; "": the run directory
    chdir: str
    files: Files
    tmpdir: str
    hook: str
    args: tuple[str, ...]
    environment: bytes  # NAME=value, each ended by NUL
    mounts: str = ""  # owner of the job's mount namespace: "root", "user"; "": none
    proves: bool = False  # check the enforcement before the script
    task_prolog: bool = False  # run the program that FG_TASK_PROLOG names before the script
    closed: tuple[str, ...] = ()  # nodes that it is not to open
    cgroups: Cgroups = ()
    shared: str = ""  # a cgroup that it joins and others are in, too
    cpus: str = ""  # that it is bound to, such as "0-3"; "": none
    no_new_privileges: bool = False


def launch(
    job: Job, gpus: AssignedGpus, base: bytes, *, site: LaunchContext, owner: JobOwner, cgroups: Cgroups = ()
) -> LaunchMessage:
    """Return the launch of an allocated job. `base`: the submitted environment, NUL-terminated entries."""
    paths = files(job.request, _pattern_values(job, gpus, site, owner.home))
    tmpdir = f"{owner.scratch or site.tmp}/{job.slot}"
    job_variables = variables(job, gpus, site=site, tmpdir=tmpdir, error_file=paths.stderr)
    hooked = is_hooked(job.tier, has_gpus=bool(gpus))
    namespace, closed = _mounts(job, gpus, site=site, hooked=hooked)
    return LaunchMessage(
        job=job.id,
        attempt=job.attempt,
        append=job.request.append or job.restarts > 0,
        become_user=site.become_user,
        uid=job.uid,
        gid=owner.gid,
        groups=owner.groups,
        umask=job.request.umask,
        rlimits=merge_limits(owner.limits, job.request.rlimits) if owner.limits else job.request.rlimits,
        early_signal=_early(job.request),
        time_limit=limit_of(job),
        grace=int(site.kill_wait * 1000),
        leftover_grace=int(min(site.kill_wait, 2) * 1000),
        last_wait=LAST_WAIT,
        run=site.run,
        directory_prefix=owner.directory_prefix,
        chdir=job.request.chdir,
        files=paths,
        tmpdir=tmpdir,
        hook=site.hook if hooked else "",
        args=job.request.args,
        mounts=namespace,
        proves=site.proves and hooked and bool(gpus),
        task_prolog=bool(site.task_prolog),
        closed=closed,
        cgroups=cgroups,
        cpus=job.cpus,
        no_new_privileges=site.no_new_privileges,
        environment=merge_environment(
            base, job_variables, _link(job_variables, hooked=hooked), site.programs, site.commands
        ),
    )


def _link(job_variables: Mapping[str, str], *, hooked: bool) -> str:
    """Return the link to the hook in the directory of a job; "" without the hook."""
    return f"{job_variables['FG_JOB_DIR']}/libfgshim.so" if hooked else ""


def _early(request: Request) -> tuple[int, int, int]:
    """Return the signal before the time limit, for the launch message."""
    early = request.early_signal
    return (early.signal, TARGETS[early.target], early.before * 1000) if early else (0, 0, 0)


def _mounts(
    job: Job, gpus: AssignedGpus, *, site: LaunchContext, hooked: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the type of the job's mount namespace, and the device nodes that are closed in it."""
    site.mounts.check(hooked=hooked)
    is_shut = others_of(job.mounts) == "closed"
    closed = site.mounts.closed([gpu.uuid for gpu in gpus]) if is_shut else ()
    return site.mounts.how if job.mounts else "", closed


def limit_of(job: Job) -> int:
    """Return the time limit of the job in milliseconds; 0 is no limit."""
    limits = [job.request.time_limit * 1000] if job.request.time_limit else []
    if job.request.deadline:
        limits.append(max(1, int((job.request.deadline - job.start_time) * 1000)))
    return min(limits, default=0)


def files(request: Request, values: PatternValues) -> Files:
    """Return the files of a request for one job, with patterns replaced."""

    def path(pattern: str) -> str:
        return _absolute_path(request.chdir, expand(pattern, values))

    out = path(request.output)
    error = path(request.error) if request.error else out
    makes = any(needs_the_job(posixpath.dirname(pattern)) for pattern in (request.output, request.error))
    return Files(path(request.input), out, error, makes)


def _pattern_values(job: Job, gpus: AssignedGpus, site: LaunchContext, home: str) -> PatternValues:
    return PatternValues(
        job_id=job.id,
        name=job.request.name,
        user=job.user,
        home=home,
        host=site.host.partition(".")[0],
        gpus=tuple(gpu.hold.gpu for gpu in gpus),
        restarts=job.restarts,
        array=job.array,
        task=job.task or 0,
    )


def _absolute_path(directory: str, name: str) -> str:
    """Make a name relative to the job's directory absolute, without access to the disk."""
    return name if name.startswith("/") else f"{directory.rstrip('/')}/{name}"
