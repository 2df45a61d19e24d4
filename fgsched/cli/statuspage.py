"""Write the present state of the host: as a report, as a page for a wall screen, or as metrics."""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fgsched import protocol
from fgsched.cli.command import write
from fgsched.cli.reporting import refuse_private
from fgsched.client import Client, find_paths
from fgsched.config.load import load
from fgsched.domain.errors import BadUsage, StorageError, Unreachable
from fgsched.domain.text import word_list
from fgsched.domain.units import format_share
from fgsched.domain.waiting import ExpectedStart
from fgsched.gpus import vendors
from fgsched.protocol import GpuInfo, JobInfo
from fgsched.reports import folder
from fgsched.reports import status as present
from fgsched.reports.facts import ReportReader
from fgsched.reports.model import Report, TimeClass
from fgsched.reports.registry import FORMATS, Style, written
from fgsched.reports.status import (
    AccountTotals,
    GpuNow,
    GpuPart,
    PresentClass,
    Status,
    WaitingJob,
    kinds_of,
    sums,
)
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.views.display import host_name
from fgsched.views.gpu import (
    is_measured,
    job_counts,
    job_memory,
    outside_memory,
    parts_of,
    sm_share,
    why_down,
)

METRICS = "metrics"  # the format that no other report has
METRICS_FILE = "fgsched.prom"  # the suffix that node_exporter reads
# options that other reports have
_OTHERS = word_list("since until yesterday week month keep to subject user")
_FIELDS = (*present.ATTRIBUTES, "partition")  # attributes of JobInfo
_MOST_NEXT = 10  # pending jobs with an expected start
_SECONDS = 10.0  # until a controller that does not answer is given up
_ACTIVE = 1  # per cent: the SM share above which a GPU computes
Kinds = Mapping[tuple[int, str], TimeClass]


class Answers(NamedTuple):
    """What the controller says."""

    gpus: Sequence[GpuInfo] = ()
    jobs: Sequence[JobInfo] = ()
    starts: Mapping[int, ExpectedStart] = {}  # by job
    trouble: str = ""  # why it did not answer


def status(options: Mapping[str, Any]) -> None:
    """Write the present state in the formats asked for.

    If the controller does not answer, files say so, because a page cannot know its own age. Metrics alone say
    it without an error.

    Raises:
        BadUsage: an option belongs to other reports, or a format does not exist.
        Unreachable: the controller does not answer.
        StorageError: the files cannot be written.
        NotPermitted: metrics name other users, and this host keeps them private.
    """
    formats, style = _formats(options), Style(ascii=options["as_ascii"], section=options["section"])
    now = time.time()
    answers = _ask()
    if answers.trouble and not options["output"] and formats != [METRICS]:
        raise Unreachable(answers.trouble, "Start it with: fgsched start")
    report = _report(answers, now)
    if options["only_if"] and report.quiet and not answers.trouble:
        return
    with _Accounts(options["file"]) as accounts:
        state = state_of(answers, accounts.kinds(now), now, host_name())
        totals = accounts.sums() if METRICS in formats else None
    texts = {
        name: _text(name, report, style, state, totals)
        for name in formats
        if name != "csv" or not answers.trouble
    }
    _deliver(report, texts, options["output"])
    if answers.trouble and formats != [METRICS]:
        raise Unreachable(answers.trouble, "Start it with: fgsched start")


def _formats(options: Mapping[str, Any]) -> list[str]:
    refused = [name for name in _OTHERS if options[name]]
    if refused:
        option = refused[0].replace("_", "-")
        raise BadUsage(f"the report status has no --{option}", "It shows the present state.")
    names = [name.strip() for name in options["formats"].split(",") if name.strip()] or ["text"]
    for name in names:
        if name not in FORMATS and name != METRICS:
            formats = ", ".join((*FORMATS, METRICS))
            raise BadUsage(f"there is no format '{name[:40]}'", f"Formats: {formats}.")
    if len(names) > 1 and not options["output"]:
        raise BadUsage("several formats need --output", "Choose one format, or a folder with --output.")
    return list(dict.fromkeys(names))


def _ask() -> Answers:
    """Ask the controller; it is not started for that."""
    try:
        with Client(find_paths(), may_start=False, is_prompt=True) as client:
            gpus = client.call(protocol.ListGpus(), patience=_SECONDS).gpus
            jobs = client.call(protocol.ListQueue(fields=_FIELDS), patience=_SECONDS).jobs
            starts = dict(client.call(protocol.ListStarts(), patience=_SECONDS).starts)
    except Unreachable as error:
        return Answers(trouble=error.cause)
    return Answers(gpus, jobs, starts)


def _report(answers: Answers, now: float) -> Report:
    if answers.trouble:
        return present.unreachable(answers.trouble, host_name(), now)
    return present.status(answers.gpus, answers.jobs, answers.starts, host_name(), now)


def _text(format: str, report: Report, style: Style, state: Status, totals: AccountTotals | None) -> str:
    if format == METRICS:
        from fgsched.reports.metrics import as_metrics  # each needs a package of its own

        return as_metrics(state, totals)
    if format == "html":
        from fgsched.reports.status import wall_page

        return wall_page(state)
    return written(report, format, style)


def _deliver(report: Report, texts: dict[str, str], output: str) -> None:
    if not output:
        for text in texts.values():
            write(text)
        return
    place = Path(output)
    if METRICS in texts:
        folder.replaced(place / METRICS_FILE, texts.pop(METRICS))
    if texts:
        with folder.locked(place):
            folder.add(place, report, {FORMATS[name].suffix: text for name, text in texts.items()})


class _Accounts:
    """The accounts, if there are any that this user may read."""

    def __init__(self, setting: str) -> None:
        """Open them. Raises StorageError if a file is named that cannot be read."""
        path = Path(setting) if setting else find_paths().accounts
        if setting and not os.access(path, os.R_OK):
            raise StorageError(f"cannot read the accounts {setting}", "Name another file with --file.")
        self._reader = ReportReader(path) if os.access(path, os.R_OK) else None

    def __enter__(self) -> "_Accounts":
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def kinds(self, now: float) -> Kinds:
        return kinds_of(self._reader, now) if self._reader is not None else {}

    def sums(self) -> AccountTotals | None:
        """Return the sums. Raises NotPermitted if the site keeps users private."""
        if self._reader is None:
            return None
        if Path(self._reader.path).stat().st_uid != os.geteuid() != 0:
            refuse_private("status", "", choices.me(), load(find_paths()))
        with self._reader.reading():
            return sums(self._reader)


def state_of(answers: Answers, kinds: Kinds, now: float, host: str) -> Status:
    """Return the answers as the state at `now`, in epoch seconds; `kinds`: what jobs do on each GPU."""
    if answers.trouble:
        return Status(at=now, host=host, trouble=answers.trouble)
    jobs = answers.jobs
    starts = answers.starts
    following = present.next_jobs(jobs, starts)
    counts = Counter(f"{job.state.word}/{job.partition.split(',')[0]}" for job in jobs)
    running, waiting = job_counts(jobs)
    return Status(
        at=now,
        host=host,
        gpus=tuple(_gpu(info, jobs, kinds) for info in answers.gpus),
        jobs=dict(counts),
        running=running,
        waiting=waiting,
        startable_jobs=len(following),
        next=tuple(_waiting(job, starts.get(job.id, ExpectedStart())) for job in following[:_MOST_NEXT]),
    )


def _waiting(job: JobInfo, start: ExpectedStart) -> WaitingJob:
    return WaitingJob(user=job.user, asked=_asked(job), start=start.at, is_earliest=start.latest is None)


def _asked(job: JobInfo) -> str:
    return "no GPU" if not job.gpus else f"{format_share(job.share or 0)} GPU"


def _gpu(info: GpuInfo, jobs: Sequence[JobInfo], kinds: Kinds) -> GpuNow:
    gpu, seen = info.gpu, info.seen
    parts, sm = parts_of(info, jobs), sm_share(info, jobs)
    word, why = why_down(info)
    shares = [
        GpuPart(
            job=job.id,
            user=job.user,
            name=job.name,
            share=part,
            kind=kinds.get((job.id, gpu.uuid)) or _class_from_last_look(info),
            time_left=view.time_left(job),
        )
        for job, part in parts.jobs
    ]
    return GpuNow(
        gpu=gpu.index,
        uuid=gpu.uuid,
        model=vendors.short_model(gpu.model),
        total=gpu.total,
        shares=tuple(shares),
        hidden=parts.hidden,
        hidden_kind=_class_from_last_look(info),
        down=why or word,
        used=job_memory(info),
        external=outside_memory(info),
        sm=None if sm is None else round(100 * sm),
        temperature=seen.temperature if seen else None,
        power=None if seen is None or seen.power is None else seen.power / 1000,
    )


def _class_from_last_look(info: GpuInfo) -> PresentClass:
    """Return what the jobs of a GPU do, from the last look at the GPU, if they have no samples yet."""
    if info.seen is None or not is_measured(info):
        return "unknown"
    if not job_memory(info):
        return "reserved-empty"
    return "active" if (info.seen.utilisation or 0) > _ACTIVE else "held-idle"
