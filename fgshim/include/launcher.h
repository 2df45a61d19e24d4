/* Which process of a job launches, where several of them have work in a turn of the job.
 *
 * The GPU changes between the processes of one job as between those of two jobs, and each change costs it time. So while
 * other jobs are active, the processes of a job launch one after another, too: the next one when the launcher has no
 * work, or has launched for FG_SUBTURN and its queue is empty. A process can wait for the work of another one of its job,
 * on the GPU: if a queue does not become empty in FG_LONGEST_SUBCLOSE, all of them launch together for a time.
 *
 * Pure, as arbiter.h. Seats are the indices of processes. */
#ifndef FG_LAUNCHER_H
#define FG_LAUNCHER_H
#include "arbiter.h"

#define FG_SUBTURN (10 * FG_MS)
#define FG_SUBIDLE (100 * FG_US)             /* a launcher without work for this time lets another process launch */
#define FG_LONGEST_SUBCLOSE (20 * FG_MS)
#define FG_TOGETHER (1000 * FG_MS)           /* the first time for which all launch; it doubles up to FG_LONGEST_TOGETHER */
#define FG_LONGEST_TOGETHER (64000 * FG_MS)

enum { FG_LAUNCHER_ANY = 0, FG_LAUNCHER_NONE = UINT32_MAX };   /* otherwise a seat + 1 */

typedef struct { uint64_t wants, until; } fg_seat_view;   /* as in fg_turn_view; all zero: the seat is free or quiet */

typedef struct {
    uint32_t launcher;           /* FG_LAUNCHER_…, or a seat + 1 */
    uint32_t closing;            /* seat + 1 of the process whose queue must become empty; 0: none */
    uint32_t last;               /* seat + 1 of the last launcher: the next one is looked for behind it */
    uint64_t since, closed;
    uint64_t together, until;    /* how long all launch after the next stall; until when they do now */
} fg_launcher;

/* Return the seat + 1 of the next process in turn whose launch waits, other than `but`; 0: there is none. */
static inline uint32_t fg_launcher_next(const fg_launcher *l, const fg_seat_view *seats, uint32_t count, uint32_t but) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t seat = (l->last + i) % count;
        if (seats[seat].wants && seat + 1 != but) return seat + 1;
    }
    return 0;
}

/* Return the number of processes that launch or want to, and one of them: the next that waits, if any does. */
static inline int fg_launcher_count(const fg_launcher *l, const fg_seat_view *seats, uint32_t count, uint64_t now, uint32_t *first) {
    int busy = 0;
    *first = fg_launcher_next(l, seats, count, 0);
    for (uint32_t i = 0; i < count; i++) {
        if (!seats[i].wants && seats[i].until <= now) continue;
        if (!*first) *first = i + 1;
        busy++;
    }
    return busy;
}

static inline void fg_launcher_let(fg_launcher *l, uint32_t launcher, uint64_t now) {
    l->launcher = launcher;
    l->closing = 0;
    l->since = now;
    if (launcher != FG_LAUNCHER_ANY) l->last = launcher;
}

static inline void fg_launcher_stall(fg_launcher *l, uint64_t now) {
    if (!l->together) l->together = FG_TOGETHER;
    l->until = now + l->together;
    l->together = 2 * l->together < FG_LONGEST_TOGETHER ? 2 * l->together : FG_LONGEST_TOGETHER;
    fg_launcher_let(l, FG_LAUNCHER_ANY, now);
}

/* A launcher that was closed: the next process launches when its queue is empty. */
static inline uint64_t fg_launcher_drain(fg_launcher *l, const fg_seat_view *seats, uint32_t count, uint64_t now) {
    uint64_t until = seats[l->closing - 1].until;
    if (until <= now) fg_launcher_let(l, fg_launcher_next(l, seats, count, l->closing), now);
    else if (now >= l->closed + FG_LONGEST_SUBCLOSE) fg_launcher_stall(l, now);
    else return fg_sooner(until, l->closed + FG_LONGEST_SUBCLOSE);
    return UINT64_MAX;
}

/* Decide which process launches. `is_on`: other jobs are active. Return when to decide again. */
static inline uint64_t fg_launcher_step(fg_launcher *l, const fg_seat_view *seats, uint32_t count, int is_on, uint64_t now) {
    uint32_t first;
    if (!is_on || now < l->until || fg_launcher_count(l, seats, count, now, &first) < 2) {
        if (l->launcher != FG_LAUNCHER_ANY) fg_launcher_let(l, FG_LAUNCHER_ANY, now);
        return UINT64_MAX;
    }
    if (l->closing) return fg_launcher_drain(l, seats, count, now);
    if (l->launcher == FG_LAUNCHER_ANY) {
        fg_launcher_let(l, first, now);
        return now + FG_SUBTURN;
    }
    uint32_t next = fg_launcher_next(l, seats, count, l->launcher);
    uint64_t until = seats[l->launcher - 1].until, idle = (until > l->since ? until : l->since) + FG_SUBIDLE;
    if (!next) return UINT64_MAX;
    if (now >= idle) fg_launcher_let(l, next, now);
    else if (now >= l->since + FG_SUBTURN) {
        l->closing = l->launcher;
        l->launcher = FG_LAUNCHER_NONE;
        l->closed = now;
        return fg_sooner(until, now + FG_LONGEST_SUBCLOSE);
    } else return fg_sooner(idle, l->since + FG_SUBTURN);
    return now + FG_SUBTURN;
}
#endif
