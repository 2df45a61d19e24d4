/* The hook and the arbiter of turns, as they act on a host: threads that wake late, and know only what they can see.
 *
 * The decisions are those of fgshim/include/arbiter.h. A job has a page: whether it has the turn, since when a launch
 * waits, and until when it expects work on the GPU. The hook measures the time of a launch by the GPU's events, and
 * queues no more than FG_AHEAD by that measure; then its launch waits for an event, as programs wait. While the job has
 * work, a watcher looks at its queue. A controller has no part in it. */
#ifndef GPUSIM_PACING_H
#define GPUSIM_PACING_H
#include "program.h"
#include "arbiter.h"

#define MARGIN (8 * MS)             /* a lease lasts for so long beyond the expected end of the work */
#define LOOK (1 * MS)               /* the watcher looks at least so often while there is work */
#define SUBTURN (10 * MS)           /* the most time that one process of a job launches while others of it wait */
#define IDLE (100 * US)             /* a process without work for this time lets another one of the job launch */
#define WEIGHT 8                    /* the latest launch has this part of the measured time of a launch */

typedef struct seat {
    const job *job;
    int word, resumed, is_watched;
    ns wants, until, had;           /* of the page; `had`: counted GPU time */
    int waiting;                    /* launches that wait for the turn */
    int unfinished;                 /* launches of all processes */
    int has_ended;                  /* it has said that its closed turn ends */
    unsigned launched, seen_launched;   /* counted; by the watcher when it last looked */
    double each;                    /* measured time of a launch; 0: not yet */
    process *launcher;              /* the only process that launches in this turn */
    ns since;                       /* when it became that */
    int behind;                     /* processes that wait for it */
    ns last_done;                   /* or when an empty queue got work, and when the GPU began with it */
} seat;

static struct {
    int is_on, launchers;           /* `launchers`: a job's processes launch one after another */
    ns poll, early;                 /* of the watcher: how often it looks; it says so much early that a closed turn ends */
    fg_arbiter arbiter;
    seat *seats[FG_ARBITER_JOBS];
    ns due;                         /* when the arbiter runs */
} pacing = {.launchers = 1, .poll = 100 * US, .early = 150 * US, .due = NEVER};

static void run_arbiter(void *subject);

static void wake_arbiter(ns at)
{
    at = (at > now ? at : now) + lateness();
    if (at < pacing.due) {
        pacing.due = at;
        later(at, run_arbiter, NULL);
    }
}

static ns most_ahead(void) { return (ns)fg_arbiter_ahead(&pacing.arbiter); }

static ns ahead(const seat *seat)   /* expected time of the work on the GPU */
{
    double runs = (double)(now - seat->last_done);
    double rest = seat->unfinished * seat->each - (runs < seat->each ? runs : seat->each);
    if (seat->unfinished && !seat->each)
        return most_ahead();
    return seat->unfinished ? (ns)rest : 0;
}

static void show(seat *seat, int word)
{
    int has_begun = word == FG_TURN_HELD && seat->word != FG_TURN_HELD;
    if (has_begun && seat->word == FG_TURN_NONE)
        seat->launcher = NULL;
    seat->word = word;
    for (int i = 0; has_begun && i < program_count; i++)
        if (programs[i]->seat == seat && programs[i]->is_parked && !programs[i]->is_woken) {
            programs[i]->is_woken = 1;
            later(now + lateness(), proceed, programs[i]);
        }
}

static int working_without_turns(void)  /* processes with policy none, as the controller sees them */
{
    int count = 0;
    for (int i = 0; i < program_count; i++)
        count += programs[i]->seat == NULL && programs[i]->gpu.ready;
    return count;
}

static void run_arbiter(void *subject)
{
    (void)subject;
    if (now != pacing.due)
        return;                     /* it was woken before */
    pacing.due = NEVER;
    fg_turn_view views[FG_ARBITER_JOBS] = {0};
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        seat *seat = pacing.seats[i];
        if (!seat)
            continue;
        views[i].wants = (uint64_t)seat->wants;
        views[i].until = (uint64_t)seat->until;
        views[i].resumed = seat->resumed;
        views[i].had = (uint64_t)seat->had;
        seat->resumed = 0;
    }
    pacing.arbiter.others = working_without_turns();
    uint64_t wake = fg_arbiter_step(&pacing.arbiter, views, (uint64_t)now);
    for (int i = 0; i < FG_ARBITER_JOBS; i++)
        if (pacing.seats[i])
            show(pacing.seats[i], fg_arbiter_word(&pacing.arbiter, i));
    if (wake != UINT64_MAX)
        wake_arbiter((ns)wake);
}

static void stop_watching(seat *seat)
{
    seat->is_watched = 0;
    seat->until = seat->word == FG_TURN_NONE ? 0 : seat->last_done;
    wake_arbiter(now);
}

static void watch(void *subject)    /* the watcher looks at the queue */
{
    seat *seat = subject;
    if (is_stopped(seat->job))
        return;
    ns rest = ahead(seat);
    int ends = seat->word == FG_TURN_NONE && rest <= pacing.early;
    rest -= pacing.early;
    rest = rest < pacing.poll ? pacing.poll : rest > LOOK ? LOOK : rest;
    if (seat->unfinished && ends && !seat->has_ended) {
        seat->has_ended = 1;
        seat->until = 0;
        wake_arbiter(now);
    } else if (seat->unfinished)
        seat->until = now + rest + MARGIN;
    else if (seat->word == FG_TURN_NONE || seat->launched == seat->seen_launched) {
        stop_watching(seat);
        return;
    }
    seat->seen_launched = seat->launched;
    later(now + rest + lateness(), watch, seat);
}

static void park(process *program)
{
    seat *seat = program->seat;
    seat->waiting += !program->is_parked;
    program->is_parked = 1;
    seat->wants = now;
    wake_arbiter(now);
}

static void look_ahead(void *subject);

static void look_ahead_later(process *program)
{
    program->due = now + ahead(program->seat) - most_ahead() + pacing.poll + lateness();
    later(program->due, look_ahead, program);
}

static void stop_waiting(process *program, ns wake)
{
    program->is_ahead = 0;
    later(now + wake, proceed, program);
}

static void look_ahead(void *subject)
{
    process *program = subject;
    if (!program->is_ahead || program->due != now)
        return;
    if (ahead(program->seat) < most_ahead())
        stop_waiting(program, 0);
    else
        look_ahead_later(program);
}

/* One process of a job launches at a time: its contexts would interrupt each other. */
static int is_launcher(process *program)
{
    seat *seat = program->seat;
    process *launcher = seat->launcher;
    if (!pacing.launchers || (launcher == program && (now - seat->since < SUBTURN || !seat->behind)))
        return 1;
    if (launcher && (launcher == program || launcher->unfinished))
        return 0;
    if (launcher && !launcher->is_parked && now - launcher->launched < IDLE && now - seat->since < SUBTURN)
        return 0;
    seat->launcher = program;
    seat->since = now;
    return 1;
}

static void unpark(process *program)
{
    seat *seat = program->seat;
    if (program->is_parked && --seat->waiting == 0)
        seat->wants = 0;
    program->is_parked = 0;
}

static int is_behind(process *program)  /* another process of the job launches */
{
    program->seat->behind -= program->is_behind;
    program->is_behind = !is_launcher(program);
    program->seat->behind += program->is_behind;
    if (program->is_behind)
        later(now + pacing.poll + lateness(), proceed, program);
    return program->is_behind;
}

static int is_ahead(process *program)   /* the job has queued enough */
{
    program->is_ahead = ahead(program->seat) >= most_ahead();
    if (program->is_ahead)
        look_ahead_later(program);
    return program->is_ahead;
}

static int may_launch(process *program)
{
    seat *seat = program->seat;
    program->is_woken = 0;
    if (!seat)
        return 1;
    if (seat->word == FG_TURN_NONE) {
        park(program);
        return 0;
    }
    unpark(program);
    if (is_behind(program) || is_ahead(program))
        return 0;
    if (seat->word == FG_TURN_PARKED) {
        seat->word = FG_TURN_HELD;
        seat->resumed = 1;
        wake_arbiter(now);
    }
    if (!seat->unfinished)
        launch(stream_of(program), (operation){.kind = MARKER});
    return 1;
}

static void has_begun(process *program)     /* the wait for a time slice is no part of the launch */
{
    program->seat->last_done = now;
}

static void has_launched(process *program)
{
    seat *seat = program->seat;
    if (!seat)
        return;
    if (seat->unfinished++ == 0)
        seat->last_done = now;
    seat->launched++;
    program->launched = now;
    program->unfinished++;
    seat->has_ended = 0;
    seat->until = now + ahead(seat) + MARGIN;
    if (!seat->is_watched) {
        seat->is_watched = 1;
        later(now + pacing.poll + lateness(), watch, seat);
    }
}

static void has_finished(process *program)
{
    seat *seat = program->seat;
    if (!seat)
        return;
    double took = (double)(now - seat->last_done);
    if (pacing.arbiter.guests % 2 == 0 || !seat->each || took < seat->each)     /* else another job had a part of it */
        seat->each += seat->each ? (took - seat->each) / WEIGHT : took;
    seat->had += (ns)took;
    seat->last_done = now;
    seat->unfinished--;
    program->unfinished--;
    for (int i = 0; i < program_count && ahead(seat) < most_ahead(); i++)
        if (programs[i]->seat == seat && programs[i]->is_ahead)
            stop_waiting(programs[i], host.wake);
}

static seat *take_seat(const job *job)
{
    int policy = job->fair ? FG_PACE_FAIR : FG_PACE_HARD;
    int place = -1;
    if (pacing.is_on && !job->none)
        place = fg_arbiter_join(&pacing.arbiter, (uint32_t)policy, (uint32_t)(job->share * 100));
    if (place < 0)
        return NULL;
    seat *seat = pacing.seats[place] = calloc(1, sizeof *seat);
    seat->job = job;
    return seat;
}
#endif
