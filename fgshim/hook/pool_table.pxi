# Memory pools: the table of pools, and the charge for what they reserve.
#
# fg_pool_lock is held from a reservation until the pool was read after it, so that no growth is counted
# twice. No function here waits for a stream. A tool that the driver calls back may come here in the same
# thread; therefore rows never move, and the charge of a pool is always what its row says.
#
# Exports: fg_add_host_pool, fg_add_pool, fg_can_trim, fg_each_pool, fg_forget_pools, fg_pool_in, fg_pool_lacks,
#   fg_pool_of, fg_pool_tells, fg_read_pool, fg_refresh_pools, fg_round_to_step, fg_trim.
# Needs: driver (fg_function); graphs (fg_each_graph_memory, fg_trim_graph_memory); ledger (fg_change_charge,
#   fg_charge); region (fg_attach).

cdef void fg_forget_pools() noexcept nogil:
    """Forget the state of the parent, in the child of a fork."""
    global fg_pools, fg_pool_count
    if fg_pools:
        munmap(fg_pools, FG_MAX_POOLS * sizeof(fg_pool))
    fg_pools = NULL
    fg_pool_count = 0
    memcpy(&fg_pool_lock, &fg_unlocked, sizeof(fg_pool_lock))


cdef bint fg_pool_tells(void *pool, int attribute, uint64_t *value) noexcept nogil:
    """Ask the driver about a pool. Return False if it does not answer, as one that is older than the attribute."""
    cdef void *ask = fg_function(FG_cuMemPoolGetAttribute)
    value[0] = 0
    return ask != NULL and (<pool_attribute_t> ask)(pool, attribute, value) == CUDA_SUCCESS


cdef fg_pool *fg_pool_in(const void *pool, int state) noexcept nogil:
    """Return the row of a pool in a state; NULL if there is none. Under fg_pool_lock."""
    cdef uint32_t at
    for at in range(fg_pool_count):
        if fg_pools[at].state == state and fg_pools[at].pool == pool:
            return &fg_pools[at]
    return NULL


cdef inline fg_pool *fg_pool_of(const void *pool) noexcept nogil:
    """Return the row of a pool of device memory; NULL if it is unknown. Under fg_pool_lock."""
    return fg_pool_in(pool, FG_OPEN)


cdef bint fg_make_pool_room() noexcept nogil:
    """Allocate space for one more row. Return False if there is no memory. Under fg_pool_lock."""
    global fg_pools
    if fg_pools == NULL:
        fg_pools = <fg_pool *> fg_pages(FG_MAX_POOLS * sizeof(fg_pool))
    return fg_pools != NULL and fg_pool_count < FG_MAX_POOLS


cdef uint64_t fg_pool_takes(const fg_pool *row) noexcept nogil:
    """Return the bytes to charge for a pool: what it reserves. Managed memory counts before the driver backs it.

    Of a driver that does not tell what a pool reserves: the most that its live allocations were since it was trimmed.
    """
    cdef uint64_t reserved, used
    if not fg_pool_tells(row.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved):
        return fg_round_to_step(row, row.most)
    if not row.managed:
        return reserved
    if not fg_pool_tells(row.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used):
        used = row.most
    return max(reserved, used)


cdef fg_pool *fg_new_pool(void *pool) noexcept nogil:
    """Return an empty row for a pool; NULL if there is no memory. Under fg_pool_lock."""
    cdef fg_pool *row
    cdef uint32_t at = 0
    while at < fg_pool_count and fg_pools[at].state != FG_NO_POOL:
        at += 1
    if at == fg_pool_count:
        if not fg_make_pool_room():
            return NULL
        fg_publish(&fg_pool_count, at + 1)
    row = &fg_pools[at]
    memset(row, 0, sizeof(fg_pool))
    row.pool = pool
    return row


cdef fg_pool *fg_add_pool(void *pool, uint32_t gpu, bint managed) noexcept nogil:
    """Return a row for a pool, a new one if necessary; NULL if there is no memory. Under fg_pool_lock."""
    cdef fg_pool *row = fg_pool_of(pool)
    if row:
        return row
    row = fg_new_pool(pool)
    if row:
        row.gpu = gpu
        row.managed = managed
        row.state = FG_OPEN
    return row


cdef bint fg_add_host_pool(void *pool) noexcept nogil:
    """Remember that a pool is of host memory. Return False if there is no memory. Under fg_pool_lock."""
    cdef fg_pool *row = fg_pool_in(pool, FG_OF_HOST)
    if row == NULL:
        row = fg_new_pool(pool)
        if row:
            row.state = FG_OF_HOST
    return row != NULL


cdef uint64_t fg_divisor(uint64_t one, uint64_t other) noexcept nogil:
    """Return the greatest common divisor."""
    cdef uint64_t rest
    while other:
        rest = one % other
        one = other
        other = rest
    return one


cdef void fg_learn_step(fg_pool *row, uint64_t now, uint64_t needed) noexcept nogil:
    """Learn the step by which a pool grows, in bytes; the other processes of the job learn a large one, too."""
    cdef fg_region *region = fg_attach()
    if now <= row.reserved:
        return
    row.step = fg_divisor(now, row.step)
    row.waste = max(row.waste, now - row.reserved - min(needed, now - row.reserved))
    if row.waste >= FG_USUAL_STEP and region and row.step >> 20 > fg_peek_int(&region.pool_step):
        fg_publish(&region.pool_step, <uint32_t> min(row.step >> 20, <uint64_t> UINT32_MAX))


cdef uint64_t fg_step(const fg_pool *row) noexcept nogil:
    """Return the assumed step of a pool in bytes: 32 MiB, as drivers have it, unless a growth has shown another."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t seen = <uint64_t> fg_peek_int(&region.pool_step) << 20 if region else 0
    if row.waste >= FG_USUAL_STEP and row.step:
        return row.step
    if row.step == 0:  # never seen to grow: as the pools of other processes do
        return seen if seen else FG_USUAL_STEP
    return fg_divisor(row.step, FG_USUAL_STEP) if row.step % FG_USUAL_STEP else FG_USUAL_STEP


cdef uint64_t fg_round_to_step(const fg_pool *row, uint64_t size) noexcept nogil:
    cdef uint64_t step = fg_step(row)
    if size > UINT64_MAX - step:
        return UINT64_MAX
    return (size + step - 1) // step * step


cdef uint64_t fg_pool_lacks(const fg_pool *row, uint64_t size) noexcept nogil:
    """Return how many bytes a pool lacks for an allocation, if its free memory is contiguous."""
    cdef uint64_t used
    if not fg_pool_tells(row.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used):
        used = row.held
    used = fg_sum(used, size)
    return used - row.reserved if used > row.reserved else 0


cdef void fg_read_pool(fg_pool *row, const fg_charge *reserved, uint64_t needed) noexcept nogil:
    """Charge what a pool reserves now. `reserved` was charged for it before; NULL: nothing. Under fg_pool_lock."""
    cdef uint64_t before, now
    if row.state != FG_OPEN:
        return
    now = fg_pool_takes(row)
    before = row.reserved + (reserved.bytes if reserved else 0)  # read after the driver's answer: a tool may have changed it meanwhile
    fg_learn_step(row, now, needed)
    row.reserved = now
    fg_change_charge(row.gpu, before, now, reserved != NULL)


cdef void fg_each_pool(int gpu, bint trim) noexcept nogil:
    """Read every pool of a GPU again (-1: of all), and trim it first if `trim`. Under fg_pool_lock."""
    cdef uint32_t at
    cdef void *empty = fg_function(FG_cuMemPoolTrimTo)
    for at in range(fg_pool_count):
        if fg_pools[at].state == FG_OPEN and (gpu < 0 or fg_pools[at].gpu == gpu):
            if trim and empty:
                (<pool_trim_t> empty)(fg_pools[at].pool, 0)
                fg_pools[at].most = fg_pools[at].held
            fg_read_pool(&fg_pools[at], NULL, 0)


cdef void fg_refresh_pools() noexcept nogil:
    """Read pools and graphs again: they may keep less than before."""
    fg_publish(&fg_stale, 0)
    if fg_peek_int(&fg_pool_count) or fg_peek_int(&fg_graph_count):
        pthread_mutex_lock(&fg_pool_lock)
        fg_each_pool(-1, False)
        fg_each_graph_memory()
        pthread_mutex_unlock(&fg_pool_lock)


cdef inline bint fg_can_trim() noexcept nogil:
    return fg_peek_int(&fg_pool_count) != 0 or fg_peek_int(&fg_graph_count) != 0


cdef bint fg_trim(int gpu, int device) noexcept nogil:
    """Trim the unused memory of pools and graphs, as the driver does when a GPU is full."""
    pthread_mutex_lock(&fg_pool_lock)
    fg_each_pool(gpu, True)
    fg_trim_graph_memory(gpu, device)
    pthread_mutex_unlock(&fg_pool_lock)
    return True
