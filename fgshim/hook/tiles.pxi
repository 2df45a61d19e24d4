# Sparse arrays: each part that is mapped to a block is a reference to that block, like any other mapping.
#
# Hooks: cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz.
# Exports: fg_end_tiles.
# Needs: blocks (fg_add_block_ref, fg_drop_block_ref); driver (fg_function); entries (fg_drop, fg_get).

cdef extern from "share_bits.h" nogil:
    uint64_t fg_tile_key(const fg_map_info *, bint)


cdef void fg_end_tile(fg_entry *tile) noexcept nogil:
    """Under fg_own_lock."""
    global fg_tile_count
    cdef uint64_t serial = tile.block
    fg_drop(tile)
    fg_publish(&fg_tile_count, fg_tile_count - 1)
    fg_drop_block_ref(serial)


cdef bint fg_map_tile(const fg_map_info *part) noexcept nogil:
    """Record the mapping of a part, and forget the mapping it replaces. Unknown blocks are not counted."""
    global fg_tile_count
    cdef uint64_t key = fg_tile_key(part, part.part_kind == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
    cdef fg_entry *old = fg_get(FG_TILE, key)
    cdef fg_entry *handle
    if old:
        fg_end_tile(old)
    handle = fg_get(FG_HANDLE, part.handle) if part.operation == CU_MEM_OPERATION_TYPE_MAP else NULL
    if handle == NULL:
        return True
    if not fg_add_block_ref(FG_TILE, key, part.array, handle.block):
        return False
    fg_publish(&fg_tile_count, fg_tile_count + 1)
    return True


cdef void fg_end_tiles(uint64_t array) noexcept nogil:
    """Drop the blocks to which parts of a destroyed array were mapped."""
    cdef uint64_t at = 0
    if not fg_peek_int(&fg_tile_count):
        return
    pthread_mutex_lock(&fg_own_lock)
    while at < fg_room:
        if fg_entries[at].kind == FG_TILE and fg_entries[at].bytes == array:
            fg_end_tile(&fg_entries[at])
        else:
            at += 1
    pthread_mutex_unlock(&fg_own_lock)


cdef int fg_map_array(int call, fg_map_info *parts, unsigned int count, void *stream) noexcept nogil:
    """Map or unmap parts of arrays. Unmapping is counted at once, although the stream may not have reached it."""
    cdef unsigned int at
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<map_array_t> real)(parts, count, stream)
    for at in range(count if status == CUDA_SUCCESS else 0):
        if not fg_map_tile(&parts[at]):
            status = CUDA_ERROR_OUT_OF_MEMORY
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef public int cuMemMapArrayAsync(fg_map_info *parts, unsigned int count, void *stream) noexcept nogil:
    return fg_map_array(FG_cuMemMapArrayAsync, parts, count, stream)


cdef public int cuMemMapArrayAsync_ptsz(fg_map_info *parts, unsigned int count, void *stream) noexcept nogil:
    return fg_map_array(FG_cuMemMapArrayAsync_ptsz, parts, count, stream)
