# Virtual memory management. A block of physical memory lives until its last handle and its last mapping are
# gone, in any order.
#
# The driver is called under fg_own_lock here, so that a handle or an address that the driver reuses at once
# cannot be mistaken for the old one.
#
# Hooks: cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemRetainAllocationHandle.
# Exports: fg_add_block_ref, fg_drop_block_ref.
# Needs: driver (fg_function, fg_is_initialized); entries (fg_charge_of, fg_drop, fg_get, fg_put); imports (fg_charge_at_map);
#   ledger (fg_charge, fg_release, fg_update_peak); memory (fg_device_at, fg_reserve_on); shares
#   (fg_release_charge).

cdef void fg_drop_block_ref(uint64_t serial) noexcept nogil:
    """Drop one reference to a block; release its charge with the last one. Under fg_own_lock."""
    cdef fg_charge charge
    cdef fg_entry *block = fg_get(FG_BLOCK, serial)
    if block == NULL:
        return
    block.count -= 1
    if block.count:
        return
    fg_charge_of(block, &charge)
    fg_drop(block)
    fg_release_charge(&charge)


cdef bint fg_add_block_ref(int kind, uint64_t key, uint64_t bytes, uint64_t serial) noexcept nogil:
    """Add a handle or a mapping as a reference to a block. Under fg_own_lock."""
    cdef fg_entry *entry = fg_get(kind, key)
    if entry == NULL or entry.block != serial:
        entry = fg_put(kind, key, 0, bytes)
    if entry == NULL or (kind == FG_MAPPING and not fg_index_add(key)):
        return False
    entry.block = serial
    entry.count += 1
    entry = fg_get(FG_BLOCK, serial)
    if entry:
        entry.count += 1
    return True


cdef bint fg_new_block(uint64_t handle, const fg_charge *charge) noexcept nogil:
    global fg_serial
    cdef bint noted = False
    pthread_mutex_lock(&fg_own_lock)
    fg_serial += 1
    if fg_put(FG_BLOCK, fg_serial, charge.gpu, charge.bytes):
        noted = fg_add_block_ref(FG_HANDLE, handle, 0, fg_serial)
        if not noted:
            fg_drop(fg_get(FG_BLOCK, fg_serial))
    pthread_mutex_unlock(&fg_own_lock)
    return noted


cdef public int cuMemCreate(
    uint64_t *handle, size_t size, const fg_allocation_prop *prop, uint64_t flags
) noexcept nogil:
    """Charge the GPU on which the memory lies, whatever context is current. Host memory is not counted."""
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuMemCreate)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int device = fg_device_at(prop.location_type, prop.location_id) if prop and fg_is_initialized() else -1
    if device < 0:
        return (<create_t> real)(handle, size, prop, flags)
    cdef int status = fg_reserve_on(device, size, &charge)
    if status != CUDA_SUCCESS:
        return status
    status = (<create_t> real)(handle, size, prop, flags)
    if status == CUDA_SUCCESS and not fg_new_block(handle[0], &charge):
        (<release_t> fg_function(FG_cuMemRelease))(handle[0])
        status = CUDA_ERROR_OUT_OF_MEMORY
    if status != CUDA_SUCCESS:
        fg_release(charge.gpu, charge.bytes)
    else:
        fg_update_peak(&charge)
    return status


cdef public int cuMemRelease(uint64_t handle) noexcept nogil:
    cdef fg_entry *entry
    cdef uint64_t serial
    cdef void *real = fg_function(FG_cuMemRelease)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<release_t> real)(handle)
    entry = fg_get(FG_HANDLE, handle)
    if status == CUDA_SUCCESS and entry:
        serial = entry.block
        entry.count -= 1
        if entry.count == 0:
            fg_drop(entry)
        fg_drop_block_ref(serial)
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef bint fg_mapped(uint64_t address, uint64_t size, uint64_t offset, uint64_t serial) noexcept nogil:
    """Record a mapping. Return False if there is no memory to record it. Under fg_own_lock."""
    return fg_charge_at_map(serial, fg_sum(offset, size)) and fg_add_block_ref(FG_MAPPING, address, size, serial)


cdef public int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) noexcept nogil:
    cdef fg_entry *entry
    cdef void *real = fg_function(FG_cuMemMap)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<map_t> real)(address, size, offset, handle, flags)
    entry = fg_get(FG_HANDLE, handle)
    if status == CUDA_SUCCESS and entry and not fg_mapped(address, size, offset, entry.block):
        (<unmap_t> fg_function(FG_cuMemUnmap))(address, size)
        status = CUDA_ERROR_OUT_OF_MEMORY
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef uint64_t fg_unmapped(uint64_t address, uint64_t size) noexcept nogil:
    """Remove the first mapping within the range and return its bytes; 0 if there is none. Under fg_own_lock."""
    cdef uint64_t first = fg_index_from(address)
    cdef uint64_t serial, length
    cdef fg_entry *entry = fg_get(FG_MAPPING, first) if first - address < size else NULL
    if entry == NULL:
        return 0
    fg_index_remove(first)
    serial = entry.block
    length = entry.bytes
    fg_drop(entry)
    fg_drop_block_ref(serial)
    return length


cdef public int cuMemUnmap(uint64_t address, size_t size) noexcept nogil:
    """Remove all mappings within the range."""
    cdef uint64_t gone, left = size
    cdef void *real = fg_function(FG_cuMemUnmap)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<unmap_t> real)(address, size)
    while status == CUDA_SUCCESS and left:
        gone = fg_unmapped(address, size)
        left -= gone if gone and gone < left else left
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef uint64_t fg_block_at(uint64_t address) noexcept nogil:
    """Return the serial number of the block that is mapped at an address; 0 if it is unknown. Under fg_own_lock."""
    cdef const fg_entry *entry = fg_get(FG_MAPPING, fg_index_until(address))
    return entry.block if entry and address - entry.key < entry.bytes else 0


cdef public int cuMemRetainAllocationHandle(uint64_t *handle, void *address) noexcept nogil:
    """Count one more handle. The program must release a handle as often as it was given out."""
    cdef uint64_t serial
    cdef void *real = fg_function(FG_cuMemRetainAllocationHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<retain_t> real)(handle, address)
    serial = fg_block_at(<uint64_t> address)
    if status == CUDA_SUCCESS and serial and not fg_add_block_ref(FG_HANDLE, handle[0], 0, serial):
        (<release_t> fg_function(FG_cuMemRelease))(handle[0])
        status = CUDA_ERROR_OUT_OF_MEMORY
    pthread_mutex_unlock(&fg_own_lock)
    return status
