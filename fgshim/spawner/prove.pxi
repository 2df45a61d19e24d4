# The prover: checks before a job's script, in the job's own environment, that enforcement is effective.
#
# The program (prover.pyx) is executed like the script: as its user, in its mounts, with its variables. The
# job's child waits for it, and executes nothing if the answer is no.
#
# Exports: prove_fence, refuse.
# Needs: files (region_seal); state (Slot, is_shortage, launch, path_of, variables); text (put, put_number).

cdef enum:
    HOLDS = 90  # exit codes of the prover: see prover.pyx
    NOT_LOADED
    NOT_FIRST
    NOT_LOOKED_UP
    NO_REGION
    NOT_ITS
    PROOF_SECONDS = 30
    PROOF_ERROR = 126

cdef char proof_stack[16384]
cdef char *proof_words[6]
cdef char *prover_path


cdef int refuse(Slot *slot, int error, const char *step, const char *what, const char *why) noexcept nogil:
    slot.error = error
    slot.is_short = is_shortage(error)  # a full disk of the user is a failure, not a shortage
    snprintf(slot.detail, DETAIL_ROOM, b"%s%s%s", step, what, why)
    return -1


cdef int ask_prover(void *unused) noexcept nogil:
    """Entry point of the prover's clone. The job's signals wait for the script; output goes to /dev/null."""
    cdef sigset_t its_own
    cdef int null = open(b"/dev/null", O_RDWR)
    dup2(null, 0)
    dup2(null, 1)
    dup2(null, 2)
    sigemptyset(&its_own)
    sigaddset(&its_own, SIGALRM)
    sigprocmask(SIG_UNBLOCK, &its_own, NULL)
    syscall(SYS_close_range, 3, LAST_DESCRIPTOR, 0)
    alarm(PROOF_SECONDS)
    execve(prover_path, proof_words, variables)
    _exit(PROOF_ERROR)
    return PROOF_ERROR


cdef const char *not_held(int status) noexcept nogil:
    """Return why enforcement is not effective; NULL if it is."""
    if status == HOLDS << 8:
        return NULL
    if status == NOT_LOADED << 8:
        return b"the hook is not loaded in the job's environment"
    if status == NOT_FIRST << 8:
        return b"in the job's environment the driver is found past the hook"
    if status == NOT_LOOKED_UP << 8:
        return b"in the job's environment cuGetProcAddress finds the driver past the hook"
    if status == NO_REGION << 8:
        return b"the job's user cannot use its region"
    if status == NOT_ITS << 8:
        return b"the region that the hook finds is not the job's"
    if status == PROOF_ERROR << 8:
        return b"fgprove, beside the hook, could not be executed"
    return b"the check in the job's environment gave no answer"


cdef int prove_fence(Slot *slot) noexcept nogil:
    cdef char path[PATH_ROOM + 16]
    cdef char hook[PATH_ROOM + 128]
    cdef char numbers[80]
    cdef char *attempt
    cdef char *seal
    cdef int status = 0
    global prover_path
    if not launch.head.flags & PROVE_FENCE:
        return 0
    put(hook, path_of(slot, b"/job/", b"/libfgshim.so"))
    path_of(slot, b"/job/", b"/script")
    put(path, launch.hook)
    put(strrchr(path, c'/') + 1, b"fgprove")
    attempt = put_number(numbers, <int64_t> slot.head.job) + 1
    seal = put_number(attempt, slot.head.attempt) + 1
    snprintf(seal, 20, b"%lx", <unsigned long> region_seal)
    prover_path = path
    proof_words[0] = path
    proof_words[1] = hook
    proof_words[2] = numbers
    proof_words[3] = attempt
    proof_words[4] = seal
    cdef pid_t pid = clone(ask_prover, proof_stack + sizeof(proof_stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)
    if pid < 0:
        return refuse(slot, errno, b"fork for the proof of the fence", b"", b"")
    while waitpid(pid, &status, 0) < 0 and errno == EINTR:
        pass
    cdef const char *why = not_held(status)
    return 0 if why == NULL else refuse(slot, EPERM, UNFENCED, why, b"")
