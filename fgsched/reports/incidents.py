"""The reports on failures, on health, and on processes outside of jobs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from fgsched.accounting.records import HealthEvent
from fgsched.domain.times import HOUR
from fgsched.domain.units import GIB
from fgsched.reports import frame, numbers
from fgsched.reports.facts import (
    Facts,
    FailedJob,
    FailuresOfName,
    ForeignRun,
    GpuTotals,
    JobTotals,
    MemoryRefusal,
)
from fgsched.reports.model import (
    Bar,
    Cell,
    Column,
    Given,
    Headline,
    Line,
    Number,
    Paragraphs,
    Part,
    Phrase,
    Piece,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.utilization import DownTime, down_times, explained
from fgsched.reports.wording import (
    XIDS,
    counts,
    dash,
    event,
    job_cell,
    job_cells,
    long_time,
    model_name,
    named,
    sentence,
)

KINDS = (
    "FAILED",
    "TIMEOUT",
    "GPU out of memory",
    "host out of memory",
    "host or GPU fault",
    "cancelled",
    "deadline",
    "preempted",
)
_ALWAYS = 6  # kinds that have a row even without a job
_STATES = {
    "FAILED": "FAILED",
    "TIMEOUT": "TIMEOUT",
    "NODE_FAIL": "host or GPU fault",
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline",
    "PREEMPTED": "preempted",
}
_NO_EVENT = "No Xid event, no uncorrectable ECC error, no drained card."
_NO_FOREIGN = "No process outside fgsched used a GPU."
_THROTTLES = {
    "power": "power cap reached",
    "hardware": "clocks lowered by the hardware",
    "thermal": "clocks lowered by heat",
    "heat": "clocks lowered by heat",
}
_SHORT = {  # heads of the table by user
    "GPU out of memory": "GPU mem.",
    "host out of memory": "Host mem.",
    "host or GPU fault": "Fault",
}
_BY_USER = KINDS[:5]


def kind_of(job: JobTotals) -> str:
    """Return the kind of failure, one of KINDS; "" for success."""
    if job.state == "OUT_OF_MEMORY":
        return "GPU out of memory" if job.oom == "gpu" else "host out of memory"
    return _STATES.get(job.state, "FAILED" if job.has_failed else "")


def failures_section(facts: Facts, most: int = 5) -> Section:
    """Return the section of an overview."""
    if not facts.ended:
        return Section("failures", "Failures", "", (Paragraphs((sentence("No job ended."),)),))
    by_kind = kinds(facts)
    if not any(kind_of(job) for job in facts.jobs):
        text = f"None of {numbers.counted(facts.ended, 'job')} ended in failure."
        return Section("failures", "Failures", "", (Paragraphs((sentence(text),)),))
    say = f"{facts.failed:,} of {numbers.counted(facts.ended, 'job')} ended in failure."
    refusals, killed = facts.refusals(most), facts.host_refusals(most)
    parts = (
        by_kind,
        *([limits(refusals)] if refusals else []),
        *([host_memory_kills(killed)] if killed else []),
    )
    return Section("failures", "Failures", say, parts)


def kinds(facts: Facts) -> Table:
    """Return the table of the kinds of failure."""
    now, users = _by_kind(facts.jobs)
    before, _ = _by_kind(facts.before.jobs)
    largest = max(now[kind] for kind in KINDS)
    is_compared = facts.before.is_known
    columns = (
        Column("kind", "How it ended"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("bar", "Number of jobs", in_text=False, minor=True),
        Column("change", "Change", unit="jobs"),
        Column("users", "Most often"),
    )
    rows = []
    for at, kind in enumerate(KINDS):
        if at >= _ALWAYS and not now[kind] and not before[kind]:
            continue
        bar = Bar((Piece("count", now[kind] / largest),) if now[kind] else ())
        change: Cell = numbers.by_count(now[kind], before[kind], -1) if is_compared else Words("")
        rows.append((Words(kind), numbers.count(now[kind]), bar, change, counts(users[kind].items())))
    heads = columns if is_compared else tuple(column for column in columns if column.key != "change")
    ats = [at for at, column in enumerate(columns) if column in heads]
    return Table("kinds", heads, tuple(tuple(row[at] for at in ats) for row in rows))


def _by_kind(jobs: Iterable[JobTotals]) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Count jobs by kind of failure, and by kind and user."""
    kinds_of_jobs: Counter[str] = Counter()
    users: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        kinds_of_jobs[kind_of(job)] += job.jobs
        users[kind_of(job)][job.owner.user] += job.jobs
    return kinds_of_jobs, users


def limits(refusals: Iterable[MemoryRefusal]) -> Table:
    """Return the table of jobs that reached their GPU memory limit, with a limit that would suffice."""
    columns = (
        Column("job", "Job"),
        Column("user", "User"),
        Column("name", "Name"),
        Column("limit", "Limit", right=True, unit="bytes"),
        Column("refused", "Refused", right=True, unit="bytes"),
        Column("line", "Would fit"),
    )
    rows = tuple(_limit_row(refusal) for refusal in refusals)
    return Table("limits", columns, rows, title="Jobs that met their GPU memory limit")


def host_memory_kills(
    refusals: Iterable[MemoryRefusal], title: str = "Jobs that met their host memory limit"
) -> Table:
    """Return the table of jobs of which the kernel killed a process for host memory."""
    columns = (
        Column("job", "Job"),
        Column("user", "User"),
        Column("name", "Name"),
        Column("asked", "Asked", right=True, unit="bytes"),
        Column("largest", "Largest process", right=True, unit="bytes"),
    )
    rows = tuple(
        (
            *job_cells(refusal),
            numbers.gibibytes(refusal.memory or None),
            numbers.gibibytes(refusal.peak or None),
        )
        for refusal in refusals
    )
    empty = "The kernel killed no process of a job for host memory."
    return Table("host_limits", columns, rows, title=title, empty=empty)


def _limit_row(refusal: MemoryRefusal) -> tuple[Cell, ...]:
    refused = numbers.unknown("bytes")
    if refusal.refused:
        refused = Number(refusal.refused, "bytes", f"+{numbers.gibibytes(refusal.refused).text}")
    needed = max(refusal.memory, refusal.peak + (refusal.refused or refusal.memory // 4))
    fits = -int(-needed * 1.05 // GIB)
    return (
        *job_cells(refusal),
        Number(refusal.memory, "bytes", f"{numbers.plain_gibibytes(refusal.memory)} GiB"),
        refused,
        Line((f"--gpu-mem={fits}G",)),
    )


def health_and_foreign(facts: Facts) -> Section:
    """Return the section of an overview."""
    parts: tuple[Part, ...] = (events(facts), processes(facts, most=10))
    return Section("health", "Health and external use", "", parts)


def events(facts: Facts, title: str = "Events") -> Part:
    """Return the table of the events of the GPUs, or a sentence if there was none."""
    indices = {gpu.uuid: gpu.gpu for gpu in facts.gpus}
    rows: list[tuple[float, int, tuple[Cell, ...]]] = []
    downs = [(gpu, down) for gpu in facts.gpus for down in down_times(facts, gpu)]
    for gpu, down in downs:
        text = _down_text(down, facts.period.until)
        rows.append((down.since, gpu.gpu, (gpu_cell(gpu.gpu), event(down.since), text)))
    causes = {(gpu.uuid, down.since, down.reason.lower().split(" ")[-1]) for gpu, down in downs}
    for health in facts.health:
        if health.kind != "state" and (health.uuid, health.at, health.detail) not in causes:
            index = indices.get(health.uuid)
            text = Phrase((Given(_described(health)),))
            rows.append(
                (health.at, -1 if index is None else index, (gpu_cell(index), event(health.at), text))
            )
    if not rows:
        return Paragraphs((sentence(_NO_EVENT),), key="events")
    columns = (Column("card", "Card"), Column("time", "Time"), Column("event", "Event"))
    ordered = sorted(rows, key=lambda row: (row[0], row[1], str(row[2])))
    return Table("events", columns, tuple(cells for _, _, cells in ordered), title=title)


def _down_text(down: DownTime, end: float) -> Phrase:
    """Return the reason of a time in which a GPU was down, and when it was back; `end`: of the period."""
    why, until = explained(down.reason), long_time(down.until)
    back = "not back" if down.until >= end else f"back {until}" if down.is_back else f"seen until {until}"
    return Phrase((Words("down: " if why else "down"), Given(why), Words(f"; {back}")))


def gpu_cell(gpu: int | None) -> Cell:
    """Return the cell of a GPU index."""
    return Number(None, "", "–") if gpu is None else Number(gpu, "", f"GPU {gpu}")


def _described(health: HealthEvent) -> str:
    if health.kind == "xid":
        number = health.detail.split(" ")[0].removesuffix(":")
        meaning = XIDS.get(number)
        return f"Xid {health.detail}" + (f" ({meaning})" if meaning and " " not in health.detail else "")
    if health.kind == "ecc":
        return f"uncorrectable ECC errors: {health.detail} since the driver was loaded"
    if health.kind == "remap":
        return f"memory rows remapped: {health.detail}"
    if health.kind == "throttle":
        return _THROTTLES.get(health.detail, f"clocks limited: {health.detail}")
    return f"{health.kind}: {health.detail}"


def processes(facts: Facts, most: int = 0, title: str = "Processes outside fgsched") -> Part:
    """Return the table of processes outside of jobs, the longest first, or a sentence."""
    runs = facts.foreign[:most] if most else facts.foreign
    hidden = len(facts.foreign) - len(runs)
    if not runs:
        return Paragraphs((sentence(_NO_FOREIGN),), key="processes")
    columns = (
        Column("user", "User"),
        Column("pid", "PID", right=True, minor=True),
        Column("command", "Command"),
        Column("card", "Card"),
        Column("memory", "Memory", right=True, unit="bytes"),
        Column("since", "From", in_text=not most),
        Column("until", "To", in_text=False),
        Column("time", "Time", right=True, unit="hours"),
    )
    rows = tuple(_process(facts, run) for run in runs)
    caption = (
        f"The longest {len(runs)} of {len(facts.foreign):,}; fgreport strangers lists all." if hidden else ""
    )
    return Table("processes", columns, rows, title=title, caption=caption)


def _process(facts: Facts, run: ForeignRun) -> tuple[Cell, ...]:
    gpus = {gpu.uuid: gpu.gpu for gpu in facts.gpus}
    time = numbers.hours(run.seconds)
    return (
        Given(run.user),
        Number(run.pid, "", str(run.pid)) if run.pid else Words("several"),
        Given(run.command),
        gpu_cell(gpus.get(run.uuid)),
        numbers.gibibytes(run.peak),
        event(run.since),
        event(run.until),
        Number(time.value, "hours", f"{time.text} h"),
    )


def byte_hours(runs: Sequence[ForeignRun]) -> float:
    """Return the memory of processes outside of jobs in GiB-hours."""
    return sum(run.memory for run in runs) / GIB / HOUR


def is_quiet(facts: Facts) -> bool:
    """Tell whether no GPU had an event, and the driver stayed the same."""
    return (
        not facts.health
        and not facts.has_new_driver
        and not any(down_times(facts, gpu) for gpu in facts.gpus)
    )


# -- failures ------------------------------------------------------------------------------------------


def failures(facts: Facts, wish: Wish) -> Report:
    """Return the report on failures."""
    body = frame.Body(
        kind="failures",
        title="Failures",
        lede=_failed_lede(facts),
        figures=(_failed(facts), frame.headline_jobs(facts)),
        sections=(
            Section("kinds", "By kind", "", (_kinds(facts),)),
            Section("users", "By user", "", (_by_user(facts),)),
            Section("repeated", "Repeated failures", "", (_repeated(facts, wish.number),)),
            Section("limits", "GPU memory limits", "", (_limits(facts, wish.number),)),
            Section("host", "Host memory", "", (host_memory_kills(facts.host_refusals(wish.number), ""),)),
            Section("jobs", "Latest failed jobs", "", (_latest(facts, wish),)),
            *_tails(facts, wish),
        ),
        terms=("failed", "whole"),
        main="kinds",
        quiet=not facts.failed,
    )
    return frame.framed(facts, body, wish.now)


def _failed_lede(facts: Facts) -> tuple[str, ...]:
    if not facts.ended:
        return (f"No job ended in this {facts.period.noun}.",)
    if not facts.failed:
        return (f"None of {numbers.counted(facts.ended, 'job')} ended in failure.",)
    counts: Counter[str] = Counter()
    for job in facts.jobs:
        if job.has_failed:
            counts[kind_of(job)] += job.jobs
    kind, number = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return (
        f"{facts.failed:,} of {numbers.counted(facts.ended, 'job')} ended in failure; {number:,} of them:"
        f" {kind}.",
    )


def _failed(facts: Facts) -> Headline:
    change = numbers.by_count(facts.failed, facts.before.failed, -1) if facts.before.is_known else None
    note = f"{numbers.share(facts.failed, facts.ended).text} of {numbers.counted(facts.ended, 'job')}"
    return Headline("failed", "Failed", numbers.count(facts.failed), note, change)


def _kinds(facts: Facts) -> Part:
    return kinds(facts) if facts.ended else Paragraphs((sentence("No job ended."),), key="kinds")


def _by_user(facts: Facts) -> Part:
    users_jobs: dict[str, Counter[str]] = defaultdict(Counter)
    for job in facts.jobs:
        users_jobs[job.owner.user]["jobs"] += job.jobs
        users_jobs[job.owner.user]["failed"] += job.jobs if job.has_failed else 0
        users_jobs[job.owner.user][kind_of(job)] += job.jobs
    users = sorted(users_jobs, key=lambda user: (-users_jobs[user]["failed"], user))
    heads = tuple(
        Column(kind, kind, short=_SHORT.get(kind, ""), right=True, unit="jobs") for kind in _BY_USER
    )
    columns = (
        Column("user", "User"),
        Column("failed", "Failed", right=True, unit="jobs"),
        Column("rate", "Of jobs", right=True, unit="%"),
        *heads,
    )
    rows = tuple(_user_row(user, users_jobs[user]) for user in users if users_jobs[user]["failed"])
    return Table("users", columns, rows, empty="No job failed.")


def _user_row(user: str, jobs: Counter[str]) -> tuple[Cell, ...]:
    return (
        Given(user),
        numbers.count(jobs["failed"]),
        numbers.rate(jobs["failed"], jobs["jobs"]),
        *(numbers.count(jobs[kind]) for kind in _BY_USER),
    )


def _repeated(facts: Facts, most: int) -> Part:
    columns = (
        Column("user", "User"),
        Column("name", "Name"),
        Column("failed", "Failed", right=True, unit="jobs"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("charged", "GPU-hours lost", right=True, unit="GPU-hours"),
    )
    rows = tuple(_repeated_row(failure) for failure in facts.failures_by_name(most))
    return Table("repeated", columns, rows, empty="No name of jobs failed three times.")


def _repeated_row(jobs: FailuresOfName) -> tuple[Cell, ...]:
    return (
        Given(jobs.user),
        Given(jobs.name),
        numbers.count(int(jobs.failed)),
        numbers.count(jobs.jobs),
        numbers.hours(jobs.charged),
    )


def _limits(facts: Facts, most: int) -> Part:
    refusals = facts.refusals(most)
    if not refusals:
        return Paragraphs((sentence("No job met its GPU memory limit."),), key="limits")
    return limits(refusals)


def _latest(facts: Facts, wish: Wish) -> Part:
    columns = (
        Column("job", "Job", right=True),
        Column("user", "User"),
        Column("name", "Name"),
        Column("state", "How it ended"),
        Column("code", "Exit code", short="exit", right=True),
        Column("ended", "Ended"),
        Column("output", "Output", in_text=False, minor=True),
    )
    rows = tuple(_failed_row(job, has_paths=wish.has_paths) for job in facts.failed_jobs(wish.number))
    return Table("jobs", columns, rows, empty="No job failed.")


def _tails(facts: Facts, wish: Wish) -> tuple[Section, ...]:
    """Return the section with the last lines of the jobs above; none if no output can be read."""
    rows: list[tuple[Cell, ...]] = []
    for job in facts.failed_jobs(wish.number):
        for at, line in enumerate(wish.tail(job)):
            rows.append((Words("") if at else job_cell(job), Given(line)))
    if not rows:
        return ()
    columns = (Column("job", "Job", right=True), Column("line", "Last lines of the output"))
    return (Section("output", "Output of these jobs", "", (Table("output", columns, tuple(rows)),)),)


def _failed_row(job: FailedJob, *, has_paths: bool) -> tuple[Cell, ...]:
    kind = f"{job.oom.upper() if job.oom == 'gpu' else job.oom} out of memory" if job.oom else job.state
    return (
        *job_cells(job),
        Words(kind),
        Words(f"{job.exit_code or 0}:{job.signal or 0}"),
        event(job.ended_at),
        Given(job.output) if job.output and has_paths else dash(),
    )


# -- health --------------------------------------------------------------------------------------------


def health(facts: Facts, wish: Wish) -> Report:
    """Return the report on the health of the GPUs."""
    down = sum(total.down for total in facts.totals)
    kinds_of_events = Counter(health_event.kind for health_event in facts.health)
    body = frame.Body(
        kind="health",
        title="Health of the GPUs",
        lede=_health_lede(facts, down),
        figures=(
            frame.headline_down(facts),
            Headline("xid", "Xid events", numbers.count(kinds_of_events["xid"], "events"), "of the driver"),
            Headline("ecc", "ECC events", numbers.count(kinds_of_events["ecc"], "events"), "uncorrectable"),
        ),
        sections=(
            Section("events", "Events", "", (events(facts, title=""),)),
            Section("gpus", "GPUs", "", (_gpu_table(facts),)),
            *_driver(facts),
        ),
        terms=("classes", "measured"),
        main="gpus",
        quiet=is_quiet(facts),
    )
    return frame.framed(facts, body, wish.now)


def _health_lede(facts: Facts, down: float) -> tuple[str, ...]:
    if is_quiet(facts):
        return (f"No GPU had an event in this {facts.period.noun}.",)
    gpus = [gpu for gpu in facts.gpus if down_times(facts, gpu)]
    if not gpus and not facts.health:
        return (f"The driver changed to {facts.drivers[-1][1]}; no GPU had an event.",)
    if not gpus:
        return (f"{numbers.counted(len(facts.health), 'event')}; no GPU was down.",)
    names, verb = named([gpu.gpu for gpu in gpus]), "was" if len(gpus) == 1 else "were"
    hours = numbers.brief_hours(down)
    return (f"{names} {verb} drained, suspect or failed; {hours} GPU-hours were down.",)


def _driver(facts: Facts) -> tuple[Section, ...]:
    """Return the section on the versions of the driver; none if they are not known."""
    if not facts.drivers:
        return ()
    columns = (Column("version", "Version"), Column("since", "First seen"))
    rows = tuple((Words(version), event(at)) for at, version in facts.drivers)
    say = "The version changed in this period." if facts.has_new_driver else ""
    return (Section("driver", "Driver", say, (Table("driver", columns, rows),)),)


def _gpu_table(facts: Facts) -> Part:
    totals = {total.uuid: total for total in facts.totals}
    columns = (
        Column("gpu", "Card"),
        Column("model", "Model"),
        Column("down", "Down h", right=True, unit="hours"),
        Column("throttled", "Throttled h", right=True, unit="hours"),
        Column("temperature", "Hottest", right=True, unit="°C"),
        Column("energy", "Energy", right=True, unit="kWh"),
        Column("events", "Events", right=True, unit="events"),
    )
    counts = Counter(health_event.uuid for health_event in facts.health)
    rows = tuple(
        (
            Number(gpu.gpu, "", f"GPU {gpu.gpu}"),
            Words(model_name(gpu.model)),
            *_measured(totals.get(gpu.uuid)),
            numbers.count(counts[gpu.uuid], "events"),
        )
        for gpu in facts.gpus
    )
    return Table("gpus", columns, rows, empty="No GPU was seen.")


def _measured(totals: GpuTotals | None) -> tuple[Cell, ...]:
    if totals is None:
        return dash(), dash(), dash(), dash()
    hours = [
        Number(value / HOUR, "hours", numbers.grouped(value / HOUR, 1))
        for value in (totals.down, totals.throttled)
    ]
    hot = numbers.unknown("°C")
    if totals.temperature is not None:
        hot = Number(totals.temperature, "°C", f"{totals.temperature} °C")
    energy = numbers.unknown("kWh")
    if totals.energy is not None:
        energy = Number(totals.energy / 3.6e6, "kWh", f"{numbers.grouped(totals.energy / 3.6e6, 1)} kWh")
    return (*hours, hot, energy)


# -- processes outside of jobs -------------------------------------------------------------------------


def strangers(facts: Facts, wish: Wish) -> Report:
    """Return the report on GPU processes that belong to no job."""
    users = {foreign_run.user for foreign_run in facts.foreign}
    longest = sum(foreign_run.seconds for foreign_run in facts.foreign)
    held = byte_hours(facts.foreign)
    body = frame.Body(
        kind="strangers",
        title="Processes outside fgsched",
        lede=_foreign_lede(facts, len(users)),
        figures=(
            Headline("users", "Users", numbers.count(len(users), "users"), "with such processes"),
            Headline(
                "hours",
                "Time",
                Number(longest / HOUR, "hours", f"{numbers.grouped(longest / HOUR, 1)} h"),
                "summed over processes and cards",
            ),
            Headline(
                "memory",
                "Memory held",
                Number(held, "GiB-hours", f"{numbers.grouped(held, 0)} GiB-h"),
                "memory × time",
            ),
        ),
        sections=(Section("processes", "Processes", "", (processes(facts, title=""),)),),
        terms=("foreign",),
        main="processes",
        quiet=not facts.foreign,
    )
    return frame.framed(facts, body, wish.now)


def _foreign_lede(facts: Facts, users: int) -> tuple[str, ...]:
    if not facts.foreign:
        return ("No process outside fgsched used a GPU.",)
    gpus = len({foreign_run.uuid for foreign_run in facts.foreign})
    return (
        f"{numbers.counted(users, 'user')} ran processes outside fgsched on {numbers.counted(gpus, 'card')}.",
    )
