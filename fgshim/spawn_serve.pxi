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
    tell(&word)


cdef int controller_lives() noexcept nogil:
    cdef pollfd socket
    socket.fd = channel
    socket.events = 0
    socket.revents = 0
    return channel >= 0 and poll(&socket, 1, 0) >= 0 and not socket.revents & POLLHUP


cdef int choose() noexcept nogil:
    """A shepherd that rests, now kept from leaving; -1: there is none.

    Only while the controller lives, asked after its rest was seen: so that controller heard of the job before,
    and no later one, who may have adopted that job, waits for this shepherd to end.
    """
    cdef int i
    for i in range(n_slots):
        if fg_load(resting + i) == RESTING and keeper[i] > 0 and fg_swap(resting + i, RESTING, CHOSEN):
            if controller_lives():
                return i
            fg_store(resting + i, RESTING)
            return -1
    return -1


cdef void start_job(const char *message) noexcept nogil:
    """By a shepherd that rests, or by a new one."""
    cdef const Head *head = <const Head *> message
    cdef int index = choose() if fits_space(head) else -1
    if index < 0:
        start_shepherd(message)
        return
    if parse(message, slot_at(index)):
        slot_at(index).phase = FORKED
        fg_store(resting + index, AT_WORK)
    else:
        slot_at(index).phase = STORED  # so that nothing is thought lost when it leaves
        refuse_message(head, EINVAL)
        fg_store(resting + index, RESTING)
    fg_wake(resting + index)


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
    fg_store(resting + index, AT_WORK)
    forked_at = tick()
    pid = fork()
    if pid == 0:
        shepherd(index)
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
            start_job(at)
    else:
        return -1
    return head.length if left >= head.length else 0


cdef void hang_up() noexcept nogil:
    """There will be no more jobs: whoever rests may go."""
    global channel
    cdef int i
    close(channel)
    channel = -1
    for i in range(n_slots):
        if fg_swap(resting + i, RESTING, LEAVING):
            fg_wake(resting + i)


cdef void pass_on(int told) noexcept nogil:
    """What shepherds tell, to the controller: whole words, since each is written at once."""
    cdef char words[4096]
    cdef ssize_t got = read(told, words, sizeof(words)), done = 0, sent
    while channel >= 0 and done < got:
        sent = send(channel, words + done, <size_t> (got - done), MSG_NOSIGNAL)
        if sent < 0 and errno != EINTR:
            return
        done += sent if sent > 0 else 0


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


cdef void serve(int signals, int told) noexcept nogil:
    """Until the controller has hung up and no child is left."""
    cdef char drained[1024]
    cdef pollfd awaited[3]
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
        awaited[2].fd = told
        awaited[0].events = awaited[1].events = awaited[2].events = <short> POLLIN
        awaited[0].revents = awaited[1].revents = awaited[2].revents = 0
        ppoll(awaited, 3, &wait if due else NULL, NULL)
        if awaited[1].revents:
            read(signals, drained, sizeof(drained))
        if awaited[2].revents:
            pass_on(told)
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


cdef int make_table() noexcept nogil:
    """The words that shepherds sleep on, and behind them the slots; -1: not possible here."""
    global table, resting
    cdef size_t words = (SLOTS * sizeof(int) + 4095) & ~<size_t> 4095
    cdef void *room = mmap(NULL, words + <size_t> SLOTS * SLOT_ROOM, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if room == MAP_FAILED or sizeof(Slot) > SPACE_AT or sizeof(Space) > SLOT_ROOM - SPACE_AT:
        return -1
    resting = <int *> room
    table = <char *> room + words
    return 0


cdef int make_pipe() noexcept nogil:
    """Its end for shepherds becomes descriptor TELL; the other is returned, or -1."""
    global channel
    cdef int ends[2]
    cdef int moved
    if channel == TELL:
        channel = fcntl(channel, F_DUPFD_CLOEXEC, TELL + 1)
    if channel < 0 or pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0:
        return -1
    if ends[0] == TELL:  # it is the lowest that was free
        moved = fcntl(ends[0], F_DUPFD_CLOEXEC, TELL + 1)
        if moved < 0:
            return -1
        ends[0] = moved
    return ends[0] if ends[1] == TELL or dup3(ends[1], TELL, O_CLOEXEC) == TELL else -1


cdef int prepare() noexcept nogil:
    """What shepherds inherit ready-made; -1: not possible here."""
    global is_root, spawner_pid
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
    spawner_pid = getpid()
    return make_table()


cdef int run "fg_run"(int argc, char **argv) noexcept nogil:
    global channel
    cdef char *end
    cdef int signals, told
    if argc > 4 and strcmp(argv[1], b"mounts") == 0:
        return try_mounts(argc, argv)
    channel = <int> strtol(argv[1], &end, 10) if argc == 2 else -1
    if channel < 3 or end[0]:
        dprintf(2, b"usage: fgspawn DESCRIPTOR\nIt is started by the controller, with a socket.\n")
        return 2
    hold_null()
    fcntl(channel, F_SETFD, FD_CLOEXEC)
    told = make_pipe()
    signals = prepare_signals()
    if told < 0 or signals < 0 or prepare() < 0:
        dprintf(2, b"fgspawn: cannot start here: %s\n", strerrordesc_np(errno))
        return 1
    serve(signals, told)
    return 0
