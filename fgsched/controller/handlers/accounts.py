"""Handle requests about the accounts: backups, archives, and reports for users who may not read the accounts.

Accountant and reporter do the work, and the client waits.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fgsched import protocol
from fgsched.accounting.messages import Answer
from fgsched.accounting.periods import Choice
from fgsched.accounting.records import Warned
from fgsched.config.schema import Config
from fgsched.controller.bookkeeping import Accounts
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.registration import serves_apart
from fgsched.domain.errors import (
    BY_EXIT_CODE,
    Busy,
    Exit,
    FgschedError,
    NotPermitted,
    OurFault,
    Refused,
    StorageError,
)
from fgsched.reports.request import WITHOUT_NAMES, Made, ReporterProcess, ReportRequest
from fgsched.server import ClientConnection
from fgsched.system.safeopen import refuse_unless_safe
from fgsched.views.display import host_name


class AccountsHandlers:
    """Answer the requests of `calls` after the accountant has carried them out."""

    def __init__(self, accounts: Accounts, loop: EventLoop) -> None:
        self._accounts, self._loop = accounts, loop

    @serves_apart(protocol.BackUp)
    def _back_up(self, connection: ClientConnection, caller: Caller, call: protocol.BackUp) -> None:
        _refuse_others(caller)
        _refuse_unsafe(call.file)
        answer = partial(_backup_of, connection)
        self._accounts.back_up(call.file, partial(self._answer_client, connection, answer))
        connection.is_waiting = True

    @serves_apart(protocol.ArchiveJobs)
    def _archive(self, connection: ClientConnection, caller: Caller, call: protocol.ArchiveJobs) -> None:
        _refuse_others(caller)
        _refuse_unsafe(call.file)
        answer = partial(_archive_of, connection)
        self._accounts.archive(call.file, call.before, partial(self._answer_client, connection, answer))
        connection.is_waiting = True

    @serves_apart(protocol.NoteWarning)
    def _note(self, connection: ClientConnection, caller: Caller, call: protocol.NoteWarning) -> None:
        caller.must_operate("record warnings")
        warned = Warned(
            at=time.time(), job=call.job, policy=call.policy, finding=call.finding, action=call.action
        )
        self._accounts.note(warned)
        self._loop.finish(connection, lambda: connection.succeed(protocol.ArchiveContents(jobs=1)))

    def _answer_client(
        self, connection: ClientConnection, succeed: Callable[[Answer], None], answer: Answer
    ) -> None:
        connection.is_waiting = False
        if answer.error:
            self._loop.finish(connection, lambda: connection.fail(_error_of(answer)))
        else:
            self._loop.finish(connection, lambda: succeed(answer))


def _backup_of(connection: ClientConnection, answer: Answer) -> None:
    connection.succeed(protocol.ArchiveContents(bytes=answer.done))


def _archive_of(connection: ClientConnection, answer: Answer) -> None:
    connection.succeed(protocol.ArchiveContents(jobs=answer.done))


def _error_of(answer: Answer) -> FgschedError:
    kind = Refused if answer.exit == Exit.REFUSED else StorageError
    return kind(answer.error, answer.remedy)


def _refuse_unsafe(file: str) -> None:
    """Refuse a directory in which another user could exchange what root writes.

    Raises:
        Refused: such a user can change the directory or one above it.
    """
    if os.geteuid() == 0:
        with suppress(OSError):  # the accountant reports a directory that does not exist
            refuse_unless_safe(Path(file).parent, owner=0)


def _refuse_others(caller: Caller) -> None:
    """Refuse users other than the controller's own and root: it writes the file with its own rights."""
    if caller.uid not in (0, os.geteuid()):
        raise NotPermitted("only the user of the controller may write its files", "Run this command as root.")


# -- reports -------------------------------------------------------------------


_MOST = 16  # reports that are asked for at a time
_PAUSE = 1.0  # seconds until a client asks again


class ReportHandlers:
    """Answer the requests of `calls` when the report is made."""

    def __init__(self, accounts: Path, loop: EventLoop, config: Callable[[], Config]) -> None:
        """`config` returns the settings in force."""
        self._loop, self._config = loop, config
        self._waiting_clients: dict[int, ClientConnection] = {}
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
        if len(self._waiting_clients) >= _MOST or any(
            client_connection.uid == caller.uid for client_connection in self._waiting_clients.values()
        ):
            raise Busy("other reports are being made", "Repeat the command later.", after=_PAUSE)
        try:
            number = self._reporter.ask(request)
        except OSError as error:
            raise StorageError(f"no report can be made: {error}", "Repeat the command later.") from None
        self._waiting_clients[number] = connection
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
            host=host_name(),
            weights=dict(config.weights),
            quotas={
                name: 60.0 * account.gpu_minutes
                for name, account in config.accounts.items()
                if account.gpu_minutes
            },
            has_paths=caller.is_operator or caller.uid == os.geteuid(),
            limits=config.limits if call.report == "capacity" else None,
        )

    def _answered(self, report: Made) -> None:
        connection = self._waiting_clients.pop(report.number, None)
        if connection is None:
            return
        connection.is_waiting = False
        if report.error:
            error = BY_EXIT_CODE.get(report.exit, OurFault)(report.error, report.remedy)
            self._loop.finish(connection, lambda: connection.fail(error))
        else:
            answer = protocol.ReportMade(
                report=report.report, is_empty=report.records.is_empty, begin=report.records.begin
            )
            self._loop.finish(connection, lambda: connection.succeed(answer))
