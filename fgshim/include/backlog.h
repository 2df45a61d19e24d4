/* The work that one process has queued on a GPU: how much it is, when it ends, and the GPU time that it had.
 *
 * Marks are events behind launches, in one ring for all streams of a context: one each time that FG_MARKED_WORK has been
 * launched, so short kernels are marked seldom, and many streams need no more events than one. The time between two
 * marks is the GPU time of all launches in between; work that overlaps in several streams counts once. The cost of the
 * next launch is taken to be the mean of the last ones. At the end of a turn each stream with unmarked work gets a mark
 * (fg_backlog_seal), so the end of all work is known, and not estimated.
 *
 * Time in which the queue was empty is not counted. A launch that finds it empty begins a new interval: with a mark before
 * the launch, too, if the last such mark is FG_BETWEEN_STARTS ago, and what was launched before is counted by its cost.
 *
 * Pure except for the stopwatch, which calls the driver. The caller holds one lock around each call. Times are
 * nanoseconds of CLOCK_MONOTONIC. All zero is a valid, empty state. */
#ifndef FG_BACKLOG_H
#define FG_BACKLOG_H
#include "arbiter.h"
#include "stopwatch.h"

#define FG_RING 64
#define FG_STREAMS 48                /* a stream beyond them is not marked at the end of a turn */
#define FG_MARKED_WORK (400 * FG_US)
#define FG_NO_STREAM ((void *)-1)     /* a stream that only its own thread can mark, with a launch */
#define FG_KNOWN 4                    /* samples before the cost is relied on: the very first launches load code */
#define FG_SAMPLE 8                   /* launches that are a sample of the cost, whatever they took */
#define FG_KEPT 0.8                   /* the weight of the earlier samples of the cost, at each new one */
#define FG_MARK_DUE (100 * FG_US)     /* how often the driver is asked for a mark that is overdue */
#define FG_BETWEEN_STARTS (4 * FG_MS) /* between two marks before a launch */
#define FG_REACHED_AT_ONCE (20 * FG_US)   /* a mark that is reached so soon was recorded on an empty queue */
#define FG_SHORT_GUEST (5 * FG_MS)    /* launches of a guest whose cost is not known yet: one by one, each would wait for a time slice */
#define FG_NO_END (3000 * FG_MS)      /* a kernel that has run for so long may wait for a later launch */

enum { FG_BEHIND, FG_BEFORE, FG_AT_END };   /* a mark: recorded with the launch before it, before one, at the end of a turn */

typedef struct {
    void *event;
    uint64_t made;               /* when it was recorded */
    uint64_t first;              /* when the first launch since the previous mark was made */
    uint32_t launches;           /* since the previous mark */
    uint32_t guests;             /* at the first of them */
    int place;                   /* FG_BEHIND … */
    double charged;              /* ns that were expected of them */
} fg_ring_mark;

typedef struct {                 /* what each launch reads stands first, together */
    void *context;               /* of the events */
    uint32_t streams, next;      /* rows in use; the row that is reused next */
    uint32_t oldest, pending;    /* the mark before the oldest one was reached at `end`, if is_timed */
    uint32_t known;              /* samples of the cost, up to FG_KNOWN */
    int is_timed;
    uint32_t guests;             /* set by the caller: counts when other jobs have time slices; odd while they have */
    int is_charged;              /* set by the caller: its budget is charged, too */
    uint64_t end;                /* when the last mark was reached */
    uint64_t begun;              /* since when the unsettled work has the GPU */
    double queued;               /* ns that are expected of all launches that have not been settled */
    double cost;                 /* ns of GPU time of a launch: the mean of the recent ones */
    fg_ring_mark open;           /* the launches since the last mark */
    uint64_t started;            /* when the last mark before a launch was recorded */
    uint64_t nap;                /* the longest sleep of a launch: shorter after the GPU had to wait for one; 0: no limit */
    uint64_t spare;              /* ns of work that is queued beyond the usual, because the GPU had to wait for launches */
    uint64_t had;                /* ns of GPU time, in total */
    fg_pace *pace;               /* the job's account, set by the caller; NULL: it is not counted there */
    struct { void *stream; uint32_t unmarked; } of[FG_STREAMS];   /* launches since its last mark; NULL: see fg_backlog_launch */
    uint64_t unreached;          /* when the oldest mark was last found not reached */
    double recent_had, recent_launches, sample_had, sample_launches;   /* sample: since the cost was last corrected */
    fg_ring_mark mark[FG_RING];
} fg_backlog;

/* Forget what is queued: its marks cannot be relied on. */
static inline void fg_backlog_lose(fg_backlog *b) {
    b->pending = 0;
    b->is_timed = 0;
    b->queued = 0;
    b->open = (fg_ring_mark){0};
}

static inline uint32_t *fg_backlog_unmarked(fg_backlog *b, const void *stream) {
    for (uint32_t i = 0; i < b->streams; i++)
        if (b->of[i].stream == stream) return &b->of[i].unmarked;
    return NULL;
}

/* Forget a stream that is destroyed. */
static inline void fg_backlog_drop(fg_backlog *b, const void *stream) {
    for (uint32_t i = 0; i < b->streams; i++)
        if (b->of[i].stream == stream) b->of[i] = b->of[--b->streams];
}

/* Forget the events of a context, which must not be queried any more. */
static inline void fg_backlog_forget(fg_backlog *b, const void *context) {
    if (b->context != context) return;
    fg_backlog_lose(b);
    memset(b->mark, 0, sizeof b->mark);
    b->streams = 0;
    b->context = 0;
}

/* Return when all work that is known will have ended, as far as its usual cost tells; a past time: there is none. */
static inline uint64_t fg_backlog_end(const fg_backlog *b) {
    return b->open.launches || b->pending ? b->begun + (uint64_t)b->queued : b->end;
}

/* Whether only a look at the marks tells if the queue is empty. */
static inline int fg_backlog_is_doubtful(const fg_backlog *b, uint64_t now) { return b->pending && now > fg_backlog_end(b); }

/* Return for how long work has run that was not counted yet. */
static inline uint64_t fg_backlog_runs_for(const fg_backlog *b, uint64_t now) {
    uint64_t since = b->pending ? b->mark[b->oldest].first : now;
    if (since < b->end) since = b->end;
    return now > since ? now - since : 0;
}

/* Return when the oldest mark was reached: `length` after the previous one, but neither before it was recorded nor
   before it was last found not reached. The first one is as early as that allows, if it was recorded before a launch: what
   follows corrects a time that is too early, but none that is too late. */
static inline uint64_t fg_backlog_reached_at(const fg_backlog *b, int64_t length, uint64_t now) {
    uint64_t first = b->mark[b->oldest].place == FG_BEFORE ? b->mark[b->oldest].made : now;
    uint64_t end = b->is_timed && length >= 0 ? b->end + (uint64_t)length : first;
    if (end < b->mark[b->oldest].made) end = b->mark[b->oldest].made;
    if (end < b->unreached) end = b->unreached;
    return end < now ? end : now;
}

/* Learn the cost of a launch. Marks of several streams are reached in any order, so what they tell is added up until it
   is enough GPU time for a sample. */
static inline void fg_backlog_learn(fg_backlog *b, double had, uint32_t launches) {
    b->sample_had += had;
    b->sample_launches += launches;
    if (!b->sample_launches || (b->known == FG_KNOWN && b->sample_had < (double)FG_MARKED_WORK && b->sample_launches < FG_SAMPLE)) return;
    double kept = b->known < 2 ? 0 : FG_KEPT;   /* the first launch loads code */
    b->recent_had = b->recent_had * kept + b->sample_had;
    b->recent_launches = b->recent_launches * kept + b->sample_launches;
    b->cost = b->recent_had / b->recent_launches;
    b->known += b->known < FG_KNOWN;
    b->sample_had = b->sample_launches = 0;
}

static inline void fg_backlog_add(fg_backlog *b, uint64_t from, uint64_t end, uint64_t had) {
    b->had += had;
    if (!b->pace) return;
    uint64_t fresh = fg_pace_count(b->pace, from, end, had);
    if (b->is_charged) fg_pace_charge(b->pace, (int64_t)fresh);
}

/* Count the oldest mark, which was reached `length` after the previous one. */
static inline void fg_backlog_settle(fg_backlog *b, int64_t length, uint64_t now) {
    fg_ring_mark *mark = &b->mark[b->oldest];
    uint64_t end = fg_backlog_reached_at(b, length, now), from = b->end > mark->first ? b->end : mark->first;
    if (!mark->launches) from = b->end < end && mark->place != FG_BEFORE ? b->end : end;   /* of another stream, behind work that was counted */
    double had = end > from ? (double)(end - from) : 0;
    int is_shared = b->guests % 2 || b->guests != mark->guests, was_idle = mark->place != FG_BEHIND && end < mark->made + FG_REACHED_AT_ONCE;
    int is_partly = is_shared || was_idle;   /* the time between the marks is not all the job's */
    if (is_partly && b->known && had > mark->charged) had = mark->charged;
    fg_backlog_add(b, from, end, (uint64_t)had);
    if (!is_partly || !b->known || had < mark->charged) fg_backlog_learn(b, had, mark->launches);
    b->queued = b->queued > mark->charged ? b->queued - mark->charged : 0;
    if (end > b->end) b->end = end;
    if (end > b->begun) b->begun = end;
    b->is_timed = 1;
    b->oldest = (b->oldest + 1) % FG_RING;
    b->pending--;
}

/* Count the launches behind the last mark by their cost: they have ended. */
static inline void fg_backlog_close(fg_backlog *b) {
    uint64_t had = (uint64_t)b->open.charged;
    if (b->open.launches) fg_backlog_add(b, b->begun, b->begun + had, had);
    b->open = (fg_ring_mark){0};
    b->queued = 0;
}

static inline void fg_backlog_ask(fg_backlog *b, uint64_t now, fg_stopwatch *watch) {
    while (b->pending) {
        void *before = b->mark[(b->oldest + FG_RING - 1) % FG_RING].event;
        int reached = watch->reached(watch->self, b->mark[b->oldest].event);
        if (!reached) b->unreached = now;
        if (reached < 0 || (!reached && now > b->mark[b->oldest].made + FG_NO_END)) fg_backlog_lose(b);
        if (reached <= 0) return;
        fg_backlog_settle(b, b->is_timed ? watch->between(watch->self, before, b->mark[b->oldest].event) : -1, now);
    }
}

/* Ask the driver which marks have been reached. Launches behind the last mark are taken to have ended when their usual
   time has passed. Return until when the process has work; a past time: it has none. */
static inline uint64_t fg_backlog_look(fg_backlog *b, uint64_t now, fg_stopwatch *watch) {
    fg_backlog_ask(b, now, watch);
    uint64_t end = fg_backlog_end(b);
    if (b->pending) return end > now ? end : now + FG_MARK_DUE;
    if (!b->open.launches || end > now) return end;
    fg_backlog_close(b);
    return end;
}

/* Return the ns after which a launch must ask again; 0: it may go, so that at most `ahead` is queued, or one kernel
   that is longer. Launches whose cost is not known go one by one. */
static inline uint64_t fg_backlog_wait(const fg_backlog *b, uint64_t ahead, uint64_t now) {
    uint64_t end = fg_backlog_end(b), nap = b->nap ? b->nap : ahead;
    if (b->known && b->known < FG_KNOWN && b->guests % 2 && b->pending < FG_KNOWN && b->cost < (double)FG_SHORT_GUEST) return 0;
    if (b->pending && (b->known < FG_KNOWN || b->pending == FG_RING - 1)) return FG_MARK_DUE;
    if (end <= now + ahead / 4 || (double)end + b->cost <= (double)(now + ahead)) return 0;
    uint64_t wait = end - now > ahead / 2 ? end - now - ahead / 2 : FG_MARK_DUE;
    return wait < nap ? wait : nap;
}

/* Return the most work, in ns, that may be queued: `ahead`, and more where a queue of this length was too short. */
static inline uint64_t fg_backlog_depth(const fg_backlog *b, uint64_t ahead) {
    return ahead + b->spare < FG_AHEAD_ALONE ? ahead + b->spare : FG_AHEAD_ALONE;
}

/* After a launch that slept until `woke`, and fg_backlog_look, which returned `end`. Kernels that are shorter than expected,
   and a host that wakes threads late, leave the GPU idle: sleeps become shorter, and the queue longer by twice that
   time, because half of it is left when a launch wakes. */
static inline void fg_backlog_woke(fg_backlog *b, uint64_t end, uint64_t woke) {
    uint64_t nap = b->nap ? b->nap : FG_AHEAD_ALONE;
    if (!b->pending && !b->open.launches) nap = nap / 2 > FG_MARK_DUE / 2 ? nap / 2 : FG_MARK_DUE / 2;
    else nap += nap / 16;
    if (woke > end) b->spare += 2 * (woke - end);
    else b->spare -= b->spare / 64;
    b->nap = nap < FG_AHEAD_ALONE ? nap : FG_AHEAD_ALONE;
    if (b->spare > FG_AHEAD_ALONE) b->spare = FG_AHEAD_ALONE;
}

static inline void fg_backlog_count(fg_backlog *b, void *stream) {
    if (stream == FG_NO_STREAM) return;
    uint32_t *unmarked = fg_backlog_unmarked(b, stream);
    if (!unmarked) {
        uint32_t at = b->streams < FG_STREAMS ? b->streams++ : b->next++ % FG_STREAMS;
        b->of[at].stream = stream;
        b->of[at].unmarked = 0;
        unmarked = &b->of[at].unmarked;
    }
    ++*unmarked;
}

static inline void fg_backlog_mark(fg_backlog *b, void *stream, uint64_t now, fg_stopwatch *watch) {
    fg_ring_mark *mark = &b->mark[(b->oldest + b->pending) % FG_RING];
    uint32_t *unmarked = fg_backlog_unmarked(b, stream);
    if (b->pending == FG_RING - 1) return;
    void *event = mark->event;
    int is_recorded = watch->record(watch->self, &event, stream);
    if (is_recorded) *mark = b->open;
    mark->event = event;
    mark->made = now;
    if (unmarked) *unmarked = 0;
    if (!is_recorded) return;
    b->pending++;
    b->open = (fg_ring_mark){0};
}

/* Note a launch that is made now, and record a mark before it if one is due. Return whether a mark must be recorded behind
   it, with fg_backlog_mark. */
static inline int fg_backlog_launch(fg_backlog *b, void *context, void *stream, uint64_t now, fg_stopwatch *watch) {
    if (context != b->context) {
        fg_backlog_forget(b, b->context);
        b->context = context;
    }
    int is_empty = !b->pending && now > fg_backlog_end(b), is_start = is_empty && b->guests % 2 == 0 && now - b->started >= FG_BETWEEN_STARTS;
    if (is_start) {
        b->open.place = FG_BEFORE;
        b->started = now;
        fg_backlog_mark(b, stream, now, watch);
    }
    if (is_empty) {
        fg_backlog_close(b);
        b->begun = now;
    }
    fg_backlog_count(b, stream);
    if (!b->open.launches) {
        b->open.first = now;
        b->open.guests = b->guests;
    }
    b->open.launches++;
    b->open.charged += b->cost;
    b->queued += b->cost;
    return is_start || b->known < FG_KNOWN || b->open.charged >= (double)FG_MARKED_WORK;
}

/* Mark the end of all work, at the end of a turn: no launch is made until the next one. */
static inline void fg_backlog_seal(fg_backlog *b, uint64_t now, fg_stopwatch *watch) {
    for (uint32_t i = 0; i < b->streams; i++)
        if (b->of[i].unmarked) {
            b->open.place = FG_AT_END;
            fg_backlog_mark(b, b->of[i].stream, now, watch);
        }
}
#endif
