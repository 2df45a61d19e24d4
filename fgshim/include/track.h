/* The GPU time of the launches of a stream, by the time between its marks.
 *
 * For a job alone on its GPU this is the time in which it had work. Beside other jobs it is the usual time of its
 * launches if that is known, else the job's part of the turns. Pure except for the stopwatch. */
#ifndef FG_TRACK_H
#define FG_TRACK_H
#include <string.h>
#include "habit.h"
#include "stopwatch.h"

#define FG_HABITS 512
#define FG_TRACKS 8
#define FG_MARKS 8               /* events of a stream: one was reached, the others may be pending */
#define FG_IDLE (20 * FG_US)     /* a mark that is reached within this time was recorded on an idle stream */
#define FG_A_TURN (2 * FG_MS)    /* the wait of an idle stream for its first turn */
#define FG_PATIENCE (100 * FG_MS)    /* the first wait of a launch for an unknown kernel that runs on; it doubles */
#define FG_MOST_PATIENCE (1000 * FG_MS)
#define FG_MOST_RUN_ON (2000 * FG_MS)   /* the most that is charged for an unknown kernel while it runs */
#define FG_ENDLESS (3000 * FG_MS)    /* a kernel that has run for so long may wait for a later launch */
#define FG_DOUBT (20 * FG_MS)    /* tolerance for time that seems to exceed the charges */

typedef struct {
    void *event;
    int64_t charged, wall;
    uint64_t made;               /* when it was recorded; 0: behind a launch that is timed alone */
    uint32_t count;
    uint32_t lengthy, unknown;   /* launches recorded for the controller; launches not known to be short */
    int only;                    /* the kind of all its launches, or -1 */
    int gappy;                   /* the stream was idle in between: the time is meaningless */
    int64_t ran_on;              /* ns charged for an unknown kernel while it runs */
} fg_mark;

typedef struct {
    fg_pace *pace;
    fg_long_runs *runs;
    void *stream, *context;
    fg_mark mark[FG_MARKS], open; /* open: the launches since the last mark */
    uint32_t oldest, pending;    /* the mark before the oldest one was reached at `end` */
    uint64_t end, busy_until, marked;
    uint64_t settled, long_until; /* end of the last settled work; expected end of long work */
    uint64_t unreached;          /* when the oldest mark was last found not reached */
    int anchored;
    int idle;                    /* the mark before the oldest one was reached at once */
} fg_track;

typedef struct {
    fg_habit habit[FG_HABITS];
    fg_track track[FG_TRACKS];
    uint64_t looked;
    int64_t usual;               /* average cost of a launch: the estimate for an unknown kind */
    int64_t doubt;               /* ns that short work seems to have had beyond its charges */
    int flight;                  /* index of this process in fg_pace.flying */
    uint64_t patience;           /* ns that the next launch waits for an unknown kernel that runs on; 0: FG_PATIENCE */
} fg_meter;

static inline int fg_habit_of(fg_meter *m, uint64_t key) {
    int at = (int)(key * 0x9e3779b97f4a7c15ull >> 40) % FG_HABITS;
    if (m->habit[at].key != key) m->habit[at] = (fg_habit){.key = key, .cost = m->usual};
    return at;
}

static inline void fg_track_reopen(fg_track *track) { track->open = (fg_mark){.only = -1}; }

static inline void fg_track_lose(fg_track *track) {
    track->pending = 0;
    track->anchored = 0;
    fg_track_reopen(track);
}

/* Return the track of a stream. If all are taken, the one that was idle longest is reused. */
static inline fg_track *fg_track_of(fg_meter *m, fg_pace *pace, fg_long_runs *runs, void *stream, void *context) {
    fg_track *quiet = m->track;
    for (int i = 0; i < FG_TRACKS; i++) {
        fg_track *track = &m->track[i];
        if (track->pace == pace && track->stream == stream && track->context == context) return track;
        if (track->busy_until < quiet->busy_until) quiet = track;
    }
    if (quiet->context != context) memset(quiet, 0, sizeof *quiet);   /* its events belong to another context */
    fg_track_lose(quiet);
    quiet->pace = pace;
    quiet->runs = runs;
    quiet->stream = stream;
    quiet->context = context;
    quiet->busy_until = quiet->marked = quiet->settled = quiet->long_until = 0;
    return quiet;
}

/* The part of `time` between two events that a process had, scaled by the driver's measurement. */
static inline int64_t fg_share_of(const fg_pace *p, uint64_t time, const uint32_t *turns, uint64_t now) {
    return (int64_t)fg_pace_scaled(p, fg_pace_turn(p, time, turns, now), now);
}

/* Return the ns by which short work exceeds its charges, by its part of the turns, beyond the tolerance: then kernels
   that are mostly short are sometimes long. */
static inline int64_t fg_doubtful_time(fg_meter *m, const fg_track *track, int64_t seen, int64_t own) {
    if (track->idle) seen = seen < own + FG_A_TURN ? own : seen - FG_A_TURN;
    m->doubt += seen * 3 / 4 - own;
    if (m->doubt < -FG_DOUBT) m->doubt = -FG_DOUBT;
    int64_t more = m->doubt > FG_DOUBT ? m->doubt - FG_DOUBT : 0;
    m->doubt -= more;
    return more;
}

/* Return the cost of short work: its charge, and more if that is doubtful; its kind then no longer counts as short. */
static inline int64_t fg_settle_short(fg_meter *m, fg_track *track, const fg_mark *mark, uint64_t fresh, int64_t charged, uint64_t now) {
    int64_t more = fg_doubtful_time(m, track, fg_share_of(track->pace, fresh, &track->pace->among, now), charged);
    if (more && mark->only >= 0) m->habit[mark->only].odd = FG_WHOLE * 3 / 4;
    return charged + more;
}

/* Settle a mark beside other jobs: short work costs its usual time, long work the process's part of the turns. Work
   that overlaps with other streams counts once. */
static inline int64_t fg_settle_in_turns(fg_meter *m, fg_track *track, const fg_mark *mark, uint64_t end, uint64_t now) {
    uint64_t from = track->end, length = end > from ? end - from : 1;
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].pace == track->pace && m->track[i].settled > from) from = m->track[i].settled;
    uint64_t fresh = end > from ? end - from : 0;
    int64_t charged = (int64_t)((double)mark->charged * (double)fresh / (double)length);
    int64_t own = mark->unknown ? fg_share_of(track->pace, fresh, &track->pace->turns, now)
                : fg_settle_short(m, track, mark, fresh, charged, now);
    fg_pace_add(track->pace, mark->charged - own);
    fg_pace_count(track->pace, own, !mark->lengthy, now);
    return own;
}

/* Return until when this process expects long work on the GPU. */
static inline uint64_t fg_meter_long(const fg_meter *m, const fg_pace *pace) {
    uint64_t until = 0;
    for (int i = 0; i < FG_TRACKS; i++)
        if (m->track[i].pace == pace && m->track[i].long_until > until) until = m->track[i].long_until;
    return until;
}

static inline int fg_track_has_long(const fg_track *track) {
    int count = track->open.lengthy != 0;
    for (uint32_t i = 0; i < track->pending; i++) count += track->mark[(track->oldest + i) % FG_MARKS].lengthy != 0;
    return count;
}

static inline void fg_track_learn(fg_meter *m, fg_track *track, const fg_mark *mark, int64_t length, int64_t own, uint64_t now) {
    fg_habit *habit = &m->habit[mark->only];
    fg_pace *pace = track->pace;
    if (!fg_pace_is_crowded(pace, now)) {
        fg_learn(habit, length / mark->count, own / mark->count, now);
    } else if (mark->count == 1 && !mark->made) {
        if (length <= FG_SHORT) own = fg_share_of(pace, (uint64_t)length, &pace->among, now);
        fg_learn_in_turns(habit, length, own, track->idle, now);
    }
}

/* Return when the oldest mark was reached: `length` after the previous one, but neither before it was recorded nor
   before it was last found not reached. */
static inline uint64_t fg_track_end(const fg_track *track, int64_t length, uint64_t now) {
    uint64_t end = track->end + (uint64_t)length, made = track->mark[track->oldest].made;
    if (end < made) end = made;
    if (end < track->unreached) end = track->unreached;
    return end < now ? end : now;
}

/* Settle the oldest mark, which was reached `length` ns after the previous one. */
static inline void fg_track_settle(fg_meter *m, fg_track *track, int64_t length, uint64_t now) {
    fg_mark *mark = &track->mark[track->oldest];
    uint64_t end = fg_track_end(track, length, now);
    int was_idle = mark->made && end < mark->made + FG_IDLE, is_sure = !mark->lengthy;
    if (mark->gappy || was_idle) {
        fg_pace_count(track->pace, mark->charged, is_sure, now);
    } else if (mark->count) {
        int64_t own = fg_pace_is_crowded(track->pace, now) ? fg_settle_in_turns(m, track, mark, end, now)
                    : fg_pace_settle(track->pace, track->end, end, mark->charged, is_sure, now);
        if (mark->only >= 0) fg_track_learn(m, track, mark, length, own, now);
        fg_approach(&m->usual, own / mark->count, 4);
        track->settled = end;
    }
    track->idle = was_idle;
    if (mark->gappy && !mark->count) fg_pace_correct_start(track->runs, m->flight, mark->made, end);
    track->end = end;
    m->patience = 0;
    track->oldest = (track->oldest + 1) % FG_MARKS;
    if (!--track->pending) track->busy_until = end + (uint64_t)track->open.wall;
    if (is_sure) return;
    track->long_until = fg_track_has_long(track) && track->busy_until > end ? track->busy_until : end;
    fg_pace_correct_end(track->runs, m->flight, fg_meter_long(m, track->pace));
}

/* Record a kernel that runs longer than expected, and charge an unknown one while it runs. */
static inline void fg_track_runs_on(fg_meter *m, fg_track *track, uint64_t now) {
    fg_mark *mark = &track->mark[track->oldest];
    if (mark->gappy || !mark->lengthy || now <= track->end) return;
    if (track->long_until < now + 2 * FG_MAX_SLEEP) {
        track->long_until = now + 2 * FG_MAX_SLEEP;
        fg_pace_correct_end(track->runs, m->flight, fg_meter_long(m, track->pace));
        fg_pace_put(&track->pace->flying[m->flight], track->long_until);
    }
    int64_t own = fg_share_of(track->pace, now - track->end, &track->pace->turns, now);
    if (!mark->unknown || own < mark->charged + 20 * FG_MS) return;
    int64_t more = own - mark->charged, most = FG_MOST_RUN_ON - mark->ran_on;
    if (more > most) more = most;
    fg_pace_add(track->pace, -more);
    mark->charged += more;
    mark->ran_on += more;
}

/* Return how long an unknown kernel has run on, in ns; 0: there is none. */
static inline uint64_t fg_meter_runs_on(const fg_meter *m, const fg_pace *pace, uint64_t now) {
    uint64_t longest = 0;
    for (int i = 0; i < FG_TRACKS; i++) {
        const fg_track *track = &m->track[i];
        if (track->pace != pace || !track->pending || !track->mark[track->oldest].ran_on || now <= track->end) continue;
        if (now - track->end > longest) longest = now - track->end;
    }
    return longest;
}
#endif
