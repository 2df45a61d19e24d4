# The job's region: mapped once, locked for less than a microsecond at a time, never trusted (job.h).
#
# Exports: fg_attach, fg_limit, fg_lock, fg_own_job, fg_position, fg_unlock.
# Needs: ledger (fg_watch_forks); slots (fg_recover).

cdef extern from "job.h" nogil:
    ctypedef struct fg_card_t "fg_region_gpu":
        uint8_t uuid[16]
        uint64_t limit
        uint64_t context
        uint16_t is_instance
        uint16_t is_assumed
    ctypedef struct fg_job:
        fg_region *region
        uint32_t cards
        uint32_t by_position
        fg_card_t card[GPUS]
    fg_job *fg_attached
    bint fg_has_lock(const fg_region *)
    int fg_wait_for(fg_region *)
    void *fg_pages(size_t)
    void fg_attach_to(const char *)


cdef fg_job *fg_find_job() noexcept nogil:
    """Attach to the region beside the path from which this library was loaded."""
    cdef const link_map *own = fg_own_map()
    cdef char path[4096]
    cdef const char *end
    cdef int saved = errno
    if own == NULL or own.l_name == NULL:
        return NULL
    end = strrchr(own.l_name, c"/")
    if end == NULL or end - own.l_name > 4000:
        return NULL
    memcpy(path, own.l_name, end - own.l_name + 1)
    strcpy(path + (end - own.l_name + 1), "region")
    fg_attach_to(path)
    fg_watch_forks()
    set_errno(saved)
    return <fg_job *> fg_load(&fg_attached)


cdef inline fg_job *fg_own_job() noexcept nogil:
    """Return the job; NULL if there is no valid region, and so no device memory."""
    cdef fg_job *job = <fg_job *> fg_load(&fg_attached)
    return job if job else fg_find_job()


cdef inline fg_region *fg_attach() noexcept nogil:
    """Return the job's region; NULL if there is none."""
    cdef fg_job *job = fg_own_job()
    return job.region if job else NULL


cdef inline uint64_t fg_limit(uint32_t gpu) noexcept nogil:
    """Return the job's limit on a GPU in bytes. The process must be attached."""
    return fg_own_job().card[gpu].limit


cdef int fg_position(const uint8_t *uuid) noexcept nogil:
    """Return the position in the region of the GPU with this UUID; -1 if it is not the job's."""
    cdef fg_job *job = fg_own_job()
    cdef uint32_t at
    if job:
        for at in range(job.cards):
            if memcmp(job.card[at].uuid, uuid, 16) == 0:
                return at
    return -1


cdef bint fg_lock(fg_region *region) noexcept nogil:
    """Take the region's lock, also from a dead holder: every word that it left is valid. Return False without a lock."""
    cdef int saved = errno
    cdef int status
    if region == NULL or not fg_has_lock(region):
        return False
    status = fg_wait_for(region)
    if status == EOWNERDEAD:
        status = pthread_mutex_consistent(&region.lock)
        if status == 0:
            fg_recover(region)
    set_errno(saved)
    return status == 0


cdef inline void fg_unlock(fg_region *region) noexcept nogil:
    pthread_mutex_unlock(&region.lock)
