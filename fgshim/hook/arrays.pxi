# Arrays and mipmapped arrays, charged by what the driver reports for them.
#
# The driver reports this only for arrays whose memory is mapped later. The hook therefore creates a second
# array of that kind, which takes no memory, asks for its requirements, and destroys it. Drivers before CUDA
# 11.6 have no such arrays: an upper bound is charged.
#
# Hooks: cuArrayCreate_v2, cuArray3DCreate_v2, cuMipmappedArrayCreate, cuArrayDestroy,
#   cuMipmappedArrayDestroy.
# Exports: fg_array_without_description, fg_flat, fg_new_array.
# Needs: driver (fg_function); entries (fg_record, fg_remove); ledger (fg_charge, fg_release, fg_update_peak);
#   memory (fg_area, fg_reserve_here); shares (fg_release_charge); tiles (fg_end_tiles).

cdef fg_array fg_flat(uint64_t width, uint64_t height, int32_t format, uint32_t channels) noexcept nogil:
    cdef fg_array array
    memset(&array, 0, sizeof(array))
    array.width = width
    array.height = height
    array.format = format
    array.channels = channels
    return array


cdef uint64_t fg_element_bytes(int32_t format, uint32_t channels) noexcept nogil:
    """Return the bytes of one element; for an unknown format, those of the largest known."""
    cdef uint64_t each = 16
    if format in (0x01, 0x08, 0xc0, 0xc3):  # 8 bits
        each = 1
    elif format in (0x02, 0x09, 0x10, 0xc6, 0xc9):  # 16 bits
        each = 2
    elif format in (0x03, 0x0a, 0x20):  # 32 bits
        each = 4
    return each * (channels if 1 <= channels <= 4 else 4)


cdef uint64_t fg_round_up(uint64_t value, uint64_t most) noexcept nogil:
    """Round up to a multiple of the smallest power of two that is not below `value`, at most `most`."""
    cdef uint64_t tile = 1
    value = value if value else 1
    while tile < most and tile < value:
        tile *= 2
    return (value + tile - 1) // tile * tile if value < <uint64_t> 1 << 40 else value


cdef uint64_t fg_level_bytes(const fg_array *array, int level) noexcept nogil:
    """Return an upper bound of the bytes of one level: rows in tiles of 64 bytes by 128 lines, each layer alone."""
    cdef bint layered = array.flags & CUDA_ARRAY3D_LAYERED
    cdef uint64_t width = max(array.width >> level, <uint64_t> 1)
    cdef uint64_t height = max(array.height >> level, <uint64_t> 1)
    cdef uint64_t depth = max(array.depth if layered else array.depth >> level, <uint64_t> 1)
    cdef uint64_t row = fg_area(width, fg_element_bytes(array.format, array.channels))
    row = row if row > UINT64_MAX - 63 else (row + 63) & ~<uint64_t> 63
    return fg_area(fg_area(row, fg_round_up(height, 128)), depth if layered else fg_round_up(depth, 32))


cdef uint64_t fg_array_bound(const fg_array *array, unsigned int levels) noexcept nogil:
    """Return an upper bound of the bytes of an array."""
    cdef uint64_t total = 0
    cdef unsigned int level
    for level in range(min(levels if levels else 1, 32)):
        total = fg_sum(total, fg_level_bytes(array, level))
    return total if total > UINT64_MAX - 0xffff else (total + 0xffff) & ~<uint64_t> 0xffff


cdef uint64_t fg_ask_requirements(int call, int destroy, void *twin) noexcept nogil:
    """Return the bytes that the driver reports for the array `twin`, and destroy it; 0 if the driver does not say."""
    cdef fg_requirements needs
    cdef int device = 0
    cdef void *ask = fg_function(call)
    memset(&needs, 0, sizeof(needs))
    (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device)
    if not ask or (<requirements_t> ask)(&needs, twin, device) != CUDA_SUCCESS:
        needs.size = 0
    (<destroy_t> fg_function(destroy))(twin)
    return needs.size


cdef uint64_t fg_array_charge(const fg_array *array, unsigned int levels) noexcept nogil:
    """Return the bytes to charge for an array. `levels` is 0 for an array without mip levels."""
    cdef fg_array twin = array[0]
    cdef void *made = NULL
    cdef void *create = fg_function(FG_cuMipmappedArrayCreate if levels else FG_cuArray3DCreate_v2)
    cdef uint64_t takes = 0
    if array.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) or not create:
        return 0
    twin.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING
    if levels and (<mipmap_create_t> create)(&made, &twin, levels) == CUDA_SUCCESS:
        takes = fg_ask_requirements(FG_cuMipmappedArrayGetMemoryRequirements, FG_cuMipmappedArrayDestroy, made)
    elif not levels and (<array_create_t> create)(&made, &twin) == CUDA_SUCCESS:
        takes = fg_ask_requirements(FG_cuArrayGetMemoryRequirements, FG_cuArrayDestroy, made)
    return takes if takes else fg_array_bound(array, levels)


cdef int fg_finish_array(int status, int kind, void **array, int destroy, const fg_charge *charge) noexcept nogil:
    if status != CUDA_SUCCESS:
        fg_release(charge.gpu, charge.bytes)
        return status
    if not fg_record(kind, <uint64_t> array[0], charge):
        (<destroy_t> fg_function(destroy))(array[0])
        fg_release(charge.gpu, charge.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY
    fg_update_peak(charge)
    return CUDA_SUCCESS


cdef int fg_new_array(int call, void **array, const void *asked, const fg_array *whole) noexcept nogil:
    """Create an array. `asked` is in the call's own ABI; `whole` is its description in the newest ABI."""
    cdef fg_charge charge
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_reserve_here(fg_array_charge(whole, 0), &charge)
    if status != CUDA_SUCCESS:
        return status
    return fg_finish_array((<array_create_t> real)(array, asked), FG_ARRAY, array, FG_cuArrayDestroy, &charge)


cdef int fg_array_without_description(int call, void **array) noexcept nogil:
    """Pass the call to the driver, which refuses it with its own error."""
    cdef void *real = fg_function(call)
    return (<array_create_t> real)(array, NULL) if real else CUDA_ERROR_SHARED_OBJECT_INIT_FAILED


cdef public int cuArrayCreate_v2(void **array, const fg_array_flat *asked) noexcept nogil:
    cdef fg_array whole
    if asked == NULL:
        return fg_array_without_description(FG_cuArrayCreate_v2, array)
    whole = fg_flat(asked.width, asked.height, asked.format, asked.channels)
    return fg_new_array(FG_cuArrayCreate_v2, array, asked, &whole)


cdef public int cuArray3DCreate_v2(void **array, const fg_array *asked) noexcept nogil:
    if asked == NULL:
        return fg_array_without_description(FG_cuArray3DCreate_v2, array)
    return fg_new_array(FG_cuArray3DCreate_v2, array, asked, asked)


cdef public int cuMipmappedArrayCreate(void **array, const fg_array *asked, unsigned int levels) noexcept nogil:
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuMipmappedArrayCreate)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if asked == NULL:
        return (<mipmap_create_t> real)(array, asked, levels)
    cdef int status = fg_reserve_here(fg_array_charge(asked, levels if levels else 1), &charge)
    if status != CUDA_SUCCESS:
        return status
    status = (<mipmap_create_t> real)(array, asked, levels)
    return fg_finish_array(status, FG_MIPMAP, array, FG_cuMipmappedArrayDestroy, &charge)


cdef int fg_destroy(int call, int kind, void *array) noexcept nogil:
    cdef fg_charge charge
    cdef bint ours = fg_remove(kind, <uint64_t> array, &charge)
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<destroy_t> real)(array)
    if status == CUDA_SUCCESS:
        fg_end_tiles(<uint64_t> array)
    if ours and status == CUDA_SUCCESS:
        fg_release_charge(&charge)
    elif ours:
        fg_record(kind, <uint64_t> array, &charge)
    return status


cdef public int cuArrayDestroy(void *array) noexcept nogil:
    return fg_destroy(FG_cuArrayDestroy, FG_ARRAY, array)


cdef public int cuMipmappedArrayDestroy(void *array) noexcept nogil:
    return fg_destroy(FG_cuMipmappedArrayDestroy, FG_MIPMAP, array)
