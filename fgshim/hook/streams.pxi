# The stream-ordered calls, the calls on pools, and the calls after which pools may keep less.
#
# Hooks: cuMemAllocAsync, cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
#   cuMemFreeAsync, cuMemFreeAsync_ptsz, cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolTrimTo,
#   cuMemPoolSetAttribute, cuDeviceSetMemPool, cuMemSetMemPool, cuMemGetDefaultMemPool, cuMemGetMemPool, cuStreamSynchronize, cuStreamSynchronize_ptsz, cuEventSynchronize,
#   cuCtxSynchronize_v2, cuCtxSynchronize.
# Exports: nothing.
# Needs: driver (fg_function); ledger (fg_release); pool_table (fg_pool_in, fg_pool_of, fg_read_pool,
#   fg_refresh_pools); pools (fg_alloc_async, fg_alloc_from, fg_free_async, fg_learn_pool, fg_stream_calls).

cdef inline fg_stream_calls fg_legacy() noexcept nogil:
    cdef fg_stream_calls calls
    calls.allocate = FG_cuMemAllocAsync
    calls.from_pool = FG_cuMemAllocFromPoolAsync
    calls.free = FG_cuMemFreeAsync
    calls.capturing = FG_cuStreamIsCapturing
    calls.context = FG_cuStreamGetCtx
    return calls


cdef inline fg_stream_calls fg_per_thread() noexcept nogil:
    cdef fg_stream_calls calls
    calls.allocate = FG_cuMemAllocAsync_ptsz
    calls.from_pool = FG_cuMemAllocFromPoolAsync_ptsz
    calls.free = FG_cuMemFreeAsync_ptsz
    calls.capturing = FG_cuStreamIsCapturing_ptsz
    calls.context = FG_cuStreamGetCtx_ptsz
    return calls


cdef public int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) noexcept nogil:
    return fg_alloc_async(address, size, stream, fg_legacy())


cdef public int cuMemAllocAsync_ptsz(uint64_t *address, size_t size, void *stream) noexcept nogil:
    return fg_alloc_async(address, size, stream, fg_per_thread())


cdef public int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *stream) noexcept nogil:
    return fg_alloc_from(address, size, pool, stream, fg_legacy())


cdef public int cuMemAllocFromPoolAsync_ptsz(uint64_t *address, size_t size, void *pool, void *stream) noexcept nogil:
    return fg_alloc_from(address, size, pool, stream, fg_per_thread())


cdef public int cuMemFreeAsync(uint64_t address, void *stream) noexcept nogil:
    return fg_free_async(address, stream, fg_legacy())


cdef public int cuMemFreeAsync_ptsz(uint64_t address, void *stream) noexcept nogil:
    return fg_free_async(address, stream, fg_per_thread())


cdef public int cuMemPoolCreate(void **pool, const fg_pool_props *props) noexcept nogil:
    """Create a pool. Pools of device memory and of managed memory are counted, which evicts that of other jobs."""
    cdef void *real = fg_function(FG_cuMemPoolCreate)
    cdef bint known = True
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_pool_lock)
    status = (<pool_create_t> real)(pool, props)  # the driver reads the properties first, and may refuse the pointer
    if status == CUDA_SUCCESS:
        known = fg_learn_pool(pool[0], props.type == CU_MEM_ALLOCATION_TYPE_MANAGED, props.location_type, props.location_id)
    pthread_mutex_unlock(&fg_pool_lock)
    if known:
        return status
    (<destroy_t> fg_function(FG_cuMemPoolDestroy))(pool[0])
    return CUDA_ERROR_OUT_OF_MEMORY


cdef int fg_pool_at(int call, void **pool, const fg_location *place, int kind) noexcept nogil:
    """Answer which pool serves a location, and remember whose memory it gives: older drivers do not tell that later."""
    cdef void *real = fg_function(call)
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_pool_lock)
    status = (<location_pool_t> real)(pool, place, kind)
    if status == CUDA_SUCCESS and fg_pool_of(pool[0]) == NULL:
        fg_learn_pool(pool[0], kind == CU_MEM_ALLOCATION_TYPE_MANAGED, place.type, place.id)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef public int cuMemGetDefaultMemPool(void **pool, const fg_location *place, int kind) noexcept nogil:
    return fg_pool_at(FG_cuMemGetDefaultMemPool, pool, place, kind)


cdef public int cuMemGetMemPool(void **pool, const fg_location *place, int kind) noexcept nogil:
    return fg_pool_at(FG_cuMemGetMemPool, pool, place, kind)


cdef void fg_close_pool(fg_pool *row) noexcept nogil:
    """Mark a pool as destroyed. Allocations that were not freed live on. Under fg_pool_lock."""
    if row.live == 0:
        fg_release(row.gpu, row.reserved)
    row.state = FG_DESTROYED if row.live else FG_NO_POOL


cdef public int cuMemPoolDestroy(void *pool) noexcept nogil:
    cdef void *real = fg_function(FG_cuMemPoolDestroy)
    cdef void *trim = fg_function(FG_cuMemPoolTrimTo)
    cdef fg_pool *row
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_pool_lock)
    row = fg_pool_of(pool)
    if row and trim:  # so that the charge is the memory that lives on
        (<pool_trim_t> trim)(pool, 0)
        row.most = row.held
        fg_read_pool(row, NULL, 0)
    cdef int status = (<destroy_t> real)(pool)
    if row and status == CUDA_SUCCESS:
        fg_close_pool(row)
    row = fg_pool_in(pool, FG_OF_HOST)
    if row and status == CUDA_SUCCESS:
        row.state = FG_NO_POOL
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef public int cuMemPoolTrimTo(void *pool, size_t keep) noexcept nogil:
    cdef void *real = fg_function(FG_cuMemPoolTrimTo)
    cdef fg_pool *row
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<pool_trim_t> real)(pool, keep)
    pthread_mutex_lock(&fg_pool_lock)
    row = fg_pool_of(pool)
    if row and status == CUDA_SUCCESS:
        row.most = min(row.most, max(row.held, keep))
    pthread_mutex_unlock(&fg_pool_lock)
    fg_refresh_pools()
    return status


cdef public int cuMemPoolSetAttribute(void *pool, int attribute, void *value) noexcept nogil:
    cdef void *real = fg_function(FG_cuMemPoolSetAttribute)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<pool_attribute_t> real)(pool, attribute, value)
    fg_refresh_pools()
    return status


cdef public int cuDeviceSetMemPool(int device, void *pool) noexcept nogil:
    """Set the pool of a device, but not between the question which one serves an allocation and the allocation."""
    cdef void *real = fg_function(FG_cuDeviceSetMemPool)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_pool_lock)
    cdef int status = (<set_pool_t> real)(device, pool)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef public int cuMemSetMemPool(void *location, int kind, void *pool) noexcept nogil:
    cdef void *real = fg_function(FG_cuMemSetMemPool)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_pool_lock)
    cdef int status = (<set_location_pool_t> real)(location, kind, pool)
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef inline int fg_after(int status) noexcept nogil:
    """Read the pools again after a wait: what was freed before may have left its pool."""
    if fg_peek_int(&fg_stale):
        fg_refresh_pools()
    return status


cdef inline int fg_wait_on(int call, void *what) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_after((<ctx_in_t> real)(what))


cdef public int cuStreamSynchronize(void *stream) noexcept nogil:
    return fg_wait_on(FG_cuStreamSynchronize, stream)


cdef public int cuStreamSynchronize_ptsz(void *stream) noexcept nogil:
    return fg_wait_on(FG_cuStreamSynchronize_ptsz, stream)


cdef public int cuEventSynchronize(void *event) noexcept nogil:
    return fg_wait_on(FG_cuEventSynchronize, event)


cdef public int cuCtxSynchronize_v2(void *context) noexcept nogil:
    return fg_wait_on(FG_cuCtxSynchronize_v2, context)


cdef public int cuCtxSynchronize() noexcept nogil:
    cdef void *real = fg_function(FG_cuCtxSynchronize)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_after((<ctx_void_t> real)())
