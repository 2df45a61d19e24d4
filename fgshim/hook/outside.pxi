# Memory that the driver takes outside the calls that allocate: for code and its variables, for the heap and the
# stacks of kernels. It is charged with the contexts of the process (fg_context), so that the watchdog's next
# measurement replaces it.
#
# A call that may take such memory is measured: by the GPU's free memory before and after it, less what the process
# allocated meanwhile. Other processes may allocate at the same moment, so NVML's figure of this process bounds a
# large difference.
#
# Exports: fg_begin_measuring, fg_capture_mode, fg_charge_expected, fg_charge_outside, fg_end_measuring,
#   fg_fits_limit, fg_measuring, fg_release_outside.
# Needs: cards (fg_nvml_handle_of); driver (fg_function); ledger (fg_job_bytes, fg_own_bytes_outside_calls,
#   fg_set_held); memory (fg_gpu_of); pool_table (fg_can_trim, fg_trim); pools (fg_is_over_limit); processes
#   (fg_whole_list); region (fg_attach, fg_lock, fg_unlock); slots (fg_ensure_slot, fg_reap).

cdef enum:
    FG_LARGE = 32 << 20  # bytes; a smaller difference is not compared with NVML, which takes milliseconds

cdef struct fg_measuring:
    int gpu          # position in the region
    int device       # as CUDA counts
    size_t free      # bytes that the GPU had before the call
    uint64_t held    # bytes that this process held by calls that allocate


cdef int fg_capture_mode(int mode) noexcept nogil:
    """Set how this thread may call the driver while streams are captured, and return the mode before."""
    cdef void *exchange = fg_function(FG_cuThreadExchangeStreamCaptureMode)
    if exchange:
        (<exchange_mode_t> exchange)(&mode)
    return mode


cdef bint fg_ask_free(size_t *free) noexcept nogil:
    """Ask the driver for the free memory of the current context's GPU, also while a stream is captured."""
    cdef size_t total = 0
    cdef void *ask = fg_function(FG_cuMemGetInfo_v2)
    if ask == NULL:
        return False
    cdef int before = fg_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED)
    cdef int status = (<mem_info_t> ask)(free, &total)
    fg_capture_mode(before)
    return status == CUDA_SUCCESS


cdef uint64_t fg_bytes_by_calls(int gpu) noexcept nogil:
    """Return the bytes that this process holds on a GPU by calls that allocate."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t bytes = 0
    if fg_lock(region):
        fg_apply_deferred()
        bytes = fg_held[gpu]
        fg_unlock(region)
    return bytes


cdef bint fg_begin_measuring(fg_measuring *measuring) noexcept nogil:
    """Read what the GPU of the current context has free. Return False if nothing can be measured there."""
    cdef void *ask = fg_function(FG_cuCtxGetDevice)
    if ask == NULL or (<ctx_device_t> ask)(&measuring.device) != CUDA_SUCCESS:
        return False
    measuring.gpu = fg_gpu_of(measuring.device)
    if measuring.gpu < 0 or fg_attach() == NULL:
        return False
    measuring.held = fg_bytes_by_calls(measuring.gpu)
    return fg_ask_free(&measuring.free)


cdef int64_t fg_end_measuring(const fg_measuring *measuring) noexcept nogil:
    """Return by how many bytes the memory outside the allocating calls has grown."""
    cdef size_t free = 0
    if not fg_ask_free(&free):
        return 0
    return <int64_t> (measuring.free - free) - <int64_t> (fg_bytes_by_calls(measuring.gpu) - measuring.held)


cdef uint64_t fg_process_bytes(int gpu) noexcept nogil:
    """Return what NVML says that this process holds on a GPU; UINT64_MAX if it does not."""
    cdef void *list_call = fg_function(FG_nvmlDeviceGetComputeRunningProcesses)
    cdef void *start = fg_function(FG_nvmlInit_v2)
    cdef void *device = NULL
    cdef void *list = NULL
    cdef uint32_t count = 0, at
    cdef uint64_t bytes = UINT64_MAX
    if list_call == NULL or start == NULL or (<ctx_void_t> start)() != NVML_SUCCESS or not fg_nvml_handle_of(gpu, &device):
        return UINT64_MAX
    if fg_whole_list(list_call, device, &count, sizeof(fg_nvml_process), &list) == NVML_SUCCESS:
        for at in range(count):
            if (<fg_nvml_process *> list)[at].pid == <uint32_t> getpid():
                bytes = (<fg_nvml_process *> list)[at].used
    if list:
        munmap(list, count * sizeof(fg_nvml_process))
    return bytes


cdef void fg_set_outside(fg_region *region, int gpu, uint64_t bytes) noexcept nogil:
    """Set what this process holds outside the allocating calls. Under the region's lock."""
    fg_context[gpu] = fg_region_retagged(fg_context[gpu], bytes)
    if fg_slot:
        fg_set(&region.counts[gpu].context[fg_slot - 1], fg_context[gpu])


cdef bint fg_open_outside(fg_region *region, int gpu) noexcept nogil:
    """Take the locks for a change of fg_context. Return False without the region's lock."""
    pthread_mutex_lock(&fg_own_lock)
    if not fg_lock(region):
        pthread_mutex_unlock(&fg_own_lock)
        return False
    fg_apply_deferred()
    fg_ensure_slot(region)
    if fg_slot and fg_region_is_measured(fg_context[gpu], fg_peek(&region.counts[gpu].seen[fg_slot - 1])):
        fg_expected[gpu] = 0  # the watchdog has looked: what was taken is in its figure
    return True


cdef void fg_close_outside(fg_region *region, int gpu) noexcept nogil:
    cdef uint64_t total = fg_job_bytes(region, gpu)
    fg_unlock(region)
    pthread_mutex_unlock(&fg_own_lock)
    fg_raise(&region.gpu[gpu].peak, total)


cdef void fg_charge_expected(int gpu, uint64_t bytes) noexcept nogil:
    """Turn reserved bytes into memory outside the calls that the driver will take, now or later."""
    cdef fg_region *region = fg_attach()
    if not bytes or not fg_open_outside(region, gpu):
        return
    fg_set_held(region, gpu, fg_held[gpu] - bytes if fg_held[gpu] > bytes else 0)
    fg_expected[gpu] += bytes
    fg_set_outside(region, gpu, fg_sum(fg_own_bytes_outside_calls(region, gpu), bytes))
    fg_close_outside(region, gpu)


cdef uint64_t fg_charge_outside(int gpu, int64_t measured) noexcept nogil:
    """Charge what a call was measured to take, and return it. What was expected before is charged already."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t bytes, known, own
    if measured <= 0:
        return 0
    bytes = measured
    known = fg_process_bytes(gpu) if bytes >= FG_LARGE else UINT64_MAX
    if not fg_open_outside(region, gpu):
        return 0
    own = fg_sum(fg_held[gpu], fg_own_bytes_outside_calls(region, gpu))
    own -= min(fg_expected[gpu], own)
    if known != UINT64_MAX:
        bytes = min(bytes, known - own if known > own else 0)
    known = min(bytes, fg_expected[gpu])
    fg_expected[gpu] -= known
    fg_set_outside(region, gpu, fg_sum(fg_own_bytes_outside_calls(region, gpu), bytes - known))
    fg_close_outside(region, gpu)
    return bytes - known


cdef void fg_release_outside(int gpu, uint64_t bytes, uint64_t expected) noexcept nogil:
    """Release what the driver has given back, and what it is no longer expected to take."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t past
    if not fg_open_outside(region, gpu):
        return
    expected = min(expected, fg_expected[gpu])
    fg_expected[gpu] -= expected
    past = fg_own_bytes_outside_calls(region, gpu)
    if bytes + expected:
        fg_set_outside(region, gpu, past - min(bytes + expected, past))
    fg_close_outside(region, gpu)


cdef bint fg_fits_limit(const fg_measuring *measuring) noexcept nogil:
    """Return whether the job is within its limit. Ended processes and unused memory of pools do not count."""
    if not fg_is_over_limit(measuring.gpu):
        return True
    if fg_reap(fg_attach(), False) and not fg_is_over_limit(measuring.gpu):
        return True
    return fg_can_trim() and fg_trim(measuring.gpu, measuring.device) and not fg_is_over_limit(measuring.gpu)
