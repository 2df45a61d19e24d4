"""Find out who runs a process on a GPU and what it is, from /proc, and its load, from samples of the driver.

Reading /proc may block, so only the probe process does it.
"""

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from fgsched.domain.text import storable
from fgsched.gpus.backend import Person
from fgsched.system.process import file_of, identify

_LONGEST_COMMAND = 64  # characters of a command
_READ = 4096  # bytes of a command line
_INTERPRETERS = ("python", "sh", "bash", "perl", "ruby", "julia", "node", "Rscript", "java", "conda")


class ProcessNames:
    """The users and commands of processes; each process is looked up once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Person]] = {}  # pid -> (start in clock ticks, person)

    def of(self, pids: Iterable[int]) -> dict[int, Person]:
        """Return {pid: person} of these processes, without processes that have ended."""
        earlier, self._known = self._known, {}
        for pid in pids:
            if (identity := identify(pid)) is None:
                continue
            start, person = earlier.get(pid, (-1, None))
            entry = person if start == identity.start else _person(pid)
            if entry is not None:
                self._known[pid] = identity.start, entry
        return {pid: person for pid, (_, person) in self._known.items()}


def _person(pid: int) -> Person | None:
    with suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        words = list[bytes]()
        with suppress(OSError):
            words = file_of(pid, "cmdline", size=_READ).split(b"\0")
        name = command(words) or Path(f"/proc/{pid}/comm").read_text(errors="surrogateescape").strip()
        return Person(uid, storable(name[:_LONGEST_COMMAND]))
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
        return names[0][:_LONGEST_COMMAND]
    is_module = names[1:2] == ["-m"]
    script = names[2:3] if is_module else [name for name in names[1:2] if not name.startswith("-")]
    return " ".join([names[0], *script])[:_LONGEST_COMMAND]


# -- load ----------------------------------------------------------------------------------------------


LAG = 500_000  # microseconds after which a driver has certainly recorded a sample
_FIRST = 1_000_000  # microseconds before the first question whose samples count
_LONGEST = 2_000_000  # microseconds that one sample covers at most


class Sample(NamedTuple):
    """What the driver says of one process."""

    pid: int
    at: int  # microseconds since the epoch: the last sample that names the process
    busy: int  # percent of the compute time
    traffic: int  # percent of the time in which memory was read or written


class Load(NamedTuple):
    """The mean load of a process, in ten-thousandths of the GPU's."""

    busy: int
    traffic: int


IDLE = Load(0, 0)


class LoadMeter:
    """The load of the processes on one GPU. A process without samples was idle."""

    def __init__(self, now: int) -> None:
        """`now`: microseconds since the epoch, as are all times here."""
        self.seen = now - _FIRST  # end of the last sample: the driver is asked for later ones
        self._since = self.seen
        self._sums: dict[int, list[int]] = {}  # pid -> percent x microseconds
        self._means: dict[int, Load] = {}

    def add(self, samples: list[Sample], now: int) -> None:
        """Take in one answer of the driver: the mean of each process over all samples after `seen`.

        A row has the time of the last sample that names its process. Its mean is about later samples, too: so
        says an H100. Of a process with several rows, each is about an equal part of the time.
        """
        if now < self.seen - _LONGEST:  # the clock was set back
            self.seen = self._since = now
        rows = Counter(sample.pid for sample in samples)
        end = max((sample.at for sample in samples), default=self.seen)
        length = max(0, min(_LONGEST, end - self.seen))
        for sample in samples:
            sums = self._sums.setdefault(sample.pid, [0, 0])
            sums[0] += min(100, sample.busy) * length // rows[sample.pid]
            sums[1] += min(100, sample.traffic) * length // rows[sample.pid]
        self.seen = max(self.seen, now - LAG, end)

    def take(self) -> dict[int, Load]:
        """Return {pid: mean load} since the last call; the last result if nothing was measured since."""
        covered = self.seen - self._since
        if covered > 0:
            self._means = {
                pid: Load(*(total * 100 // covered for total in totals)) for pid, totals in self._sums.items()
            }
            self._sums, self._since = {}, self.seen
        return self._means
