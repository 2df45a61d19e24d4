# Who owns a slot of the region: a process, and the program that it executes.
#
# A pid alone is not enough (it is used again), nor is a pid with its start time
# (exec keeps both, and gives all device memory back). The third mark is made of
# addresses that the kernel draws anew at each exec and shows in /proc/<pid>/stat
# to processes of the same user. Where it shows 0, or draws nothing because the
# addresses are not randomised, an old image counts as living until its process
# ends or takes a new slot: that can refuse too much, never grant too much.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FG_OWNER
    #define FG_OWNER
    #include <errno.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <signal.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    typedef struct { uint64_t start, image; } fg_owner;

    /* Without stdio: this runs inside any program, in any state. */
    static inline void fg_owner_number(uint32_t number, char *to) {
        char digits[12], *d = digits + sizeof digits;
        *--d = 0;
        do *--d = (char)('0' + number % 10); while (number /= 10);
        strcpy(to, d);
    }
    /* "/proc/<pid>/stat" */
    static inline void fg_owner_path(uint32_t pid, char *path) {
        strcpy(path, "/proc/");
        fg_owner_number(pid, path + strlen(path));
        strcat(path, "/stat");
    }

    /* The n-th field of a stat line, counted as in proc(5), from the state (3) on. */
    static inline uint64_t fg_owner_field(const char *state, int n) {
        uint64_t value = 0;
        for (int at = 3; at < n && *state; state++) at += *state == ' ';
        for (; *state >= '0' && *state <= '9'; state++) value = value * 10 + (uint64_t)(*state - '0');
        return value;
    }

    /* 1: who it is; 0: no such process, or one that has ended; -1: the kernel would not say. By system calls, which
       are no cancellation points: a thread that was cancelled in open or read would leave the hook's locks taken. */
    static inline int fg_owner_read(uint32_t pid, fg_owner *owner) {
        char line[1024], path[40], *state;
        ssize_t got;
        fg_owner_path(pid, path);
        int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return kill((pid_t)pid, 0) < 0 && errno == ESRCH ? 0 : -1;
        while ((got = syscall(SYS_read, fd, line, sizeof line - 1)) < 0 && errno == EINTR) ;
        syscall(SYS_close, fd);
        if (got <= 0) return kill((pid_t)pid, 0) < 0 && errno == ESRCH ? 0 : -1;
        line[got] = 0;
        if (!(state = strrchr(line, ')')) || state[1] != ' ') return -1;
        state += 2;
        /* A leader that has left its other threads behind looks like a zombie, and is none. */
        if ((*state == 'Z' || *state == 'X') && fg_owner_field(state, 20) <= 1) return 0;
        owner->start = fg_owner_field(state, 22);
        uint64_t stack = fg_owner_field(state, 28), code = fg_owner_field(state, 26);
        owner->image = stack ? stack ^ (code << 20) ^ (code >> 44) : 0;
        return 1;
    }

    static inline int fg_owner_lives(uint32_t pid, uint64_t start, uint64_t image) {
        fg_owner now;
        int known = fg_owner_read(pid, &now);
        if (known <= 0) return known;
        return now.start == start && (!image || !now.image || now.image == image);
    }
    #endif
    """
    ctypedef struct fg_owner:
        uint64_t start
        uint64_t image
    int fg_owner_read(uint32_t pid, fg_owner *owner) noexcept nogil
    int fg_owner_lives(uint32_t pid, uint64_t start, uint64_t image) noexcept nogil  # 0: no
