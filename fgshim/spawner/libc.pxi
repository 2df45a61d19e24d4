# Declarations of libc and kernel functions (kernel.h).
#
# Exports: every declaration below.
# Needs: nothing.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from fgshim.region cimport (
    fg_region,
    fg_region_gpu,
    fg_region_most,
    fg_region_refused,
    fg_region_refusing,
    fg_region_seal_in,
    fg_region_tell,
)

cdef extern from "kernel.h" nogil:
    int errno
    unsigned int LAST_DESCRIPTOR
    const char *UNFENCED
    int EAGAIN, ECHILD, EACCES, EDQUOT, EEXIST, EFBIG, EINTR, EINVAL, EISDIR, ELOOP, EMFILE, ENAMETOOLONG
    int ENFILE, ENOENT, ENOEXEC, ENOMEM, ENOSPC, ENOTDIR, ENOTEMPTY, ENXIO, EOPNOTSUPP, EPERM, ESRCH, ETIMEDOUT
    int O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND
    int O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_NOCTTY, O_PATH
    int F_SETFL, F_SETFD, F_DUPFD_CLOEXEC, FD_CLOEXEC, F_OK, R_OK, AT_FDCWD, AT_REMOVEDIR, RENAME_NOREPLACE, SEEK_SET
    int SIGALRM, SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP, SIG_SETMASK, SIG_UNBLOCK
    int CLONE_PARENT, CLONE_VM, CLONE_VFORK, SHARES_MEMORY, CLONE_NEWNS, CLONE_NEWUSER
    int PRIO_PROCESS, SCHED_OTHER, IOPRIO_WHO_PROCESS
    int KEYCTL_GET_KEYRING_ID, KEYCTL_JOIN_SESSION_KEYRING, KEY_SPEC_SESSION_KEYRING
    unsigned long MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT, MS_SLAVE
    unsigned long MS_NOATIME, MS_NODIRATIME, MS_RELATIME
    unsigned long ST_NOEXEC, ST_NOSUID, ST_RDONLY, ST_NOATIME, ST_NODIRATIME, ST_RELATIME
    int P_ALL, P_PID, WEXITED, WNOHANG, WNOWAIT, CLD_EXITED, CLD_DUMPED
    int PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_NO_NEW_PRIVS
    int RLIMIT_CORE
    int CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_ANONYMOUS, MAP_NORESERVE, MADV_DONTDUMP, MADV_DONTNEED
    void *MAP_FAILED
    int MNT_DETACH, UMOUNT_NOFOLLOW
    int DT_LNK, DT_REG
    int MSG_NOSIGNAL, MSG_DONTWAIT, POLLIN, POLLOUT, POLLHUP, SFD_CLOEXEC, SFD_NONBLOCK
    long SYS_clone, SYS_close_range, SYS_getdents64, SYS_ioprio_set, SYS_keyctl, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_renameat2
    long SYS_rt_sigaction, SYS_setgroups, SYS_setresgid, SYS_setresuid, SYS_waitid

    ctypedef int pid_t
    ctypedef uint32_t uid_t
    ctypedef uint32_t gid_t
    ctypedef uint32_t mode_t
    ctypedef struct sigset_t:
        pass
    ctypedef struct cpu_set_t:
        pass
    ctypedef struct siginfo_t:
        int si_signo
        int si_code
        int si_status
        int si_int
        pid_t si_pid
    struct timespec:
        long tv_sec
        long tv_nsec
    struct timeval:
        long tv_sec
        long tv_usec
    struct tm:
        pass
    struct rusage:
        timeval ru_utime
        timeval ru_stime
        long ru_maxrss
        long ru_inblock
        long ru_oublock
    struct rlimit:
        uint64_t rlim_cur
        uint64_t rlim_max
    struct sched_param:
        int sched_priority
    struct stat_t "stat":
        mode_t st_mode
        uid_t st_uid
        unsigned long st_nlink
        long st_size, st_blocks
    struct statvfs_t "statvfs":
        unsigned long f_flag
    struct signalfd_siginfo:
        uint32_t ssi_signo
        uint64_t ssi_ptr
    struct pollfd:
        int fd
        short events
        short revents
    struct dirent64:
        unsigned short d_reclen
        unsigned char d_type
        char *d_name

    const char *fg_region_flaw(const fg_region *region, uint64_t length)
    long syscall(long number, ...)
    int fg_open_below(int where, const char *path, unsigned long flags)
    int fg_is_regular(mode_t mode)
    int fg_is_directory(mode_t mode)
    int fg_is_device(mode_t mode)
    int fg_command_signal()
    int fg_command_of(const siginfo_t *info)
    uint32_t fg_job_mark_of(const siginfo_t *info)
    int fg_load(const int *word)
    void fg_store(int *word, int value)
    int fg_swap(int *word, int from_, int to)
    int fg_sleep_on(int *word, int value, const timespec *most)
    void fg_wake(int *word)
    int fg_killed(int status)
    int snprintf(char *to, size_t room, const char *form, ...)
    int dprintf(int fd, const char *form, ...)
    char *strerror(int number)
    const char *strerrordesc_np(int number)
    size_t strlen(const char *text)
    int strcmp(const char *one, const char *other)
    int strncmp(const char *one, const char *other, size_t most)
    char *strchr(const char *text, int c)
    size_t strcspn(const char *text, const char *any)
    char *strstr(const char *text, const char *part)
    char *strrchr(const char *text, int c)
    void *memchr(const void *where, int c, size_t length)
    int memcmp(const void *one, const void *other, size_t length)
    void *memcpy(void *to, const void *source, size_t length)
    void *memmove(void *to, const void *source, size_t length)
    void *memmem(const void *where, size_t length, const void *what, size_t size)
    void *memset(void *to, int byte, size_t length)
    long strtol(const char *text, char **end, int base)
    unsigned long strtoul(const char *text, char **end, int base)
    char *getenv(const char *name)
    int open(const char *path, int flags, ...)
    int openat(int where, const char *path, int flags, ...)
    int close(int fd)
    ssize_t read(int fd, void *to, size_t length)
    ssize_t pread(int fd, void *to, size_t length, long at)
    ssize_t pwrite(int fd, const void *what, size_t length, long at)
    ssize_t write(int fd, const void *source, size_t length)
    int ftruncate(int fd, long size)
    int fstat(int fd, stat_t *about)
    int lstat(const char *path, stat_t *about)
    int chmod(const char *path, mode_t mode)
    int fcntl(int fd, int command, ...)
    int fchmod(int fd, mode_t mode)
    int fchown(int fd, uid_t uid, gid_t gid)
    int lchown(const char *path, uid_t uid, gid_t gid)
    int fchmodat(int where, const char *path, mode_t mode, int flags)
    int access(const char *path, int how)
    unsigned int alarm(unsigned int seconds)
    int dup2(int fd, int onto)
    int mkdir(const char *path, mode_t mode)
    int rmdir(const char *path)
    int unlink(const char *path)
    int unlinkat(int where, const char *path, int flags)
    int renameat(int where, const char *path, int to, const char *name)
    long lseek(int fd, long at, int whence)
    int symlink(const char *text, const char *path)
    int linkat(int from_, const char *path, int to, const char *name, int flags)
    ssize_t readlink(const char *path, char *to, size_t room)
    int chdir(const char *path)
    mode_t umask(mode_t mask)
    int unshare(int flags)
    int fg_owns_namespace(int fd)
    int fg_drop_capabilities()
    void fg_reset_securebits()
    int setns(int fd, int kind)
    int sched_getaffinity(pid_t pid, size_t room, cpu_set_t *cpus)
    int sched_setaffinity(pid_t pid, size_t room, const cpu_set_t *cpus)
    int mount(const char *what, const char *where, const char *kind, unsigned long flags, const void *data)
    int umount2(const char *where, int flags)
    int statvfs(const char *path, statvfs_t *about)
    int execve(const char *path, char **argv, char **envp)
    pid_t fork()
    int clone(int (*entry)(void *) noexcept nogil, void *stack, int flags, void *argument, ...)
    void _exit(int code)
    pid_t getpid()
    pid_t getpgrp()
    pid_t getpgid(pid_t pid)
    pid_t getsid(pid_t pid)
    pid_t setsid()
    int kill(pid_t pid, int number)
    pid_t waitpid(pid_t pid, int *status, int options)
    pid_t wait4(pid_t pid, int *status, int options, rusage *used)
    int getrlimit(int what, rlimit *limits)
    int setpriority(int which, uint32_t who, int value)
    int sched_setscheduler(pid_t pid, int policy, const sched_param *about)
    int setrlimit(int what, const rlimit *limits)
    int prctl(int what, ...)
    uid_t geteuid()
    gid_t getegid()
    int getresuid(uid_t *real, uid_t *effective, uid_t *saved)
    int getresgid(gid_t *real, gid_t *effective, gid_t *saved)
    int getgroups(int size, gid_t *groups)
    int setuid(uid_t uid)
    int setgid(gid_t gid)
    int setfsuid(uid_t uid)
    int setfsgid(gid_t gid)
    int gethostname(char *to, size_t room)
    int poll(pollfd *awaited, size_t count, int most)
    int pipe2(int *ends, int flags)
    int dup3(int fd, int onto, int flags)
    pid_t getppid()
    int clock_gettime(int which, timespec *to)
    void tzset()
    long time(long *to)
    tm *localtime_r(const long *when, tm *to)
    size_t strftime(char *to, size_t room, const char *form, const tm *when)
    int sigemptyset(sigset_t *signals)
    int sigfillset(sigset_t *signals)
    int sigaddset(sigset_t *signals, int number)
    int sigprocmask(int how, const sigset_t *signals, sigset_t *old)
    int sigtimedwait(const sigset_t *signals, siginfo_t *info, const timespec *wait)
    int signalfd(int fd, const sigset_t *signals, int flags)
    int ppoll(pollfd *what, unsigned long count, const timespec *wait, const sigset_t *signals)
    ssize_t recv(int fd, void *to, size_t room, int flags)
    ssize_t send(int fd, const void *source, size_t length, int flags)
    void *mmap(void *where, size_t length, int protection, int flags, int fd, long at)
    int madvise(void *where, size_t length, int advice)
    int nanosleep(const timespec *wait, timespec *left)
