# The GPUs that NVML shows: those of the job, numbered as CUDA numbers them within the job.
#
# The GPU of a MIG instance is shown in its place, and of its instances only those of the job.
#
# The region lists them in that order. The driver is always called, so it refuses what it would refuse without
# the hook.
#
# Hooks: nvmlDeviceGetCount, nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2,
#   nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleBySerial,
#   nvmlDeviceGetHandleByUUID, nvmlDeviceGetHandleByUUIDV, nvmlDeviceGetIndex,
#   nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetTopologyNearestGpus, nvmlSystemGetTopologyGpuSet,
#   nvmlUnitGetDevices.
# Exports: fg_by_index, fg_has_instances_on, fg_is_instance_on, fg_nvml_handle_of.
# Needs: driver (fg_function); region (fg_attach, fg_own_job); views (fg_nvml_gpu).

cdef bint fg_nvml_own(void *device) noexcept nogil:
    """Return whether the device is a GPU of the job, a MIG instance of one, or the GPU of the job's instance."""
    cdef void *whole
    if fg_nvml_gpu(device) >= 0 or fg_has_instances_on(device):
        return True
    whole = fg_whole(device)
    return whole != NULL and fg_nvml_gpu(whole) >= 0


# -- MIG instances --------------------------------------------------------------------------------------

cdef void *fg_whole(void *instance) noexcept nogil:
    """Return the GPU of a MIG instance; NULL if the device is none."""
    cdef void *ask = fg_function(FG_nvmlDeviceGetDeviceHandleFromMigDeviceHandle)
    cdef void *whole = NULL
    if ask == NULL or (<nvml_whole_t> ask)(instance, &whole) != NVML_SUCCESS:
        return NULL
    return whole


cdef void *fg_instance(uint32_t at) noexcept nogil:
    """Return the job's MIG instance at a position of the region; NULL if there is none."""
    cdef void *ask = fg_function(FG_nvmlDeviceGetHandleByUUID)
    cdef fg_job *job = fg_own_job()
    cdef void *device = NULL
    cdef char text[48]
    if ask == NULL or not job.card[at].is_instance:
        return NULL
    fg_uuid_text(job.card[at].uuid, True, text)
    return device if (<nvml_by_name_t> ask)(text, &device) == NVML_SUCCESS else NULL


cdef bint fg_nvml_handle_of(int gpu, void **device) noexcept nogil:
    """Find the NVML device at a position of the region. Return False if NVML does not know it."""
    cdef void *ask = fg_function(FG_nvmlDeviceGetHandleByUUID)
    cdef const fg_card_t *card = &fg_own_job().card[gpu]
    cdef char text[48]
    if ask == NULL:
        return False
    fg_uuid_text(card.uuid, card.is_instance, text)
    return (<nvml_by_name_t> ask)(text, device) == NVML_SUCCESS


cdef bint fg_is_instance_on(uint32_t at, void *device) noexcept nogil:
    """Return whether the job's GPU at a position of the region is a MIG instance of the device."""
    cdef void *instance = fg_instance(at)
    return instance != NULL and device != NULL and fg_whole(instance) == device


cdef bint fg_has_instances_on(void *device) noexcept nogil:
    """Return whether a MIG instance of the job is one of the device."""
    cdef fg_job *job = fg_own_job()
    cdef uint32_t at
    if job:
        for at in range(job.cards):
            if fg_is_instance_on(at, device):
                return True
    return False


cdef uint32_t fg_shown(uint32_t index, void **device) noexcept nogil:
    """Return the number of GPUs that NVML shows to a job with MIG instances, and the one with this index."""
    cdef fg_job *job = fg_own_job()
    cdef void *seen[GPUS]
    cdef void *one
    cdef uint32_t at, other, count = 0
    for at in range(job.cards):
        one = fg_whole(fg_instance(at)) if job.card[at].is_instance else NULL
        if job.card[at].is_instance and one == NULL:
            continue
        for other in range(count):
            if one != NULL and seen[other] == one:
                break
        else:
            seen[count] = one
            if count == index:
                device[0] = one
            count += 1
    return count


cdef bint fg_job_has_instances() noexcept nogil:
    cdef fg_job *job = fg_own_job()
    cdef uint32_t at
    if job:
        for at in range(job.cards):
            if job.card[at].is_instance:
                return True
    return False


cdef public int nvmlDeviceGetMigDeviceHandleByIndex(void *device, uint32_t index, void **instance) noexcept nogil:
    """Return the instance with this index among the job's instances of the device."""
    cdef void *real = fg_function(FG_nvmlDeviceGetMigDeviceHandleByIndex)
    cdef uint32_t at, count = 0
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if instance == NULL or not fg_has_instances_on(device):
        return fg_hide_others((<nvml_instance_t> real)(device, index, instance), instance)
    for at in range(fg_own_job().cards):
        if fg_is_instance_on(at, device):
            if count == index:
                instance[0] = fg_instance(at)
                return NVML_SUCCESS
            count += 1
    return NVML_ERROR_NOT_FOUND


# -- GPUs -----------------------------------------------------------------------------------------------


cdef int fg_hide_others(int status, void **device) noexcept nogil:
    """Return NVML_ERROR_NOT_FOUND for a GPU of another job."""
    if status != NVML_SUCCESS or fg_nvml_own(device[0]):
        return status
    device[0] = NULL
    return NVML_ERROR_NOT_FOUND


cdef int fg_by_index(int call, uint32_t index, void **device) noexcept nogil:
    """Find a GPU of the job by its index: at the controller's NVML index, or by UUID if NVML numbers differ here."""
    cdef void *real = fg_function(call)
    cdef void *ask = fg_function(FG_nvmlDeviceGetHandleByUUID)
    cdef fg_region *region = fg_attach()
    cdef char text[48]
    if not real or not ask:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if device == NULL or region == NULL or index >= fg_region_gpus(region):
        return (<nvml_by_index_t> real)(UINT32_MAX, device)
    if fg_job_has_instances():
        device[0] = NULL
        fg_shown(index, device)
        return NVML_SUCCESS if device[0] else (<nvml_by_index_t> real)(UINT32_MAX, device)
    if (<nvml_by_index_t> real)(region.gpu[index].index, device) == NVML_SUCCESS and fg_nvml_gpu(device[0]) == <int> index:
        return NVML_SUCCESS
    device[0] = NULL
    fg_uuid_text(region.gpu[index].uuid, False, text)
    return (<nvml_by_name_t> ask)(text, device)


cdef int fg_by_name(int call, const void *name, void **device) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    return fg_hide_others((<nvml_by_name_t> real)(<const char *> name, device), device)


cdef int fg_count(int call, uint32_t *count) noexcept nogil:
    cdef void *real = fg_function(call)
    cdef fg_job *job = fg_own_job()
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_count_t> real)(count)
    if status == NVML_SUCCESS:
        count[0] = job.cards if job else 0
        if fg_job_has_instances():
            count[0] = fg_shown(UINT32_MAX, NULL)
    return status


cdef public int nvmlDeviceGetCount(uint32_t *count) noexcept nogil:
    return fg_count(FG_nvmlDeviceGetCount, count)


cdef public int nvmlDeviceGetCount_v2(uint32_t *count) noexcept nogil:
    return fg_count(FG_nvmlDeviceGetCount_v2, count)


cdef public int nvmlDeviceGetHandleByIndex(uint32_t index, void **device) noexcept nogil:
    return fg_by_index(FG_nvmlDeviceGetHandleByIndex, index, device)


cdef public int nvmlDeviceGetHandleByIndex_v2(uint32_t index, void **device) noexcept nogil:
    return fg_by_index(FG_nvmlDeviceGetHandleByIndex_v2, index, device)


cdef public int nvmlDeviceGetHandleByPciBusId(const void *bus, void **device) noexcept nogil:
    return fg_by_name(FG_nvmlDeviceGetHandleByPciBusId, bus, device)


cdef public int nvmlDeviceGetHandleByPciBusId_v2(const void *bus, void **device) noexcept nogil:
    return fg_by_name(FG_nvmlDeviceGetHandleByPciBusId_v2, bus, device)


cdef public int nvmlDeviceGetHandleBySerial(const void *serial, void **device) noexcept nogil:
    return fg_by_name(FG_nvmlDeviceGetHandleBySerial, serial, device)


cdef public int nvmlDeviceGetHandleByUUID(const void *uuid, void **device) noexcept nogil:
    return fg_by_name(FG_nvmlDeviceGetHandleByUUID, uuid, device)


cdef public int nvmlDeviceGetHandleByUUIDV(const void *uuid, void **device) noexcept nogil:
    return fg_by_name(FG_nvmlDeviceGetHandleByUUIDV, uuid, device)


cdef public int nvmlDeviceGetIndex(void *device, uint32_t *index) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetIndex)
    cdef void *shown = NULL
    cdef uint32_t at
    cdef int gpu
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_index_t> real)(device, index)
    if status != NVML_SUCCESS:
        return status
    gpu = -1 if fg_job_has_instances() else fg_nvml_gpu(device)
    if gpu >= 0:
        index[0] = gpu
    elif fg_has_instances_on(device):
        for at in range(fg_shown(UINT32_MAX, NULL)):
            fg_shown(at, &shown)
            if shown == device:
                index[0] = at
    return status


cdef int fg_own_devices(int status, void **found, uint32_t number, uint32_t *count, void **devices) noexcept nogil:
    """Copy the job's GPUs, as many as there is room for, or only count them. The lists may be the same."""
    cdef uint32_t at, kept = 0
    if status != NVML_SUCCESS:
        return status
    for at in range(min(number, 64)):
        if fg_nvml_own(found[at]):
            if devices and kept < count[0]:
                devices[kept] = found[at]
            kept += 1
    count[0] = min(kept, count[0]) if devices else kept
    return NVML_SUCCESS


cdef public int nvmlDeviceGetTopologyNearestGpus(
    void *device, uint32_t level, uint32_t *count, void **devices
) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetTopologyNearestGpus)
    cdef void *found[64]
    cdef uint32_t number = 64
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if count == NULL:
        return (<nvml_nearest_t> real)(device, level, count, devices)
    cdef int status = (<nvml_nearest_t> real)(device, level, &number, found)
    return fg_own_devices(status, found, number, count, devices)


cdef public int nvmlSystemGetTopologyGpuSet(uint32_t cpu, uint32_t *count, void **devices) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlSystemGetTopologyGpuSet)
    cdef void *found[64]
    cdef uint32_t number = 64
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if count == NULL:
        return (<nvml_gpu_set_t> real)(cpu, count, devices)
    cdef int status = (<nvml_gpu_set_t> real)(cpu, &number, found)
    return fg_own_devices(status, found, number, count, devices)


cdef public int nvmlUnitGetDevices(void *unit, uint32_t *count, void **devices) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlUnitGetDevices)
    cdef uint32_t number
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_devices_t> real)(unit, count, devices)
    if status != NVML_SUCCESS or devices == NULL:
        return status
    number = count[0]
    return fg_own_devices(status, devices, number, count, devices)
