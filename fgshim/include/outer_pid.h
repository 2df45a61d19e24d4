/* Find the process of a slot that belongs to another pid namespace, from a namespace that contains it. */
#ifndef FG_OUTER_PID_H
#define FG_OUTER_PID_H
#include "owner.h"
#include "region.h"

/* Return the pid that a slot's process has here; 0 if it has none, so has ended; UINT32_MAX if /proc cannot be read. A
 * process is recognized by its pid in its own namespace, its start time and its image: two that agree in all of them
 * count as one, which can only keep a slot too long. */
static inline uint32_t fg_outer_pid(const fg_region_slot *slot) {
    struct { uint64_t inode; int64_t offset; unsigned short length; unsigned char type; char name[]; } *one;
    _Alignas(8) char room[4096];
    uint32_t found = 0, pid;
    long got = -1;
    int levels, all = (int)syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (all >= 0 && !found && (got = syscall(SYS_getdents64, all, room, sizeof room)) > 0) {
        for (long at = 0; at < got && !found; at += one->length) {
            one = (void *)(room + at);
            pid = 0;
            for (const char *c = one->name; *c >= '0' && *c <= '9'; c++) pid = pid * 10 + (uint32_t)(*c - '0');
            if (!pid || fg_owner_lives(pid, slot->start, slot->image) != 1) continue;
            if (fg_owner_innermost(pid, &levels) == slot->pid && levels > 1) found = pid;
        }
    }
    if (all >= 0) syscall(SYS_close, all);
    return got < 0 ? UINT32_MAX : found;
}

/* Return whether the process of a slot has ended, judged from the namespace `own`: 1 yes; 0 no, or unknown. `pid`: the
 * pid that it has here, or 0. */
static inline int fg_slot_has_ended(const fg_region_slot *slot, uint64_t own, uint32_t *pid) {
    *pid = slot->pid;
    if (!slot->pid_namespace || slot->pid_namespace == own) return fg_owner_lives(slot->pid, slot->start, slot->image) == 0;
    *pid = fg_outer_pid(slot);
    if (*pid && *pid != UINT32_MAX) return 0;
    int unread = *pid == UINT32_MAX;
    *pid = 0;
    return !unread && fg_region_may_have_ended(slot);
}
#endif
