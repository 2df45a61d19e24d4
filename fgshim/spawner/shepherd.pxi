# A shepherd: claim the job, start it, watch it, record its end.
#
# Exports: shepherd.
# Needs: cgroup (make_cgroups); child (start_child); files (make_job_directory); message (find_variables,
#   large_launch); result (finish); spare (claim_by_link, own_slot); state (Slot, answer, arguments, boot,
#   channel, crash, forked_at, launch, now, path_of, resting, slot_at, space_of, spawner_pid, tell_over, tick); text (put, put_number); tree
#   (stat_field); watch (set_limit, watch).


cdef uint64_t start_ticks() noexcept nogil:
    """Return the start time of this process in ticks. The kernel is asked only if a tick has passed since the fork."""
    return forked_at if tick() == forked_at else stat_field(getpid(), 22)


cdef int claim(Slot *slot, uint64_t ticks) noexcept nogil:
    """Create the claim: name and content in one step, so only one can succeed. Return 0 or errno."""
    cdef char text[128]
    cdef char *at = put(put_number(put(text, b"P:"), getpid()), b":")
    put(put(put_number(at, <int64_t> ticks), b":"), boot)
    cdef int error = claim_by_link(slot, text)
    if error == 0 or error == EEXIST:
        return error
    return errno if symlink(text, path_of(slot, b"/claim/", b"")) < 0 else 0


cdef void forget_bulk() noexcept nogil:
    """Release the memory of the message: script and region are on disk now."""
    cdef size_t first = (<size_t> launch.script + 256 + 4095) & ~<size_t> 4095
    cdef size_t end = <size_t> launch.script + launch.head.script_length + launch.head.region_length
    if end > first + 65536:
        madvise(<void *> first, end - first, MADV_DONTNEED)


cdef int start(Slot *slot) noexcept nogil:
    """Prepare and start the job after the claim. Return -1 with the reason in the slot if it cannot be started."""
    if slot.n_cgroups and make_cgroups(slot) < 0:
        return -1
    if make_job_directory(slot) < 0:
        return -1
    forget_bulk()
    slot.begun_at = now()
    set_limit(slot, launch.head.time_limit)
    return start_child(slot)


cdef void name_itself(const Slot *slot) noexcept nogil:
    cdef char name[64]  # the kernel shows the first 15 characters
    put_number(put(put_number(put(name, b"fg-"), <int64_t> slot.head.job), b"."), slot.head.attempt)
    prctl(PR_SET_NAME, name, 0, 0, 0)


cdef int one_job(Slot *slot, uint64_t ticks) noexcept nogil:
    """Run one job from the claim to the result. Return 0 if the claim is taken or the result cannot be stored."""
    name_itself(slot)
    crash(b"shepherd_before_claim")
    cdef int taken = claim(slot, ticks)
    if taken:
        answer(slot, getpid(), taken, ticks)
        return 0
    slot.phase = CLAIMED
    crash(b"shepherd_after_claim")
    answer(slot, getpid(), 0, ticks)
    if start(slot) == 0:
        crash(b"shepherd_after_fork")
        watch(slot)
    return finish(slot)


cdef int rest(int *word) noexcept nogil:
    """Wait 250 ms for another job, which saves a fork. Return 0 if none came."""
    cdef timespec most
    cdef int state
    most.tv_sec = 0
    most.tv_nsec = REST * 1000000
    fg_store(word, RESTING)
    while True:
        state = fg_load(word)
        if state == AT_WORK:
            return 1
        if state == LEAVING:
            return 0
        if fg_sleep_on(word, state, &most) < 0 and errno == ETIMEDOUT:
            if fg_swap(word, RESTING, LEAVING) or getppid() != spawner_pid:
                return 0


cdef void take_next(Slot *slot) noexcept nogil:
    """Read the next job, which the spawner has written to this shepherd's slot."""
    global launch, arguments
    launch = &space_of(slot).launch
    arguments = space_of(slot).words
    find_variables()


cdef int is_clean() noexcept nogil:
    """Return whether this process has no resources of the last job left and can send the spawner a notice."""
    syscall(SYS_close_range, TELL + 1, LAST_DESCRIPTOR, 0)  # the region, and what a failed step left open
    if launch == &large_launch:
        return 0  # the memory of a large message would be counted for every later child
    return waitpid(-1, NULL, WNOHANG) < 0


cdef void shepherd(int index) noexcept nogil:
    """Run a shepherd. Does not return."""
    global channel, own_slot
    cdef Slot *slot = slot_at(index)
    cdef uint64_t ticks = start_ticks()
    setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    dup2(0, 2)
    own_slot = index + 1
    channel = TELL
    syscall(SYS_close_range, TELL + 1, LAST_DESCRIPTOR, 0)
    while one_job(slot, ticks):
        if not is_clean() or not tell_over(slot) or not rest(resting + index):
            break
        crash(b"shepherd_before_next")
        take_next(slot)
    _exit(0)
