/* The account of a job on one GPU, in the region, common to all its processes: its GPU time, and a budget for the time
 * without an arbiter.
 *
 * Pure: no function reads a clock or calls the system. Times are nanoseconds of CLOCK_MONOTONIC, shares are
 * ten-thousandths. All processes of the job work on the account concurrently, so each word of it is atomic. A reader
 * may see one word changed and another not yet; every function tolerates that.
 *
 * The budget grows with the share, and is charged the time in which the job had work, when that has ended. A job that has
 * had turns also knows its window: the part of each period in which it launches if the arbiter has ended. The windows of
 * the jobs on a GPU do not overlap, so these jobs still have the GPU one after another. */
#ifndef FG_PACE_H
#define FG_PACE_H
#include <stdint.h>

#define FG_WHOLE 10000
#define FG_US 1000ll
#define FG_MS 1000000ll
#define FG_MAX_SAVED (10 * FG_MS)        /* the most that is saved */
#define FG_MAX_DEBT (120000 * FG_MS)    /* the largest debt */
#define FG_MAX_SLEEP (5 * FG_MS)          /* the longest sleep of a launch before it checks again */
#define FG_WINDOWS (20 * FG_MS)           /* the period of the windows */
#define FG_REPORT_PERIOD (10 * FG_MS)        /* how often a job that is not paced records that it launches */
#define FG_FLIGHTS 16

enum { FG_PACE_NONE, FG_PACE_HARD, FG_PACE_FAIR };

typedef struct {
    uint32_t policy, share;      /* written once, under the seal */
    uint64_t of_lender[5];       /* controllers before the windows write loans here, their hooks read them */
    uint64_t filled;             /* when the level was last raised */
    int64_t  level;              /* ns that may be used; below 0: the debt */
    uint64_t busy_until;         /* end of the last work accounted for */
    uint64_t used;               /* total GPU time of the job */
    uint64_t of_hooks[2];        /* used by hooks before the windows */
    uint64_t flying[FG_FLIGHTS]; /* by process: until when it expects to have work on the GPU */
} fg_pace;

#define fg_pace_get(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define fg_pace_put(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define fg_pace_swap(at, seen, value) __atomic_compare_exchange_n(at, seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

static inline int fg_pace_is_on(const fg_pace *p) {
    return (p->policy == FG_PACE_HARD || p->policy == FG_PACE_FAIR) && p->share && p->share < FG_WHOLE;
}

/* Whether the job is not paced but shares its GPU: its neighbours must know that it launches. */
static inline int fg_pace_only_reports(const fg_pace *p) { return !fg_pace_is_on(p) && p->share && p->share < FG_WHOLE; }

/* Change the level by what was earned, up to `most`, or, if that is negative, by what was used. */
static inline void fg_pace_add(fg_pace *p, int64_t more, int64_t most) {
    int64_t seen = fg_pace_get(&p->level), level;
    do {
        level = seen < -FG_MAX_DEBT ? -FG_MAX_DEBT : seen > FG_MAX_DEBT ? FG_MAX_DEBT : seen;
        level += more;
        if (level > most) level = most;
        if (level < -FG_MAX_DEBT) level = -FG_MAX_DEBT;
    } while (!fg_pace_swap(&p->level, &seen, level));
}

static inline void fg_pace_charge(fg_pace *p, int64_t time) { fg_pace_add(p, -time, FG_MAX_DEBT); }

/* Return what the budget earns, in ten-thousandths: the share, or the window of a fair job, which has what no job was given. */
static inline uint64_t fg_pace_rate(const fg_pace *p, uint32_t window) {
    uint64_t rate = fg_pace_get(&p->share);
    if (p->policy == FG_PACE_FAIR && window > rate) rate = window;
    return rate > FG_WHOLE ? FG_WHOLE : rate ? rate : 1;   /* the job may have written anything to its region */
}

/* Raise the level by what was earned since the last call. Beyond FG_MAX_SAVED it is saved only for work that has run for
   `uncounted` ns: that is charged when it has ended. */
static inline void fg_pace_fill(fg_pace *p, uint64_t rate, uint64_t uncounted, uint64_t now) {
    uint64_t since = fg_pace_get(&p->filled), passed;
    if (now - since < 20 * FG_US || !fg_pace_swap(&p->filled, &since, now)) return;
    if (!since || since > now) return;   /* the first call, or a value from before a restart of the host */
    passed = now - since;
    if (passed > FG_MAX_DEBT * 10) passed = FG_MAX_DEBT * 10;
    if (uncounted > (uint64_t)FG_MAX_DEBT / 2) uncounted = FG_MAX_DEBT / 2;
    fg_pace_add(p, (int64_t)(passed / FG_WHOLE * rate + passed % FG_WHOLE * rate / FG_WHOLE), FG_MAX_SAVED + (int64_t)uncounted);
}

/* Return the ns until the budget allows a launch, at most FG_MAX_SLEEP; 0: it does. `window`: see fg_pace_rate. */
static inline uint64_t fg_pace_wait(fg_pace *p, uint32_t window, uint64_t uncounted, uint64_t now) {
    uint64_t rate = fg_pace_rate(p, window);
    fg_pace_fill(p, rate, uncounted, now);
    int64_t level = fg_pace_get(&p->level);
    if (level > 0) return 0;
    uint64_t lacks = level < -FG_MAX_DEBT ? FG_MAX_DEBT : (uint64_t)-level, wait = lacks * FG_WHOLE / rate + 20 * FG_US;
    return wait < FG_MAX_SLEEP ? wait : FG_MAX_SLEEP;
}

/* Count `had` ns of work between two times. Time in which several processes or contexts of the job had work counts once.
   Return the part that no process has counted before. */
static inline uint64_t fg_pace_count(fg_pace *p, uint64_t from, uint64_t end, uint64_t had) {
    uint64_t seen = fg_pace_get(&p->busy_until), fresh;
    while (from < end && seen < end && !fg_pace_swap(&p->busy_until, &seen, end)) ;
    if (from < seen) from = seen;
    fresh = end > from ? end - from : 0;
    if (fresh > had) fresh = had;
    __atomic_add_fetch(&p->used, fresh, __ATOMIC_RELAXED);
    return fresh;
}

/* The number of processes of the job that have work on the GPU. */
static inline uint32_t fg_pace_flying(const fg_pace *p, uint64_t now) {
    uint32_t count = 0;
    for (int i = 0; i < FG_FLIGHTS; i++) count += p->flying[i] > now && p->flying[i] < now + FG_MAX_DEBT;
    return count;
}

/* Return the ns until a window opens; 0: it is open, for another *left ns. */
static inline uint64_t fg_window_wait(uint32_t from, uint32_t length, uint64_t now, uint64_t *left) {
    uint64_t at = now % FG_WINDOWS, opens = FG_WINDOWS / FG_WHOLE * (from % FG_WHOLE), lasts = FG_WINDOWS / FG_WHOLE * (uint64_t)length;
    uint64_t since = at >= opens ? at - opens : at + FG_WINDOWS - opens;
    *left = since < lasts ? lasts - since : 0;
    return *left ? 0 : FG_WINDOWS - since;
}
#endif
