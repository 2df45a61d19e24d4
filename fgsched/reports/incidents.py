"""The reports on failures, on health, and on processes outside of jobs."""

from collections import Counter, defaultdict

from fgsched.accounting.ledger import HOUR
from fgsched.reports import frame, numbers
from fgsched.reports.facts import CardTotals, Facts, FailedJob, FailuresOfName
from fgsched.reports.failures import KINDS, host_limits, kind_of, kinds, limits
from fgsched.reports.hardware import byte_hours, events, is_quiet, processes
from fgsched.reports.model import (
    Cell,
    Column,
    Given,
    Headline,
    Number,
    Paragraphs,
    Part,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.timeclasses import down_times
from fgsched.reports.wording import dash, event, job_cells, model_name, named, sentence

_SHORT = {  # heads of the table by user
    "GPU out of memory": "GPU mem.",
    "host out of memory": "Host mem.",
    "host or GPU fault": "Fault",
}
_BY_USER = KINDS[:5]


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
            Section("host", "Host memory", "", (host_limits(facts.host_refusals(wish.number), ""),)),
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
    rows = tuple(_repeated_row(one) for one in facts.failures_by_name(most))
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
            rows.append((Words("") if at else Number(job.id, "", str(job.id)), Given(line)))
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
    down = sum(one.down for one in facts.totals)
    kinds_of_events = Counter(one.kind for one in facts.health)
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
    cards = [card for card in facts.cards if down_times(facts, card)]
    if not cards and not facts.health:
        return (f"The driver changed to {facts.drivers[-1][1]}; no GPU had an event.",)
    if not cards:
        return (f"{numbers.counted(len(facts.health), 'event')}; no GPU was down.",)
    names, verb = named([card.gpu for card in cards]), "was" if len(cards) == 1 else "were"
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
    totals = {one.card: one for one in facts.totals}
    columns = (
        Column("gpu", "Card"),
        Column("model", "Model"),
        Column("down", "Down h", right=True, unit="hours"),
        Column("throttled", "Throttled h", right=True, unit="hours"),
        Column("temperature", "Hottest", right=True, unit="°C"),
        Column("energy", "Energy", right=True, unit="kWh"),
        Column("events", "Events", right=True, unit="events"),
    )
    counts = Counter(one.card for one in facts.health)
    rows = tuple(
        (
            Number(card.gpu, "", f"GPU {card.gpu}"),
            Words(model_name(card.model)),
            *_measured(totals.get(card.uuid)),
            numbers.count(counts[card.uuid], "events"),
        )
        for card in facts.cards
    )
    return Table("gpus", columns, rows, empty="No GPU was seen.")


def _measured(found: CardTotals | None) -> tuple[Cell, ...]:
    if found is None:
        return dash(), dash(), dash(), dash()
    hours = [
        Number(value / HOUR, "hours", numbers.grouped(value / HOUR, 1))
        for value in (found.down, found.throttled)
    ]
    hot = numbers.unknown("°C")
    if found.temperature is not None:
        hot = Number(found.temperature, "°C", f"{found.temperature} °C")
    energy = numbers.unknown("kWh")
    if found.energy is not None:
        energy = Number(found.energy / 3.6e6, "kWh", f"{numbers.grouped(found.energy / 3.6e6, 1)} kWh")
    return (*hours, hot, energy)


# -- processes outside of jobs -------------------------------------------------------------------------


def strangers(facts: Facts, wish: Wish) -> Report:
    """Return the report on GPU processes that belong to no job."""
    users = {one.user for one in facts.foreign}
    longest = sum(one.seconds for one in facts.foreign)
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
    cards = len({one.card for one in facts.foreign})
    return (
        f"{numbers.counted(users, 'user')} ran processes outside fgsched"
        f" on {numbers.counted(cards, 'card')}.",
    )
