# What this process has charged to its job. Reserve, call the driver, keep or give back.

cdef extern from "libc_symbols.h" nogil:
    int __register_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil, void *)

cdef struct fg_charge:
    uint32_t gpu      # number in the region
    uint32_t share    # number + 1 of the share that it is counted in instead; 0: it is this process's
    uint64_t bytes
    uint64_t total    # what the job held with it
    uint64_t context  # in which it was taken


cdef void fg_in_child() noexcept nogil:
    """After fork: the slot and all in it are the parent's."""
    global fg_slot
    fg_slot = 0
    memset(fg_held, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_owed, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_share_refs, 0, sizeof(uint32_t) * FG_MAX_SHARES)
    fg_forget_contexts()
    fg_forget_all()
    fg_forget_pools()
    fg_forget_graphs()


cdef void fg_watch_forks() noexcept nogil:
    if fg_load(&fg_attached) and fg_first(&fg_watches_forks):
        __register_atfork(NULL, NULL, fg_in_child, NULL)


cdef void fg_free_slot(fg_region *region, uint32_t at) noexcept nogil:
    """Its shares first: a slot that is free is in no share. Under the lock."""
    fg_leave_shares(region, at)
    fg_publish(&region.slot[at].pid, 0)


cdef void fg_reap(fg_region *region) noexcept nogil:
    """Free the slots of processes that have ended or execute another program. Under the lock."""
    cdef uint32_t at
    cdef int saved = errno
    cdef fg_region_slot *slot
    for at in range(fg_region_slots(region)):
        slot = &region.slot[at]
        if slot.pid and at + 1 != fg_slot and fg_owner_lives(slot.pid, slot.start, slot.image) == 0:
            fg_free_slot(region, at)
    set_errno(saved)


cdef inline uint64_t fg_uses(const fg_region *region, uint32_t at, uint32_t gpu) noexcept nogil:
    """What the process of a slot has on a card, its contexts with it."""
    cdef const fg_region_past *past = &region.past[at]
    cdef uint64_t more = fg_region_past_bytes(fg_peek(&past.context[gpu]), fg_peek(&past.seen[gpu]))
    return fg_sum(fg_peek(&region.slot[at].bytes[gpu]), more)


cdef inline uint64_t fg_own_past(const fg_region *region, uint32_t gpu) noexcept nogil:
    """What this process has on a card past the calls. Under the lock."""
    return fg_region_past_bytes(fg_context[gpu], fg_peek(&region.past[fg_slot - 1].seen[gpu]) if fg_slot else 0)


cdef uint64_t fg_total(const fg_region *region, uint32_t gpu) noexcept nogil:
    """What the job holds on a card. Under the lock."""
    cdef uint32_t at
    cdef uint64_t total = fg_sum(fg_peek(&region.gpu[gpu].untracked), fg_sum(fg_held[gpu], fg_own_past(region, gpu)))
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid and at + 1 != fg_slot:
            total = fg_sum(total, fg_uses(region, at, gpu))
    return fg_sum(total, fg_all_shares(region, gpu))


cdef uint32_t fg_find_slot(fg_region *region, bint may_reap) noexcept nogil:
    """A slot to take, counted from 1; 0: all are taken. Under the lock."""
    cdef uint32_t at
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid == 0:
            return at + 1
    if fg_region_slots(region) < FG_MAX_SLOTS:
        return fg_region_slots(region) + 1
    if not may_reap:
        return 0
    fg_reap(region)
    return fg_find_slot(region, False)


cdef bint fg_take_slot(fg_region *region) noexcept nogil:
    """Make sure that this process has a slot. Under the lock."""
    global fg_slot, fg_pid
    cdef fg_owner self
    cdef uint32_t at
    cdef int saved = errno
    if fg_slot and region.slot[fg_slot - 1].pid == fg_pid:
        return True
    fg_pid = getpid()
    if fg_owner_read(fg_pid, &self) != 1:
        set_errno(saved)
        return False
    fg_slot = 0
    for at in range(fg_region_slots(region)):  # of a program that this process executed before
        if region.slot[at].pid == fg_pid:
            fg_free_slot(region, at)
    fg_slot = fg_find_slot(region, True)
    set_errno(saved)
    if fg_slot:
        fg_fill_slot(region, &self)
    return fg_slot != 0


cdef void fg_fill_slot(fg_region *region, const fg_owner *self) noexcept nogil:
    """Under the lock."""
    cdef fg_region_slot *slot = &region.slot[fg_slot - 1]
    cdef fg_region_past *past = &region.past[fg_slot - 1]
    cdef uint32_t at
    fg_leave_shares(region, fg_slot - 1)
    slot.generation += 1
    slot.start = self.start
    slot.image = self.image
    for at in range(FG_MAX_GPUS):
        fg_set(&slot.bytes[at], fg_held[at])
        fg_context[at] = fg_region_retagged(fg_peek(&past.context[at]), fg_context[at] & FG_MAX_TAGGED)
        fg_set(&past.context[at], fg_context[at])
    fg_publish(&slot.pid, fg_pid)  # last: until now the slot is free, whoever dies
    if region.slots < fg_slot:
        region.slots = fg_slot


cdef void fg_hold(fg_region *region, uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Write down what this process holds. Under the lock."""
    fg_held[gpu] = bytes
    if fg_slot:
        fg_set(&region.slot[fg_slot - 1].bytes[gpu], bytes)


cdef bint fg_reserve(fg_charge *charge) noexcept nogil:
    """Count charge.bytes as held, unless that is more than the job may hold."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t total
    cdef bint fits = False
    charge.share = 0
    if not fg_lock(region):
        return False
    fg_settle()
    if fg_take_slot(region):
        total = fg_sum(fg_total(region, charge.gpu), charge.bytes)
        if total > fg_limit(charge.gpu):
            fg_reap(region)
            total = fg_sum(fg_total(region, charge.gpu), charge.bytes)
        fits = total <= fg_limit(charge.gpu) and total != UINT64_MAX
        if fits:
            fg_hold(region, charge.gpu, fg_held[charge.gpu] + charge.bytes)
            charge.total = total
    fg_unlock(region)
    return fits


cdef void fg_owe(uint32_t gpu, uint64_t bytes) noexcept nogil:
    """To be taken off what is held, as soon as the lock can be had again."""
    fg_add(&fg_owed[gpu], bytes)
    fg_store_int(&fg_owes, 1)


cdef void fg_give_back(uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Count it as held no longer."""
    cdef fg_region *region = fg_attach()
    if not bytes:
        return
    if not fg_lock(region):
        fg_owe(gpu, bytes)
        return
    fg_settle()
    fg_hold(region, gpu, fg_held[gpu] - bytes if fg_held[gpu] > bytes else 0)
    fg_unlock(region)


cdef void fg_exchange(uint32_t gpu, uint64_t before, uint64_t now, bint counts) noexcept nogil:
    """Hold so much instead of so much, as the driver has already decided. `counts`: for the peak, too."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t held, total
    if before == now and not counts:
        return
    if not fg_lock(region):
        fg_owe(gpu, before - now)
        return
    fg_settle()
    held = fg_sum(fg_held[gpu], now)
    fg_take_slot(region)
    fg_hold(region, gpu, held - before if held > before else 0)
    total = fg_total(region, gpu)
    fg_unlock(region)
    if counts:
        fg_raise(&region.gpu[gpu].peak, total)


cdef void fg_keep(const fg_charge *charge) noexcept nogil:
    """The driver has given it: now it counts for the peak."""
    fg_raise(&fg_attach().gpu[charge.gpu].peak, charge.total)


cdef void fg_rank(fg_region_refusal *was, uint32_t pid, uint64_t bytes) noexcept nogil:
    """One of those who hold memory there, in the order of how much."""
    cdef int at = FG_MAX_HOLDERS - 1
    was.holders += 1
    if bytes <= was.most[at].bytes:
        return
    while at > 0 and was.most[at - 1].bytes < bytes:
        was.most[at] = was.most[at - 1]
        at -= 1
    was.most[at].pid = pid
    was.most[at].bytes = bytes


cdef void fg_refused(uint32_t gpu, uint64_t asked) noexcept nogil:
    fg_refused_what(FG_FOR_MEMORY, gpu, asked)


cdef void fg_refused_what(int what, uint32_t gpu, uint64_t asked) noexcept nogil:
    """Count a refusal, and write down for the job's log what it was about: no line here, whose stderr is it?"""
    cdef fg_region *region = fg_attach()
    cdef fg_region_refusal *was
    cdef uint32_t at
    if not fg_lock(region):
        return
    was = &region.refusal
    memset(was, 0, sizeof(fg_region_refusal))
    was.gpu = gpu
    was.what = what
    was.asked = asked
    was.held = fg_total(region, gpu)
    was.limit = fg_limit(gpu)
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid and fg_uses(region, at, gpu):
            fg_rank(was, region.slot[at].pid, fg_uses(region, at, gpu))
    was.pid = fg_pid if fg_pid else getpid()
    region.gpu[gpu].last_asked = was.asked
    region.gpu[gpu].last_held = was.held
    fg_add(&region.gpu[gpu].refusals, 1)
    fg_unlock(region)


cdef uint64_t fg_job_holds(uint32_t gpu) noexcept nogil:
    """What the job's living processes hold, for a view."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t total = UINT64_MAX
    if fg_lock(region):
        fg_reap(region)
        total = fg_total(region, gpu)
        fg_unlock(region)
    return total
