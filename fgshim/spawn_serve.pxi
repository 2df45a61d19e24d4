# The spawner itself: reads messages, forks, reaps.

cdef size_t have  # bytes in `incoming`

cdef packed struct Command:
    uint32_t magic, length
    uint64_t job
    uint32_t attempt
    int32_t value
    uint64_t spare


cdef int free_slot() noexcept nogil:
    global n_slots
    cdef int i
    for i in range(n_slots):
        if keeper[i] == 0:
            return i
    if n_slots == SLOTS:
        return -1
    n_slots += 1
    return n_slots - 1


cdef void refuse_message(const Head *head, int error) noexcept nogil:
    cdef Answer word
    memset(&word, 0, sizeof(word))
    word.magic = ANSWER_MAGIC
    word.attempt = head.attempt
    word.job = head.job
    word.error = error
    dprintf(2, b"fgspawn: job %lu: launch refused: %s\n", <unsigned long> head.job, strerrordesc_np(error))
    send(channel, &word, sizeof(word), MSG_NOSIGNAL)


cdef void start_shepherd(const char *message) noexcept nogil:
    global forked_at
    cdef int index = free_slot()
    cdef Slot *slot
    cdef pid_t pid
    if index < 0:
        refuse_message(<const Head *> message, EAGAIN)
        return
    slot = slot_at(index)
    if not parse(message, slot):
        refuse_message(<const Head *> message, EINVAL)
        return
    slot.phase = FORKED
    forked_at = tick()
    pid = fork()
    if pid == 0:
        shepherd(slot)
    if pid < 0:
        answer(slot, 0, errno, 0)
        return
    keeper[index] = pid


cdef void pass_command(const Command *command) noexcept nogil:
    """For a job without a shepherd to signal."""
    cdef Slot *slot
    cdef int i
    reap_all()  # who sends it may know of the shepherd's death before us
    for i in range(n_slots):
        slot = slot_at(i)
        if keeper[i] == NOBODY and slot.head.job == command.job and slot.head.attempt == command.attempt:
            obey(slot, command.value)


cdef long next_message(const char *at, size_t left) noexcept nogil:
    """Carry out one message: how long it is, 0 when it is not all there, -1 when this is none."""
    cdef const Head *head = <const Head *> at
    if left < 8:
        return 0
    if head.magic == COMMAND_MAGIC and head.length == COMMAND_SIZE:
        if left >= COMMAND_SIZE:
            pass_command(<const Command *> at)
    elif head.magic == LAUNCH_MAGIC and sizeof(Head) <= head.length <= MESSAGE_ROOM:
        if left >= head.length:
            start_shepherd(at)
    else:
        return -1
    return head.length if left >= head.length else 0


cdef void hang_up() noexcept nogil:
    global channel
    close(channel)
    channel = -1


cdef void receive() noexcept nogil:
    """Read what there is and carry out every whole message of it."""
    global have
    cdef long length = 1
    cdef size_t at = 0, most
    cdef ssize_t got = recv(channel, incoming + have, MESSAGE_ROOM - have, MSG_DONTWAIT)
    if got <= 0:
        if got == 0 or (errno != EAGAIN and errno != EINTR):
            hang_up()
        return
    have += <size_t> got
    most = have
    while length > 0:
        length = next_message(incoming + at, have - at)
        at += <size_t> length if length > 0 else 0
    if length < 0:
        dprintf(2, b"fgspawn: what came over the socket is no message; listening no more\n")
        hang_up()
        return
    have -= at
    memmove(incoming, incoming + at, have)
    if have == 0 and most > 262144:  # a fork copies what has been touched
        madvise(<void *> ((<size_t> incoming + 4095) & ~<size_t> 4095), MESSAGE_ROOM - 4096, MADV_DONTNEED)


cdef void serve(int signals) noexcept nogil:
    """Until the controller has hung up and no child is left."""
    cdef char drained[1024]
    cdef pollfd awaited[2]
    cdef timespec wait
    cdef int64_t due, left
    while reap_all() or channel >= 0 or n_taken:
        due = tend_all()
        left = due - now() if due else 0
        left = left if left > 0 else 0
        wait.tv_sec = left // 1000
        wait.tv_nsec = left % 1000 * 1000000
        awaited[0].fd = channel  # -1 is passed over
        awaited[1].fd = signals
        awaited[0].events = awaited[1].events = <short> POLLIN
        awaited[0].revents = awaited[1].revents = 0
        ppoll(awaited, 2, &wait if due else NULL, NULL)
        if awaited[1].revents:
            read(signals, drained, sizeof(drained))
        if awaited[0].revents:
            receive()


cdef void hold_null() noexcept nogil:
    """Descriptors 0 to 2 are what they should be: a job's stdin is taken from here."""
    cdef int fd = open(b"/dev/null", O_RDWR)
    while 0 <= fd < 2:
        fd = open(b"/dev/null", O_RDWR)
    dup2(fd, 0)
    dup2(fd, 1)
    if fd > 2:
        close(fd)


cdef int prepare_signals() noexcept nogil:
    """All default and all blocked, whatever was inherited; the descriptor that tells of children."""
    cdef char default_action[64]
    cdef sigset_t all, child
    cdef int number
    memset(default_action, 0, sizeof(default_action))
    for number in range(1, 65):
        syscall(SYS_rt_sigaction, number, default_action, NULL, 8)
    sigfillset(&all)
    sigprocmask(SIG_SETMASK, &all, NULL)
    sigemptyset(&nothing_blocked)
    sigemptyset(&child)
    sigaddset(&child, SIGCHLD)
    return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)


cdef int prepare() noexcept nogil:
    """What shepherds inherit ready-made; -1: not possible here."""
    global table, is_root
    cdef rlimit core
    cdef const char *point = getenv(b"FG_CRASH_AT")
    umask(0o077)
    tzset()
    is_root = geteuid() == 0
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if is_root:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    getrlimit(RLIMIT_CORE, &core)
    core.rlim_cur = 0
    setrlimit(RLIMIT_CORE, &core)
    if point != NULL:
        snprintf(crash_at, sizeof(crash_at), b"%s", point)
    probe_children_files()
    if read_small(b"/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) <= 0 or strchr(boot, c'\n') == NULL:
        return -1
    strchr(boot, c'\n')[0] = 0
    table = <char *> mmap(NULL, <size_t> SLOTS * SLOT_ROOM, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    return -1 if table == <char *> MAP_FAILED or sizeof(Slot) > SLOT_ROOM else 0


cdef int run "fg_run"(int argc, char **argv) noexcept nogil:
    global channel
    cdef char *end
    cdef int signals
    channel = <int> strtol(argv[1], &end, 10) if argc == 2 else -1
    if channel < 3 or end[0]:
        dprintf(2, b"usage: fgspawn DESCRIPTOR\nIt is started by the controller, with a socket.\n")
        return 2
    hold_null()
    fcntl(channel, F_SETFD, FD_CLOEXEC)
    signals = prepare_signals()
    if signals < 0 or prepare() < 0:
        dprintf(2, b"fgspawn: cannot start here: %s\n", strerrordesc_np(errno))
        return 1
    serve(signals)
    return 0
