"""Process beside the controller that sends the letters of the queue on disk.

It reads descriptor 0: any byte means that there are new letters, its end that the controller ends. It writes
the name of each letter that survives a power failure to descriptor 1. A letter leaves the queue when a mail
server has accepted it; until then it is tried again, after a kill at any point, too.
"""

import os
import pwd
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fgsched.crash import point
from fgsched.domain.errors import Refused
from fgsched.mail import jobtext
from fgsched.mail.addresses import resolved, sender_of
from fgsched.mail.composing import compose
from fgsched.mail.letters import JobMail, Letter, Message, Settings, from_bytes, to_bytes
from fgsched.mail.spool import Spool
from fgsched.mail.transport import Later, Never, send

_PAUSE = 2.0  # seconds after a first failure; it doubles with each further one
_LONGEST_PAUSE = 600.0
_TAIL_BYTES = 1 << 14  # of output that is examined for its last lines
_TAIL_TIME = 5.0  # seconds until a file system that does not answer is given up
_NICE = 5


class Mailer:
    """Sends the letters of `spool`. Times are in epoch seconds."""

    def __init__(self, spool: Spool, settings: Settings, host: str) -> None:
        self._spool, self._settings, self._host = spool, settings, host
        self._known: set[str] = set()  # letters that are durable
        self._waits: dict[str, tuple[float, int]] = {}  # letter -> (not before, failures)
        self._server_waits, self._failures = 0.0, 0

    def kept(self) -> list[str]:
        """Make new letters durable, and return their names."""
        new = [name for name in self._spool.waiting() if name not in self._known]
        for name in new:
            self._spool.keep(name)
        self._known.update(new)
        return new

    def due(self, now: float) -> float | None:
        """Return the seconds until the next try; None if no letter waits."""
        times = [self._not_before(name) for name in self._spool.waiting()]
        return max(0.0, min(times) - now) if times else None

    def _not_before(self, name: str) -> float:
        return max(self._server_waits, self._waits.get(name, (0.0, 0))[0])

    def work(self, now: float) -> None:
        """Try the letters that are due. The first failure of the server ends the round."""
        for name in self._spool.waiting():
            if self._not_before(name) <= now:
                self._try(name, now)

    def _try(self, name: str, now: float) -> None:
        try:
            letter = from_bytes(self._spool.read(name))
        except msgspec.MsgspecError as error:
            self._give_up(name, f"it cannot be read: {error}")
            return
        try:
            self._send(name, letter)
        except (Refused, Never) as error:
            self._give_up(name, " ".join(str(error).split()))
        except Later as error:
            if error.left:
                self._spool.replace(name, to_bytes(replace(letter, to=error.left)))
            self._put_off(name, letter, error, now)
        else:
            point("mail_after_sending")
            self._spool.sent(name)
            point("mail_after_noting")
            self._failures = 0
            self._forget(name)
            self._spool.prune()

    def _send(self, name: str, letter: Letter) -> None:
        """Send a letter. Raises Refused, Never or Later."""
        settings = self._settings
        to = resolved(letter.to, settings, self._host)
        message = self._message(letter)
        point("mail_before_sending")
        send(settings, sender_of(settings, self._host), to, compose(name, message, to, settings, self._host))

    def _message(self, letter: Letter) -> Message:
        if isinstance(letter, Message):
            return letter
        has_output = letter.event in ("END", "FAIL", "TIME_LIMIT") and letter.started_at is not None
        tail = last_lines(letter, self._settings.tail) if has_output and not letter.is_summary else []
        text = jobtext.body(letter, tail, self._host.partition(".")[0])
        return Message(at=letter.at, to=letter.to, subject=jobtext.subject(letter), text=text)

    def _put_off(self, name: str, letter: Letter, error: Later, now: float) -> None:
        if now - letter.at > self._settings.give_up:
            self._give_up(name, str(error))
            return
        if error.is_of_server:
            self._server_waits = now + min(_LONGEST_PAUSE, _PAUSE * 2**self._failures)
            self._failures = min(self._failures + 1, 20)
        failures = self._waits.get(name, (0.0, 0))[1]
        self._waits[name] = (now + min(_LONGEST_PAUSE, _PAUSE * 2**failures), min(failures + 1, 20))
        print(f"mail {name} waits: {error}", file=sys.stderr, flush=True)

    def _give_up(self, name: str, why: str) -> None:
        self._spool.failed(name)
        self._forget(name)
        print(f"mail {name} is not sent: {why}", file=sys.stderr, flush=True)

    def _forget(self, name: str) -> None:
        self._known.discard(name)
        self._waits.pop(name, None)


def last_lines(mail: JobMail, count: int) -> list[str]:
    """Return the last lines of a job's output, read with the rights of its owner; [] if it cannot be read."""
    if not count or not mail.output:
        return []
    command = ["tail", "-c", str(_TAIL_BYTES), "--", mail.output]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command, stdin=null, stdout=pipe, stderr=null, cwd="/", **_as(mail)
        )
        with suppress(subprocess.TimeoutExpired):
            data, _ = process.communicate(timeout=_TAIL_TIME)
            return data.decode(errors="replace").splitlines()[-count:]
        process.kill()  # a process that hangs in the kernel is not waited for
    return []


def _as(mail: JobMail) -> dict[str, Any]:
    """Return the arguments that make a child process run as the owner of a job."""
    if os.geteuid() or not mail.uid:
        return {}
    groups = [mail.gid]
    with suppress(KeyError, OSError):
        groups = os.getgrouplist(pwd.getpwuid(mail.uid).pw_name, mail.gid)
    return {"user": mail.uid, "group": mail.gid, "extra_groups": groups}


# -- the process ---------------------------------------------------------------------------------------


def serve(mailer: Mailer, source: int, sink: int, clock: Callable[[], float] = time.time) -> None:
    """Send letters until the other end of descriptor `source` is closed; then try each once more.

    `clock` returns epoch seconds.
    """
    with suppress(ConnectionError):
        while True:
            _tell(sink, mailer.kept())
            mailer.work(clock())
            if select.select([source], [], [], mailer.due(clock()))[0] and not os.read(source, 1 << 16):
                return


def _tell(sink: int, names: list[str]) -> None:
    data = "".join(f"{name}\n" for name in names).encode()
    while data:
        data = data[os.write(sink, data) :]


def held(path: Path) -> Iterator[None]:
    """Hold the lock of the queue at `path` while the generator is open."""
    import fcntl

    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Run the mailer. The arguments are the path of the queue and the settings as JSON."""
    path, settings = Path(sys.argv[3]), msgspec.json.decode(sys.argv[4], type=Settings)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    os.umask(0o077)
    spool = Spool(path)
    for _ in held(path):
        serve(Mailer(spool, settings, socket.getfqdn()), 0, 1)
