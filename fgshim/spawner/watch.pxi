# The watch of a shepherd over its job: one wait that children, commands and deadlines end.
#
# Exports: act_on_time, add_use, begin_clearing, mark, next_due, obey, record_end, record_unreaped, set_limit,
#   watch.
# Needs: cgroup (oom_kills); child (name_step); join (join_job, joining); priority (sharing, spare_again, spare_at); result
#   (read_region); spare (own_slot); state (Head, Slot, now, wall); sweep (begin_sweeping, sweep, sweep_at, sweeper); text (put,
#   put_number); tree (deliver, is_dead, kill_job, living, n_found, stat_field); user (fork_as_user).

cdef enum:
    MOST_ROUNDS = 50  # rounds to stop a job that forks all the time
    SLOWEST_PAUSE = 1000  # ms between two looks for a process that SIGKILL did not end
    START_GRACE = 1000  # ms between SIGTERM and SIGKILL for a job whose script is not executed yet


cdef int write_line(const Slot *slot, const char *line) noexcept nogil:
    """Write a last line to the job's stderr in a child that has become the user. Return 0 if there is no child.

    The user's path is opened as the user, never as root. The child is part of the job's tree, so it is
    killed with the rest if it hangs.
    """
    cdef stat_t about
    cdef pid_t child = fork_as_user(slot)
    if child != 0:
        return child > 0
    if chdir(slot.text + slot.cwd) < 0:
        _exit(1)
    cdef int fd = open(slot.text + slot.stderr, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
    if fd >= 0 and fstat(fd, &about) == 0 and fg_is_regular(about.st_mode):
        dprintf(fd, b"%s\n", line)
    _exit(0)


cdef void write_notice(const Slot *slot, const char *why) noexcept nogil:
    """Write the line to the job's stderr that Slurm writes for a cancel or a time limit."""
    cdef char host[128]
    cdef char when[32]
    cdef char line[400]
    cdef tm local
    cdef long seconds = time(NULL)
    host[0] = host[sizeof(host) - 1] = 0
    gethostname(host, sizeof(host) - 1)
    host[strcspn(host, b".")] = 0
    strftime(when, sizeof(when), b"%Y-%m-%dT%H:%M:%S", localtime_r(&seconds, &local))
    snprintf(line, sizeof(line), b"*** JOB %lu ON %s CANCELLED AT %s%s ***", <unsigned long> slot.head.job, host, when,
             why)
    write_line(slot, line)


cdef int write_refusal(const Slot *slot) noexcept nogil:
    """Write one line on the last refused allocation to the job's stderr. Return 0 if nothing was refused."""
    cdef char line[700]
    cdef const fg_region *region = read_region(slot)
    cdef char *at = put(line, b"fgsched: ")
    if region and fg_region_tell(region, at, sizeof(line) - 16) > 0:
        return write_line(slot, line)
    return 0


cdef int write_oom(const Slot *slot) noexcept nogil:
    """Write one line to the job's stderr if the kernel killed processes of it for memory. Return 0 if it did not."""
    cdef char line[200]
    cdef unsigned long kills = oom_kills(slot) if slot.n_cgroups else 0
    if kills == 0:
        return 0
    snprintf(line, sizeof(line), b"fgsched: the kernel killed %lu process%s of this job, which used more than its "
             b"host memory (--mem)", kills, b"" if kills == 1 else b"es")
    return write_line(slot, line)


cdef const char *reason_for(int cause, int number) noexcept nogil:
    """Return the words of that line after the time."""
    if cause == BY_TIMEOUT:
        return b" DUE TO TIME LIMIT"
    if number == FOR_REQUEUE:
        return b" DUE TO JOB REQUEUE"
    return b" DUE TO PREEMPTION" if number == FOR_PREEMPTION else b""


cdef int64_t grace_of(const Slot *slot) noexcept nogil:
    """Return the grace time in ms. A child that has not executed the script blocks SIGTERM, and may wait for a file."""
    if fg_load(&sharing) and not joining and slot.head.grace > START_GRACE:
        return START_GRACE
    return slot.head.grace


cdef void begin_ladder(Slot *slot, int cause, int number) noexcept nogil:
    """Begin to end the job: SIGCONT and SIGTERM now, SIGKILL after the grace time. The first cause counts."""
    if slot.phase >= ENDED or slot.cause != BY_EXIT:
        return
    slot.cause = cause
    slot.kill_at = now() + grace_of(slot) + 1
    write_notice(slot, reason_for(cause, number))
    deliver(slot, SIGCONT, TO_ALL)
    deliver(slot, SIGTERM, TO_ALL)


cdef void suspend(Slot *slot) noexcept nogil:
    """Stop all processes of the job, and its time limit.

    A process that forks while the list is read has a child that is not in it. The list is therefore read
    again until it does not grow: a stopped process cannot fork.
    """
    cdef int before = -1
    cdef int rounds
    if slot.phase >= ENDED or slot.cause != BY_EXIT or slot.suspended_at:
        return
    slot.suspended_at = now()
    deliver(slot, SIGTSTP, TO_ALL)
    for rounds in range(MOST_ROUNDS):
        deliver(slot, SIGSTOP, TO_ALL)
        if n_found == before:
            return
        before = n_found


cdef void resume(Slot *slot) noexcept nogil:
    cdef int64_t stood = now() - slot.suspended_at
    if slot.suspended_at == 0:
        return
    slot.suspended_at = 0
    slot.begun_at += stood
    if slot.deadline:
        slot.deadline += stood
    if slot.warn_at:
        slot.warn_at += stood
    deliver(slot, SIGCONT, TO_ALL)


cdef void set_limit(Slot *slot, int64_t limit) noexcept nogil:
    """Set the time limit in ms from the start; 0: none. The early signal is sent again if its new time is in the future."""
    cdef int64_t at = slot.suspended_at if slot.suspended_at else now()
    cdef int is_due = slot.warn_at != 0 or slot.deadline == 0  # it was not sent yet
    slot.deadline = slot.begun_at + limit if limit else 0
    slot.warn_at = 0
    if limit and slot.head.warn_signal and (is_due or slot.deadline - slot.head.warn_before > at):
        slot.warn_at = slot.deadline - slot.head.warn_before
        slot.warn_at = slot.warn_at if slot.warn_at > 0 else 1


cdef void preempt(Slot *slot, int number, int target, int seconds) noexcept nogil:
    """Preempt the job: a warning now, its end after the grace time. A second command changes nothing."""
    if slot.phase >= ENDED or slot.cause != BY_EXIT or slot.preempt_at:
        return
    slot.preempt_at = now() + <int64_t> seconds * 1000 + 1
    deliver(slot, SIGCONT, TO_ALL)
    deliver(slot, number, target)


cdef uint32_t mark(const Head *head) noexcept nogil:
    """Return the mark of a job's commands. A shepherd may run another job when a command arrives."""
    return <uint32_t> head.job + (head.attempt << 24)


cdef void obey(Slot *slot, int value) noexcept nogil:
    cdef int number = (value >> 8) & 0xff
    cdef int target = (value >> 16) & 0xff
    if value & 0xff == VERB_CANCEL:
        begin_ladder(slot, BY_CANCEL, number)
    elif value & 0xff == VERB_SIGNAL and 0 < number <= 64 and target <= TO_CHILDREN:
        deliver(slot, number, target)
    elif value & 0xff == VERB_SUSPEND:
        suspend(slot)
    elif value & 0xff == VERB_RESUME:
        resume(slot)
    elif value & 0xff == VERB_PREEMPT and 0 < number <= 64:
        preempt(slot, number, target & 3, (value >> 18) & 0x1fff)
    elif value & 0xff == VERB_JOIN:
        join_job(slot, (value >> 8) & 0xffffff)
    elif value & 0xfe == VERB_LIMIT:
        set_limit(slot, <int64_t> ((value & 1) << 24 | ((value >> 8) & 0xffffff)) * 1000)


cdef int reap(Slot *slot) noexcept nogil:
    """Reap ended children. Return 0 if no process of the job is left.

    The status is recorded before the process is reaped, so that a spawner that takes over from a killed
    shepherd finds one or the other.
    """
    global sweeper
    cdef siginfo_t info
    cdef rusage used
    while True:
        info.si_pid = 0
        if syscall(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT, &used) < 0:
            return 0
        if info.si_pid == 0:
            return 1
        if info.si_pid == slot.main and slot.phase < ENDED:
            record_end(slot, &info)
        if info.si_pid == sweeper:
            sweeper = 0
        add_use(&slot.used, &used)
        waitpid(info.si_pid, NULL, 0)


cdef void add_use(rusage *total, const rusage *used) noexcept nogil:
    """Add the usage of a process, which includes the children that it waited for."""
    total.ru_utime.tv_sec += used.ru_utime.tv_sec
    total.ru_utime.tv_usec += used.ru_utime.tv_usec
    total.ru_stime.tv_sec += used.ru_stime.tv_sec
    total.ru_stime.tv_usec += used.ru_stime.tv_usec
    total.ru_inblock += used.ru_inblock
    total.ru_oublock += used.ru_oublock
    if used.ru_maxrss > total.ru_maxrss:
        total.ru_maxrss = used.ru_maxrss


cdef void record_end(Slot *slot, const siginfo_t *info) noexcept nogil:
    slot.ended_at = wall()
    slot.status = info.si_status << 8
    if info.si_code != CLD_EXITED:
        slot.status = info.si_status | (0x80 if info.si_code == CLD_DUMPED else 0)
    slot.phase = ENDED


cdef void begin_clearing(Slot *slot) noexcept nogil:
    """End the processes that the script left behind: SIGTERM, a grace time, SIGKILL."""
    cdef int64_t kill_at = now() + slot.head.leftover_grace + 1
    slot.clearing = 1
    if slot.cause == BY_EXIT:
        deliver(slot, SIGCONT, TO_ALL)
        deliver(slot, SIGTERM, TO_ALL)
    if slot.kill_at == 0 or kill_at < slot.kill_at:
        slot.kill_at = kill_at


cdef int clock_runs(const Slot *slot) noexcept nogil:
    """Return whether the time limit of the job is running."""
    return slot.phase < ENDED and slot.cause == BY_EXIT and slot.suspended_at == 0


cdef int64_t next_due(const Slot *slot) noexcept nogil:
    """Return the time of the next deadline, in ms of the monotonic clock; 0: none."""
    cdef int64_t due = slot.kill_at
    if slot.preempt_at and slot.phase < ENDED and slot.cause == BY_EXIT:
        due = slot.preempt_at
    if clock_runs(slot):
        if slot.warn_at and (due == 0 or slot.warn_at < due):
            due = slot.warn_at
        if slot.deadline and (due == 0 or slot.deadline < due):
            due = slot.deadline
    return due


cdef void name_survivor(const Slot *slot, pid_t pid) noexcept nogil:
    """Show in the name of this shepherd which process SIGKILL has not ended within a second (launch/hostwait.py)."""
    cdef char name[64]
    if own_slot and slot.pause >= SLOWEST_PAUSE:
        put_number(put(name, b"fg:kill "), pid)
        name_step(name)


cdef int is_given_up(Slot *slot, int64_t at) noexcept nogil:
    """Return, after SIGKILL, whether no process lives, or the wait for the rest has ended.

    A tracer outside the job can keep a zombie, or stop a killed process at its exit, for any time; a process
    in the kernel may wait for a device without end. None of them keeps the job.
    """
    if slot.killed_at == 0:
        return 0
    cdef pid_t left = living(slot)
    if left and at - slot.killed_at < slot.head.last_wait:
        name_survivor(slot, left)
        return 0
    slot.survivor = left
    return 1


cdef void record_unreaped(Slot *slot) noexcept nogil:
    """Record the end of a script that cannot be reaped: a zombie's status, else SIGKILL."""
    if slot.phase >= ENDED or slot.main == 0:
        return
    slot.ended_at = wall()
    slot.status = <int> stat_field(slot.main, 52) if is_dead(slot.main) else SIGKILL
    slot.phase = ENDED


cdef int act_on_time(Slot *slot) noexcept nogil:
    """Carry out the due steps. Return 1 if the shepherd no longer waits for the rest of the job."""
    cdef int64_t at = now()
    if clock_runs(slot):
        if slot.warn_at and at >= slot.warn_at:
            slot.warn_at = 0
            deliver(slot, <int> slot.head.warn_signal, <int> slot.head.warn_target)
        if slot.deadline and at >= slot.deadline:
            begin_ladder(slot, BY_TIMEOUT, 0)
    if slot.preempt_at and at >= slot.preempt_at:
        begin_ladder(slot, BY_CANCEL, FOR_PREEMPTION)
    if slot.kill_at and at >= slot.kill_at:
        if is_given_up(slot, at):
            return 1
        kill_job(slot)
        slot.killed_at = slot.killed_at if slot.killed_at else at
        # A process that SIGKILL does not end at once waits in the kernel: look again, at pauses.
        slot.pause = slot.pause * 2 + 1 if slot.pause < SLOWEST_PAUSE // 2 else SLOWEST_PAUSE
        slot.kill_at = at + slot.pause
    return 0


cdef void watch(Slot *slot) noexcept nogil:
    """Watch the job until its last process is gone."""
    cdef sigset_t awaited
    cdef siginfo_t info
    cdef timespec wait
    cdef int64_t due, left
    cdef int number
    sigemptyset(&awaited)
    sigaddset(&awaited, SIGCHLD)
    sigaddset(&awaited, fg_command_signal())
    begin_sweeping(slot)
    while True:
        due = next_due(slot)
        if spare_at and (due == 0 or spare_at < due):
            due = spare_at
        if sweep_at and (due == 0 or sweep_at < due):
            due = sweep_at
        left = due - now() if due else 0
        left = left if left > 0 else 0
        wait.tv_sec = left // 1000
        wait.tv_nsec = left % 1000 * 1000000
        number = sigtimedwait(&awaited, &info, &wait if due else NULL)
        left = reap(slot)
        if slot.phase >= ENDED and not slot.clearing and write_refusal(slot) + write_oom(slot):
            left = 1
        if left == 0:
            return
        if number == fg_command_signal() and fg_job_mark_of(&info) == mark(&slot.head):
            obey(slot, fg_command_of(&info))
        if slot.phase >= ENDED and not slot.clearing:
            begin_clearing(slot)
        if act_on_time(slot):
            reap(slot)
            record_unreaped(slot)
            return
        spare_again()
        sweep()
