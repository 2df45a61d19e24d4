# The decisions about turns on one GPU (include/arbiter.h), for tests.

cdef extern from "arbiter.h":
    const int FG_ARBITER_JOBS
    const int FG_TURN_NONE, FG_TURN_HELD, FG_TURN_PARKED
    const uint64_t FG_TURN_LEASE, FG_LONGEST_CLOSE, FG_FIRST_LAUNCH, FG_WITHOUT_WORK
    enum:
        PLACES "FG_ARBITER_JOBS"
    ctypedef struct fg_turn_view:
        uint64_t wants, until, had
        int resumed
    ctypedef struct fg_turn_job:
        double credit
        uint64_t held
    ctypedef struct fg_held_turn:
        int place
    ctypedef struct fg_arbiter:
        fg_turn_job *job
        fg_held_turn turn
    bint fg_arbiter_is_guest(const fg_arbiter *, int place)
    bint fg_arbiter_may_be_deep(const fg_arbiter *, int place)
    void fg_arbiter_init(fg_arbiter *)
    int fg_arbiter_join(fg_arbiter *, uint32_t policy, uint32_t share)
    void fg_arbiter_leave(fg_arbiter *, int place)
    int fg_arbiter_word(const fg_arbiter *, int place)
    uint32_t fg_arbiter_window(const fg_arbiter *, int place, uint32_t *start)
    uint64_t fg_arbiter_step(fg_arbiter *, const fg_turn_view *, uint64_t now)

cdef extern from "launcher.h":
    const uint32_t FG_LAUNCHER_ANY, FG_LAUNCHER_NONE
    const uint64_t FG_SUBTURN, FG_LONGEST_SUBCLOSE, FG_TOGETHER
    ctypedef struct fg_seat_view:
        uint64_t wants, until
    ctypedef struct fg_launcher:
        uint32_t launcher
    uint64_t fg_launcher_step(fg_launcher *, const fg_seat_view *, uint32_t count, bint is_on, uint64_t now)

LAUNCHER_ANY, LAUNCHER_NONE = FG_LAUNCHER_ANY, FG_LAUNCHER_NONE
SUBTURN, LONGEST_SUBCLOSE, TOGETHER = FG_SUBTURN, FG_LONGEST_SUBCLOSE, FG_TOGETHER
TURN_NONE, TURN_HELD, TURN_PARKED = FG_TURN_NONE, FG_TURN_HELD, FG_TURN_PARKED
TURN_LEASE, TURN_LONGEST_CLOSE, TURN_FIRST_LAUNCH = FG_TURN_LEASE, FG_LONGEST_CLOSE, FG_FIRST_LAUNCH
TURN_WITHOUT_WORK, TURN_JOBS = FG_WITHOUT_WORK, FG_ARBITER_JOBS


cdef class Arbiter:
    """The turns of the jobs of one GPU. Times are nanoseconds of any clock."""

    cdef fg_arbiter arbiter
    cdef fg_turn_view views[PLACES]

    def __init__(self):
        fg_arbiter_init(&self.arbiter)
        memset(self.views, 0, sizeof(self.views))

    def join(self, policy, share) -> int:
        """Return the place of a new job; -1 if it takes no turns, or no place is free."""
        place = fg_arbiter_join(&self.arbiter, POLICIES[policy], share)
        if place >= 0:
            self.view(place)
        return place

    def leave(self, int place) -> None:
        fg_arbiter_leave(&self.arbiter, place)
        self.view(place)

    def view(self, int place, uint64_t wants=0, uint64_t until=0, bint resumed=False, uint64_t had=0) -> None:
        """Set what the job at a place says in the next steps."""
        if not 0 <= place < FG_ARBITER_JOBS:
            raise IndexError(place)
        self.views[place].wants = wants
        self.views[place].until = until
        self.views[place].resumed = resumed
        self.views[place].had = had

    def step(self, uint64_t now):
        """Decide. Return the time of the next step, or None: at the next event."""
        cdef uint64_t wake = fg_arbiter_step(&self.arbiter, self.views, now)
        return None if wake == <uint64_t> -1 else wake

    def may_be_deep(self, int place) -> bool:
        """Return whether a longer queue of a job delays no other one."""
        return fg_arbiter_may_be_deep(&self.arbiter, place)

    def word(self, int place) -> int:
        return fg_arbiter_word(&self.arbiter, place)

    def held(self, int place) -> int:
        """Return the ns during which a job had the turn."""
        return self.arbiter.job[place].held

    def credit(self, int place) -> float:
        return self.arbiter.job[place].credit

    @property
    def holder(self) -> int:
        return self.arbiter.turn.place

    def window(self, int place) -> tuple:
        """Return (beginning, length) of a job's window in ten-thousandths of a period."""
        cdef uint32_t start = 0
        cdef uint32_t length = fg_arbiter_window(&self.arbiter, place, &start)
        return start, length

    def is_guest(self, int place) -> bool:
        """Return whether a job launches beside the one that has the turn."""
        return fg_arbiter_is_guest(&self.arbiter, place)


cdef class Launcher:
    """Which of the processes of a job launches, for tests."""

    cdef fg_launcher launcher

    def __init__(self):
        memset(&self.launcher, 0, sizeof(self.launcher))

    def step(self, seats, uint64_t now, bint is_on=True):
        """Decide. `seats`: (wants, until) of each process. Return the time of the next step, or None."""
        cdef fg_seat_view views[8]
        for at, (wants, until) in enumerate(seats[:8]):
            views[at].wants, views[at].until = wants, until
        cdef uint64_t wake = fg_launcher_step(&self.launcher, views, min(len(seats), 8), is_on, now)
        return None if wake == <uint64_t> -1 else wake

    @property
    def launcher(self) -> int:
        """Return the seat + 1 of the process that launches, or LAUNCHER_ANY, or LAUNCHER_NONE."""
        return self.launcher.launcher
