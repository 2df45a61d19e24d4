# The controller's side of the pacing: lending GPU time between jobs; and the budget alone, for the tests.

POLICIES = {"none": FG_PACE_NONE, "hard": FG_PACE_HARD, "fair": FG_PACE_FAIR}
MECHANISMS = {FG_BY_EVENTS: "events", FG_BY_NVML: "nvml"}

cdef extern from "region_file.h":
    size_t FG_PACE_AT(size_t position)
    size_t FG_RUNS_AT(size_t position)
    size_t FG_LOAN_AT(size_t position)
    size_t FG_LOAN_SIZE
    const fg_region_slot *FG_SLOT(const char *data, size_t slot)


cdef void _set_pace(fg_pace *pace, policy, share) except *:
    pace.policy = POLICIES[policy]
    pace.share = share


def open_region(path, owner=None) -> int:
    """Open the region at `path` for lending and return its descriptor.

    Raises: as `read`.
    """
    read(path, owner)
    return _opened(path, os.O_RDWR, owner)


def pids(int fd) -> list:
    """Return the pids, in this pid namespace, of all slots of an open region: of living and ended processes."""
    cdef bytes data = os.pread(fd, sizeof(fg_region_slot) * FG_MAX_SLOTS, FG_HEADER)
    cdef uint64_t own = fg_owner_namespace()
    cdef const fg_region_slot *taken
    found = set()
    for slot in range(len(data) // sizeof(fg_region_slot)):
        taken = FG_SLOT(data, slot)
        if taken.pid:
            found.add(taken.pid if taken.pid_namespace in (0, own) else _here(taken, own))
    return sorted(found - {0})


cdef class Borrower:
    """One job on one GPU, to which GPU time is lent that its neighbours do not use."""

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
        """Read what the job has used. `now`: CLOCK_MONOTONIC, ns.

        Raises: OSError if the region is gone.
        """
        cdef bytes pace = os.pread(self.fd, sizeof(fg_pace), FG_PACE_AT(self.position))
        cdef bytes runs = os.pread(self.fd, sizeof(fg_long_runs), FG_RUNS_AT(self.position))
        if len(pace) != sizeof(fg_pace) or len(runs) != sizeof(fg_long_runs):
            raise OSError("the region is cut short")
        memcpy(&self.pace, <const char *> pace, sizeof(fg_pace))
        memcpy(&self.runs, <const char *> runs, sizeof(fg_long_runs))
        fg_lend_look(&self.lender, &self.pace, now)

    def measured(self, uint32_t part, uint64_t start, uint64_t end) -> None:
        """Take a measurement of the driver: ten-thousandths of the GPU's time between two times in ns.

        It is ignored if other processes used the GPU at that time.
        """
        fg_lend_measured(&self.lender, part, start, end)

    def shared(self, uint64_t now) -> None:
        """Note that processes of others use the GPU."""
        fg_lend_shared(&self.lender, now)

    def write(self) -> None:
        cdef const char *loan = <const char *> &self.pace.lent
        os.pwrite(self.fd, loan[:FG_LOAN_SIZE], FG_LOAN_AT(self.position))

    @property
    def policy(self) -> str:
        return {number: word for word, number in POLICIES.items()}.get(self.pace.policy, "none")

    @property
    def flying(self) -> int:
        """Return the number of processes of the job that have work, as far as its region says."""
        return self.lender.flying

    @property
    def used(self) -> int:
        """Return the GPU time of the job in ns."""
        return self.pace.used

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
        """Return whether the job has used almost no GPU time recently."""
        return self.lender.recent == 0 and not self.lender.flying


def lend(borrowers, uint64_t now) -> None:
    """Compute and write what each job of one GPU is lent. Every borrower must have looked before."""
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
    """The budget of a job on one GPU, in memory, for tests. Times are nanoseconds of any clock."""

    cdef fg_pace pace

    def __init__(self, policy, share):
        memset(&self.pace, 0, sizeof(self.pace))
        _set_pace(&self.pace, policy, share)

    def lend(self, uint32_t lent, uint64_t until) -> None:
        self.pace.lent = lent
        self.pace.lent_until = until

    def wait(self, uint64_t now) -> int:
        """Return the ns after which a launch must ask again; 0: it may go."""
        return fg_pace_wait(&self.pace, now, now)

    def charge(self, int64_t cost) -> None:
        fg_pace_add(&self.pace, -cost)

    def settle(self, uint64_t start, uint64_t end, int64_t charged, uint64_t now) -> int:
        """Replace a charge by the time from start to end. Return the ns that were not accounted for before."""
        return fg_pace_settle(&self.pace, start, end, charged, False, now)

    @property
    def level(self) -> int:
        return self.pace.level

    @property
    def used(self) -> int:
        return self.pace.used
