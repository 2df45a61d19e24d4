# What the controller does about the jobs' shares of a card's time, and the budget by itself for the tests.

POLICIES = {"none": FG_PACE_NONE, "hard": FG_PACE_HARD, "fair": FG_PACE_FAIR}
MECHANISMS = {FG_BY_EVENTS: "events", FG_BY_NVML: "nvml"}

cdef extern from "region_file.h":
    size_t FG_PACE_AT(size_t position)
    size_t FG_RUNS_AT(size_t position)
    size_t FG_LOAN_AT(size_t position)
    size_t FG_LOAN_SIZE
    uint32_t FG_SLOT_PID(const char *data, size_t slot)


cdef void _set_pace(fg_pace *pace, policy, share) except *:
    pace.policy = POLICIES[policy]
    pace.share = share


def open_region(path, owner=None) -> int:
    """A descriptor of the region at `path`, to read and to lend by; as `read` refuses."""
    read(path, owner)
    return _opened(path, os.O_RDWR, owner)


def pids(int fd) -> list:
    """The processes that have a slot in an open region, living or not."""
    cdef bytes data = os.pread(fd, sizeof(fg_region_slot) * FG_MAX_SLOTS, FG_HEADER)
    cdef size_t slot
    found = [FG_SLOT_PID(data, slot) for slot in range(len(data) // sizeof(fg_region_slot))]
    return [pid for pid in found if pid]


cdef class Borrower:
    """A job on one card, as its neighbours' idle time is lent to it."""

    cdef int fd
    cdef size_t position
    cdef fg_pace pace
    cdef fg_long_runs runs
    cdef fg_lender lender

    def __init__(self, int fd, size_t position):
        memset(&self.pace, 0, sizeof(self.pace))
        memset(&self.runs, 0, sizeof(self.runs))
        memset(&self.lender, 0, sizeof(self.lender))
        self.lender.runs = &self.runs
        self.fd = fd
        self.position = position

    def look(self, uint64_t now) -> None:
        """Read what the job has used; OSError where its region is gone."""
        cdef bytes pace = os.pread(self.fd, sizeof(fg_pace), FG_PACE_AT(self.position))
        cdef bytes runs = os.pread(self.fd, sizeof(fg_long_runs), FG_RUNS_AT(self.position))
        if len(pace) != sizeof(fg_pace) or len(runs) != sizeof(fg_long_runs):
            raise OSError("the region is cut short")
        memcpy(&self.pace, <const char *> pace, sizeof(fg_pace))
        memcpy(&self.runs, <const char *> runs, sizeof(fg_long_runs))
        fg_lend_look(&self.lender, &self.pace, now)

    def measured(self, uint32_t part, uint64_t start, uint64_t end) -> None:
        """The driver says that the job had so many ten-thousandths of the card meanwhile."""
        fg_lend_measured(&self.lender, part, start, end)

    def write(self) -> None:
        cdef const char *loan = <const char *> &self.pace.lent
        os.pwrite(self.fd, loan[:FG_LOAN_SIZE], FG_LOAN_AT(self.position))

    @property
    def policy(self) -> str:
        return {number: word for word, number in POLICIES.items()}.get(self.pace.policy, "none")

    @property
    def lent(self) -> int:
        return self.pace.lent

    @property
    def scale(self) -> int:
        return self.pace.scale

    @property
    def mechanism(self) -> str:
        return MECHANISMS.get(self.pace.mechanism, "events")

    @property
    def is_quiet(self) -> bool:
        """Whether it has used next to nothing of late."""
        return self.lender.recent == 0 and not self.lender.flying


def lend(borrowers, uint64_t now) -> None:
    """Work out and write down what each of the jobs of one card is lent, after all have been looked at."""
    cdef fg_lender *lenders[JOBS]
    cdef fg_pace *paces[JOBS]
    cdef Borrower one
    cdef int count = 0
    for borrower in borrowers[:FG_MOST_JOBS]:
        one = borrower
        lenders[count] = &one.lender
        paces[count] = &one.pace
        count += 1
    fg_lend(lenders, paces, count, now)
    for borrower in borrowers[:FG_MOST_JOBS]:
        borrower.write()


cdef class Budget:
    """One job's budget for one card, in memory; times are nanoseconds that the caller makes up."""

    cdef fg_pace pace

    def __init__(self, policy, share):
        memset(&self.pace, 0, sizeof(self.pace))
        _set_pace(&self.pace, policy, share)

    def lend(self, uint32_t lent, uint64_t until) -> None:
        self.pace.lent = lent
        self.pace.lent_until = until

    def wait(self, uint64_t now) -> int:
        """How long a launch has to wait before it asks again; 0: it may go."""
        return fg_pace_wait(&self.pace, now)

    def charge(self, int64_t cost) -> None:
        fg_pace_add(&self.pace, -cost)

    def settle(self, uint64_t start, uint64_t end, int64_t charged, uint64_t now) -> int:
        """The work that was charged so much ran from start to end; what of it was new."""
        return fg_pace_settle(&self.pace, start, end, charged, False, now)

    @property
    def level(self) -> int:
        return self.pace.level

    @property
    def used(self) -> int:
        return self.pace.used
