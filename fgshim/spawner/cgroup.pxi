# The cgroups of a job, version 1 or 2. The controller chooses them; the spawner creates, joins, reads and
# removes them.
#
# Exports: join_cgroups, kill_cgroups, make_cgroups, oom_kills, remove_cgroups.
# Needs: state (Slot, fail, launch, read_small).

cdef int write_setting(const char *directory, const char *name, const char *value, size_t length) noexcept nogil:
    cdef char path[2 * 4096]
    snprintf(path, sizeof(path), b"%s/%s", directory, name)
    cdef int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW)
    if fd < 0:
        return -1
    cdef ssize_t done = write(fd, value, length)
    close(fd)
    return 0 if done == <ssize_t> length else -1


cdef int apply_settings(Slot *slot, const char **at, const char *directory) noexcept nogil:
    """Write each "file=value" that follows in the message to its file in the cgroup."""
    cdef char name[4096]
    cdef const char *text
    cdef const char *value
    cdef unsigned long left = strtoul(at[0], NULL, 10)
    at[0] += strlen(at[0]) + 1
    while left:
        left -= 1
        text = at[0]
        at[0] += strlen(text) + 1
        value = strchr(text, c'=') + 1
        memcpy(name, text, <size_t> (value - text) - 1)
        name[(value - text) - 1] = 0
        if write_setting(directory, name, value, strlen(value)) < 0:
            fail(slot, errno, b"cgroup ", directory)
            snprintf(slot.detail, DETAIL_ROOM, b"cgroup %s/%s", directory, name)
            return -1
    return 0


cdef int make_cgroups(Slot *slot) noexcept nogil:
    cdef const char *at = launch.cgroups
    cdef const char *directory
    cdef int i
    for i in range(slot.n_cgroups):
        directory = at
        at += strlen(at) + 1
        if mkdir(directory, 0o755) < 0 and errno != EEXIST:
            fail(slot, errno, b"cgroup ", directory)
            return -1
        chmod(directory, 0o755)  # whatever the umask: jobs may read their limits
        if apply_settings(slot, &at, directory) < 0:
            return -1
    return 0


cdef int join_cgroups(Slot *slot) noexcept nogil:
    """Join the job's own cgroups, which end with it, and the cgroup of its user, which other jobs share."""
    cdef int i
    if launch.shared[0] and write_setting(launch.shared, b"cgroup.procs", b"0", 1) < 0:
        fail(slot, errno, b"join cgroup ", launch.shared)
        return -1
    for i in range(slot.n_cgroups):
        if write_setting(slot.text + slot.cgroup[i], b"cgroup.procs", b"0", 1) < 0:
            fail(slot, errno, b"join cgroup ", slot.text + slot.cgroup[i])
            return -1
    return 0


cdef void kill_cgroups(const Slot *slot) noexcept nogil:
    """Kill all processes of the job's cgroups with cgroup.kill, where the kernel has it."""
    cdef int i
    for i in range(slot.n_cgroups):
        write_setting(slot.text + slot.cgroup[i], b"cgroup.kill", b"1", 1)


cdef unsigned long counted(const char *directory, const char *file) noexcept nogil:
    """Return the number after "oom_kill" in a file of a cgroup."""
    cdef char path[4096 + 64]
    cdef char text[1024]
    snprintf(path, sizeof(path), b"%s/%s", directory, file)
    text[0] = c'\n'
    if read_small(path, text + 1, sizeof(text) - 1) <= 0:
        return 0
    cdef const char *found = strstr(text, b"\noom_kill ")
    return 0 if found == NULL else strtoul(found + 10, NULL, 10)


cdef unsigned long oom_kills(const Slot *slot) noexcept nogil:
    cdef unsigned long most = 0, here
    cdef int i
    for i in range(slot.n_cgroups):
        here = counted(slot.text + slot.cgroup[i], b"memory.events")
        if here == 0:
            here = counted(slot.text + slot.cgroup[i], b"memory.oom_control")
        most = here if here > most else most
    return most


cdef void remove_cgroups(const Slot *slot) noexcept nogil:
    """Remove the job's cgroups. A cgroup stays busy for an instant after its last process was reaped."""
    cdef timespec instant
    cdef int i, tries
    instant.tv_sec = 0
    instant.tv_nsec = 1000000
    for i in range(slot.n_cgroups - 1, -1, -1):
        for tries in range(50):
            if rmdir(slot.text + slot.cgroup[i]) == 0 or errno == ENOENT:
                break
            nanosleep(&instant, NULL)
