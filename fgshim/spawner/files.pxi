# The job's directory: created, given to the user at the end, removed completely. The private TMPDIR: emptied.
#
# Exports: empty_path, is_dot, is_empty, job_region, lists_nothing, make_job_directory, open_here, region_seal.
# Needs: spare (keeps_hook, keeps_region, keeps_script, take_directory); state (Slot, fail, launch, path_of, place_of, read_small);
#   text (put, put_number, work_path).

cdef uint64_t region_seal  # of the region created last
cdef int job_region  # the region's descriptor, kept open: the user can replace the file at its path


cdef int write_file(const char *path, mode_t mode, const char *data, size_t length) noexcept nogil:
    """Create a file with these bytes. Return its descriptor, or -1."""
    cdef int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)
    cdef ssize_t done
    while fd >= 0 and length:
        done = write(fd, data, length)
        if done < 0:
            if errno == EINTR:
                continue
            close(fd)
            return -1
        data += done
        length -= <size_t> done
    return fd


cdef int hand_over(Slot *slot, int fd, const char *path) noexcept nogil:
    """Give a new file to the job's user."""
    if fd < 0:
        fail(slot, errno, b"write ", path)
        return -1
    if launch.head.flags & BECOME_USER and fchown(fd, launch.head.uid, launch.head.gid) < 0:
        fail(slot, errno, b"chown ", path)
        return -1
    return 0


cdef int make_script(Slot *slot) noexcept nogil:
    cdef const char *path = path_of(slot, b"/job/", b"/script")
    cdef int fd = write_file(path, 0o500, launch.script, launch.head.script_length)
    if hand_over(slot, fd, path) < 0:
        return -1
    close(fd)  # before exec, which fails with ETXTBSY while the file is open for writing
    return 0


cdef int make_region(Slot *slot) noexcept nogil:
    global job_region, region_seal
    cdef const char *path = path_of(slot, b"/job/", b"/region")
    job_region = -1
    if launch.head.region_size == 0:
        return 0
    job_region = write_file(path, 0o600, launch.region, launch.head.region_length)
    if hand_over(slot, job_region, path) < 0:
        return -1
    region_seal = fg_region_seal_in(launch.region, launch.head.region_length)
    if ftruncate(job_region, <long> launch.head.region_size) < 0:
        fail(slot, errno, b"write ", path)
        return -1
    return 0


cdef int make_preload(Slot *slot) noexcept nogil:
    """Write the job's /etc/ld.so.preload: the hook beside the region, then the host's own entries."""
    cdef char text[PRELOAD_ROOM + 8192]
    cdef char *end = put(put(text, path_of(slot, b"/job/", b"/libfgshim.so")), b"\n")
    cdef long more = read_small(b"/etc/ld.so.preload", end, PRELOAD_ROOM)
    cdef const char *path = path_of(slot, b"/job/", b"/preload")
    if more == PRELOAD_ROOM - 1:
        fail(slot, EFBIG, b"read ", b"/etc/ld.so.preload")
        return -1
    cdef int fd = write_file(path, 0o644, text, strlen(text))
    if fd < 0 or fchmod(fd, 0o644) < 0:  # a process that cannot read it preloads nothing
        fail(slot, errno, b"write ", path)
        return -1
    close(fd)
    return 0


cdef int open_job_directory(Slot *slot) noexcept nogil:
    """Let every user pass the job's directory, in which the job's user can write to `steps` only."""
    if chmod(path_of(slot, b"/job/", b""), 0o711) < 0:
        fail(slot, errno, b"chmod ", work_path)
        return -1
    if launch.head.flags & BECOME_USER:
        if mkdir(path_of(slot, b"/job/", b"/steps"), 0o700) < 0 or lchown(work_path, launch.head.uid, launch.head.gid) < 0:
            fail(slot, errno, b"mkdir ", work_path)
            return -1
    return 0


cdef int make_link(Slot *slot) noexcept nogil:
    """Link the job's name in `job` to its directory in the user's space."""
    cdef char place[4096 + 128]
    if not slot.text[slot.space]:
        return 0
    put(place, work_path)
    if symlink(place, path_of(slot, b"/job/", b"")) < 0:
        fail(slot, errno, b"symlink ", work_path)
        return -1
    return 0


cdef int make_hook_link(Slot *slot) noexcept nogil:
    if launch.hook[0] and symlink(launch.hook, path_of(slot, b"/job/", b"/libfgshim.so")) < 0:
        fail(slot, errno, b"symlink ", work_path)
        return -1
    return 0


cdef int fill_again(Slot *slot) noexcept nogil:
    """Make what the last job in this directory did not leave."""
    global job_region, region_seal
    if not keeps_script(slot) and make_script(slot) < 0:
        return -1
    job_region = keeps_region(slot)
    region_seal = fg_region_seal_in(launch.region, launch.head.region_length) if job_region >= 0 else 0
    if job_region < 0 and make_region(slot) < 0:
        return -1
    return 0 if keeps_hook(slot) else make_hook_link(slot)


cdef int make_job_directory(Slot *slot) noexcept nogil:
    """Create the job's directory. It is complete before it is given to the user."""
    if take_directory(slot):
        return fill_again(slot)
    if mkdir(place_of(slot, b""), 0o700) < 0:
        fail(slot, errno, b"mkdir ", work_path)
        return -1
    if make_link(slot) < 0:
        return -1
    if make_script(slot) < 0 or make_region(slot) < 0 or make_hook_link(slot) < 0:
        return -1
    if launch.hook[0] and launch.head.flags & OWN_MOUNTS:
        # Setuid programs find the hook, and the job's user cannot replace it.
        return -1 if make_preload(slot) < 0 else open_job_directory(slot)
    if not launch.head.flags & BECOME_USER:
        return 0
    if lchown(place_of(slot, b""), launch.head.uid, launch.head.gid) < 0:
        fail(slot, errno, b"chown ", work_path)
        return -1
    return 0


cdef enum:
    LISTED = 32768  # bytes of a directory read at once
    MOST_PASSES = 100000

cdef char top_entries[32768]
cdef char inner_entries[32768]
cdef unsigned long moved_up  # number of directories moved during a removal


cdef int open_inner(int fd, const char *name) noexcept nogil:
    """Open a directory within a directory, never through a link. Its mode is changed if it denies access."""
    cdef int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    cdef int inner = openat(fd, name, flags)
    if inner < 0 and errno == EACCES and fchmodat(fd, name, 0o700, 0) == 0:
        inner = openat(fd, name, flags)
    if inner >= 0:
        fchmod(inner, 0o700)
    return inner


cdef int is_dot(const char *name) noexcept nogil:
    return name[0] == c'.' and (name[1] == 0 or (name[1] == c'.' and name[2] == 0))


cdef int move_up(int top, int inner, const char *name) noexcept nogil:
    """Move a directory from the second level to the first. Return -1 if that fails."""
    cdef char new_name[64]
    cdef int tries, fd
    for tries in range(1000):
        moved_name(new_name)
        if renameat(inner, name, top, new_name) == 0:
            return 0
        if tries == 0 and errno == EACCES:  # a directory must be writable to be moved
            fd = open_inner(inner, name)
            if fd >= 0:
                close(fd)
        elif errno != EEXIST and errno != ENOTEMPTY and errno != ENOTDIR:
            return -1
    return -1


cdef void moved_name(char *to) noexcept nogil:
    global moved_up
    moved_up += 1
    put_number(put(to, b".fgsched-"), <int64_t> moved_up)


cdef int flatten(int top, int inner) noexcept nogil:
    """Remove the files of a first-level directory and move its directories up. Return the number of entries that went."""
    cdef dirent64 *entry
    cdef long got, at
    cdef int gone = 0
    got = syscall(SYS_getdents64, inner, inner_entries, LISTED)
    while got > 0:
        at = 0
        while at < got:
            entry = <dirent64 *> (inner_entries + at)
            at += entry.d_reclen
            if is_dot(entry.d_name):
                continue
            if unlinkat(inner, entry.d_name, 0) == 0 or unlinkat(inner, entry.d_name, AT_REMOVEDIR) == 0:
                gone += 1
            elif errno == ENOTEMPTY or errno == EEXIST or errno == EACCES:
                gone += move_up(top, inner, entry.d_name) == 0
        got = syscall(SYS_getdents64, inner, inner_entries, LISTED)
    return gone


cdef int remove_entry(int top, const char *name) noexcept nogil:
    """Remove an entry of the first level, or a part of it. Return the number of entries that went."""
    cdef int inner, gone
    if unlinkat(top, name, 0) == 0 or unlinkat(top, name, AT_REMOVEDIR) == 0:
        return 1
    inner = open_inner(top, name)
    if inner < 0:
        return 0
    gone = flatten(top, inner)
    close(inner)
    return gone + (unlinkat(top, name, AT_REMOVEDIR) == 0)


cdef void empty_directory(int top) noexcept nogil:
    """Remove everything below an open directory, of any depth and size. What cannot be removed stays.

    Directories of the second level are moved to the first, so a tree of any depth needs two descriptors,
    and each entry is examined twice. Links are not followed.
    """
    cdef dirent64 *entry
    cdef long got, at
    cdef int gone = 1, passes = 0
    while gone and passes < MOST_PASSES:
        gone = 0
        passes += 1
        lseek(top, 0, SEEK_SET)
        got = syscall(SYS_getdents64, top, top_entries, LISTED)
        while got > 0:
            at = 0
            while at < got:
                entry = <dirent64 *> (top_entries + at)
                at += entry.d_reclen
                if not is_dot(entry.d_name):
                    gone += remove_entry(top, entry.d_name)
            got = syscall(SYS_getdents64, top, top_entries, LISTED)


cdef int lists_nothing(int fd) noexcept nogil:
    """Return whether an open directory is empty."""
    cdef char entries[512]
    cdef dirent64 *entry
    cdef long got = syscall(SYS_getdents64, fd, entries, sizeof(entries)), at = 0, names = 0
    while at < got:
        entry = <dirent64 *> (entries + at)
        at += entry.d_reclen
        names += 1
    return got > 0 and names <= 2


cdef int is_empty(const char *path) noexcept nogil:
    """Return whether a directory is empty. One that cannot be read counts as not empty."""
    cdef int result
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd < 0:
        return 0
    result = lists_nothing(fd)
    close(fd)
    return result


cdef const char *last_parts(const char *path, int count) noexcept nogil:
    """Return where the last `count` parts of an absolute path begin."""
    cdef const char *at = path + strlen(path)
    while at > path + 1 and count:
        at -= 1
        count -= (at - 1)[0] == c'/'
    return at


cdef int open_here(const char *path, int parts, int flags) noexcept nogil:
    """Open a path whose last `parts` parts lie on one file system. Return -1 if they do not.

    The user may mount a FUSE file system over a directory of the user, where an open waits for the user's
    program. The path before its last parts belongs to the site.
    """
    cdef char above[4096 + 128]
    cdef const char *rest = last_parts(path, parts)
    cdef int where, fd
    memcpy(above, path, <size_t> (rest - path))
    above[rest - path] = 0
    where = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC)
    if where < 0:
        return -1
    fd = fg_open_below(where, rest, <unsigned long> flags)
    close(where)
    return fd


cdef void empty_path(const char *path) noexcept nogil:
    """Empty a directory with the rights of this process. It may block for any time."""
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd >= 0:
        empty_directory(fd)
        close(fd)
