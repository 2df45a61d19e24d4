# Limits of a context that make the driver take device memory: the stacks of kernels, the heap of malloc() in
# kernels, the buffer of printf(), and the launches and levels of kernels that launch others.
#
# The call names the size of stacks, heap and buffer: it is reserved before the driver is called. The driver takes
# the heap when it loads the next module. For the other limits, the driver's free memory is compared.
#
# Hooks: cuCtxSetLimit.
# Exports: nothing.
# Needs: context_charges (fg_device_attribute); driver (fg_function); ledger (fg_charge, fg_record_refusal);
#   memory (fg_area, fg_reserve_on); outside (fg_begin_measuring, fg_charge_expected, fg_charge_outside,
#   fg_end_measuring, fg_fits_limit, fg_measuring, fg_release_outside).

cdef uint64_t fg_named_by(int limit, uint64_t value, int device) noexcept nogil:
    """Return the bytes that a limit names; 0 if they are not known."""
    cdef uint64_t processors, threads
    if limit == CU_LIMIT_STACK_SIZE:
        processors = fg_device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
        threads = fg_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device)
        return fg_area(value, processors * threads)
    return value if limit == CU_LIMIT_MALLOC_HEAP_SIZE or limit == CU_LIMIT_PRINTF_FIFO_SIZE else 0


cdef int fg_raise_limit(int limit, uint64_t value, uint64_t old, const fg_measuring *before, uint64_t more) noexcept nogil:
    """Set a limit, for which `more` bytes were reserved. Set it back if the driver takes more than the job has."""
    cdef void *real = fg_function(FG_cuCtxSetLimit)
    cdef fg_measuring again
    cdef uint64_t taken
    cdef int status = (<limit_set_t> real)(limit, value)
    if status != CUDA_SUCCESS:
        fg_release_outside(before.gpu, 0, more)
        return status
    taken = fg_charge_outside(before.gpu, fg_end_measuring(before))
    if taken == 0 or fg_fits_limit(before) or not fg_begin_measuring(&again):
        return CUDA_SUCCESS
    (<limit_set_t> real)(limit, old)
    fg_release_outside(before.gpu, max(0, -fg_end_measuring(&again)), more)
    fg_record_refusal(before.gpu, fg_sum(more, taken))
    return CUDA_ERROR_OUT_OF_MEMORY


cdef int fg_lower_limit(int limit, uint64_t value, const fg_measuring *before, uint64_t less) noexcept nogil:
    """Set a limit, and release what the driver has given back of the `less` bytes."""
    cdef int status = (<limit_set_t> fg_function(FG_cuCtxSetLimit))(limit, value)
    cdef uint64_t given
    if status == CUDA_SUCCESS:
        given = min(<uint64_t> max(0, -fg_end_measuring(before)), less)
        fg_release_outside(before.gpu, given, less - given)
    return status


cdef public int cuCtxSetLimit(int limit, size_t value) noexcept nogil:
    cdef void *real = fg_function(FG_cuCtxSetLimit)
    cdef void *ask = fg_function(FG_cuCtxGetLimit)
    cdef fg_measuring before
    cdef fg_charge charge
    cdef size_t old = 0
    cdef uint64_t now, then
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if ask == NULL or (<limit_get_t> ask)(&old, limit) != CUDA_SUCCESS or not fg_begin_measuring(&before):
        return (<limit_set_t> real)(limit, value)
    now, then = fg_named_by(limit, old, before.device), fg_named_by(limit, value, before.device)
    if value < old:
        return fg_lower_limit(limit, value, &before, now - then)
    if then > now:
        status = fg_reserve_on(before.device, then - now, &charge)
        if status != CUDA_SUCCESS:
            return status
        fg_charge_expected(before.gpu, then - now)
    return fg_raise_limit(limit, value, old, &before, then - now)
