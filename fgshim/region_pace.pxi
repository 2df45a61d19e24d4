# What the region says of a job's GPU time; and its budget alone, for the tests.

POLICIES = {"none": FG_PACE_NONE, "hard": FG_PACE_HARD, "fair": FG_PACE_FAIR}

cdef extern from "region_file.h":
    size_t FG_PACE_AT(size_t position)
    const fg_region_slot *FG_SLOT(const char *data, size_t slot)


cdef void _set_pace(fg_pace *pace, policy, share) except *:
    pace.policy = POLICIES[policy]
    pace.share = share


def open_region(path, owner=None) -> int:
    """Open the region at `path` for an Account and return its descriptor.

    Raises: as `read`.
    """
    read(path, owner)
    return _opened(path, os.O_RDONLY, owner)


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


cdef class Account:
    """The GPU time of one job on one GPU, as its processes count it."""

    cdef int fd
    cdef size_t position
    cdef fg_pace pace

    def __init__(self, int fd, size_t position):
        memset(&self.pace, 0, sizeof(self.pace))
        self.fd = fd
        self.position = position

    def read(self) -> None:
        """Read what the job has used.

        Raises: OSError if the region is gone.
        """
        cdef bytes pace = os.pread(self.fd, sizeof(fg_pace), FG_PACE_AT(self.position))
        if len(pace) != sizeof(fg_pace):
            raise OSError("the region is cut short")
        memcpy(&self.pace, <const char *> pace, sizeof(fg_pace))

    @property
    def policy(self) -> str:
        return {number: word for word, number in POLICIES.items()}.get(self.pace.policy, "none")

    def flying(self, uint64_t now) -> int:
        """Return the number of processes of the job that have work. `now`: CLOCK_MONOTONIC, ns."""
        return fg_pace_flying(&self.pace, now)

    @property
    def used(self) -> int:
        """Return the GPU time of the job in ns."""
        return self.pace.used


cdef class Budget:
    """The budget of a job on one GPU, in memory, for tests. Times are nanoseconds of any clock."""

    cdef fg_pace pace

    def __init__(self, policy, share):
        memset(&self.pace, 0, sizeof(self.pace))
        _set_pace(&self.pace, policy, share)

    def wait(self, uint64_t now, uint32_t window=0) -> int:
        """Return the ns after which a launch must ask again; 0: it may go. `window`: ten-thousandths of a period."""
        return fg_pace_wait(&self.pace, window, 0, now)

    def charge(self, int64_t cost) -> None:
        fg_pace_charge(&self.pace, cost)

    def count(self, uint64_t start, uint64_t end) -> int:
        """Count the time from start to end. Return the ns that were not accounted for before."""
        return fg_pace_count(&self.pace, start, end, end - start)

    @property
    def level(self) -> int:
        return self.pace.level

    @property
    def used(self) -> int:
        return self.pace.used


def window_wait(uint32_t start, uint32_t length, uint64_t now) -> tuple:
    """Return (ns until a window opens; 0: it is open, ns for which it is open), for tests."""
    cdef uint64_t left = 0
    cdef uint64_t wait = fg_window_wait(start, length, now, &left)
    return wait, left
