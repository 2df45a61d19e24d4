"""Mixes of jobs that share a GPU, and what the turns must reach for each."""

from dataclasses import dataclass

PRODUCT = "kernel=171"  # microseconds
PRODUCTS = "kernel=171,wait=4"
TRAINING = "kernel=15,launch=10,wait=60"
GRAPH = "kernel=15,graph=60,launch=10,wait=1"
THINKING = f"{TRAINING},pause=3000"
REQUESTS = "kernel=50,wait=20,rate=50"
UNEVEN = "kernel=50,tail=5000,tail_each=8"
ALWAYS = 95  # per cent: least sum of jobs that always have work


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Jobs beside each other on a GPU, with the figures to reach in per cent of its time."""

    jobs: tuple[str, ...]
    points: float | None = 3  # a job may have so much less or more than its share; None: not judged
    total: float = ALWAYS  # least sum
    is_in_time: bool = False  # its requests: p50 of 2.5 ms, p99 of 8 ms
    before: tuple[float, ...] = ()  # figures of the pacing before the turns, where they are known

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(float(job.split(",")[0].removeprefix("share=")) for job in self.jobs)


def sharing(shares: str, *programs: str) -> tuple[str, ...]:
    """Jobs with shares such as "25 75"; a single program is that of all of them."""
    numbers = shares.split()
    each = programs if len(programs) > 1 else programs * len(numbers)
    return tuple(f"share={share},{program}" for share, program in zip(numbers, each, strict=True))


MIXES = {
    # the nine of the requirement
    "25 and 75: 171 us, a wait each 4": Mix(jobs=sharing("25 75", PRODUCTS), before=(25.0, 62.2)),
    "25 and 75: 171 us": Mix(jobs=sharing("25 75", PRODUCT), before=(25.0, 65.3)),
    "25 and 75: a training": Mix(jobs=sharing("25 75", TRAINING), before=(25.0, 64.9)),
    "75: 5 ms, 25: 50 us": Mix(jobs=sharing("75 25", "kernel=5000", "kernel=50"), before=(61.8, 25.0)),
    "25: 50 ms, 75: 171 us, a wait each 4": Mix(
        jobs=sharing("25 75", "kernel=50000", PRODUCTS), before=(22.2, 60.8)
    ),
    "4 of 25: 171 us, a wait each 4": Mix(jobs=sharing("25 25 25 25", PRODUCTS), before=(20.5,) * 4),
    "2 of 50: 500 ms": Mix(jobs=sharing("50 50", "kernel=500000"), before=(43.5, 43.5)),
    "2 of 50: 20 us, a wait each": Mix(
        jobs=sharing("50 50", "kernel=20,wait=1"), points=None, total=50, before=(5.9, 5.9)
    ),
    "75: 171 us, 25: requests": Mix(
        jobs=sharing("75 25", PRODUCT, REQUESTS), points=None, total=0, is_in_time=True
    ),
    # kernels
    "10 and 90: 171 us": Mix(jobs=sharing("10 90", PRODUCT)),
    "25 and 75: 5 us": Mix(jobs=sharing("25 75", "kernel=5")),
    "25 and 75: 20 us, a wait each": Mix(jobs=sharing("25 75", "kernel=20,wait=1"), points=None, total=50),
    "25: 5 ms, 75: 50 us": Mix(jobs=sharing("25 75", "kernel=5000", "kernel=50")),
    "25: 500 ms, 75: 171 us": Mix(jobs=sharing("25 75", "kernel=500000", PRODUCT)),
    "2 of 50: 3 ms, a wait each": Mix(jobs=sharing("50 50", "kernel=3000,wait=1")),
    "50: 50 us and one in 8 of 5 ms, 50: 50 us": Mix(jobs=sharing("50 50", UNEVEN, "kernel=50"), points=5),
    "4 of 25: 171 us": Mix(jobs=sharing("25 25 25 25", PRODUCT)),
    "4 of 25: 20 us, 1 ms, 5 ms, 50 ms": Mix(
        jobs=sharing("25 25 25 25", "kernel=20", "kernel=1000", "kernel=5000", "kernel=50000")
    ),
    "10, 20, 30, 40: 5 us, 171 us, training, 5 ms": Mix(
        jobs=sharing("10 20 30 40", "kernel=5", PRODUCTS, TRAINING, "kernel=5000")
    ),
    "8 of 12.5: 171 us": Mix(jobs=sharing("12.5 " * 8, PRODUCT)),
    "10: 171 us, a wait each 4, 90: 5 us": Mix(jobs=sharing("10 90", PRODUCTS, "kernel=5")),
    "10 and 90: 50 ms": Mix(jobs=sharing("10 90", "kernel=50000")),
    # graphs and copies
    "25 and 75: graphs of a training": Mix(jobs=sharing("25 75", GRAPH)),
    "50: graphs of 5 ms, 50: 171 us, a wait each 4": Mix(
        jobs=sharing("50 50", "kernel=5,graph=1000", PRODUCTS)
    ),
    "50: copies of 1 ms and 8 of 171 us, 50: 171 us": Mix(
        jobs=sharing("50 50", "kernel=171,wait=8,copy=1000", PRODUCT), points=None, total=90
    ),
    # streams
    "50: 2 streams, half the GPU each, 50: 171 us": Mix(
        jobs=sharing("50 50", "streams=2,kernel=400,width=0.5", PRODUCT)
    ),
    "50: 4 streams, a third of the GPU each, 50: 171 us": Mix(
        jobs=sharing("50 50", "streams=4,kernel=400,width=0.33", PRODUCT)
    ),
    "50: 4 streams of 50 us, a quarter of the GPU each, 50: 171 us": Mix(
        jobs=sharing("50 50", "streams=4,kernel=50,width=0.25", PRODUCT)
    ),
    "25: 16 streams, 75: 200 us": Mix(jobs=sharing("25 75", "streams=16,kernel=200", "kernel=200")),
    "25: 32 streams, 75: 200 us": Mix(jobs=sharing("25 75", "streams=32,kernel=200", "kernel=200")),
    # processes
    "50: 4 processes, 50: 171 us": Mix(jobs=sharing("50 50", f"processes=4,{PRODUCT}", PRODUCT), points=5),
    "25: 4 processes of 5 ms, 75: 171 us": Mix(
        jobs=sharing("25 75", "processes=4,kernel=5000", PRODUCT), points=5
    ),
    "2 of 50: 2 processes, 171 us, a wait each 4": Mix(
        jobs=sharing("50 50", f"processes=2,{PRODUCTS}"), points=5
    ),
    # jobs that pause
    "4 of 25: a training that pauses 3 ms": Mix(jobs=sharing("25 25 25 25", THINKING), points=None, total=75),
    "50 and 25: 171 us, a quarter free": Mix(jobs=sharing("50 25", PRODUCT), total=70),
    "50: 171 us, 50: a request a second": Mix(
        jobs=sharing("50 50", PRODUCT, "kernel=50,wait=20,rate=1"), points=None, total=0
    ),
    "2 of 50: 171 us, one of them 1 s on, 1 s off": Mix(
        jobs=sharing("50 50", PRODUCT, f"{PRODUCT},on=1e6,off=1e6"), points=None, total=0
    ),
    # requests
    "75: 5 ms, 25: requests": Mix(
        jobs=sharing("75 25", "kernel=5000", REQUESTS), points=None, total=0, is_in_time=True
    ),
    "75: a training, 25: requests": Mix(
        jobs=sharing("75 25", TRAINING, REQUESTS), points=None, total=0, is_in_time=True
    ),
    "50: 171 us, 25: 5 ms, 25: requests": Mix(
        jobs=sharing("50 25 25", PRODUCT, "kernel=5000", REQUESTS), points=None, total=0, is_in_time=True
    ),
}
