"""Describe the programs of a site as data: settings, one run and its outcome."""

from msgspec import Struct

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def base(hook: str) -> dict[str, str]:
    """Return the variables that every program of the site has. None is inherited from the controller."""
    return {"PATH": _PATH, "HOME": "/", "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8", "FG_HOOK": hook}


class HookSettings(Struct, frozen=True, kw_only=True):
    """The programs of a site ("": none) and their time limits in seconds."""

    prolog: str = ""
    epilog: str = ""
    task_prolog: str = ""
    submit_filter: str = ""
    prolog_time: float = 60
    epilog_time: float = 60
    submit_filter_time: float = 10
    events_command: str = ""  # gets batches of events
    events_socket: str = ""  # gets events


NO_HOOKS = HookSettings()


class HookRun(Struct, frozen=True, kw_only=True):
    """One run of a program."""

    path: str
    seconds: float  # time limit
    environment: dict[str, str]
    input: str = ""  # for its standard input
    keep: int = 0  # bytes of its standard output that the outcome has
    uid: int = -1  # of the user as whom it runs; -1: as the controller
    gid: int = -1
    number: int = 0  # of the request, which the outcome repeats
    owner: int = -1  # user for whom it runs; each user has a share of the programs that run at a time


class Ran(Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    number: int
    problem: str = ""  # such as "exited with status 3"; "": it exited with status 0
    status: int = -1  # exit status; -1: it did not exit by itself
    output: str = ""  # the first bytes of its standard output
    said: str = ""  # the last line of its standard error, for the log of the controller
