"""Describe a launch as data: identity, environment, files, limits. The shepherd applies it."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from fgsched.domain.job import Job, Request
from fgsched.jobs.enforcement import is_hooked, others_of
from fgsched.jobs.filenames import Values, expand
from fgsched.jobs.launchcontext import AssignedGpu, JobOwner, LaunchContext
from fgsched.jobs.rlimits import merge_limits
from fgsched.jobs.variables import merge_environment, variables

Cgroups = tuple[tuple[str, tuple[str, ...]], ...]  # (directory, file=value …) of each
AssignedGpus = Sequence[AssignedGpu]
LAST_WAIT = 30_000  # milliseconds: a driver that resets a card takes seconds
_TARGETS = {"all": 0, "shell": 1, "children": 2}


class Files(Struct, frozen=True, gc=False):
    """The absolute file names of one job; stderr equals stdout if the job names none."""

    stdin: str
    stdout: str
    stderr: str

    @property
    def errors(self) -> str:
        """The file of stderr, or "" if it is that of stdout."""
        return "" if self.stderr == self.stdout else self.stderr


class Launch(NamedTuple):
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
    early: tuple[int, int, int]  # (signal, target, milliseconds before the time limit); zeros: none
    time_limit: int  # milliseconds; 0: none
    grace: int  # milliseconds between SIGTERM and SIGKILL
    leftover_grace: int  # milliseconds between SIGTERM and SIGKILL for processes that the script left
    last_wait: int  # milliseconds after SIGKILL, until a surviving process is left behind
    run: str
    space: str  # prefix of the real path of the job directory; "": the run directory
    chdir: str
    files: Files
    tmpdir: str
    hook: str
    args: tuple[str, ...]
    environment: bytes  # NAME=value, each ended by NUL
    mounts: str = ""  # owner of the job's mount namespace: "root", "user"; "": none
    proves: bool = False  # check the enforcement before the script
    closed: tuple[str, ...] = ()  # nodes that it is not to open
    cgroups: Cgroups = ()
    shared: str = ""  # a cgroup that it joins and others are in, too
    cpus: str = ""  # that it is bound to, such as "0-3"; "": none


def launch(
    job: Job, given: AssignedGpus, base: bytes, *, site: LaunchContext, owner: JobOwner, cgroups: Cgroups = ()
) -> Launch:
    """Return the launch of an allocated job. `base`: the submitted environment, NUL-terminated entries."""
    request = job.request
    paths = files(request, _pattern_values(job, given, site, owner.home))
    tmpdir = f"{owner.scratch or site.tmp}/{job.slot}"
    own = variables(job, given, site=site, tmpdir=tmpdir, error_file=paths.stderr)
    hooked = is_hooked(job.tier, has_cards=bool(given))
    preload = f"{own['FG_JOB_DIR']}/libfgshim.so" if hooked else ""
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
        rlimits=merge_limits(owner.limits, request.rlimits) if owner.limits else request.rlimits,
        early=_early(request),
        time_limit=limit_of(job),
        grace=int(site.kill_wait * 1000),
        leftover_grace=int(min(site.kill_wait, 2) * 1000),
        last_wait=LAST_WAIT,
        run=site.run,
        space=owner.space,
        chdir=request.chdir,
        files=paths,
        tmpdir=tmpdir,
        hook=site.hook if hooked else "",
        args=request.args,
        mounts=how,
        proves=site.proves and hooked and bool(given),
        closed=closed,
        cgroups=cgroups,
        cpus=job.cpus,
        environment=merge_environment(base, own, preload),
    )


def _early(request: Request) -> tuple[int, int, int]:
    """Return the signal before the time limit, for the launch message."""
    early = request.early_signal
    return (early.signal, _TARGETS[early.target], early.before * 1000) if early else (0, 0, 0)


def _mounts(
    job: Job, given: AssignedGpus, *, site: LaunchContext, hooked: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the type of the job's mount namespace, and the device nodes that are closed in it."""
    site.mounts.check(hooked=hooked)
    is_shut = others_of(job.mounts) == "closed"
    closed = site.mounts.closed([card.uuid for card in given]) if is_shut else ()
    return site.mounts.how if job.mounts else "", closed


def limit_of(job: Job) -> int:
    """Return the time limit of the job in milliseconds; 0 is no limit."""
    limits = [job.request.time_limit * 1000] if job.request.time_limit else []
    if job.request.deadline:
        limits.append(max(1, int((job.request.deadline - (job.started_at or 0)) * 1000)))
    return min(limits, default=0)


def files(request: Request, values: Values) -> Files:
    """Return the files of a request for one job, with patterns replaced."""

    def path(pattern: str) -> str:
        return _path(request.chdir, expand(pattern, values))

    out = path(request.output)
    return Files(path(request.input), out, path(request.error) if request.error else out)


def _pattern_values(job: Job, given: AssignedGpus, site: LaunchContext, home: str) -> Values:
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
    """Make a name relative to the job's directory absolute, without access to the disk."""
    return name if name.startswith("/") else f"{directory.rstrip('/')}/{name}"
