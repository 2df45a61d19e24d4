# Allocation from pools: reserve what the pool can grow by, call the driver, charge what the pool has reserved
# then.
#
# Exports: fg_alloc_async, fg_alloc_from, fg_back_to_pool, fg_free_async, fg_is_over_limit, fg_learn_pool,
#   fg_stream_calls.
# Needs: driver (fg_function); entries (fg_record); ledger (fg_charge, fg_job_bytes, fg_record_refusal,
#   fg_release, fg_reserve); memory (fg_device_at, fg_freed, fg_gpu_of, fg_outgrows_gpu, fg_remove_address);
#   pool_table (fg_add_host_pool, fg_add_pool, fg_each_pool, fg_pool_in, fg_pool_lacks, fg_pool_of,
#   fg_pool_tells, fg_read_pool, fg_round_to_step); region (fg_attach, fg_limit, fg_lock, fg_unlock).

cdef struct fg_stream_calls:  # those of the legacy stream 0, or those of the thread's stream 0
    int allocate, from_pool, free, capturing, context


cdef int fg_device_of(void *stream, int context_call, int *device) noexcept nogil:
    """Return the status of finding the device whose pool serves a stream."""
    cdef void *context = NULL
    cdef void *current = NULL
    cdef int status = (<stream_ctx_t> fg_function(context_call))(stream, &context)
    if status == CUDA_SUCCESS:
        status = (<ctx_out_t> fg_function(FG_cuCtxGetCurrent))(&current)
    if status != CUDA_SUCCESS:
        return status
    if context == current:
        return (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(device)
    status = (<ctx_in_t> fg_function(FG_cuCtxPushCurrent_v2))(context)
    if status == CUDA_SUCCESS:
        status = (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(device)
        (<ctx_out_t> fg_function(FG_cuCtxPopCurrent_v2))(&current)
    return status


cdef bint fg_reserve_growth(const fg_pool *row, uint64_t size, fg_charge *charge, bint likely) noexcept nogil:
    """Reserve the most by which a pool can grow; if `likely`, only what it must grow."""
    charge.bytes = fg_round_to_step(row, fg_pool_lacks(row, size) if likely else size)
    return fg_reserve(charge)


cdef bint fg_reserve_for(const fg_pool *row, uint64_t size, fg_charge *charge) noexcept nogil:
    """Reserve the largest growth; nothing if the pool has enough; else the necessary growth after trimming all pools."""
    if fg_reserve_growth(row, size, charge, False):
        return True
    if fg_pool_lacks(row, size) == 0 and fg_reserve_growth(row, size, charge, True):
        return True
    fg_each_pool(row.gpu, True)
    return fg_reserve_growth(row, size, charge, False) or fg_reserve_growth(row, size, charge, True)


cdef bint fg_is_over_limit(uint32_t gpu) noexcept nogil:
    cdef fg_region *region = fg_attach()
    cdef bint over
    if not fg_lock(region):
        return True
    over = fg_job_bytes(region, gpu) > fg_limit(gpu) and not fg_load_int(&fg_outgrown[gpu])
    fg_unlock(region)
    return over


cdef int fg_ask_pool(
    fg_pool *row, bint by_name, uint64_t *address, size_t size, void *stream, const fg_stream_calls *calls
) noexcept nogil:
    if by_name:
        return (<from_pool_t> fg_function(calls.from_pool))(address, size, row.pool, stream)
    return (<alloc_async_t> fg_function(calls.allocate))(address, size, stream)


cdef bint fg_record_async(fg_pool *row, uint64_t address, size_t size) noexcept nogil:
    cdef fg_charge charge
    charge.gpu = row.gpu
    charge.bytes = size
    charge.share = 0
    charge.context = <uint64_t> (row - fg_pools)
    charge.chunk = 0
    if not fg_record(FG_ASYNC, address, &charge):
        return False
    row.live += 1
    row.held += size
    row.most = max(row.most, row.held)
    return True


cdef int fg_pool_gpu(uint32_t gpu) noexcept nogil:
    """Return the CUDA device of a position in the region; -1 if it was not used yet."""
    cdef int device
    for device in range(64):
        if fg_load_int(&fg_devices[device]) == <int> gpu + 1:
            return device
    return -1


cdef int fg_from_pool(
    fg_pool *row, bint by_name, uint64_t *address, size_t size, void *stream, const fg_stream_calls *calls
) noexcept nogil:
    """Allocate from a pool. Under fg_pool_lock."""
    cdef fg_charge charge
    cdef uint64_t needed
    cdef int status
    if row == NULL:
        return CUDA_ERROR_OUT_OF_MEMORY
    charge.gpu = row.gpu
    fg_read_pool(row, NULL, 0)
    if row.managed:
        fg_outgrows_gpu(row.gpu, fg_pool_gpu(row.gpu), size)
    if not fg_reserve_for(row, size, &charge):
        fg_record_refusal(row.gpu, size)
        return CUDA_ERROR_OUT_OF_MEMORY
    needed = fg_pool_lacks(row, size)
    status = fg_ask_pool(row, by_name, address, size, stream, calls)
    fg_read_pool(row, &charge, needed)
    if status != CUDA_SUCCESS:
        return status
    if not fg_is_over_limit(row.gpu) and fg_record_async(row, address[0], size):
        return CUDA_SUCCESS
    (<free_async_t> fg_function(calls.free))(address[0], stream)  # it grew by more than was reserved
    fg_each_pool(row.gpu, True)
    fg_record_refusal(row.gpu, size)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef bint fg_captures(void *stream, int call) noexcept nogil:
    """Return whether the stream is being captured, so that a call allocates nothing now."""
    cdef int how = 0
    cdef void *ask = fg_function(call)
    return ask != NULL and (<stream_capturing_t> ask)(stream, &how) == CUDA_SUCCESS and how != 0


cdef int fg_alloc_async(uint64_t *address, size_t size, void *stream, fg_stream_calls calls) noexcept nogil:
    """Allocate from the current pool of the stream's device."""
    cdef void *real = fg_function(calls.allocate)
    cdef void *pool = NULL
    cdef int device = 0, gpu
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if fg_captures(stream, calls.capturing):
        return (<alloc_async_t> real)(address, size, stream)
    cdef int status = fg_device_of(stream, calls.context, &device)
    if status != CUDA_SUCCESS:
        return status
    gpu = fg_gpu_of(device)
    pthread_mutex_lock(&fg_pool_lock)  # so that no thread sets another pool meanwhile
    status = (<device_pool_t> fg_function(FG_cuDeviceGetMemPool))(&pool, device)
    if status == CUDA_SUCCESS:
        status = fg_from_pool(fg_add_pool(pool, gpu, False) if gpu >= 0 else NULL, False, address, size, stream, &calls)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef int fg_pool_device(bint managed, int kind, int place) noexcept nogil:
    """Return the device that a pool is charged to; -1: none. Managed memory of any other place moves to the current one."""
    cdef int device = fg_device_at(kind, place)
    if device >= 0 or not managed:
        return device
    return device if (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device) == CUDA_SUCCESS else 0


cdef bint fg_learn_pool(void *pool, bint managed, int kind, int place) noexcept nogil:
    """Record whose memory a pool gives. Return False if it is on a GPU that is not the job's. Under fg_pool_lock."""
    cdef int device = fg_pool_device(managed, kind, place)
    cdef int gpu = fg_gpu_of(device) if device >= 0 else -1
    if device < 0:
        return fg_add_host_pool(pool)
    return gpu >= 0 and fg_add_pool(pool, gpu, managed) != NULL


cdef fg_pool *fg_unknown_pool(void *pool) noexcept nogil:
    """Return the row of a pool that no hooked call has returned; NULL: it is refused. Under fg_pool_lock.

    The default pool of a device is charged to it, and any other one to the current device as managed memory, unless
    the driver tells that it is of the host: drivers before CUDA 13.2 do not tell the type of a pool.
    """
    cdef void *standard = NULL
    cdef void *ask = fg_function(FG_cuDeviceGetDefaultMemPool)
    cdef uint64_t kind, place, allocation
    cdef int device = 0
    while ask and device < 64 and (<device_pool_t> ask)(&standard, device) == CUDA_SUCCESS:
        if standard == pool and fg_gpu_of(device) >= 0:
            return fg_add_pool(pool, fg_gpu_of(device), False)
        device += 1
    if not fg_pool_tells(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &kind):
        kind = 0
    if not fg_pool_tells(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &place):
        place = 0
    if not fg_pool_tells(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &allocation):
        allocation = 0
    cdef bint of_host = CU_MEM_LOCATION_TYPE_HOST <= kind <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
    cdef bint managed = not (of_host and allocation == CU_MEM_ALLOCATION_TYPE_PINNED)
    fg_learn_pool(pool, managed, <int> kind, <int> place)
    return fg_pool_of(pool)


cdef int fg_alloc_from(uint64_t *address, size_t size, void *pool, void *stream, fg_stream_calls calls) noexcept nogil:
    """Allocate from a given pool. A pool of host memory is not charged."""
    cdef void *real = fg_function(calls.from_pool)
    cdef fg_pool *row
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if pool == NULL or fg_captures(stream, calls.capturing):  # the driver refuses no pool with its own error
        return (<from_pool_t> real)(address, size, pool, stream)
    pthread_mutex_lock(&fg_pool_lock)
    row = fg_pool_of(pool)
    if row == NULL and fg_pool_in(pool, FG_OF_HOST) == NULL:
        row = fg_unknown_pool(pool)
    if row == NULL and fg_pool_in(pool, FG_OF_HOST) != NULL:
        status = (<from_pool_t> real)(address, size, pool, stream)
    else:
        status = fg_from_pool(row, True, address, size, stream, &calls)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef void fg_back_to_pool(const fg_charge *charge) noexcept nogil:
    """Count one allocation less. The last one of a destroyed pool releases the rest of the pool."""
    cdef fg_pool *row
    fg_publish(&fg_stale, 1)
    pthread_mutex_lock(&fg_pool_lock)
    row = &fg_pools[charge.context]
    row.live -= 1
    row.held -= min(charge.bytes, row.held)
    if row.state == FG_DESTROYED and row.live == 0:
        fg_release(row.gpu, row.reserved)
        row.state = FG_NO_POOL
    elif row.state == FG_OPEN:
        fg_read_pool(row, NULL, 0)
    pthread_mutex_unlock(&fg_pool_lock)


cdef int fg_free_async(uint64_t address, void *stream, fg_stream_calls calls) noexcept nogil:
    """Free memory of a pool, or of cuMemAlloc, in stream order."""
    cdef fg_charge charge
    cdef void *real = fg_function(calls.free)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if fg_captures(stream, calls.capturing):
        return (<free_async_t> real)(address, stream)
    cdef int kind = fg_remove_address(address, &charge)
    cdef int status = (<free_async_t> real)(address, stream)
    fg_freed(status, kind, address, &charge)
    return status
