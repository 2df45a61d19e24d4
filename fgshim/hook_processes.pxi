# NVML's lists of processes: the job sees its own, as if the card were its own.

cdef bint fg_is_jobs(fg_region *region, uint32_t pid) noexcept nogil:
    """Whether a process of the job has this pid. Under the region's lock."""
    cdef uint32_t at
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid == pid:
            return True
    return False


cdef uint32_t fg_only_jobs(char *list, uint32_t count, size_t size) noexcept nogil:
    """Move the job's processes to the front of the list; how many they are. None without a region."""
    cdef fg_region *region = fg_attach()
    cdef uint32_t at, kept = 0
    if not fg_lock(region):
        return 0
    fg_reap(region)
    for at in range(count):
        if fg_is_jobs(region, (<uint32_t *> (list + at * size))[0]):
            memmove(list + kept * size, list + at * size, size)
            kept += 1
    pthread_mutex_unlock(&region.lock)
    return kept


cdef int fg_whole_list(void *real, void *device, uint32_t *count, size_t size, void **list) noexcept nogil:
    """All that run on the card, in memory of our own of (count + 1) * size bytes."""
    cdef uint32_t room = 0
    cdef int status = (<nvml_processes_t> real)(device, &room, NULL)
    cdef int tries
    list[0] = NULL
    count[0] = 0
    for tries in range(8):  # more may have come since it was asked how many there are
        if status != NVML_ERROR_INSUFFICIENT_SIZE:
            return status
        room += 16
        list[0] = mmap(NULL, room * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if list[0] == MAP_FAILED:
            list[0] = NULL
            return NVML_ERROR_MEMORY
        count[0] = room
        status = (<nvml_processes_t> real)(device, count, list[0])
        if status == NVML_SUCCESS:
            return status
        munmap(list[0], room * size)
        list[0] = NULL
        room = count[0]
    return status


cdef int fg_list(int call, void *device, uint32_t *count, void *into, size_t size) noexcept nogil:
    """NVML's protocol: room in, number out; too little room is an error that says how much is needed."""
    cdef void *real = fg_function(call)
    cdef void *list = NULL
    cdef uint32_t found = 0, kept
    cdef int saved = errno
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if count == NULL or (into == NULL and count[0]):
        return (<nvml_processes_t> real)(device, count, into)
    cdef int status = fg_whole_list(real, device, &found, size, &list)
    if status != NVML_SUCCESS:
        return status
    kept = fg_only_jobs(<char *> list, found, size)
    if kept > count[0]:
        status = NVML_ERROR_INSUFFICIENT_SIZE
    elif kept:
        memcpy(into, list, kept * size)
    count[0] = kept
    if list:
        munmap(list, found * size)
    set_errno(saved)
    return status


cdef public int nvmlDeviceGetComputeRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetComputeRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetComputeRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses_v3, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetGraphicsRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses_v3, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetMPSComputeRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses_v3, device, count, into, sizeof(fg_nvml_process_v2))
