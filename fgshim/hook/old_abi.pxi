# The calls of 2007, with addresses and sizes of 32 bits: version 2000 of a name in cuGetProcAddress.
#
# Their types differ from the present ones, but the memory is the same: memory from one ABI may be freed with
# the other.
#
# Hooks: cuMemAlloc, cuMemAllocPitch, cuMemFree, cuMemGetInfo, cuDeviceTotalMem, cuArrayCreate,
#   cuArray3DCreate.
# Exports: nothing.
# Needs: arrays (fg_array_without_description, fg_flat, fg_new_array); driver (fg_function); ledger (fg_charge); memory (fg_area,
#   fg_finish_linear, fg_finish_pitched, fg_freed, fg_gpu_of, fg_linear_charge, fg_remove_address,
#   fg_reserve_here, fg_reserve_pitched); views (fg_free_of, fg_view, fg_view_of, fg_visible_total).

cdef public int cuMemAlloc(uint32_t *address, uint32_t size) noexcept nogil:
    cdef fg_charge charge
    cdef uint64_t at
    cdef void *real = fg_function(FG_cuMemAlloc)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_here(fg_linear_charge(size), &charge)
    if status != CUDA_SUCCESS:
        return status
    status = (<old_alloc_t> real)(address, size)
    at = address[0] if status == CUDA_SUCCESS else 0
    return fg_finish_linear(status, &at, size, &charge)


cdef public int cuMemAllocPitch(
    uint32_t *address, uint32_t *pitch, uint32_t width, uint32_t height, uint32_t element
) noexcept nogil:
    cdef fg_charge charge
    cdef uint64_t at, bytes
    cdef void *real = fg_function(FG_cuMemAllocPitch)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_pitched(width, height, &charge)
    if status != CUDA_SUCCESS:
        return status
    status = (<old_alloc_pitch_t> real)(address, pitch, width, height, element)
    at = address[0] if status == CUDA_SUCCESS else 0
    bytes = fg_area(pitch[0], height) if status == CUDA_SUCCESS else 0
    return fg_finish_pitched(status, &at, bytes, &charge)


cdef public int cuMemFree(uint32_t address) noexcept nogil:
    cdef fg_charge charge
    cdef int kind = fg_remove_address(address, &charge)
    cdef void *real = fg_function(FG_cuMemFree)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<old_free_t> real)(address)
    fg_freed(status, kind, address, &charge)
    return status


cdef public int cuMemGetInfo(uint32_t *free, uint32_t *total) noexcept nogil:
    """Report at most what the driver reports in 32 bits."""
    cdef fg_view view
    cdef int device = 0
    cdef void *real = fg_function(FG_cuMemGetInfo)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<old_mem_info_t> real)(free, total)
    if status == CUDA_SUCCESS:
        status = (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device)
    if status == CUDA_SUCCESS:
        view = fg_view_of(fg_gpu_of(device), UINT64_MAX)
        if total:
            total[0] = <uint32_t> min(view.total, <uint64_t> total[0])
        if free:
            free[0] = <uint32_t> fg_free_of(&view, free[0])
    return status


cdef public int cuDeviceTotalMem(uint32_t *total, int device) noexcept nogil:
    cdef void *real = fg_function(FG_cuDeviceTotalMem)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<old_total_t> real)(total, device)
    if status == CUDA_SUCCESS and total:
        total[0] = <uint32_t> fg_visible_total(device, total[0])
    return status


cdef public int cuArrayCreate(void **array, const fg_array_old *asked) noexcept nogil:
    cdef fg_array whole
    if asked == NULL:
        return fg_array_without_description(FG_cuArrayCreate, array)
    whole = fg_flat(asked.width, asked.height, asked.format, asked.channels)
    return fg_new_array(FG_cuArrayCreate, array, asked, &whole)


cdef public int cuArray3DCreate(void **array, const fg_array3d_old *asked) noexcept nogil:
    cdef fg_array whole
    if asked == NULL:
        return fg_array_without_description(FG_cuArray3DCreate, array)
    whole = fg_flat(asked.width, asked.height, asked.format, asked.channels)
    whole.depth = asked.depth
    whole.flags = asked.flags
    return fg_new_array(FG_cuArray3DCreate, array, asked, &whole)
