"""Remember pages that were found damaged while the controller was running, for its next start."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fgsched.domain.errors import StorageError
from fgsched.store.files import replace_file

FILE = "queue.damaged"
RECOVER = (
    "It is left as it is. Save what can be read with: fgsched doctor --recover, which fgsched(8) explains;"
    " or bring a backup of the queue back, and do that with it."
)
_SHOWN = 10


def refusal(queue: Path, pages: Iterable[int]) -> StorageError:
    """Return the error that refuses a queue with these damaged pages."""
    found = sorted(set(pages))
    listed = ", ".join(map(str, found[:_SHOWN])) + (" …" if len(found) > _SHOWN else "")
    plural = "" if len(found) == 1 else "s"
    return StorageError(
        f"{queue} is damaged: it differs from its checksums at page{plural} {listed}", RECOVER
    )


def remember(queue: Path, pages: Iterable[int]) -> None:
    """Store the damaged pages, so that the next start checks them first."""
    with suppress(OSError):
        replace_file(queue.with_name(FILE), json.dumps(sorted(set(pages))).encode())


def known(queue: Path) -> list[int]:
    """Return the pages that an earlier controller found damaged."""
    with suppress(OSError, ValueError, TypeError):
        found = json.loads(queue.with_name(FILE).read_bytes())
        return [int(page) for page in found if int(page) > 0]
    return []


def forget(queue: Path) -> None:
    """Delete the list of damaged pages, after a check found them intact."""
    with suppress(OSError):
        queue.with_name(FILE).unlink(missing_ok=True)
