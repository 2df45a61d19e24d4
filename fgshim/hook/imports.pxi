# Memory of other processes. Memory that a process of the job gave is counted once while any process of the
# job holds it. Memory from elsewhere is charged like memory of this process.
#
# As in blocks.pxi, the driver is called under fg_own_lock.
#
# Hooks: cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, cuIpcCloseMemHandle,
#   cuMemExportToShareableHandle, cuMemImportFromShareableHandle.
# Exports: fg_charge_at_map.
# Needs: blocks (fg_add_block_ref); driver (fg_function); entries (fg_charge_of, fg_drop, fg_get, fg_put);
#   ledger (fg_charge, fg_record_refusal, fg_reserve, fg_update_peak); memory (fg_device_at, fg_gpu_of);
#   shares (fg_export_to_share, fg_join_share, fg_release_charge).

cdef uint64_t fg_range(uint64_t address, uint64_t *base) noexcept nogil:
    """Return the bytes of the allocation that contains an address, and its base; 0 if the driver does not know it."""
    cdef size_t size = 0
    cdef void *ask = fg_function(FG_cuMemGetAddressRange_v2)
    base[0] = address
    if not ask or (<address_range_t> ask)(base, &size, address) != CUDA_SUCCESS:
        return 0
    return size


cdef void fg_export_entry(fg_entry *entry, uint64_t key) noexcept nogil:
    """Move the charge of an entry to a share of the region, but not that of small memory. Under fg_own_lock."""
    cdef fg_charge charge
    if entry == NULL or entry.share or entry.bytes == 0 or (entry.kind == FG_BLOCK and entry.block):
        return  # an imported block may be charged for more later
    fg_charge_of(entry, &charge)
    if charge.chunk:
        return
    entry.share = fg_export_to_share(&charge, key)


cdef public int cuIpcGetMemHandle(void *handle, uint64_t address) noexcept nogil:
    cdef uint64_t base = address
    cdef void *real = fg_function(FG_cuIpcGetMemHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<ipc_get_t> real)(handle, address)
    if status == CUDA_SUCCESS:
        fg_range(address, &base)
        fg_export_entry(fg_get(FG_MEMORY, base), fg_share_key(handle))
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef bint fg_charge_import(fg_charge *charge, uint64_t key) noexcept nogil:
    """Join the share of another process of the job, or charge the memory to this process."""
    return charge.bytes == 0 or fg_join_share(charge, key) or fg_charge_rest(charge)


cdef bint fg_charge_rest(fg_charge *charge) noexcept nogil:
    """Charge memory from elsewhere to this process. Return False if it exceeds the limit."""
    if not fg_reserve(charge):
        fg_record_refusal(charge.gpu, charge.bytes)
        return False
    fg_update_peak(charge)
    return True


cdef bint fg_record_import(uint64_t address, const fg_charge *charge) noexcept nogil:
    """Under fg_own_lock."""
    cdef fg_entry *entry = fg_put(FG_IPC, address, charge.gpu, charge.bytes)
    if entry == NULL:
        fg_release_charge(charge)
        return False
    entry.block = charge.context
    entry.share = charge.share
    entry.count = 1
    return True


cdef bint fg_opened(uint64_t address, uint64_t key) noexcept nogil:
    """Charge what was opened at this address. Return False if it exceeds the limit. Under fg_own_lock."""
    cdef fg_charge charge
    cdef fg_entry *entry = fg_get(FG_IPC, address)
    cdef uint64_t base
    cdef void *context = NULL
    cdef int device = 0, gpu
    if entry:  # the driver counts how often a handle is opened
        entry.count += 1
        return True
    (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device)
    (<ctx_out_t> fg_function(FG_cuCtxGetCurrent))(&context)
    gpu = fg_gpu_of(device)
    if gpu < 0:
        return False
    charge.gpu = gpu
    charge.share = 0
    charge.chunk = 0
    charge.bytes = fg_range(address, &base)
    charge.context = <uint64_t> context
    return fg_charge_import(&charge, key) and fg_record_import(address, &charge)


cdef int fg_open(int call, uint64_t *address, fg_ipc_handle handle, unsigned int flags) noexcept nogil:
    cdef void *real = fg_function(call)
    cdef void *close = fg_function(FG_cuIpcCloseMemHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<ipc_open_t> real)(address, handle, flags)
    if status == CUDA_SUCCESS and not fg_opened(address[0], fg_share_key(&handle)):
        (<free_t> close)(address[0])
        status = CUDA_ERROR_OUT_OF_MEMORY
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef public int cuIpcOpenMemHandle(uint64_t *address, fg_ipc_handle handle, unsigned int flags) noexcept nogil:
    return fg_open(FG_cuIpcOpenMemHandle, address, handle, flags)


cdef public int cuIpcOpenMemHandle_v2(uint64_t *address, fg_ipc_handle handle, unsigned int flags) noexcept nogil:
    return fg_open(FG_cuIpcOpenMemHandle_v2, address, handle, flags)


cdef public int cuIpcCloseMemHandle(uint64_t address) noexcept nogil:
    cdef fg_charge charge
    cdef fg_entry *entry
    cdef void *real = fg_function(FG_cuIpcCloseMemHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<free_t> real)(address)
    entry = fg_get(FG_IPC, address)
    if status == CUDA_SUCCESS and entry:
        entry.count -= 1
        if entry.count == 0:
            fg_charge_of(entry, &charge)
            fg_drop(entry)
            fg_release_charge(&charge)
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef public int cuMemExportToShareableHandle(void *out, uint64_t handle, int kind, uint64_t flags) noexcept nogil:
    cdef fg_entry *entry
    cdef void *real = fg_function(FG_cuMemExportToShareableHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<export_t> real)(out, handle, kind, flags)
    entry = fg_get(FG_HANDLE, handle)
    if status == CUDA_SUCCESS and entry:
        fg_export_entry(fg_get(FG_BLOCK, entry.block), 0)
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef int fg_card_of(uint64_t handle) noexcept nogil:
    """Return the position in the region of the GPU of a memory handle; -1 for another GPU or host memory."""
    cdef fg_allocation_prop prop
    cdef int device
    cdef void *ask = fg_function(FG_cuMemGetAllocationPropertiesFromHandle)
    memset(&prop, 0, sizeof(prop))
    if not ask or (<properties_t> ask)(&prop, handle) != CUDA_SUCCESS:
        return -1
    device = fg_device_at(prop.location_type, prop.location_id)
    return fg_gpu_of(device) if device >= 0 else -1


cdef bint fg_imported(uint64_t handle) noexcept nogil:
    """Record an imported handle. Its size is unknown until it is mapped. Under fg_own_lock."""
    global fg_serial
    cdef fg_entry *entry = fg_get(FG_HANDLE, handle)
    cdef int gpu
    if entry:
        return fg_add_block_ref(FG_HANDLE, handle, 0, entry.block)
    gpu = fg_card_of(handle)
    if gpu < 0:
        return True
    fg_serial += 1
    entry = fg_put(FG_BLOCK, fg_serial, gpu, 0)
    if entry == NULL:
        return False
    entry.block = 1  # not charged yet
    if not fg_add_block_ref(FG_HANDLE, handle, 0, fg_serial):
        fg_drop(fg_get(FG_BLOCK, fg_serial))
        return False
    return True


cdef public int cuMemImportFromShareableHandle(uint64_t *handle, void *from_, int kind) noexcept nogil:
    cdef void *real = fg_function(FG_cuMemImportFromShareableHandle)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    pthread_mutex_lock(&fg_own_lock)
    cdef int status = (<import_t> real)(handle, from_, kind)
    if status == CUDA_SUCCESS and not fg_imported(handle[0]):
        (<release_t> fg_function(FG_cuMemRelease))(handle[0])
        status = CUDA_ERROR_OUT_OF_MEMORY
    pthread_mutex_unlock(&fg_own_lock)
    return status


cdef bint fg_charge_at_map(uint64_t serial, uint64_t end) noexcept nogil:
    """Charge an imported block when it is mapped. Return False if it exceeds the limit. Under fg_own_lock.

    The driver does not tell the size of a block, so the charge is the farthest `end` of a mapping in bytes.
    """
    cdef fg_charge charge
    cdef fg_entry *block = fg_get(FG_BLOCK, serial)
    if block == NULL or not block.block or end <= block.bytes:
        return True
    charge.gpu = block.gpu
    charge.share = 0
    charge.chunk = 0
    charge.bytes = end - block.bytes
    charge.context = 0
    if not (fg_charge_rest(&charge) if block.bytes else fg_charge_import(&charge, 0)):
        return False
    block.bytes += charge.bytes
    block.share = charge.share
    block.block = charge.share == 0  # a block of the job is counted whole
    return True
