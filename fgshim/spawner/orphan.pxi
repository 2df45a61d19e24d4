# Jobs whose shepherd was killed: the spawner inherits their processes and supervises them until they end.
#
# Exports: keep_only, keeper, n_slots, n_taken, reap_all, tend_all.
# Needs: result (finish); state (Slot, answer, boot, crash_at, fail, now, path_of, slot_at, tell_over);
#   text (put, put_number); tree (find_job, found, listing, n_found, stat_field, status_field, status_line); watch (act_on_time,
#   add_use, begin_clearing, next_due, record_end, record_unreaped).

cdef enum:
    NO_KEEPER = -1  # a taken-over job without a shepherd or closer
    MOST_CLOSERS = 5  # closers that may be killed before the job is given up
    READER_PATIENCE = 1000  # ms without an answer of a child that waits
    READER_BUSY = 10000  # ms without an answer of a child that runs, on a host that is overloaded
    READER_PAUSE = 60000  # ms for which no environment is read after that

cdef enum Sign:
    NO_SIGN = 0
    OF_THIS  # the process belongs to this job
    OF_ANOTHER

cdef pid_t keeper[4096]  # of each slot: its shepherd or closer; 0: the slot is free
cdef int n_slots  # number of slots ever used
cdef int n_taken
cdef char signs[65536]  # of the processes in `found`
cdef pid_t reader  # a child that hangs; 0: none
cdef int64_t reads_again_at  # CLOCK_MONOTONIC, ms


cdef int kept_by(pid_t pid) noexcept nogil:
    cdef int i
    for i in range(n_slots):
        if keeper[i] == pid:
            return i
    return -1


cdef int has_variable(pid_t pid, const char *variable, size_t length) noexcept nogil:
    """Return whether a process was started with this variable."""
    cdef char path[64]
    cdef long have = 0, got, spare
    cdef int result = 0
    snprintf(path, sizeof(path), b"/proc/%d/environ", pid)
    cdef int fd = open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return 0
    while not result:
        got = read(fd, listing + have, sizeof(listing) - <size_t> have)
        if got <= 0:
            break
        have += got
        result = memmem(listing, <size_t> have, variable, length) != NULL
        spare = have - <long> length
        if spare > 0:  # a match may begin in the kept bytes
            memmove(listing, listing + spare, length)
            have = <long> length
    close(fd)
    return result


cdef int is_in_session_of_a_job(pid_t pid, uint64_t session) noexcept nogil:
    cdef int i
    for i in range(n_slots):
        if keeper[i] and slot_at(i).main and (pid == slot_at(i).main or session == <uint64_t> slot_at(i).main):
            return 1
    return 0


cdef int session_sign(pid_t pid, const Slot *slot) noexcept nogil:
    """Return what the session of an inherited process says about its job."""
    cdef uint64_t session = <uint64_t> getsid(pid)
    if kept_by(pid) >= 0 or pid == reader:
        return OF_ANOTHER
    if pid == slot.main or session == <uint64_t> slot.main:
        return OF_THIS
    return OF_ANOTHER if is_in_session_of_a_job(pid, session) else NO_SIGN


cdef char environment_sign(pid_t pid, const char *variable) noexcept nogil:
    if has_variable(pid, variable, strlen(variable) + 1):
        return OF_THIS
    return OF_ANOTHER if has_variable(pid, b"FG_JOB_DIR=", 11) else NO_SIGN


cdef void read_environments(const Slot *slot, int first, int write_to) noexcept nogil:
    """Write the sign of each process without one, from found[first] on. Runs in a child, since it may never return."""
    cdef char variable[4096 + 16]
    cdef char sign
    cdef int i
    put(put(variable, b"FG_JOB_DIR="), path_of(slot, b"/job/", b""))
    for i in range(first, n_found):
        if signs[i] == NO_SIGN:
            sign = environment_sign(found[i].pid, variable)
            if write(write_to, &sign, 1) != 1:
                return


cdef pid_t begin_reading(const Slot *slot, int first, int *read_from) noexcept nogil:
    """Start that child. Return its pid, or -1."""
    cdef int ends[2]
    if pipe2(ends, O_CLOEXEC) < 0:
        return -1
    cdef pid_t pid = fork()
    if pid == 0:
        dup2(ends[1], 0)
        syscall(SYS_close_range, 1, LAST_DESCRIPTOR, 0)
        read_environments(slot, first, 0)
        _exit(0)
    close(ends[1])
    if pid < 0:
        close(ends[0])
    read_from[0] = ends[0]
    return pid


cdef int waits(pid_t pid) noexcept nogil:
    """Return whether a process needs no processor."""
    cdef char path[64]
    cdef char text[1024]
    put(put_number(put(path, b"/proc/"), pid), b"/status")
    cdef const char *state = status_line(path, b"\nState:\t", text, sizeof(text))
    return state == NULL or state[0] != c'R'


cdef int next_sign(pid_t pid, int read_from, char *sign) noexcept nogil:
    """Return whether the child has told a sign, and does not hang."""
    cdef pollfd awaited
    cdef int64_t began = now()
    awaited.fd = read_from
    awaited.events = <short> POLLIN
    while poll(&awaited, 1, READER_PATIENCE) == 0:
        if waits(pid) or now() - began >= READER_BUSY:
            return 0
    return read(read_from, sign, 1) == 1


cdef void read_signs(const Slot *slot, int first) noexcept nogil:
    """Decide by their environment about the processes in `found` without a sign. One that is not read has none.

    A user's process can wait for the user's own file system (FUSE) with its memory map locked. A reader of its
    environment then waits as well, even after SIGKILL. So a child reads, and after one that hangs no other reads for a
    minute, nor before it has ended.
    """
    global reader, reads_again_at
    cdef int i, read_from
    if reader or now() < reads_again_at:
        return
    cdef pid_t pid = begin_reading(slot, first, &read_from)
    if pid < 0:
        return
    for i in range(first, n_found):
        if signs[i] == NO_SIGN and not next_sign(pid, read_from, &signs[i]):
            kill(pid, SIGKILL)
            reader = pid
            reads_again_at = now() + READER_PAUSE
            break
    close(read_from)
    if reader != pid:
        waitpid(pid, NULL, 0)


cdef int n_taken_of(uid_t uid) noexcept nogil:
    """Return the number of taken-over jobs of a user."""
    cdef int i, count = 0
    for i in range(n_slots):
        if keeper[i] and slot_at(i).lost and slot_at(i).head.uid == uid:
            count += 1
    return count


cdef int is_the_only_job(const Slot *slot, pid_t pid) noexcept nogil:
    """Return whether no other taken-over job can be that of a process without a sign."""
    cdef uid_t uid
    if n_taken == 1:
        return 1
    uid = <uid_t> status_field(pid, b"\nUid:")  # the real one, which a setuid program does not change
    return uid == slot.head.uid and n_taken_of(uid) == 1


cdef void keep_only(const Slot *slot) noexcept nogil:
    """Keep in `found` only those of the spawner's children that belong to one taken-over job.

    They do by their session or their environment. A process without a sign is taken for the job's if its user has no
    other taken-over job: the last of them ends the rest. The signs count first, since another shepherd may have
    died whose end is not known yet.
    """
    global n_found
    cdef int i, kept = 0, first = -1
    for i in range(n_found):
        signs[i] = session_sign(found[i].pid, slot)
        if signs[i] == NO_SIGN and first < 0:
            first = i
    if first >= 0:
        read_signs(slot, first)
    for i in range(n_found):
        if signs[i] == OF_THIS or (signs[i] == NO_SIGN and is_the_only_job(slot, found[i].pid)):
            found[kept] = found[i]
            kept += 1
    n_found = kept


cdef int claimed_by(const Slot *slot, pid_t pid) noexcept nogil:
    """Return whether the claim exists and is this shepherd's."""
    cdef char text[128]
    cdef char mine[32]
    cdef ssize_t length = readlink(path_of(slot, b"/claim/", b""), text, sizeof(text) - 1)
    if length <= 0:
        return 0
    text[length] = 0
    snprintf(mine, sizeof(mine), b"P:%d:", pid)
    return strncmp(text, mine, strlen(mine)) == 0


cdef void name_holder(const Slot *slot) noexcept nogil:
    """Put a claim of the spawner's in the place of the shepherd's, in one step, so that later controllers find it.

    A job that has cleared its environment shows by nothing else that it still runs.
    """
    cdef char text[128]
    cdef char fresh[4096 + 128]
    cdef char *at = put(put_number(put(text, b"H:"), getpid()), b":")
    put(put(put_number(at, <int64_t> stat_field(getpid(), 22)), b":"), boot)
    put(fresh, path_of(slot, b"/claim/", b".new"))
    unlink(fresh)
    if symlink(text, fresh) == 0 and renameat(AT_FDCWD, fresh, AT_FDCWD, path_of(slot, b"/claim/", b"")) < 0:
        unlink(fresh)


cdef void take_over(int index) noexcept nogil:
    """Take over a job whose shepherd or closer was killed before it stored the result."""
    global n_taken
    cdef Slot *slot = slot_at(index)
    cdef pid_t pid = keeper[index]
    cdef int claimed = slot.lost or slot.phase >= CLAIMED or claimed_by(slot, pid)
    if not slot.answered:
        answer(slot, pid if claimed else 0, 0 if claimed else ESRCH, 0)
    if not claimed:
        keeper[index] = 0
        return
    if not slot.lost:
        slot.lost = 1
        n_taken += 1
        name_holder(slot)
    keeper[index] = NO_KEEPER
    slot.pause = 0
    slot.clearing = 0
    if slot.main == 0:
        fail(slot, ESRCH, b"its shepherd was killed", b"")
        slot.phase = ENDED


cdef void release(int index) noexcept nogil:
    """Free the slot of an ended job. The end of a shepherd itself is reported to the controller by its pidfd."""
    global n_taken
    cdef Slot *slot = slot_at(index)
    keeper[index] = 0
    if not slot.lost:
        return
    n_taken -= 1
    if slot.phase == STORED:
        tell_over(slot)


cdef void close_job(int index) noexcept nogil:
    """Finish a job in a child, because removing its files may take long."""
    cdef pid_t pid
    if slot_at(index).closers == MOST_CLOSERS:
        dprintf(2, b"fgspawn: job %lu: its result cannot be stored\n", <unsigned long> slot_at(index).head.job)
        release(index)
        return
    slot_at(index).closers += 1
    pid = fork()
    if pid == 0:
        crash_at[0] = 0
        syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
        finish(slot_at(index))
        _exit(0)
    if pid > 0:
        keeper[index] = pid


cdef void note_orphan(const siginfo_t *info, const rusage *used) noexcept nogil:
    """Record the end of an inherited process before it is reaped."""
    cdef Slot *slot
    cdef uint64_t session = <uint64_t> getsid(info.si_pid)
    cdef int i
    for i in range(n_slots):
        slot = slot_at(i)
        if keeper[i] != NO_KEEPER or session != <uint64_t> slot.main:
            continue
        if info.si_pid == slot.main and slot.phase < ENDED:
            record_end(slot, info)
        add_use(&slot.used, used)


cdef int reap_all() noexcept nogil:
    """Reap every child that has ended. Return 0 if no child is left.

    A job is taken over before its killed shepherd is reaped, so that the controller finds one or the other.
    """
    global reader
    cdef siginfo_t info
    cdef rusage used
    cdef int index
    while True:
        info.si_pid = 0
        if syscall(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT, &used) < 0:
            return 0
        if info.si_pid == 0:
            return 1
        if info.si_pid == reader:
            reader = 0
        index = kept_by(info.si_pid)
        if index < 0 and n_taken:
            note_orphan(&info, &used)
        if index >= 0 and info.si_code != CLD_EXITED and slot_at(index).phase < STORED:
            take_over(index)
        elif index >= 0:
            release(index)
        waitpid(info.si_pid, NULL, 0)


cdef void tend(int index) noexcept nogil:
    """Do what the shepherd of a taken-over job would do now."""
    cdef Slot *slot = slot_at(index)
    if slot.phase >= ENDED:
        find_job(slot)
        if n_found == 0:
            close_job(index)
            return
        if not slot.clearing:
            begin_clearing(slot)
    if act_on_time(slot):
        record_unreaped(slot)
        close_job(index)


cdef int64_t tend_all() noexcept nogil:
    """Tend all taken-over jobs. Return when the next one is due, in ms of the monotonic clock; 0: never."""
    cdef int64_t due, first = 0
    cdef int i
    for i in range(n_slots if n_taken else 0):
        if keeper[i] == NO_KEEPER:
            tend(i)
            due = next_due(slot_at(i)) if keeper[i] == NO_KEEPER else 0
            if due and (first == 0 or due < first):
                first = due
    return first
