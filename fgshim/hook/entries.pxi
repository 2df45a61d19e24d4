# What this process holds: a hash table with open addressing, grown by mmap.
#
# All functions but fg_record and fg_remove require fg_own_lock. A pointer to an entry is valid until the next
# fg_put or fg_drop, and so until the next call of the driver: a tool that the driver calls back may use the
# hook in the same thread.
#
# Exports: fg_charge_of, fg_drop, fg_forget_entries, fg_get, fg_put, fg_record, fg_remove.
# Needs: ledger (fg_charge).

cdef inline uint64_t fg_first_index(int kind, uint64_t key) noexcept nogil:
    """Return the index at which the search for an entry begins."""
    return (((key >> 4) ^ (key >> 32) ^ <uint64_t> kind * 0x1d) * <uint64_t> 0x9e3779b97f4a7c15) >> 20 & (fg_room - 1)


cdef fg_entry *fg_seek(int kind, uint64_t key) noexcept nogil:
    """Return the entry, or the free place where it belongs."""
    cdef uint64_t at = fg_first_index(kind, key)
    while fg_entries[at].kind != FG_FREE and (fg_entries[at].kind != kind or fg_entries[at].key != key):
        at = at + 1 & fg_room - 1
    return &fg_entries[at]


cdef fg_entry *fg_get(int kind, uint64_t key) noexcept nogil:
    """Return the entry, or NULL."""
    if not fg_room:
        return NULL
    cdef fg_entry *entry = fg_seek(kind, key)
    return NULL if entry.kind == FG_FREE else entry


cdef bint fg_grow() noexcept nogil:
    """Double the size of the table. Return False if there is no memory."""
    cdef fg_entry *old = fg_entries
    cdef uint64_t at, room = fg_room
    cdef int saved = errno
    cdef uint64_t more = room * 2 if room else 1024
    cdef void *fresh = fg_pages(more * sizeof(fg_entry))
    if fresh == NULL:
        set_errno(saved)
        return False
    global fg_entries, fg_room
    fg_entries = <fg_entry *> fresh
    fg_room = more
    for at in range(room):
        if old[at].kind != FG_FREE:
            fg_seek(old[at].kind, old[at].key)[0] = old[at]
    if room:
        munmap(old, room * sizeof(fg_entry))
    set_errno(saved)
    return True


cdef fg_entry *fg_put(int kind, uint64_t key, uint16_t gpu, uint64_t bytes) noexcept nogil:
    """Insert an entry, replacing an old one with the same key. Return NULL if there is no memory."""
    global fg_used
    if fg_used * 2 >= fg_room and not fg_grow():
        return NULL
    cdef fg_entry *entry = fg_seek(kind, key)
    fg_used += entry.kind == FG_FREE
    entry.kind = kind
    entry.key = key
    entry.gpu = gpu
    entry.bytes = bytes
    entry.block = 0
    entry.count = 0
    entry.share = 0
    return entry


cdef void fg_drop(fg_entry *entry) noexcept nogil:
    """Remove an entry, and move up the entries that were displaced by it."""
    global fg_used
    cdef uint64_t hole = entry - fg_entries, at = hole, home
    fg_used -= 1
    while True:
        at = at + 1 & fg_room - 1
        if fg_entries[at].kind == FG_FREE:
            break
        home = fg_first_index(fg_entries[at].kind, fg_entries[at].key)
        if (at - home & fg_room - 1) >= (at - hole & fg_room - 1):
            fg_entries[hole] = fg_entries[at]
            hole = at
    fg_entries[hole].kind = FG_FREE


cdef void fg_forget_entries() noexcept nogil:
    """Forget all entries, in the child of a fork: they belong to the parent."""
    global fg_entries, fg_room, fg_used
    if fg_room:
        munmap(fg_entries, fg_room * sizeof(fg_entry))
    fg_entries = NULL
    fg_room = fg_used = 0
    fg_index_clear()
    memset(fg_small, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_chunks, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memcpy(&fg_own_lock, &fg_unlocked, sizeof(fg_own_lock))


cdef void fg_charge_of(const fg_entry *entry, fg_charge *charge) noexcept nogil:
    """Fill `charge` with what is released for an entry. Under fg_own_lock."""
    charge.gpu = entry.gpu
    charge.bytes = entry.bytes
    charge.share = entry.share
    charge.context = entry.block
    charge.chunk = entry.key // FG_CHUNK_BYTES if entry.kind == FG_MEMORY and entry.bytes <= FG_SMALL_BYTES and not entry.share else 0
    charge.total = 0


cdef bint fg_record(int kind, uint64_t key, const fg_charge *charge) noexcept nogil:
    """Record a charge under a key. Return False if there is no memory to record it."""
    pthread_mutex_lock(&fg_own_lock)
    cdef fg_entry *entry = fg_put(kind, key, charge.gpu, charge.bytes)
    if entry:
        entry.block = charge.context
        entry.share = charge.share
        entry.count = 1
    pthread_mutex_unlock(&fg_own_lock)
    return entry != NULL


cdef bint fg_remove(int kind, uint64_t key, fg_charge *charge) noexcept nogil:
    """Remove an entry before the driver can give its address to another thread. Return False if it is unknown."""
    cdef fg_entry *entry
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(kind, key)
    if entry:
        fg_charge_of(entry, charge)
        fg_drop(entry)
    pthread_mutex_unlock(&fg_own_lock)
    return entry != NULL
