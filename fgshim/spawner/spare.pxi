# What a job leaves to the next one in its slot: a new file costs a disk much more than a new name.
# ext4 looks for an inode past all that were freed in the last minutes, so hundreds of short jobs hinder one another.
#
#     job/.<spawner>.<slot>           the job's directory: its script, its link to the hook and its region, as far as they fit
#     spare/<spawner>.<slot>.claim    the text of the shepherd's claims; a claim is another name of it
#     spare/<spawner>.<slot>.result   a file for results; a result is another name of it until the controller has removed it
#
# The directory lies beside those of the jobs, since for a rename from one directory to another the kernel takes a lock of
# the whole file system. Everything here may be missing: then it is made as for the first job.
#
# Exports: claim_by_link, keeps_hook, keeps_region, keeps_script, leave_directory, own_slot, remove_spares, store_file,
#   take_directory.
# Needs: files (is_dot, open_here); state (Slot, launch, path_of, slot_at, spawner_pid); text (put,
#   put_number, work_path).

cdef enum:
    RESULT_ROOM = 1024  # bytes of a result's file; zeros behind its text
    MOST_SCRIPT = 65536  # bytes of a script that is kept
    BLOCK = 4096

cdef int own_slot  # number of the slot of this shepherd, from 1; 0: this process is none
cdef int has_claim  # the text of its claims is in `spare`
cdef char spare_text[4096 + 128]


cdef const char *spare_path(const Slot *slot, const char *kind, int number, const char *tail) noexcept nogil:
    cdef char *at = put(put(spare_text, slot.text + slot.run), kind)
    put(put_number(put(put_number(at, spawner_pid), b"."), number), tail)
    return spare_text


cdef const char *spare_of(const Slot *slot, int number, const char *tail) noexcept nogil:
    return spare_path(slot, b"/spare/", number, tail)


cdef const char *spare_directory(const Slot *slot, int number, const char *tail) noexcept nogil:
    return spare_path(slot, b"/job/.", number, tail)


cdef int is_ours(const stat_t *about) noexcept nogil:
    """Return whether this is a file with one name that belongs to this user."""
    return fg_is_regular(about.st_mode) and about.st_nlink == 1 and about.st_uid == geteuid()


# -- claims ----------------------------------------------------------------------------------------


cdef int claim_by_link(const Slot *slot, const char *text) noexcept nogil:
    """Claim a job by a further name of the shepherd's claim. Return 0, EEXIST, or another errno."""
    global has_claim
    cdef const char *kept = spare_of(slot, own_slot, b".claim")
    if not has_claim:
        # A removal of a missing name waits for the directory, too.
        if symlink(text, kept) < 0 and (errno != EEXIST or unlink(kept) < 0 or symlink(text, kept) < 0):
            return errno
        has_claim = 1
    return errno if linkat(AT_FDCWD, kept, AT_FDCWD, path_of(slot, b"/claim/", b""), 0) < 0 else 0


# -- the job's directory -----------------------------------------------------------------------------


cdef int is_left(const Slot *slot) noexcept nogil:
    """Return whether the next job can have this job's directory: it is for the same user, and mounts nothing over it."""
    return own_slot and not slot.head.flags & (BECOME_USER | OWN_MOUNTS) and not slot.text[slot.space]


cdef int take_directory(const Slot *slot) noexcept nogil:
    """Take the directory of the last job. Return 0 if there is none."""
    cdef stat_t about
    if not is_left(slot):
        return 0
    if syscall(SYS_renameat2, AT_FDCWD, spare_directory(slot, own_slot, b""), AT_FDCWD, path_of(slot, b"/job/", b""), RENAME_NOREPLACE) < 0:
        return 0
    if lstat(work_path, &about) == 0 and fg_is_directory(about.st_mode) and chmod(work_path, 0o700) == 0:
        return 1
    unlink(work_path)
    return 0


cdef int holds(int fd, const char *text, size_t length) noexcept nogil:
    """Return whether the file begins with these bytes."""
    cdef char part[4096]
    cdef size_t at = 0
    cdef ssize_t got
    while at < length:
        got = pread(fd, part, sizeof(part) if length - at > sizeof(part) else length - at, <long> at)
        if got <= 0 or memcmp(part, text + at, <size_t> got) != 0:
            return 0
        at += <size_t> got
    return 1


cdef int keeps_script(const Slot *slot) noexcept nogil:
    """Return whether the directory has the job's script. Another one is removed."""
    cdef stat_t about
    cdef size_t length = launch.head.script_length
    cdef const char *path = path_of(slot, b"/job/", b"/script")
    cdef int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    cdef int same = (fd >= 0 and fstat(fd, &about) == 0 and is_ours(&about) and about.st_mode & 0o7777 == 0o500
                     and about.st_size == <long> length and holds(fd, launch.script, length))
    if fd >= 0:
        close(fd)
    if not same:
        unlink(path)
    return same


cdef int keeps_hook(const Slot *slot) noexcept nogil:
    """Return whether the directory has the link to the hook. Another one is removed."""
    cdef char text[4096]
    cdef const char *path = path_of(slot, b"/job/", b"/libfgshim.so")
    cdef ssize_t length = readlink(path, text, sizeof(text))
    if length > 0 and length == <ssize_t> strlen(launch.hook) and memcmp(text, launch.hook, <size_t> length) == 0:
        return 1
    unlink(path)
    return 0


cdef int is_unused(const stat_t *about) noexcept nogil:
    """Return whether nothing but its head was ever written to a region of the right length."""
    cdef long head = (<long> launch.head.region_length + BLOCK - 1) // BLOCK * BLOCK
    return (is_ours(about) and about.st_mode & 0o7777 == 0o600 and about.st_size == <long> launch.head.region_size
            and about.st_blocks * 512 <= head and head <= about.st_size)


cdef int keeps_region(const Slot *slot) noexcept nogil:
    """Write the job's region over that of the last job, if no process used it. Return the descriptor, or -1: it is removed."""
    cdef char nothing[4096]
    cdef stat_t about
    cdef long length = <long> launch.head.region_length
    cdef size_t rest = <size_t> (-length & (BLOCK - 1))
    cdef const char *path = path_of(slot, b"/job/", b"/region")
    cdef int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) if launch.head.region_size else -1
    memset(nothing, 0, sizeof(nothing))
    if (fd >= 0 and fstat(fd, &about) == 0 and is_unused(&about) and pwrite(fd, launch.region, <size_t> length, 0) == length
            and pwrite(fd, nothing, rest, length) == <ssize_t> rest):
        return fd
    if fd >= 0:
        close(fd)
    unlink(path)
    return -1


cdef int is_of_every_job(const dirent64 *entry) noexcept nogil:
    """Return whether an entry of a job's directory is one that is made for each job, and of the kind that is made."""
    if is_dot(entry.d_name):
        return 1
    if entry.d_type == DT_LNK:
        return strcmp(entry.d_name, b"libfgshim.so") == 0
    return entry.d_type == DT_REG and (strcmp(entry.d_name, b"script") == 0 or strcmp(entry.d_name, b"region") == 0)


cdef int is_left_by_all(int directory) noexcept nogil:
    """Return whether an open directory has nothing but the files of every job."""
    cdef char entries[1024]
    cdef dirent64 *entry
    cdef long got = syscall(SYS_getdents64, directory, entries, sizeof(entries)), at = 0
    while at < got:
        entry = <dirent64 *> (entries + at)
        at += entry.d_reclen
        if not is_of_every_job(entry):
            return 0
    return 0 < got < <long> sizeof(entries) // 2  # all of it was read


cdef int leave_directory(const Slot *slot) noexcept nogil:
    """Leave the directory of an ended job to the next one. Return 0 if it must be removed."""
    cdef int fd, is_alone = 0
    if not is_left(slot) or slot.error or slot.survivor or slot.lost or slot.head.script_length > MOST_SCRIPT:
        return 0
    fd = open_here(path_of(slot, b"/job/", b""), 1, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd >= 0:
        is_alone = is_left_by_all(fd)
        close(fd)
    return is_alone and syscall(SYS_renameat2, AT_FDCWD, path_of(slot, b"/job/", b""), AT_FDCWD, spare_directory(slot, own_slot, b""),
                                RENAME_NOREPLACE) == 0


# -- results -----------------------------------------------------------------------------------------


cdef int open_result(const char *path) noexcept nogil:
    """Open the file for the result, or a new one if the controller has not removed the last result."""
    cdef stat_t about
    cdef int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if fd >= 0 and fstat(fd, &about) == 0 and is_ours(&about):
        return fd
    if fd >= 0:
        close(fd)
    if fd >= 0 or errno != ENOENT:
        unlink(path)
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)


cdef int store_file(const Slot *slot, const char *text) noexcept nogil:
    """Store a result as a further name of a file that is complete. Return 0, EEXIST, or another errno."""
    cdef char whole[RESULT_ROOM]
    cdef const char *path = spare_of(slot, own_slot, b".result")
    cdef int fd = open_result(path) if own_slot and strlen(text) < RESULT_ROOM else -1
    cdef int is_written
    if fd < 0:
        return EINVAL
    memset(whole, 0, sizeof(whole))
    put(whole, text)
    is_written = pwrite(fd, whole, sizeof(whole), 0) == RESULT_ROOM
    close(fd)
    if not is_written:
        return EINVAL
    return errno if linkat(AT_FDCWD, path, AT_FDCWD, path_of(slot, b"/result/", b""), 0) < 0 else 0


# -- the end -----------------------------------------------------------------------------------------


cdef void remove_spares(int slots) noexcept nogil:
    """Remove what no further job of this spawner will use."""
    cdef int i
    for i in range(slots):
        unlink(spare_of(slot_at(i), i + 1, b".claim"))
        unlink(spare_of(slot_at(i), i + 1, b".result"))
        unlink(spare_directory(slot_at(i), i + 1, b"/script"))
        unlink(spare_directory(slot_at(i), i + 1, b"/region"))
        unlink(spare_directory(slot_at(i), i + 1, b"/libfgshim.so"))
        rmdir(spare_directory(slot_at(i), i + 1, b""))
