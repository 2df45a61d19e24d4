/* The share of a card's time that a job may take: one budget for all of its processes, in the region.
 *
 * Pure: no function here reads a clock or calls anybody. Times are nanoseconds of CLOCK_MONOTONIC, shares are
 * ten-thousandths. Every process of the job works on the budget at once, so each word of it is atomic; two that
 * are changed one after the other can be seen apart, and every function copes with that.
 *
 * A launch is charged what its like has cost before. When the work has ended, the charge is replaced by the time
 * in which the job really had work on the card: overlapping work of its processes and streams counts once.
 * `scale` says how much of such time is the job's own, since the processes of other jobs have turns in between. */
#ifndef FG_PACE_H
#define FG_PACE_H
#include <stdint.h>

#define FG_WHOLE 10000
#define FG_US 1000ll
#define FG_MS 1000000ll
#define FG_DEEP (10 * FG_MS)        /* the most that is saved up */
#define FG_DEBT (120000 * FG_MS)    /* the most that is owed */
#define FG_NAP (5 * FG_MS)          /* the longest a launch waits before it looks again */
#define FG_TELL (10 * FG_MS)        /* how often one that is not paced tells that it launches */
#define FG_FLIGHTS 16
#define FG_RUNS 32

enum { FG_PACE_NONE, FG_PACE_HARD, FG_PACE_FAIR };
enum { FG_BY_EVENTS, FG_BY_NVML };
enum { FG_ALONE, FG_CROWDED };

typedef struct { uint64_t launched, from, until; } fg_span;   /* from: when its first turn began */
typedef struct {                 /* when a process had long kernels on the card: its last spans, the newest at (runs - 1) */
    uint64_t runs;
    fg_span run[FG_RUNS];
} fg_spans;
typedef struct { fg_spans of[FG_FLIGHTS]; } fg_long_runs;   /* a job's on one card; apart from fg_pace, for its size */

typedef struct {
    uint32_t policy, share;      /* by whoever makes the region */
    uint32_t lent, scale;        /* by the controller, as all to `filled`; a scale of 0 is FG_WHOLE */
    uint64_t lent_until, scale_until;
    uint32_t mechanism, crowd;   /* what the scale rests on; whether other jobs use the card, good as long as the scale */
    uint32_t turns, among;       /* a process's part while it has long kernels there; if it always had work */
    uint64_t filled;             /* when the level was last raised */
    int64_t  level;              /* what may be taken; below zero: what has been taken too much */
    uint64_t busy_until;         /* end of the last work that was accounted for */
    uint64_t used;               /* the card's time that was the job's, in all, before the scale */
    uint64_t sure;               /* what of it is known without the turns */
    uint64_t wanted;             /* when a launch last had to wait */
    uint64_t flying[FG_FLIGHTS]; /* until when the processes have work on the card, as far as they know */
} fg_pace;

#define fg_pace_get(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define fg_pace_put(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define fg_pace_swap(at, seen, value) __atomic_compare_exchange_n(at, seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

static inline int fg_pace_is_on(const fg_pace *p) {
    return (p->policy == FG_PACE_HARD || p->policy == FG_PACE_FAIR) && p->share && p->share < FG_WHOLE;
}

/* Not paced, beside others: they have to know that it is there. */
static inline int fg_pace_is_told(const fg_pace *p) { return !fg_pace_is_on(p) && p->share && p->share < FG_WHOLE; }

/* What is lent at this moment, beside the share. */
static inline uint32_t fg_pace_lent(const fg_pace *p, uint64_t now) {
    uint32_t lent = fg_pace_get(&p->lent);
    if (p->policy != FG_PACE_FAIR || now >= fg_pace_get(&p->lent_until)) return 0;
    return lent < FG_WHOLE ? lent : FG_WHOLE;
}

/* Nobody else is on the card: then there is nothing to hold back for. */
static inline int fg_pace_is_free(const fg_pace *p, uint64_t now) { return fg_pace_lent(p, now) == FG_WHOLE; }

static inline uint64_t fg_pace_rate(const fg_pace *p, uint64_t now) {
    uint64_t rate = (uint64_t)fg_pace_get(&p->share) + fg_pace_lent(p, now);
    return rate > FG_WHOLE ? FG_WHOLE : rate ? rate : 1;   /* a job can write whatever it likes to its region */
}

static inline void fg_pace_add(fg_pace *p, int64_t more) {
    int64_t seen = fg_pace_get(&p->level), level;
    do {
        level = seen < -FG_DEBT ? -FG_DEBT : seen > FG_DEEP ? FG_DEEP : seen;
        level = more > 0 && level + more > FG_DEEP ? FG_DEEP : level + more;
        if (level < -FG_DEBT) level = -FG_DEBT;
    } while (!fg_pace_swap(&p->level, &seen, level));
}

/* Raise the level by what has been earned since the last time. */
static inline void fg_pace_fill(fg_pace *p, uint64_t now) {
    uint64_t since = fg_pace_get(&p->filled), until = fg_pace_get(&p->lent_until), lease = 0, passed;
    if (now - since < 20 * FG_US) return;
    if (!fg_pace_swap(&p->filled, &since, now)) return;
    if (!since || since > now) return;   /* the first time, or another boot's */
    passed = now - since;
    if (passed > FG_DEBT * 10) passed = FG_DEBT * 10;
    if (p->policy == FG_PACE_FAIR && until > since) lease = (until < now ? until : now) - since;
    if (lease > passed) lease = passed;
    uint64_t earned = passed * p->share + lease * (fg_pace_get(&p->lent) < FG_WHOLE ? fg_pace_get(&p->lent) : FG_WHOLE);
    if (earned > passed * FG_WHOLE) earned = passed * FG_WHOLE;
    fg_pace_add(p, (int64_t)(earned / FG_WHOLE));
}

/* How long a launch has to wait, and then ask again; 0: not at all. */
static inline uint64_t fg_pace_wait(fg_pace *p, uint64_t now) {
    int64_t level;
    fg_pace_fill(p, now);
    level = fg_pace_get(&p->level);
    if (level > 0 || fg_pace_is_free(p, now)) return 0;
    fg_pace_put(&p->wanted, now);
    uint64_t owed = level < -FG_DEBT ? FG_DEBT : (uint64_t)-level;
    uint64_t wait = owed * FG_WHOLE / fg_pace_rate(p, now) + 20 * FG_US;
    return wait < FG_NAP ? wait : FG_NAP;
}

static inline uint64_t fg_pace_part(uint64_t time, uint32_t part) {
    return time / FG_WHOLE * part + time % FG_WHOLE * part / FG_WHOLE;
}

/* Time that was the job's, as far as it can tell, as the driver would count it. */
static inline uint64_t fg_pace_scaled(const fg_pace *p, uint64_t time, uint64_t now) {
    uint32_t scale = fg_pace_get(&p->scale);
    return !scale || now >= fg_pace_get(&p->scale_until) ? time : fg_pace_part(time, scale);
}

/* Other jobs use the card: what lies between two marks is not the job's time alone. */
static inline int fg_pace_is_crowded(const fg_pace *p, uint64_t now) {
    return fg_pace_get(&p->crowd) != FG_ALONE && now < fg_pace_get(&p->scale_until);
}

/* What one of its processes had of some time, by `turns` or `among`. */
static inline uint64_t fg_pace_turn(const fg_pace *p, uint64_t time, const uint32_t *turns, uint64_t now) {
    uint32_t part = fg_pace_get(turns);
    return !part || part > FG_WHOLE || !fg_pace_is_crowded(p, now) ? time : fg_pace_part(time, part);
}

static inline void fg_pace_tell(fg_pace *p, uint64_t time, int is_sure) {
    __atomic_add_fetch(&p->used, time, __ATOMIC_RELAXED);
    if (is_sure) __atomic_add_fetch(&p->sure, time, __ATOMIC_RELAXED);
}

/* Work that was charged and cannot be timed counts as what would have been charged the same. */
static inline void fg_pace_count(fg_pace *p, int64_t charged, int is_sure, uint64_t now) {
    uint64_t unit = fg_pace_scaled(p, FG_WHOLE, now);
    if (charged > 0 && unit) fg_pace_tell(p, (uint64_t)charged * FG_WHOLE / unit, is_sure);
}

/* Work that was charged `charged` was on the card from `start` to `end`; what of it is the job's own cost. */
static inline int64_t fg_pace_settle(fg_pace *p, uint64_t start, uint64_t end, int64_t charged, int is_sure, uint64_t now) {
    uint64_t seen = fg_pace_get(&p->busy_until), fresh, own;
    if (seen > now) seen = 0;   /* not of this boot */
    while (start < end && seen < end && !fg_pace_swap(&p->busy_until, &seen, end) && seen <= now) ;
    if (start > seen) seen = start;
    fresh = end > seen ? end - seen : 0;
    own = fg_pace_scaled(p, fresh, now);
    fg_pace_add(p, charged - (int64_t)own);
    fg_pace_tell(p, fresh, is_sure);
    return (int64_t)own;
}

/* How many of the job's processes have work on the card. */
static inline uint32_t fg_pace_flying(const fg_pace *p, uint64_t now) {
    uint32_t count = 0;
    for (int i = 0; i < FG_FLIGHTS; i++) count += p->flying[i] > now && p->flying[i] < now + FG_DEBT;
    return count;
}

/* How many of them launch at all, these days. */
static inline uint32_t fg_pace_launching(const fg_pace *p, uint64_t now) {
    uint32_t count = 0;
    for (int i = 0; i < FG_FLIGHTS; i++) count += p->flying[i] + 1000 * FG_MS > now && p->flying[i] < now + FG_DEBT;
    return count ? count : 1;
}

/* A process has long kernels on the card until then: from now on, unless it had some before that are not over. */
static inline void fg_pace_run(fg_long_runs *p, int flight, int goes_on, uint64_t until, uint64_t now) {
    fg_spans *r = &p->of[flight];
    uint64_t runs = fg_pace_get(&r->runs);
    fg_span *run = &r->run[(runs - 1) % FG_RUNS];
    if (!runs || !(goes_on || now <= fg_pace_get(&run->until))) {
        run = &r->run[runs % FG_RUNS];
        fg_pace_put(&run->launched, now);
        fg_pace_put(&run->from, now);
        fg_pace_put(&r->runs, runs + 1);
    }
    fg_pace_put(&run->until, until);
}

/* What was launched then waited for its first turn. */
static inline void fg_pace_begins(fg_long_runs *p, int flight, uint64_t launched, uint64_t from) {
    fg_spans *r = &p->of[flight];
    fg_span *run = &r->run[(fg_pace_get(&r->runs) - 1) % FG_RUNS];
    if (fg_pace_get(&run->launched) == launched) fg_pace_put(&run->from, from);
}

/* What was foretold of the last of them is corrected. */
static inline void fg_pace_ran(fg_long_runs *p, int flight, uint64_t until) {
    fg_spans *r = &p->of[flight];
    fg_span *run = &r->run[(fg_pace_get(&r->runs) - 1) % FG_RUNS];
    fg_pace_put(&run->until, until);
}
#endif
