"""Write the state and the sums of the accounts as metrics, in Prometheus' text format.

The number of series is bounded: users beyond the first MOST_USERS are summed as OTHERS, and no job
has a label.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fgsched import __version__
from fgsched.reports.model import CLASSES, TimeClass
from fgsched.reports.status import AccountTotals, GpuNow, Status

MOST_USERS = 500
OTHERS = "(other)"  # no user has this name
_LONGEST = 100  # characters of a label
_FIELDS: dict[TimeClass, str] = dict(
    zip(CLASSES, ("active", "held", "empty", "free", "external", "down"), strict=True)
)
_CHARGED = CLASSES[:3]
_OF_GPU: tuple[tuple[str, str, Callable[[GpuNow], float | None]], ...] = (
    (
        "fgsched_gpu_up",
        "1 if the GPU takes jobs, 0 if it is drained, suspect or failed.",
        lambda gpu_now: not gpu_now.down,
    ),
    ("fgsched_gpu_memory_bytes", "Size of the memory of the GPU.", lambda gpu_now: gpu_now.total),
    ("fgsched_gpu_memory_jobs_bytes", "Memory that jobs use.", lambda gpu_now: gpu_now.used),
    (
        "fgsched_gpu_memory_external_bytes",
        "Memory that processes outside fgsched use.",
        lambda gpu_now: gpu_now.external,
    ),
    (
        "fgsched_gpu_sm_ratio",
        "Part of the time in which a kernel ran, from 0 to 1.",
        lambda gpu_now: None if gpu_now.sm is None else gpu_now.sm / 100,
    ),
    ("fgsched_gpu_temperature_celsius", "Temperature of the GPU.", lambda gpu_now: gpu_now.temperature),
    ("fgsched_gpu_power_watts", "Power that the GPU takes.", lambda gpu_now: gpu_now.power),
)


def as_metrics(status: Status, sums: AccountTotals | None) -> str:
    """Return metrics of the present state, and of the accounts if there are any."""
    registry = CollectorRegistry()
    registry.register(_Given([*_state(status), *(_accounts(sums) if sums else ())]))
    return generate_latest(registry).decode()


class _Given:
    """A collector of families of metrics that were made before."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        yield from self._families


def _family(
    kind: Any, name: str, text: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
) -> Any:
    shown: dict[tuple[str, ...], float] = defaultdict(float)
    for key, value in values.items():
        shown[tuple(map(_label, key))] += value  # a series may be written once, also if labels are shortened
    family = kind(name, text, labels=list(labels))
    for key, value in sorted(shown.items()):
        family.add_metric(key, value)
    return family


def _label(text: str) -> str:
    """Return a text as a label: without control characters, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST]


# -- now -----------------------------------------------------------------------------------------------


def _state(status: Status) -> Iterator[Any]:
    yield _family(
        GaugeMetricFamily,
        "fgsched_up",
        "1 if the controller answers.",
        ("version",),
        {(__version__,): not status.trouble},
    )
    yield _family(
        GaugeMetricFamily,
        "fgsched_status_timestamp_seconds",
        "Time of this file, since the epoch.",
        (),
        {(): status.at},
    )
    if status.trouble:
        return
    gpus = [(gpu, (str(gpu.gpu), gpu.model)) for gpu in status.gpus]
    for name, text, value in _OF_GPU:
        values: dict[tuple[str, ...], float] = {
            labels: float(number) for gpu, labels in gpus if (number := value(gpu)) is not None
        }
        yield _family(GaugeMetricFamily, name, text, ("gpu", "type"), values)
    parts: dict[tuple[str, ...], float] = {
        (*labels, kind): part for gpu, labels in gpus for kind, part in gpu.classes().items()
    }
    text = "Part of the GPU in each class now; unknown: jobs of a GPU that does not answer. The sum is 1."
    yield _family(GaugeMetricFamily, "fgsched_gpu_class_ratio", text, ("gpu", "type", "class"), parts)
    jobs = {tuple(key.split("/", 1)): float(number) for key, number in status.jobs.items()}
    text = "Jobs in the queue; a pending array is one."
    yield _family(GaugeMetricFamily, "fgsched_jobs", text, ("state", "partition"), jobs)
    shares: dict[tuple[str, ...], float] = defaultdict(float)
    for gpu in status.gpus:
        for share in gpu.scaled:
            shares[share.user, gpu.model] += share.share
        if gpu.hidden:
            shares[OTHERS, gpu.model] += gpu.charged - sum(share.share for share in gpu.scaled)
    bounded = _others_summed(shares, set(sorted({user for user, _ in shares} - {OTHERS})[:MOST_USERS]))
    text = "GPUs that running jobs are charged."
    yield _family(GaugeMetricFamily, "fgsched_user_charged_gpus", text, ("user", "type"), bounded)


def _others_summed(values: Mapping[tuple[str, ...], float], users: set[str]) -> dict[tuple[str, ...], float]:
    """Sum the values of users who are not known; the user is the first label."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for key, value in values.items():
        sums[(key[0] if key[0] in users else OTHERS, *key[1:])] += value
    return sums


# -- the accounts --------------------------------------------------------------------------------------


def _accounts(sums: AccountTotals) -> Iterator[Any]:
    yield from _gpus(sums)
    models = {gpu.uuid: gpu.model for gpu in sums.gpus}
    first: dict[int, str] = {}
    for use in sums.owners:
        first.setdefault(use.owner.uid, use.owner.user)
    users = {first[uid] for uid in sorted(first)[:MOST_USERS]}
    charged: dict[tuple[str, ...], float] = defaultdict(float)
    used: dict[tuple[str, ...], float] = defaultdict(float)
    for use in sums.owners:
        labels = (use.owner.user, use.owner.partition, models.get(use.uuid, ""))
        used[labels] += use.used
        for kind in _CHARGED:
            charged[(*labels, kind)] += getattr(use, _FIELDS[kind])
    names = ("user", "partition", "type")
    text = "GPU seconds that jobs were charged, by time class."
    yield _family(
        CounterMetricFamily,
        "fgsched_user_charged_gpu_seconds",
        text,
        (*names, "class"),
        _others_summed(charged, users),
    )
    text = "GPU seconds times SM share."
    yield _family(
        CounterMetricFamily, "fgsched_user_used_gpu_seconds", text, names, _others_summed(used, users)
    )
    jobs: dict[tuple[str, ...], float] = defaultdict(float)
    for job in sums.jobs:
        jobs[job.owner.partition, job.state] += job.jobs
    yield _family(CounterMetricFamily, "fgsched_jobs_ended", "Jobs that ended.", ("partition", "state"), jobs)


def _gpus(sums: AccountTotals) -> Iterator[Any]:
    labels = {gpu.uuid: (str(gpu.gpu), gpu.model) for gpu in sums.gpus}
    classes: dict[tuple[str, ...], float] = defaultdict(float)
    used: dict[tuple[str, ...], float] = defaultdict(float)
    energy: dict[tuple[str, ...], float] = defaultdict(float)
    for total in sums.totals:
        key = labels[total.uuid]
        used[key] += total.used
        if total.energy is not None:
            energy[key] += total.energy
        for kind, field in _FIELDS.items():
            classes[(*key, kind)] += getattr(total, field)
    names = ("gpu", "type")
    text = "Seconds of the GPU in each time class; the six add up to the seconds measured."
    yield _family(CounterMetricFamily, "fgsched_gpu_class_seconds", text, (*names, "class"), classes)
    yield _family(CounterMetricFamily, "fgsched_gpu_used_seconds", "Seconds times SM share.", names, used)
    yield _family(
        CounterMetricFamily, "fgsched_gpu_energy_joules", "Energy that the GPU took.", names, energy
    )
