/* The identity of the process that owns a slot of the region.
 *
 * A process is identified by three values. A pid alone is reused. A pid with its start time does not change at exec,
 * although exec returns all device memory. The third value, `image`, is made of two addresses that the kernel chooses
 * at random at each exec and shows in /proc/<pid>/stat to processes of the same user. Where the kernel shows 0, or does
 * not randomise addresses, an old image counts as living until its process ends or takes a new slot. That error can
 * refuse too much memory; it can never grant too much. */
#ifndef FG_OWNER_H
#define FG_OWNER_H
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { uint64_t start, image; } fg_owner;   /* start: clock ticks since boot */

/* Write a decimal number. Without stdio: the hook runs inside any program, in any state. */
static inline void fg_owner_number(uint32_t number, char *to) {
    char digits[12], *d = digits + sizeof digits;
    *--d = 0;
    do *--d = (char)('0' + number % 10); while (number /= 10);
    strcpy(to, d);
}

/* Write "/proc/<pid>/<file>"; pid 0: of the calling process, whatever pid namespace /proc belongs to. */
static inline void fg_owner_path(uint32_t pid, const char *file, char *path) {
    strcpy(path, "/proc/");
    if (pid) fg_owner_number(pid, path + strlen(path));
    else strcat(path, "self");
    strcat(path, file);
}

/* Return the n-th field of a stat line, numbered as in proc(5). `state` points to field 3. */
static inline uint64_t fg_owner_field(const char *state, int n) {
    uint64_t value = 0;
    for (int at = 3; at < n && *state; state++) at += *state == ' ';
    for (; *state >= '0' && *state <= '9'; state++) value = value * 10 + (uint64_t)(*state - '0');
    return value;
}

/* Read a file of a process in /proc. Return its length, cut to `room` - 1; below 1 if it cannot be read. Uses raw
 * system calls, which are not cancellation points: a thread cancelled inside open or read would never release the hook's
 * locks. */
static inline long fg_owner_file(uint32_t pid, const char *file, char *to, size_t room) {
    char path[48];
    long got;
    fg_owner_path(pid, file, path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    while ((got = syscall(SYS_read, fd, to, room - 1)) < 0 && errno == EINTR) ;
    syscall(SYS_close, fd);
    to[got > 0 ? got : 0] = 0;
    return got;
}

/* Read the identity of a process; pid 0: of the calling one. Return 1 on success, 0 if there is no such process or it
 * has ended, -1 if the kernel does not say. */
static inline int fg_owner_read(uint32_t pid, fg_owner *owner) {
    char line[1024], *state;
    if (fg_owner_file(pid, "/stat", line, sizeof line) <= 0) return pid && kill((pid_t)pid, 0) < 0 && errno == ESRCH ? 0 : -1;
    if (!(state = strrchr(line, ')')) || state[1] != ' ') return -1;
    state += 2;
    /* A thread group leader that exited before its other threads looks like a zombie but still lives. */
    if ((*state == 'Z' || *state == 'X') && fg_owner_field(state, 20) <= 1) return 0;
    owner->start = fg_owner_field(state, 22);
    uint64_t stack = fg_owner_field(state, 28), code = fg_owner_field(state, 26);
    owner->image = stack ? stack ^ (code << 20) ^ (code >> 44) : 0;
    return 1;
}

/* Return 0 if the owner has ended or executes another program, 1 if it lives, -1 if the kernel does not say. */
static inline int fg_owner_lives(uint32_t pid, uint64_t start, uint64_t image) {
    fg_owner now;
    int known = fg_owner_read(pid, &now);
    if (known <= 0) return known;
    return now.start == start && (!image || !now.image || now.image == image);
}

/* Return the inode number of the calling process's pid namespace; 0 if the kernel does not say. */
static inline uint64_t fg_owner_namespace(void) {
    char link[64];   /* pid:[4026531836] */
    uint64_t number = 0;
    long length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", link, sizeof link);
    for (long i = 5; i < length && link[i] >= '0' && link[i] <= '9'; i++) number = number * 10 + (uint64_t)(link[i] - '0');
    return number;
}

/* Return the pid of a process in its innermost pid namespace, and in `levels` the number of namespaces, from that of
 * /proc inward, in which it has one; 0 if the kernel does not say (before Linux 4.1). */
static inline uint32_t fg_owner_innermost(uint32_t pid, int *levels) {
    char status[4096];
    const char *at = fg_owner_file(pid, "/status", status, sizeof status) > 0 ? strstr(status, "\nNSpid:") : NULL;
    uint32_t number = 0;
    *levels = 0;
    for (at = at ? at + 7 : ""; *at == '\t' || *at == ' ';) {
        for (number = 0, at++; *at >= '0' && *at <= '9'; at++) number = number * 10 + (uint32_t)(*at - '0');
        ++*levels;
    }
    return number;
}

/* Whether /proc belongs to the pid namespace of the calling process. In any other, a number is another process there. */
static inline int fg_owner_sees_its_namespace(void) {
    int levels;
    fg_owner_innermost(0, &levels);
    return levels <= 1;
}
#endif
