/* The pacing of one process: it charges launches and learns their cost by events on streams, called marks.
 *
 * Every two milliseconds one launch of a stream is enclosed by two marks. The time between them is the duration of this
 * launch. The time since the previous mark is that of all launches since then, if the stream had work all the time. A
 * mark that is reached as soon as it is recorded shows that the stream was idle; then the charge stands. Each mark is
 * timed from the previous one, over idle times too, so that the host's clock shows when it was reached. A launch
 * without marks makes no other call of the driver.
 *
 * Pure except for the stopwatch, which calls the driver. The caller holds one lock around each call. */
#ifndef FG_METER_H
#define FG_METER_H
#include "track.h"

#define FG_GAP (2 * FG_MS)       /* between two launches with marks */
#define FG_LOOK (200 * FG_US)    /* between two queries of the marks */
#define FG_FAR (10000 * FG_MS)   /* marks further apart are not timed precisely: the driver's float has 24 bits */

typedef struct { fg_track *track; int habit, marks; } fg_turn;   /* one launch */

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

/* Forget the events of a context, which must not be queried any more. */
static inline void fg_meter_forget(fg_meter *m, void *context) {
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].context == context) memset(&m->track[i], 0, sizeof m->track[i]);
}

/* Whether a launch may go at once behind other work: beside other jobs, only such a launch is timed precisely. */
static inline int fg_is_to_pair(const fg_meter *m, const fg_habit *habit, const fg_pace *pace, uint64_t now) {
    int is_due = habit->wall <= FG_SHORT && now - habit->queued >= FG_AGAIN + 16 * (uint64_t)habit->wall;
    if (!is_due || !fg_pace_is_crowded(pace, now)) return 0;
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].pace == pace && m->track[i].pending - 1u < 2 && now < m->track[i].busy_until) return 1;
    return 0;
}

/* Return the ns that a launch has to wait for an unknown kernel that has run on for `ran` ns; 0: it may go. Once it has
   run for long, launches go one by one at growing pauses, whatever the job owes: it may run until one of them is made. */
static inline uint64_t fg_meter_wait_for_unknown(fg_meter *m, uint64_t ran, uint64_t since, uint64_t now) {
    uint64_t patience = m->patience ? m->patience : FG_PATIENCE, waited = now > since ? now - since : 0;
    if (ran < FG_ENDLESS) return FG_MAX_SLEEP;
    if (waited < patience) return patience - waited < FG_MAX_SLEEP ? patience - waited : FG_MAX_SLEEP;
    m->patience = patience < FG_MOST_PATIENCE / 2 ? 2 * patience : FG_MOST_PATIENCE;
    return 0;
}

/* Return the ns after which this launch must ask again; 0: it may go, with fg_meter_begin. `since`: when it first asked. */
static inline uint64_t fg_meter_wait(fg_meter *m, fg_pace *pace, uint64_t key, uint64_t since, uint64_t now, fg_stopwatch *watch) {
    fg_habit *habit = &m->habit[fg_habit_of(m, key)];
    if (now - m->looked >= FG_LOOK) fg_meter_look(m, now, watch);
    if (fg_pace_is_free(pace, now)) return 0;
    uint64_t trial = fg_habit_wait(habit, pace, now);
    if (!trial && fg_is_to_pair(m, habit, pace, now)) return 0;
    uint64_t ran = trial ? 0 : fg_meter_runs_on(m, pace, now);
    if (ran) {
        fg_pace_put(&pace->wanted, now);
        return fg_meter_wait_for_unknown(m, ran, since, now);
    }
    /* A longer kernel fills its turn, so that fewer changes would gain nothing. */
    int is_to_save = fg_is_short(habit) && habit->wall < FG_BRIEF / 2;
    return trial ? trial : fg_pace_wait(pace, is_to_save ? since : now, now);
}

/* Record a mark behind all launches so far; `made` as in fg_mark. */
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
    fg_track_reopen(track);
    return 1;
}

/* Record the mark behind a launch that is timed alone. */
static inline int fg_track_mark(fg_track *track, uint64_t now, fg_stopwatch *watch) {
    return fg_track_mark_at(track, now, 0, watch);
}

/* Record the first mark of a stream, before a launch. It is taken to be reached at once until a later mark corrects it. */
static inline void fg_track_anchor(fg_track *track, uint64_t now, fg_stopwatch *watch) {
    void **event = &track->mark[track->oldest].event;
    track->anchored = watch->record(watch->self, event, track->stream);
    track->oldest = (track->oldest + 1) % FG_MARKS;
    track->end = now;
    track->idle = 1;
}

static inline void fg_track_drop_open(fg_track *track, uint64_t now) {
    fg_pace_count(track->pace, track->open.charged, !track->open.lengthy, now);
    fg_track_reopen(track);
}

/* Record a mark before the launch if one is due. Return whether one is due behind it, too. */
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

/* Record in the region until when a launch that may be long is expected to run. */
static inline void fg_track_goes_long(fg_meter *m, fg_track *track, const fg_habit *habit, uint64_t now) {
    int goes_on = fg_track_has_long(track);
    track->open.lengthy++;
    track->open.unknown += !fg_is_short(habit);
    track->long_until = track->busy_until;
    fg_pace_record_span(track->runs, m->flight, goes_on, fg_meter_long(m, track->pace), now);
}

/* Charge a launch before it is made, and decide whether a mark follows it. */
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
