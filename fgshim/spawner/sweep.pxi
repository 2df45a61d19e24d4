# The slots of processes in other pid namespaces, such as those of a container: the hook cannot tell when such a
# process has ended. The shepherd sees it, and writes so to the slot (fg_region_slot.ended).
#
# Exports: begin_sweeping, sweep, sweep_at, sweeper.
# Needs: files (job_region); state (Slot, now).

cdef extern from "outer_pid.h" nogil:
    ctypedef struct fg_region_slot:
        uint32_t pid, generation, ended
        uint64_t pid_namespace
    uint64_t fg_owner_namespace()
    bint fg_region_may_have_ended(const fg_region_slot *slot)
    bint fg_slot_has_ended(const fg_region_slot *slot, uint64_t own, uint32_t *pid)

cdef extern from "region_file.h" nogil:
    long FG_SLOTS_AT
    long FG_SLOT_AT(uint32_t slot)
    long FG_ENDED_AT(uint32_t slot)
    enum:
        MOST_SLOTS "FG_MAX_SLOTS"

cdef enum:
    SWEEP_EVERY = 1000  # ms

cdef pid_t sweeper  # the child that judges now; 0: none
cdef int64_t sweep_at  # CLOCK_MONOTONIC, ms; 0: the job has no region here
cdef fg_region_slot slots_copy[MOST_SLOTS]


cdef void begin_sweeping(const Slot *slot) noexcept nogil:
    global sweep_at
    sweep_at = now() + SWEEP_EVERY if slot.head.region_size and job_region > 0 else 0


cdef void sweep_slot(uint32_t at, uint64_t own) noexcept nogil:
    """Write to a slot that its process has ended, if it has."""
    cdef fg_region_slot again
    cdef const fg_region_slot *slot = &slots_copy[at]
    cdef uint32_t pid
    if not fg_slot_has_ended(slot, own, &pid):
        return
    if pread(job_region, &again, sizeof(again), FG_SLOT_AT(at)) == sizeof(again) and memcmp(&again, slot, sizeof(again)) == 0:
        pwrite(job_region, &slot.generation, sizeof(slot.generation), FG_ENDED_AT(at))


cdef int needs_sweep(const fg_region_slot *slot, uint64_t own) noexcept nogil:
    return (slot.pid != 0 and slot.pid_namespace != own and slot.ended != slot.generation
            and fg_region_may_have_ended(slot))


cdef void sweep() noexcept nogil:
    """Judge the slots of processes in other pid namespaces, once a second.

    A child does it, because a process can make each reader of its start time wait without end. The child is part of the
    job's tree, and is killed with the rest if it hangs.
    """
    global sweep_at, sweeper
    cdef uint64_t own
    cdef uint32_t at, slots = 0
    if sweep_at == 0 or now() < sweep_at:
        return
    sweep_at = now() + SWEEP_EVERY
    if sweeper or pread(job_region, &slots, sizeof(slots), FG_SLOTS_AT) != sizeof(slots) or slots == 0:
        return
    slots = slots if slots < MOST_SLOTS else MOST_SLOTS
    if pread(job_region, slots_copy, slots * sizeof(slots_copy[0]), FG_SLOT_AT(0)) != <ssize_t> (slots * sizeof(slots_copy[0])):
        return
    own = fg_owner_namespace()
    for at in range(slots):
        if needs_sweep(&slots_copy[at], own):
            sweep_from(at, slots, own)
            return


cdef void sweep_from(uint32_t first, uint32_t slots, uint64_t own) noexcept nogil:
    global sweeper
    cdef uint32_t at
    cdef pid_t pid = fork()
    if pid == 0:
        for at in range(first, slots):
            if needs_sweep(&slots_copy[at], own):
                sweep_slot(at, own)
        _exit(0)
    sweeper = pid if pid > 0 else 0
