# The memory figures that the job sees: its own share, equal in CUDA and in NVML.
#
# Hooks: cuMemGetInfo_v2, cuDeviceTotalMem_v2, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2.
# Exports: fg_free_of, fg_nvml_gpu, fg_view, fg_view_of, fg_visible_total.
# Needs: cards (fg_has_instances_on, fg_is_instance_on); driver (fg_function); ledger (fg_living_job_bytes);
#   memory (fg_gpu_of); pool_table (fg_can_trim, fg_refresh_pools); region (fg_attach, fg_limit, fg_own_job,
#   fg_position).

cdef struct fg_view:
    uint64_t total, used


cdef fg_view fg_view_of(int gpu, uint64_t real_total) noexcept nogil:
    """Return the job's limit and what it holds. Without a region, all is 0."""
    cdef fg_region *region = fg_attach()
    cdef fg_view view
    view.total = view.used = 0
    if region == NULL or gpu < 0:
        return view
    if fg_can_trim():
        fg_refresh_pools()
    view.total = min(fg_limit(gpu), real_total)
    view.used = min(fg_living_job_bytes(gpu), view.total)
    return view


cdef inline uint64_t fg_free_of(const fg_view *view, uint64_t real_free) noexcept nogil:
    """Return what the job can still allocate: the rest of its limit, if others have left that much on the GPU."""
    return min(view.total - view.used, real_free)


cdef public int cuMemGetInfo_v2(size_t *free, size_t *total) noexcept nogil:
    cdef fg_view view
    cdef int device = 0
    cdef void *real = fg_function(FG_cuMemGetInfo_v2)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<mem_info_t> real)(free, total)
    if status == CUDA_SUCCESS:
        status = (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device)
    if status == CUDA_SUCCESS:
        view = fg_view_of(fg_gpu_of(device), total[0] if total else UINT64_MAX)
        if total:
            total[0] = view.total
        if free:
            free[0] = fg_free_of(&view, free[0])
    return status


cdef uint64_t fg_visible_total(int device, uint64_t total) noexcept nogil:
    """Return the job's limit on a GPU of `total` bytes; 0 if the GPU is not the job's."""
    cdef int gpu = fg_gpu_of(device)
    return min(fg_limit(gpu), total) if gpu >= 0 else 0


cdef public int cuDeviceTotalMem_v2(size_t *total, int device) noexcept nogil:
    cdef void *real = fg_function(FG_cuDeviceTotalMem_v2)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<total_t> real)(total, device)
    if status == CUDA_SUCCESS and total:
        total[0] = fg_visible_total(device, total[0])
    return status


cdef int fg_hex(char digit) noexcept nogil:
    if c"0" <= digit <= c"9":
        return digit - c"0"
    digit |= 0x20
    return digit - c"a" + 10 if c"a" <= digit <= c"f" else -1


cdef bint fg_parse_uuid(const char *text, uint8_t *uuid) noexcept nogil:
    """Parse a UUID such as GPU-1b2c3d4e-… or MIG-1b2c3d4e-… to 16 bytes. Return False if it is malformed."""
    cdef int digits = 0, value
    if strncmp(text, "GPU-", 4) != 0 and strncmp(text, "MIG-", 4) != 0:
        return False
    text += 4
    while text[0] and digits < 32:
        value = fg_hex(text[0])
        if value >= 0:
            uuid[digits // 2] = (uuid[digits // 2] << 4 | value) & 0xff
            digits += 1
        elif text[0] != c"-":
            return False
        text += 1
    return digits == 32 and text[0] == 0


cdef int fg_nvml_gpu(void *device) noexcept nogil:
    """Return the position in the region of an NVML device; -1 if it is not the job's."""
    cdef char text[96]
    cdef uint8_t uuid[16]
    cdef void *ask = fg_function(FG_nvmlDeviceGetUUID)
    if not ask or (<nvml_uuid_t> ask)(device, text, sizeof(text)) != NVML_SUCCESS:
        return -1
    return fg_position(uuid) if fg_parse_uuid(text, uuid) else -1


cdef void fg_show_job_memory(void *device, uint64_t *total, uint64_t *used, uint64_t *free) noexcept nogil:
    """Replace the memory figures of a GPU of the job by the job's own. Other GPUs are shown as they are.

    The GPU of the job's MIG instances shows the sums of these.
    """
    cdef fg_view view, part
    cdef int gpu = fg_nvml_gpu(device)
    cdef uint32_t at
    if gpu < 0 and not fg_has_instances_on(device):
        return
    view.total = view.used = 0
    for at in range(fg_own_job().cards):
        if <int> at == gpu or (gpu < 0 and fg_is_instance_on(at, device)):
            part = fg_view_of(at, total[0])
            view.total += part.total
            view.used += part.used
    total[0] = view.total
    used[0] = view.used
    free[0] = fg_free_of(&view, free[0])


cdef public int nvmlDeviceGetMemoryInfo(void *device, void *memory) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetMemoryInfo)
    cdef fg_nvml_memory *info = <fg_nvml_memory *> memory
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_memory_t> real)(device, memory)
    if status == NVML_SUCCESS:
        fg_show_job_memory(device, &info.total, &info.used, &info.free)
    return status


cdef public int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory) noexcept nogil:
    """Report memory with version 2. The driver's reserved memory is not changed."""
    cdef void *real = fg_function(FG_nvmlDeviceGetMemoryInfo_v2)
    cdef fg_nvml_memory_v2 *info = <fg_nvml_memory_v2 *> memory
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_memory_t> real)(device, memory)
    if status == NVML_SUCCESS:
        fg_show_job_memory(device, &info.total, &info.used, &info.free)
    return status
