/* How one process learns what its launches cost: habits of functions, and marks on streams.
 *
 * A mark is an event. Every two milliseconds one launch of a stream gets one before it and one behind it: the time
 * between the two is what this launch took, and the time since the mark before them is what all launches since
 * then took, if the stream had work all the while. A mark that is reached as soon as it is made tells that it had
 * not; then what was charged stands. A launch without marks costs no call of the driver.
 * Pure but for the stopwatch that it is given. One lock is held around each call, the caller's. */
#ifndef FG_METER_H
#define FG_METER_H
#include <string.h>
#include "pace.h"

#define FG_HABITS 512
#define FG_TRACKS 8
#define FG_MARKS 8               /* events of a stream: one has been reached, the others may be under way */
#define FG_GAP (2 * FG_MS)       /* between two launches with marks */
#define FG_IDLE (20 * FG_US)     /* a mark that is reached within this was made on an idle stream */
#define FG_LOOK (200 * FG_US)    /* between two looks at the marks */
#define FG_AGAIN (250 * FG_MS)   /* a function's cost is measured alone again after this */
#define FG_TRIALS 4              /* launches that are timed at once: the first of all loads its code */
#define FG_TRIAL (100 * FG_MS)   /* the longest that the second launch waits for the first of its kind */

typedef struct {                 /* what the driver does for the meter */
    int (*record)(void *self, void **event, void *stream);              /* makes the event where there is none; 1: done */
    int (*reached)(void *self, void *event);                            /* 0: not yet; -1: it will never tell */
    int64_t (*between)(void *self, void *from, void *to);               /* ns; below 0: it will never tell */
    void *self;
} fg_stopwatch;

typedef struct {                 /* a function or graph; cost: what the job is charged; wall: how long it takes */
    uint64_t key, sampled;
    uint64_t tried, due;         /* when it was last launched to be measured, and was to begin */
    int64_t cost, wall;
    uint32_t seen;               /* how often, up to FG_TRIALS */
} fg_habit;

typedef struct {
    void *event;
    int64_t charged, wall;
    uint64_t made;               /* when; 0: behind a launch that is timed alone */
    uint32_t count;
    int only;                    /* the habit of all of its launches, or -1 */
    int gappy;                   /* the stream was idle in between: the time says nothing */
} fg_mark;

typedef struct {
    fg_pace *pace;
    void *stream, *context;
    fg_mark mark[FG_MARKS], open; /* open: the launches since the last mark */
    uint32_t oldest, pending;    /* the mark before the oldest has been reached, at `end` */
    uint64_t end, busy_until, marked;
    int anchored;
} fg_track;

typedef struct {
    fg_habit habit[FG_HABITS];
    fg_track track[FG_TRACKS];
    uint64_t looked;
    int64_t usual;               /* what a launch costs on the average: believed of one that is not known */
} fg_meter;

typedef struct { fg_track *track; int habit, marks; } fg_turn;   /* of one launch */

static inline int fg_habit_of(fg_meter *m, uint64_t key) {
    int at = (int)(key * 0x9e3779b97f4a7c15ull >> 40) % FG_HABITS;
    if (m->habit[at].key != key) m->habit[at] = (fg_habit){.key = key, .cost = m->usual};
    return at;
}

static inline void fg_open_anew(fg_track *track) { track->open = (fg_mark){.only = -1}; }

static inline void fg_track_lose(fg_track *track) {
    track->pending = 0;
    track->anchored = 0;
    fg_open_anew(track);
}

/* The track of a stream; where all are taken, that of the stream that has been quiet the longest. */
static inline fg_track *fg_track_of(fg_meter *m, fg_pace *pace, void *stream, void *context) {
    fg_track *quiet = m->track;
    for (int i = 0; i < FG_TRACKS; i++) {
        fg_track *track = &m->track[i];
        if (track->pace == pace && track->stream == stream && track->context == context) return track;
        if (track->busy_until < quiet->busy_until) quiet = track;
    }
    if (quiet->context != context) memset(quiet, 0, sizeof *quiet);   /* its events are of another context */
    fg_track_lose(quiet);
    quiet->pace = pace;
    quiet->stream = stream;
    quiet->context = context;
    quiet->busy_until = quiet->marked = 0;
    return quiet;
}

/* A quarter of the way to what was seen, and by no more than a quarter: one sample in which others had a turn of
   the card is hundreds of times too long. */
static inline void fg_nudge(int64_t *known, int64_t seen, int is_new) {
    int64_t step = (seen - *known) / 4, most = *known / 4 + 1;
    *known = is_new && (!*known || seen < *known) ? seen : *known + (step > most ? most : step);
}

static inline void fg_learn(fg_habit *habit, int64_t wall, int64_t cost, uint64_t now) {
    if (cost < wall / 16) cost = wall / 16;   /* its like on another stream was charged: not for ever */
    if (!habit->seen) habit->wall = habit->cost = 0;   /* no more than a guess */
    fg_nudge(&habit->wall, wall, habit->seen < FG_TRIALS);
    fg_nudge(&habit->cost, cost, habit->seen < FG_TRIALS);
    habit->seen += habit->seen < FG_TRIALS;
    habit->sampled = now;
}

/* The oldest mark has been reached, `length` after the one before it. */
static inline void fg_track_settle(fg_meter *m, fg_track *track, int64_t length, uint64_t now) {
    fg_mark *mark = &track->mark[track->oldest];
    uint64_t end = track->end + (uint64_t)length;
    if (end > now) end = now;
    if (mark->gappy || (mark->made && end < mark->made + FG_IDLE)) {
        fg_pace_count(track->pace, mark->charged, now);
    } else if (mark->count) {
        uint64_t from = track->end;
        int64_t own = fg_pace_settle(track->pace, from, end, mark->charged, now);
        if (mark->only >= 0) fg_learn(&m->habit[mark->only], length / mark->count, own / mark->count, now);
        fg_nudge(&m->usual, own / mark->count, 0);
    }
    track->end = end;
    track->oldest = (track->oldest + 1) % FG_MARKS;
    if (!--track->pending) track->busy_until = end + (uint64_t)track->open.wall;
}

static inline void fg_track_look(fg_meter *m, fg_track *track, uint64_t now, fg_stopwatch *watch) {
    while (track->pending) {
        fg_mark *mark = &track->mark[track->oldest];
        void *before = track->mark[(track->oldest + FG_MARKS - 1) % FG_MARKS].event;
        int reached = watch->reached(watch->self, mark->event);
        int64_t length = reached > 0 ? watch->between(watch->self, before, mark->event) : 0;
        if (!reached) return;
        if (reached < 0 || length < 0) { fg_track_lose(track); return; }
        fg_track_settle(m, track, length, now);
    }
}

static inline void fg_meter_look(fg_meter *m, uint64_t now, fg_stopwatch *watch) {
    m->looked = now;
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].pending) fg_track_look(m, &m->track[i], now, watch);
}

/* The events of this context are not to be asked any more. */
static inline void fg_meter_forget(fg_meter *m, void *context) {
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].context == context) memset(&m->track[i], 0, sizeof m->track[i]);
}

/* The second launch of what is not known waits for the first; what runs on costs as long as it has run. */
static inline uint64_t fg_habit_wait(fg_habit *habit, fg_pace *pace, uint64_t now) {
    if (!habit->tried || habit->sampled >= habit->tried) return 0;
    uint64_t since = now - habit->tried;
    int64_t ran = now > habit->due ? (int64_t)(now - habit->due) : 0;
    if (!habit->sampled && since < FG_TRIAL) return since / 8 + 20 * FG_US < FG_MS ? since / 8 + 20 * FG_US : FG_MS;
    if (ran > 4 * habit->wall + 20 * FG_MS) {
        habit->wall = ran;
        habit->cost = (int64_t)fg_pace_scaled(pace, (uint64_t)ran, now);
    }
    return 0;
}

/* How long this launch has to wait before it asks again; 0: it may go, by fg_meter_begin. */
static inline uint64_t fg_meter_wait(fg_meter *m, fg_pace *pace, uint64_t key, uint64_t now, fg_stopwatch *watch) {
    fg_habit *habit = &m->habit[fg_habit_of(m, key)];
    if (now - m->looked >= FG_LOOK) fg_meter_look(m, now, watch);
    if (fg_pace_is_free(pace, now)) return 0;
    uint64_t trial = fg_habit_wait(habit, pace, now);
    return trial ? trial : fg_pace_wait(pace, now);
}

/* A mark behind what has been launched; `made` as in fg_mark. */
static inline int fg_track_mark_at(fg_track *track, uint64_t now, uint64_t made, fg_stopwatch *watch) {
    fg_mark *mark = &track->mark[(track->oldest + track->pending) % FG_MARKS];
    void *event = mark->event;
    if (!watch->record(watch->self, &event, track->stream)) {
        mark->event = event;
        fg_track_lose(track);
        return 0;
    }
    *mark = track->open;
    mark->event = event;
    mark->made = made;
    track->pending++;
    track->marked = now;
    fg_open_anew(track);
    return 1;
}

/* Behind a launch that is timed alone. */
static inline int fg_track_mark(fg_track *track, uint64_t now, fg_stopwatch *watch) {
    return fg_track_mark_at(track, now, 0, watch);
}

/* A stream that is idle starts its time anew, at a mark before the launch. */
static inline void fg_track_anchor(fg_track *track, uint64_t now, fg_stopwatch *watch) {
    void **event = &track->mark[track->oldest].event;
    track->anchored = watch->record(watch->self, event, track->stream);
    track->oldest = (track->oldest + 1) % FG_MARKS;
    track->end = now;
}

static inline void fg_track_drop_open(fg_track *track, uint64_t now) {
    fg_pace_count(track->pace, track->open.charged, now);
    fg_open_anew(track);
}

/* A mark before the launch, where one is due; whether one comes behind it too. */
static inline int fg_track_prepare(fg_meter *m, fg_track *track, int due, uint64_t now, fg_stopwatch *watch) {
    if (now > track->busy_until && track->pending) fg_track_look(m, track, now, watch);
    int idle = now > track->busy_until && !track->pending;
    if (idle) {
        fg_track_drop_open(track, now);
        track->open.gappy = 1;
    }
    if (!due || track->pending + 2 >= FG_MARKS) return 0;
    if (idle || !track->anchored) {
        if (track->pending) return 0;
        fg_track_anchor(track, now, watch);
        fg_track_drop_open(track, now);
        return track->anchored;
    }
    return fg_track_mark_at(track, now, now, watch);
}

/* Before the launch itself: charge it, and decide whether a mark comes behind it. */
static inline void fg_meter_begin(fg_meter *m, fg_track *track, uint64_t key, uint64_t now, fg_stopwatch *watch, fg_turn *turn) {
    int at = fg_habit_of(m, key);
    fg_habit *habit = &m->habit[at];
    int due = habit->seen < FG_TRIALS || now - habit->sampled > FG_AGAIN || now - track->marked >= FG_GAP;
    uint64_t from = track->busy_until > now ? track->busy_until : now;
    *turn = (fg_turn){track, at, fg_track_prepare(m, track, due, now, watch)};
    if (turn->marks && (!habit->sampled || habit->sampled >= habit->tried)) {
        habit->tried = now;
        habit->due = from;
    }
    track->open.only = !track->open.count || track->open.only == at ? at : -1;
    track->open.count++;
    track->open.charged += habit->cost;
    track->open.wall += habit->wall;
    track->busy_until = from + (uint64_t)habit->wall;
    fg_pace_add(track->pace, -habit->cost);
}
#endif
