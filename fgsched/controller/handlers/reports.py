"""Handle requests for reports by users who may not read the accounts: the reporter makes them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from fgsched import protocol
from fgsched.accounting.periods import Choice
from fgsched.config.load import Config
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.registration import serves_apart
from fgsched.domain.errors import BY_EXIT_CODE, Busy, NotPermitted, OurFault, StorageError
from fgsched.reports.process import ReporterProcess
from fgsched.reports.request import WITHOUT_NAMES, Made, ReportRequest
from fgsched.server import ClientConnection

_MOST = 16  # reports that are asked for at a time
_PAUSE = 1.0  # seconds until a client asks again


class ReportHandlers:
    """Answer the requests of `calls` when the report is made."""

    def __init__(self, accounts: Path, loop: EventLoop, config: Callable[[], Config]) -> None:
        """`config` returns the settings in force."""
        self._loop, self._config = loop, config
        self._asked: dict[int, ClientConnection] = {}
        self._reporter = ReporterProcess(accounts, loop.watch_once, self._answered)

    def begin(self) -> None:
        """Take part in the event loop."""
        self._loop.watch(self._reporter, self._reporter.receive)

    def close(self) -> None:
        """End the reporter."""
        self._reporter.close()

    @serves_apart(protocol.MakeReport)
    def _make(self, connection: ClientConnection, caller: Caller, call: protocol.MakeReport) -> None:
        caller.must_have_account()
        request = self._request(caller, call)
        if len(self._asked) >= _MOST or any(
            client_connection.uid == caller.uid for client_connection in self._asked.values()
        ):
            raise Busy("other reports are being made", "Repeat the command later.", after=_PAUSE)
        try:
            number = self._reporter.ask(request)
        except OSError as error:
            raise StorageError(f"no report can be made: {error}", "Repeat the command later.") from None
        self._asked[number] = connection
        connection.is_waiting = True

    def _request(self, caller: Caller, call: protocol.MakeReport) -> ReportRequest:
        """Return what the reporter makes. Raises NotPermitted."""
        config = self._config()
        user = (call.user or caller.name) if call.report == "me" else ""
        may_see_all = caller.is_operator or not config.private_data
        if not may_see_all and user != caller.name and call.report not in WITHOUT_NAMES:
            raise NotPermitted(
                f"the report {call.report} shows other users, and this host keeps them private",
                f"You may use: me, {', '.join(WITHOUT_NAMES)}.",
            )
        return ReportRequest(
            report=call.report,
            choice=Choice(
                since=call.since,
                until=call.until,
                yesterday=call.yesterday,
                week=call.week,
                month=call.month,
            ),
            user=user,
            by=call.by,
            rows=call.rows,
            host=socket.gethostname().partition(".")[0],
            weights=dict(config.weights),
            quotas={name: 60.0 * one.gpu_minutes for name, one in config.accounts.items() if one.gpu_minutes},
            has_paths=caller.is_operator or caller.uid == os.geteuid(),
            limits=config.limits if call.report == "capacity" else None,
        )

    def _answered(self, made: Made) -> None:
        connection = self._asked.pop(made.number, None)
        if connection is None:
            return
        connection.is_waiting = False
        if made.error:
            error = BY_EXIT_CODE.get(made.exit, OurFault)(made.error, made.remedy)
            self._loop.finish(connection, lambda: connection.fail(error))
        else:
            answer = protocol.ReportMade(
                report=made.report, is_empty=made.records.is_empty, begin=made.records.begin
            )
            self._loop.finish(connection, lambda: connection.succeed(answer))
