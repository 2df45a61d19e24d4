# Charges for the contexts of this process. The first context on a GPU is reserved for before the driver
# creates it.
#
# Its cost is not known in advance. What the controller measured for other processes is charged until it has
# measured this one. If it has measured none on this GPU model, an assumption is charged: the size that the
# controller assumes, and the stacks of all threads that the GPU can run at once, which the driver allocates
# with the context and which are half of it on large GPUs. No lock is held while the driver creates a context:
# that takes long, and tools are called back meanwhile.
#
# Hooks: cuDevicePrimaryCtxRetain, cuGreenCtxCreate, cuCtxCreate, cuCtxCreate_v2, cuCtxCreate_v3,
#   cuCtxCreate_v4, cuGLCtxCreate, cuGLCtxCreate_v2, cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2.
# Exports: fg_device_attribute, fg_forget_contexts, fg_leave_context, fg_leave_primary_context.
# Needs: code (fg_forget_launches); driver (fg_function); entries (fg_drop, fg_get, fg_put); ledger
#   (fg_charge, fg_defer_release, fg_record_refusal_of, fg_reserve, fg_set_held, fg_update_peak); memory
#   (fg_gpu_of); pool_table (fg_can_trim, fg_trim); region (fg_attach, fg_lock, fg_own_job, fg_unlock).

cdef void fg_forget_contexts() noexcept nogil:
    """Forget the contexts of the parent, in the child of a fork."""
    memset(fg_contexts, 0, sizeof(int) * FG_MAX_GPUS)
    memset(fg_in_primary, 0, sizeof(int) * FG_MAX_GPUS)
    memset(fg_context, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_expected, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    memset(fg_most_local, 0, sizeof(uint64_t) * FG_MAX_GPUS)


cdef void fg_charge_contexts(uint32_t gpu, uint64_t bytes, uint64_t reserved) noexcept nogil:
    """Set the estimate for the contexts of this process to `bytes`, and release what was reserved for it."""
    cdef fg_region *region = fg_attach()
    cdef bint locked = fg_lock(region)
    if locked:
        fg_apply_deferred()
        fg_set_held(region, gpu, fg_held[gpu] - reserved if fg_held[gpu] > reserved else 0)
    elif reserved:
        fg_defer_release(gpu, reserved)
    fg_context[gpu] = fg_region_retagged(fg_context[gpu], bytes)
    if fg_slot:  # one word, and no other process writes it
        fg_set(&region.counts[gpu].context[fg_slot - 1], fg_context[gpu])
    if locked:
        fg_unlock(region)


cdef bint fg_try_reserve_context(int gpu, uint64_t cost) noexcept nogil:
    """Count one more context. Return False if its cost exceeds the limit."""
    cdef fg_charge charge
    cdef bint fits = True
    charge.gpu = gpu
    charge.bytes = cost
    pthread_mutex_lock(&fg_own_lock)
    if cost and fg_contexts[gpu] == 0:
        fits = fg_reserve(&charge)
        if fits:
            fg_charge_contexts(gpu, cost, cost)
            fg_update_peak(&charge)
    fg_contexts[gpu] += fits
    pthread_mutex_unlock(&fg_own_lock)
    return fits


cdef int fg_device_attribute(int which, int device) noexcept nogil:
    """Return an attribute of a device; 0 if the driver does not tell."""
    cdef void *ask = fg_function(FG_cuDeviceGetAttribute)
    cdef int value = 0
    if ask == NULL or (<device_attribute_t> ask)(&value, which, device) != CUDA_SUCCESS:
        return 0
    return max(0, value)


cdef uint64_t fg_stack_bytes(int device) noexcept nogil:
    """Return the bytes that the stacks of all threads of a device take: 1 KiB each, CUDA's default; 0 if the driver does not tell."""
    cdef uint64_t processors = fg_device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
    cdef uint64_t threads = fg_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device)
    return processors * threads << 10


cdef uint64_t fg_context_cost(int gpu, int device) noexcept nogil:
    """Return the bytes to charge for the first context. Assumed stacks raise it to half of the limit at most, so that they exclude no small job."""
    cdef const fg_card_t *card = &fg_own_job().card[gpu]
    if not card.context or not card.is_assumed:
        return card.context
    return max(card.context, min(card.context + fg_stack_bytes(device), card.limit // 2))


cdef int fg_reserve_context(int device) noexcept nogil:
    """Reserve for a context before the driver creates it. GPUs of other jobs are left to the watchdog."""
    cdef int gpu = fg_gpu_of(device)
    if gpu < 0:
        return CUDA_SUCCESS
    cdef uint64_t cost = fg_context_cost(gpu, device)
    if fg_try_reserve_context(gpu, cost) or (fg_can_trim() and fg_trim(gpu, device) and fg_try_reserve_context(gpu, cost)):
        return CUDA_SUCCESS
    fg_record_refusal_of(FG_FOR_CONTEXT, gpu, cost)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef void fg_count_context_down(int gpu) noexcept nogil:
    """Count one context less. With the last one, the memory outside the calls is gone, too. Under fg_own_lock."""
    if fg_contexts[gpu] > 0:
        fg_contexts[gpu] -= 1
        if fg_contexts[gpu] == 0 and fg_attach():
            fg_expected[gpu] = fg_most_local[gpu] = 0
            fg_forget_launches(gpu)
            fg_charge_contexts(gpu, 0, 0)


cdef void fg_leave_primary_context(int gpu) noexcept nogil:
    """Under fg_own_lock."""
    if gpu >= 0 and fg_in_primary[gpu]:
        fg_in_primary[gpu] = 0
        fg_count_context_down(gpu)


cdef void fg_leave_context(uint64_t context) noexcept nogil:
    """Under fg_own_lock."""
    cdef fg_entry *entry = fg_get(FG_CONTEXT, context)
    cdef int gpu
    if entry:
        gpu = entry.gpu
        fg_drop(entry)
        fg_count_context_down(gpu)


cdef int fg_record_context(int status, int device, void *const *made) noexcept nogil:
    """Record the context that the driver created. `made` is NULL for the primary context, which may exist already."""
    cdef int gpu = fg_gpu_of(device)
    if gpu < 0:
        return status
    pthread_mutex_lock(&fg_own_lock)
    if status != CUDA_SUCCESS or (made == NULL and fg_in_primary[gpu]):
        fg_count_context_down(gpu)
    elif made == NULL:
        fg_in_primary[gpu] = 1
    else:
        fg_put(FG_CONTEXT, <uint64_t> made[0], gpu, 0)
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef public int cuDevicePrimaryCtxRetain(void **context, int device) noexcept nogil:
    cdef void *real = fg_function(FG_cuDevicePrimaryCtxRetain)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<primary_retain_t> real)(context, device), device, NULL)


cdef public int cuGreenCtxCreate(void **green, void *resources, int device, unsigned int flags) noexcept nogil:
    """Create a green context, which retains the primary context of its device."""
    cdef void *real = fg_function(FG_cuGreenCtxCreate)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<green_create_t> real)(green, resources, device, flags), device, NULL)


cdef int fg_create_context(int call, void **context, unsigned int flags, int device) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<ctx_create_t> real)(context, flags, device), device, context)


cdef public int cuCtxCreate(void **context, unsigned int flags, int device) noexcept nogil:
    return fg_create_context(FG_cuCtxCreate, context, flags, device)


cdef public int cuCtxCreate_v2(void **context, unsigned int flags, int device) noexcept nogil:
    return fg_create_context(FG_cuCtxCreate_v2, context, flags, device)


cdef public int cuGLCtxCreate(void **context, unsigned int flags, int device) noexcept nogil:
    return fg_create_context(FG_cuGLCtxCreate, context, flags, device)


cdef public int cuGLCtxCreate_v2(void **context, unsigned int flags, int device) noexcept nogil:
    return fg_create_context(FG_cuGLCtxCreate_v2, context, flags, device)


cdef int fg_create_vdpau_context(
    int call, void **context, unsigned int flags, int device, uint32_t display, void *look_up
) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<vdpau_create_t> real)(context, flags, device, display, look_up), device, context)


cdef public int cuVDPAUCtxCreate(
    void **context, unsigned int flags, int device, uint32_t display, void *look_up
) noexcept nogil:
    return fg_create_vdpau_context(FG_cuVDPAUCtxCreate, context, flags, device, display, look_up)


cdef public int cuVDPAUCtxCreate_v2(
    void **context, unsigned int flags, int device, uint32_t display, void *look_up
) noexcept nogil:
    return fg_create_vdpau_context(FG_cuVDPAUCtxCreate_v2, context, flags, device, display, look_up)


cdef public int cuCtxCreate_v3(
    void **context, void *affinity, int count, unsigned int flags, int device
) noexcept nogil:
    cdef void *real = fg_function(FG_cuCtxCreate_v3)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<ctx_create_v3_t> real)(context, affinity, count, flags, device), device, context)


cdef public int cuCtxCreate_v4(void **context, void *how, unsigned int flags, int device) noexcept nogil:
    cdef void *real = fg_function(FG_cuCtxCreate_v4)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_context(device)
    if status != CUDA_SUCCESS:
        return status
    return fg_record_context((<ctx_create_v4_t> real)(context, how, flags, device), device, context)
