# Stream-ordered memory: what is charged is what a pool reserves, for that is what the card has less of.
#
# fg_pool_lock is held from the reservation to the reading after it, so that no
# growth is counted twice. Nothing here waits for a stream.

cdef struct fg_stream_calls:  # the legacy ones, or those of the thread's own stream 0
    int allocate, free, capturing, context


cdef uint64_t fg_pool_has(void *pool, int attribute) noexcept nogil:
    cdef uint64_t value = 0
    cdef void *ask = fg_function(FG_cuMemPoolGetAttribute)
    if not ask or (<pool_attribute_t> ask)(pool, attribute, &value) != CUDA_SUCCESS:
        return 0
    return value


cdef bint fg_know_pool(void *pool, uint32_t gpu) noexcept nogil:
    """Have a place to write down what the pool reserves; False where there is no memory for one."""
    cdef bint known
    pthread_mutex_lock(&fg_own_lock)
    known = fg_get(FG_POOL, <uint64_t> pool) != NULL or fg_put(FG_POOL, <uint64_t> pool, gpu, 0) != NULL
    pthread_mutex_unlock(&fg_own_lock)
    return known


cdef bint fg_read_pool(uint64_t pool, uint32_t gpu, const fg_charge *reserved) noexcept nogil:
    """Charge what the pool reserves now, `reserved` being a part of it already; False: beyond the limit."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t now = fg_pool_has(<void *> pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    cdef uint64_t before = 0, held, total
    cdef fg_entry *entry
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_POOL, pool)
    if entry:
        before = entry.bytes + (reserved.bytes if reserved else 0)
        entry.bytes = now
    pthread_mutex_unlock(&fg_own_lock)
    if entry == NULL or not fg_lock(region):
        return False
    held = fg_held[gpu] + now
    fg_hold(region, gpu, held - before if held > before else 0)
    total = fg_total(region, gpu)
    pthread_mutex_unlock(&region.lock)
    if reserved:
        fg_raise(&region.gpu[gpu].peak, total)
    return total <= region.gpu[gpu].limit


cdef void fg_each_pool(int gpu, bint trim) noexcept nogil:
    """Read every pool of this process again (gpu -1: on any card), emptied of what it does not use if so told."""
    cdef uint64_t at, pool
    cdef uint32_t on
    cdef bint wanted
    cdef void *empty = fg_function(FG_cuMemPoolTrimTo)
    for at in range(fg_room):
        pthread_mutex_lock(&fg_own_lock)
        wanted = at < fg_room and fg_entries[at].kind == FG_POOL and (gpu < 0 or fg_entries[at].gpu == gpu)
        pool = fg_entries[at].key if wanted else 0
        on = fg_entries[at].gpu if wanted else 0
        pthread_mutex_unlock(&fg_own_lock)
        if wanted:
            if trim and empty:
                (<pool_trim_t> empty)(<void *> pool, 0)
            fg_read_pool(pool, on, NULL)


cdef void fg_read_pools() noexcept nogil:
    pthread_mutex_lock(&fg_pool_lock)
    fg_each_pool(-1, False)
    pthread_mutex_unlock(&fg_pool_lock)


cdef bint fg_trim_pools(int gpu) noexcept nogil:
    """As the driver does when a card is full: memory that pools only keep is given up first."""
    pthread_mutex_lock(&fg_pool_lock)
    fg_each_pool(gpu, True)
    pthread_mutex_unlock(&fg_pool_lock)
    return True


cdef int fg_device_of(void *stream, int context_call, int *device) noexcept nogil:
    """The device whose pool serves a stream."""
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


cdef bint fg_reserve_growth(void *pool, uint64_t size, fg_charge *charge) noexcept nogil:
    """Reserve what the pool can grow by; near the limit, only what it must grow by."""
    cdef uint64_t mask = (<uint64_t> 2 << 20) - 1
    cdef uint64_t rounded = size if size > UINT64_MAX - mask else (size + mask) & ~mask
    cdef uint64_t used, has
    charge.bytes = rounded
    if fg_reserve(charge):
        return True
    used = fg_sum(fg_pool_has(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), size)
    has = fg_pool_has(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    charge.bytes = 0 if used <= has else used - has
    return fg_reserve(charge)


cdef int fg_from_pool(uint64_t *address, size_t size, void *stream, int device, const fg_stream_calls *calls) noexcept nogil:
    """Under fg_pool_lock."""
    cdef fg_charge charge
    cdef void *pool = NULL
    cdef int gpu = fg_gpu_of(device)
    cdef int status = (<device_pool_t> fg_function(FG_cuDeviceGetMemPool))(&pool, device)
    if status != CUDA_SUCCESS:
        return status
    if gpu < 0 or not fg_know_pool(pool, gpu):
        return CUDA_ERROR_OUT_OF_MEMORY
    charge.gpu = gpu
    fg_read_pool(<uint64_t> pool, gpu, NULL)
    if not fg_reserve_growth(pool, size, &charge):
        fg_each_pool(gpu, True)
        if not fg_reserve_growth(pool, size, &charge):
            fg_refused(gpu)
            return CUDA_ERROR_OUT_OF_MEMORY
    status = (<alloc_async_t> fg_function(calls.allocate))(address, size, stream)
    if fg_read_pool(<uint64_t> pool, gpu, &charge) or status != CUDA_SUCCESS:
        return status
    (<free_async_t> fg_function(calls.free))(address[0], stream)  # it grew by more than was asked for
    fg_each_pool(gpu, True)
    fg_refused(gpu)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef bint fg_captures(void *stream, int call) noexcept nogil:
    """Whether calls on the stream are being recorded: then they take no memory now."""
    cdef int how = 0
    cdef void *ask = fg_function(call)
    return ask != NULL and (<stream_capturing_t> ask)(stream, &how) == CUDA_SUCCESS and how != 0


cdef int fg_alloc_async(uint64_t *address, size_t size, void *stream, fg_stream_calls calls) noexcept nogil:
    cdef void *real = fg_function(calls.allocate)
    cdef int device = 0
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if fg_captures(stream, calls.capturing):
        return (<alloc_async_t> real)(address, size, stream)
    cdef int status = fg_device_of(stream, calls.context, &device)
    if status != CUDA_SUCCESS:
        return status
    pthread_mutex_lock(&fg_pool_lock)
    status = fg_from_pool(address, size, stream, device, &calls)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef int fg_free_async(uint64_t address, void *stream, fg_stream_calls calls) noexcept nogil:
    """Memory of cuMemAlloc may be freed so too; that of a pool goes back to the pool."""
    cdef fg_charge charge
    cdef void *real = fg_function(calls.free)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if fg_captures(stream, calls.capturing):
        return (<free_async_t> real)(address, stream)
    cdef bint ours = fg_forget(FG_MEMORY, address, &charge)
    cdef int status = (<free_async_t> real)(address, stream)
    fg_freed(status, ours, address, &charge)
    return status


cdef inline fg_stream_calls fg_legacy() noexcept nogil:
    cdef fg_stream_calls calls
    calls.allocate = FG_cuMemAllocAsync
    calls.free = FG_cuMemFreeAsync
    calls.capturing = FG_cuStreamIsCapturing
    calls.context = FG_cuStreamGetCtx
    return calls


cdef inline fg_stream_calls fg_per_thread() noexcept nogil:
    cdef fg_stream_calls calls
    calls.allocate = FG_cuMemAllocAsync_ptsz
    calls.free = FG_cuMemFreeAsync_ptsz
    calls.capturing = FG_cuStreamIsCapturing_ptsz
    calls.context = FG_cuStreamGetCtx_ptsz
    return calls


cdef public int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) noexcept nogil:
    return fg_alloc_async(address, size, stream, fg_legacy())


cdef public int cuMemAllocAsync_ptsz(uint64_t *address, size_t size, void *stream) noexcept nogil:
    return fg_alloc_async(address, size, stream, fg_per_thread())


cdef public int cuMemFreeAsync(uint64_t address, void *stream) noexcept nogil:
    return fg_free_async(address, stream, fg_legacy())


cdef public int cuMemFreeAsync_ptsz(uint64_t address, void *stream) noexcept nogil:
    return fg_free_async(address, stream, fg_per_thread())
