"""Which process of a job launches in a turn of the job: the decisions, without a GPU or a clock."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fgshim import region

MS = 1_000_000
START = 1_000 * MS
ANY, NONE = region.LAUNCHER_ANY, region.LAUNCHER_NONE


class Processes:
    """Processes of a job that always have work; the queues of those at `stuck` never empty."""

    def __init__(self, count, *, stuck=()):
        self.launcher, self.now, self.stuck = region.Launcher(), START, stuck
        self.wants, self.until = [START] * count, [0] * count
        self.launched = [0] * count

    def step(self):
        seats = list(zip(self.wants, self.until, strict=True))
        wake = self.launcher.step(seats, self.now)
        self.now = min(wake or self.now + MS // 4, self.now + MS // 4)
        for seat in range(len(self.wants)):
            if self.launcher.launcher not in (ANY, seat + 1):
                self.wants[seat] = self.now
            elif self.until[seat] <= self.now:
                self.wants[seat], self.until[seat] = 0, self.now + MS
                self.launched[seat] += 1
            if seat in self.stuck and self.launched[seat]:
                self.until[seat] = self.now + MS


def test_processes_that_always_have_work_launch_one_after_another():
    job = Processes(3)
    for _ in range(4000):
        job.step()
        working = [until for until in job.until if until > job.now]
        assert len(working) <= 1
    assert max(job.launched) <= 1.1 * min(job.launched)


def test_a_single_process_launches_without_a_wait():
    job = Processes(2)
    job.wants[1] = 0
    job.launcher.step([(START, 0), (0, 0)], START)
    assert job.launcher.launcher == ANY


def test_without_other_jobs_all_processes_launch():
    launcher = region.Launcher()
    launcher.step([(START, 0), (START, 0)], START)
    assert launcher.launcher == 1
    launcher.step([(START, 0), (START, 0)], START + 1, is_on=False)
    assert launcher.launcher == ANY


def test_a_launcher_without_work_lets_the_next_one_launch():
    launcher = region.Launcher()
    launcher.step([(START, 0), (START, 0)], START)
    wake = launcher.step([(0, START + MS), (START, 0)], START)
    assert wake <= START + MS + MS // 5
    launcher.step([(0, START + MS), (START, 0)], wake)
    assert launcher.launcher in (ANY, 2)


def test_a_queue_that_does_not_become_empty_holds_the_other_processes_for_a_bounded_time():
    """Its kernel may wait for one of theirs. All of them launch for a time then, longer each time."""
    job, held = Processes(2, stuck=[0]), 0
    while job.now < START + 10_000 * MS:
        before = job.now
        job.step()
        held += (job.now - before) * (job.launcher.launcher not in (ANY, 2))
    assert held <= 5 * (region.SUBTURN + region.LONGEST_SUBCLOSE + MS)


words = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 10**9), st.lists(st.tuples(words, words), min_size=1, max_size=8), st.booleans()
        )
    )
)
def test_whatever_processes_say_the_launcher_is_one_of_them_and_time_goes_on(steps):
    launcher, now = region.Launcher(), START
    for passed, seats, is_on in steps:
        now += passed
        wake = launcher.step([*seats, *[(0, 0)] * (8 - len(seats))], now, is_on)
        assert wake is None or wake > now
        assert launcher.launcher in (ANY, NONE, *range(1, 9))
