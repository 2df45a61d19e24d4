"""Mixes of jobs that share a GPU, and what the turns must reach for each."""

from dataclasses import dataclass

PRODUCT = "kernel=171"  # microseconds
PRODUCTS = "kernel=171,wait=4"
TRAINING = "kernel=15,launch=10,wait=60"
GRAPH = "kernel=15,graph=60,launch=10,wait=1"
THINKING = f"{TRAINING},pause=3000"
REQUESTS = "kernel=50,wait=20,rate=50"
UNEVEN = "kernel=50,tail=5000,tail_each=8"
SHORT = "kernel=20,wait=1"
P50, P99 = 2.5, 8.0  # milliseconds: the most latency of requests beside a hard job


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Jobs beside each other on a GPU, with the figures to reach in per cent of its time."""

    jobs: tuple[str, ...]
    points: float | None = 3  # a hard job has its share but for so many points; None: not judged
    total: float = 95  # least sum; nine tenths of what the jobs have alone, where that is less
    is_in_time: bool = False  # its requests have P50 and P99 at most
    seconds: float = 6  # that are simulated
    before: tuple[float, ...] = ()  # figures of the pacing before the turns, where they are known

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(float(job.split(",")[0].removeprefix("share=")) for job in self.jobs)

    def misses(self, outcome) -> list[str]:
        """Return what an Outcome misses of the targets, in words."""
        missed = []
        for share, job in zip(self.shares, outcome.jobs, strict=True):
            if self.points is not None and abs(job.gpu - share) > self.points:
                missed.append(f"{job.gpu:.1f} of {share:g}")
            if self.is_in_time and job.requests and (job.p50 > P50 or job.p99 > P99):
                missed.append(f"p50 {job.p50:.1f}, p99 {job.p99:.1f} ms")
        if sum(outcome.gpu) < self.total:
            missed.append(f"sum {sum(outcome.gpu):.1f} of {self.total:g}")
        return missed


def sharing(shares: str, *programs: str) -> tuple[str, ...]:
    """Jobs with shares such as "25 75"; a single program is that of all of them."""
    numbers = shares.split()
    each = programs if len(programs) > 1 else programs * len(numbers)
    return tuple(f"share={share},{program}" for share, program in zip(numbers, each, strict=True))


def mix(shares: str, *programs: str, **targets) -> Mix:
    return Mix(jobs=sharing(shares, *programs), **targets)


def pausing(shares: str, *programs: str, total: float, **targets) -> Mix:
    """Jobs that do not always have work: their sum is judged."""
    return mix(shares, *programs, points=None, total=total, **targets)


def requesting(shares: str, *programs: str, seconds: float = 6) -> Mix:
    return mix(shares, *programs, points=None, total=0, is_in_time=True, seconds=seconds)


REQUIRED = {
    "25 and 75: 171 us, a wait each 4": mix("25 75", PRODUCTS, before=(25.0, 62.2)),
    "25 and 75: 171 us": mix("25 75", PRODUCT, before=(25.0, 65.3)),
    "25 and 75: a training": mix("25 75", TRAINING, before=(25.0, 64.9)),
    "75: 5 ms, 25: 50 us": mix("75 25", "kernel=5000", "kernel=50", before=(61.8, 25.0)),
    "25: 50 ms, 75: 171 us, a wait each 4": mix(
        "25 75", "kernel=50000", PRODUCTS, seconds=20, before=(22.2, 60.8)
    ),
    "4 of 25: 171 us, a wait each 4": mix("25 25 25 25", PRODUCTS, total=92, before=(20.5,) * 4),
    "2 of 50: 500 ms": mix("50 50", "kernel=500000", points=1, seconds=60, before=(43.5, 43.5)),
    "2 of 50: 20 us, a wait each": pausing("50 50", SHORT, total=50, before=(5.9, 5.9)),
    "75: 171 us, 25: requests": requesting("75 25", PRODUCT, REQUESTS),
}
KERNELS = {
    "10 and 90: 171 us": mix("10 90", PRODUCT),
    "25 and 75: 5 us": mix("25 75", "kernel=5"),
    "25 and 75: 20 us, a wait each": pausing("25 75", SHORT, total=50),
    "25: 5 ms, 75: 50 us": mix("25 75", "kernel=5000", "kernel=50"),
    "25: 500 ms, 75: 171 us": mix("25 75", "kernel=500000", PRODUCT, seconds=60),
    "2 of 50: 3 ms, a wait each": mix("50 50", "kernel=3000,wait=1"),
    "50: 50 us and one in 8 of 5 ms, 50: 50 us": mix("50 50", UNEVEN, "kernel=50", points=5),
    "4 of 25: 171 us": mix("25 25 25 25", PRODUCT),
    "4 of 25: 20 us, 1 ms, 5 ms, 50 ms": mix(
        "25 25 25 25", "kernel=20", "kernel=1000", "kernel=5000", "kernel=50000", seconds=20
    ),
    "10, 20, 30, 40: 5 us, 171 us with waits, a training, 5 ms": mix(
        "10 20 30 40", "kernel=5", PRODUCTS, TRAINING, "kernel=5000", total=92
    ),
    "8 of 12.5: 171 us": mix(" ".join(["12.5"] * 8), PRODUCT),
    "10: 171 us, a wait each 4, 90: 5 us": mix("10 90", PRODUCTS, "kernel=5"),
    "10 and 90: 50 ms": mix("10 90", "kernel=50000", seconds=20),
}
GRAPHS_AND_COPIES = {
    "25 and 75: graphs of a training": mix("25 75", GRAPH),
    "50: graphs of 5 ms, 50: 171 us, a wait each 4": mix("50 50", "kernel=5,graph=1000", PRODUCTS),
    "50: copies of 1 ms, then 8 of 171 us, 50: 171 us": pausing(
        "50 50", "kernel=171,wait=8,copy=1000", PRODUCT, total=71
    ),
}
STREAMS = {
    "50: 2 streams, half the GPU each, 50: 171 us": mix("50 50", "streams=2,kernel=400,width=0.5", PRODUCT),
    "50: 4 streams, a third of the GPU each, 50: 171 us": mix(
        "50 50", "streams=4,kernel=400,width=0.33", PRODUCT
    ),
    "50: 4 streams of 50 us, a quarter of the GPU each, 50: 171 us": mix(
        "50 50", "streams=4,kernel=50,width=0.25", PRODUCT
    ),
    "25: 16 streams, 75: 200 us": mix("25 75", "streams=16,kernel=200", "kernel=200"),
    "25: 32 streams, 75: 200 us": mix("25 75", "streams=32,kernel=200", "kernel=200"),
}
PROCESSES = {  # alone their processes have 87 and 82 %: contexts of one job interrupt each other, too
    "50: 4 processes, 50: 171 us": mix("50 50", f"processes=4,{PRODUCT}", PRODUCT, points=5, total=84),
    "25: 4 processes of 5 ms, 75: 171 us": mix(
        "25 75", "processes=4,kernel=5000", PRODUCT, points=5, total=84
    ),
    "2 of 50: 2 processes, 171 us, a wait each 4": mix(
        "50 50", f"processes=2,{PRODUCTS}", points=5, total=74
    ),
}
PAUSING = {
    "4 of 25: a training that pauses 3 ms": pausing("25 25 25 25", THINKING, total=81),
    "50 and 25: 171 us, a quarter free": mix("50 25", PRODUCT, total=69),
    "50: 171 us, 50: a request each second": pausing("50 50", PRODUCT, "kernel=50,wait=20,rate=1", total=47),
    "2 of 50: 171 us, one of them 1 s on, 1 s off": pausing(
        "50 50", PRODUCT, f"{PRODUCT},on=1e6,off=1e6", total=71
    ),
    "2 of 50, fair: 171 us, one of them 1 s on, 1 s off": pausing(
        "50 50", f"fair,{PRODUCT}", f"fair,{PRODUCT},on=1e6,off=1e6", total=95
    ),
    "25, 25 and 50, fair: 171 us, 5 ms, a request each second": pausing(
        "25 25 50", f"fair,{PRODUCT}", "fair,kernel=5000", "fair,kernel=50,wait=20,rate=1", total=95
    ),
}
ANSWERING = {
    "75, fair: 5 ms, 25: requests": pausing("75 25", "fair,kernel=5000", REQUESTS, total=95),
    "75: 5 ms, 25: requests": requesting("75 25", "kernel=5000", REQUESTS),
    "75: 500 ms, 25: requests": requesting("75 25", "kernel=500000", REQUESTS, seconds=60),
    "75: a training, 25: requests": requesting("75 25", TRAINING, REQUESTS),
    "50: 171 us, 25: 5 ms, 25: requests": requesting("50 25 25", PRODUCT, "kernel=5000", REQUESTS),
}
MIXES = REQUIRED | KERNELS | GRAPHS_AND_COPIES | STREAMS | PROCESSES | PAUSING | ANSWERING
