"""Find out what this host has, for `fgsched init`, and check it with a job of an ordinary user."""

import grp
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from fgsched import protocol
from fgsched.cli.install.plan import PathContent
from fgsched.cli.shells import COMMANDS
from fgsched.client import Client, TimedOut
from fgsched.config.schema import Config
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.states import JobState
from fgsched.gpus import discover, vendors
from fgsched.system.safeopen import become, refuse_unless_safe
from fgshim import library, spawner

_PREFIXES = ("usr", "usr/local")  # where shells, man and init systems look
_PATIENCE = 120.0  # seconds that the submission, and then the job, may take


_FIRST_USER, _LAST_USER = 1000, 60_000  # uids of people
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
SENDMAIL = "/usr/sbin/sendmail"
_LOCAL = Path("/usr/local")
_SHARED = {  # directory below the prefix: pattern of our files in it
    "share/man/man1": "fg*.1",
    "share/man/man5": "fgsched*.5",
    "share/man/man8": "fgsched*.8",
    "share/bash-completion/completions": "fg*",
    "share/zsh/site-functions": "_fg*",
    "share/fish/vendor_completions.d": "fg*.fish",
}
OPERATORS = "fgsched-operators"  # the group


class InstalledGpu(Struct, frozen=True):
    """A GPU of this host."""

    index: int
    name: str
    memory: int  # bytes


class Hardware(Struct, frozen=True, kw_only=True):
    """What the configuration says about this host."""

    gpus: Sequence[InstalledGpu] = ()
    note: str = ""  # why there are no GPUs
    is_unknown: bool = False  # the driver did not answer: there may be GPUs
    cpus: int  # 0: not known
    memory: int  # bytes


class InstallHost(Struct, frozen=True, kw_only=True):
    """What this host has."""

    program: str  # path of fgsched
    hardware: Hardware
    systemd: Literal["running", "installed", ""]
    has_unit: bool  # the package of the distribution has brought one
    has_cron: bool  # there is /etc/cron.d
    has_mail: bool  # there is a program that takes mails
    has_group: bool  # of the operators
    links: Mapping[str, str]  # path -> one of our files that is not where programs look
    operator: str = ""  # the user who called sudo
    enabled: frozenset[str] = frozenset()  # units that start with the host


_OF_AN_IMAGE = Hardware(note="it was written into an image", is_unknown=True, cpus=0, memory=0)


def examine(root: Path, environ: Mapping[str, str]) -> InstallHost:
    """Find out what this host has.

    Args:
        root: the directory below which files are looked for, "/" or that of an image.
    """
    operator = environ.get("SUDO_USER", "")
    return InstallHost(
        program=str(_beside("fgsched")),
        hardware=hardware() if root == Path("/") else _OF_AN_IMAGE,
        systemd=_systemd(root),
        has_unit=any(_below(root, f"{place}/fgsched.service").exists() for place in _UNITS[1:]),
        has_cron=_below(root, "/etc/cron.d").is_dir(),
        has_mail=_below(root, SENDMAIL).exists(),
        has_group=_has_group(root),
        links=_links(root),
        operator=operator if operator != "root" else "",
        enabled=_enabled(root),
    )


def refuse_unfit_programs() -> None:
    """Refuse programs that users could change, which root must not run, or cannot execute. Raises Refused."""
    for program in (Path(sys.executable), Path(__file__), library(), spawner()):
        refuse_unless_safe(program, owner=0, writers=0o002)
        for part in (program.resolve(), *program.resolve().parents):
            if not part.stat().st_mode & (0o001 if part.is_dir() else 0o004):
                raise Refused(
                    f"users cannot read {program}: {part} has mode {part.stat().st_mode & 0o7777:04o}",
                    "Install fgsched where every user can read it: python3 -m venv /opt/fgsched, then"
                    " /opt/fgsched/bin/pip install with the wheel of scripts/package.",
                )


def _beside(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def hardware() -> Hardware:
    """Return the GPUs, CPUs and memory of this host."""
    try:
        inventory = discover(Config(), {})
        gpus = tuple(InstalledGpu(gpu.index, gpu.model, gpu.total) for gpu in inventory.gpus)
        note, is_unknown = inventory.note, vendors.of_host().has_driver()
    except FgschedError as error:
        gpus, note, is_unknown = (), error.cause, True
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpus = len(os.sched_getaffinity(0))
    return Hardware(gpus=gpus, note=note, is_unknown=is_unknown, cpus=cpus, memory=memory)


def _systemd(root: Path) -> Literal["running", "installed", ""]:
    if root == Path("/") and Path("/run/systemd/system").is_dir():
        return "running"
    return "installed" if shutil.which("systemctl") else ""


def _has_group(root: Path) -> bool:
    if root == Path("/"):
        with suppress(KeyError):
            return bool(grp.getgrnam(OPERATORS))
        return False
    with suppress(FileNotFoundError):
        lines = _below(root, "/etc/group").read_text().splitlines()
        return any(line.startswith(f"{OPERATORS}:") for line in lines)
    return False


def _enabled(root: Path) -> frozenset[str]:
    wanted = _below(root, "/etc/systemd/system").glob("*.wants/fgsched*")
    return frozenset(path.name for path in wanted)


def _links(root: Path) -> dict[str, str]:
    """Return the links with which shells find the commands, and man the pages."""
    ours = [("bin", _beside(name)) for name in COMMANDS]
    ours += [
        (place, file) for place, names in _SHARED.items() for file in Path(sys.prefix, place).glob(names)
    ]
    return {
        str(_LOCAL / place / file.name): str(file)
        for place, file in sorted(ours)
        if file.exists() and not _is_found(root, place, file)
    }


def _is_found(root: Path, place: str, file: Path) -> bool:
    """Return whether a file is where programs look without a link of ours."""
    if file.parent == _LOCAL / place:
        return True
    files_there = [_below(root, f"/usr/{place}/{file.name}{ending}") for ending in ("", ".gz")]
    return any(path.exists() for path in files_there)


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def look(root: Path, paths: Iterable[str]) -> dict[str, PathContent]:
    """Return what is at each of these paths; a path that is not there is left out."""
    path_contents = {path: _found(_below(root, path)) for path in paths}
    return {path: content for path, content in path_contents.items() if content is not None}


def _found(path: Path) -> PathContent | None:
    if path.is_symlink():
        return PathContent("directory") if path.is_dir() else PathContent("link", os.readlink(path))
    if path.is_dir():
        return PathContent("directory")
    if path.is_file():
        return PathContent("file", sha256(path.read_bytes()).hexdigest())
    return PathContent("other") if path.exists() else None


def ordinary_user(environ: Mapping[str, str], accounts: Callable[[], Iterable[pwd.struct_passwd]]) -> str:
    """Return the user who ran sudo; otherwise the first user with a login shell, or "nobody"."""
    people = [account for account in accounts() if _FIRST_USER <= account.pw_uid <= _LAST_USER]
    named = [
        struct_passwd.pw_name for struct_passwd in people if struct_passwd.pw_name == environ.get("SUDO_USER")
    ]
    logins = [
        struct_passwd.pw_name
        for struct_passwd in people
        if not struct_passwd.pw_shell.endswith(("nologin", "false"))
    ]
    return next(iter([*named, *logins]), "nobody")


def check(client: Client, user: str, gpus: int, *, patience: float = _PATIENCE) -> str:
    """Run a job of an ordinary user on all GPUs; return what was found.

    Args:
        gpus: number of GPUs that the job requests; 0: none.
        patience: seconds that the job may take.

    Raises:
        Refused: the job was refused, failed, or did not end in time; it is cancelled then.
    """
    job = _submitted(user, gpus)
    try:
        (ended,) = client.call(protocol.Wait(ids=[job]), patience=patience).jobs
    except TimedOut:
        raise _too_late(client, job, user, patience) from None
    if ended.state != JobState.COMPLETED.value:
        why = f"{ended.state}, exit status {ended.exit_code}"
        raise Refused(f"the job of {user} failed: {why}", "fgsched doctor --system may tell why.")
    return f"checked: a job of {user} ran" + (f" on {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "")


def as_user(name: str) -> dict[str, Any]:
    """Return the arguments with which `subprocess` runs a program as a user, without root's environment.

    Raises:
        KeyError: there is no such user.
    """
    account = pwd.getpwnam(name)
    groups = os.getgrouplist(name, account.pw_gid)
    return {
        "preexec_fn": partial(become, account.pw_uid, account.pw_gid, groups),
        "env": {"PATH": os.defpath, "HOME": account.pw_dir, "USER": name},
        "cwd": "/",
        "stdin": subprocess.DEVNULL,
    }


def _submitted(user: str, gpus: int) -> int:
    """Submit the job as its user; return its id. Raises Refused."""
    test = f'test "$(id -u)" = {pwd.getpwnam(user).pw_uid} && test -n "$FG_JOB_ID"'
    demand = [f"--gpus={gpus}"] if gpus else []
    words = ["--parsable", "--time=1", "--chdir=/", "--output=/dev/null", "-J", "check"]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "fgsched.cli.fgsub", *words, *demand, f"--wrap={test}"],
            **as_user(user),
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        why = f"fgsub, as {user}, did not submit a job within {_PATIENCE:.0f} seconds"
        raise Refused(why, "fgsched doctor --system may tell why.") from None
    if done.returncode:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise Refused(f"the job of {user} failed: {why}", "fgsched doctor --system may tell why.")
    return int(done.stdout)


def _too_late(client: Client, job: int, user: str, patience: float) -> Refused:
    """Cancel the job; return an error with the state in which it was."""
    wanted = protocol.ListQueue(where=protocol.Where(id=[job]), fields=("id", "state", "reason"), recent=True)
    (seen,) = client.call(wanted).jobs
    client.call(protocol.Cancel(ids=[job]))
    why = f"it was {seen.state.value} ({seen.reason.value})"
    return Refused(
        f"job {job} of {user} did not end within {patience:.0f} seconds: {why}, and is cancelled",
        "fginfo -l shows which GPUs accept jobs. Then run: fgsched init --check",
    )
