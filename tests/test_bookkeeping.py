"""The controller's end of the accountant: samples arrive once, nothing blocks, what is lost is a gap."""

import os
import select
import signal

import pytest
from msgspec.structs import replace

from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.messages import AccountantProcess, Archive, Keep, encoded
from fgsched.accounting.records import Gap, GpuRecord, JobSample, Warned
from fgsched.controller.bookkeeping import LOST, Bookkeeper, HeldSamples
from fgsched.domain.errors import Exit, Refused
from fgsched.domain.times import HOUR, MINUTE
from test_accountant import minute, sums
from test_ledger import CARD, JOB, USAGE

PATIENCE = 30_000  # milliseconds
KEEP = Keep(minutes=-1, hours=-1, days=-1)


class NoJobs:
    """No job moves."""

    def due(self, now):
        return None

    def next_jobs(self, now, wall):
        return ()

    def stored(self, jobs, refused):
        assert not jobs

    def back(self):
        pass


class Accounting:
    """A Bookkeeper with a real accountant, and the part of the event loop that it needs."""

    def __init__(self, path):
        self.path, self.now = path, 1000.0
        self.process = AccountantProcess(path, KEEP)
        self.process.start()
        self.bookkeeper = Bookkeeper(self.process, NoJobs(), lambda: self.now)
        self.poll = select.poll()
        self.poll.register(self.bookkeeper.fileno(), select.POLLIN)
        self.ended = {}
        self.bookkeeper.begin(self.watch)

    def watch(self, pidfd, ended):
        self.ended[pidfd] = ended
        self.poll.register(pidfd, select.POLLIN)

    def wait(self):
        """Handle the next events."""
        ready = self.poll.poll(PATIENCE)
        assert ready, "nothing happens"
        for fd, _ in ready:
            if fd in self.ended:
                self.poll.unregister(fd)
                self.ended.pop(fd)()
            else:
                self.bookkeeper.receive()

    def settle(self):
        """Send and receive until nothing waits."""
        while self.bookkeeper.waiting or self.bookkeeper._under_way is not None:
            self.now += self.bookkeeper.due() or 0.0
            self.bookkeeper.look(self.now)
            self.wait()

    def close(self):
        self.process.close()
        for pidfd in self.ended:
            os.close(pidfd)


@pytest.fixture
def accounting(tmp_path):
    one = Accounting(tmp_path / "accounts.db")
    yield one
    one.close()


def gaps(path):
    reader = LedgerReader(path)
    found = reader.gaps(0, 1e10)
    reader.close()
    return found


def test_samples_arrive_in_the_accounts(accounting):
    accounting.bookkeeper.send(CARD, minute(0), minute(60))
    accounting.bookkeeper.send(Gap(since=120.0, until=180.0, why="driver did not answer"))
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0), (60, 60.0)]
    assert sums(accounting.path, HOUR) == [(0, 120.0)]
    assert gaps(accounting.path) == [Gap(since=120.0, until=180.0, why="driver did not answer")]
    assert (
        accounting.bookkeeper.trouble,
        accounting.bookkeeper.file_size > 0,
        accounting.bookkeeper.due(),
    ) == ("", True, None)


def test_one_message_is_under_way_at_a_time(accounting):
    accounting.bookkeeper.send(CARD, minute(0))
    accounting.bookkeeper.look(0.0)
    accounting.bookkeeper.send(minute(60))
    assert accounting.bookkeeper.due() is None, "the answer is an event"
    accounting.bookkeeper.look(0.0)
    assert accounting.bookkeeper.waiting == 1
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0), (60, 60.0)]


def test_samples_are_gathered_for_a_second(accounting):
    accounting.bookkeeper.send(CARD, minute(0))
    assert accounting.bookkeeper.due() == 0
    accounting.bookkeeper.look(0.0)
    accounting.wait()
    accounting.bookkeeper.send(minute(60))
    assert accounting.bookkeeper.due() == 1.0
    accounting.bookkeeper.look(0.0)
    assert accounting.bookkeeper.waiting == 1
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0), (60, 60.0)]


def test_what_a_killed_accountant_did_not_acknowledge_is_sent_to_the_next(accounting):
    accounting.bookkeeper.send(CARD, minute(0))
    os.kill(accounting.process.pid, signal.SIGSTOP)
    accounting.bookkeeper.look(0.0)
    os.kill(accounting.process.pid, signal.SIGKILL)
    accounting.wait()
    assert accounting.bookkeeper.trouble == "the accountant has ended"
    assert accounting.bookkeeper.due() > 0, "another one is started after a pause"
    accounting.bookkeeper.look(0.0)
    assert accounting.process.pid == 0
    accounting.now += 2
    accounting.bookkeeper.look(0.0)
    assert accounting.process.pid
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0)]
    assert accounting.bookkeeper.trouble == ""


def test_a_restarted_accountant_does_not_read_half_a_message(accounting):
    os.kill(accounting.process.pid, signal.SIGSTOP)
    accounting.bookkeeper.send(CARD, *(minute(60 * one, memory=0.1 * one) for one in range(500)))
    accounting.bookkeeper.look(0.0)
    os.kill(accounting.process.pid, signal.SIGKILL)
    accounting.wait()
    accounting.now += 2
    accounting.bookkeeper.look(0.0)
    accounting.settle()
    assert len(sums(accounting.path, MINUTE)) == 500


def test_samples_that_cannot_be_stored_for_long_become_a_gap(accounting):
    accounting.bookkeeper._held = HeldSamples(1000)
    os.kill(accounting.process.pid, signal.SIGSTOP)
    accounting.bookkeeper.send(CARD)
    accounting.bookkeeper.look(0.0)
    accounting.bookkeeper.send(*(minute(60 * one) for one in range(100)))
    os.kill(accounting.process.pid, signal.SIGCONT)
    accounting.wait()
    accounting.settle()
    kept = [at for at, _ in sums(accounting.path, MINUTE)]
    assert 0 < len(kept) < 10
    assert kept[-1] == 99 * 60
    assert gaps(accounting.path) == [Gap(since=0.0, until=float(kept[0]), why=LOST)]


def sample(job, peak=0):
    return JobSample(job=job, usage=replace(USAGE, peak=peak))


def warned(job):
    return Warned(at=1.0, job=job, policy="idle", finding="no process", action="notify")


def kinds(held):
    return [one.kind.__name__ for one in held.all()]


def test_of_a_card_and_a_job_only_the_last_sample_is_held():
    held = HeldSamples(1 << 20)
    for peak in range(100):
        held.add(CARD)
        held.add(sample(7, peak))
    assert kinds(held) == ["GpuRecord", "JobSample"]
    taken = held.take(1 << 20)
    held.add(sample(7, peak=1000))
    held.back(taken)
    assert kinds(held) == ["GpuRecord", "JobSample"]
    assert b'"peak":1000' in bytes(list(held.all())[1].data), "the newer one stays"


def test_samples_that_are_about_no_time_are_bounded_too(caplog):
    held = HeldSamples(2000)
    held.add(CARD)
    for job in range(1000):
        held.add(sample(job))
        held.add(warned(job))
    assert sum(one.size for one in held.all() if one.kind is not GpuRecord) <= 2000
    assert kinds(held)[0] == "GpuRecord", "minutes need it"
    assert kinds(held)[1:] == ["JobSample"] * (len(held) - 1), "events are dropped before samples of jobs"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_dropped_minutes_are_one_gap_that_comes_first():
    held = HeldSamples(1000)
    for at in range(100):
        held.add(minute(60 * at))
    first, *minutes = held.take(1 << 20)
    kept = int(minutes[0].since)
    assert bytes(first.data) == bytes(encoded(Gap(since=0.0, until=float(kept), why=LOST)))
    assert [one.since for one in minutes] == [60.0 * at for at in range(kept // 60, 100)]
    assert len(held) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(Refused("no", "why"), Exit.REFUSED), (OSError(28, "No space left on device"), Exit.INTERNAL)],
)
def test_an_order_that_cannot_begin_is_answered(accounting, error, code):
    answers = []

    def begin():
        raise error

    accounting.bookkeeper.order(Archive(number=0, before=0, file="/nowhere"), begin, answers.append)
    accounting.bookkeeper.look(0.0)
    assert [answer.exit for answer in answers] == [code]
    accounting.bookkeeper.send(CARD, minute(0))
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0)]


def test_while_the_accounts_cannot_be_written_nothing_is_lost_and_the_pauses_grow(accounting, caplog):
    accounting.path.write_bytes(b"no database" * 1000)
    accounting.bookkeeper.send(CARD, minute(0))
    pauses = []
    for _ in range(3):
        accounting.bookkeeper.look(0.0)
        accounting.wait()
        pauses.append(accounting.bookkeeper.due())
        accounting.now += accounting.bookkeeper.due()
    assert pauses == [1.0, 2.0, 4.0]
    assert "not a database" in accounting.bookkeeper.trouble
    assert len(caplog.records) == 1, "it is told once"
    accounting.path.unlink()
    accounting.settle()
    assert sums(accounting.path, MINUTE) == [(0, 60.0)]
    assert [record.message for record in caplog.records[1:]] == ["the accounts can be written again"]


class OneJob(NoJobs):
    """One job moves, and is offered until the accounts have it."""

    def __init__(self):
        self.returns, self.kept = 0, []

    def due(self, now):
        return None if self.kept else 0.0

    def next_jobs(self, now, wall):
        return () if self.kept else (JOB,)

    def stored(self, jobs, refused):
        self.kept += jobs

    def back(self):
        self.returns += 1


def test_a_job_that_cannot_be_written_is_given_back_and_comes_again(accounting):
    accounting.bookkeeper._jobs = jobs = OneJob()
    accounting.path.write_bytes(b"no database" * 1000)
    accounting.bookkeeper.look(accounting.now)
    accounting.wait()
    assert (jobs.returns, jobs.kept) == (1, [])
    accounting.path.unlink()
    accounting.now += accounting.bookkeeper.due()
    accounting.bookkeeper.look(accounting.now)
    accounting.settle()
    assert (jobs.returns, jobs.kept) == (1, [JOB.id])


def test_at_the_end_what_waits_is_stored(accounting):
    accounting.bookkeeper.send(CARD, minute(0))
    accounting.bookkeeper.finish()
    accounting.process.close()
    assert sums(accounting.path, MINUTE) == [(0, 60.0)]


def test_a_message_that_the_accountant_cannot_read_is_reported_and_not_awaited_forever(tmp_path):
    accounting = Accounting(tmp_path / "accounts.db")
    accounting.bookkeeper.send(CARD)
    accounting.process._unsent += b"no JSON "
    accounting.bookkeeper.look(accounting.now)
    accounting.wait()
    accounting.close()
    assert "cannot be read" in accounting.bookkeeper.trouble
    assert accounting.bookkeeper.waiting == 1
