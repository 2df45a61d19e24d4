/* Atomic access to words that threads or processes share, and saturating arithmetic on byte counts.
 *
 * The macros take a pointer to any scalar type. */
#ifndef FG_ATOMICS_H
#define FG_ATOMICS_H
#include <errno.h>
#include <stdint.h>

#define fg_load(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define fg_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define fg_peek(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define fg_add(at, value) __atomic_fetch_add(at, value, __ATOMIC_RELAXED)
#define fg_set_errno(value) (errno = (value))   /* Cython declares errno read-only */

/* Set a flag; return 1 to the one caller that found it clear. */
static inline int fg_first(int *flag) { return !__atomic_exchange_n(flag, 1, __ATOMIC_ACQ_REL); }

/* Raise a maximum that other processes raise, too. */
static inline void fg_raise(uint64_t *most, uint64_t value) {
    uint64_t seen = fg_peek(most);
    while (seen < value && !__atomic_compare_exchange_n(most, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) ;
}

/* Add; the result is UINT64_MAX on overflow, which no limit admits. */
static inline uint64_t fg_sum(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }
#endif
