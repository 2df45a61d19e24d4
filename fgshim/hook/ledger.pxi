# The ledger: what this process has charged to its job. Reserve, call the driver, then keep the charge or
# release it.
#
# Exports: fg_change_charge, fg_charge, fg_defer_release, fg_job_bytes, fg_living_job_bytes,
#   fg_own_bytes_outside_calls, fg_record_refusal, fg_record_refusal_of, fg_release, fg_reserve, fg_set_held,
#   fg_update_peak, fg_watch_forks.
# Needs: code (fg_forget_code); context_charges (fg_forget_contexts); entries (fg_forget_entries); graphs
#   (fg_forget_graphs); pool_table (fg_forget_pools); region (fg_attach, fg_limit, fg_lock, fg_unlock); slots
#   (fg_ensure_slot, fg_reap, fg_reset_slot).

cdef extern from "libc_symbols.h" nogil:
    int __register_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil, void *)

cdef struct fg_charge:
    uint32_t gpu      # position in the region
    uint32_t share    # number + 1 of the share that counts it; 0: the slot counts it
    uint64_t bytes
    uint64_t total    # bytes that the job held, this charge included
    uint64_t context  # the context in which the memory was allocated; 0: none
    uint64_t chunk    # of small memory: the number of its chunk; 0: none


cdef void fg_in_child() noexcept nogil:
    """Reset the state in the child of a fork: slot, charges and entries belong to the parent."""
    fg_reset_slot()
    memset(fg_held, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_deferred, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_outgrown, 0, sizeof(int) * FG_MAX_GPUS)
    memset(fg_share_refs, 0, sizeof(uint32_t) * FG_MAX_SHARES)
    fg_forget_contexts()
    fg_forget_entries()
    fg_forget_code()
    fg_forget_pools()
    fg_forget_graphs()


cdef void fg_watch_forks() noexcept nogil:
    if fg_load(&fg_attached) and fg_first(&fg_watches_forks):
        __register_atfork(NULL, NULL, fg_in_child, NULL)


cdef inline uint64_t fg_own_bytes_outside_calls(const fg_region *region, uint32_t gpu) noexcept nogil:
    """Return the bytes that this process holds on a GPU outside the calls. Under the region's lock."""
    return fg_region_past_bytes(fg_context[gpu], fg_peek(&region.counts[gpu].seen[fg_slot - 1]) if fg_slot else 0)


cdef uint64_t fg_job_bytes(const fg_region *region, uint32_t gpu) noexcept nogil:
    """Return the bytes that the job holds on a GPU. Under the region's lock."""
    cdef int doubtful
    return fg_job_bytes_and_doubt(region, gpu, &doubtful)


cdef inline uint64_t fg_job_bytes_and_doubt(const fg_region *region, uint32_t gpu, int *doubtful) noexcept nogil:
    """Return the bytes that the job holds on a GPU, and whether some of its processes may have ended."""
    cdef uint64_t total = fg_sum(fg_peek(&region.gpu[gpu].untracked), fg_sum(fg_held[gpu], fg_own_bytes_outside_calls(region, gpu)))
    return fg_region_add_slots(region, gpu, fg_slot, fg_sum(total, region.shared[gpu]), doubtful)


cdef void fg_set_held(fg_region *region, uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Set what this process holds on a GPU, in bytes. Under the region's lock."""
    fg_held[gpu] = bytes
    if fg_slot:
        fg_set(&region.counts[gpu].bytes[fg_slot - 1], bytes)


cdef bint fg_reserve(fg_charge *charge) noexcept nogil:
    """Count charge.bytes as held. Return False if the job would exceed its limit.

    The slots of ended processes are freed before that, and after a reservation that found some, so that later
    ones need not add them up. They are looked for without the lock.
    """
    cdef fg_region *region = fg_attach()
    cdef int doubtful = 0
    charge.share = 0
    if region == NULL:
        return False
    if fg_reserve_now(region, charge, &doubtful):
        if doubtful:
            fg_reap(region, True)
        return True
    return fg_reap(region, False) and fg_reserve_now(region, charge, &doubtful)


cdef bint fg_reserve_now(fg_region *region, fg_charge *charge, int *doubtful) noexcept nogil:
    """Count charge.bytes as held, if they and what all slots hold are within the limit. `doubtful`: as in fg_region_add_slots."""
    cdef uint64_t total
    cdef bint fits = False
    if not fg_lock(region):
        return False
    fg_apply_deferred()
    if fg_ensure_slot(region):
        total = fg_sum(fg_job_bytes_and_doubt(region, charge.gpu, doubtful), charge.bytes)
        fits = total <= fg_limit(charge.gpu) and total != UINT64_MAX or fg_load_int(&fg_outgrown[charge.gpu]) != 0
        if fits:
            fg_set_held(region, charge.gpu, fg_held[charge.gpu] + charge.bytes)
            charge.total = total
    fg_unlock(region)
    return fits


cdef void fg_defer_release(uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Defer a release until the region's lock can be taken again."""
    fg_add(&fg_deferred[gpu], bytes)
    fg_store_int(&fg_has_deferred, 1)


cdef void fg_release(uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Count bytes as held no longer."""
    cdef fg_region *region = fg_attach()
    if not bytes:
        return
    if not fg_lock(region):
        fg_defer_release(gpu, bytes)
        return
    fg_apply_deferred()
    fg_set_held(region, gpu, fg_held[gpu] - bytes if fg_held[gpu] > bytes else 0)
    fg_unlock(region)


cdef void fg_change_charge(uint32_t gpu, uint64_t before, uint64_t now, bint counts) noexcept nogil:
    """Change a charge from `before` to `now` bytes after the driver has decided. `counts`: update the peak."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t held, total
    if before == now and not counts:
        return
    if not fg_lock(region):
        fg_defer_release(gpu, before - now)
        return
    fg_apply_deferred()
    held = fg_sum(fg_held[gpu], now)
    fg_ensure_slot(region)
    fg_set_held(region, gpu, held - before if held > before else 0)
    total = fg_job_bytes(region, gpu)
    fg_unlock(region)
    if counts:
        fg_raise(&region.gpu[gpu].peak, total)


cdef void fg_update_peak(const fg_charge *charge) noexcept nogil:
    """Update the peak, once the driver has given the memory."""
    fg_raise(&fg_attach().gpu[charge.gpu].peak, charge.total)


cdef void fg_rank_holder(fg_region_refusal *was, uint32_t pid, uint64_t bytes) noexcept nogil:
    """Insert a process into the list of the largest holders."""
    cdef int at = FG_MAX_HOLDERS - 1
    was.holders += 1
    if bytes <= was.most[at].bytes:
        return
    while at > 0 and was.most[at - 1].bytes < bytes:
        was.most[at] = was.most[at - 1]
        at -= 1
    was.most[at].pid = pid
    was.most[at].bytes = bytes


cdef void fg_record_refusal(uint32_t gpu, uint64_t asked) noexcept nogil:
    fg_record_refusal_of(FG_FOR_MEMORY, gpu, asked)


cdef void fg_record_refusal_of(int what, uint32_t gpu, uint64_t asked) noexcept nogil:
    """Count a refusal, and record it in the region. The shepherd reports it; the hook never writes to stderr."""
    cdef fg_region *region = fg_attach()
    cdef fg_region_refusal *was
    cdef uint64_t held
    cdef uint32_t at
    if not fg_lock(region):
        return
    if fg_slot == 0 and fg_region_slots(region) == FG_MAX_SLOTS:
        what = FG_FOR_SLOT
    was = &region.refusal
    memset(was, 0, sizeof(fg_region_refusal))
    was.gpu = gpu
    was.what = what
    was.asked = asked
    was.held = fg_job_bytes(region, gpu)
    was.limit = fg_limit(gpu)
    for at in range(fg_region_slots(region)):
        held = fg_region_held(region, at, gpu) if region.slot[at].pid else 0
        if held:
            fg_rank_holder(was, region.slot[at].pid, held)
    was.pid = fg_pid if fg_pid else getpid()
    region.gpu[gpu].last_asked = was.asked
    region.gpu[gpu].last_held = was.held
    fg_add(&region.gpu[gpu].refusals, 1)
    fg_unlock(region)


cdef uint64_t fg_living_job_bytes(uint32_t gpu) noexcept nogil:
    """Return the bytes that the job's living processes hold; UINT64_MAX if the lock cannot be taken."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t total = UINT64_MAX
    cdef int doubtful = 0
    if fg_lock(region):
        total = fg_job_bytes_and_doubt(region, gpu, &doubtful)
        fg_unlock(region)
    if doubtful and fg_reap(region, True) and fg_lock(region):
        total = fg_job_bytes(region, gpu)
        fg_unlock(region)
    return total
