"""Ask the site's submit filter about a submission before it is handled. The event loop does not wait."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct, field

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop, Handler
from fgsched.controller.hooking import HookDesk
from fgsched.domain.errors import Busy, FgschedError
from fgsched.domain.job import Request
from fgsched.hooks.filtering import (
    Pair,
    Unusable,
    Who,
    blamed,
    changed_fields,
    judged,
    pairs_of,
    question,
    rebuilt,
)
from fgsched.hooks.programs import Ran
from fgsched.server import ClientConnection

log = logging.getLogger(__name__)
_MOST = 32  # submissions of one user about which the filter is asked at a time


class _Asked(Struct):
    """A submission about which the filter is being asked."""

    connection: ClientConnection
    caller: Caller
    call: protocol.Submit
    left: list[Pair]
    found: list[tuple[Pair, Request]] = field(default_factory=list)


class SubmitFilter:
    """Passes submissions through the filter, one question after another, and then to their handler."""

    def __init__(self, desk: HookDesk, loop: EventLoop, submit: Handler) -> None:
        self._desk, self._loop, self._submit = desk, loop, submit
        self._waiting: dict[
            int, list[ClientConnection]
        ] = {}  # uid -> connections, of which some have an answer
        self._asking: Counter[int] = Counter()  # uid -> questions without an answer
        self._later: dict[int, list[_Asked]] = {}  # uid -> submissions with a question that is not asked yet

    @property
    def is_configured(self) -> bool:
        """Whether the site has a filter."""
        return bool(self._desk.settings.submit_filter)

    def ask(self, connection: ClientConnection, caller: Caller, call: protocol.Submit) -> None:
        """Ask the filter, then submit, or refuse.

        Raises:
            Busy: the user waits on too many connections.
            NotPermitted: the uid has no account, so that no limit of users holds for it.
        """
        caller.must_have_account()
        self._loop.refuse_to_wait(connection)
        self._refuse_more(connection, caller.uid)
        connection.is_waiting = True
        self._next(_Asked(connection, caller, call, pairs_of(call)[::-1]))

    def _refuse_more(self, connection: ClientConnection, uid: int) -> None:
        """Note that a user waits for the filter. Raises Busy if this user has many submissions there."""
        client_connections = self._waiting.get(uid, [])
        waiting = [
            client_connection
            for client_connection in client_connections
            if client_connection is not connection
            and client_connection.is_waiting
            and not client_connection.is_closed
        ]
        if len(waiting) >= _MOST:
            raise Busy(f"uid {uid} has {_MOST} submissions that the submit filter has not answered")
        self._waiting[uid] = [*waiting, connection]

    def _next(self, asked: _Asked) -> None:
        connection, caller = asked.connection, asked.caller
        if connection.is_closed:
            return
        if asked.left:
            self._later.setdefault(caller.uid, []).append(asked)
            self._ask_more(caller.uid)
            return
        connection.is_waiting = False
        submit = partial(self._submit, caller, rebuilt(asked.call, asked.found))
        fields = changed_fields(asked.call, asked.found)
        self._loop.write(
            connection, partial(_after_changes, submit, fields) if fields else submit, caller.name
        )

    def _ask_more(self, uid: int) -> None:
        """Ask the next questions of a user. One whose asker has gone is not asked, and takes no memory."""
        later = [asked for asked in self._later.pop(uid, ()) if not asked.connection.is_closed]
        free = _MOST - self._asking[uid]
        if later[free:]:
            self._later[uid] = later[free:]
        for asked in later[:free]:
            caller = asked.caller
            who = Who(user=caller.name, uid=caller.uid, gid=caller.gid, operator=caller.is_operator)
            self._asking[uid] += 1
            text = question(asked.call, asked.left[-1], who)
            self._desk.filter(text, uid, partial(self._answered, asked))

    def _answered(self, asked: _Asked, ran: Ran) -> None:
        uid = asked.caller.uid
        self._asking[uid] -= 1
        if not self._asking[uid]:
            del self._asking[uid]
        try:
            self._judge(asked, ran)
        finally:
            self._ask_more(uid)

    def _judge(self, asked: _Asked, ran: Ran) -> None:
        pair, connection = asked.left.pop(), asked.connection
        try:
            asked.found.append((pair, judged(asked.call.requests[pair[0]], ran)))
        except FgschedError as error:
            if isinstance(error, Unusable):
                name = asked.call.requests[pair[0]].name
                log.warning(
                    "the answer of the submit filter about %r of %s: %s", name, asked.caller.name, error.why
                )
            connection.is_waiting = False
            refusal = blamed(asked.call, pair, error)
            self._loop.finish(connection, lambda: connection.fail(refusal))
            return
        self._next(asked)


def _after_changes(submit: Callable[[float], Any], fields: list[str], now: float) -> Any:
    """Submit what the filter changed. A refusal says so: the user did not ask for these values."""
    try:
        return submit(now)
    except FgschedError as error:
        changed = f"The submit filter of this site had changed: {', '.join(fields)}."
        error.remedy = f"{error.remedy} {changed}".lstrip()
        raise
