/* How one process paces its launches and learns what they cost: habits of functions, and marks on streams.
 *
 * A mark is an event. Every two milliseconds one launch of a stream gets one before it and one behind it: the time
 * between the two is what this launch took, and the time since the mark before them is what all launches since
 * then took, if the stream had work all the while. A mark that is reached as soon as it is made tells that it had
 * not; then what was charged stands. Each mark is timed from the one before, over idle times too, so that it is known
 * by the host's clock when it was reached. A launch without marks costs no call of the driver.
 * Pure but for the stopwatch that it is given. One lock is held around each call, the caller's. */
#ifndef FG_METER_H
#define FG_METER_H
#include "track.h"

#define FG_GAP (2 * FG_MS)       /* between two launches with marks */
#define FG_LOOK (200 * FG_US)    /* between two looks at the marks */
#define FG_FAR (10000 * FG_MS)   /* marks so far apart are not timed well: the driver's figure has 24 bits */

typedef struct { fg_track *track; int habit, marks; } fg_turn;   /* of one launch */

static inline void fg_track_look(fg_meter *m, fg_track *track, uint64_t now, fg_stopwatch *watch) {
    while (track->pending) {
        fg_mark *mark = &track->mark[track->oldest];
        void *before = track->mark[(track->oldest + FG_MARKS - 1) % FG_MARKS].event;
        int reached = watch->reached(watch->self, mark->event);
        int64_t length = reached > 0 ? watch->between(watch->self, before, mark->event) : 0;
        if (!reached) { track->unreached = now; fg_track_runs_on(m, track, now); return; }
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

/* Among other jobs only what is launched behind other work is timed well: now and then one may go at once. */
static inline int fg_is_to_pair(const fg_meter *m, const fg_habit *habit, const fg_pace *pace, uint64_t now) {
    int is_due = habit->wall <= FG_SHORT && now - habit->queued >= FG_AGAIN + 16 * (uint64_t)habit->wall;
    if (!is_due || !fg_pace_is_crowded(pace, now)) return 0;
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].pace == pace && m->track[i].pending - 1u < 2 && now < m->track[i].busy_until) return 1;
    return 0;
}

/* How long this launch has to wait before it asks again; 0: it may go, by fg_meter_begin. */
static inline uint64_t fg_meter_wait(fg_meter *m, fg_pace *pace, uint64_t key, uint64_t now, fg_stopwatch *watch) {
    fg_habit *habit = &m->habit[fg_habit_of(m, key)];
    if (now - m->looked >= FG_LOOK) fg_meter_look(m, now, watch);
    if (fg_pace_is_free(pace, now)) return 0;
    uint64_t trial = fg_habit_wait(habit, pace, now);
    if (!trial && fg_is_to_pair(m, habit, pace, now)) return 0;
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

/* The first mark of a stream, before a launch: it is taken to be reached at once, until a later one tells better. */
static inline void fg_track_anchor(fg_track *track, uint64_t now, fg_stopwatch *watch) {
    void **event = &track->mark[track->oldest].event;
    track->anchored = watch->record(watch->self, event, track->stream);
    track->oldest = (track->oldest + 1) % FG_MARKS;
    track->end = now;
    track->idle = 1;
}

static inline void fg_track_drop_open(fg_track *track, uint64_t now) {
    fg_pace_count(track->pace, track->open.charged, !track->open.lengthy, now);
    fg_open_anew(track);
}

/* A mark before the launch, where one is due; whether one comes behind it too. */
static inline int fg_track_prepare(fg_meter *m, fg_track *track, int due, uint64_t now, fg_stopwatch *watch) {
    if (now > track->busy_until && track->pending) fg_track_look(m, track, now, watch);
    int idle = !track->pending && (now > track->busy_until || (track->anchored && !track->open.count));
    if (idle) {
        fg_track_drop_open(track, now);
        track->open.gappy = 1;
    }
    if (!due || track->pending + 2 >= FG_MARKS) return 0;
    if (!track->anchored || (idle && now - track->marked > FG_FAR)) {
        fg_track_anchor(track, now, watch);
        fg_track_drop_open(track, now);
        return track->anchored;
    }
    return fg_track_mark_at(track, now, now, watch);
}

static inline int fg_is_due(const fg_track *track, const fg_habit *habit, uint64_t now) {
    int is_queued = now < track->busy_until && fg_pace_is_crowded(track->pace, now);
    return habit->seen < FG_TRIALS || now - habit->sampled > FG_AGAIN || now - track->marked >= FG_GAP ||
           (is_queued && now - habit->queued > FG_AGAIN / 10 + 2 * (uint64_t)habit->wall);
}

/* What is not known to be brief: the controller is told until when it is there. */
static inline void fg_track_goes_long(fg_meter *m, fg_track *track, const fg_habit *habit, uint64_t now) {
    int goes_on = fg_track_has_long(track);
    track->open.lengthy++;
    track->open.unknown += !fg_is_short(habit);
    track->long_until = track->busy_until;
    fg_pace_run(track->runs, m->flight, goes_on, fg_meter_long(m, track->pace), now);
}

/* Before the launch itself: charge it, and decide whether a mark comes behind it. */
static inline void fg_meter_begin(fg_meter *m, fg_track *track, uint64_t key, uint64_t now, fg_stopwatch *watch, fg_turn *turn) {
    int at = fg_habit_of(m, key);
    fg_habit *habit = &m->habit[at];
    int due = fg_is_due(track, habit, now);
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
    if (!fg_is_short(habit) || habit->wall > FG_BRIEF) fg_track_goes_long(m, track, habit, now);
    fg_pace_add(track->pace, -habit->cost);
}
#endif
