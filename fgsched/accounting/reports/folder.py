"""Keep reports in a folder: dated files, an index, a limit on their number, one writer at a time."""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path

from fgsched.accounting.reports.model import Report
from fgsched.domain.errors import FgschedError, Refused, StorageError

_LOCK = ".fgreport.lock"
_FILE = re.compile(r"(?P<kind>[a-z]+)-(?P<period>[0-9][\w.-]*?)\.(?P<suffix>html|txt|md|json|csv)")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.75rem; margin: 0 0 1rem }}
h2 {{ font-size: 1.25rem; margin: 2rem 0 .5rem; border-top: 2px solid; padding-top: .75rem }}
ul {{ list-style: none; margin: 0; padding: 0 }}
li {{ padding: .375rem 0; border-bottom: 1px solid #8886 }}
a {{ color: inherit; margin-right: 1rem }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of reports, which is made if it is missing.

    Raises:
        Refused: another fgreport writes to it now.
        StorageError: the folder cannot be written.
    """
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
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
    """Write a report to dated files and write the index again; `texts` are by suffix.

    With `keep`, only so many periods of this kind of report stay. Raises StorageError.
    """
    stem = f"{report.kind}-{_file_name(report.period.name)}"
    with _told(folder):
        written = [_write(folder / f"{stem}.{suffix}", text) for suffix, text in texts.items()]
        if keep:
            _prune(folder, report.kind, keep)
        _write(folder / "index.html", _index(folder, report.host))
    return written


def _file_name(period: str) -> str:
    return period.replace("..", "_").replace(":", "")


def _write(path: Path, text: str) -> Path:
    """Replace a file at once, so that a reader sees the old one or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return path


def _prune(folder: Path, kind: str, keep: int) -> None:
    periods = sorted({period for one, period, _ in _files(folder) if one == kind}, reverse=True)
    for one, period, name in _files(folder):
        if one == kind and period in periods[keep:]:
            (folder / name).unlink(missing_ok=True)


def _files(folder: Path) -> list[tuple[str, str, str]]:
    """Return kind, period and name of the reports in a folder."""
    found = [(_FILE.fullmatch(path.name), path.name) for path in folder.iterdir()]
    return sorted((match["kind"], match["period"], name) for match, name in found if match)


def _index(folder: Path, host: str) -> str:
    by_kind: dict[str, dict[str, list[str]]] = {}
    for kind, period, name in _files(folder):
        by_kind.setdefault(kind, {}).setdefault(period, []).append(name)
    parts = []
    for kind, periods in by_kind.items():
        parts += [f"<h2>{escape(kind.capitalize())}</h2>", "<ul>"]
        for period in sorted(periods, reverse=True):
            links = "".join(
                f'<a href="{escape(name)}">{escape(name.rpartition(".")[2])}</a>' for name in periods[period]
            )
            parts.append(f"<li>{escape(period)} {links}</li>")
        parts.append("</ul>")
    return _PAGE.format(title=escape(f"GPU reports of {host}"), body="\n".join(parts))


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except FgschedError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write reports to {folder}: {error.strerror}",
            "Choose a folder that you may write, or free space on its disk.",
        ) from error
