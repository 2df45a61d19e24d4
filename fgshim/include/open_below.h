/* Open a file below a directory, on its file system and along no symbolic link: where a user may mount something over
   a directory or a file, every call on what is mounted there may wait for a program of the user's. Linux 5.6. */
#ifndef FG_OPEN_BELOW_H
#define FG_OPEN_BELOW_H
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Return a descriptor, or -1 with errno: EXDEV where something is mounted on the way, ENOSYS on an older kernel. */
static inline int fg_open_below(int where, const char *path, unsigned long flags) {
    struct open_how how = {.flags = flags, .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, where, path, &how, sizeof how);
}
#endif
