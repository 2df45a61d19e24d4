/* The budget of GPU time of a job on one GPU, in the region, common to all its processes.
 *
 * Pure: no function reads a clock or calls the system. Times are nanoseconds of CLOCK_MONOTONIC, shares are
 * ten-thousandths. All processes of the job work on the budget concurrently, so each word of it is atomic. A reader
 * may see one word changed and another not yet; every function tolerates that.
 *
 * A launch is charged what launches of its kind cost before. When the work has ended, the charge is replaced by the
 * time in which the job had work on the GPU. Overlapping work of its processes and streams counts once. `scale` is the
 * part of such time that is the job's own, since processes of other jobs have turns in between. */
#ifndef FG_PACE_H
#define FG_PACE_H
#include <stdint.h>

#define FG_WHOLE 10000
#define FG_US 1000ll
#define FG_MS 1000000ll
#define FG_MAX_SAVED (10 * FG_MS)        /* the most that is saved */
#define FG_MAX_DEBT (120000 * FG_MS)    /* the largest debt */
#define FG_BURST (3 * FG_MS)            /* saved before a job launches again that had to wait, beside other jobs */
#define FG_REST (16 * FG_MS)            /* the longest wait for a burst */
#define FG_MAX_SLEEP (5 * FG_MS)          /* the longest sleep of a launch before it checks again */
#define FG_REPORT_PERIOD (10 * FG_MS)        /* how often a job that is not paced records that it launches */
#define FG_FLIGHTS 16
#define FG_RUNS 32

enum { FG_PACE_NONE, FG_PACE_HARD, FG_PACE_FAIR };
enum { FG_BY_EVENTS, FG_BY_NVML };
enum { FG_ALONE, FG_CROWDED, FG_BESIDE_LONG };   /* other jobs work on the GPU; one of them has long kernels */

typedef struct { uint64_t launched, from, until; } fg_span;   /* from: the beginning of its first turn */
typedef struct {                 /* when a process had long kernels: its last spans, the newest at runs - 1 */
    uint64_t runs;
    fg_span run[FG_RUNS];
} fg_spans;
typedef struct { fg_spans of[FG_FLIGHTS]; } fg_long_runs;   /* of a job on one GPU; not in fg_pace because of its size */

typedef struct {
    uint32_t policy, share;      /* written once, under the seal */
    uint32_t lent, scale;        /* written by the controller, like all up to `filled`; scale 0 means FG_WHOLE */
    uint64_t lent_until, scale_until;
    uint32_t mechanism, crowd;   /* the source of the scale; whether other jobs use the GPU; both valid until scale_until */
    uint32_t turns, among;       /* the part of a process while it has long kernels; the part if it always had work */
    uint64_t filled;             /* when the level was last raised */
    int64_t  level;              /* ns that may be used; below 0: the debt */
    uint64_t busy_until;         /* end of the last work accounted for */
    uint64_t used;               /* total GPU time of the job, before the scale */
    uint64_t sure;               /* the part of `used` that is known without the turns */
    uint64_t wanted;             /* when a launch last had to wait */
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

/* The loan at this moment, in addition to the share. */
static inline uint32_t fg_pace_lent(const fg_pace *p, uint64_t now) {
    uint32_t lent = fg_pace_get(&p->lent);
    if (p->policy != FG_PACE_FAIR || now >= fg_pace_get(&p->lent_until)) return 0;
    return lent < FG_WHOLE ? lent : FG_WHOLE;
}

/* Whether the job is alone on the GPU, so that launches need not wait. */
static inline int fg_pace_is_free(const fg_pace *p, uint64_t now) { return fg_pace_lent(p, now) == FG_WHOLE; }

static inline uint64_t fg_pace_rate(const fg_pace *p, uint64_t now) {
    uint64_t rate = (uint64_t)fg_pace_get(&p->share) + fg_pace_lent(p, now);
    return rate > FG_WHOLE ? FG_WHOLE : rate ? rate : 1;   /* the job may have written anything to its region */
}

static inline void fg_pace_add(fg_pace *p, int64_t more) {
    int64_t seen = fg_pace_get(&p->level), level;
    do {
        level = seen < -FG_MAX_DEBT ? -FG_MAX_DEBT : seen > FG_MAX_SAVED ? FG_MAX_SAVED : seen;
        level = more > 0 && level + more > FG_MAX_SAVED ? FG_MAX_SAVED : level + more;
        if (level < -FG_MAX_DEBT) level = -FG_MAX_DEBT;
    } while (!fg_pace_swap(&p->level, &seen, level));
}

/* Raise the level by what was earned since the last call. */
static inline void fg_pace_fill(fg_pace *p, uint64_t now) {
    uint64_t since = fg_pace_get(&p->filled), until = fg_pace_get(&p->lent_until), lease = 0, passed;
    if (now - since < 20 * FG_US) return;
    if (!fg_pace_swap(&p->filled, &since, now)) return;
    if (!since || since > now) return;   /* the first call, or a value from before a restart of the host */
    passed = now - since;
    if (passed > FG_MAX_DEBT * 10) passed = FG_MAX_DEBT * 10;
    if (p->policy == FG_PACE_FAIR && until > since) lease = (until < now ? until : now) - since;
    if (lease > passed) lease = passed;
    uint64_t earned = passed * p->share + lease * (fg_pace_get(&p->lent) < FG_WHOLE ? fg_pace_get(&p->lent) : FG_WHOLE);
    if (earned > passed * FG_WHOLE) earned = passed * FG_WHOLE;
    fg_pace_add(p, (int64_t)(earned / FG_WHOLE));
}

static inline uint64_t fg_pace_part(uint64_t time, uint32_t part) {
    return time / FG_WHOLE * part + time % FG_WHOLE * part / FG_WHOLE;
}

/* Scale time by the driver's measurement, if there is a valid one. */
static inline uint64_t fg_pace_scaled(const fg_pace *p, uint64_t time, uint64_t now) {
    uint32_t scale = fg_pace_get(&p->scale);
    return !scale || now >= fg_pace_get(&p->scale_until) ? time : fg_pace_part(time, scale);
}

/* Whether other jobs use the GPU, so that the time between two events is not the job's alone. */
static inline int fg_pace_is_crowded(const fg_pace *p, uint64_t now) {
    return fg_pace_get(&p->crowd) != FG_ALONE && now < fg_pace_get(&p->scale_until);
}

/* Return what must be saved before a launch that has waited goes. Each change between jobs costs the GPU a quarter of a
   millisecond, so a job launches less often and more at a time. Not beside long kernels: their turns are replayed from
   the mean rate of short ones. */
static inline int64_t fg_pace_burst(const fg_pace *p, uint64_t since, uint64_t now) {
    int64_t most = (int64_t)fg_pace_part(FG_REST, fg_pace_rate(p, now));
    if (since >= now || fg_pace_get(&p->crowd) != FG_CROWDED || !fg_pace_is_crowded(p, now)) return 0;
    return most < FG_BURST ? most : FG_BURST;
}

/* Return the ns after which a launch must ask again; 0: it may go. `since`: when it first asked. */
static inline uint64_t fg_pace_wait(fg_pace *p, uint64_t since, uint64_t now) {
    int64_t level, burst = fg_pace_burst(p, since, now);
    fg_pace_fill(p, now);
    level = fg_pace_get(&p->level);
    if (level > burst || fg_pace_is_free(p, now)) return 0;
    fg_pace_put(&p->wanted, now);
    uint64_t lacks = level < -FG_MAX_DEBT ? FG_MAX_DEBT : (uint64_t)(burst - level);
    uint64_t wait = lacks * FG_WHOLE / fg_pace_rate(p, now) + 20 * FG_US;
    return wait < FG_MAX_SLEEP ? wait : FG_MAX_SLEEP;
}

/* The part of a time that one process of the job had, by `turns` or `among`. */
static inline uint64_t fg_pace_turn(const fg_pace *p, uint64_t time, const uint32_t *turns, uint64_t now) {
    uint32_t part = fg_pace_get(turns);
    return !part || part > FG_WHOLE || !fg_pace_is_crowded(p, now) ? time : fg_pace_part(time, part);
}

static inline void fg_pace_add_used(fg_pace *p, uint64_t time, int is_sure) {
    __atomic_add_fetch(&p->used, time, __ATOMIC_RELAXED);
    if (is_sure) __atomic_add_fetch(&p->sure, time, __ATOMIC_RELAXED);
}

/* Count work that cannot be timed as the time that was charged for it. */
static inline void fg_pace_count(fg_pace *p, int64_t charged, int is_sure, uint64_t now) {
    uint64_t unit = fg_pace_scaled(p, FG_WHOLE, now);
    if (charged > 0 && unit) fg_pace_add_used(p, (uint64_t)charged * FG_WHOLE / unit, is_sure);
}

/* Replace a charge by the time from `start` to `end`. Return the part of it that is the job's own. */
static inline int64_t fg_pace_settle(fg_pace *p, uint64_t start, uint64_t end, int64_t charged, int is_sure, uint64_t now) {
    uint64_t seen = fg_pace_get(&p->busy_until), fresh, own;
    if (seen > now) seen = 0;   /* from before a restart of the host */
    while (start < end && seen < end && !fg_pace_swap(&p->busy_until, &seen, end) && seen <= now) ;
    if (start > seen) seen = start;
    fresh = end > seen ? end - seen : 0;
    own = fg_pace_scaled(p, fresh, now);
    fg_pace_add(p, charged - (int64_t)own);
    fg_pace_add_used(p, fresh, is_sure);
    return (int64_t)own;
}

/* The number of processes of the job that have work on the GPU. */
static inline uint32_t fg_pace_flying(const fg_pace *p, uint64_t now) {
    uint32_t count = 0;
    for (int i = 0; i < FG_FLIGHTS; i++) count += p->flying[i] > now && p->flying[i] < now + FG_MAX_DEBT;
    return count;
}

/* The number of processes that launched in the last second; at least 1. */
static inline uint32_t fg_pace_launching(const fg_pace *p, uint64_t now) {
    uint32_t count = 0;
    for (int i = 0; i < FG_FLIGHTS; i++) count += p->flying[i] + 1000 * FG_MS > now && p->flying[i] < now + FG_MAX_DEBT;
    return count ? count : 1;
}

/* Record that a process has long kernels until `until`: from now on, or continuing its last span. */
static inline void fg_pace_record_span(fg_long_runs *p, int flight, int goes_on, uint64_t until, uint64_t now) {
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

/* Correct the beginning of the last span: its first turn began later than its launch. */
static inline void fg_pace_correct_start(fg_long_runs *p, int flight, uint64_t launched, uint64_t from) {
    fg_spans *r = &p->of[flight];
    fg_span *run = &r->run[(fg_pace_get(&r->runs) - 1) % FG_RUNS];
    if (fg_pace_get(&run->launched) == launched) fg_pace_put(&run->from, from);
}

/* Correct the end of the last span. */
static inline void fg_pace_correct_end(fg_long_runs *p, int flight, uint64_t until) {
    fg_spans *r = &p->of[flight];
    fg_span *run = &r->run[(fg_pace_get(&r->runs) - 1) % FG_RUNS];
    fg_pace_put(&run->until, until);
}
#endif
