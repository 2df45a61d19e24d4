# Contexts: with one goes all that was taken in it, by whatever thread.
#
# The driver is called under fg_own_lock, so that an address that it gives out
# again at once is noted after the old one was forgotten.

cdef bint fg_goes_with(const fg_entry *entry, uint64_t context, int gpu) noexcept nogil:
    """gpu: whose primary context that is, and so what was taken in green contexts of it; -1: it is none."""
    if not FG_MEMORY <= entry.kind <= FG_IPC:
        return False
    if entry.block == context:
        return True
    return gpu >= 0 and entry.gpu == gpu and fg_get(FG_GREEN, entry.block) != NULL


cdef void fg_end_context(uint64_t context, int gpu) noexcept nogil:
    """Give back all that was taken in it. Under fg_own_lock."""
    cdef uint64_t at = 0
    cdef fg_charge charge
    while at < fg_room:
        if fg_entries[at].kind == FG_FREE or not fg_goes_with(&fg_entries[at], context, gpu):
            at += 1
            continue
        fg_charge_of(&fg_entries[at], &charge)
        fg_drop(&fg_entries[at])  # another may have moved here: look again
        fg_let_go(&charge)


cdef void fg_end_primary(uint64_t context, int device) noexcept nogil:
    cdef int gpu = fg_gpu_of(device)
    fg_end_context(context, gpu)
    fg_leave_as_primary(gpu)


cdef void fg_end_own(uint64_t context) noexcept nogil:
    """One that the program made for itself."""
    fg_end_context(context, -1)
    fg_leave_context(context)


cdef bint fg_primary_lives(int device) noexcept nogil:
    cdef unsigned int flags = 0
    cdef int active = 0
    cdef void *ask = fg_function(FG_cuDevicePrimaryCtxGetState)
    return ask != NULL and (<primary_state_t> ask)(device, &flags, &active) == CUDA_SUCCESS and active != 0


cdef uint64_t fg_primary(int device) noexcept nogil:
    """A device's primary context, where it lives: asking for it counts, so that is taken back at once."""
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
    """Released for the last time, or reset."""
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
    fg_look_again()
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
    fg_look_again()
    return status


cdef public int cuCtxDestroy(void *context) noexcept nogil:
    return fg_destroy_context(FG_cuCtxDestroy, context)


cdef public int cuCtxDestroy_v2(void *context) noexcept nogil:
    return fg_destroy_context(FG_cuCtxDestroy_v2, context)


cdef public int cuCtxDetach(void *context) noexcept nogil:
    """It has to be the current one. The last one to leave ends it, and then it is the current one no more."""
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
    fg_look_again()
    return status


cdef public int cuCtxFromGreenCtx(void **context, void *green) noexcept nogil:
    """What is taken in a green context is its primary context's."""
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuCtxFromGreenCtx)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<ctx_from_green_t> real)(context, green)
    memset(&charge, 0, sizeof(charge))
    if status == CUDA_SUCCESS and context:
        fg_note(FG_GREEN, <uint64_t> context[0], &charge)
    return status


cdef public int cuGreenCtxDestroy(void *green) noexcept nogil:
    """It held its primary context, and can have been the last to do so."""
    cdef int device
    cdef uint64_t context[64]
    cdef void *real = fg_function(FG_cuGreenCtxDestroy)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    for device in range(64):
        context[device] = fg_primary(device) if fg_load_int(&fg_devices[device]) else 0
    cdef int status = (<ctx_in_t> real)(green)
    for device in range(64):
        if status == CUDA_SUCCESS and context[device] and not fg_primary_lives(device):
            fg_end_primary(context[device], device)
    pthread_mutex_unlock(&fg_own_lock)
    fg_look_again()
    return status
