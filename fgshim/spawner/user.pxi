# Becoming the job's user: for good in a child, or for one look at the file system.
#
# Exports: become, empty_as_user, fork_as_user, is_empty_for_user, remove_job_directory, take_login_uid.
# Needs: child (name_step); files (empty_path, lists_nothing, open_here); mounts (write_word); spare (leave_directory); state (Head, Slot, now, path_of,
#   place_of, read_small); text (put_number, work_path).


cdef int cannot_return(uid_t uid, gid_t gid, int groups) noexcept nogil:
    """Return whether all ids are the user's, the number of groups is right, and root cannot be regained."""
    cdef uid_t real, effective, saved
    if getresuid(&real, &effective, &saved) < 0 or real != uid or effective != uid or saved != uid:
        return 0
    if getresgid(&real, &effective, &saved) < 0 or real != gid or effective != gid or saved != gid:
        return 0
    if getgroups(0, NULL) != groups:
        return 0
    return uid == 0 or setuid(0) < 0


cdef int leave_keyring() noexcept nogil:
    """Replace the session keyring, which may hold root's keys, by an empty one. Return -1 with errno.

    Done as root, so that the keyring counts against root's quota and not against the 200 keys of the user.
    If a sandbox refuses the call, it must refuse every use of the keyring, too.
    """
    if syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0:
        return 0
    global errno
    cdef int error = errno
    if syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) < 0:
        return 0
    errno = error
    return -1


cdef int take_login_uid(uid_t uid) noexcept nogil:
    """Set the login uid of the kernel's audit, as root. Return -1 with errno if the job could set it to any uid.

    A process without a login uid may choose one, which audit records and getlogin() then show as the user. One
    that is set needs a capability, so a job cannot change it. Kernels without audit have no login uid.
    """
    global errno
    cdef char text[32]
    cdef int error
    put_number(text, uid)
    if write_word(b"/proc/self/loginuid", text) == 0 or errno == ENOENT:
        return 0
    error = errno
    if read_small(b"/proc/self/loginuid", text, sizeof(text)) > 0 and strcmp(text, b"4294967295") != 0:
        return 0
    errno = error
    return -1


cdef const char *become(const Head *head, const char *groups) noexcept nogil:
    """Change keyring, groups, gid, uid and capabilities to those of a login, and check the ids.

    Return NULL, or the step that failed, with errno.
    """
    cdef uint32_t count = head.n_groups if groups != NULL else 0
    if leave_keyring() < 0:
        return b"session keyring"
    fg_reset_securebits()
    if syscall(SYS_setgroups, <size_t> count, groups) < 0:
        return b"setgroups"
    if syscall(SYS_setresgid, head.gid, head.gid, head.gid) < 0:
        return b"setresgid"
    if syscall(SYS_setresuid, head.uid, head.uid, head.uid) < 0:
        return b"setresuid"
    if head.uid != 0 and fg_drop_capabilities() < 0:
        return b"capset"
    if not cannot_return(head.uid, head.gid, <int> count):
        return b"drop root"
    return NULL


cdef pid_t fork_as_user(const Slot *slot) noexcept nogil:
    """Fork a child that has become the job's user, with the primary group only. Return 0 in the child."""
    cdef pid_t pid = fork()
    if pid == 0 and slot.head.flags & BECOME_USER and become(&slot.head, NULL) != NULL:
        _exit(1)
    return pid


cdef int is_empty_for_user(const Slot *slot, const char *path) noexcept nogil:
    """Return whether a directory is empty, with the user's rights on files; 0 if that could block."""
    cdef int fd = -1, result = 0
    if slot.head.flags & BECOME_USER:
        setfsgid(slot.head.gid)
        setfsuid(slot.head.uid)
    if not slot.head.flags & BECOME_USER or setfsuid(<uid_t> -1) == <int> slot.head.uid:  # queries without a change
        fd = open_here(path, 2, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd >= 0:
        result = lists_nothing(fd)
        close(fd)
    if slot.head.flags & BECOME_USER:
        setfsuid(0)
        setfsgid(0)
    return result


cdef void empty_as_user(const Slot *slot, const char *path) noexcept nogil:
    """Empty a directory as the user; give up after twice last_wait."""
    cdef sigset_t child
    cdef siginfo_t info
    cdef timespec most
    cdef int64_t until = now() + 2 * slot.head.last_wait, left  # the user may stop and continue the child
    name_step(b"fg:empty")
    cdef pid_t pid = fork_as_user(slot)
    if pid == 0:
        empty_path(path)
        _exit(0)
    sigemptyset(&child)
    sigaddset(&child, SIGCHLD)
    while pid > 0 and waitpid(pid, NULL, WNOHANG) == 0:
        left = until - now()
        if left <= 0:
            kill(pid, SIGKILL)
            break
        most.tv_sec = left // 1000
        most.tv_nsec = left % 1000 * 1000000
        sigtimedwait(&child, &info, &most)


cdef int has_steps(int directory) noexcept nogil:
    """Return whether an open directory of a job has a table of steps."""
    cdef int table = fg_open_below(directory, b"steps/table", O_PATH | O_NOFOLLOW | O_CLOEXEC) if directory >= 0 else -1
    if table >= 0:
        close(table)
    return table >= 0


cdef void remove_job_directory(const Slot *slot) noexcept nogil:
    """Remove the job's directory. Its content is the user's and may include mounts.

    A directory with a table of steps stays: the controller reads the table and removes the directory.
    """
    if leave_directory(slot):
        return
    cdef int fd = open_here(place_of(slot, b""), 1, O_PATH | O_DIRECTORY | O_CLOEXEC)
    if fd >= 0:
        unlinkat(fd, b"script", 0)
        if slot.head.region_size:
            unlinkat(fd, b"region", 0)
        if slot.hooked:
            unlinkat(fd, b"libfgshim.so", 0)
            if slot.head.flags & OWN_MOUNTS:
                unlinkat(fd, b"preload", 0)
                unlinkat(fd, b"steps", AT_REMOVEDIR)
    elif slot.head.flags & BECOME_USER:
        umount2(work_path, MNT_DETACH | UMOUNT_NOFOLLOW)
    if rmdir(work_path) < 0 and errno == ENOTEMPTY:
        if has_steps(fd):
            close(fd)
            return
        empty_as_user(slot, work_path)
        rmdir(work_path)
    if fd >= 0:
        close(fd)
    if slot.text[slot.space]:
        unlink(path_of(slot, b"/job/", b""))
