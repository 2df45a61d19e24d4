# The child of a shepherd, from clone to exec.
#
# It shares the shepherd's memory until it executes (CLONE_VM, without the wait of vfork). That costs less
# than a copy, and lets the child leave the reason of a failure in the slot. While both run, the shepherd
# sleeps in sigtimedwait.
#
# Exports: apply_rlimits, bind_to_cpus, name_step, start_child, take_identity.
# Needs: cgroup (join_cgroups); files (empty_path, is_empty); mounts (take_mounts); priority (sharing,
#   spare_no_more, stand_as_a_login); prove (prove_fence, refuse); state (Slot, arguments, fail, is_full,
#   job_variable, launch, nothing_blocked, path_of, variables, wall); text (put_number, work_path); user
#   (become, take_login_uid).

cdef extern from "task.h" nogil:
    pid_t fg_start_task_prolog(const char *program, char **variables)

cdef char child_stack[65536]


cdef void make_directories(const char *path) noexcept nogil:
    """Create the missing directories above a file as the job's user. The open that follows tells a failure."""
    cdef char above[4096]
    cdef size_t length = strlen(path)
    cdef size_t at
    if length >= sizeof(above):
        return
    memcpy(above, path, length + 1)
    for at in range(1, length):
        if above[at] == b'/':
            above[at] = 0
            mkdir(above, 0o777)
            above[at] = b'/'


cdef int open_for_job(Slot *slot, const char *path, int flags, int onto) noexcept nogil:
    """Open a stream of the job as its user. Only regular files and devices are accepted."""
    cdef stat_t about
    cdef int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0o666)
    if fd < 0 and errno == ENOENT and flags & O_CREAT and launch.head.flags & MAKE_DIRECTORIES:
        make_directories(path)
        fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0o666)
    if fd < 0:
        return refuse(slot, errno, b"open ", path,
                      b": not a regular file" if errno == ENXIO or errno == EISDIR else b"")
    if fstat(fd, &about) < 0 or not (fg_is_regular(about.st_mode) or fg_is_device(about.st_mode)):
        return refuse(slot, EINVAL, b"open ", path, b": not a regular file")
    fcntl(fd, F_SETFL, flags & O_APPEND)
    if dup2(fd, onto) < 0:
        return refuse(slot, errno, b"open ", path, b"")
    close(fd)
    return 0


cdef void name_step(const char *step) noexcept nogil:
    """Show in `comm` what this process does: it may wait for a file system that does not answer (launch/hostwait.py)."""
    prctl(PR_SET_NAME, step, 0, 0, 0)


cdef int open_streams(Slot *slot) noexcept nogil:
    cdef int writing = O_WRONLY | O_CREAT | O_APPEND | (0 if launch.head.flags & APPEND else O_TRUNC)
    name_step(b"fg:stdin")
    if strcmp(launch.stdin, b"/dev/null") != 0 and open_for_job(slot, launch.stdin, O_RDONLY, 0) < 0:
        return -1  # the shepherd's descriptor 0 is /dev/null already
    name_step(b"fg:stderr")
    if launch.stderr[0] and open_for_job(slot, launch.stderr, writing, 2) < 0:
        return -1  # before stdout, so that errors have a destination
    name_step(b"fg:stdout")
    if open_for_job(slot, launch.stdout, writing, 1) < 0:
        return -1
    name_step(b"fg:execute")
    if not launch.stderr[0]:
        dup2(1, 2)
    return 0


cdef int apply_rlimits(Slot *slot) noexcept nogil:
    """Set the resource limits, each capped by the hard limit in force, so that none needs a privilege."""
    cdef rlimit force, wish
    cdef int32_t what
    cdef uint32_t i
    for i in range(launch.head.n_rlimits):
        memcpy(&what, launch.rlimits + 24 * i, 4)
        memcpy(&wish, launch.rlimits + 24 * i + 8, 16)  # -1 is RLIM_INFINITY
        if getrlimit(what, &force) < 0:
            return refuse(slot, errno, b"getrlimit", b"", b"")
        force.rlim_max = wish.rlim_max if wish.rlim_max < force.rlim_max else force.rlim_max
        force.rlim_cur = wish.rlim_cur if wish.rlim_cur < force.rlim_max else force.rlim_max
        if setrlimit(what, &force) < 0:
            return refuse(slot, errno, b"setrlimit", b"", b"")
    return 0


cdef void raise_rlimits() noexcept nogil:
    """Raise hard limits that are below those of the user's login, while this process is root."""
    cdef rlimit force, wish
    cdef int32_t what
    cdef uint32_t i
    for i in range(launch.head.n_rlimits):
        memcpy(&what, launch.rlimits + 24 * i, 4)
        memcpy(&wish, launch.rlimits + 24 * i + 8, 16)
        if getrlimit(what, &force) == 0 and force.rlim_max < wish.rlim_max:
            force.rlim_max = wish.rlim_max
            setrlimit(what, &force)


cdef void bind_to_cpus() noexcept nogil:
    """Bind the job to the CPUs near its GPUs that it may run on. If that leaves none, it is not bound.

    Affinity belongs to the task: the shepherd, which shares this memory, keeps its own.
    """
    cdef uint64_t allowed[128]
    cdef uint64_t wanted[128]
    cdef size_t length = <size_t> launch.head.n_cpu_words * 8
    cdef uint32_t i
    if length == 0 or sched_getaffinity(0, sizeof(allowed), <cpu_set_t *> allowed) < 0:
        return
    memcpy(wanted, launch.cpus, length)
    for i in range(launch.head.n_cpu_words):
        wanted[i] &= allowed[i]
    sched_setaffinity(0, length, <const cpu_set_t *> wanted)  # if no CPU is left, the kernel changes nothing


cdef int take_identity(Slot *slot) noexcept nogil:
    cdef const char *step
    umask(launch.head.umask)
    if launch.head.flags & BECOME_USER:
        stand_as_a_login()
        raise_rlimits()
        if take_login_uid(launch.head.uid) < 0:
            return refuse(slot, errno, b"loginuid", b"", b"")
        step = become(&launch.head, launch.groups)
        if step != NULL:
            return refuse(slot, errno, step, b"", b"")
    if launch.head.flags & NO_NEW_PRIVILEGES and prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        return refuse(slot, errno, b"no_new_privs", b"", b"")
    return 0


cdef int take_tmp(const char *path) noexcept nogil:
    """Create the private TMPDIR, or reuse one that an earlier job of the user left empty.

    No other living job uses its name. Keeping the directory saves two directory changes and an inode
    for each job.
    """
    cdef stat_t about
    if mkdir(path, 0o700) == 0:
        return 0
    if errno != EEXIST or lstat(path, &about) < 0:
        return -1
    if not fg_is_directory(about.st_mode) and unlink(path) == 0:  # the user put it there, in the user's own directory
        return mkdir(path, 0o700)
    if not fg_is_directory(about.st_mode) or about.st_uid != geteuid():
        mkdir(path, 0o700)  # sets errno to EEXIST
        return -1
    if about.st_mode & 0o7777 != 0o700 and chmod(path, 0o700) < 0:
        return -1
    if not is_empty(path):
        empty_path(path)
    return 0


cdef int take_place(Slot *slot) noexcept nogil:
    """Prepare the user's paths with the user's rights: TMPDIR, streams, working directory."""
    cdef const char *tmp = slot.text + slot.tmp
    cdef const char *cwd = slot.text + slot.cwd
    if launch.hook[0] and access(launch.hook, R_OK) < 0:
        return refuse(slot, errno, b"read hook ", launch.hook, b"")
    name_step(b"fg:tmpdir")
    if tmp[0]:
        if take_tmp(tmp) < 0:
            refuse(slot, errno, b"mkdir ", tmp, b"")
            slot.is_short |= is_full(slot.error)
            return -1
        slot.has_tmp = 1
    name_step(b"fg:chdir")
    if chdir(cwd) < 0:
        return refuse(slot, errno, b"chdir ", cwd, b"")
    return open_streams(slot)


cdef char *interpreter(char *line, char **option) noexcept nogil:
    """Return the interpreter that the script's first line names, split off in place; NULL if it names none."""
    cdef char *end
    if line[0] != c'#' or line[1] != c'!':
        return NULL
    line += 2
    while line[0] == c' ' or line[0] == c'\t':
        line += 1
    end = line + strlen(line)
    while end > line and ((end - 1)[0] == c' ' or (end - 1)[0] == c'\t'):
        end -= 1
    end[0] = 0
    end = line
    while end[0] and end[0] != c' ' and end[0] != c'\t':
        end += 1
    option[0] = NULL
    if end[0]:
        end[0] = 0
        end += 1
        while end[0] == c' ' or end[0] == c'\t':
            end += 1
        option[0] = end
    return line if line[0] else NULL


cdef int refuse_to_execute(Slot *slot, int error, const char *program) noexcept nogil:
    """Record why exec failed. ENOMEM is the job's own limit; EAGAIN (too many processes) may pass."""
    refuse(slot, error, b"exec ", program, b"")
    slot.is_short = error == EAGAIN
    return -1


cdef int refuse_task_prolog(Slot *slot, int error, const char *program) noexcept nogil:
    """Record why the site's task prolog cannot be executed. To exec a missing interpreter is a missing program."""
    cdef int is_there = error == ENOENT and access(program, F_OK) == 0
    refuse(slot, error, b"exec interpreter of task prolog " if is_there else b"exec task prolog ", program, b"")
    slot.is_short = error == EAGAIN
    return -1


cdef int execute_after_prolog(Slot *slot) noexcept nogil:
    """Start the site's task prolog. Then execute this program, which waits for it and executes the script (task.c)."""
    cdef char pid_text[24]
    cdef const char *program = job_variable(b"FG_TASK_PROLOG=")
    cdef char **with_context = variables - 1  # the NULL that ends the arguments
    with_context[0] = b"SLURM_SCRIPT_CONTEXT=prolog_task"
    cdef pid_t pid = fg_start_task_prolog(program, with_context)
    cdef int error = errno
    with_context[0] = NULL
    if pid < 0:
        return refuse_task_prolog(slot, error, program)
    put_number(pid_text, pid)
    arguments[0] = b"fgspawn"  # and the script and its arguments follow
    arguments[1] = b"task"
    arguments[2] = pid_text
    execve(b"/proc/self/exe", arguments, variables)
    error = errno
    kill(-pid, SIGKILL)
    return refuse_to_execute(slot, error, b"fgspawn")


cdef int execute(Slot *slot) noexcept nogil:
    """Execute the script. If the run directory is mounted noexec, execute its interpreter instead."""
    cdef char line[256]
    cdef char *option
    cdef char *program
    cdef char **words = arguments + SPARE
    cdef uint32_t length = launch.head.script_length if launch.head.script_length < 255 else 255
    if launch.head.flags & TASK_PROLOG:
        return execute_after_prolog(slot)
    execve(work_path, words - 1, variables)
    cdef int error = errno
    memcpy(line, launch.script, length)
    line[length] = 0
    if strchr(line, c'\n') != NULL:
        strchr(line, c'\n')[0] = 0
    program = interpreter(line, &option)
    if program == NULL:
        return refuse_to_execute(slot, error, b"script")
    if error == EACCES:
        words -= 2 if option == NULL else 3
        words[0] = program
        words[1] = option if option != NULL else work_path
        execve(program, words, variables)
        error = errno
    return refuse_to_execute(slot, error, program)


cdef int child_steps(Slot *slot) noexcept nogil:
    setsid()
    if join_cgroups(slot) < 0:
        return -1
    bind_to_cpus()  # after the cgroups: joining a cpuset resets the affinity
    if take_mounts(slot) < 0 or take_identity(slot) < 0:
        return -1
    if take_place(slot) < 0 or prove_fence(slot) < 0 or apply_rlimits(slot) < 0:
        return -1
    sigprocmask(SIG_SETMASK, &nothing_blocked, NULL)  # the spawner has only default dispositions
    syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
    return execute(slot)


cdef int child(void *argument) noexcept nogil:
    """Entry point of the clone. If it returns, the slot has the reason."""
    cdef Slot *slot = <Slot *> argument
    child_steps(slot)
    if strncmp(slot.detail, UNFENCED, strlen(UNFENCED)) == 0:  # no system call failed
        dprintf(2, b"fgsched: job %lu: could not be started: %s\n", <unsigned long> slot.head.job, slot.detail)
        _exit(127)
    dprintf(2, b"fgsched: job %lu: could not be started: %s: %s\n", <unsigned long> slot.head.job,
            slot.detail, strerrordesc_np(slot.error))
    _exit(127)
    return 127


cdef int start_child(Slot *slot) noexcept nogil:
    path_of(slot, b"/job/", b"/script")
    arguments[SPARE - 1] = work_path
    slot.started_at = wall()
    spare_no_more()
    fg_store(&sharing, 1)
    if clone(child, child_stack + sizeof(child_stack), SHARES_MEMORY | SIGCHLD, slot, &slot.main, NULL, &sharing) < 0:
        fail(slot, errno, b"fork", b"")
        return -1
    return 0
