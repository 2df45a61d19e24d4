"""Helper processes: one that is killed has a successor, and no request is lost or answered twice."""

import os
import select
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awaiting import PATIENCE
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.messages import AccountantProcess, Keep
from fgsched.accounting.periods import Choice
from fgsched.controller.bookkeeping import Bookkeeper
from fgsched.controller.mailing import MailerProcess
from fgsched.domain.times import MINUTE
from fgsched.gpus.backend import READING
from fgsched.gpus.nvidia import FACTS
from fgsched.gpus.sampler import Sampler
from fgsched.gpus.selection import Selection
from fgsched.hooks.process import HookRunner, RelayProcess
from fgsched.hooks.programs import NO_HOOKS, HookRun
from fgsched.mail.letters import MailSettings, Message, to_bytes
from fgsched.reports.request import ReporterProcess, ReportRequest
from fgsched.system.helper import Helper
from test_accountant import minute, sums
from test_bookkeeping import NoJobs
from test_capture import program
from test_ledger import CARD

REQUESTS = 12


class Loop:
    """The event loop of a controller: descriptors that it watches, and what is due between them."""

    def __init__(self):
        self.poll, self.heard = select.poll(), {}

    def watch(self, fileobj, heard):
        self.heard[fileobj.fileno()] = heard
        self.poll.register(fileobj, select.POLLIN)

    def watch_once(self, pidfd, ended):
        def heard():
            self.poll.unregister(pidfd)
            del self.heard[pidfd]
            ended()

        self.heard[pidfd] = heard
        self.poll.register(pidfd, select.POLLIN)

    def run(self, is_over, due=lambda: None):
        end = time.monotonic() + PATIENCE
        while not is_over():
            assert time.monotonic() < end
            pause = due()
            for descriptor, _ in self.poll.poll(1000 * min(1.0, 1.0 if pause is None else pause)):
                self.heard[descriptor]()

    def close(self):
        for descriptor, heard in self.heard.items():
            if heard.__name__ == "heard":
                os.close(descriptor)


class Owner:
    """Asks a helper for REQUESTS things, and counts the answers to each."""

    def __init__(self, path, loop):
        self.path, self.loop, self.answers = path, loop, Counter()
        self.build()

    def look(self):
        return None

    def run(self, is_over):
        self.loop.run(is_over, self.look)

    def is_over(self):
        return len(self.answers) == REQUESTS


class Accounts(Owner):
    """Minutes of a card: each is in the accounts once, so that no sum is wrong."""

    def build(self):
        Ledger(self.path / "accounts.db").close()
        self.helper = AccountantProcess(self.path / "accounts.db", Keep(minutes=-1, hours=-1, days=-1))
        self.keeper = Bookkeeper(self.helper, NoJobs(), time.monotonic)
        self.loop.watch(self.keeper, self.keeper.receive)
        self.keeper.begin(self.loop.watch_once)
        self.keeper.send(CARD)

    def ask(self, number):
        self.keeper.send(minute(60 * number))

    def look(self):
        self.keeper.look(time.time())
        return self.keeper.due()

    def is_over(self):
        if not self.keeper.waiting and self.keeper._under_way is None:
            self.answers = Counter(at // 60 for at, sampled in sums(self.path / "accounts.db", MINUTE))
            assert {sampled for _, sampled in sums(self.path / "accounts.db", MINUTE)} <= {60.0}
        return len(self.answers) == REQUESTS


class Mails(Owner):
    """Letters: each leaves the queue once."""

    def build(self):
        way = program(self.path / "sendmail", "cat >/dev/null")
        config = MailSettings(way="sendmail", sendmail=str(way), deadline=PATIENCE)
        self.helper = MailerProcess(self.path / "mail", config)
        self.loop.watch(self.helper, self.helper.receive)
        self.helper.begin(self.loop.watch_once, lambda: None)

    def ask(self, number):
        self.helper.post(str(number), to_bytes(Message(at=time.time(), to=("ann",), subject="s", text="t\n")))

    def look(self):
        self.helper.look(time.monotonic())
        due = self.helper.due(time.monotonic())
        return 0.02 if due is None else due

    def is_over(self):
        self.answers = Counter(int(name) for name in os.listdir(self.path / "mail" / "sent"))
        return len(self.answers) == REQUESTS


class Programs(Owner):
    """Programs of the site: each has one outcome."""

    def build(self):
        self.helper = HookRunner(self.path / "lock", self.loop.watch_once)
        self.loop.watch(self.helper, self.helper.receive)
        self.true = str(program(self.path / "true", "exit 0"))

    def ask(self, number):
        run = HookRun(path=self.true, seconds=PATIENCE, environment={})
        self.helper.request(run, lambda ran: self.answers.update([number]))

    def look(self):
        self.helper.look(time.monotonic())
        return self.helper.due(time.monotonic())


class Reports(Owner):
    """Reports: each request has one answer, which may be that the reporter has ended."""

    def build(self):
        Ledger(self.path / "accounts.db").close()
        self.numbers = {}
        self.helper = ReporterProcess(self.path / "accounts.db", self.loop.watch_once, self.take)
        self.loop.watch(self.helper, self.helper.receive)

    def take(self, made):
        self.answers[self.numbers[made.number]] += 1

    def ask(self, number):
        request = ReportRequest(report="health", choice=Choice(since="2026-11-01", until="2026-11-02"))
        self.numbers[self.helper.ask(request)] = number


class Readings(Owner):
    """Questions about GPUs: they are asked one after another, and again when the supervisor has ended."""

    def build(self):
        self.sampler, self.todo = Sampler(Selection(), PATIENCE, FACTS.source), []
        self.sampler.start()
        self.helper = self.sampler._supervisor
        self.loop.watch(self.sampler, self.read)

    def ask(self, number):
        self.todo.append(number)
        if len(self.todo) == 1:
            self.sampler.ask(READING)

    def read(self):
        for _ in self.sampler.read():
            self.answers[self.todo.pop(0)] += 1
            if self.todo:
                self.sampler.ask(READING)

    def look(self):
        if self.todo and not self.helper.is_running:
            self.sampler.ask(READING)
        return 0.02


OWNERS = [Accounts, Mails, Programs, Reports, Readings]


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("kind", OWNERS)
def test_a_helper_that_is_killed_is_started_again_and_no_request_is_lost_or_answered_twice(
    kind, tmp_path, loop
):
    with ExitStack() as stack:
        owner = kind(tmp_path, loop)
        stack.callback(owner.helper.close)
        for number in range(REQUESTS):
            owner.ask(number)
            if number in (2, 7):
                owner.run(lambda: owner.helper.pid)
                os.kill(owner.helper.pid, signal.SIGKILL)
        owner.run(owner.is_over)
        assert owner.answers == Counter(range(REQUESTS))


def test_a_report_that_ends_its_process_costs_no_report_of_others(tmp_path, loop):
    """One that takes longer than a minute ends it: the reports of others are made by the next one."""
    answers = {}
    accounts = tmp_path / "accounts.db"
    reporter = ReporterProcess(
        accounts, loop.watch_once, lambda report: answers.update({report.number: report.error})
    )
    loop.watch(reporter, reporter.receive)
    choice = Choice(since="2026-11-01", until="2026-11-02")
    with closing(reporter):
        for _ in range(4):
            reporter.ask(ReportRequest(report="health", choice=choice))
            os.kill(reporter.pid, signal.SIGSTOP)
        os.kill(reporter.pid, signal.SIGKILL)
        loop.run(lambda: len(answers) == 4)
    assert answers == {1: "the reporter has ended before it answered", 2: "", 3: "", 4: ""}


def test_a_report_that_is_asked_before_the_end_of_the_process_is_known_is_made_by_the_next(tmp_path, loop):
    accounts, answers = tmp_path / "accounts.db", {}
    reporter = ReporterProcess(
        accounts, loop.watch_once, lambda report: answers.update({report.number: report.error})
    )
    loop.watch(reporter, reporter.receive)
    request = ReportRequest(report="health", choice=Choice(since="2026-11-01", until="2026-11-02"))
    with closing(reporter):
        reporter.ask(request)
        loop.run(lambda: len(answers) == 1)
        ended = os.pidfd_open(reporter.pid)
        os.kill(reporter.pid, signal.SIGKILL)
        assert select.select([ended], [], [], PATIENCE)[0]
        os.close(ended)
        reporter.ask(request)
        loop.run(lambda: len(answers) == 2)
    assert answers == {1: "", 2: ""}


@pytest.mark.parametrize("kind", OWNERS)
def test_a_helper_that_is_stopped_for_a_while_answers_each_request_once(kind, tmp_path, loop):
    with ExitStack() as stack:
        owner = kind(tmp_path, loop)
        stack.callback(owner.helper.close)
        owner.ask(0)
        owner.run(lambda: owner.helper.pid)
        os.kill(owner.helper.pid, signal.SIGSTOP)
        for number in range(1, REQUESTS):
            owner.ask(number)
            owner.look()
        os.kill(owner.helper.pid, signal.SIGCONT)
        owner.run(owner.is_over)
        assert owner.answers == Counter(range(REQUESTS))


def test_a_relay_that_is_killed_is_started_again(loop):
    relay = RelayProcess("user", loop.watch_once)
    relay.configure(NO_HOOKS.__class__(events_command="/bin/true"))
    pids = []

    def look():
        relay.look(time.monotonic())
        if relay._helper.pid and relay._helper.pid not in pids:
            pids.append(relay._helper.pid)
            if len(pids) < 3:
                os.kill(pids[-1], signal.SIGKILL)
        return relay.due(time.monotonic())

    loop.run(lambda: len(pids) == 3, look)
    relay.close()
    assert [pid for pid in pids[:-1] if os.path.exists(f"/proc/{pid}")] == [], "the killed ones are collected"


# -- the mechanism -------------------------------------------------------------------------------------


class Echo(Helper):
    """A helper that answers each line with itself."""

    def __init__(self, **options):
        super().__init__("tests.echoing", **options)

    def answer(self):
        lines = []
        while not lines:
            assert select.select([self], [], [], PATIENCE)[0], "no answer"
            lines = self.lines()
        return lines

    def die(self):
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        assert not self.is_running


@pytest.fixture
def echo():
    echo = Echo(pause=1.0)
    yield echo
    echo.close()


def test_the_pause_doubles_with_each_start_that_brought_no_line(echo):
    pauses, now = [], 0.0
    for _ in range(4):
        echo.launch(now=now)
        echo.die()
        pauses.append(echo.pause_left(now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    echo.launch(now=now)
    echo.send(b"x\n")
    assert echo.answer() == [b"x"]
    echo.die()
    now += 16.0
    echo.launch(now=now)
    assert echo.pause_left(now) == 1.0
    echo.die()
    echo.launch(now=now + 60.0)
    assert echo.pause_left(now + 60.0) == 1.0, "it ran for a minute"


def test_a_stopped_helper_may_be_started_at_once(echo):
    echo.launch(now=0.0)
    echo.stop()
    assert (echo.pid, echo.pause_left(0.0)) == (0, 0.0)
    echo.launch(now=0.0)
    assert echo.pid


def test_a_successor_reads_nothing_that_its_predecessor_left(echo):
    echo.launch(now=0.0)
    os.kill(echo.pid, signal.SIGSTOP)
    for _ in range(40):
        echo.send(b"a" * 9_999 + b"\n")
    assert echo.has_unsent
    echo.die()
    echo.launch(now=0.0)
    assert not echo.has_unsent
    echo.send(b"next\n")
    assert echo.answer() == [b"next"]


def test_half_a_line_of_an_ended_helper_is_discarded_and_its_whole_lines_are_kept(echo):
    echo.launch(now=0.0)
    echo.send(b"whole\nhalf\n")
    while b"ha" not in echo._unread:
        assert select.select([echo], [], [], PATIENCE)[0]
        echo._read()
    echo.die()
    descriptor = echo.fileno()
    assert echo.lines() == [b"whole"]
    echo.launch(now=0.0)
    echo.send(b"next\n")
    assert (echo.answer(), echo.fileno()) == ([b"next"], descriptor)


def test_the_end_of_a_single_helper_closes_its_socket():
    echo = Echo(is_single=True)
    echo.launch(now=0.0)
    echo.send(b"x\n")
    assert echo.answer() == [b"x"]
    echo.die()
    assert select.select([echo], [], [], PATIENCE)[0]
    assert (echo.lines(), echo.is_closed) == ([], True)
    with pytest.raises(BrokenPipeError):
        echo.send(b"y\n")
    echo.close()


def test_a_wanted_end_is_not_reported(loop):
    ends = []
    echo = Echo()
    echo.begin(loop.watch_once, lambda: ends.append("end"))
    echo.launch(now=0.0)
    echo.stop()
    loop.run(lambda: not loop.heard)
    echo.launch(now=0.0)
    os.kill(echo.pid, signal.SIGKILL)
    loop.run(lambda: ends)
    assert ends == ["end"]
    assert not echo.is_running
    echo.close()


def test_a_helper_that_does_not_end_with_its_socket_is_killed_when_the_patience_is_over():
    echo = Echo(patience=0.0)
    echo.launch(now=0.0)
    os.kill(echo.pid, signal.SIGSTOP)
    echo.close()
    assert echo._process.returncode == -signal.SIGKILL


@settings(max_examples=15)
@given(lines=st.lists(st.integers(0, 200_000).map(lambda size: b"x" * size), max_size=5))
def test_lines_of_any_length_arrive_whole_and_in_order(lines):
    echo = Echo()
    echo.launch(now=0.0)
    echo.send(b"".join(line + b"\n" for line in lines))
    answers = []
    while len(answers) < len(lines):
        echo.flush()
        select.select([echo], [], [], 0.02)
        answers += echo.lines()
    assert answers == lines
    echo.close()
