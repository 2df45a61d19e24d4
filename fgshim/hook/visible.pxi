# The start of CUDA: the driver reads UUIDs where the program has numbers (visible.h).
#
# The variable of the program has its own value again afterwards: programs read numbers from it, and children inherit it.
#
# Hooks: cuInit.
# Exports: nothing.
# Needs: driver (fg_function); region (fg_own_job).

cdef extern from "visible.h" nogil:
    bint fg_show_uuids(const fg_job *)
    void fg_restore_numbers()
    void fg_uuid_text(const uint8_t *, bint, char *)


cdef public int cuInit(unsigned int flags) noexcept nogil:
    cdef void *real = fg_function(FG_cuInit)
    cdef fg_job *job
    cdef bint is_translated
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    job = NULL if fg_load_int(&fg_is_started) else fg_own_job()
    if job == NULL or not job.by_position:
        return (<init_t> real)(flags)
    pthread_mutex_lock(&fg_own_lock)
    is_translated = fg_show_uuids(job)
    status = (<init_t> real)(flags)
    if is_translated:
        fg_restore_numbers()
    pthread_mutex_unlock(&fg_own_lock)
    if status == CUDA_SUCCESS:
        fg_store_int(&fg_is_started, 1)
    return status
