# The start of the spawner: descriptors, signals, and the table that it shares with all shepherds.
#
# Entry: main.
# Exports: nothing.
# Needs: controller (core_before); message (incoming); mounts (try_mounts); priority (take_standing); serve
#   (serve); state (Slot, Space, boot, channel, crash_at, is_root, nothing_blocked, read_small, resting,
#   spawner_pid, table); tree (probe_children_files).

cdef extern from "task.h" nogil:
    int fg_run_task(char **words)

cdef extern from "turn_server.h" nogil:
    int fg_give_turns(int controller, const char *lock)


cdef void hold_null() noexcept nogil:
    """Make sure that descriptors 0 to 2 are open. A job's stdin is taken from here."""
    cdef int fd = open(b"/dev/null", O_RDWR)
    while 0 <= fd < 2:
        fd = open(b"/dev/null", O_RDWR)
    dup2(fd, 0)
    dup2(fd, 1)
    if fd > 2:
        close(fd)


cdef int prepare_signals() noexcept nogil:
    """Reset and block all signals. Return the descriptor that reports children and commands."""
    cdef char default_action[64]
    cdef sigset_t all, heard
    cdef int number
    memset(default_action, 0, sizeof(default_action))
    for number in range(1, 65):
        syscall(SYS_rt_sigaction, number, default_action, NULL, 8)
    sigfillset(&all)
    sigprocmask(SIG_SETMASK, &all, NULL)
    sigemptyset(&nothing_blocked)
    sigemptyset(&heard)
    sigaddset(&heard, SIGCHLD)
    sigaddset(&heard, fg_command_signal())
    return signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK)


cdef int make_table() noexcept nogil:
    """Map the futex words of the shepherds and the slots behind them. Return -1 on failure."""
    global table, resting
    cdef size_t words = (SLOTS * sizeof(int) + 4095) & ~<size_t> 4095
    cdef void *room = mmap(NULL, words + <size_t> SLOTS * SLOT_ROOM, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if room == MAP_FAILED or sizeof(Slot) > SPACE_AT or sizeof(Space) > SLOT_ROOM - SPACE_AT:
        return -1
    madvise(room, words + <size_t> SLOTS * SLOT_ROOM, MADV_DONTDUMP)  # it holds scripts and variables of all users
    madvise(<void *> ((<size_t> incoming + 4095) & ~<size_t> 4095), MESSAGE_ROOM - 4096, MADV_DONTDUMP)
    resting = <int *> room
    table = <char *> room + words
    return 0


cdef int make_pipe() noexcept nogil:
    """Create the pipe of the shepherds. Its writing end becomes descriptor TELL. Return the reading end, or -1."""
    global channel
    cdef int ends[2]
    cdef int moved
    if channel == TELL:
        channel = fcntl(channel, F_DUPFD_CLOEXEC, TELL + 1)
    if channel < 0 or pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0:
        return -1
    if ends[0] == TELL:  # it was the lowest free descriptor
        moved = fcntl(ends[0], F_DUPFD_CLOEXEC, TELL + 1)
        if moved < 0:
            return -1
        ends[0] = moved
    return ends[0] if ends[1] == TELL or dup3(ends[1], TELL, O_CLOEXEC) == TELL else -1


cdef int prepare() noexcept nogil:
    """Prepare what shepherds inherit. Return -1 on failure."""
    global is_root, spawner_pid
    cdef rlimit core
    cdef const char *point = getenv(b"FG_CRASH_AT")
    umask(0o077)
    tzset()
    is_root = geteuid() == 0
    take_standing()
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if is_root:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    getrlimit(RLIMIT_CORE, &core_before)
    core = core_before
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


cdef public int main(int argc, char **argv) noexcept nogil:
    global channel
    cdef char *end
    cdef int signals, told
    if argc > 4 and strcmp(argv[1], b"mounts") == 0:
        return try_mounts(argc, argv)
    if argc > 2 and strcmp(argv[1], b"task") == 0:
        return fg_run_task(argv + 2)
    if argc == 4 and strcmp(argv[1], b"turns") == 0:
        return fg_give_turns(<int> strtol(argv[2], NULL, 10), argv[3])
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
