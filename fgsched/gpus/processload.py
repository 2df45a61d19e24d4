"""Compute the mean load of each process on a GPU from the samples that the driver keeps for a short time."""

from collections import Counter
from typing import NamedTuple

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
        for one in samples:
            sums = self._sums.setdefault(one.pid, [0, 0])
            sums[0] += min(100, one.busy) * length // rows[one.pid]
            sums[1] += min(100, one.traffic) * length // rows[one.pid]
        self.seen = max(self.seen, now - LAG, end)

    def take(self) -> dict[int, Load]:
        """Return {pid: mean load} since the last call; the last result if nothing was measured since."""
        covered = self.seen - self._since
        if covered > 0:
            self._means = {pid: Load(*(one * 100 // covered for one in of)) for pid, of in self._sums.items()}
            self._sums, self._since = {}, self.seen
        return self._means
