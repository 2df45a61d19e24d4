# The data of the spawner: message headers, a slot for each live job, and helpers that all parts use.
#
# Exports: Answer, Head, Launch, Slot, Space, answer, arguments, boot, channel, crash, crash_at, fail,
#   forked_at, is_full, is_root, is_shortage, job_variable, launch, nothing_blocked, now, path_of, place_of,
#   read_small, resting, slot_at, space_of, spawner_pid, table, tell, tell_over, tick, variables, wall, and its constants.
# Needs: text (put, put_number).

cdef enum:
    LAUNCH_MAGIC = 0x314c4746  # "FGL1"
    ANSWER_MAGIC = 0x31414746  # "FGA1"
    RESULT_MAGIC = 0x31524746  # "FGR1"
    COMMAND_MAGIC = 0x31434746  # "FGC1"
    COMMAND_SIZE = 32
    KEPT_MAGIC = 0x31534746  # "FGS1"
    MESSAGE_ROOM = 8 << 20
    MOST_GROUPS = 65536
    MOST_RLIMITS = 16
    MOST_WORDS = 32768  # arguments, or variables
    MOST_CGROUPS = 8
    MOST_SETTINGS = 16
    MOST_CLOSED = 256
    MOST_CPU_WORDS = 128  # of 64 CPUs each: the kernel's maximum
    PATH_ROOM = 4096
    SLOTS = 4096
    SLOT_ROOM = 65536
    SPACE_AT = 32768  # offset within a slot
    SPACE_WORDS = 1024
    SPACE_MESSAGE = 24000
    REST = 250  # ms for which a shepherd waits for another job
    TELL = 3  # descriptor on which shepherds write to the spawner
    TEXT_ROOM = 28672  # bytes for the strings of a slot
    DETAIL_ROOM = 1024
    RESULT_MOST = 1000  # bytes of a result: some file systems permit 1,023 in a symbolic link
    PRELOAD_ROOM = 16384  # bytes of the host's /etc/ld.so.preload

    APPEND = 1
    BECOME_USER = 2
    NO_NEW_PRIVILEGES = 4
    OWN_MOUNTS = 8
    OWN_USERS = 16
    PROVE_FENCE = 32
    MAKE_DIRECTORIES = 64
    TASK_PROLOG = 128

    TO_ALL = 0
    TO_SHELL = 1
    TO_CHILDREN = 2

    FOR_REQUEUE = 1  # reasons of a cancel
    FOR_PREEMPTION = 2
    VERB_CANCEL = 1
    VERB_SIGNAL = 2
    VERB_SUSPEND = 3
    VERB_RESUME = 4
    VERB_PREEMPT = 5
    VERB_LIMIT = 6  # 6 and 7: the lowest bit is the highest bit of the seconds
    VERB_CONTROLLER = 8  # to a spawner, for no job
    VERB_JOIN = 9

    COULD_NOT_START = 127 << 8  # status of a job that was never executed

cdef enum Phase:
    FREE = 0
    FORKED
    CLAIMED
    ENDED  # the script has ended and its status is in the slot
    STORED
    GIVEN_UP  # its result cannot be stored

cdef enum Cause:
    BY_EXIT = 0
    BY_CANCEL
    BY_TIMEOUT
    BY_LAUNCH
    BY_SHORTAGE  # nothing ran for lack of a resource of the host: another start may succeed

cdef packed struct Head:
    uint32_t magic, length
    uint64_t job
    uint32_t attempt, flags, uid, gid, umask
    uint32_t n_groups, n_rlimits, n_args, n_env, n_cgroups
    uint32_t warn_signal, warn_target
    int64_t time_limit, warn_before, grace, leftover_grace, last_wait
    uint32_t script_length, region_length
    uint64_t region_size
    uint32_t n_closed, n_cpu_words

cdef packed struct Answer:
    uint32_t magic, attempt
    uint64_t job
    int32_t pid, error
    uint64_t ticks

cdef struct Slot:
    # What the spawner needs to finish a job whose shepherd is killed.
    Head head
    int phase, cause, lost, answered, hooked, has_tmp, clearing, closers, error, is_short, status
    pid_t main  # written by the kernel during clone
    pid_t survivor  # a process that SIGKILL did not end; 0: none
    int64_t started_at, ended_at  # CLOCK_REALTIME, ns
    int64_t begun_at, deadline, warn_at, kill_at, suspended_at, preempt_at, killed_at  # CLOCK_MONOTONIC, ms; 0: never
    int64_t pause
    rusage used
    int n_cgroups
    uint32_t run, space, cwd, stderr, tmp  # offsets in `text`
    uint32_t cgroup[8]
    char detail[1024]
    char text[28672]

cdef struct Launch:
    # The message of the job being started: pointers into its buffer.
    Head head
    const char *groups
    const char *rlimits
    const char *cpus
    const char *hook
    const char *shared
    const char *stdin
    const char *stdout
    const char *stderr
    const char *closed
    const char *cgroups
    const char *script
    const char *region

cdef struct Space:
    # Room to parse a message of the usual size. It is shared, so a fork does not copy it.
    Launch launch
    char *words[1024]
    char message[24000]

cdef enum Rest:
    # The values of `resting`, for the shepherd of each slot.
    AT_WORK = 0
    RESTING  # its job has ended and was reported; it waits for another
    CHOSEN  # the spawner is writing its next job to the slot
    LEAVING  # it will accept no other job

cdef Launch *launch
cdef char **arguments  # of the job being started; SPARE pointers before them are free
cdef char **variables
cdef int *resting  # one word for each slot, shared
cdef char *table  # the slots, shared with every shepherd
cdef int channel  # socket to the controller; -1 once it is closed
cdef int is_root
cdef char boot[64]
cdef char crash_at[64]
cdef pid_t spawner_pid
cdef uint64_t forked_at  # the tick before the last fork
cdef sigset_t nothing_blocked


cdef char *job_variable(const char *name) noexcept nogil:
    """Return the value of a variable of the job. `name` ends with "="; "": it has none."""
    cdef size_t length = strlen(name)
    cdef uint32_t i
    for i in range(launch.head.n_env):
        if strncmp(variables[i], name, length) == 0:
            return variables[i] + length
    return b""


cdef Slot *slot_at(int index) noexcept nogil:
    return <Slot *> (table + <size_t> index * SLOT_ROOM)


cdef Space *space_of(Slot *slot) noexcept nogil:
    return <Space *> (<char *> slot + SPACE_AT)


cdef void crash(const char *point) noexcept nogil:
    """Kill this process at a point that a test has chosen."""
    if crash_at[0] and strcmp(crash_at, point) == 0:
        kill(getpid(), SIGKILL)


cdef int64_t now() noexcept nogil:
    """Return milliseconds of CLOCK_MONOTONIC, which cannot be set and stops while the host is suspended."""
    cdef timespec at
    clock_gettime(CLOCK_MONOTONIC, &at)
    return at.tv_sec * 1000 + at.tv_nsec // 1000000


cdef int64_t wall() noexcept nogil:
    """Return nanoseconds since the epoch."""
    cdef timespec at
    clock_gettime(CLOCK_REALTIME, &at)
    return at.tv_sec * 1000000000 + at.tv_nsec


cdef uint64_t tick() noexcept nogil:
    """Return hundredths of a second since boot, the unit of a process's start time."""
    cdef timespec at
    clock_gettime(CLOCK_BOOTTIME, &at)
    return <uint64_t> at.tv_sec * 100 + <uint64_t> at.tv_nsec // 10000000


cdef int is_shortage(int error) noexcept nogil:
    """Return whether a step may succeed later, since processes, files or memory are short at the moment."""
    return error in (EAGAIN, EMFILE, ENFILE, ENOMEM)


cdef int is_full(int error) noexcept nogil:
    return error in (EDQUOT, ENOSPC)


cdef void fail(Slot *slot, int error, const char *step, const char *what) noexcept nogil:
    """Record why the job cannot be started: a step on the controller's own files failed."""
    slot.error = error
    slot.is_short = is_shortage(error) or is_full(error)
    snprintf(slot.detail, DETAIL_ROOM, b"%s%s", step, what)


cdef void answer(Slot *slot, pid_t pid, int error, uint64_t ticks) noexcept nogil:
    """Answer the controller, if it is still there."""
    cdef Answer reply
    reply.magic = ANSWER_MAGIC
    reply.attempt = slot.head.attempt
    reply.job = slot.head.job
    reply.pid = pid
    reply.error = error
    reply.ticks = ticks
    tell(&reply)
    slot.answered = 1


cdef int tell(const Answer *word) noexcept nogil:
    """Send a word to the controller, from a shepherd through the spawner. Return 0 if it is not read."""
    cdef pollfd room
    room.fd = channel
    room.events = <short> POLLOUT
    if channel < 0:
        return 0
    while write(channel, word, sizeof(Answer)) < 0:  # SIGPIPE is blocked
        if errno == EAGAIN:
            poll(&room, 1, -1)
        elif errno != EINTR:
            return 0
    return 1


cdef int tell_over(const Slot *slot) noexcept nogil:
    """Tell the controller that the result exists."""
    cdef Answer word
    memset(&word, 0, sizeof(word))
    word.magic = RESULT_MAGIC
    word.attempt = slot.head.attempt
    word.job = slot.head.job
    return tell(&word)


cdef const char *path_of(const Slot *slot, const char *kind, const char *tail) noexcept nogil:
    """Write <run>/<kind>/<job>.<attempt><tail> to `work_path`. Users cannot change the parts before the last."""
    cdef char *at = put(put(work_path, slot.text + slot.run), kind)
    at = put_number(put(put_number(at, <int64_t> slot.head.job), b"."), slot.head.attempt)
    put(at, tail)
    return work_path


cdef const char *place_of(const Slot *slot, const char *tail) noexcept nogil:
    """Write the real path of the job's directory and `tail`. With a user space, `job` has only a link to it."""
    if not slot.text[slot.space]:
        return path_of(slot, b"/job/", tail)
    cdef char *at = put_number(put(work_path, slot.text + slot.space), <int64_t> slot.head.job)
    put(put_number(put(at, b"."), slot.head.attempt), tail)
    return work_path


cdef long read_small(const char *path, char *to, long room) noexcept nogil:
    """Read the beginning of a kernel file as a string. Return its length, or -1."""
    cdef int fd = open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return -1
    cdef long got = read(fd, to, room - 1)
    close(fd)
    to[got if got > 0 else 0] = 0
    return got
