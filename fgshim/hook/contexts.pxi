# The end of contexts: all memory that was allocated in a context, by any thread, is released with it.
#
# The driver is called under fg_own_lock, so that an address that it reuses at once is recorded after the old
# entry was removed.
#
# Hooks: cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset,
#   cuDevicePrimaryCtxReset_v2, cuCtxDestroy, cuCtxDestroy_v2, cuCtxDetach, cuCtxFromGreenCtx,
#   cuGreenCtxDestroy.
# Exports: nothing.
# Needs: context_charges (fg_leave_context, fg_leave_primary_context); driver (fg_function); entries
#   (fg_charge_of, fg_drop, fg_get, fg_record); ledger (fg_charge); memory (fg_gpu_of); pace
#   (fg_forget_marks); pool_table (fg_refresh_pools); shares (fg_release_charge).

cdef bint fg_is_freed_with(const fg_entry *entry, uint64_t context, int gpu) noexcept nogil:
    """Return whether an entry is freed with a context. `gpu` is that of a primary context, whose green contexts belong to it; -1 for any other."""
    if not FG_MEMORY <= entry.kind <= FG_IPC:
        return False
    if entry.block == context:
        return True
    return gpu >= 0 and entry.gpu == gpu and fg_get(FG_GREEN, entry.block) != NULL


cdef void fg_drop_empty_chunks() noexcept nogil:
    """Under fg_own_lock."""
    cdef uint64_t at = 0
    while at < fg_room:
        if fg_entries[at].kind == FG_CHUNK and fg_entries[at].count == 0:
            fg_drop(&fg_entries[at])
        else:
            at += 1


cdef void fg_end_context(uint64_t context, int gpu) noexcept nogil:
    """Release all charges of a context. Under fg_own_lock."""
    global fg_keeps_chunks
    cdef uint64_t at = 0
    cdef fg_charge charge
    fg_keeps_chunks = 1
    while at < fg_room:
        if fg_entries[at].kind == FG_FREE or not fg_is_freed_with(&fg_entries[at], context, gpu):
            at += 1
            continue
        fg_charge_of(&fg_entries[at], &charge)
        fg_drop(&fg_entries[at])  # another entry may have moved here: examine this index again
        fg_release_charge(&charge)
    fg_keeps_chunks = 0
    fg_drop_empty_chunks()


cdef void fg_end_primary(uint64_t context, int device) noexcept nogil:
    cdef int gpu = fg_gpu_of(device)
    fg_end_context(context, gpu)
    fg_leave_primary_context(gpu)


cdef void fg_end_own(uint64_t context) noexcept nogil:
    """Release all charges of a context that the program created."""
    fg_end_context(context, -1)
    fg_leave_context(context)


cdef bint fg_primary_lives(int device) noexcept nogil:
    cdef unsigned int flags = 0
    cdef int active = 0
    cdef void *ask = fg_function(FG_cuDevicePrimaryCtxGetState)
    return ask != NULL and (<primary_state_t> ask)(device, &flags, &active) == CUDA_SUCCESS and active != 0


cdef uint64_t fg_primary(int device) noexcept nogil:
    """Return the primary context of a device if it is active. The query retains it, so it is released at once."""
    cdef void *context = NULL
    cdef void *retain = fg_function(FG_cuDevicePrimaryCtxRetain)
    cdef void *release = fg_function(FG_cuDevicePrimaryCtxRelease_v2)
    if not release:
        release = fg_function(FG_cuDevicePrimaryCtxRelease)
    if not retain or not release or not fg_primary_lives(device):
        return 0
    if (<primary_retain_t> retain)(&context, device) != CUDA_SUCCESS:
        return 0
    (<device_t> release)(device)
    return <uint64_t> context


cdef int fg_leave_primary(int call, int device) noexcept nogil:
    """Release or reset a primary context, and release its charges if it is gone afterwards."""
    cdef uint64_t context
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    context = fg_primary(device)
    fg_forget_marks(<void *> context)
    cdef int status = (<device_t> real)(device)
    if status == CUDA_SUCCESS and context and not fg_primary_lives(device):
        fg_end_primary(context, device)
    pthread_mutex_unlock(&fg_own_lock)
    fg_refresh_pools()
    return status


cdef public int cuDevicePrimaryCtxRelease(int device) noexcept nogil:
    return fg_leave_primary(FG_cuDevicePrimaryCtxRelease, device)


cdef public int cuDevicePrimaryCtxRelease_v2(int device) noexcept nogil:
    return fg_leave_primary(FG_cuDevicePrimaryCtxRelease_v2, device)


cdef public int cuDevicePrimaryCtxReset(int device) noexcept nogil:
    return fg_leave_primary(FG_cuDevicePrimaryCtxReset, device)


cdef public int cuDevicePrimaryCtxReset_v2(int device) noexcept nogil:
    return fg_leave_primary(FG_cuDevicePrimaryCtxReset_v2, device)


cdef int fg_destroy_context(int call, void *context) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    fg_forget_marks(context)
    cdef int status = (<ctx_in_t> real)(context)
    if status == CUDA_SUCCESS:
        fg_end_own(<uint64_t> context)
    pthread_mutex_unlock(&fg_own_lock)
    fg_refresh_pools()
    return status


cdef public int cuCtxDestroy(void *context) noexcept nogil:
    return fg_destroy_context(FG_cuCtxDestroy, context)


cdef public int cuCtxDestroy_v2(void *context) noexcept nogil:
    return fg_destroy_context(FG_cuCtxDestroy_v2, context)


cdef public int cuCtxDetach(void *context) noexcept nogil:
    """Detach from the current context. The last detach destroys it."""
    cdef void *current = NULL
    cdef void *ask = fg_function(FG_cuCtxGetCurrent)
    cdef void *real = fg_function(FG_cuCtxDetach)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    fg_forget_marks(context)
    cdef int status = (<ctx_in_t> real)(context)
    if status == CUDA_SUCCESS and ask and (<ctx_out_t> ask)(&current) == CUDA_SUCCESS and current != context:
        fg_end_own(<uint64_t> context)
    pthread_mutex_unlock(&fg_own_lock)
    fg_refresh_pools()
    return status


cdef public int cuCtxFromGreenCtx(void **context, void *green) noexcept nogil:
    """Record which GPU a green context belongs to: its memory belongs to the primary context."""
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuCtxFromGreenCtx)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<ctx_from_green_t> real)(context, green)
    memset(&charge, 0, sizeof(charge))
    if status == CUDA_SUCCESS and context:
        fg_record(FG_GREEN, <uint64_t> context[0], &charge)
    return status


cdef void fg_forget_green_marks(void *green) noexcept nogil:
    """Forget the events in a green context."""
    cdef void *context = NULL
    cdef void *ask = fg_function(FG_cuCtxFromGreenCtx)
    if ask and (<ctx_from_green_t> ask)(&context, green) == CUDA_SUCCESS and context:
        fg_forget_marks(context)


cdef public int cuGreenCtxDestroy(void *green) noexcept nogil:
    """Destroy a green context, which may have been the last holder of the primary context."""
    cdef int device
    cdef uint64_t context[64]
    cdef void *real = fg_function(FG_cuGreenCtxDestroy)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    for device in range(64):
        context[device] = fg_primary(device) if fg_load_int(&fg_devices[device]) else 0
        if context[device]:
            fg_forget_marks(<void *> context[device])
    fg_forget_green_marks(green)
    cdef int status = (<ctx_in_t> real)(green)
    for device in range(64):
        if status == CUDA_SUCCESS and context[device] and not fg_primary_lives(device):
            fg_end_primary(context[device], device)
    pthread_mutex_unlock(&fg_own_lock)
    fg_refresh_pools()
    return status
