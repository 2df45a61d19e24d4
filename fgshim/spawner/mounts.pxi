# The mount namespace of a job: its /etc/ld.so.preload names the hook, and GPUs of other jobs cannot be
# opened.
#
# The job's child creates it, between joining its cgroups and taking its identity, so nothing of it reaches
# the shepherd. Later mounts of the host propagate into it; its own mounts propagate nowhere.
#
# Exports: take_mounts, try_mounts, write_word.
# Needs: prove (refuse); state (Slot, is_full, launch, path_of); text (put, put_number).


cdef int write_word(const char *path, const char *text) noexcept nogil:
    """Write a word to a kernel file."""
    cdef int fd = open(path, O_WRONLY | O_CLOEXEC)
    cdef ssize_t done
    if fd < 0:
        return -1
    done = write(fd, text, strlen(text))
    close(fd)
    return 0 if done >= 0 else -1


cdef int map_itself(const char *path, int64_t number) noexcept nogil:
    """Map one id into the new user namespace, unchanged."""
    cdef char line[64]
    put(put_number(put(put_number(line, number), b" "), number), b" 1\n")
    return write_word(path, line)


cdef const char *own_users() noexcept nogil:
    """Enter a user namespace with only this user in it, which permits mounts without root."""
    cdef uid_t uid = geteuid()
    cdef gid_t gid = getegid()
    if unshare(CLONE_NEWUSER) < 0:
        return b"user namespace"
    if write_word(b"/proc/self/setgroups", b"deny") < 0:
        return b"setgroups of the user namespace"
    if map_itself(b"/proc/self/uid_map", uid) < 0 or map_itself(b"/proc/self/gid_map", gid) < 0:
        return b"user of the user namespace"
    return NULL


cdef const char *own_mounts(int with_users) noexcept nogil:
    """Enter a mount namespace. Return NULL, or the step that failed, with errno."""
    cdef const char *step = own_users() if with_users else NULL
    if step != NULL:
        return step
    if unshare(CLONE_NEWNS) < 0:
        return b"mount namespace"
    if mount(NULL, b"/", NULL, MS_REC | MS_SLAVE, NULL) < 0:
        return b"propagation of the mount namespace"
    return NULL


cdef int cover_preload(const char *text) noexcept nogil:
    return mount(text, b"/etc/ld.so.preload", NULL, MS_BIND, NULL)


cdef unsigned long flags_of(const char *path) noexcept nogil:
    """Return the flags of a path's mount, which only root may change."""
    cdef statvfs_t about
    if statvfs(path, &about) < 0:
        return 0
    return ((MS_RDONLY if about.f_flag & ST_RDONLY else 0) | (MS_NOSUID if about.f_flag & ST_NOSUID else 0)
            | (MS_NOEXEC if about.f_flag & ST_NOEXEC else 0) | (MS_NOATIME if about.f_flag & ST_NOATIME else 0)
            | (MS_NODIRATIME if about.f_flag & ST_NODIRATIME else 0)
            | (MS_RELATIME if about.f_flag & ST_RELATIME else 0))


cdef int close_device(const char *path) noexcept nogil:
    """Mount a device node over itself with MS_NODEV, so that no process can open it, not even as root."""
    if mount(path, path, NULL, MS_BIND, NULL) < 0:
        return 0 if errno == ENOENT else -1  # removed meanwhile
    return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_NODEV | flags_of(path), NULL)


cdef int take_mounts(Slot *slot) noexcept nogil:
    """Set up what the job sees of the file system, before it becomes its user."""
    cdef const char *path = launch.closed
    cdef const char *step
    cdef uint32_t i
    if not launch.head.flags & OWN_MOUNTS:
        return 0
    step = own_mounts(launch.head.flags & OWN_USERS)
    if step != NULL:
        refuse(slot, errno, step, b"", b"")
        slot.is_short |= is_full(slot.error)  # the limit of namespaces is reached
        return -1
    if launch.hook[0] and cover_preload(path_of(slot, b"/job/", b"/preload")) < 0:
        return refuse(slot, errno, b"mount /etc/ld.so.preload", b"", b"")
    for i in range(launch.head.n_closed):
        if close_device(path) < 0:
            return refuse(slot, errno, b"close ", path, b"")
        path += strlen(path) + 1
    path_of(slot, b"/job/", b"/script")
    return 0


cdef int try_mounts(int argc, char **argv) noexcept nogil:
    """Run `fgspawn mounts root|user PRELOAD PROGRAM …`: execute a program with its own preload file."""
    cdef char *nothing = NULL
    cdef const char *step = own_mounts(strcmp(argv[2], b"user") == 0)
    if step == NULL and cover_preload(argv[3]) < 0:
        step = b"mount /etc/ld.so.preload"
    if step == NULL:
        execve(argv[4], argv + 4, &nothing)
        step = argv[4]
    dprintf(2, b"%s: %s\n", step, strerrordesc_np(errno))
    return 1
