# The end of a job: sum up its usage, remove its files, store the result.
#
# Exports: finish, read_region.
# Needs: cgroup (oom_kills, remove_cgroups); files (open_here); spare (store_file); state (Slot, crash, path_of, place_of,
#   wall); text (clean, put, put_field, put_number); user (empty_as_user, is_empty_for_user, remove_job_directory).

cdef fg_region region_copy


cdef struct Memory:
    int64_t peak, refusals, gpu, asked, held


cdef int64_t readable(uint64_t number) noexcept nogil:
    """Limit a number to what a reader of the result can hold."""
    return <int64_t> (number << 2 >> 2)


cdef const fg_region *read_region(const Slot *slot) noexcept nogil:
    """Return a checked copy of the region, which the user can write; NULL if it is invalid."""
    cdef ssize_t told = <char *> region_copy.slot - <char *> &region_copy  # the slots behind it are not read
    cdef ssize_t got
    cdef int fd = job_region
    if slot.head.region_size == 0:
        return NULL
    if fd <= 0:  # another process created it
        fd = open_here(place_of(slot, b"/region"), 2, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd < 0:
        return NULL
    got = pread(fd, &region_copy, <size_t> told, 0)
    if fd != job_region:
        close(fd)
    if got < told:
        return NULL
    return NULL if fg_region_flaw(&region_copy, sizeof(fg_region)) else &region_copy


cdef void sum_up(const fg_region *region, Memory *memory) noexcept nogil:
    cdef const fg_region_gpu *last
    memset(memory, 0, sizeof(memory[0]))
    memory.gpu = -1
    if region == NULL:
        return
    memory.peak = readable(fg_region_most(region))
    memory.refusals = readable(fg_region_refused(region))
    last = fg_region_refusing(region)
    if last.refusals:
        memory.gpu = last.index
        memory.asked = readable(last.last_asked)
        memory.held = readable(last.last_held)


cdef int64_t microseconds(const timeval *span) noexcept nogil:
    return span.tv_sec * 1000000 + span.tv_usec


cdef int64_t bytes_of(long blocks) noexcept nogil:
    """Return blocks of getrusage(2) in bytes."""
    return <int64_t> blocks * 512


cdef const char *word_of(int cause) noexcept nogil:
    if cause == BY_CANCEL:
        return b"cancel"
    if cause == BY_TIMEOUT:
        return b"timeout"
    if cause == BY_SHORTAGE:
        return b"shortage"
    return b"launch" if cause == BY_LAUNCH else b"exit"


cdef char *describe(Slot *slot, char *text) noexcept nogil:
    """Write the text of the result (docs/design/native.md). Return where its detail begins.

    If the job was refused device memory, the detail names the processes that held it.
    """
    cdef Memory memory
    cdef const fg_region *region = read_region(slot)
    cdef char *at
    sum_up(region, &memory)
    if region and slot.detail[0] == 0:
        fg_region_tell(region, slot.detail, sizeof(slot.detail))
    if slot.survivor and slot.detail[0] == 0:
        put(put_number(put(slot.detail, b"process "), slot.survivor), b" could not be ended")
    at = put(put(put_field(put(text, b"R4"), slot.status), b" "), word_of(slot.cause))
    at = put_field(put_field(at, slot.started_at), slot.ended_at)
    at = put_field(put_field(at, microseconds(&slot.used.ru_utime)), microseconds(&slot.used.ru_stime))
    at = put_field(put_field(put_field(at, slot.used.ru_maxrss), memory.peak), memory.refusals)
    at = put_field(put_field(put_field(at, memory.gpu), memory.asked), memory.held)
    at = put_field(at, <int64_t> oom_kills(slot) if slot.n_cgroups else 0)
    at = put_field(put_field(put_field(at, slot.lost), slot.survivor), slot.error)
    at = put_field(put_field(at, bytes_of(slot.used.ru_inblock)), bytes_of(slot.used.ru_oublock))
    at = put(at, b" ")
    clean(slot.detail, <size_t> (RESULT_MOST - (at - text)))
    put(at, slot.detail)
    return at


cdef int fails_for_good(const Slot *slot, int error) noexcept nogil:
    """Return whether this error means that the result can never be stored, as after removal of the run directory."""
    if error == ENOENT:
        return access(slot.text + slot.run, 0) < 0 and errno == ENOENT
    return error in (EINVAL, ELOOP, ENAMETOOLONG, ENOTDIR, EOPNOTSUPP, EPERM)


cdef int store(Slot *slot, const char *text, char *detail) noexcept nogil:
    """Store the result; retry until the disk accepts it. Return 0 if it never can be stored, 2 if it had to wait.

    The text is tried without its detail before it is given up. The controller then records that the
    status is unknown.
    """
    cdef timespec wait
    cdef long pause = 10
    cdef int error
    while True:
        error = store_file(slot, text)
        if error and error != EEXIST:
            error = errno if symlink(text, path_of(slot, b"/result/", b"")) < 0 else 0
        if error == 0 or error == EEXIST:
            break
        if fails_for_good(slot, error):
            if detail[0] == 0:
                slot.phase = GIVEN_UP
                return 0
            detail[0] = 0
            continue
        wait.tv_sec = pause // 1000
        wait.tv_nsec = pause % 1000 * 1000000
        nanosleep(&wait, NULL)
        pause = pause * 2 if pause < 5000 else 10000
    slot.phase = STORED
    return 1 if pause == 10 else 2


cdef int finish(Slot *slot) noexcept nogil:
    """Remove the job's files after its last process, then store the result. Return 0 if it cannot be stored."""
    global job_region
    cdef char *detail
    cdef int is_stored
    cdef char text[3000]
    if slot.error:
        slot.cause = BY_SHORTAGE if slot.is_short else BY_LAUNCH
        slot.status = COULD_NOT_START
    if slot.ended_at == 0:
        slot.ended_at = wall()
    if slot.started_at == 0:
        slot.started_at = slot.ended_at
    detail = describe(slot, text)
    if slot.n_cgroups:
        remove_cgroups(slot)
    if slot.has_tmp and not is_empty_for_user(slot, slot.text + slot.tmp):
        empty_as_user(slot, slot.text + slot.tmp)
    remove_job_directory(slot)
    crash(b"shepherd_before_result")
    is_stored = store(slot, text, detail)
    job_region = 0  # is_clean closes the descriptor
    if is_stored == 2:
        remove_job_directory(slot)  # the disk may have refused that, too
    crash(b"shepherd_after_result")
    return is_stored
