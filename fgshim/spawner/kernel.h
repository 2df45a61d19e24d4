/* What the spawner uses of libc and the kernel, and wrappers of macros and system calls that Cython cannot declare. */
#ifndef FG_KERNEL_H
#define FG_KERNEL_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/ioprio.h>
#include <linux/keyctl.h>
#include <linux/nsfs.h>
#include <linux/securebits.h>
#include "open_below.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* clone flags of a child that shares its parent's memory; the kernel clears its pid there when it executes a program or
 * ends */
#define SHARES_MEMORY (CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)
#define LAST_DESCRIPTOR (~0u)
#ifndef RENAME_NOREPLACE   /* of libc since 2.28 */
#define RENAME_NOREPLACE 1
#endif
#define UNFENCED "its enforcement does not work: "   /* the controller uses the same words */

static inline int fg_is_regular(mode_t mode) { return S_ISREG(mode); }
static inline int fg_is_directory(mode_t mode) { return S_ISDIR(mode); }
static inline int fg_is_device(mode_t mode) { return S_ISCHR(mode); }
static inline int fg_killed(int status) { return WIFSIGNALED(status); }

/* Tell whether a namespace belongs to the user namespace of this process. */
static inline int fg_owns_namespace(int fd) {
    struct stat owner, own;
    int users = ioctl(fd, NS_GET_USERNS);
    int is_own = users >= 0 && fstat(users, &owner) == 0 && stat("/proc/self/ns/user", &own) == 0 &&
                 owner.st_dev == own.st_dev && owner.st_ino == own.st_ino;
    if (users >= 0)
        close(users);
    return is_own;
}

/* Give up all capabilities: a change of the uid leaves the inheritable ones. Return -1 with errno. */
static inline int fg_drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0, 0, 0}, {0, 0, 0}};
    return (int)syscall(SYS_capset, &header, none);
}

/* Reset the secure bits to those of a login. Bits that a sandbox has locked only take rights from setuid programs. */
static inline void fg_reset_securebits(void) {
    if (prctl(PR_GET_SECUREBITS) != SECUREBITS_DEFAULT)
        prctl(PR_SET_SECUREBITS, SECUREBITS_DEFAULT);
}

/* A command is a queued signal: the command is in the low half of its value, the job's mark in the high half. */
static inline int fg_command_signal(void) { return SIGRTMIN + 1; }
static inline int fg_command_of(const siginfo_t *info) { return (int)(uintptr_t)info->si_ptr; }
static inline unsigned fg_job_mark_of(const siginfo_t *info) { return (unsigned)((uintptr_t)info->si_ptr >> 32); }

/* A word in shared memory on which a process can sleep. */
static inline int fg_load(const int *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void fg_store(int *word, int value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline int fg_swap(int *word, int from, int to) {
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
static inline int fg_sleep_on(int *word, int value, const struct timespec *timeout) {
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, value, timeout, NULL, 0);
}
static inline void fg_wake(int *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }
#endif
