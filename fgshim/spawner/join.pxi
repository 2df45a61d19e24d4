# A further process of a running job: the agent of `srun --jobid`, which connects to its caller.
#
# It gets what the script got: session, cgroups, CPUs, namespaces, user, limits and variables. It executes the
# interpreter that the variable FG_PYTHON names. If a step fails, the process ends, and the caller hears nothing.
#
# Exports: join_job, joining.
# Needs: cgroup (join_cgroups); child (apply_rlimits, bind_to_cpus, take_identity); priority (sharing,
#   spare_no_more); state (Slot, job_variable, launch, nothing_blocked, variables); text (put, put_number).

cdef char join_stack[16384]
cdef char join_name[64]
cdef char *join_words[8]
cdef pid_t joining  # the last agent; 0: the script may not be executed yet
cdef int join_main  # pidfd of the script; -1: the job has no namespaces of its own
cdef int join_users, join_mounts  # descriptors of the script's namespaces; -1: those of the shepherd
cdef Slot joined  # a copy, because a failed step writes its reason to the slot


cdef int open_namespace(pid_t pid, const char *kind) noexcept nogil:
    """Open a namespace of a process. Return -1 if the process has ended."""
    cdef char path[64]
    put(put(put_number(put(path, b"/proc/"), pid), b"/ns/"), kind)
    return open(path, O_RDONLY | O_CLOEXEC)


cdef int open_namespaces() noexcept nogil:
    """Open the namespaces of the script, if the job has its own. Runs in the agent, as the script can make it wait.

    The pid of the script is not reused while its pidfd takes signals. Refuse mounts that belong to a user namespace of
    the script: the process that joins is in the host's user namespace, where su would be root and read the user's own /etc.
    """
    global join_users, join_mounts
    join_users = join_mounts = -1
    if join_main < 0:
        return 0
    if launch.head.flags & OWN_USERS:
        join_users = open_namespace(joined.main, b"user")
        if join_users < 0:
            return -1
    join_mounts = open_namespace(joined.main, b"mnt")
    if join_mounts < 0 or (join_users < 0 and not fg_owns_namespace(join_mounts)):
        return -1
    return <int> syscall(SYS_pidfd_send_signal, join_main, 0, NULL, 0)


cdef int enter_namespaces() noexcept nogil:
    if join_users >= 0 and setns(join_users, 0) < 0:
        return -1
    return setns(join_mounts, 0) if join_mounts >= 0 else 0


cdef int join_steps() noexcept nogil:
    setsid()
    if join_cgroups(&joined) < 0:
        return -1
    bind_to_cpus()
    if open_namespaces() < 0 or enter_namespaces() < 0 or take_identity(&joined) < 0:
        return -1
    if chdir(joined.text + joined.cwd) < 0 and chdir(b"/") < 0:
        return -1
    if apply_rlimits(&joined) < 0:
        return -1
    dup2(0, 1)
    dup2(0, 2)
    sigprocmask(SIG_SETMASK, &nothing_blocked, NULL)
    syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
    return execve(join_words[0], join_words, variables)


cdef int join_child(void *unused) noexcept nogil:
    """Entry point of the clone."""
    join_steps()
    _exit(127)
    return 127


cdef void join_job(const Slot *slot, int number) noexcept nogil:
    """Start the agent with the number of its caller. The caller repeats a request that had no effect."""
    global join_main
    if slot.lost or slot.phase >= ENDED or slot.cause != BY_EXIT or slot.suspended_at or slot.main == 0:
        return
    if fg_load(&sharing):  # the script, or an earlier agent, is not executed yet
        return
    join_words[0] = job_variable(b"FG_PYTHON=")
    if join_words[0][0] != c'/':
        return
    snprintf(join_name, sizeof(join_name), b"fgjoin-%lu.%u-%d", <unsigned long> slot.head.job, slot.head.attempt, number)
    join_words[1] = b"-I"
    join_words[2] = b"-m"
    join_words[3] = b"fgsched.interactive.agent"
    join_words[4] = b"--join"
    join_words[5] = join_name
    join_words[6] = NULL
    memcpy(&joined, slot, sizeof(Slot))
    join_main = -1
    if launch.head.flags & OWN_MOUNTS:
        join_main = <int> syscall(SYS_pidfd_open, slot.main, 0)
        if join_main < 0:
            return
    spare_no_more()
    fg_store(&sharing, 1)
    if clone(join_child, join_stack + sizeof(join_stack), SHARES_MEMORY | SIGCHLD, NULL, &joining, NULL, &sharing) < 0:
        fg_store(&sharing, 0)
    if join_main >= 0:
        close(join_main)
