/* The mutex of a slot, which shows that the slot's process lives. */
#ifndef FG_SLOT_LIFE_H
#define FG_SLOT_LIFE_H
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "region.h"

enum { FG_JUDGEMENTS = 16 };   /* the most processes that one view looks up in /proc */

/* Take the mutex for the calling thread, until the thread ends. It is never unlocked. Return 0 if another thread has it.
 * Under the region's lock, and only if the slot is free or the caller's. */
static inline int fg_take_life(pthread_mutex_t *life) {
    if (!life->__data.__kind) {
        memset(life, 0, sizeof *life);
        life->__data.__kind = FG_LOCK_KIND;
    }
    if (life->__data.__kind != FG_LOCK_KIND) return 0;
    int status = pthread_mutex_trylock(life);
    if (status == EOWNERDEAD) status = pthread_mutex_consistent(life);
    return status == 0;
}
#endif
