# The job's directory: made fresh, handed to the user last, removed whole. Its private TMPDIR: left empty.

cdef uint64_t region_seal  # of the region that was made last
cdef int job_region  # the region's descriptor, kept: a path in the user's directory proves nothing


cdef int write_file(const char *path, mode_t mode, const char *data, size_t length) noexcept nogil:
    """A new file with these bytes; its descriptor, or -1."""
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
    close(fd)  # before anything is executed: a file open for writing is "text busy"
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
    """What will be the job's /etc/ld.so.preload: the hook beside the region, then what the host loads."""
    cdef char text[PRELOAD_ROOM + 8192]
    cdef char *end = put(put(text, path_of(slot, b"/job/", b"/libfgshim.so")), b"\n")
    cdef long more = read_small(b"/etc/ld.so.preload", end, PRELOAD_ROOM)
    cdef const char *path = path_of(slot, b"/job/", b"/preload")
    if more == PRELOAD_ROOM - 1:
        fail(slot, EFBIG, b"read ", b"/etc/ld.so.preload")
        return -1
    cdef int fd = write_file(path, 0o644, text, strlen(text))
    if fd < 0 or fchmod(fd, 0o644) < 0:  # whoever cannot read it, preloads nothing
        fail(slot, errno, b"write ", path)
        return -1
    close(fd)
    return 0


cdef int open_job_directory(Slot *slot) noexcept nogil:
    if chmod(path_of(slot, b"/job/", b""), 0o711) < 0:
        fail(slot, errno, b"chmod ", work_path)
        return -1
    return 0


cdef int make_job_directory(Slot *slot) noexcept nogil:
    """Everything in it is made while only we can reach it; then the directory changes hands."""
    if mkdir(path_of(slot, b"/job/", b""), 0o700) < 0:
        fail(slot, errno, b"mkdir ", work_path)
        return -1
    if make_script(slot) < 0 or make_region(slot) < 0:
        return -1
    if launch.hook[0] and symlink(launch.hook, path_of(slot, b"/job/", b"/libfgshim.so")) < 0:
        fail(slot, errno, b"symlink ", work_path)
        return -1
    if launch.hook[0] and launch.head.flags & OWN_MOUNTS:
        # Programs that become another user find the hook, and the job's user cannot put another in its place.
        return -1 if make_preload(slot) < 0 else open_job_directory(slot)
    if not launch.head.flags & BECOME_USER:
        return 0
    if lchown(path_of(slot, b"/job/", b""), launch.head.uid, launch.head.gid) < 0:
        fail(slot, errno, b"chown ", work_path)
        return -1
    return 0


cdef int open_inner(int fd, const char *name) noexcept nogil:
    """A directory in a directory, made readable where its owner had closed it; never through a link."""
    cdef int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
    cdef int inner = openat(fd, name, flags)
    if inner < 0 and errno == EACCES and fchmodat(fd, name, 0o700, 0) == 0:
        inner = openat(fd, name, flags)
    return inner


cdef int empty_directory(int fd, int depth) noexcept nogil:
    """Remove all below an open directory, closing it; -1 where something stays. Follows no link."""
    cdef char entries[2048]
    cdef dirent64 *entry
    cdef long got, at
    cdef int inner, result = 0
    got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    while got > 0:
        at = 0
        while at < got:
            entry = <dirent64 *> (entries + at)
            at += entry.d_reclen
            if strcmp(entry.d_name, b".") == 0 or strcmp(entry.d_name, b"..") == 0:
                continue
            if unlinkat(fd, entry.d_name, 0) == 0:
                continue
            inner = open_inner(fd, entry.d_name) if depth else -1
            if inner < 0 or empty_directory(inner, depth - 1) < 0:
                result = -1
            if unlinkat(fd, entry.d_name, AT_REMOVEDIR) < 0:
                result = -1
        got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    close(fd)
    return result


cdef int is_empty(const char *path) noexcept nogil:
    """Whether a directory has nothing but itself and its parent in it. One that cannot be read is not."""
    cdef char entries[512]
    cdef dirent64 *entry
    cdef long got, at = 0, names = 0
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    if fd < 0:
        return 0
    got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    while at < got:
        entry = <dirent64 *> (entries + at)
        at += entry.d_reclen
        names += 1
    close(fd)
    return got > 0 and names <= 2


cdef void empty_path(const char *path) noexcept nogil:
    """Twice: a directory that changes while it is read may hide an entry the first time."""
    cdef int fd, i
    for i in range(2):
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
        if fd >= 0:
            empty_directory(fd, 200)
