# The processes of a job: all descendants of its shepherd, which is a subreaper.
#
# A pid read from /proc may be reused a moment later. A child of this process cannot be reused before it is
# reaped. A deeper descendant is signalled through a pidfd whose process, after the pidfd was opened, still
# had the parent under which it was found.
#
# Exports: deliver, find_job, found, is_dead, kill_job, listing, living, n_found, probe_children_files,
#   stat_field, status_field, status_line.
# Needs: cgroup (kill_cgroups); orphan (keep_only); state (Slot, crash_at, read_small); text (put,
#   put_number).

cdef enum:
    MOST_FOUND = 65536

cdef struct Found:
    pid_t pid, parent

cdef Found found[65536]
cdef int n_found
cdef int without_children_files
cdef char listing[65536]


cdef uint64_t stat_field(pid_t pid, int number) noexcept nogil:
    """Return a field of /proc/<pid>/stat of a process that executes nothing: 22 start in ticks, 52 exit status."""
    cdef char path[64]
    cdef char text[1024]
    cdef const char *at
    put(put_number(put(path, b"/proc/"), pid), b"/stat")
    if read_small(path, text, sizeof(text)) <= 0:
        return 0
    at = strrchr(text, c')')  # the name before it may contain any character
    number -= 2
    while at != NULL and number:
        number -= 1
        at = strchr(at + 1, c' ')
    return 0 if at == NULL else strtoul(at + 1, NULL, 10)


cdef const char *status_line(const char *path, const char *name, char *text, long room) noexcept nogil:
    """Return where the value of a line of a "status" file begins; NULL if the process is gone.

    Of the processes of users only this file is read, and "children": most others, "stat" too, wait for a process that
    executes a program while another one with its memory waits for a user's file system.
    """
    cdef const char *at
    if read_small(path, text, room) <= 0:
        return NULL
    at = strstr(text, name)  # the name of a process has no line feed there
    return NULL if at == NULL else at + strlen(name)


cdef uint64_t status_field(pid_t pid, const char *name) noexcept nogil:
    """Return the first number of a line of /proc/<pid>/status; 0 if the process is gone."""
    cdef char path[64]
    cdef char text[1024]
    put(put_number(put(path, b"/proc/"), pid), b"/status")
    cdef const char *at = status_line(path, name, text, sizeof(text))
    return 0 if at == NULL else strtoul(at, NULL, 10)


cdef uint64_t parent_of(pid_t pid) noexcept nogil:
    return status_field(pid, b"\nPPid:")


cdef void note_children(pid_t parent, const char *path) noexcept nogil:
    """Append the pids that a "children" file of the kernel lists."""
    cdef char *at = listing
    cdef char *end
    cdef long pid
    if read_small(path, listing, sizeof(listing)) <= 0:
        return
    while n_found < MOST_FOUND:
        pid = strtol(at, &end, 10)
        if end == at:
            return
        add_found(<pid_t> pid, parent)
        at = end


cdef void add_found(pid_t pid, pid_t parent) noexcept nogil:
    global n_found
    found[n_found].pid = pid
    found[n_found].parent = parent
    n_found += 1


cdef void note_by_scan(pid_t parent) noexcept nogil:
    """Append the children of a process by a scan of /proc, where the kernel has no "children" files."""
    cdef char entries[4096]
    cdef dirent64 *entry
    cdef long got, at
    cdef pid_t pid
    cdef int fd = open(b"/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return
    got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    while got > 0:
        at = 0
        while at < got:
            entry = <dirent64 *> (entries + at)
            at += entry.d_reclen
            pid = <pid_t> strtol(entry.d_name, NULL, 10)
            if pid > 0 and n_found < MOST_FOUND and parent_of(pid) == <uint64_t> parent:
                add_found(pid, parent)
        got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    close(fd)


cdef void note_all_children(pid_t parent) noexcept nogil:
    """Append the children of all threads of a process."""
    cdef char path[128]
    cdef char entries[4096]
    cdef dirent64 *entry
    cdef long got, at
    snprintf(path, sizeof(path), b"/proc/%d/task", parent)
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return
    got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    while got > 0:
        at = 0
        while at < got:
            entry = <dirent64 *> (entries + at)
            at += entry.d_reclen
            if entry.d_name[0] != c'.':
                snprintf(path, sizeof(path), b"/proc/%d/task/%s/children", parent, entry.d_name)
                note_children(parent, path)
        got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    close(fd)


cdef void probe_children_files() noexcept nogil:
    """Find out whether the kernel has "children" files. Tests may pretend that it does not."""
    global without_children_files
    without_children_files = access(b"/proc/thread-self/children", R_OK) < 0
    if strcmp(crash_at, b"children_files") == 0:
        without_children_files = 1


cdef void find_below(int first) noexcept nogil:
    """Append the descendants of found[first] and of all later ones."""
    while first < n_found:
        if without_children_files:
            note_by_scan(found[first].pid)
        else:
            note_all_children(found[first].pid)
        first += 1


cdef void find_job(const Slot *slot) noexcept nogil:
    """Fill `found` with all processes of the job, except this one."""
    global n_found
    cdef char path[64]
    cdef pid_t me = getpid()
    n_found = 0
    snprintf(path, sizeof(path), b"/proc/%d/task/%d/children", me, me)
    if without_children_files:
        note_by_scan(me)
    else:
        note_children(me, path)
    if slot.lost:
        keep_only(slot)
    find_below(0)


cdef int signal_found(const Found *one, int number) noexcept nogil:
    cdef pid_t me = getpid()
    cdef uint64_t parent
    cdef int fd, result = -1
    if one.parent == me:
        return kill(one.pid, number)
    fd = <int> syscall(SYS_pidfd_open, one.pid, 0)
    if fd < 0:
        return -1
    parent = parent_of(one.pid)
    if parent == <uint64_t> one.parent or parent == <uint64_t> me:
        result = <int> syscall(SYS_pidfd_send_signal, fd, number, NULL, 0)
    close(fd)
    return result


cdef void kill_found(const Found *one) noexcept nogil:
    """Kill a process, with its process group if that is safe: no fork escapes that."""
    cdef pid_t group
    if one.parent == getpid():
        group = getpgid(one.pid)  # cannot be reused before this child is reaped
        if group > 1 and group != getpgrp():
            kill(-group, SIGKILL)
    signal_found(one, SIGKILL)


cdef void deliver(const Slot *slot, int number, int target) noexcept nogil:
    """Send a signal to each process that is meant."""
    cdef pid_t main = slot.main if slot.phase < ENDED else 0
    cdef int i
    if target == TO_SHELL:
        if main:
            kill(main, number)  # a child that is not reaped yet
        return
    find_job(slot)
    for i in range(n_found):
        if target == TO_ALL or found[i].pid != main:
            signal_found(&found[i], number)


cdef void kill_job(const Slot *slot) noexcept nogil:
    cdef int i
    kill_cgroups(slot)
    find_job(slot)
    for i in range(n_found):
        kill_found(&found[i])


cdef int has_ended(const char *path) noexcept nogil:
    """Return whether a thread's "status" file shows a zombie, or is gone."""
    cdef char text[1024]
    cdef const char *at = status_line(path, b"\nState:\t", text, sizeof(text))
    return at == NULL or at[0] == c'Z' or at[0] == c'X'


cdef int is_dead(pid_t pid) noexcept nogil:
    """Return whether every thread of a process has ended, even if it is not reaped yet.

    The state of the leader is not enough: it may end before other threads.
    """
    cdef char path[128]
    cdef char entries[4096]
    cdef dirent64 *entry
    cdef long got, at
    cdef int all_ended = 1
    put(put_number(put(path, b"/proc/"), pid), b"/task")
    cdef int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return 1
    got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    while got > 0 and all_ended:
        at = 0
        while at < got and all_ended:
            entry = <dirent64 *> (entries + at)
            at += entry.d_reclen
            if entry.d_name[0] != c'.':
                put(put(put(put_number(put(path, b"/proc/"), pid), b"/task/"), entry.d_name), b"/status")
                all_ended = has_ended(path)
        got = syscall(SYS_getdents64, fd, entries, sizeof(entries))
    close(fd)
    return all_ended


cdef pid_t living(const Slot *slot) noexcept nogil:
    """Return a process of the job that has not ended; 0 if only zombies are left, traced from outside."""
    cdef int i
    find_job(slot)
    for i in range(n_found):
        if not is_dead(found[i].pid):
            return found[i].pid
    return 0
