"""Shares of compute in mixes of jobs of a controller, whatever it holds them by, and without fgsched."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck import probing
from gpucheck.place import Place, decoded
from gpucheck.sheet import Row, figure, row
from gpucheck.submitted import Wanted, submit

_LEAD = 2.0  # most seconds from the start of the programs to their first kernel
_LATE = 15.0  # seconds that programs may take after their end
_OFF = 0.03  # the most that a job which always has work may be off its share
_SUM = 0.95  # the least that such jobs may get together
_P50, _P99 = 2.5, 8.0  # milliseconds of a request beside a hard neighbour


@dataclass(frozen=True)
class Work:
    """One job of a mix: its share, and the arguments of `probe` before and after the times."""

    share: float
    verb: str
    before: tuple[float, ...]
    after: tuple[float, ...] = ()

    def words(self, seconds: float, begin: float) -> list[str]:
        return probing.command(self.verb, *self.before, f"{seconds:.3f}", f"{begin:.4f}", *self.after)


@dataclass(frozen=True)
class Mix:
    """Jobs that run at once. `busy`: all of them always have work."""

    what: str
    decides: str
    jobs: tuple[Work, ...]
    busy: bool = True


def loop(share: float, us: float, wait: int = 0, *more: float) -> Work:
    return Work(share, "loop", (us, wait), more)


FIRST = (
    Mix(
        "0.25 and 0.75, 171 us, a wait each 4",
        "whether shares hold beside busy jobs, and what changes between processes cost",
        (loop(0.25, 171, 4), loop(0.75, 171, 4)),
    ),
    Mix(
        "4 x 0.25, 171 us, a wait each 4",
        "whether four jobs get the whole GPU",
        (loop(0.25, 171, 4),) * 4,
    ),
    Mix(
        "0.75 of 5 ms and 0.25 of 50 us",
        "whether long kernels of a large share lose",
        (loop(0.75, 5000), loop(0.25, 50)),
    ),
)
SECOND = (
    Mix(
        "requests at 0.25 beside 0.75 of 171 us",
        "how late answers of a service are beside a training",
        (Work(0.25, "requests", (50, 20, 50)), loop(0.75, 171)),
        busy=False,
    ),
    Mix(
        "0.5 in 4 streams of a third, and 0.5 in one",
        "whether overlapping kernels are counted twice",
        (loop(0.5, 400, 0, 4, 0.33), loop(0.5, 171)),
    ),
    Mix(
        "2 x 0.5, 20 us, a wait each",
        "whether jobs that wait for each kernel lose the GPU to changes",
        (loop(0.5, 20, 1),) * 2,
        busy=False,
    ),
)
THIRD = (
    Mix(
        "0.25 of 5 ms and 0.75 of 50 us",
        "whether long kernels of a small share take more",
        (loop(0.25, 5000), loop(0.75, 50)),
    ),
    Mix("0.5 and 0.5 of 50 ms", "the period with long kernels", (loop(0.5, 50_000), loop(0.5, 171))),
    Mix(
        "0.25 in 16 streams and 0.75",
        "whether the account holds from nine streams on",
        (loop(0.25, 200, 0, 16, 1), loop(0.75, 200)),
    ),
)
ALONE = (
    Mix("0.5 alone, 171 us", "the accuracy of a share without neighbours", (loop(0.5, 171),)),
    Mix("0.5 alone, 16 streams", "the same with many streams", (loop(0.5, 171, 0, 16, 1),)),
    Mix("0.5 alone, 20 ms", "the same with long kernels", (loop(0.5, 20_000),)),
)


def first(place: Place) -> Iterator[Row]:
    """Run the first mixes without fgsched and as jobs."""
    yield from _section(place, FIRST)


def second(place: Place) -> Iterator[Row]:
    """Run requests, streams and kernels with waits without fgsched and as jobs."""
    yield from _section(place, SECOND)


def third(place: Place) -> Iterator[Row]:
    """Run further mixes without fgsched and as jobs."""
    yield from _section(place, THIRD)


def alone(place: Place) -> Iterator[Row]:
    """Run single jobs on a part of the GPU."""
    yield from _section(place, ALONE, has_bare=False)


def _section(place: Place, mixes: Sequence[Mix], *, has_bare: bool = True) -> Iterator[Row]:
    probing.turns(place)  # on the free GPU, before the controller
    with place.controller() as (client, home):
        for mix in mixes:
            if has_bare:
                seen = _told(mix, _bare(place, mix))
                yield figure(f"{mix.what}: without fgsched", seen, decides=mix.decides)
            found, how = _as_jobs(place, client, home, mix)
            yield _judged(mix, found, how)


def _lead(place: Place) -> float:
    return max(0.5, min(_LEAD, place.each))


def _bare(place: Place, mix: Mix) -> list[dict[str, Any]]:
    begin = probing.clock(_lead(place))
    with ExitStack() as stack:
        words = [job.words(place.each, begin) for job in mix.jobs]
        programs = [stack.enter_context(place.begin(*line, TURNS=probing.turns(place))) for line in words]
        seconds = place.each + _LATE + place.longer
        printed = [program.process.communicate(timeout=seconds)[0] for program in programs]
    return [decoded(text) for text in printed]


def _as_jobs(place: Place, client: Any, home: Path, mix: Mix) -> tuple[list[dict[str, Any]], str]:
    """Run a mix as jobs of the controller. Return what they printed, and by what they were held."""
    begin = probing.clock(_lead(place))
    wanted = [
        Wanted(
            f"TURNS={probing.turns(place)} PROBE_OUT=@OUT@ exec {' '.join(job.words(place.each, begin))}",
            share=job.share,
            compute="hard",
        )
        for job in mix.jobs
    ]
    jobs = submit(client, home, wanted)
    time.sleep(max(0.0, begin - probing.clock(0)))
    how = jobs.pacing()
    jobs.wait(place.each + _LATE + place.longer)
    return jobs.said(), how


def _told(mix: Mix, found: Sequence[dict[str, Any]]) -> str:
    parts = [
        f"{one['part']:.1%} for {job.share}" if "part" in one else _latency(one)
        for job, one in zip(mix.jobs, found, strict=True)
    ]
    return ", ".join(parts) + f"; {sum(one.get('part', 0) for one in found):.1%} in all"


def _latency(one: dict[str, Any]) -> str:
    return f"p50 {one['p50']:.2f} and p99 {one['p99']:.2f} ms of {one['requests']} requests"


def _judged(mix: Mix, found: Sequence[dict[str, Any]], how: str) -> Row:
    """Compare with the shares. Latencies have limits of their own."""
    what, seen = f"{mix.what}: as jobs, {how}", _told(mix, found)
    late = [one for one in found if "p50" in one]
    if late:
        good = all(one["p50"] <= _P50 and one["p99"] <= _P99 for one in late)
        return row(what, good, seen, decides=mix.decides)
    if not mix.busy:
        return figure(what, seen, decides=mix.decides)
    off = [abs(one["part"] - job.share) for job, one in zip(mix.jobs, found, strict=True)]
    wanted = _SUM * sum(job.share for job in mix.jobs)
    good = max(off) <= _OFF and sum(one["part"] for one in found) >= wanted
    return row(what, good, seen, decides=mix.decides)
