"""The host's accounts: names, homes and groups as the name service told them last.

A name service may be a server that is slow or away, so it is never asked on the controller's loop: a process
beside it asks (`system/names.py`), one question at a time, and is replaced when it does not answer in time.
While it is slow, others ask the next questions. Answers are kept. A start of a job waits for an answer that
is at most five seconds old; where the service does not answer, the last answer is used.
"""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fgsched.domain.errors import Busy
from fgsched.system import names

log = logging.getLogger(__name__)
_FRESH = (
    5.0  # seconds for which an answer counts as the present; a start must not pay for a look-up each time
)
_KEPT = 300.0  # seconds for which a request is taken on an answer that is being looked up again
_DEADLINE = 5.0  # seconds for an answer
_SLOW = 0.5  # seconds after which another process asks the next question
_MOST = 4  # processes that ask
_AGAIN = 10.0  # seconds after which an account that was not told is asked for again
_LONGEST_PAUSE = 60.0  # seconds without asking, after several processes that did not answer
_PACKET = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the host says of one user."""

    name: str
    gid: int
    home: str
    groups: tuple[int, ...]
    names: tuple[str, ...] = ()  # of the groups, in their order; "": it has none

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name)

    @property
    def by_name(self) -> dict[str, int]:
        """The groups by their names, and by their numbers as text."""
        named = zip(self.names, self.groups, strict=False)
        return {str(gid): gid for gid in self.groups} | {name: gid for name, gid in named if name}


class _Found(NamedTuple):
    account: Account | None  # None: there is none
    at: float


Then = Callable[[Account | None], None]


def parse(packet: bytes) -> tuple[int, Account | None]:
    """(uid, account) of an answer of `names`."""
    uid, *rest = packet.decode().split(" ")
    if not rest:
        return int(uid), None
    name, home, *names_of = [
        bytes.fromhex(text.replace("-", "")).decode(errors="surrogateescape") for text in rest[2:]
    ]
    groups = tuple(int(gid) for gid in rest[1].split(","))
    return int(uid), Account(name=name, gid=int(rest[0]), home=home, groups=groups, names=tuple(names_of))


def look_up(uid: int) -> Account | None:
    """Ask the name service here and now, however long it takes."""
    return parse(names.answer(uid))[1]


class Helper:
    """The process that asks, or several, and the two ends of the socket to them. Successors get the same."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command or [sys.executable, "-I", "-S", str(Path(names.__file__))]
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.processes: list[subprocess.Popen[bytes]] = []

    def fileno(self) -> int:
        return self._ours.fileno()

    def start(self) -> None:
        end = self._theirs.fileno()
        one = subprocess.Popen(
            self._command, stdin=end, stdout=subprocess.DEVNULL, cwd="/", env=_environment()
        )
        self.processes.append(one)

    def ask(self, uid: int, busy: int = 0) -> None:
        """Ask one question. `busy`: so many processes have one already."""
        self.processes = [one for one in self.processes if one.poll() is None]
        while len(self.processes) <= busy:
            self.start()
        self._ours.send(b"%d" % uid)

    def rest(self) -> None:
        """No question is out: one process is enough."""
        for one in self.processes[1:]:
            one.kill()

    def read(self) -> list[bytes]:
        """The answers that are here; never waits."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._ours.recv(_PACKET))
        return found

    def abandon(self) -> None:
        """Kill them without waiting: what hangs in the kernel does not die at once. Questions are lost."""
        for one in self.processes:
            one.kill()
            one.poll()
        self.processes = []
        with suppress(OSError):
            while True:  # a question that it has not read would be asked twice
                self._theirs.recv(_PACKET, socket.MSG_DONTWAIT)

    def close(self) -> None:
        processes = self.processes
        self.abandon()
        for one in processes:
            with suppress(subprocess.TimeoutExpired):
                one.wait(0.1)
        self._ours.close()
        self._theirs.close()


def _environment() -> dict[str, str]:
    """Nothing of the environment but what a test preloads."""
    return {name: os.environ[name] for name in ("LD_PRELOAD",) if name in os.environ}


class Accounts:
    """What is known of the host's users, and who waits to know more."""

    def __init__(
        self,
        helper: Helper | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        known: dict[int, Account | None] | None = None,
    ) -> None:
        """Without a helper only those in `known` are users, for good."""
        self._helper, self._clock = helper, clock
        self._found = {uid: _Found(account, clock()) for uid, account in (known or {}).items()}
        self._failed: dict[int, float] = {}  # uid -> when it was not told
        self._asked: dict[int, float] = {}  # uid -> since when it is to be told
        self._out: dict[int, float] = {}  # questions that were sent, and when
        self._waiting: dict[int, list[Then]] = {}
        self._failures = 0
        self._not_before = 0.0
        self.answered: Callable[[int], None] = lambda uid: None  # told or failed: who is parked can go on

    @property
    def asks(self) -> bool:
        """Whether there is a process to hear of."""
        return self._helper is not None

    # -- what is known --------------------------------------------------------------------------

    def found(self, uid: int) -> Account | None:
        """What was told of a user last, however long ago; None also if nothing was."""
        return self._found[uid].account if uid in self._found else None

    def is_known(self, uid: int) -> bool:
        """Whether `of` says anything. If not, it is being looked up, and `answered` is called in time."""
        if self._helper is None:
            return True
        found, now = self._found.get(uid), self._clock()
        age = now - found.at if found else _KEPT
        if age >= _FRESH:
            if now - self._failed.get(uid, -_AGAIN) < _AGAIN:
                return True
            self._ask(uid)
        return age < (_KEPT if found and found.account else _FRESH)

    def of(self, uid: int) -> Account | None:
        """The account of a user, None if there is none; Busy if the service has not said."""
        if self._helper is not None and uid not in self._found:
            raise Busy(
                f"the host's name service does not tell who uid {uid} is", "Nothing was changed.", after=2.0
            )
        return self.found(uid)

    def look_up(self, uid: int, then: Then) -> None:
        """Call `then` with the account as it is now: at once, or when it was told.

        If it is not told in time, `then` gets what was told before; if nothing was, it waits on.
        """
        found = self._found.get(uid)
        if self._helper is None or (found and self._clock() - found.at < _FRESH):
            then(self.found(uid))
            return
        self._waiting.setdefault(uid, []).append(then)
        self._ask(uid)

    # -- asking ---------------------------------------------------------------------------------

    def _ask(self, uid: int) -> None:
        self._asked.setdefault(uid, self._clock())
        self._send()

    def _send(self) -> None:
        """Send the next question, if none is out, or those that are out take long."""
        now = self._clock()
        uid = next((one for one in self._asked if one not in self._out), None)
        if self._helper is None or uid is None or now < self._ready_at():
            return
        self._out[uid] = now
        try:
            self._helper.ask(uid, len(self._out) - 1)
        except OSError as error:
            log.error("the process that asks the name service does not start: %s", error.strerror)

    def _ready_at(self) -> float:
        """When the next question may be sent."""
        if len(self._out) >= _MOST:
            return max(self._out.values()) + _DEADLINE
        return max(self._not_before, *(since + _SLOW for since in self._out.values()), 0.0)

    def fileno(self) -> int:
        """Readable when `hear` has something."""
        assert self._helper is not None
        return self._helper.fileno()

    def hear(self) -> None:
        """Answers have come."""
        assert self._helper is not None
        for packet in self._helper.read():
            uid, account = parse(packet)
            if self._out.pop(uid, None) is not None and not self._out:
                self._helper.rest()
            self._found[uid] = _Found(account, self._clock())
            self._failed.pop(uid, None)
            self._failures = 0
            self._asked.pop(uid, None)
            self._settle(uid)
        self._send()

    def look(self) -> None:
        """Give up questions that were not answered in time."""
        now = self._clock()
        if any(now - since >= _DEADLINE for since in self._out.values()):
            self._give_up(now)
        for uid in [uid for uid, since in self._asked.items() if now - since >= _DEADLINE]:
            self._asked[uid] = now  # its turn is still to come
            self._miss(uid, now)
        for uid in [uid for uid in self._waiting if uid not in self._asked]:
            if now - self._failed.get(uid, 0.0) >= _AGAIN:
                self._asked[uid] = now
        self._send()

    def _give_up(self, now: float) -> None:
        assert self._helper is not None
        out, self._out = self._out, {}
        self._helper.abandon()
        for uid in [uid for uid, since in out.items() if now - since >= _DEADLINE]:
            log.warning("the host's name service did not tell who uid %d is within %g s", uid, _DEADLINE)
            self._asked.pop(uid, None)
            self._miss(uid, now)
        self._not_before = now + min(_LONGEST_PAUSE, 2.0**self._failures - 1)
        self._failures = min(self._failures + 1, 20)

    def _miss(self, uid: int, now: float) -> None:
        self._failed[uid] = now
        self._settle(uid)

    def _settle(self, uid: int) -> None:
        """Nobody is to wait longer: go on with what is known."""
        if uid in self._found:
            for then in self._waiting.pop(uid, []):
                then(self._found[uid].account)
        self.answered(uid)

    @property
    def due(self) -> float | None:
        """Seconds until `look` has something to do; None: nothing is due."""
        now = self._clock()
        dues = [since + _DEADLINE for since in self._asked.values()]
        dues += [self._failed.get(uid, now) + _AGAIN for uid in self._waiting if uid not in self._asked]
        dues += [since + _DEADLINE for since in self._out.values()]
        if self._asked.keys() - self._out.keys():
            dues.append(self._ready_at())
        return max(0.0, min(dues) - now) if dues else None

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()


def of_host() -> Accounts:
    """The accounts of a controller for all users: looked up by a process beside it, which is started now."""
    helper = Helper()
    helper.start()
    return Accounts(helper)


def of_user(uid: int) -> Accounts:
    """The accounts of a user's own controller: the user, and root, who may ask it too."""
    root = Account(name="root", gid=0, home="/root", groups=(0,))
    return Accounts(None, known={0: root, uid: look_up(uid)})
