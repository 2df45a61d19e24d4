# Linear memory, allocated and freed by address.
#
# Hooks: cuMemAlloc_v2, cuMemAllocManaged, cuMemAllocPitch_v2, cuMemFree_v2.
# Exports: fg_area, fg_device_at, fg_finish_linear, fg_finish_pitched, fg_freed, fg_gpu_of, fg_linear_charge,
#   fg_outgrows_gpu, fg_release_small, fg_remove_address, fg_reserve_here, fg_reserve_on, fg_reserve_pitched,
#   fg_round_to_2_mib.
# Needs: driver (fg_function); entries (fg_drop, fg_get, fg_put, fg_record, fg_remove); ledger (fg_charge,
#   fg_living_job_bytes, fg_record_refusal, fg_release, fg_reserve, fg_update_peak); pool_table (fg_can_trim,
#   fg_trim); pools (fg_back_to_pool); region (fg_attach, fg_limit, fg_position); shares (fg_release_charge).

cdef int fg_gpu_of(int device) noexcept nogil:
    """Return the position in the region of a CUDA device; -1 if it is not the job's."""
    cdef uint8_t uuid[16]
    cdef void *ask
    cdef int gpu
    if 0 <= device < 64 and fg_load_int(&fg_devices[device]) > 0:
        return fg_load_int(&fg_devices[device]) - 1
    ask = fg_function(FG_cuDeviceGetUuid_v2)  # the first version returns the UUID of the GPU of a MIG instance
    if not ask:
        ask = fg_function(FG_cuDeviceGetUuid)
    if not ask or (<device_uuid_t> ask)(uuid, device) != CUDA_SUCCESS:
        return -1
    gpu = fg_position(uuid)
    if 0 <= device < 64 and gpu >= 0:
        fg_store_int(&fg_devices[device], gpu + 1)
    return gpu


cdef extern from "small.h" nogil:
    const uint64_t FG_SMALL_BYTES, FG_CHUNK_BYTES
    uint64_t fg_part_of_chunk(uint64_t bytes)
    uint64_t fg_small_charge(uint32_t gpu)


cdef int fg_device_at(int kind, int place) noexcept nogil:
    """Return the device of a location; -1 for host memory. The second byte of a location is its locality domain."""
    if kind == CU_MEM_LOCATION_TYPE_DEVICE:
        return place
    return place & 0xff if kind == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN else -1


cdef int fg_reserve_on(int device, uint64_t bytes, fg_charge *charge) noexcept nogil:
    """Reserve on a device. Pools are trimmed before an allocation is refused."""
    cdef int gpu = fg_gpu_of(device)
    if gpu < 0:
        return CUDA_ERROR_OUT_OF_MEMORY
    charge.gpu = gpu
    charge.bytes = bytes
    charge.context = 0
    charge.chunk = 0
    if fg_reserve(charge) or (fg_can_trim() and fg_trim(gpu, device) and fg_reserve(charge)):
        return CUDA_SUCCESS
    fg_record_refusal(gpu, bytes)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef uint64_t fg_round_to_2_mib(uint64_t bytes) noexcept nogil:
    """Round up to the 2 MiB by which drivers map memory."""
    cdef uint64_t mask = (<uint64_t> 2 << 20) - 1
    return bytes if bytes > UINT64_MAX - mask else (bytes + mask) & ~mask


cdef uint64_t fg_linear_charge(uint64_t bytes) noexcept nogil:
    """Return the most that linear memory takes: a new chunk of 2 MiB, if it is small, else its size rounded up to 2 MiB."""
    return fg_round_to_2_mib(bytes) if bytes else FG_CHUNK_BYTES


cdef uint64_t fg_settle_small(uint64_t address, uint64_t bytes, uint32_t gpu) noexcept nogil:
    """Count small memory that was allocated. Return by how many bytes the charge rises. Under fg_own_lock."""
    cdef uint64_t before = fg_small_charge(gpu)
    cdef uint64_t number = address // FG_CHUNK_BYTES
    cdef fg_entry *chunk = fg_get(FG_CHUNK, number)
    if chunk == NULL:
        chunk = fg_put(FG_CHUNK, number, gpu, 0)
    if chunk:
        fg_chunks[gpu] += chunk.count == 0
        chunk.count += 1
    fg_small[gpu] += fg_part_of_chunk(bytes)
    return fg_small_charge(gpu) - before


cdef void fg_release_small(const fg_charge *charge) noexcept nogil:
    """Release small memory: the chunk is free when the last allocation in it is freed."""
    cdef uint64_t before
    cdef fg_entry *chunk
    pthread_mutex_lock(&fg_own_lock)
    before = fg_small_charge(charge.gpu)
    chunk = fg_get(FG_CHUNK, charge.chunk)
    if chunk and chunk.count:
        chunk.count -= 1
        fg_chunks[charge.gpu] -= chunk.count == 0
        if chunk.count == 0 and not fg_keeps_chunks:
            fg_drop(chunk)
    fg_small[charge.gpu] -= min(charge.bytes, fg_small[charge.gpu])
    before -= fg_small_charge(charge.gpu)
    pthread_mutex_unlock(&fg_own_lock)
    fg_release(charge.gpu, before)


cdef bint fg_record_small(uint64_t address, uint64_t bytes, fg_charge *charge) noexcept nogil:
    """Record small memory, for which a whole chunk was reserved. Return False if there is no memory to record it."""
    cdef fg_charge part = charge[0]
    cdef uint64_t rise = 0
    cdef bint known
    part.bytes = fg_part_of_chunk(bytes)
    pthread_mutex_lock(&fg_own_lock)
    known = fg_record(FG_MEMORY, address, &part)
    if known:
        rise = fg_settle_small(address, bytes, charge.gpu)
    pthread_mutex_unlock(&fg_own_lock)
    if known and rise < charge.bytes:  # a lock less if it needed a new chunk
        charge.total -= charge.bytes - rise
        fg_release(charge.gpu, charge.bytes - rise)
    if known:
        fg_update_peak(charge)
    return known


cdef int fg_reserve_here(uint64_t bytes, fg_charge *charge) noexcept nogil:
    """Reserve on the device of the current context. Without a context, return the driver's error."""
    cdef int device = 0
    cdef void *context = NULL
    cdef void *ask = fg_function(FG_cuCtxGetDevice)
    if not ask:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<ctx_device_t> ask)(&device)
    if status == CUDA_SUCCESS:
        status = fg_reserve_on(device, bytes, charge)
    if status == CUDA_SUCCESS and (<ctx_out_t> fg_function(FG_cuCtxGetCurrent))(&context) == CUDA_SUCCESS:
        charge.context = <uint64_t> context
    return status


cdef int fg_finish_linear(int status, const uint64_t *address, uint64_t bytes, fg_charge *charge) noexcept nogil:
    """Record the charge if the driver gave memory; else release it."""
    cdef void *free = fg_function(FG_cuMemFree_v2)
    if status != CUDA_SUCCESS:
        fg_release(charge.gpu, charge.bytes)
        return status
    if bytes <= FG_SMALL_BYTES and fg_record_small(address[0], bytes, charge):
        return CUDA_SUCCESS
    if bytes <= FG_SMALL_BYTES or not fg_record(FG_MEMORY, address[0], charge):  # it could never be released
        (<free_t> free)(address[0])
        fg_release(charge.gpu, charge.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY
    fg_update_peak(charge)
    return CUDA_SUCCESS


cdef public int cuMemAlloc_v2(uint64_t *address, size_t size) noexcept nogil:
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuMemAlloc_v2)
    cdef int status = fg_reserve_here(fg_linear_charge(size), &charge)
    if status != CUDA_SUCCESS:
        return status
    return fg_finish_linear((<alloc_t> real)(address, size), address, size, &charge)


cdef bint fg_has_whole_gpu(int gpu, int device) noexcept nogil:
    """Return whether no other job has a part of a GPU, and the limit is its memory but for what the driver reserves."""
    cdef void *ask = fg_function(FG_cuDeviceTotalMem_v2)
    cdef size_t total = 0
    if fg_attach().pace[gpu].share < FG_WHOLE or ask == NULL or (<total_t> ask)(&total, device) != CUDA_SUCCESS:
        return False
    return fg_limit(gpu) >= total - total // 16


cdef bint fg_outgrows_gpu(int gpu, int device, uint64_t bytes) noexcept nogil:
    """Return whether managed memory outgrows a GPU that the job has for itself.

    From then on the driver decides what fits: it moves managed memory to the host for any other allocation.
    """
    cdef bint outgrows = gpu >= 0 and fg_attach() != NULL and fg_has_whole_gpu(gpu, device)
    if outgrows:
        outgrows = fg_sum(fg_living_job_bytes(gpu), bytes) > fg_limit(gpu)
    if outgrows:
        fg_store_int(&fg_outgrown[gpu], 1)
    return outgrows


cdef public int cuMemAllocManaged(uint64_t *address, size_t size, unsigned int flags) noexcept nogil:
    """Charge managed memory like any other: it evicts the memory of other jobs if it does not fit.

    Where there are no other jobs, memory beyond the limit is the driver's affair, and is not charged.
    """
    cdef fg_charge charge
    cdef int device = 0
    cdef void *ask = fg_function(FG_cuCtxGetDevice)
    cdef void *real = fg_function(FG_cuMemAllocManaged)
    if real and ask and (<ctx_device_t> ask)(&device) == CUDA_SUCCESS and fg_outgrows_gpu(fg_gpu_of(device), device, size):
        return (<alloc_managed_t> real)(address, size, flags)
    cdef int status = fg_reserve_here(fg_linear_charge(size), &charge)
    if status == CUDA_ERROR_OUT_OF_MEMORY or not real:
        return status
    if status != CUDA_SUCCESS:  # without a context the driver refuses, and judges the arguments first
        return (<alloc_managed_t> real)(address, size, flags)
    return fg_finish_linear((<alloc_managed_t> real)(address, size, flags), address, size, &charge)


cdef uint64_t fg_area(uint64_t pitch, uint64_t height) noexcept nogil:
    """Return the product; UINT64_MAX on overflow."""
    return UINT64_MAX if pitch and height > UINT64_MAX // pitch else pitch * height


cdef int fg_reserve_pitched(uint64_t width, uint64_t height, fg_charge *charge) noexcept nogil:
    """Reserve for the widest pitch seen so far; the driver chooses the pitch."""
    return fg_reserve_here(fg_linear_charge(fg_area(width if width > UINT64_MAX - 511 else (width + 511) & ~<uint64_t> 511, height)), charge)


cdef bint fg_fit_charge(uint64_t bytes, fg_charge *charge) noexcept nogil:
    """Change a reservation to the bytes allocated. Return False if they exceed the limit."""
    cdef fg_charge more = charge[0]
    if bytes <= charge.bytes:
        fg_release(charge.gpu, charge.bytes - bytes)
        charge.total -= charge.bytes - bytes
    else:
        more.bytes = bytes - charge.bytes
        if not fg_reserve(&more):
            return False
        charge.total = more.total
    charge.bytes = bytes
    return True


cdef int fg_finish_pitched(int status, const uint64_t *address, uint64_t bytes, fg_charge *charge) noexcept nogil:
    if status == CUDA_SUCCESS and not fg_fit_charge(fg_linear_charge(bytes), charge):
        (<free_t> fg_function(FG_cuMemFree_v2))(address[0])
        fg_record_refusal(charge.gpu, bytes)
        status = CUDA_ERROR_OUT_OF_MEMORY
    return fg_finish_linear(status, address, bytes, charge)


cdef public int cuMemAllocPitch_v2(
    uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned int element
) noexcept nogil:
    cdef fg_charge charge
    cdef void *real = fg_function(FG_cuMemAllocPitch_v2)
    cdef int status = fg_reserve_pitched(width, height, &charge)
    if status != CUDA_SUCCESS:
        return status
    status = (<alloc_pitch_t> real)(address, pitch, width, height, element)
    return fg_finish_pitched(status, address, fg_area(pitch[0], height) if status == CUDA_SUCCESS else 0, &charge)


cdef int fg_remove_address(uint64_t address, fg_charge *charge) noexcept nogil:
    """Remove the entry of an address and return its kind; FG_FREE if it is unknown."""
    if fg_remove(FG_MEMORY, address, charge):
        return FG_MEMORY
    return FG_ASYNC if fg_remove(FG_ASYNC, address, charge) else FG_FREE


cdef void fg_freed(int status, int kind, uint64_t address, const fg_charge *charge) noexcept nogil:
    """Release a charge after the driver freed the memory, or record it again if the driver refused."""
    if kind and status != CUDA_SUCCESS:
        fg_record(kind, address, charge)
    elif kind == FG_MEMORY:
        fg_release_charge(charge)
    elif kind == FG_ASYNC:
        fg_back_to_pool(charge)
    elif status == CUDA_SUCCESS:  # it may be memory of a graph
        fg_publish(&fg_stale, 1)


cdef public int cuMemFree_v2(uint64_t address) noexcept nogil:
    """Free memory. An unknown address is passed to the driver."""
    cdef fg_charge charge
    cdef int kind = fg_remove_address(address, &charge)
    cdef void *real = fg_function(FG_cuMemFree_v2)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<free_t> real)(address)
    fg_freed(status, kind, address, &charge)
    return status
