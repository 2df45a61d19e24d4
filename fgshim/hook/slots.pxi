# The slots of the region: this process's own, and those of processes that have ended.
#
# A slot's process lives as long as the slot's mutex is held; the kernel marks it when the thread that took the
# slot ends. Whether the process has ended, too, is then read in /proc, without the region's lock. A process
# judges slots of its own pid namespace only. Those of others are judged by the shepherd, which writes
# fg_region_slot.ended.
#
# Exports: fg_ensure_slot, fg_own_namespace, fg_reap, fg_recover, fg_reset_slot.
# Needs: region (fg_lock, fg_unlock); shares (fg_count_shares, fg_leave_shares).

cdef extern from "slot_life.h" nogil:
    bint fg_take_life(pthread_mutex_t *)
    const int FG_JUDGEMENTS

cdef enum:
    FG_JUDGED_FOR = 100  # ms for which a living process without a held mutex is not judged again by a view


cdef void fg_reset_slot() noexcept nogil:
    """Forget the slot of the parent, in the child of a fork, which may be in another pid namespace."""
    global fg_pid
    fg_publish(&fg_slot, 0)
    fg_set(&fg_namespace, 0)
    fg_pid = 0


cdef uint64_t fg_own_namespace() noexcept nogil:
    """Return the inode number of this process's pid namespace."""
    cdef uint64_t number = fg_peek(&fg_namespace)
    if not number:
        number = fg_owner_namespace()
        fg_set(&fg_namespace, number)
    return number


cdef void fg_free_slot(fg_region *region, uint32_t at) noexcept nogil:
    """Free a slot, after it has left its shares. Under the region's lock."""
    cdef uint32_t slots = fg_region_slots(region)
    fg_leave_shares(region, at)
    fg_publish(&region.slot[at].pid, 0)
    while slots and region.slot[slots - 1].pid == 0:
        slots -= 1
    fg_publish(&region.slots, slots)


cdef void fg_recover(fg_region *region) noexcept nogil:
    """Count again what the dead holder of the region's lock may have left uncounted. Under the region's lock."""
    cdef uint32_t at
    for at in range(FG_MAX_SLOTS):
        if region.slot[at].pid and region.slots <= at:
            fg_publish(&region.slots, at + 1)
    fg_count_shares(region)


cdef bint fg_has_ended(const fg_region_slot *slot) noexcept nogil:
    """Return whether the process of a slot is known to have ended. Reads /proc."""
    if slot.ended and slot.ended == slot.generation:
        return True
    if slot.pid_namespace != fg_own_namespace() or not fg_owner_sees_its_namespace():
        return False
    return fg_owner_lives(slot.pid, slot.start, slot.image) == 0


cdef bint fg_bury(fg_region *region, uint32_t at, uint32_t generation) noexcept nogil:
    """Free the slot of an ended process, unless it has changed hands meanwhile."""
    cdef bint freed = False
    if fg_lock(region):
        freed = region.slot[at].pid != 0 and region.slot[at].generation == generation
        if freed:
            fg_free_slot(region, at)
        fg_unlock(region)
    return freed


cdef void fg_copy_slot(fg_region_slot *copy, const fg_region_slot *slot) noexcept nogil:
    """Copy what identifies the process of a slot, without the lock. fg_bury finds out if the slot changed meanwhile."""
    copy.pid = fg_peek_int(&slot.pid)
    copy.generation = fg_peek_int(&slot.generation)
    copy.ended = fg_peek_int(&slot.ended)
    copy.start = fg_peek(&slot.start)
    copy.image = fg_peek(&slot.image)
    copy.pid_namespace = fg_peek(&slot.pid_namespace)


cdef bint fg_is_to_judge(const fg_region_slot *slot, uint32_t at, bint often) noexcept nogil:
    """Return whether to find out if a slot's process has ended. `often`: asked by a view, so not again within a moment."""
    if not fg_peek_int(&slot.pid) or at + 1 == fg_peek_int(&fg_slot) or not fg_region_may_have_ended(slot):
        return False
    if not often or fg_peek_int(&slot.ended) == fg_peek_int(&slot.generation):
        return True
    return <uint32_t> (fg_rough_clock() // 1000000) - fg_peek_int(&fg_judged_at[at]) >= FG_JUDGED_FOR


cdef bint fg_reap(fg_region *region, bint often) noexcept nogil:
    """Free the slots of processes that have ended or execute another program. Return whether there were any.

    Without the region's lock, which is taken for each slot that is freed. `often`: as in fg_is_to_judge.
    """
    cdef uint32_t at, judged = 0
    cdef int saved = errno
    cdef fg_region_slot slot
    cdef bint freed = False
    for at in range(fg_region_slots(region)):
        if not fg_is_to_judge(&region.slot[at], at, often) or (often and judged >= FG_JUDGEMENTS):
            continue
        fg_copy_slot(&slot, &region.slot[at])
        if not fg_has_ended(&slot):
            judged += 1  # an ended one is found once, a living one again and again
            fg_publish(&fg_judged_at[at], <uint32_t> (fg_rough_clock() // 1000000))
        elif fg_bury(region, at, slot.generation):
            freed = True
    set_errno(saved)
    return freed


cdef uint32_t fg_find_slot(fg_region *region) noexcept nogil:
    """Take the mutex of a free slot and return the slot's number + 1; 0 if all are taken. Under the region's lock."""
    cdef uint32_t at
    for at in range(FG_MAX_SLOTS):
        if (at >= fg_region_slots(region) or region.slot[at].pid == 0) and fg_take_life(&region.slot[at].life):
            return at + 1
    return 0


cdef void fg_leave_earlier_slots(fg_region *region) noexcept nogil:
    """Free the slots of programs that this process executed before. Under the region's lock."""
    cdef uint32_t at
    cdef const fg_region_slot *slot
    for at in range(fg_region_slots(region)):
        slot = &region.slot[at]
        if slot.pid == fg_pid and slot.pid_namespace == fg_own_namespace() and fg_region_may_have_ended(slot):
            fg_free_slot(region, at)


cdef bint fg_ensure_slot(fg_region *region) noexcept nogil:
    """Make sure that this process has a slot. Return False if there is none. Under the region's lock."""
    global fg_pid
    cdef fg_owner own
    cdef fg_region_slot *slot
    cdef int saved = errno
    cdef bint known
    if fg_slot:
        slot = &region.slot[fg_slot - 1]
        if slot.pid == fg_pid and slot.generation == fg_generation:
            if fg_region_may_have_ended(slot):  # the thread that took it has ended
                fg_take_life(&slot.life)
            return True
    fg_pid = getpid()
    known = fg_owner_read(0, &own) == 1
    set_errno(saved)
    if not known:
        return False
    fg_leave_earlier_slots(region)
    fg_publish(&fg_slot, fg_find_slot(region))
    if fg_slot:
        fg_fill_slot(region, &own)
    return fg_slot != 0


cdef void fg_fill_slot(fg_region *region, const fg_owner *own) noexcept nogil:
    """Write the identity and the charges of this process to its slot. Under the region's lock."""
    global fg_generation
    cdef fg_region_slot *slot = &region.slot[fg_slot - 1]
    cdef fg_region_counts *counts
    cdef uint32_t at
    fg_leave_shares(region, fg_slot - 1)
    fg_generation = slot.generation + 1 if slot.generation != UINT32_MAX else 1
    fg_publish(&slot.ended, 0)
    fg_publish(&slot.generation, fg_generation)
    fg_set(&slot.start, own.start)
    fg_set(&slot.image, own.image)
    fg_set(&slot.pid_namespace, fg_own_namespace())
    for at in range(FG_MAX_GPUS):
        counts = &region.counts[at]
        fg_set(&counts.bytes[fg_slot - 1], fg_held[at])
        fg_context[at] = fg_region_retagged(fg_peek(&counts.context[fg_slot - 1]), fg_context[at] & FG_MAX_TAGGED)
        fg_set(&counts.context[fg_slot - 1], fg_context[at])
    fg_publish(&slot.pid, fg_pid)  # the slot is free until this store, whatever process dies
    if region.slots < fg_slot:
        fg_publish(&region.slots, fg_slot)
