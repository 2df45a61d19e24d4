/* The hook and the arbiter of turns, as they act on a host: threads that wake late, and know only what they can see.
 *
 * The decisions are those of fgshim/include/arbiter.h. A job has a page: whether it has the turn, since when a launch
 * waits, and until when it expects work on the GPU. The hook measures the time of a launch by the GPU's events, and
 * queues no more than FG_AHEAD by that measure, and more where the GPU had to wait for its launches; then its launch sleeps
 * until half of that is left, for the end of a kernel wakes nobody of the hook. While the job has work, a watcher looks at
 * its queue, and says that a closed turn has ended when it is empty. A controller has no part in it. */
#ifndef GPUSIM_PACING_H
#define GPUSIM_PACING_H
#include "program.h"
#include "arbiter.h"

#define MARGIN (8 * MS)             /* a lease lasts for so long beyond the expected end of the work */
#define LOOK (1 * MS)               /* the watcher looks at least so often while there is work */
#define SPIN (5 * US)               /* between two looks that the watcher takes without sleep */
#define SUBTURN (10 * MS)           /* the most time that one process of a job launches while others of it wait */
#define IDLE (100 * US)             /* a process without work for this time lets another one of the job launch */
#define WEIGHT 8                    /* the latest launch has this part of the measured time of a launch */

typedef struct seat {
    const job *job;
    int word, resumed, is_watched;
    ns wants, until, had;           /* of the page; `had`: counted GPU time */
    ns look;                        /* when the watcher looks next, if it is watched */
    int may_be_deep;                /* its processes may queue more than most_ahead */
    int waiting;                    /* launches that wait for the turn */
    int unfinished;                 /* launches of all processes */
    unsigned launched, seen_launched;   /* counted; by the watcher when it last looked */
    double each;                    /* measured time of a launch; 0: not yet */
    process *launcher;              /* the only process that launches in this turn */
    ns since;                       /* when it became that */
    int behind;                     /* processes that wait for it */
    ns last_done;                   /* or when an empty queue got work, and when the GPU began with it */
} seat;

static struct {
    int is_on, launchers;           /* `launchers`: a job's processes launch one after another */
    ns poll, near;                  /* of the watcher: how often it looks; when it does not sleep, at the end of a closed turn */
    fg_arbiter arbiter;
    seat *seats[FG_ARBITER_JOBS];
    ns due;                         /* when the arbiter runs */
} pacing = {.launchers = 1, .poll = 100 * US, .near = 200 * US, .due = NEVER};

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

static void watch(void *subject);

static void watch_in(seat *seat, ns time)
{
    seat->look = now + time;
    later(seat->look, watch, seat);
}

static void show(seat *seat, int word)
{
    int has_begun = word == FG_TURN_HELD && seat->word != FG_TURN_HELD;
    if (has_begun && seat->word == FG_TURN_NONE)
        seat->launcher = NULL;
    if (word == FG_TURN_NONE && seat->word != FG_TURN_NONE && seat->is_watched)
        watch_in(seat, lateness());     /* it waits for the word, too */
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
        if (pacing.seats[i]) {
            show(pacing.seats[i], fg_arbiter_word(&pacing.arbiter, i));
            pacing.seats[i]->may_be_deep = fg_arbiter_may_be_deep(&pacing.arbiter, i);
        }
    if (wake != UINT64_MAX)
        wake_arbiter((ns)wake);
}

static void stop_watching(seat *seat)
{
    seat->is_watched = 0;
    seat->until = seat->word == FG_TURN_NONE ? 0 : seat->last_done;
    wake_arbiter(now);
}

static ns next_look(const seat *seat, ns rest)      /* of the watcher, which does not sleep while the end of a closed turn is near */
{
    int is_closed = seat->word == FG_TURN_NONE;
    if (is_closed && rest <= pacing.near)
        return SPIN;
    rest = rest < pacing.poll ? pacing.poll : rest > LOOK ? LOOK : rest;
    return rest - (is_closed ? pacing.near / 2 : 0) + lateness();
}

static void watch(void *subject)    /* the watcher looks at the queue */
{
    seat *seat = subject;
    if (is_stopped(seat->job) || now != seat->look || !seat->is_watched)
        return;
    if (!seat->unfinished && (seat->word == FG_TURN_NONE || seat->launched == seat->seen_launched)) {
        stop_watching(seat);
        return;
    }
    ns rest = ahead(seat);
    if (seat->unfinished)
        seat->until = now + (rest > LOOK ? LOOK : rest) + MARGIN;
    seat->seen_launched = seat->launched;
    watch_in(seat, next_look(seat, rest));
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

static ns depth(const process *program)     /* the most that the process queues */
{
    ns most = most_ahead() + (program->seat->may_be_deep ? program->spare : 0);
    return most < FG_AHEAD_ALONE ? most : FG_AHEAD_ALONE;
}

static void look_ahead_later(process *program)
{
    ns wait = ahead(program->seat) - depth(program) / 2, nap = program->nap ? program->nap : depth(program);
    wait = wait < pacing.poll ? pacing.poll : wait > nap ? nap : wait;
    program->due = now + wait + lateness();
    later(program->due, look_ahead, program);
}

static void woke(process *program)      /* a launch that slept; the GPU may have had no work meanwhile */
{
    const seat *seat = program->seat;
    ns nap = program->nap ? program->nap : FG_AHEAD_ALONE;
    nap = seat->unfinished ? nap + nap / 16 : nap / 2;
    program->nap = nap < pacing.poll / 2 ? pacing.poll / 2 : nap > FG_AHEAD_ALONE ? FG_AHEAD_ALONE : nap;
    program->spare += seat->unfinished ? -program->spare / 64 : 2 * (now - seat->last_done);
    if (program->spare > FG_AHEAD_ALONE)
        program->spare = FG_AHEAD_ALONE;
}

static void look_ahead(void *subject)
{
    process *program = subject;
    if (!program->is_ahead || program->due != now)
        return;
    woke(program);
    if (ahead(program->seat) >= depth(program))
        look_ahead_later(program);
    else {
        program->is_ahead = 0;
        later(now, proceed, program);
    }
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
    program->is_ahead = ahead(program->seat) >= depth(program);
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
    seat->until = now + ahead(seat) + MARGIN;
    if (!seat->is_watched) {
        seat->is_watched = 1;
        watch_in(seat, pacing.poll + lateness());
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
