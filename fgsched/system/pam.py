"""Helper process that opens PAM sessions, to find the limits of a login and users who may not log in.

It runs as a script and answers as `names.py` does, with a second line: the limits that a session
of the user has, and the error of PAM if it refuses the user. A session is opened in a child process and
closed at once: jobs get its limits, not its processes, mounts or variables.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":  # without the usual search path
    sys.path.insert(0, str(Path(__file__).parents[2]))
from fgsched.system import names

_SILENT, _ESTABLISH, _DELETE = 0x8000, 2, 4
_TTY = 3  # item: modules ask for a terminal, as in sessions of cron
_CONVERSATION_ERROR = 19
_RESOURCES = 16
_PR_SET_PDEATHSIG = 1

_Conversation = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class _Conv(ctypes.Structure):
    _fields_ = [("talk", _Conversation), ("data", ctypes.c_void_p)]


def _refuse_to_talk(*_: object) -> int:
    return _CONVERSATION_ERROR


class _Refused(Exception):
    """PAM refuses the user, with this reason."""


class _Session:
    """A PAM transaction of one user."""

    def __init__(self, service: str, user: str) -> None:
        self._pam = ctypes.CDLL("libpam.so.0")
        self._pam.pam_strerror.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        self._conv = _Conv(_Conversation(_refuse_to_talk), None)
        words = (os.fsencode(service), os.fsencode(user), ctypes.byref(self._conv))
        self._check("pam_start", self._pam.pam_start(*words, ctypes.byref(self._handle)))
        self._call("pam_set_item", _TTY, b"fgsched")

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, getattr(self._pam, name)(self._handle, *arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = self._pam.pam_strerror(self._handle, status) or b"?"
            raise _Refused(f"{name}: {text.decode(errors='replace')}")

    def limits(self) -> list[tuple[int, int, int]]:
        """Open and close the session; return (resource, soft, hard) within it. Raises _Refused."""
        self._call("pam_acct_mgmt", _SILENT)
        self._call("pam_setcred", _SILENT | _ESTABLISH)
        self._call("pam_open_session", _SILENT)
        limits = [(number, *resource.getrlimit(number)) for number in range(_RESOURCES)]
        self._pam.pam_close_session(self._handle, _SILENT)
        self._pam.pam_setcred(self._handle, _SILENT | _DELETE)
        self._pam.pam_end(self._handle, 0)
        return limits


def _asked(service: str, user: str) -> dict[str, object]:
    """Return the limits of a session, or the refusal, in this process, which has them from then on."""
    for number in range(_RESOURCES):  # the session begins with the limits of PID 1, as a login does
        with suppress(OSError, ValueError):  # a sandbox may forbid to raise a limit
            resource.setrlimit(number, resource.prlimit(1, number))
    try:
        return {"limits": _Session(service, user).limits()}
    except (_Refused, OSError) as error:
        return {"refusal": str(error)}


def _end_with(parent: int) -> None:
    """Let the kernel kill this process with its parent, which is killed if a module of PAM takes too long."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _in_a_child(service: str, user: str) -> bytes:
    """Return the answer of a child process as JSON; of one that was killed, a refusal."""
    reading, writing = os.pipe()
    helper = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _end_with(helper)
            os.write(writing, json.dumps(_asked(service, user)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        a_child = pipe.read()
    os.waitpid(child, 0)
    return a_child or b'{"refusal": "the session ended unexpectedly"}'


def answer(uid: int) -> bytes:
    """Return the account as `names.answer` does and, if there is one, its session on a second line."""
    account = names.answer(uid)
    words = account.split(b" ")
    if len(words) == 1:
        return account
    return account + b"\n" + _in_a_child(sys.argv[1], os.fsdecode(bytes.fromhex(words[3].decode())))


if __name__ == "__main__":
    names.main(answer)
