"""Accounts of the host, cached: names, homes and groups from the name service.

The name service may be a server that is slow or unreachable, so the controller's event loop never queries
it. A helper process (`system/names.py`) queries it, one question at a time, and is replaced when it does not
answer in time. While it is slow, further helpers take the next questions. The start of a job waits for an
answer that is at most five seconds old; if the service does not answer, the last answer is used.
"""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from fgsched.domain.errors import Busy
from fgsched.domain.text import clean, read_json
from fgsched.system import names

log = logging.getLogger(__name__)
_FRESH = 5.0  # seconds for which an answer is reused, so that not every start needs a query
_USABLE = 300.0  # seconds for which requests are accepted with an old answer during a new query
_DEADLINE = 5.0  # seconds for an answer
_SLOW = 0.5  # seconds after which another helper takes the next question
_MAX_HELPERS = 4  # processes
_RETRY = 10.0  # seconds after which a failed look-up is repeated
_MAX_PAUSE = 60.0  # seconds without questions, after several helpers did not answer
_PACKET = 1 << 18  # bytes


Limits = dict[int, tuple[int, int]]  # resource -> (soft, hard); -1: unlimited


class HostUser(Struct, frozen=True, kw_only=True):
    """A user account of the host."""

    name: str
    gid: int
    home: str
    groups: tuple[int, ...]
    names: tuple[str, ...] = ()  # of the groups, in their order; "": a group without a name
    limits: Limits | None = None  # of a PAM session; None: no session was opened
    refusal: str = ""  # why PAM refuses the user

    @property
    def named(self) -> tuple[str, ...]:
        """Return the names of the groups that have one."""
        return tuple(name for name in self.names if name)

    @property
    def by_name(self) -> dict[str, int]:
        """Return {group: gid}, with each group by its name and by its number as text."""
        named = zip(self.names, self.groups, strict=False)
        return {str(gid): gid for gid in self.groups} | {name: gid for name, gid in named if name}


class _Answer(NamedTuple):
    account: HostUser | None  # None: there is no such account
    at: float  # seconds of the clock


Then = Callable[[HostUser | None], None]


def parse(packet: bytes) -> tuple[int, HostUser | None]:
    """Parse an answer of a helper as (uid, account)."""
    line, _, session = packet.decode().partition("\n")
    uid, *fields = line.split(" ")
    if not fields:
        return int(uid), None
    name, home, *names_of = [
        bytes.fromhex(text.replace("-", "")).decode(errors="surrogateescape") for text in fields[2:]
    ]
    groups = tuple(int(gid) for gid in fields[1].split(","))
    limits, refusal = _session(session) if session else (None, "")
    return int(uid), HostUser(
        name=name,
        gid=int(fields[0]),
        home=home,
        groups=groups,
        names=tuple(names_of),
        limits=limits,
        refusal=refusal,
    )


def _session(text: str) -> tuple[Limits | None, str]:
    """Return the limits of a PAM session, or None and the refusal."""
    session = read_json(text)
    limits = {number: (soft, hard) for number, soft, hard in session.get("limits", ())}
    return limits or None, session.get("refusal", "")


def look_up(uid: int) -> HostUser | None:
    """Query the name service in this process; blocks until it answers."""
    return parse(names.answer(uid))[1]


class LookupHelpers:
    """The helper processes, and the socket that they share and their successors inherit."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command or [sys.executable, "-I", "-S", str(Path(names.__file__))]
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.processes: list[subprocess.Popen[bytes]] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable when `read` has answers."""
        return self._ours.fileno()

    def start_helper(self) -> None:
        """Start another helper process.

        Raises:
            OSError: the process cannot be started.
        """
        end = self._theirs.fileno()
        popen = subprocess.Popen(
            self._command, stdin=end, stdout=subprocess.DEVNULL, cwd="/", env=_environment()
        )
        self.processes.append(popen)

    def ask(self, uid: int, busy: int = 0) -> None:
        """Send one question; starts a helper process unless one is idle.

        Args:
            busy: number of helpers that have an unanswered question.

        Raises:
            OSError: a process cannot be started, or the question cannot be sent.
        """
        self.processes = [process for process in self.processes if process.poll() is None]
        while len(self.processes) <= busy:
            self.start_helper()
        self._ours.send(b"%d" % uid)

    def rest(self) -> None:
        """Kill all helpers but one, when no question is unanswered."""
        for process in self.processes[1:]:
            process.kill()

    def read(self) -> list[bytes]:
        """Return the answers that have arrived; never blocks."""
        packets = []
        with suppress(BlockingIOError):
            while True:
                packets.append(self._ours.recv(_PACKET))
        return packets

    def abandon(self) -> None:
        """Kill the helpers and drop their questions.

        Does not wait: a process that hangs in the kernel does not exit at once.
        """
        for process in self.processes:
            process.kill()
            process.poll()
        self.processes = []
        with suppress(OSError):
            while True:  # discard unread questions, which the next helper would read
                self._theirs.recv(_PACKET, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Kill the helpers and close the socket."""
        processes = self.processes
        self.abandon()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        self._ours.close()
        self._theirs.close()


def _environment() -> dict[str, str]:
    """Return an empty environment, except for LD_PRELOAD, which tests need."""
    return {name: os.environ[name] for name in ("LD_PRELOAD",) if name in os.environ}


class HostUsers:
    """The cache of accounts, and the callbacks that wait for answers."""

    def __init__(
        self,
        helper: LookupHelpers | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        users: dict[int, HostUser | None] | None = None,
    ) -> None:
        """Create a cache; without a helper, the accounts in `users` are the only ones and never expire."""
        self._helper, self._clock = helper, clock
        self._answers = {uid: _Answer(account, clock()) for uid, account in (users or {}).items()}
        self._failed: dict[int, float] = {}  # uid -> time of the failed look-up
        self._asked: dict[int, float] = {}  # uid -> time of the request for its query
        self._sent: dict[int, float] = {}  # uid -> time at which the question was sent
        self._waiting: dict[int, list[Then]] = {}
        self._failures = 0
        self._not_before = 0.0
        self._ended: list[int] = []  # uids whose look-ups ended or failed since the last answer

    @property
    def has_helper(self) -> bool:
        """Return whether a helper process is used."""
        return self._helper is not None

    # -- known accounts -----------------------------------------------------------------------------

    def cached(self, uid: int) -> HostUser | None:
        """Return the last answer for a user, of any age; None if there is no answer or no account."""
        return self._answers[uid].account if uid in self._answers else None

    def is_known(self, uid: int) -> bool:
        """Return whether the stored answer for a user is recent enough to serve a request.

        If not, the account is being looked up, and `receive` or `expire` returns
        the uid at the latest after 5 seconds.
        """
        if self._helper is None:
            return True
        answer, now = self._answers.get(uid), self._clock()
        age = now - answer.at if answer else _USABLE
        if age >= _FRESH:
            if now - self._failed.get(uid, -_RETRY) < _RETRY:
                return True
            self._ask(uid)
        return age < (_USABLE if answer and answer.account else _FRESH)

    def of(self, uid: int) -> HostUser | None:
        """Return the account of a user, None if there is none.

        Raises:
            Busy: the name service has not answered yet.
        """
        if self._helper is not None and uid not in self._answers:
            raise Busy(f"the host's name service does not answer for uid {uid}", after=2.0)
        return self.cached(uid)

    def look_up(self, uid: int, then: Then) -> None:
        """Call `then` with the current account: at once if the last answer is fresh, else with the next one.

        If the name service does not answer within 5 seconds, `then` gets the last answer. Without a last
        answer the look-up is repeated until there is one.
        """
        answer = self._answers.get(uid)
        if self._helper is None or (answer and self._clock() - answer.at < _FRESH):
            then(self.cached(uid))
            return
        self._waiting.setdefault(uid, []).append(then)
        self._ask(uid)

    # -- asking ---------------------------------------------------------------------------------

    def _ask(self, uid: int) -> None:
        self._asked.setdefault(uid, self._clock())
        self._send()

    def _send(self) -> None:
        """Send the next question if none is unanswered, or if all unanswered ones are slow."""
        now = self._clock()
        uid = next((asked_uid for asked_uid in self._asked if asked_uid not in self._sent), None)
        if self._helper is None or uid is None or now < self._ready_at():
            return
        self._sent[uid] = now
        try:
            self._helper.ask(uid, len(self._sent) - 1)
        except OSError as error:
            log.error("the helper process for the name service cannot be started: %s", error.strerror)

    def _ready_at(self) -> float:
        """Return the time at which the next question may be sent."""
        if len(self._sent) >= _MAX_HELPERS:
            return max(self._sent.values()) + _DEADLINE
        return max(self._not_before, *(since + _SLOW for since in self._sent.values()), 0.0)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has answers."""
        assert self._helper is not None
        return self._helper.fileno()

    def receive(self) -> list[int]:
        """Store the answers that have arrived, and call the callbacks that wait for them.

        Return the uids whose look-ups have ended.
        """
        assert self._helper is not None
        for packet in self._helper.read():
            try:
                uid, account = parse(packet)
            except (ValueError, TypeError, AttributeError) as error:  # the question is asked again later
                log.error("an answer about an account cannot be read: %s", clean(str(error)))
                continue
            if self._sent.pop(uid, None) is not None and not self._sent:
                self._helper.rest()
            self._answers[uid] = _Answer(account, self._clock())
            self._failed.pop(uid, None)
            self._failures = 0
            self._asked.pop(uid, None)
            self._settle(uid)
        self._send()
        return self._taken()

    def expire(self) -> list[int]:
        """Abandon queries that were not answered in time; call it when `due` is 0.

        Return the uids whose look-ups have failed.
        """
        now = self._clock()
        if any(now - since >= _DEADLINE for since in self._sent.values()):
            self._give_up(now)
        for uid in [uid for uid, since in self._asked.items() if now - since >= _DEADLINE]:
            self._asked[uid] = now  # not sent yet: it stays in the line
            self._miss(uid, now)
        for uid in [uid for uid in self._waiting if uid not in self._asked]:
            if now - self._failed.get(uid, 0.0) >= _RETRY:
                self._asked[uid] = now
        self._send()
        return self._taken()

    def _taken(self) -> list[int]:
        ended, self._ended = self._ended, []
        return ended

    def _give_up(self, now: float) -> None:
        assert self._helper is not None
        sent, self._sent = self._sent, {}
        self._helper.abandon()
        for uid in [uid for uid, since in sent.items() if now - since >= _DEADLINE]:
            log.warning("the host's name service did not answer for uid %d within %g s", uid, _DEADLINE)
            self._asked.pop(uid, None)
            self._miss(uid, now)
        self._not_before = now + min(_MAX_PAUSE, 2.0**self._failures - 1)
        self._failures = min(self._failures + 1, 20)

    def _miss(self, uid: int, now: float) -> None:
        self._failed[uid] = now
        self._settle(uid)

    def _settle(self, uid: int) -> None:
        """Call the callbacks that wait for a user with the last answer, if there is one."""
        if uid in self._answers:
            for then in self._waiting.pop(uid, []):
                then(self._answers[uid].account)
        self._ended.append(uid)

    @property
    def due(self) -> float | None:
        """Return the seconds until `expire` has something to do; None if nothing is due."""
        now = self._clock()
        dues = [since + _DEADLINE for since in self._asked.values()]
        dues += [self._failed.get(uid, now) + _RETRY for uid in self._waiting if uid not in self._asked]
        dues += [since + _DEADLINE for since in self._sent.values()]
        if self._asked.keys() - self._sent.keys():
            dues.append(self._ready_at())
        return max(0.0, min(dues) - now) if dues else None

    def close(self) -> None:
        """Stop the helper processes."""
        if self._helper is not None:
            self._helper.close()


def of_host() -> HostUsers:
    """Create the accounts of a controller for all users, and start the helper process."""
    helper = LookupHelpers()
    helper.start_helper()
    return HostUsers(helper)


def of_sessions(service: str) -> HostUsers:
    """Create the accounts for which each look-up opens a PAM session of `service`, and start the process."""
    helper = LookupHelpers(
        [sys.executable, "-I", "-S", str(Path(names.__file__).with_name("pam.py")), service]
    )
    helper.start_helper()
    return HostUsers(helper)


def of_user(uid: int) -> HostUsers:
    """Create the accounts of a user's own controller: the user, and root, who may also use it."""
    root = HostUser(name="root", gid=0, home="/root", groups=(0,))
    return HostUsers(None, users={0: root, uid: look_up(uid)})
