# The scheduling priority and the OOM score of a process. The spawner and its shepherds are protected from the
# OOM killer, like the controller; a job has the values of its user's login.
#
# Exports: sharing, spare_again, spare_at, spare_no_more, stand_as_a_login, take_standing.
# Needs: mounts (write_word); state (is_root, now, read_small); text (put_number).

cdef enum:
    SPARE_AFTER = 200  # ms after the start of a job until its shepherd is protected again

cdef int spared  # oom_score_adj of the spawner if below 0; 0: not protected
cdef int is_spared  # 1: this process has that value now
cdef int64_t spare_at  # CLOCK_MONOTONIC, ms; 0: not due
cdef pid_t sharing  # the job's child while it shares this memory; the kernel clears it


cdef void take_standing() noexcept nogil:
    """Read the inherited oom_score_adj. A value above 0 of root's shell is not passed on to jobs."""
    global spared, is_spared
    cdef char text[32]
    cdef long value = 0
    if read_small(b"/proc/self/oom_score_adj", text, sizeof(text)) > 0:
        value = strtol(text, NULL, 10)
    if value > 0 and is_root:
        write_word(b"/proc/self/oom_score_adj", b"0")
    spared = <int> value if value < 0 else 0
    is_spared = spared != 0


cdef void spare_no_more() noexcept nogil:
    """Give up the protection before a job is started: the child shares the value with this process.

    A shepherd of short jobs stays unprotected, so it pays for this once.
    """
    global is_spared, spare_at
    if is_spared:
        write_word(b"/proc/self/oom_score_adj", b"0")
        is_spared = 0
    spare_at = now() + SPARE_AFTER if spared else 0


cdef void spare_again() noexcept nogil:
    """Take the protection again once the job has executed its script and has memory of its own."""
    global is_spared, spare_at
    cdef char text[32]
    if spare_at == 0 or now() < spare_at:
        return
    if fg_load(&sharing):
        spare_at = now() + 1000
        return
    spare_at = 0
    put_number(text, spared)
    is_spared = write_word(b"/proc/self/oom_score_adj", text) == 0


cdef void stand_as_a_login() noexcept nogil:
    """Reset nice, scheduling policy and I/O class, so that a job inherits none of these from root's shell."""
    cdef sched_param usual
    usual.sched_priority = 0
    sched_setscheduler(0, SCHED_OTHER, &usual)
    setpriority(PRIO_PROCESS, 0, 0)
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0)
