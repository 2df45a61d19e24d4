"""The decisions about exclusive turns on a GPU, without a GPU, a clock or a process."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fgshim import region

MS = 1_000_000
US = 1_000
START = 1_000 * MS
NONE, HELD, PARKED = region.TURN_NONE, region.TURN_HELD, region.TURN_PARKED


class Gpu:
    """Jobs that always have work, on an arbiter; a kernel of `kernel` ns is queued when the last one ends."""

    def __init__(self, *jobs, kernel=100 * US):
        self.arbiter = region.Arbiter()
        self.now, self.kernel = START, kernel
        self.places = [self.arbiter.join(policy, share) for policy, share in jobs]
        self.wants = dict.fromkeys(self.places, START)
        self.ends = dict.fromkeys(self.places, 0)
        self.had = dict.fromkeys(self.places, 0)

    def run(self, length, *, idle=()):
        """Pass `length` ns; the jobs at the places `idle` want nothing."""
        end, words = self.now + length, []
        while self.now < end:
            for place in self.places:
                is_held = self.arbiter.word(place) == HELD
                if is_held and place not in idle and self.ends[place] <= self.now:
                    self.ends[place] = self.now + self.kernel
                    self.had[place] += self.kernel
                until = self.ends[place] if self.ends[place] > self.now else min(self.ends[place], self.now)
                self.arbiter.view(
                    place, 0 if place in idle or is_held else self.wants[place], until, had=self.had[place]
                )
            wake = self.arbiter.step(self.now)
            words.append([self.arbiter.word(place) for place in self.places])
            self.now = min(
                end, self.now + 20 * US if wake is None else max(self.now + 1, min(wake, self.now + 20 * US))
            )
        return words

    def held(self):
        return [self.arbiter.held(place) for place in self.places]


def parts(gpu, length, **how):
    """What each job had of a time, after a second to settle."""
    gpu.run(1000 * MS, **how)
    before = gpu.held()
    gpu.run(length, **how)
    return [(after - early) / length for after, early in zip(gpu.held(), before, strict=True)]


def test_jobs_that_always_have_work_have_their_shares():
    had = parts(Gpu(("hard", 1000), ("hard", 2500), ("hard", 6500)), 2000 * MS)
    assert [round(part, 2) for part in had] == [0.1, 0.25, 0.65]


def test_what_hard_jobs_were_not_given_stays_idle():
    had = parts(Gpu(("hard", 1000), ("hard", 2500)), 2000 * MS)
    assert [round(part, 2) for part in had] == [0.1, 0.25]


def test_what_nobody_was_given_goes_to_fair_jobs_by_their_shares():
    had = parts(Gpu(("fair", 1000), ("fair", 3000), ("hard", 2000)), 2000 * MS)
    assert [round(part, 2) for part in had] == [0.2, 0.6, 0.2]


def test_a_fair_job_whose_neighbours_are_idle_has_the_gpu():
    assert parts(Gpu(("fair", 1000), ("hard", 9000)), 1000 * MS, idle=[1])[0] >= 0.99


def test_long_kernels_and_short_ones_have_their_shares():
    gpu = Gpu(("hard", 2500), ("hard", 7500))
    gpu.run(1000 * MS)
    gpu.kernel = 40 * MS  # of both: a turn ends with the kernel that it has begun
    had = parts(gpu, 8000 * MS)
    assert abs(had[0] - 0.25) <= 0.02
    assert sum(had) >= 0.99


def test_a_waiting_job_that_used_little_interrupts_after_two_milliseconds():
    gpu = Gpu(("hard", 7500), ("hard", 2500))
    gpu.run(500 * MS, idle=[1])
    while gpu.arbiter.word(0) != HELD:
        gpu.run(20 * US, idle=[1])
    gpu.wants[1] = began = gpu.now
    while gpu.arbiter.word(1) != HELD:
        gpu.run(20 * US)
    assert gpu.now - began <= 2 * MS + gpu.kernel + 100 * US


def test_a_longer_queue_is_allowed_unless_another_job_pauses_after_little_work():
    gpu = Gpu(("hard", 5000), ("hard", 5000))
    gpu.run(3000 * MS)
    assert [gpu.arbiter.may_be_deep(place) for place in gpu.places] == [True, True]
    requests = Gpu(("hard", 5000), ("hard", 5000))
    for _ in range(100):
        requests.run(1 * MS)
        requests.run(19 * MS, idle=[1])
    assert [requests.arbiter.may_be_deep(place) for place in requests.places] == [False, True]


def test_a_holder_without_work_gives_the_turn_up_to_a_job_that_waits():
    arbiter = region.Arbiter()
    first, second = arbiter.join("hard", 5000), arbiter.join("hard", 5000)
    arbiter.view(first, wants=START)
    arbiter.step(START + 20 * MS)
    assert arbiter.word(first) == HELD
    arbiter.view(first, until=START + 21 * MS)
    arbiter.view(second, wants=START + 20 * MS)
    wake = arbiter.step(START + 20 * MS + 1)
    assert wake <= START + 21 * MS + region.TURN_WITHOUT_WORK
    arbiter.step(START + 21 * MS + region.TURN_WITHOUT_WORK)
    assert (arbiter.word(first), arbiter.word(second)) == (NONE, HELD)


def test_a_gpu_that_nobody_else_wants_needs_no_decision_until_it_is_used_again():
    arbiter = region.Arbiter()
    place = arbiter.join("hard", 5000)
    arbiter.view(place, wants=START)
    arbiter.step(START)
    arbiter.step(START + 10 * MS)
    arbiter.view(place, until=START + 11 * MS)
    arbiter.step(START + 10 * MS + 1)
    assert arbiter.step(START + 12 * MS) is None
    assert arbiter.word(place) == PARKED
    arbiter.view(place, until=START + 50 * MS + 100 * US, resumed=True)
    assert arbiter.step(START + 50 * MS) is not None
    assert arbiter.word(place) == HELD


def test_a_job_that_is_stopped_in_its_turn_loses_it_when_its_lease_has_passed():
    gpu = Gpu(("hard", 5000), ("hard", 5000))
    gpu.run(300 * MS)
    while gpu.arbiter.holder != 0 or gpu.arbiter.word(0) != HELD:
        gpu.run(20 * US)
    stopped = gpu.now
    gpu.places = [1]  # the other one says nothing new
    gpu.arbiter.view(0, until=2**64 - 1)
    gpu.run(20 * US)
    gpu.arbiter.view(0, until=stopped + region.TURN_LEASE)
    while gpu.arbiter.holder == 0:
        gpu.run(20 * US)
    assert gpu.now - stopped <= region.TURN_LEASE + MS


def test_a_job_that_is_stopped_while_it_waits_gets_one_turn_and_no_second():
    arbiter = region.Arbiter()
    stopped, other = arbiter.join("fair", 5000), arbiter.join("fair", 5000)
    arbiter.view(stopped, wants=START)
    arbiter.step(START)
    assert arbiter.word(stopped) == HELD
    arbiter.view(other, wants=START + MS)
    arbiter.step(START + MS)
    arbiter.step(START + region.TURN_FIRST_LAUNCH)
    arbiter.step(START + region.TURN_FIRST_LAUNCH + 1)
    assert arbiter.word(other) == HELD
    for step in range(100):
        arbiter.view(other, until=START + (10 + step) * MS)
        arbiter.step(START + (5 + step) * MS)
        assert arbiter.word(stopped) == NONE


def test_work_that_never_ends_has_the_gpu_for_a_bounded_time_and_is_charged():
    arbiter = region.Arbiter()
    endless, other = arbiter.join("hard", 5000), arbiter.join("hard", 5000)
    arbiter.view(endless, wants=START)
    now = START
    while arbiter.word(endless) != HELD:
        now = arbiter.step(now) or now + MS
    arbiter.view(endless, wants=0, until=2**64 - 1)
    arbiter.view(other, wants=now)
    began = now
    while arbiter.word(other) != HELD:
        now = arbiter.step(now)
    assert now - began <= 5 * MS, "a new job has used little"
    while now < began + region.TURN_LONGEST_CLOSE:
        arbiter.view(other, wants=now - now % (20 * MS))
        now = arbiter.step(now) or now + MS
    assert arbiter.credit(endless) <= -0.4 * region.TURN_LONGEST_CLOSE


def test_the_turn_of_a_job_that_has_ended_passes_on():
    gpu = Gpu(("hard", 5000), ("hard", 5000))
    gpu.run(500 * MS)
    while gpu.arbiter.holder < 0:
        gpu.run(20 * US)
    holder = gpu.arbiter.holder
    gpu.arbiter.leave(holder)
    gpu.places = [1 - holder]
    gpu.run(20 * MS)
    assert gpu.arbiter.held(1 - holder) > 8 * MS


class LongKernel:
    """A job whose kernel runs for seconds, with another job that wants the GPU after some time."""

    def __init__(self, *, used_before):
        """`used_before`: ns that the other job had the GPU in the seconds before."""
        self.arbiter = region.Arbiter()
        self.long, self.other = self.arbiter.join("hard", 7500), self.arbiter.join("hard", 2500)
        self.now = START
        for start in range(START, START + 4000 * MS, 20 * MS):  # work of the other job each 20 ms
            end, had = start + used_before // 200, (start - START) // (20 * MS) * used_before // 200
            is_parked = self.arbiter.word(self.other) == PARKED
            self.say(self.other, wants=0 if is_parked else start, until=end, had=had, resumed=is_parked)
            self.arbiter.step(self.now)
            self.say(self.other, until=end, had=had)
            self.step_to(end)
            self.say(self.other, until=end, had=had + used_before // 200)
            self.step_to(start + 20 * MS)
        self.say(self.long, wants=self.now)
        while self.arbiter.word(self.long) != HELD:
            self.step_to(self.now + MS)
        self.say(self.long, until=self.now + 10_000 * MS)
        self.step_to(self.now + 5 * MS)

    def say(self, place, **words):
        self.arbiter.view(place, **words)

    def step_to(self, end):
        while self.now < end:
            wake = self.arbiter.step(self.now) or end
            self.now = min(end, max(wake, self.now + 1))
        self.arbiter.step(self.now)

    def answered(self, most):
        """Let the other job want the GPU; return the ns until it may launch."""
        began = self.now
        self.say(self.other, wants=began)
        while self.arbiter.word(self.other) != HELD and self.now < began + most:
            self.step_to(self.now + 100 * US)
        return self.now - began


def test_a_job_that_uses_little_launches_beside_a_long_kernel_and_each_is_charged_its_part():
    gpu = LongKernel(used_before=100 * MS)
    assert gpu.answered(1000 * MS) <= 2 * MS
    assert (gpu.arbiter.is_guest(gpu.other), gpu.arbiter.word(gpu.long)) == (True, NONE)
    credit = [gpu.arbiter.credit(place) for place in (gpu.long, gpu.other)]
    gpu.say(gpu.other, until=gpu.now + 3 * MS)
    gpu.step_to(gpu.now + 2 * MS)
    long, other = (
        gpu.arbiter.credit(place) - before
        for place, before in zip((gpu.long, gpu.other), credit, strict=True)
    )
    assert abs(long - (0.75 - 0.5) * 2 * MS) < 0.1 * MS
    assert abs(other - (0.25 - 0.5) * 2 * MS) < 0.1 * MS


def test_a_guest_without_work_goes_and_comes_again():
    gpu = LongKernel(used_before=100 * MS)
    gpu.answered(1000 * MS)
    gpu.say(gpu.other, until=gpu.now)
    gpu.step_to(gpu.now + region.TURN_FIRST_LAUNCH + MS)
    assert (gpu.arbiter.is_guest(gpu.other), gpu.arbiter.word(gpu.other)) == (False, NONE)
    assert gpu.answered(1000 * MS) <= 2 * MS


def test_a_guest_whose_neighbour_has_finished_has_the_turn():
    gpu = LongKernel(used_before=100 * MS)
    gpu.answered(1000 * MS)
    gpu.say(gpu.other, until=gpu.now + MS)
    gpu.say(gpu.long, until=0)
    gpu.step_to(gpu.now + 10 * US)
    assert gpu.arbiter.holder == gpu.other
    assert (gpu.arbiter.is_guest(gpu.other), gpu.arbiter.word(gpu.other)) == (False, HELD)
    gpu.arbiter.leave(gpu.other)
    assert gpu.arbiter.holder == -1


def test_a_job_that_always_has_work_waits_for_a_long_kernel_until_it_has_used_little_for_long():
    gpu = LongKernel(used_before=900 * MS)
    assert 200 * MS <= gpu.answered(3000 * MS) <= region.TURN_LONGEST_CLOSE


def test_only_shares_of_a_gpu_that_are_paced_take_turns():
    arbiter = region.Arbiter()
    assert [arbiter.join("none", 5000), arbiter.join("hard", 10_000), arbiter.join("fair", 0)] == [-1] * 3
    assert [arbiter.join("fair", 100) for _ in range(region.TURN_JOBS)] == list(range(region.TURN_JOBS))
    assert arbiter.join("fair", 100) == -1


words = st.integers(0, 2**64 - 1)
views = st.tuples(st.integers(0, 3), words, words, st.booleans())
jobs = st.lists(st.tuples(st.sampled_from(["hard", "fair"]), st.integers(1, 9999)), min_size=1, max_size=5)


@settings(deadline=None)
@given(jobs=jobs, steps=st.lists(st.tuples(st.integers(0, 10**10), views), max_size=60))
def test_whatever_jobs_say_the_holder_and_its_guests_may_launch_and_time_goes_on(jobs, steps):
    arbiter, now = region.Arbiter(), START
    places = [arbiter.join(policy, share) for policy, share in jobs]
    for passed, (place, wants, until, resumed) in steps:
        now += passed
        arbiter.view(places[place % len(places)], wants, until, resumed)
        wake = arbiter.step(now)
        assert wake is None or wake > now
        open_to = [place for place in places if arbiter.word(place) != NONE]
        assert all(arbiter.is_guest(place) or place == arbiter.holder for place in open_to)


@settings(deadline=None, max_examples=40)
@given(
    share=st.integers(500, 9000),
    kernel=st.sampled_from([5 * US, 50 * US, MS, 5 * MS, 20 * MS]),
    lies=st.lists(st.tuples(words, words, st.booleans()), min_size=1, max_size=20),
)
def test_a_job_that_lies_takes_no_more_than_its_share_of_a_busy_gpu(share, kernel, lies):
    """Hard or fair, whatever it writes: what it takes it is charged."""
    arbiter, now = region.Arbiter(), START
    liar, honest = arbiter.join("hard", 10_000 - share), arbiter.join("hard", share)
    end, until, turn = now + 20_000 * MS, 0, 0
    while now < end:
        arbiter.view(liar, *lies[turn % len(lies)], had=turn)
        turn += 1
        is_held = arbiter.word(honest) == HELD
        if is_held and until <= now:
            until = now + kernel
        arbiter.view(honest, 0 if is_held else START, until)
        wake = arbiter.step(now)
        now = min(now + MS, wake if wake is not None else now + MS)
        now = max(now, until) if is_held and until < now + 50 * US else now
    assert arbiter.held(honest) >= (share / 10_000 - 0.03) * 20_000 * MS - region.TURN_LONGEST_CLOSE
