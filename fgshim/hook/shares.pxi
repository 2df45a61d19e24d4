# Memory that processes of the job share: counted once, as long as one of them holds it.
#
# The process that exports memory moves its bytes from its slot to a share; a process that imports it sets its
# bit in the share. All of this is under the region's lock.
#
# Exports: fg_count_shares, fg_export_to_share, fg_join_share, fg_leave_shares, fg_release_charge.
# Needs: ledger (fg_charge, fg_release, fg_set_held); memory (fg_release_small); region (fg_attach, fg_lock,
#   fg_unlock); slots (fg_ensure_slot, fg_reap).

cdef extern from "share_bits.h" nogil:
    bint fg_share_taken(const fg_region_share *)
    bint fg_share_holds(const fg_region_share *, uint32_t)
    void fg_share_join(fg_region_share *, uint32_t)
    void fg_share_leave(fg_region_share *, uint32_t)
    int fg_share_holders(const fg_region_share *)
    uint64_t fg_share_key(const void *)


cdef void fg_count_shares(fg_region *region) noexcept nogil:
    """Add up all shares again. Under the region's lock."""
    cdef uint64_t[GPUS] total
    cdef const fg_region_share *share
    cdef uint32_t at
    memset(total, 0, sizeof(total))
    for at in range(FG_MAX_SHARES):
        share = &region.share[at]
        if share.gpu < FG_MAX_GPUS and fg_share_taken(share):
            total[share.gpu] = fg_sum(total[share.gpu], share.bytes)
            if region.shares <= at:
                region.shares = at + 1
    memcpy(region.shared, total, sizeof(total))


cdef void fg_remove_holder(fg_region *region, uint32_t at, uint32_t slot) noexcept nogil:
    """Remove a slot from the holders of a share; with the last one the share is free. Under the region's lock."""
    cdef fg_region_share *share = &region.share[at]
    cdef uint32_t shares = fg_region_shares(region)
    if not fg_share_holds(share, slot):
        return
    fg_share_leave(share, slot)
    if fg_share_taken(share):
        return
    if share.gpu < FG_MAX_GPUS:
        region.shared[share.gpu] -= min(share.bytes, region.shared[share.gpu])
    while shares and not fg_share_taken(&region.share[shares - 1]):
        shares -= 1
    region.shares = shares


cdef void fg_leave_shares(fg_region *region, uint32_t slot) noexcept nogil:
    """Remove a slot from all shares. Under the region's lock."""
    cdef uint32_t at
    for at in range(fg_region_shares(region)):
        fg_remove_holder(region, at, slot)


cdef uint32_t fg_export_to_share(fg_charge *charge, uint64_t key) noexcept nogil:
    """Move a charge of this process to a share and return its number + 1; 0 if no share is free."""
    cdef fg_region *region = fg_attach()
    cdef fg_region_share *share
    cdef uint32_t at = 0
    if not fg_lock(region):
        return 0
    while at < fg_region_shares(region) and fg_share_taken(&region.share[at]):
        at += 1
    if at < FG_MAX_SHARES and fg_ensure_slot(region):
        share = &region.share[at]
        share.key = key
        share.gpu = charge.gpu
        share.bytes = charge.bytes
        share.giver = fg_slot
        if region.shares <= at:
            region.shares = at + 1
        fg_share_join(share, fg_slot - 1)
        region.shared[charge.gpu] = fg_sum(region.shared[charge.gpu], charge.bytes)
        fg_share_refs[at] = 1
        fg_set_held(region, charge.gpu, fg_held[charge.gpu] - charge.bytes)
        charge.share = at + 1
    fg_unlock(region)
    return charge.share


cdef bint fg_share_matches(const fg_region_share *share, uint64_t key, const fg_charge *charge, bint own) noexcept nogil:
    """Return whether a share can be the one of a key. Blocks have no key and are identified by size. `own`: held by this process."""
    if share.gpu != charge.gpu or share.key != key or not fg_share_taken(share):
        return False
    if key:
        return True
    return share.bytes == charge.bytes and fg_share_holds(share, fg_slot - 1) == own


cdef uint32_t fg_find_share(const fg_region *region, uint64_t key, const fg_charge *charge, bint own) noexcept nogil:
    """Return the number + 1 of the share; of several blocks of one size, the one with the fewest holders. Under the lock."""
    cdef uint32_t at, best = 0
    cdef const fg_region_share *share
    for at in range(fg_region_shares(region)):
        share = &region.share[at]
        if fg_share_matches(share, key, charge, own):
            if not best or fg_share_holders(share) < fg_share_holders(&region.share[best - 1]):
                best = at + 1
    return best


cdef bint fg_join_share(fg_charge *charge, uint64_t key) noexcept nogil:
    """Join a share that another process of the job gave. Return False if there is none."""
    cdef fg_region *region = fg_attach()
    charge.share = 0
    if region:
        fg_reap(region, False)
    if not fg_lock(region):
        return False
    if fg_ensure_slot(region):
        charge.share = fg_find_share(region, key, charge, False)
        if not charge.share:
            charge.share = fg_find_share(region, key, charge, True)
        if charge.share:
            fg_share_refs[charge.share - 1] += 1
            fg_share_join(&region.share[charge.share - 1], fg_slot - 1)
            charge.bytes = 0
    fg_unlock(region)
    return charge.share != 0


cdef void fg_leave_share(uint32_t number) noexcept nogil:
    """Leave a share."""
    cdef fg_region *region = fg_attach()
    if number <= FG_MAX_SHARES and fg_lock(region):
        if fg_share_refs[number - 1]:
            fg_share_refs[number - 1] -= 1
        if fg_slot and fg_share_refs[number - 1] == 0:
            fg_remove_holder(region, number - 1, fg_slot - 1)
        fg_unlock(region)


cdef void fg_release_charge(const fg_charge *charge) noexcept nogil:
    """Release a charge, whether a share or the slot counts it."""
    if charge.share:
        fg_leave_share(charge.share)
    elif charge.chunk:
        fg_release_small(charge)
    else:
        fg_release(charge.gpu, charge.bytes)
