"""Find out who runs a process and what it is, from /proc. It may block, so only the probe process does it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

from fgsched.domain.text import storable
from fgsched.gpus.backend import Person
from fgsched.system.process import identify

_LONGEST = 64  # characters of a command
_READ = 4096  # bytes of a command line
_INTERPRETERS = ("python", "sh", "bash", "perl", "ruby", "julia", "node", "Rscript", "java", "conda")


class ProcessNames:
    """The users and commands of processes; each process is looked up once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Person]] = {}  # pid -> (start in clock ticks, person)

    def of(self, pids: Iterable[int]) -> dict[int, Person]:
        """Return {pid: person} of these processes, without processes that have ended."""
        known, self._known = self._known, {}
        for pid in pids:
            if (identity := identify(pid)) is None:
                continue
            start, person = known.get(pid, (0, None))
            found = person if start == identity.start else _person(pid)
            if found is not None:
                self._known[pid] = identity.start, found
        return {pid: person for pid, (_, person) in self._known.items()}


def _person(pid: int) -> Person | None:
    with suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_READ).split(b"\0")
        name = command(words) or Path(f"/proc/{pid}/comm").read_text(errors="surrogateescape").strip()
        return Person(uid, storable(name[:_LONGEST]))
    return None


def command(words: list[bytes]) -> str:
    """Return the name of a program, and of the script or module that it interprets; "" if there is none.

    Args:
        words: the command line; options and arguments can contain secrets and are left out.
    """
    names = [PurePath(os.fsdecode(word)).name for word in words if word]
    if not names:
        return ""
    if not names[0].lstrip("-").rstrip("0123456789.").startswith(_INTERPRETERS):
        return names[0][:_LONGEST]
    is_module = names[1:2] == ["-m"]
    script = names[2:3] if is_module else [name for name in names[1:2] if not name.startswith("-")]
    return " ".join([names[0], *script])[:_LONGEST]
