# The list of processes that nvidia-smi takes from a private table of NVML.
#
# On the driver branches whose layout is proved (smi_table.h), the program gets a copy of the table with the
# hook's functions in the slots of the GPUs and the process lists. On any other branch, and before NVML
# reports its version, it gets NVML's own table: nvidia-smi then shows the host's GPUs and the processes of
# all jobs.
#
# Hooks: nvmlInternalGetExportTable.
# Exports: nothing.
# Needs: cards (fg_by_index); driver (fg_function); processes (fg_keep_job_processes).

cdef extern from "smi_table.h" nogil:
    const int FG_SMI_CARD, FG_SMI_LIST, FG_SMI_LISTS, FG_SMI_LEAST, FG_SMI_MOST
    ctypedef struct fg_smi_process:
        uint32_t pid
        char name[4096]
    ctypedef int (*fg_smi_call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t) noexcept nogil
    const uint8_t *fg_smi_id
    bint fg_smi_is_proved(const char *)


cdef bint fg_smi_plausible(const fg_smi_process *list, uint32_t count) noexcept nogil:
    """Return whether these bytes can be a list of processes: pids in range, names that end."""
    cdef uint32_t at
    for at in range(count):
        if list[at].pid == 0 or list[at].pid > 1 << 22 or list[at].name[0] < c" ":
            return False
        if memchr(list[at].name, 0, sizeof(list[at].name)) == NULL:
            return False
    return True


cdef bint fg_smi_device(uintptr_t device) noexcept nogil:
    """Return whether NVML knows this handle."""
    cdef char text[96]
    cdef void *ask = fg_function(FG_nvmlDeviceGetUUID)
    return device >= 4096 and ask != NULL and (<nvml_uuid_t> ask)(<void *> device, text, sizeof(text)) == NVML_SUCCESS


cdef bint fg_smi_is_on() noexcept nogil:
    """Return whether the layout of this driver's table is proved. NVML tells its version only after nvmlInit."""
    cdef char version[96]
    cdef void *ask = fg_function(FG_nvmlSystemGetDriverVersion)
    return ask != NULL and (<nvml_text_t> ask)(version, sizeof(version)) == NVML_SUCCESS and fg_smi_is_proved(version)


cdef int fg_smi_list(int slot, uintptr_t device, uintptr_t number, uintptr_t into, uintptr_t d, uintptr_t e, uintptr_t f) noexcept nogil:
    """Answer a list of processes with those of the job. A call whose arguments are not those of a list is NVML's."""
    cdef fg_smi_call real = <fg_smi_call> fg_smi_real[slot]
    cdef uint32_t *count = <uint32_t *> number
    cdef uint32_t room
    if number < 4096 or into < 4096 or not fg_smi_device(device) or not 1 <= count[0] <= 65536:
        return real(device, number, into, d, e, f)
    room = count[0]
    cdef int status = real(device, number, into, d, e, f)
    if status == NVML_SUCCESS and (count[0] > room or not fg_smi_plausible(<fg_smi_process *> into, count[0])):
        count[0] = 0
    elif status == NVML_SUCCESS:
        count[0] = fg_keep_job_processes(<void *> into, count[0], sizeof(fg_smi_process), 0)
    return status


cdef int fg_smi_list0(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) noexcept nogil:
    return fg_smi_list(FG_SMI_LIST, a, b, c, d, e, f)


cdef int fg_smi_list1(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) noexcept nogil:
    return fg_smi_list(FG_SMI_LIST + 1, a, b, c, d, e, f)


cdef int fg_smi_list2(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) noexcept nogil:
    return fg_smi_list(FG_SMI_LIST + 2, a, b, c, d, e, f)


cdef int fg_smi_card(uintptr_t index, uintptr_t device, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) noexcept nogil:
    """Return the handle of a GPU by its index within the job."""
    cdef void *by_uuid = fg_function(FG_nvmlDeviceGetIndex)
    cdef void *own = NULL
    cdef uint32_t number = 0
    cdef int status
    if device >= 4096 and index < 64:
        status = fg_by_index(FG_nvmlDeviceGetHandleByIndex_v2, <uint32_t> index, &own)
        if status == NVML_SUCCESS and by_uuid:
            status = (<nvml_index_t> by_uuid)(own, &number)
        if status != NVML_SUCCESS:
            return status
        index = number
    return (<fg_smi_call> fg_smi_real[FG_SMI_CARD])(index, device, c, d, e, f)


cdef void **fg_smi_copy(void **real) noexcept nogil:
    """Return a copy of the table with the hook's functions in it; NULL if the size is not that of such a table."""
    cdef size_t size = <size_t> real[0]
    cdef int saved = errno
    cdef void *room
    if size < FG_SMI_LEAST * sizeof(void *) or size > FG_SMI_MOST:
        return NULL
    room = fg_pages(size)
    set_errno(saved)
    if room == NULL:
        return NULL
    memcpy(room, real, size)
    cdef void **copy = <void **> room
    copy[FG_SMI_CARD] = <void *> fg_smi_card
    copy[FG_SMI_LIST] = <void *> fg_smi_list0
    copy[FG_SMI_LIST + 1] = <void *> fg_smi_list1
    copy[FG_SMI_LIST + 2] = <void *> fg_smi_list2
    return copy


cdef public int nvmlInternalGetExportTable(const void **table, const void *id) noexcept nogil:
    cdef void *real = fg_function(FG_nvmlInternalGetExportTable)
    cdef void **copy
    if not real:
        return NVML_ERROR_FUNCTION_NOT_FOUND
    cdef int status = (<nvml_table_t> real)(table, id)
    if status != NVML_SUCCESS or table == NULL or table[0] == NULL or id == NULL or memcmp(id, fg_smi_id, 16) != 0:
        return status
    if not fg_smi_is_on():
        return status
    if not fg_load(&fg_smi_own):
        copy = fg_smi_copy(<void **> table[0])
        if copy == NULL:
            return status
        fg_store(&fg_smi_real, <void *> table[0])
        fg_store(&fg_smi_own, copy)
    table[0] = fg_load(&fg_smi_own)
    return status
