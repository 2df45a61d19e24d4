# The scheduling priority and the OOM score of a process. The spawner and its shepherds are protected from the
# OOM killer, like the controller; a job has the values of its user's login.
#
# Exports: sharing, spare_again, spare_at, spare_no_more, stand_as_a_login, take_standing.
# Needs: mounts (write_word); state (is_root, now, read_small); text (put_number).

cdef enum:
    SPARE_AFTER = 200  # ms for which a job runs before its shepherd is spared again

cdef int spared  # oom_score_adj of the spawner where it is below 0; 0: it is not spared
cdef int is_spared  # whether this process has that value now
cdef int64_t spare_at  # CLOCK_MONOTONIC, ms; 0: nothing is due
cdef pid_t sharing  # the job's child, while it has this process's memory; the kernel clears it


cdef void take_standing() noexcept nogil:
    """What the spawner inherits: a value above 0 of root's shell is not the jobs'."""
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
    """Before a job is started: its child inherits the value, and what one of the two sets, both have.

    A shepherd whose jobs are short stays so and pays for this once.
    """
    global is_spared, spare_at
    if is_spared:
        write_word(b"/proc/self/oom_score_adj", b"0")
        is_spared = 0
    spare_at = now() + SPARE_AFTER if spared else 0


cdef void spare_again() noexcept nogil:
    """Once the job has executed its script, and with that has memory and value of its own."""
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
    """Nothing of root's shell: the group of a new session (autogroup) has nice 0 already."""
    cdef sched_param usual
    usual.sched_priority = 0
    sched_setscheduler(0, SCHED_OTHER, &usual)
    setpriority(PRIO_PROCESS, 0, 0)
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0)
