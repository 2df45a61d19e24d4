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


class Books:
    """A Bookkeeper with a real accountant, and the part of the event loop that it needs."""

    def __init__(self, path):
        self.path, self.now = path, 1000.0
        self.process = AccountantProcess(path, KEEP)
        self.process.start()
        self.keeper = Bookkeeper(self.process, NoJobs(), lambda: self.now)
        self.poll = select.poll()
        self.poll.register(self.keeper.fileno(), select.POLLIN)
        self.ended = {}
        self.keeper.begin(self.watch)

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
                self.keeper.receive()

    def settle(self):
        """Send and receive until nothing waits."""
        while self.keeper.waiting or self.keeper._under_way is not None:
            self.now += self.keeper.due() or 0.0
            self.keeper.look(self.now)
            self.wait()

    def close(self):
        self.process.close()
        for pidfd in self.ended:
            os.close(pidfd)


@pytest.fixture
def books(tmp_path):
    one = Books(tmp_path / "accounts.db")
    yield one
    one.close()


def gaps(path):
    reader = LedgerReader(path)
    found = reader.gaps(0, 1e10)
    reader.close()
    return found


def test_samples_arrive_in_the_accounts(books):
    books.keeper.send(CARD, minute(0), minute(60))
    books.keeper.send(Gap(since=120.0, until=180.0, why="driver did not answer"))
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0), (60, 60.0)]
    assert sums(books.path, HOUR) == [(0, 120.0)]
    assert gaps(books.path) == [Gap(since=120.0, until=180.0, why="driver did not answer")]
    assert (books.keeper.trouble, books.keeper.file_size > 0, books.keeper.due()) == ("", True, None)


def test_one_message_is_under_way_at_a_time(books):
    books.keeper.send(CARD, minute(0))
    books.keeper.look(0.0)
    books.keeper.send(minute(60))
    assert books.keeper.due() is None, "the answer is an event"
    books.keeper.look(0.0)
    assert books.keeper.waiting == 1
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0), (60, 60.0)]


def test_samples_are_gathered_for_a_second(books):
    books.keeper.send(CARD, minute(0))
    assert books.keeper.due() == 0
    books.keeper.look(0.0)
    books.wait()
    books.keeper.send(minute(60))
    assert books.keeper.due() == 1.0
    books.keeper.look(0.0)
    assert books.keeper.waiting == 1
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0), (60, 60.0)]


def test_what_a_killed_accountant_did_not_acknowledge_is_sent_to_the_next(books):
    books.keeper.send(CARD, minute(0))
    os.kill(books.process.pid, signal.SIGSTOP)
    books.keeper.look(0.0)
    os.kill(books.process.pid, signal.SIGKILL)
    books.wait()
    assert books.keeper.trouble == "the accountant has ended"
    assert books.keeper.due() > 0, "another one is started after a pause"
    books.keeper.look(0.0)
    assert books.process.pid == 0
    books.now += 2
    books.keeper.look(0.0)
    assert books.process.pid
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0)]
    assert books.keeper.trouble == ""


def test_a_restarted_accountant_does_not_read_half_a_message(books):
    os.kill(books.process.pid, signal.SIGSTOP)
    books.keeper.send(CARD, *(minute(60 * one, memory=0.1 * one) for one in range(500)))
    books.keeper.look(0.0)
    os.kill(books.process.pid, signal.SIGKILL)
    books.wait()
    books.now += 2
    books.keeper.look(0.0)
    books.settle()
    assert len(sums(books.path, MINUTE)) == 500


def test_samples_that_cannot_be_stored_for_long_become_a_gap(books):
    books.keeper._held = HeldSamples(1000)
    os.kill(books.process.pid, signal.SIGSTOP)
    books.keeper.send(CARD)
    books.keeper.look(0.0)
    books.keeper.send(*(minute(60 * one) for one in range(100)))
    os.kill(books.process.pid, signal.SIGCONT)
    books.wait()
    books.settle()
    kept = [at for at, _ in sums(books.path, MINUTE)]
    assert 0 < len(kept) < 10
    assert kept[-1] == 99 * 60
    assert gaps(books.path) == [Gap(since=0.0, until=float(kept[0]), why=LOST)]


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
def test_an_order_that_cannot_begin_is_answered(books, error, code):
    answers = []

    def begin():
        raise error

    books.keeper.order(Archive(number=0, before=0, file="/nowhere"), begin, answers.append)
    books.keeper.look(0.0)
    assert [answer.exit for answer in answers] == [code]
    books.keeper.send(CARD, minute(0))
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0)]


def test_while_the_accounts_cannot_be_written_nothing_is_lost_and_the_pauses_grow(books, caplog):
    books.path.write_bytes(b"no database" * 1000)
    books.keeper.send(CARD, minute(0))
    pauses = []
    for _ in range(3):
        books.keeper.look(0.0)
        books.wait()
        pauses.append(books.keeper.due())
        books.now += books.keeper.due()
    assert pauses == [1.0, 2.0, 4.0]
    assert "not a database" in books.keeper.trouble
    assert len(caplog.records) == 1, "it is told once"
    books.path.unlink()
    books.settle()
    assert sums(books.path, MINUTE) == [(0, 60.0)]
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


def test_a_job_that_cannot_be_written_is_given_back_and_comes_again(books):
    books.keeper._jobs = jobs = OneJob()
    books.path.write_bytes(b"no database" * 1000)
    books.keeper.look(books.now)
    books.wait()
    assert (jobs.returns, jobs.kept) == (1, [])
    books.path.unlink()
    books.now += books.keeper.due()
    books.keeper.look(books.now)
    books.settle()
    assert (jobs.returns, jobs.kept) == (1, [JOB.id])


def test_at_the_end_what_waits_is_stored(books):
    books.keeper.send(CARD, minute(0))
    books.keeper.finish()
    books.process.close()
    assert sums(books.path, MINUTE) == [(0, 60.0)]


def test_a_message_that_the_accountant_cannot_read_is_reported_and_not_awaited_forever(tmp_path):
    books = Books(tmp_path / "accounts.db")
    books.keeper.send(CARD)
    books.process._unsent += b"no JSON "
    books.keeper.look(books.now)
    books.wait()
    books.close()
    assert "cannot be read" in books.keeper.trouble
    assert books.keeper.waiting == 1
