"""Authenticate a request and dispatch it to its handler."""

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from fgsched import codec, protocol
from fgsched.controller.caller import Caller, Callers
from fgsched.controller.engine import Engine
from fgsched.controller.eventloop import Apart, EventLoop, Handler
from fgsched.controller.handlers.about import ControllerInfo
from fgsched.controller.handlers.registration import HandlingWay, handlers_of, reads, serves_apart
from fgsched.controller.handlers.submission import LineHandlers, SubmissionHandlers, SubmitFilter
from fgsched.controller.handlers.wait import WaitHandlers, WaitLookup
from fgsched.controller.hooking import SitePrograms
from fgsched.domain.policy import Policy
from fgsched.domain.units import SubmitContext
from fgsched.server import ClientConnection
from fgsched.system.hostusers import HostUser

Call = type[protocol.Call[Any]]


class Dispatcher:
    """Passes each request to its registered handler."""

    def __init__(
        self,
        handlers: Iterable[object],
        *,
        submissions: SubmissionHandlers,
        engine: Engine,
        loop: EventLoop,
        about: ControllerInfo,
        hooks: SitePrograms,
    ) -> None:
        """Collect the handlers of all requests; `handlers` are further objects with registered methods."""
        self._engine, self._loop, self._submissions = engine, loop, submissions
        self._lookup = WaitLookup(engine)
        self.waiters = WaitHandlers(loop.finish, loop.answer, loop.faults)
        self._filter = SubmitFilter(hooks, loop, submissions.submit)
        lines = LineHandlers(submissions.submit_prepared, self._site, self._is_filtered)
        objects = [self, submissions, lines, *handlers]
        self._writers: dict[Call, Handler] = handlers_of(objects, HandlingWay.WRITES)
        self._readers: dict[Call, Handler] = handlers_of(objects, HandlingWay.READS)
        self._apart: dict[Call, Apart] = handlers_of(objects, HandlingWay.APART)
        self.decoder = codec.Decoder([*self._writers, *self._readers, *self._apart])
        self.about = about
        self._own_uid = os.geteuid()
        self._callers = Callers(self._own_uid)
        self._told: tuple[ControllerInfo, Policy, SubmitContext] | None = None  # made once for the first two

    def caller(self, connection: ClientConnection) -> Caller:
        """Return the user at the other end, as stated by the kernel."""
        host_user = self._host_user(connection.uid)
        return self._callers.of(
            connection.uid, connection.gid, host_user, self.about.config, self._engine.policy
        )

    def is_caller_known(self, connection: ClientConnection) -> bool:
        """Tell whether the caller's account is known. Requests of root do not wait for it."""
        return self.about.host_users.is_known(connection.uid) or connection.uid in (0, self._own_uid)

    def has_account(self, uid: int) -> bool:
        """Tell whether the user database lists a uid; an unknown uid is queried in the background."""
        if uid == self._own_uid or not self.about.host_users.has_helper:
            return True
        self.about.host_users.is_known(uid)
        return self.about.host_users.cached(uid) is not None

    def _host_user(self, uid: int) -> HostUser | None:
        """Return the user with a uid. Raises Busy if the name service does not answer."""
        if uid in (0, self._own_uid):
            return self.about.host_users.cached(uid)
        return self.about.host_users.of(uid)

    def writer(self, kind: Call) -> Handler | None:
        """Return the handler of a call that is carried out in the turn; None for another call."""
        if kind is protocol.Submit and self._filter.is_configured:
            return None
        return self._writers.get(kind)

    def reader(self, kind: Call) -> Handler | None:
        """Return the handler of a call that is answered at once; None for another call."""
        return self._readers.get(kind)

    def served_apart(self, kind: Call) -> Apart | None:
        """Return the handler of a call that is answered later or in steps; None for another call."""
        return self._filter.ask if kind is protocol.Submit else self._apart.get(kind)

    def _is_filtered(self) -> bool:
        return self._filter.is_configured

    @reads(protocol.Ping)
    def _ping(self, caller: Caller, call: protocol.Ping, now: float) -> protocol.About:
        """Describe the controller, with the settings that clients need to parse amounts."""
        return self.about.described(
            self._site(caller), self._loop.faults.summary(), operator=caller.is_operator
        )

    def _site(self, caller: Caller) -> SubmitContext:
        """Return the settings with which the commands of a user read a submission."""
        about, policy = self.about, self._engine.policy
        if self._told is None or self._told[0] is not about or self._told[1] is not policy:
            self._told = about, policy, about.site(policy)
        is_mailing = self._submissions.rules.mail.way != "off"  # reconfigure finds a later program
        return replace(
            self._told[2],
            context_memory=about.context_memory(),
            mails=is_mailing,
            known=self._submissions.labels.of(caller.uid),
        )

    @serves_apart(protocol.Wait)
    def _wait(self, connection: ClientConnection, caller: Caller, call: protocol.Wait) -> None:
        caller.must_have_account()
        self._loop.refuse_to_wait(connection)
        look = partial(self._lookup.add_jobs, caller, list(call.ids))
        self._loop.begin_work(connection, self.waiters.wait(connection, call, look))

    @serves_apart(protocol.Stop)
    def _stop(self, connection: ClientConnection, caller: Caller, call: protocol.Stop) -> None:
        caller.must_operate("stop the controller")
        answer = protocol.Stopped(pid=os.getpid(), running=len(self._engine.jobtable.holding))
        self._loop.finish(connection, lambda: connection.succeed(answer))
        self._loop.stopping = "asked by a command"
