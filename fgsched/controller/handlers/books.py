"""Handle requests for backups and archives: the accountant makes them, and the client waits."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fgsched import protocol
from fgsched.accounting.messages import Answer
from fgsched.accounting.records import Warned
from fgsched.controller.bookkeeping import Books
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.registration import serves_apart
from fgsched.domain.errors import Exit, FgschedError, NotPermitted, Refused, StorageError
from fgsched.server import ClientConnection
from fgsched.system.safeopen import refuse_unless_safe


class BooksHandlers:
    """Answer the requests of `calls` after the accountant has carried them out."""

    def __init__(self, books: Books, loop: EventLoop) -> None:
        self._books, self._loop = books, loop

    @serves_apart(protocol.BackUp)
    def _back_up(self, connection: ClientConnection, caller: Caller, call: protocol.BackUp) -> None:
        _refuse_others(caller)
        _refuse_unsafe(call.file)
        kept = partial(_backup_of, connection)
        self._books.back_up(call.file, partial(self._told, connection, kept))
        connection.is_waiting = True

    @serves_apart(protocol.ArchiveJobs)
    def _archive(self, connection: ClientConnection, caller: Caller, call: protocol.ArchiveJobs) -> None:
        _refuse_others(caller)
        _refuse_unsafe(call.file)
        kept = partial(_archive_of, connection)
        self._books.archive(call.file, call.before, partial(self._told, connection, kept))
        connection.is_waiting = True

    @serves_apart(protocol.NoteWarning)
    def _note(self, connection: ClientConnection, caller: Caller, call: protocol.NoteWarning) -> None:
        caller.must_operate("record warnings")
        warned = Warned(
            at=time.time(), job=call.job, policy=call.policy, finding=call.finding, action=call.action
        )
        self._books.note(warned)
        self._loop.finish(connection, lambda: connection.succeed(protocol.ArchiveContents(jobs=1)))

    def _told(self, connection: ClientConnection, succeed: Callable[[Answer], None], answer: Answer) -> None:
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
