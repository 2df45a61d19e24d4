"""The submission that the native fgsub sent without an answer: its key is kept for a repeated command.

The native program passes the key on to the Python command, which keeps it before it reads the command line:
whatever fails after that, the same command again uses the same key. As soon as the request is known, the
key of the request takes its place.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from fgsched.client import UNCHANGED, find_places
from fgsched.codec import encode
from fgsched.domain.errors import FgschedError
from fgsched.system.paths import Paths
from fgsched.system.unanswered import VALID, Unanswered

_KEPT = (
    f"It may have been queued all the same. Repeat the same command within {VALID / 60:.0f} minutes: "
    "it is queued only once."
)
_LOOK = "It may have been queued all the same: look with fgq before you repeat the command."
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by the native program, while there is no answer
_LONGEST = 65536  # bytes of a script, as in fgshim/front/submit.c
_sent: Unanswered | None = None  # the key of the line
_is_held = False  # the native program has left the signals blocked


def keep(sent_key: str, words: Sequence[str]) -> None:
    """Keep the key with which a command line was sent, or take over that of an equal line.

    Args:
        sent_key: "" if the native program has sent nothing.
        words: the name of the command and its arguments.
    """
    global _sent, _is_held
    _is_held = bool(sent_key)
    with suppress(FgschedError):  # without a usable place for the controller nothing can have been sent
        directory = directory_of(find_places())
        if sent_key:
            _sent = Unanswered(directory, _line(words), time.time(), sent_key)
        else:
            _sent = Unanswered.abandoned(directory, _line(words), time.time())


def directory_of(places: Paths) -> Path:
    """Return the directory of the keys without an answer."""
    return places.own_run(os.environ, os.geteuid()) / "unanswered"


def key() -> str:
    """Return the key with which the line was sent; "" if it was not."""
    return _sent.value if _sent else ""


def replaced_by(request: Unanswered) -> None:
    """Forget the line: the key of its request is kept from now on."""
    global _sent
    if _sent and request.is_kept:
        _sent.answered()
    _sent = None


def remedy(kept: Unanswered) -> str:
    """Return what to do about a submission without an answer."""
    return _KEPT if kept.is_kept else _LOOK


@contextmanager
def told(name: str) -> Iterator[None]:
    """Say that the job may be queued if a line that was sent fails without an answer, or is interrupted."""
    try:
        if _is_held:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        yield
    except FgschedError as error:
        if _sent:
            advice = error.remedy.replace(UNCHANGED, "").strip()
            error.remedy = f"{advice}\n{remedy(_sent)}".lstrip()
        raise
    except KeyboardInterrupt:
        if _sent:
            click.echo(f"{name}: interrupted. {remedy(_sent)}", err=True)
        raise


def _line(words: Sequence[str]) -> bytes:
    """Return what makes two command lines equal: words, directory, variables, and scripts among the words."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    scripts = [_start_of(word) for word in words[1:]]
    return encode([list(map(os.fsencode, words)), here, sorted(os.environb.items()), scripts])


def _start_of(word: str) -> bytes:
    """Return the first bytes of a regular file; empty if there is none."""
    with suppress(OSError, ValueError):
        if os.path.isfile(word):  # to open a device can have an effect
            with open(os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                return file.read(_LONGEST)
    return b""
