"""Keep reports in a folder: dated files, an index, a limit on their number, one writer at a time."""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fgsched.domain.errors import FgschedError, Refused, StorageError
from fgsched.reports.model import Report
from fgsched.system import places

_LOCK = ".fgreport.lock"
_FILE = re.compile(r"(?P<kind>[a-z]+)-(?P<period>[0-9][\w.-]*?)\.(?P<suffix>html|txt|md|json|csv)")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder of reports, and create it if it is missing.

    Raises:
        Refused: another fgreport writes to it now.
        StorageError: the folder cannot be written.
    """
    with _storage_errors(folder):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with places.folder(folder, make=True) as parent:
            lock = os.open(_LOCK, flags, 0o644, dir_fd=parent)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"another fgreport writes to {folder} now", "Run it again when that one has ended."
            ) from None
        yield
    finally:
        os.close(lock)


def add(folder: Path, report: Report, texts: Mapping[str, str], keep: int = 0) -> list[Path]:
    """Write a report to dated files, one for each suffix in `texts`, and update the index.

    With `keep`, only the last `keep` periods of this kind of report and of this form (days, weeks, months)
    are kept. Raises StorageError.
    """
    is_now = report.period.noun == "moment"  # one file, for a screen that reads it again and again
    stem = report.kind if is_now else f"{report.kind}-{_file_name(report.period.name)}"
    with _storage_errors(folder):
        written = [_write(folder / f"{stem}.{suffix}", text) for suffix, text in texts.items()]
        if keep:
            _prune(folder, report.kind, _form(_file_name(report.period.name)), keep)
        _write(folder / "index.html", _index(folder, report.host))
    return written


def _file_name(period: str) -> str:
    return period.replace("..", "_").replace(":", "")


def replaced(path: Path, text: str) -> None:
    """Replace a file at once, and make its folder if it is missing. Raises StorageError."""
    with _storage_errors(path.parent):
        _write(path, text)


def _write(path: Path, text: str) -> Path:
    places.replace_file(path, text.encode(errors="replace"), make=True)
    return path


def _form(period: str) -> str:
    """Return the form of a period's name: names of one form are sorted by time."""
    return re.sub("[0-9]", "0", period)


def _prune(folder: Path, kind: str, form: str, keep: int) -> None:
    reports = [
        (period, name)
        for name_of_kind, period, name in _files(folder)
        if (name_of_kind, _form(period)) == (kind, form)
    ]
    periods = sorted({period for period, _ in reports}, reverse=True)
    for period, name in reports:
        if period in periods[keep:]:
            with places.folder(folder) as parent:
                os.unlink(name, dir_fd=parent)


def _files(folder: Path) -> list[tuple[str, str, str]]:
    """Return kind, period and name of the reports in a folder."""
    files = [(_FILE.fullmatch(path.name), path.name) for path in folder.iterdir()]
    return sorted((match["kind"], match["period"], name) for match, name in files if match)


def _index(folder: Path, host: str) -> str:
    from fgsched.reports.html import index_page  # needs Jinja2, which other formats do not

    by_kind: dict[str, dict[str, list[str]]] = {}
    for kind, period, name in _files(folder):
        by_kind.setdefault(kind, {}).setdefault(period, []).append(name)
    return index_page(host, by_kind)


@contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except FgschedError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write reports to {folder}: {error.strerror}",
            "Choose a folder that you may write, or free space on its disk.",
        ) from error
