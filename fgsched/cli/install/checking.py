"""The check of `fgsched init`: a job of an ordinary user, which must end in time."""

import os
import pwd
import subprocess
import sys
from functools import partial
from typing import Any

from fgsched import protocol
from fgsched.client import Client, TimedOut
from fgsched.domain.errors import Refused
from fgsched.domain.states import JobState
from fgsched.system.identity import become

_PATIENCE = 120.0  # seconds that the submission, and then the job, may take


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
