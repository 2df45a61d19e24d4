# The slots of processes in other pid namespaces, such as those of a container: the hook cannot tell when such a
# process has ended. The shepherd sees it, and writes so to the slot (fg_region_slot.ended).
#
# Exports: begin_sweeping, sweep, sweep_at.
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

cdef int64_t sweep_at  # CLOCK_MONOTONIC, ms; 0: the job has no region here
cdef fg_region_slot slots_copy[MOST_SLOTS]


cdef void begin_sweeping(const Slot *slot) noexcept nogil:
    global sweep_at
    sweep_at = now() + SWEEP_EVERY if slot.head.region_size and job_region > 0 else 0


cdef void sweep_slot(uint32_t at, uint64_t own) noexcept nogil:
    """Write to a slot that its process has ended, if it is of another pid namespace and has ended."""
    cdef fg_region_slot again
    cdef const fg_region_slot *slot = &slots_copy[at]
    cdef uint32_t pid
    if slot.pid == 0 or slot.pid_namespace == own or slot.ended == slot.generation or not fg_region_may_have_ended(slot):
        return
    if not fg_slot_has_ended(slot, own, &pid):
        return
    if pread(job_region, &again, sizeof(again), FG_SLOT_AT(at)) == sizeof(again) and memcmp(&again, slot, sizeof(again)) == 0:
        pwrite(job_region, &slot.generation, sizeof(slot.generation), FG_ENDED_AT(at))


cdef void sweep() noexcept nogil:
    """Judge the slots of processes in other pid namespaces, once a second."""
    global sweep_at
    cdef uint64_t own
    cdef uint32_t at, slots = 0
    if sweep_at == 0 or now() < sweep_at:
        return
    sweep_at = now() + SWEEP_EVERY
    if pread(job_region, &slots, sizeof(slots), FG_SLOTS_AT) != sizeof(slots) or slots == 0:
        return
    slots = slots if slots < MOST_SLOTS else MOST_SLOTS
    if pread(job_region, slots_copy, slots * sizeof(slots_copy[0]), FG_SLOT_AT(0)) != <ssize_t> (slots * sizeof(slots_copy[0])):
        return
    own = fg_owner_namespace()
    for at in range(slots):
        sweep_slot(at, own)
