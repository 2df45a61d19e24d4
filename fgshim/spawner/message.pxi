# The launch message: every field and bound is checked again here, whatever its sender.
#
# Exports: find_variables, fits_space, incoming, large_launch, parse.
# Needs: state (Head, Launch, Slot, Space, arguments, launch, space_of, variables).

cdef enum:
    SPARE = 4  # pointers before the arguments, for an interpreter and its option, or for the words of a task prolog

cdef char incoming[8388608]
cdef Launch large_launch  # for a message that does not fit its slot's space
cdef char *large_words[2 * 32768 + 8]

cdef struct Cursor:
    const char *at
    const char *end


cdef const char *take(Cursor *cursor, size_t length) noexcept nogil:
    """Return the next `length` bytes of the message, or NULL."""
    cdef const char *here = cursor.at
    if <size_t> (cursor.end - cursor.at) < length:
        return NULL
    cursor.at += length
    return here


cdef const char *take_string(Cursor *cursor, size_t most) noexcept nogil:
    """Return the next string, or NULL if none ends within `most` bytes."""
    cdef size_t left = <size_t> (cursor.end - cursor.at)
    cdef const char *end = <const char *> memchr(cursor.at, 0, left if left < most else most)
    if end == NULL:
        return NULL
    return take(cursor, <size_t> (end - cursor.at) + 1)


cdef int head_is_sound(const Head *head) noexcept nogil:
    if head.job == 0 or head.job >> 63 or head.attempt == 0 or head.flags > 255:
        return 0
    if head.flags & OWN_USERS and (head.flags & BECOME_USER or not head.flags & OWN_MOUNTS):
        return 0
    if head.n_closed > (MOST_CLOSED if head.flags & OWN_MOUNTS else 0):
        return 0
    if head.n_cpu_words > MOST_CPU_WORDS:
        return 0
    if head.umask > 0o777 or head.uid == <uint32_t> -1 or head.gid == <uint32_t> -1:
        return 0
    if head.n_groups > MOST_GROUPS or head.n_rlimits > MOST_RLIMITS or head.n_cgroups > MOST_CGROUPS:
        return 0
    if head.n_args > MOST_WORDS or head.n_env > MOST_WORDS or head.warn_signal > 64 or head.warn_target > 2:
        return 0
    if not (is_time(head.time_limit) and is_time(head.warn_before)):
        return 0
    if not (is_time(head.grace) and is_time(head.leftover_grace) and is_time(head.last_wait)):
        return 0
    return (head.script_length > 0 and head.script_length < MESSAGE_ROOM
            and head.region_length <= head.region_size and head.region_size <= 64 << 20)


cdef int is_time(int64_t milliseconds) noexcept nogil:
    return 0 <= milliseconds <= <int64_t> 400 * 86400 * 1000


cdef int keep(Slot *slot, uint32_t *used, uint32_t *where, const char *text) noexcept nogil:
    """Copy a string into the slot, which outlives the message."""
    cdef size_t length = strlen(text) + 1
    if used[0] + length > TEXT_ROOM:
        return 0
    memcpy(slot.text + used[0], text, length)
    where[0] = used[0]
    used[0] += <uint32_t> length
    return 1


cdef int take_words(Cursor *cursor, char **words, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        words[i] = <char *> take_string(cursor, MESSAGE_ROOM)
        if words[i] == NULL:
            return 0
    words[count] = NULL
    return 1


cdef int take_closed(Cursor *cursor) noexcept nogil:
    """Check the list of device nodes that the job must not open."""
    cdef const char *path
    cdef uint32_t i
    launch.closed = cursor.at
    for i in range(launch.head.n_closed):
        path = take_string(cursor, PATH_ROOM)
        if path == NULL or path[0] != c'/':
            return 0
    return 1


cdef int is_setting(const char *text) noexcept nogil:
    """Return whether this is file=value with a file in the cgroup's own directory."""
    cdef const char *equals = strchr(text, c'=')
    cdef const char *slash = strchr(text, c'/')
    return equals > text and text[0] != c'.' and (slash == NULL or slash > equals)


cdef int take_cgroups(Cursor *cursor, Slot *slot, uint32_t *used) noexcept nogil:
    """Check the cgroups' strings. Their directories are stored: they are needed at the end."""
    cdef const char *text
    cdef unsigned long i, settings
    launch.cgroups = cursor.at
    slot.n_cgroups = <int> launch.head.n_cgroups
    for i in range(launch.head.n_cgroups):
        text = take_string(cursor, PATH_ROOM)
        if text == NULL or text[0] != c'/' or not keep(slot, used, &slot.cgroup[i], text):
            return 0
        text = take_string(cursor, 8)
        settings = MOST_SETTINGS + 1 if text == NULL else strtoul(text, NULL, 10)
        if settings > MOST_SETTINGS:
            return 0
        while settings:
            settings -= 1
            text = take_string(cursor, PATH_ROOM)
            if text == NULL or not is_setting(text):
                return 0
    return 1


cdef int take_paths(Cursor *cursor, Slot *slot, uint32_t *used) noexcept nogil:
    cdef const char *run = take_string(cursor, PATH_ROOM - 64)
    cdef const char *space = take_string(cursor, PATH_ROOM - 64)
    cdef const char *cwd = take_string(cursor, PATH_ROOM)
    launch.stdin = take_string(cursor, PATH_ROOM)
    launch.stdout = take_string(cursor, PATH_ROOM)
    launch.stderr = take_string(cursor, PATH_ROOM)
    cdef const char *tmp = take_string(cursor, PATH_ROOM)
    launch.hook = take_string(cursor, PATH_ROOM)
    launch.shared = take_string(cursor, PATH_ROOM)
    if run == NULL or space == NULL or cwd == NULL or launch.stdin == NULL or launch.stdout == NULL or launch.stderr == NULL:
        return 0
    if launch.shared == NULL or (launch.shared[0] and launch.shared[0] != c'/'):
        return 0
    if tmp == NULL or launch.hook == NULL or run[0] != c'/' or cwd[0] != c'/':
        return 0
    if not launch.stdin[0] or not launch.stdout[0]:
        return 0
    if space[0] and space[0] != c'/':
        return 0
    if (tmp[0] and tmp[0] != c'/') or (launch.hook[0] and launch.hook[0] != c'/'):
        return 0
    if launch.head.flags & PROVE_FENCE and (not launch.hook[0] or not launch.head.region_size):
        return 0
    slot.hooked = launch.hook[0] != 0
    cdef const char *errors = launch.stderr if launch.stderr[0] else launch.stdout
    return (keep(slot, used, &slot.run, run) and keep(slot, used, &slot.space, space) and keep(slot, used, &slot.cwd, cwd)
            and keep(slot, used, &slot.tmp, tmp) and keep(slot, used, &slot.stderr, errors))


cdef int fits_space(const Head *head) noexcept nogil:
    return (head.length <= SPACE_MESSAGE and head.n_args < SPACE_WORDS and head.n_env < SPACE_WORDS
            and SPARE + head.n_args + 1 + head.n_env + 1 <= SPACE_WORDS)


cdef const char *make_space(const char *message, Slot *slot) noexcept nogil:
    """Choose where a message is parsed, and return where its bytes lie meanwhile."""
    global launch, arguments
    cdef Space *space = space_of(slot)
    if not fits_space(&slot.head):
        launch = &large_launch
        arguments = large_words
        return message
    launch = &space.launch
    arguments = space.words
    memcpy(space.message, message, slot.head.length)
    return space.message


cdef void find_variables() noexcept nogil:
    """Find the variables, which follow the arguments and their NULL."""
    global variables
    variables = arguments + SPARE + launch.head.n_args + 1


cdef int parse(const char *message, Slot *slot) noexcept nogil:
    """Fill `launch` and the slot from a complete message. Return 0 if it is malformed."""
    cdef Cursor cursor
    cdef uint32_t used = 0
    memset(slot, 0, sizeof(Slot) - TEXT_ROOM)
    memcpy(&slot.head, message, sizeof(Head))
    message = make_space(message, slot)
    launch.head = slot.head
    cursor.at = message + sizeof(Head)
    cursor.end = message + launch.head.length
    if not head_is_sound(&launch.head):
        return 0
    find_variables()
    launch.groups = take(&cursor, <size_t> launch.head.n_groups * 4)
    launch.rlimits = take(&cursor, <size_t> launch.head.n_rlimits * 24)
    launch.cpus = take(&cursor, <size_t> launch.head.n_cpu_words * 8)
    if launch.groups == NULL or launch.rlimits == NULL or launch.cpus == NULL:
        return 0
    if not take_paths(&cursor, slot, &used):
        return 0
    if not take_words(&cursor, arguments + SPARE, launch.head.n_args):
        return 0
    if not take_words(&cursor, variables, launch.head.n_env) or not take_closed(&cursor):
        return 0
    if not take_cgroups(&cursor, slot, &used):
        return 0
    launch.script = take(&cursor, launch.head.script_length)
    launch.region = take(&cursor, launch.head.region_length)
    return launch.script != NULL and launch.region != NULL and cursor.at == cursor.end
