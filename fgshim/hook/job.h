/* The job that this process belongs to: its region, mapped once, and a private copy of its limits.
 *
 * The job can write to its region. Cards and limits are therefore those of a copy whose seal was valid when this process
 * attached, and a lock that no process of the job holds is abandoned. */
#ifndef FG_JOB_H
#define FG_JOB_H
#include <stddef.h>
#include <sys/mman.h>
#include "region.h"

typedef struct {
    fg_region *region;
    uint32_t cards;                      /* number of valid elements of card[] */
    uint32_t by_position;                /* fg_region.by_position */
    fg_region_gpu card[FG_MAX_GPUS];
} fg_job;

#pragma GCC visibility push(hidden)
extern fg_job *fg_attached;              /* NULL: not attached yet */

/* Map the region at `path` and install it as fg_attached. Does nothing if it is no valid region. */
void fg_attach_to(const char *path);
/* Take the region's lock. Return 0, EOWNERDEAD, or ETIMEDOUT where the lock is given up. */
int fg_wait_for(fg_region *region);
/* Return `size` bytes of zeroed private pages; NULL if there is no memory. */
void *fg_pages(size_t size);
#pragma GCC visibility pop

static inline int fg_has_lock(const fg_region *r) { return r->lock.__data.__kind == FG_LOCK_KIND; }
#endif
