"""fgsched simulate: replay jobs on this host or another one in virtual time."""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from fgsched.cli.command import options_of, write
from fgsched.domain.errors import BadUsage, FgschedError, Refused
from fgsched.domain.text import clean
from fgsched.domain.times import format_runtime
from fgsched.views.display import text_table

if TYPE_CHECKING:  # other commands do not import them
    from fgsched.config.load import Config
    from fgsched.domain.job import Gpu, HostLimits
    from fgsched.simulate import SimHost, Simulated
    from fgsched.simulate.metrics import Metrics, Waits
    from fgsched.simulate.workload import Workload

_PROGRESS_AFTER, _PROGRESS_INTERVAL = 2.0, 0.2  # seconds before progress is shown, and between updates
_UNLIMITED = 1 << 62


@click.command("simulate")
@click.argument("file", required=False, metavar="[FILE]")
@options_of("fgsched simulate")
def simulate(file: str | None, svg: str | None, as_json: bool, **options: Any) -> None:
    """Replay jobs in virtual time and print waiting times."""
    from fgsched.client import find_paths
    from fgsched.config.load import load
    from fgsched.simulate import SimHost
    from fgsched.simulate.metrics import measure
    from fgsched.simulate.workload import counted

    config = load(find_paths())
    gpus = _gpus(options["gpus"], config)
    limits = _limits(config, options)
    workload = _workload(file, options, len(gpus))
    site = SimHost(gpus=gpus, limits=limits, policy=config.policy)
    simulated, refused = _run(workload, site)
    metrics = measure(simulated)
    title = f"{workload.source}, {counted(len(gpus), 'GPU')}, {'spread' if limits.spread else 'pack'}"
    if svg:
        _draw(svg, metrics, title)
    if as_json:
        write(_document(metrics, workload, gpus, limits, refused))
    else:
        write(_shown(metrics, title, workload.left_out, refused))


# -- input ----------------------------------------------------------------------------------------


def _gpus(text: str, config: "Config") -> "tuple[Gpu, ...]":
    """Return the GPUs of the host, the named GPUs, or both."""
    from fgsched.gpus import discover, simulated

    adds, wanted = text.startswith("+"), text.removeprefix("+").removeprefix("sim:")
    gpus = () if text and not adds else _running() or discover(config, os.environ).gpus
    if wanted:
        gpus += tuple(_after(gpu, len(gpus)) for gpu in simulated.parse(f"sim:{wanted}"))
    if not gpus:
        raise Refused("this host has no GPU to simulate", "Give some, for example --gpus=4x80G:H100.")
    return gpus


def _running() -> "tuple[Gpu, ...]":
    """Return the GPUs of the running controller; none if no controller answers."""
    from fgsched import protocol
    from fgsched.client import Client, find_paths

    try:
        with Client(find_paths(), may_start=False) as client:
            return tuple(gpu.gpu for gpu in client.call(protocol.ListGpus()).gpus)
    except FgschedError:
        return ()


def _after(gpu: "Gpu", first: int) -> "Gpu":
    """Return a copy of a GPU with an index after the existing ones."""
    links = tuple((other + first, near) for other, near in gpu.links)
    return structs.replace(gpu, index=gpu.index + first, links=links)


def _limits(config: "Config", options: dict[str, Any]) -> "HostLimits":
    """Return CPUs and memory: those of this host for its own GPUs, otherwise no limit unless given."""
    from fgsched.domain.units import parse_bytes

    limits = config.limits
    if options["gpus"]:
        limits = structs.replace(limits, cpus=_UNLIMITED, host_memory=_UNLIMITED)
    return structs.replace(
        limits,
        cpus=options["cpus"] or limits.cpus,
        host_memory=parse_bytes(options["mem"]) if options["mem"] else limits.host_memory,
        spread=options["policy"] == "spread" if options["policy"] else limits.spread,
    )


def _workload(file: str | None, options: dict[str, Any], gpus: int) -> "Workload":
    from fgsched.simulate.workload import generate, read

    if file is None:
        if options["partition"]:
            raise BadUsage("--partition selects jobs of a FILE, but none is given.", "Give a FILE.")
        return generate(seed=options["seed"], hours=options["hours"], load=options["load"], gpus=gpus)
    try:
        text = _stdin() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BadUsage(f"{file}: this is not text.") from None
    except OSError as error:
        raise BadUsage(f"{file}: cannot be read: {error.strerror}.") from error
    workload = read("standard input" if file == "-" else file, text)
    names = set(filter(None, options["partition"].split(",")))
    tasks = tuple(task for task in workload.tasks if not names or task.partition in names)
    if not tasks:
        raise Refused(f"{file}: it has no job that ran" + (f" in {options['partition']}" if names else ""))
    return structs.replace(workload, tasks=tasks)


def _stdin() -> str:
    return "" if sys.stdin is None else sys.stdin.read()


def _run(workload: "Workload", site: "SimHost") -> "tuple[Simulated, int]":
    from fgsched.simulate import replay
    from fgsched.simulate.workload import known, runnable

    tasks, refused = runnable(known(workload.tasks, site.policy), site.gpus, site.limits)
    if not tasks:
        raise Refused("no job of the workload can run on these GPUs", "Give others with --gpus.")
    progress = _Progress(len(tasks))
    try:
        return replay(tasks, site, progress=progress.update), refused
    finally:
        progress.clear()


class _Progress:
    """The progress of a long run, shown on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _PROGRESS_AFTER
        self._width = 0

    def update(self, done: int) -> None:
        if not self._is_shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_INTERVAL
        text = f"{done} of {self._total} jobs started"
        self._width = len(text)
        click.echo(f"\r{text}", nl=False, err=True)

    def clear(self) -> None:
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)


# -- output ---------------------------------------------------------------------------------------


def _shown(metrics: "Metrics", title: str, left_out: int, refused: int) -> str:
    from fgsched.simulate.workload import counted

    headings = ["GPUS", "JOBS", "WAIT", "P50", "P90", "P99", "LONGEST", "SLOWDOWN"]
    rows = [*metrics.waits, *([metrics.was] if metrics.was else [])]
    text = f"{clean(title)}\n\n" + text_table(headings, [_row(row) for row in rows])
    lines = [
        ("allocated", f"{metrics.allocated:.1%} of the GPUs while jobs came, {metrics.overall:.1%} in all"),
        ("used", f"{metrics.gpu_hours:.1f} GPU-hours in {metrics.hours:.1f} hours"),
    ]
    if metrics.longest and metrics.most:
        lines += [
            ("longest wait", f"job {metrics.longest.job}, {format_runtime(metrics.longest.wait)}"),
            ("most overtaken", f"job {metrics.most.job}, by {metrics.most.by} that came later"),
        ]
    if (cost := metrics.made_room) is not None:
        modes = {"requeued": cost.requeued, "cancelled": cost.cancelled, "suspended": cost.suspended}
        times = ", ".join(f"{count} {mode}" for mode, count in modes.items() if count)
        lost = f"{cost.gpu_hours:.1f} GPU-hours of work lost"
        lines.append(("preempted", f"{counted(cost.jobs, 'job')}: {times}; {lost}"))
    counts = {"never ran": left_out, "cannot run here": refused, "never started": metrics.unstarted}
    excluded = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    lines += [("not counted", excluded)] if excluded else []
    return text + "\n" + "".join(f"{name:<16}{value}\n" for name, value in lines)


def _row(row: "Waits") -> list[str]:
    waits = (row.mean, row.p50, row.p90, row.p99, row.longest)
    return [row.name, str(row.jobs), *map(format_runtime, waits), f"{row.slowdown:.1f}"]


def _document(
    found: "Metrics", workload: "Workload", gpus: "tuple[Gpu, ...]", limits: "HostLimits", refused: int
) -> str:
    metrics = to_builtins(found)
    about = {
        "workload": workload.source,
        "jobs": sum(row.jobs for row in found.waits[-1:]),
        "left_out": workload.left_out,
        "refused": refused,
        "policy": "spread" if limits.spread else "pack",
        "gpus": [{"index": gpu.index, "model": gpu.model, "total": gpu.total} for gpu in gpus],
    }
    return json.dumps(about | metrics) + "\n"


def _draw(path: str, metrics: "Metrics", title: str) -> None:
    from fgsched.simulate.metrics import svg
    from fgsched.system.places import replace_file

    try:
        replace_file(path, svg(metrics, title).encode())
    except OSError as error:
        raise BadUsage(f"{path}: cannot be written: {error.strerror}.") from error
