"""The accounts: what is written is read back, once, and summed to hours and days."""

import os

import pytest

from endedjobs import an_ended_job, changed
from fgsched.accounting.ledger import Ledger, LedgerReader, UnstorableRecord
from fgsched.accounting.records import (
    ForeignUse,
    Gap,
    GpuRecord,
    GpuUseRecord,
    HealthEvent,
    JobSample,
    Minute,
    Owner,
    OwnerUse,
    WaitingRecord,
    Warned,
)
from fgsched.domain.errors import StorageError
from fgsched.domain.job import JobUsage
from fgsched.domain.times import DAY, HOUR

ANN = Owner(uid=1001, user="ann", account="vision", partition="gpu", tag="paper")
CARD = GpuRecord(uuid="GPU-0", gpu=0, model="A100", total=80 << 30, since=0.0, until=10_000.0)
USAGE = JobUsage(
    sampled=60.0,
    charged=30.0,
    active=20.0,
    held=10.0,
    empty=0.0,
    used=15.0,
    memory=60.0 * 2**30,
    peak=2**30,
    with_process=60.0,
    busy=40.0,
    longest_idle=20.0,
    energy=9000.0,
    neighbours=((8, 30.0),),
)
JOB = an_ended_job(
    id=7,
    owner=ANN,
    name="train \udce4",
    state="COMPLETED",
    reason="None",
    submitted_at=10.0,
    eligible_at=10.0,
    started_at=20.0,
    ended_at=80.0,
    gpus=1,
    share=5000,
    memory=40 << 30,
    model="A100",
    charged=30.0,
    usage=USAGE,
)


def gpu_use(at: int, **more: object) -> GpuUseRecord:
    return GpuUseRecord(
        at=at, uuid="GPU-0", sampled=60.0, active=20.0, held=10.0, free=30.0, peak=at, jobs=1, **more
    )


def owner_use(at: int, job: int = 7) -> OwnerUse:
    return OwnerUse(at=at, owner=ANN, uuid="GPU-0", job=job, charged=30.0, active=20.0, held=10.0, peak=at)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "accounts.db"


@pytest.fixture
def ledger(path):
    ledger = Ledger(path)
    with ledger.write():
        ledger.add_gpus([CARD])
    yield ledger
    ledger.close()


@pytest.fixture
def reader(ledger, path):
    reader = LedgerReader(path)
    yield reader
    reader.close()


def test_a_job_is_read_back_as_it_was_written(ledger, reader):
    clean = changed(JOB, name="train")
    with ledger.write():
        ledger.add_jobs([clean])
    assert list(reader.jobs(0, 100)) == [clean]


def test_what_a_killed_accountant_left_in_memory_is_made_durable(ledger, path, monkeypatch):
    """Otherwise a job that is found here is removed from the queue, and a power cut loses it."""
    with ledger.write():
        ledger.add_jobs([JOB])
    synced, real = [], os.fsync

    def noted(fd):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    Ledger(path).close()
    assert synced == [f"{path.name}-wal", path.parent.name, path.parent.name]  # its content, then its name


def test_a_job_is_in_the_accounts_once_however_often_it_is_written(ledger, reader):
    later = an_ended_job(
        id=7,
        owner=ANN,
        name="other",
        state="FAILED",
        reason="None",
        submitted_at=10.0,
        eligible_at=0,
        started_at=None,
        ended_at=90,
    )
    with ledger.write():
        ledger.add_jobs([JOB])
        ledger.add_jobs([later])
        with pytest.raises(UnstorableRecord):
            ledger.add_jobs([changed(JOB, submitted_at=11.0)])
    assert [job.row["state"] for job in reader.jobs(0, 100)] == ["COMPLETED"]


def test_the_samples_of_a_job_go_when_its_account_has_them_and_come_back_no_more(ledger, reader):
    with ledger.write():
        ledger.add_samples([JobSample(job=JOB.id, usage=USAGE), JobSample(job=8, usage=USAGE)])
    assert (reader.sample(JOB.id), reader.sample(8)) == (USAGE, USAGE)
    with ledger.write():
        ledger.add_jobs([JOB])
    assert (reader.sample(JOB.id), reader.sample(8)) == (None, USAGE)
    with ledger.write():
        ledger.add_samples([JobSample(job=JOB.id, usage=USAGE)])
    assert reader.sample(JOB.id) is None


def test_minutes_add_up_to_hours_and_these_to_days(ledger, reader):
    with ledger.write():
        for at in (3600, 3660, 7140):
            foreign = ForeignUse(
                **{"at": at, "uuid": "GPU-0", "user": "eve", "command": "python", "pid": 9, "peak": at},
                **{"since": at, "until": at + 60, "seconds": 60.0},
            )
            waits = WaitingRecord(
                at=at, reason="Resources", lacking="share", model="", seconds=60, job_seconds=120, most=2
            )
            ledger.add_minute(
                Minute(
                    at=at,
                    gpus=(gpu_use(at),),
                    owners=(owner_use(at), owner_use(at, 8)),
                    foreign=(foreign,),
                    demand=(waits,),
                )
            )
        ledger.roll(HOUR, 3600, 7200)
        ledger.roll(DAY, 0, 86_400)
    for span, at in ((HOUR, 3600), (DAY, 0)):
        (gpu,) = reader.gpu_uses(span, 0, 86_400)
        assert (gpu.at, gpu.sampled, gpu.active, gpu.held, gpu.free, gpu.peak) == (
            at,
            180,
            60,
            30,
            90,
            7140,
        )
        (owner,) = reader.owner_uses(span, 0, 86_400)
        assert (owner.at, owner.owner, owner.job, owner.charged, owner.peak) == (at, ANN, 0, 180.0, 7140)
        times = [(one.at, one.since, one.until, one.seconds) for one in reader.foreign_uses(span, 0, 86_400)]
        assert times == [(at, 3600, 3720, 120.0), (at, 7140, 7200, 60.0)]
        (demand,) = reader.demands(span, 0, 86_400)
        assert (demand.at, demand.job_seconds, demand.most) == (at, 360.0, 2)


def test_an_hour_that_is_summed_twice_is_not_counted_twice(ledger, reader):
    with ledger.write():
        ledger.add_minute(Minute(at=0, gpus=(gpu_use(0),)))
        ledger.roll(HOUR, 0, 3600)
        ledger.roll(HOUR, 0, 3600)
    assert [use.sampled for use in reader.gpu_uses(HOUR, 0, 3600)] == [60.0]


def test_an_unmeasured_value_stays_unknown_in_every_sum(ledger, reader):
    with ledger.write():
        ledger.add_minute(Minute(at=0, gpus=(gpu_use(0),), owners=(owner_use(0),)))
        ledger.roll(HOUR, 0, 3600)
    (gpu,) = reader.gpu_uses(HOUR, 0, 3600)
    assert (gpu.energy, gpu.temperature) == (None, None)


def test_events_of_health_warnings_and_gaps_are_read_back(ledger, reader):
    event = HealthEvent(at=5.0, uuid="GPU-0", kind="xid", detail="79")
    warned = Warned(at=6.0, job=7, policy="idle", finding="no process", action="warning 1")
    with ledger.write():
        ledger.add_health([event, event])
        ledger.add_warned([warned])
        ledger.add_gap(Gap(since=1.0, until=2.0, why="controller stopped"))
        ledger.add_gap(Gap(since=1.0, until=4.0, why="controller stopped"))
    assert reader.health(0, 10) == [event]
    assert reader.warnings(0, 10) == [warned]
    assert reader.gaps(3, 10) == [Gap(since=1.0, until=4.0, why="controller stopped")]


def test_a_failed_transaction_leaves_nothing_behind(ledger, reader):
    unknown = Minute(at=0, gpus=(GpuUseRecord(at=0, uuid="GPU-9", sampled=60.0),))

    def write():
        with ledger.write():
            ledger.add_jobs([JOB])
            ledger.add_minute(unknown)

    with pytest.raises(StorageError, match="GPU-9"):
        write()
    assert list(reader.jobs(0, 100)) == []
    with ledger.write():
        ledger.add_jobs([JOB])
    assert [job.owner for job in reader.jobs(0, 100)] == [ANN]


def test_accounts_that_are_refused_do_not_stay_open(ledger, path):
    ledger._db.execute("PRAGMA user_version = 9")
    ledger.close()
    before = os.listdir("/proc/self/fd")
    errors = []  # they keep what was made on the way
    for kind in (Ledger, LedgerReader):
        with pytest.raises(StorageError) as error:
            kind(path)
        errors.append(error.value)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_of_another_version_is_refused(ledger, path):
    ledger._db.execute("PRAGMA user_version = 9")
    for opener in (Ledger, LedgerReader):
        with pytest.raises(StorageError, match="version 9"):
            opener(path)
