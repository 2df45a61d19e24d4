# A shepherd: claims the job, starts it, watches it, tells how it ended.


cdef uint64_t start_ticks() noexcept nogil:
    """When this process was forked. Only where a tick has passed since must the kernel be asked, which is dear."""
    return forked_at if tick() == forked_at else stat_field(getpid(), 22)


cdef int claim(Slot *slot, uint64_t ticks) noexcept nogil:
    """Name and content in one step: of two that want the job one gets it. 0, or errno."""
    cdef char text[128]
    cdef char *at = put(put_number(put(text, b"P:"), getpid()), b":")
    put(put(put_number(at, <int64_t> ticks), b":"), boot)
    return errno if symlink(text, path_of(slot, b"/claim/", b"")) < 0 else 0


cdef void forget_bulk() noexcept nogil:
    """Script and region are on disk: a long script need not stay in memory as long as its job."""
    cdef size_t first = (<size_t> launch.script + 256 + 4095) & ~<size_t> 4095
    cdef size_t end = <size_t> launch.script + launch.head.script_length + launch.head.region_length
    if end > first + 65536:
        madvise(<void *> first, end - first, MADV_DONTNEED)


cdef int start(Slot *slot) noexcept nogil:
    """Everything between the claim and a running child; -1 with the reason in the slot."""
    if slot.n_cgroups and make_cgroups(slot) < 0:
        return -1
    if make_job_directory(slot) < 0:
        return -1
    forget_bulk()
    if launch.head.time_limit:
        slot.deadline = now() + launch.head.time_limit
        if launch.head.warn_signal:
            slot.warn_at = slot.deadline - launch.head.warn_before
            slot.warn_at = slot.warn_at if slot.warn_at > 0 else 1
    return start_child(slot)


cdef void shepherd(Slot *slot) noexcept nogil:
    """The life of one; it does not return."""
    cdef char name[64]  # of which the kernel shows the first 15
    cdef uint64_t ticks = start_ticks()
    cdef int taken
    setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    put_number(put(put_number(put(name, b"fg-"), <int64_t> slot.head.job), b"."), slot.head.attempt)
    prctl(PR_SET_NAME, name, 0, 0, 0)
    crash(b"shepherd_before_claim")
    taken = claim(slot, ticks)
    if taken:
        answer(slot, getpid(), taken, ticks)
        _exit(0)
    slot.phase = CLAIMED
    crash(b"shepherd_after_claim")
    answer(slot, getpid(), 0, ticks)
    dup2(0, 2)
    syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
    if start(slot) == 0:
        crash(b"shepherd_after_fork")
        watch(slot)
        getrusage(RUSAGE_CHILDREN, &slot.used)
    finish(slot)
    _exit(0)
