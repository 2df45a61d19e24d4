"""From looks to a report on a day with a change of the clocks: the time classes are those of the events."""

import json
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

import history
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.messages import Keep, batch_line, encoded
from fgsched.accounting.periods import Choice, chosen
from fgsched.accounting.records import CLASSES, GpuRecord, Owner
from fgsched.accounting.samples import GpuLook, JobLook, Look, ProcessLook, Samples
from fgsched.domain.times import DAY, FOREVER, HOUR
from fgsched.reports import numbers
from fgsched.reports.export import as_json, as_markdown
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.html import as_html
from fgsched.reports.registry import Wish, kind
from fgsched.reports.text import as_text
from inmemory import memory

GIB = 1 << 30
SIZE = 16  # GiB of the GPU
INTERVAL = 600.0  # seconds between two looks; more than three of them are a gap
KEEP = Keep(minutes=FOREVER, hours=FOREVER, days=FOREVER)
CHANGES = [  # zone, day, its hours
    ("Europe/Berlin", "2026-03-29", 23),
    ("Europe/Berlin", "2026-10-25", 25),
    ("America/New_York", "2026-03-08", 23),
    ("America/New_York", "2026-11-01", 25),
]


class Event(Struct, frozen=True):
    """What a GPU did until a look."""

    seconds: int
    share: int = 0  # ten-thousandths that a job is charged; 0: there is no job
    does: str = "empty"  # class of the job
    foreign: int = 0  # GiB of a process outside of jobs
    is_drained: bool = False

    @property
    def is_seen(self) -> bool:
        return self.seconds <= 3 * INTERVAL

    def classes(self) -> Counter[str]:
        """Return the parts of the GPU by class, as docs/accounting.md defines them."""
        rest = 10_000 - self.share
        external = 0 if self.is_drained else min(rest, 10_000 * self.foreign / SIZE)
        found = Counter({"external": external, "down" if self.is_drained else "free": rest - external})
        found[self.does] += self.share
        return found

    def look(self, wall: float) -> Look:
        """Return the look at the end of this event."""
        processes = []
        if self.share and self.does != "empty":
            busy = 5000 if self.does == "active" else 0
            processes.append(ProcessLook(pid=7, memory=GIB, busy=busy, job=1))
        if self.foreign:
            processes.append(ProcessLook(pid=8, memory=self.foreign * GIB, busy=0, job=None, user="eve"))
        gpu = GpuLook(
            uuid="GPU-a",
            size=SIZE * GIB,
            used=sum(one.memory for one in processes),
            foreign=self.foreign * GIB,
            processes=tuple(processes),
            state="drained" if self.is_drained else "ok",
        )
        owner = Owner(uid=1, user="ann")
        job = JobLook(id=1, owner=owner, started_at=wall - 1e6, charged={"GPU-a": self.share})
        return Look(wall=wall, clock=wall, gpus=(gpu,), jobs=(job,) if self.share else ())


EVENTS = st.lists(
    st.builds(
        Event,
        seconds=st.integers(30, 4000),
        share=st.integers(0, 10_000),
        does=st.sampled_from(["active", "held", "empty"]),
        foreign=st.integers(0, SIZE - 1),
        is_drained=st.booleans(),
    ),
    min_size=1,
    max_size=15,
)


def written(path: Path, events: list[Event], begin: int, zone: ZoneInfo) -> None:
    """Write what Samples make of the looks to accounts, as the accountant does."""
    samples, wall = Samples(INTERVAL), float(begin)
    records = [
        GpuRecord(uuid="GPU-a", gpu=0, model="A100", total=SIZE * GIB, since=begin - DAY, until=begin + DAY)
    ]
    records += samples.look(Event(seconds=0).look(wall))
    for event in events:
        wall += event.seconds
        records += samples.look(event.look(wall))
    records += samples.finish()
    accountant = Accountant(path, zone, KEEP)
    answer = accountant.answer(batch_line(1, [(type(one), encoded(one)) for one in records]), wall)
    accountant.close()
    assert (answer.error, answer.refused) == ("", ())


def recomputed(events: list[Event], begin: int, zone: ZoneInfo) -> dict[tuple[date, int], Counter[str]]:
    """Count each second of the events: ten-thousandths of a second by local day and begin of the hour."""
    found: dict[tuple[date, int], Counter[str]] = {}
    at = begin
    for event in events:
        parts = event.classes()
        for second in range(at, at + event.seconds):
            if event.is_seen:
                day = datetime.fromtimestamp(second, zone).date()
                found.setdefault((day, second // HOUR * HOUR), Counter()).update(parts)
        at += event.seconds
    return found


def as_classes(parts: Counter[str]) -> dict[str, float]:
    return {name: parts[name] / 10_000 for name in CLASSES}


def stored(reader: ReportReader, span: int) -> dict[int, dict[str, float]]:
    """Return the classes that the accounts have of each hour or day, in seconds."""
    return {use.at: {one: getattr(use, one) for one in CLASSES} for use in reader.gpu_uses(span, 0, 1e10)}


def close(seconds: dict[str, float]) -> dict[str, float]:
    return {name: pytest.approx(value, rel=1e-6, abs=1e-4) for name, value in seconds.items()}


@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize(("name", "day", "hours"), CHANGES)
@given(events=EVENTS, early=st.integers(-24 * HOUR, 3 * HOUR))
def test_the_classes_of_a_day_are_those_of_each_second_of_its_events(name, day, hours, events, early):
    zone, this = ZoneInfo(name), date.fromisoformat(day)
    midnight = int(datetime.fromisoformat(day).replace(tzinfo=zone).timestamp())
    slow = recomputed(events, midnight - early, zone)
    with TemporaryDirectory(dir=memory()) as folder, history.zone(name):
        path = Path(folder) / "accounts.db"
        written(path, events, midnight - early, zone)
        reader = ReportReader(path)
        of_hours: dict[int, Counter[str]] = {}
        of_days: dict[date, Counter[str]] = {}
        for (local, hour), parts in slow.items():
            of_hours.setdefault(hour, Counter()).update(parts)
            of_days.setdefault(local, Counter()).update(parts)
        assert stored(reader, HOUR) == {hour: close(as_classes(parts)) for hour, parts in of_hours.items()}
        days = {datetime.fromtimestamp(at, zone).date(): one for at, one in stored(reader, DAY).items()}
        assert days == {local: close(as_classes(parts)) for local, parts in of_days.items()}
        until = (this + timedelta(days=1)).isoformat()
        period = chosen(Choice(since=day, until=until), "week", midnight + 10 * DAY)
        facts = Facts(reader, period, host="hopper")
        whole = of_days.get(this, Counter())
        assert (period.hours, period.name) == (hours, day)
        assert dict(zip(CLASSES, facts.classes, strict=True)) == close(as_classes(whole))
        assert facts.sampled == pytest.approx(whole.total() / 10_000, abs=1e-4)
        assert facts.lost == pytest.approx(hours * HOUR - whole.total() / 10_000, abs=1e-4)
        shown = [one.text for one in numbers.shares(facts.classes)]
        if whole.total():
            assert sum(round(10 * float(one.removesuffix(" %"))) for one in shown) == 1000
        reader.close()


@pytest.mark.parametrize(("name", "day", "hours"), CHANGES)
def test_a_closed_day_of_a_change_is_the_same_bytes_in_every_format_whenever_it_is_made(
    tmp_path, name, day, hours
):
    zone = ZoneInfo(name)
    midnight = int(datetime.fromisoformat(day).replace(tzinfo=zone).timestamp())
    events = [Event(seconds=1200, share=5000, does=one) for one in ("active", "held", "empty")] * 15
    with history.zone(name):
        written(tmp_path / "accounts.db", events, midnight - HOUR, zone)
        made = []
        for now in (midnight + 2 * DAY, midnight + 300 * DAY):
            reader = ReportReader(tmp_path / "accounts.db")
            until = (date.fromisoformat(day) + timedelta(days=1)).isoformat()
            facts = Facts(reader, chosen(Choice(since=day, until=until), "week", now), host="hopper")
            reports = [kind(one).make(facts, Wish(now=now)) for one in ("overview", "utilization", "users")]
            made.append([write(one) for one in reports for write in (as_text, as_json, as_markdown, as_html)])
            reader.close()
    assert made[0] == made[1]
    assert json.loads(made[0][1])["period"]["since_iso"].startswith(f"{day}T00:00:00")
