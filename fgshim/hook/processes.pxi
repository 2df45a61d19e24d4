# NVML's lists of processes: a job sees its own processes only.
#
# Hooks: nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
#   nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses,
#   nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3,
#   nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v2,
#   nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetRunningProcessDetailList,
#   nvmlDeviceGetProcessUtilization, nvmlDeviceGetProcessesUtilizationInfo, nvmlDeviceGetAccountingPids,
#   nvmlDeviceGetAccountingStats, nvmlDeviceGetAccountingStats_v2, nvmlSystemGetProcessName,
#   nvmlDeviceGetEncoderSessions, nvmlDeviceGetFBCSessions.
# Exports: fg_keep_job_processes, fg_whole_list.
# Needs: driver (fg_function); region (fg_attach); slots (fg_own_namespace, fg_reap).

cdef bint fg_is_job_process(fg_region *region, uint32_t pid) noexcept nogil:
    """Return whether a process of the job has this pid, in this process's pid namespace."""
    cdef uint32_t at
    if pid == <uint32_t> getpid():
        return True
    for at in range(fg_region_slots(region)):
        if fg_peek_int(&region.slot[at].pid) == pid and fg_peek(&region.slot[at].pid_namespace) == fg_own_namespace():
            return True
    return False


cdef uint32_t fg_keep_job_processes(void *list, uint32_t count, size_t size, size_t offset) noexcept nogil:
    """Move the job's processes to the front of a list and return their number. The pid is at `offset` of an entry."""
    cdef fg_region *region = fg_attach()
    cdef char *entries = <char *> list
    cdef uint32_t at, kept = 0
    if entries == NULL or region == NULL:
        return 0
    fg_reap(region, False)
    for at in range(count):
        if fg_is_job_process(region, (<uint32_t *> (entries + at * size + offset))[0]):
            memmove(entries + kept * size, entries + at * size, size)
            kept += 1
    return kept


cdef int fg_whole_list(void *real, void *device, uint32_t *count, size_t size, void **list) noexcept nogil:
    """Return all processes of a GPU in memory of the hook, (count + 1) * size bytes."""
    cdef uint32_t room = 0
    cdef int status = (<nvml_processes_t> real)(device, &room, NULL)
    cdef int tries
    list[0] = NULL
    count[0] = 0
    for tries in range(8):  # more processes may have appeared since they were counted
        if status != NVML_ERROR_INSUFFICIENT_SIZE:
            return status
        room += 16
        list[0] = fg_pages(room * size)
        if list[0] == NULL:
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
    """Answer a list by NVML's protocol: room in, number out, and an error with the number if room is too small."""
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
    kept = fg_keep_job_processes(list, found, size, 0)
    if kept > count[0]:
        status = NVML_ERROR_INSUFFICIENT_SIZE
    elif kept:
        memcpy(into, list, kept * size)
    count[0] = kept
    if list:
        munmap(list, found * size)
    set_errno(saved)
    return status


cdef size_t fg_newest_entry() noexcept nogil:
    """Return the size of an entry of the _v3 lists, which was another one in drivers 535.43 to 535.86."""
    cdef char version[96]
    cdef void *ask = fg_function(FG_nvmlSystemGetDriverVersion)
    cdef int minor = 0
    cdef const char *digit = version + 4
    if ask == NULL or (<nvml_text_t> ask)(version, sizeof(version)) != NVML_SUCCESS or strncmp(version, "535.", 4) != 0:
        return sizeof(fg_nvml_process_v2)
    while c"0" <= digit[0] <= c"9":
        minor = minor * 10 + digit[0] - c"0"
        digit += 1
    return sizeof(fg_nvml_detail) if 43 <= minor <= 86 else sizeof(fg_nvml_process_v2)


cdef public int nvmlDeviceGetComputeRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetComputeRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetComputeRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetComputeRunningProcesses_v3, device, count, into, fg_newest_entry())


cdef public int nvmlDeviceGetGraphicsRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetGraphicsRunningProcesses_v3, device, count, into, fg_newest_entry())


cdef public int nvmlDeviceGetMPSComputeRunningProcesses(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses, device, count, into, sizeof(fg_nvml_process))


cdef public int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses_v2, device, count, into, sizeof(fg_nvml_process_v2))


cdef public int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_list(FG_nvmlDeviceGetMPSComputeRunningProcesses_v3, device, count, into, fg_newest_entry())


cdef public int nvmlDeviceGetRunningProcessDetailList(void *device, void *list) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetRunningProcessDetailList)
    cdef fg_nvml_details *details = <fg_nvml_details *> list
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_memory_t> real)(device, list)
    if status == NVML_SUCCESS:
        details.count = fg_keep_job_processes(details.list, details.count, sizeof(fg_nvml_detail), 0)
    return status


cdef public int nvmlDeviceGetProcessUtilization(void *device, void *list, uint32_t *count, uint64_t since) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetProcessUtilization)
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_samples_t> real)(device, list, count, since)
    if status == NVML_SUCCESS:
        count[0] = fg_keep_job_processes(list, count[0], sizeof(fg_nvml_sample), 0)
    return status


cdef public int nvmlDeviceGetProcessesUtilizationInfo(void *device, void *list) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetProcessesUtilizationInfo)
    cdef fg_nvml_loads *loads = <fg_nvml_loads *> list
    cdef fg_nvml_load one
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_memory_t> real)(device, list)
    if status == NVML_SUCCESS:
        loads.count = fg_keep_job_processes(loads.list, loads.count, sizeof(one), <char *> &one.pid - <char *> &one)
    return status


cdef int fg_sessions(int call, void *device, uint32_t *count, void *into, size_t size) noexcept nogil:
    """Answer a list of sessions: with no room its length, else the sessions. The pid is the second word of one."""
    cdef void *real = fg_function(call)
    cdef uint32_t found = 0, room
    cdef int saved = errno
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_processes_t> real)(device, &found if count else NULL, NULL)
    if status != NVML_SUCCESS or count == NULL:
        return status
    room = found + 16  # more sessions may have begun
    cdef void *list = fg_pages(room * size)
    set_errno(saved)
    if list == NULL:
        return NVML_ERROR_MEMORY
    found = room
    status = (<nvml_processes_t> real)(device, &found, list)
    if status == NVML_SUCCESS:
        found = fg_keep_job_processes(list, found, size, sizeof(uint32_t))
        if into and found > count[0]:
            status = NVML_ERROR_INSUFFICIENT_SIZE
        elif into:
            memcpy(into, list, found * size)
        count[0] = found
    munmap(list, room * size)
    set_errno(saved)
    return status


cdef public int nvmlDeviceGetEncoderSessions(void *device, uint32_t *count, void *into) noexcept nogil:
    return fg_sessions(FG_nvmlDeviceGetEncoderSessions, device, count, into, sizeof(fg_nvml_encoder_session))


cdef public int nvmlDeviceGetFBCSessions(void *device, uint32_t *count, void *into) noexcept nogil:
    """Answer the sessions of screen capture."""
    return fg_sessions(FG_nvmlDeviceGetFBCSessions, device, count, into, sizeof(fg_nvml_capture_session))


cdef public int nvmlDeviceGetAccountingPids(void *device, uint32_t *count, uint32_t *pids) noexcept nogil:
    """Answer utilization samples of the job's processes. The required buffer size is that for all processes."""
    cdef void *real = fg_function(FG_nvmlDeviceGetAccountingPids)
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_pids_t> real)(device, count, pids)
    if status == NVML_SUCCESS:
        count[0] = fg_keep_job_processes(pids, count[0], sizeof(uint32_t), 0)
    return status


cdef int fg_status_of_stranger() noexcept nogil:
    """Return the status for a process of another job: not found, or the error that NVML has for any question."""
    cdef uint32_t count = 0
    cdef void *ask = fg_function(FG_nvmlDeviceGetCount_v2)
    cdef int status = (<nvml_count_t> ask)(&count) if ask else NVML_SUCCESS
    return status if status != NVML_SUCCESS else NVML_ERROR_NOT_FOUND


cdef public int nvmlDeviceGetAccountingStats(void *device, uint32_t pid, void *stats) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlDeviceGetAccountingStats)
    cdef uint32_t asked = pid
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if device and stats and not fg_keep_job_processes(&asked, 1, 4, 0):
        return fg_status_of_stranger()
    return (<nvml_stats_t> real)(device, pid, stats)


cdef public int nvmlDeviceGetAccountingStats_v2(void *device, void *stats) noexcept nogil:
    """Answer accounting statistics; the pid is in the structure."""
    cdef void *real = fg_function(FG_nvmlDeviceGetAccountingStats_v2)
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if stats and not fg_keep_job_processes(stats, 1, 4, 0):
        return fg_status_of_stranger()
    return (<nvml_memory_t> real)(device, stats)


cdef public int nvmlSystemGetProcessName(uint32_t pid, char *name, uint32_t room) noexcept nogil:
    """Answer the name of a process of the job; NVML_ERROR_NOT_FOUND for any other."""
    cdef void *real = fg_function(FG_nvmlSystemGetProcessName)
    cdef uint32_t asked = pid
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    if name and room and not fg_keep_job_processes(&asked, 1, 4, 0):
        return fg_status_of_stranger()
    return (<nvml_name_of_t> real)(pid, name, room)
