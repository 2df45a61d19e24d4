# Starting a controller for a job that asks for one: outside the job, with the arguments of the last
# controller.
#
# Exports: Kept, controller_lives, core_before, keep_start, start_controller.
# Needs: state (channel, nothing_blocked, now).

cdef enum:
    KEPT_ROOM = 1 << 20  # bytes of the message
    MOST_KEPT = 16384  # its arguments and variables
    START_PAUSE = 1000  # ms between two starts

cdef packed struct Kept:
    uint32_t magic, length, n_args, n_env

cdef char kept[1048576]  # the message, once it was received
cdef char *kept_words[16386]  # arguments, NULL, variables, NULL
cdef int64_t controller_started_at
cdef rlimit core_before  # the core limit with which the controller was started


cdef int controller_lives() noexcept nogil:
    cdef pollfd socket
    socket.fd = channel
    socket.events = 0
    socket.revents = 0
    return channel >= 0 and poll(&socket, 1, 0) >= 0 and not socket.revents & POLLHUP


cdef int keep_start(const Kept *message) noexcept nogil:
    """Store how a controller is started: log, arguments, variables. Return 0 if the message is malformed."""
    cdef const char *end = <const char *> message + message.length
    cdef const char *at = <const char *> message + sizeof(Kept)
    cdef uint32_t n_words = message.n_args + message.n_env + 1
    memset(kept, 0, sizeof(Kept))
    if message.n_args == 0 or message.n_args > MOST_KEPT or message.n_env > MOST_KEPT or n_words > MOST_KEPT:
        return 0
    while n_words and at < end:
        at = <const char *> memchr(at, 0, <size_t> (end - at))
        if at == NULL:
            return 0
        at += 1
        n_words -= 1
    if n_words or at != end:
        return 0
    memcpy(kept, message, message.length)
    return 1


cdef void execute_controller() noexcept nogil:
    """Execute the controller, in the child. Does not return."""
    cdef const Kept *how = <const Kept *> kept
    cdef char *log = kept + sizeof(Kept)
    cdef char *at = log
    cdef uint32_t i
    for i in range(how.n_args + how.n_env):
        at += strlen(at) + 1
        kept_words[i + (1 if i >= how.n_args else 0)] = at
    kept_words[how.n_args] = NULL
    kept_words[how.n_args + how.n_env + 1] = NULL
    setsid()
    setrlimit(RLIMIT_CORE, &core_before)
    sigprocmask(SIG_SETMASK, &nothing_blocked, NULL)
    cdef int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY, 0o600)
    if fd >= 0:
        dup2(fd, 1)
        dup2(fd, 2)
    syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
    if chdir(b"/") == 0:
        execve(kept_words[0], kept_words, kept_words + how.n_args + 1)
    dprintf(2, b"fgspawn: the controller cannot be started: %s\n", strerrordesc_np(errno))
    _exit(127)


cdef void start_controller() noexcept nogil:
    """Start a controller if there is none, as a child of this spawner's parent.

    It is therefore no process of a job, this spawner does not wait for it, and inherits none of its children.
    A second controller ends by itself, because the first one has the lock.
    """
    global controller_started_at
    cdef int64_t at = now()
    if (<const Kept *> kept).n_args == 0 or controller_lives():
        return
    if controller_started_at and at - controller_started_at < START_PAUSE:
        return
    controller_started_at = at
    if syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL) == 0:
        execute_controller()
