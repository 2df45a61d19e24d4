/* Exclusive turns on a shared GPU: which job may launch, and when that changes.
 *
 * One job at a time has the turn; the launches of the others wait. Credit grows with a job's share, and the time on the
 * clock during which a job has the turn is charged to it, whatever it does with it: kernels, streams, graphs, copies. While
 * no other job is active, the GPU time that the job has counted itself is charged: its pauses cost the others nothing.
 * A job that has used its credit, or has no work, gives the turn up; it passes on when the GPU has finished the job's
 * work. The waiting job with the most credit for its share is next.
 *
 * A kernel cannot be interrupted, but the GPU gives time slices to every process that has work. So while the last kernel
 * of a closed turn still runs, a job that used much less than its share for seconds may launch beside it, as a guest.
 * Each of them is charged its part of the time. Two jobs that always have work never meet in this way. In the same way
 * jobs launch beside each other that pause after little work, and that have not even their shares together: to pass
 * the turn on takes longer than the GPU takes to change between them.
 *
 * Pure: no function reads a clock or calls the system. Times are nanoseconds of one monotonic clock, shares are
 * ten-thousandths. How to drive it, in the arbiter's process as in a simulator:
 *
 *     fg_arbiter_init(&a);  k = fg_arbiter_join(&a, policy, share);      one fg_arbiter for each GPU, one k for each job
 *     at each event (a launch begins to wait, a parked turn is resumed, a queue becomes empty after its turn was closed,
 *     a job comes or goes) and at the time that the last step returned:
 *         fill views[k] of each job;  wake = fg_arbiter_step(&a, views, now);
 *         show each job fg_arbiter_word(&a, k), and wake its waiting launches if the word has become FG_TURN_HELD
 *
 * What a job does (all its processes together), by its word:
 *     FG_TURN_NONE     no launch begins. A launch that waits sets `wants` to the time, again each 20 ms.
 *     FG_TURN_HELD     launches go at once. Each process of the job queues at most fg_arbiter_ahead of work.
 *     FG_TURN_PARKED   no other job wants the GPU: launches go at once, and the first one changes the word to
 *                      FG_TURN_HELD and is an event, with `resumed` set in the next view.
 * `until` is a lease: the job has work on the GPU until then. The job renews it while it has work. When its turn has
 * been closed and it has seen that its queue is empty, it sets it to 0, and the turn passes on at once. A job that is
 * stopped or killed renews nothing, so its turn passes on, too, FG_UNCONFIRMED later. A lease counts for at most FG_TURN_LEASE,
 * and one that is renewed without end for FG_LONGEST_CLOSE after the turn was closed.
 *
 * `others` of fg_arbiter is set by the caller before a step: the number of processes that have work on the GPU and take
 * no turns (policy none). The GPU gives them time slices beside the holder, who is charged its part of the time.
 *
 * Any content of a view is valid: a job that lies can lengthen its turns by these bounds. It is charged for them, but the
 * debt of a fair job ends with fg_arbiter_give_rest. */
#ifndef FG_ARBITER_H
#define FG_ARBITER_H
#include <string.h>
#include "pace.h"

#define FG_ARBITER_JOBS 64
#define FG_GUESTS 7
#define FG_AHEAD (1 * FG_MS)          /* the most work that the holder queues */
#define FG_AHEAD_ALONE (8 * FG_MS)    /* the same while no other job is active */
#define FG_TURN_LEASE (10 * FG_MS)         /* the validity of `until` */
#define FG_UNCONFIRMED (200 * FG_US)  /* the end of a lease is taken for the end of the work after this time */
#define FG_WITHOUT_WORK (300 * FG_US) /* a holder without work for this time gives the turn up */
#define FG_LEAST_PATIENCE (50 * FG_US)    /* the same for a job that was seen not to return so soon */
#define FG_FIRST_LAUNCH (2 * FG_MS)   /* a holder that was woken has this time for its first launch */
#define FG_LONGEST_CLOSE (2000 * FG_MS)   /* work that runs on after the end of its turn has the GPU for this time */
#define FG_PERIOD (50 * FG_MS)        /* of the turns of jobs with short kernels */
#define FG_USUAL_TURN (10 * FG_MS)    /* the period is longer if that many turns do not fit */
#define FG_KERNELS_A_PERIOD 8         /* the longest kernels: what is saved lasts for eight of them */
#define FG_UNINTERRUPTED (2 * FG_MS)  /* the part of a turn that no modest job interrupts */
#define FG_TURN_START (3 * FG_MS)     /* the most credit that a job saves before it begins a turn */
#define FG_ACTIVE (100 * FG_MS)       /* a job is active for this time after it wanted or had the turn */
#define FG_PAUSE (20 * FG_MS)         /* jobs that launch beside each other because they pause go after this time without work */
#define FG_RECENT (100 * FG_MS)       /* what a job used recently decays in this time */
#define FG_USUAL (2000 * FG_MS)       /* what a job usually uses: the same over this time, or eight of the longest kernels */
#define FG_KERNEL_MEMORY (5000 * FG_MS)   /* the longest kernel is forgotten in this time */

enum { FG_TURN_NONE, FG_TURN_HELD, FG_TURN_PARKED };

typedef struct {              /* what a job says; all zero: it says nothing */
    uint64_t wants;           /* since when a launch waits for the turn; 0: none does */
    uint64_t until;           /* the end of the work that it has on the GPU, as it expects it */
    uint64_t had;             /* ns of GPU time that it has counted, in total */
    int resumed;              /* it launched in a parked turn */
} fg_turn_view;

typedef struct {
    uint32_t policy, share;   /* share 0: the place is free */
    int word;                 /* FG_TURN_… */
    int strays;               /* its work ran on beyond FG_LONGEST_CLOSE: it is charged until that has ended */
    double credit;            /* ns */
    double recent, usual;     /* ns charged in about the last FG_RECENT, and for much longer */
    double worked;            /* the same as `usual` of the time in which it had work on the GPU */
    double pauses;            /* the part of its recent turns that it gave up for lack of work */
    double known;             /* ns of which both are known: less than that for a new job */
    uint64_t active;          /* when it last wanted or had the turn; 0: never */
    uint64_t rested;          /* the end of its work when it gave a turn up for lack of work; 0: it came back since */
    uint64_t patience;        /* how long it may be without work in its turn */
    uint64_t unanswered;      /* the value of `wants` that got a turn and did not launch in it */
    uint64_t had;             /* as last seen */
    double uncharged;         /* ns of its turn that it may have used and not counted yet */
    uint64_t held;            /* total ns during which it had the turn */
} fg_turn_job;

typedef struct {
    int place;                /* of the job that has it; -1: none */
    uint64_t opened, closed;  /* when it began, and was closed; closed 0: it is open */
} fg_held_turn;

typedef struct {
    fg_turn_job job[FG_ARBITER_JOBS];
    fg_held_turn turn, guest[FG_GUESTS];   /* guest: beside the job that has the turn; without a turn there is none */
    uint32_t guests;          /* counts when the GPU begins and ceases to be shared with guests or others: odd while it is */
    uint64_t now;             /* of the last step */
    int others;               /* processes that have work and take no turns */
    double longest;           /* ns that work lasted beyond what a holder may queue */
    double lost;              /* ns that guests had since the turn was closed */
} fg_arbiter;

static inline void fg_arbiter_init(fg_arbiter *a) {
    memset(a, 0, sizeof *a);
    a->turn.place = -1;
    for (int i = 0; i < FG_GUESTS; i++) a->guest[i].place = -1;
}

static inline double fg_turn_part(const fg_turn_job *j) { return (double)j->share / FG_WHOLE; }

static inline double fg_arbiter_usual(const fg_arbiter *a) {
    double time = FG_KERNELS_A_PERIOD * a->longest;
    return time > (double)FG_USUAL ? time : (double)FG_USUAL;
}

/* Return the place of a new job, or -1: all places are taken, or the job takes no turns (see fg_pace_is_on). */
static inline int fg_arbiter_join(fg_arbiter *a, uint32_t policy, uint32_t share) {
    if ((policy != FG_PACE_HARD && policy != FG_PACE_FAIR) || !share || share >= FG_WHOLE) return -1;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        fg_turn_job *j = &a->job[i];
        if (j->share) continue;
        *j = (fg_turn_job){.policy = policy, .share = share, .patience = FG_WITHOUT_WORK};
        j->credit = fg_turn_part(j) * (double)FG_PERIOD;
        j->known = 5 * (double)FG_RECENT;
        j->usual = fg_turn_part(j) / 4 * j->known;   /* modest at first; if it always has work, not for long */
        return i;
    }
    return -1;
}

/* Return the guest that came first, or NULL. */
static inline const fg_held_turn *fg_arbiter_first_guest(const fg_arbiter *a) {
    const fg_held_turn *first = NULL;
    for (const fg_held_turn *g = a->guest; g < a->guest + FG_GUESTS; g++)
        if (g->place >= 0 && (!first || g->opened < first->opened)) first = g;
    return first;
}

static inline int fg_arbiter_is_guest(const fg_arbiter *a, int place) {
    for (int i = 0; i < FG_GUESTS; i++) if (a->guest[i].place == place) return 1;
    return 0;
}

/* Whether jobs launch beside each other, because all of them pause. */
static inline int fg_arbiter_is_joint(const fg_arbiter *a) { return fg_arbiter_first_guest(a) && a->turn.place >= 0 && !a->turn.closed; }

static inline void fg_held_release(fg_arbiter *a, fg_held_turn *turn) {
    const fg_held_turn *guest = fg_arbiter_first_guest(a);
    fg_held_turn none = {-1, 0, 0};
    a->job[turn->place].word = FG_TURN_NONE;
    *turn = none;
    if (turn == &a->turn && guest) {   /* it has the turn now */
        *turn = *guest;
        a->guest[guest - a->guest] = none;
    }
}

/* Forget a job that has ended. Its turn passes on in the next step. */
static inline void fg_arbiter_leave(fg_arbiter *a, int place) {
    for (int i = 0; i < FG_GUESTS; i++) if (a->guest[i].place == place) fg_held_release(a, &a->guest[i]);
    if (a->turn.place == place) fg_held_release(a, &a->turn);
    a->job[place] = (fg_turn_job){0};
}

static inline int fg_arbiter_word(const fg_arbiter *a, int place) { return a->job[place].word; }

/* Credit in units of time: how long a job could have waited for it. */
static inline double fg_turn_claim(const fg_turn_job *j) { return j->credit / fg_turn_part(j); }

static inline int fg_turn_is_active(const fg_arbiter *a, int place) {
    const fg_turn_job *j = &a->job[place];
    return j->share && j->active && a->now - j->active < FG_ACTIVE;
}

static inline int fg_arbiter_active(const fg_arbiter *a) {
    int count = 0;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) count += fg_turn_is_active(a, i);
    return count;
}

/* The time in which each active job has a turn, if they always have work. */
static inline double fg_arbiter_period(const fg_arbiter *a, double kernels) {
    double period = kernels * a->longest, turns = fg_arbiter_active(a) * (double)FG_USUAL_TURN;
    if (period < turns) period = turns;
    return period > (double)FG_PERIOD ? period : (double)FG_PERIOD;
}

/* The most by which the holder's claim may fall below that of a job that waits: with it, a period has a turn of each. */
static inline double fg_arbiter_spread(const fg_arbiter *a) {
    int active = fg_arbiter_active(a);
    return fg_arbiter_period(a, 1) * (active > 1 ? active - 1. : 1.) / (active > 1 ? active : 2.);
}

static inline int fg_turn_waits(const fg_turn_job *j, const fg_turn_view *v) {
    return j->share && v->wants && v->wants != j->unanswered && j->word == FG_TURN_NONE;
}

/* Whether a job used less than half of its share recently: it waits for an answer rather than for throughput. */
static inline int fg_turn_is_modest(const fg_turn_job *j) {
    return j->recent < fg_turn_part(j) / 2 * (double)FG_RECENT;
}

/* The same for seconds: a job that has waited for a long kernel of another one is modest, but not this. */
static inline int fg_turn_is_usually_modest(const fg_turn_job *j) {
    return j->usual < fg_turn_part(j) / 2 * j->known;
}

/* Whether a job pauses after its work, and has not quite its share, whatever the reason. */
static inline int fg_turn_is_light(const fg_turn_job *j) {
    return j->pauses > 0.75 && j->worked < fg_turn_part(j) * 0.95 * j->known;
}

static inline uint64_t fg_sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline uint64_t fg_lease(uint64_t until, uint64_t now) { return fg_sooner(until, now + FG_TURN_LEASE); }

static inline uint64_t fg_turn_until(const fg_turn_view *v, uint64_t now) { return fg_lease(v->until, now); }

static inline void fg_turn_earn(const fg_arbiter *a, fg_turn_job *j, double passed) {
    double most = fg_turn_part(j) * fg_arbiter_period(a, FG_KERNELS_A_PERIOD);
    j->credit += passed * fg_turn_part(j);
    if (j->credit > most) j->credit = most;
    j->recent *= (double)FG_RECENT / ((double)FG_RECENT + passed);
    double kept = fg_arbiter_usual(a) / (fg_arbiter_usual(a) + passed);
    j->usual *= kept;
    j->worked *= kept;
    j->known = j->known * kept + passed;
}

static inline void fg_turn_charge(fg_turn_job *j, double passed) {
    j->credit -= passed;
    j->recent += passed;
    j->usual += passed;
    if (j->credit < -(double)FG_MAX_DEBT) j->credit = -(double)FG_MAX_DEBT;
}

/* A job that always returns later than it could have kept the turn does not keep the others waiting. */
static inline void fg_turn_learn_patience(fg_turn_job *j, const fg_turn_view *v) {
    if (!j->rested || !v->wants) return;
    if (v->wants < j->rested + 2 * FG_WITHOUT_WORK) j->patience = FG_WITHOUT_WORK;
    else if (j->patience > FG_LEAST_PATIENCE) j->patience = j->patience / 2 > FG_LEAST_PATIENCE ? j->patience / 2 : FG_LEAST_PATIENCE;
    j->rested = 0;
}

/* Return what to charge for a part of a turn: all of it, or what the job counted while no other was active. */
static inline double fg_turn_cost(fg_turn_job *j, uint64_t had, int is_alone, double passed) {
    double counted = had > j->had ? (double)(had - j->had) : 0;
    j->had = had;
    j->uncharged = is_alone ? j->uncharged + passed : 0;
    if (!is_alone) return passed;
    if (counted > j->uncharged) counted = j->uncharged;
    j->uncharged -= counted;
    return counted;
}

/* Return how long a job has had work since the last step. */
static inline double fg_arbiter_worked(const fg_arbiter *a, const fg_turn_view *v, uint64_t now) {
    uint64_t until = fg_sooner(v->until, now);
    return a->now && until > a->now ? (double)(until - a->now) : 0;
}

/* Return how many jobs have had work since the last step; the GPU gave each of them a part of the time. */
static inline int fg_arbiter_working(const fg_arbiter *a, const fg_turn_view *views, uint64_t now) {
    int working = a->turn.place >= 0 && fg_arbiter_worked(a, &views[a->turn.place], now) > 0;
    for (int i = 0; i < FG_GUESTS; i++)
        working += a->guest[i].place >= 0 && fg_arbiter_worked(a, &views[a->guest[i].place], now) > 0;
    return working ? working : 1;
}

static inline double fg_arbiter_guests_had(const fg_arbiter *a, const fg_turn_view *views, int working, uint64_t now) {
    double had = 0;
    for (int i = 0; i < FG_GUESTS; i++)
        if (a->guest[i].place >= 0) had += fg_arbiter_worked(a, &views[a->guest[i].place], now) / working;
    return had;
}

/* Credit all jobs, and charge the jobs that have the turn, for the time since the last step. */
static inline void fg_arbiter_pass(fg_arbiter *a, const fg_turn_view *views, uint64_t now) {
    double passed = a->now && now > a->now ? (double)(now - a->now) : 0;
    int working = fg_arbiter_working(a, views, now), is_joint = fg_arbiter_is_joint(a);
    double guests_had = fg_arbiter_guests_had(a, views, working, now);
    int is_alone = fg_arbiter_active(a) <= 1 && !a->others;
    a->lost += guests_had;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        fg_turn_job *j = &a->job[i];
        if (!j->share) continue;
        fg_turn_learn_patience(j, &views[i]);
        int is_guest = fg_arbiter_is_guest(a, i), has_turn = is_guest || (a->turn.place == i && j->word != FG_TURN_PARKED);
        if (has_turn || fg_turn_waits(j, &views[i])) j->active = now;
        double cost = fg_turn_cost(j, views[i].had, is_alone, passed);
        double part = fg_arbiter_worked(a, &views[i], now) / working, held = is_guest || is_joint ? part : passed - guests_had;
        if (has_turn && (is_guest || guests_had > 0)) cost = held > 0 ? held : 0;
        if (has_turn) j->worked += part;
        if (has_turn && held > 0) j->held += (uint64_t)held;
        if (has_turn || j->strays) fg_turn_charge(j, cost * working / (working + a->others));
        if (j->strays && views[i].until <= now) j->strays = 0;
        fg_turn_earn(a, j, passed);
    }
    a->longest *= (double)FG_KERNEL_MEMORY / ((double)FG_KERNEL_MEMORY + passed);
    if (now > a->now) a->now = now;
}

/* Return the waiting job with the most credit for its share that has some, or -1. */
static inline int fg_arbiter_rival(const fg_arbiter *a, const fg_turn_view *views) {
    int best = -1;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        if (!fg_turn_waits(&a->job[i], &views[i]) || a->job[i].credit <= 0) continue;
        if (best < 0 || fg_turn_claim(&a->job[i]) > fg_turn_claim(&a->job[best])) best = i;
    }
    return best;
}

static inline int fg_arbiter_has_modest(const fg_arbiter *a, const fg_turn_view *views) {
    for (int i = 0; i < FG_ARBITER_JOBS; i++)
        if (fg_turn_waits(&a->job[i], &views[i]) && a->job[i].credit > 0 && fg_turn_is_modest(&a->job[i])) return 1;
    return 0;
}

/* Time that no job has credit for is given to the fair jobs that wait or have the turn, by their shares. */
static inline void fg_arbiter_give_rest(fg_arbiter *a, const fg_turn_view *views, double claim) {
    double most = -1e18;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        int asks = a->job[i].policy == FG_PACE_FAIR && (a->turn.place == i || fg_turn_waits(&a->job[i], &views[i]));
        if (asks && fg_turn_claim(&a->job[i]) > most) most = fg_turn_claim(&a->job[i]);
    }
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        int asks = a->job[i].policy == FG_PACE_FAIR && (a->turn.place == i || fg_turn_waits(&a->job[i], &views[i]));
        if (asks && most < claim) a->job[i].credit += (claim - most) * fg_turn_part(&a->job[i]);
    }
}

static inline double fg_turn_end_by_rival(const fg_arbiter *a, const fg_turn_job *j, const fg_turn_job *rival) {
    return (fg_turn_claim(j) - fg_turn_claim(rival) + fg_arbiter_spread(a)) * fg_turn_part(j);
}

/* Return the ns that the open turn still lasts; at most 0: it is to be closed; 1e18: nothing ends it. */
static inline double fg_arbiter_left(const fg_arbiter *a, const fg_turn_view *views) {
    const fg_turn_job *j = &a->job[a->turn.place];
    int rival = fg_arbiter_rival(a, views);
    double left = 1e18, earns = 1 - fg_turn_part(j);
    if (j->policy == FG_PACE_HARD || rival >= 0) left = j->credit / earns;
    if (rival >= 0) {
        double by_rival = fg_turn_end_by_rival(a, j, &a->job[rival]);
        if (by_rival < left) left = by_rival;
    }
    if (fg_arbiter_has_modest(a, views)) {
        double soon = (double)FG_UNINTERRUPTED - (double)(a->now - a->turn.opened);
        if (soon < left) left = soon;
    }
    return left;
}

static inline void fg_held_open(fg_arbiter *a, fg_held_turn *turn, int place) {
    *turn = (fg_held_turn){place, a->now, 0};
    a->job[place].word = FG_TURN_HELD;
    a->job[place].unanswered = 0;
}

static inline void fg_held_close(fg_arbiter *a, fg_held_turn *turn) {
    a->job[turn->place].word = FG_TURN_NONE;
    turn->closed = a->now;
    a->job[turn->place].pauses *= 7. / 8;
    if (turn == &a->turn) a->lost = 0;
}

/* A turn that was closed ends with the work that the job has on the GPU. */
static inline void fg_held_drain(fg_arbiter *a, fg_held_turn *turn, const fg_turn_view *view) {
    double beyond = (double)(a->now - turn->closed) - (double)FG_AHEAD - a->lost;
    uint64_t until = fg_turn_until(view, a->now);
    int is_empty = !until || a->now >= (until > turn->closed ? until : turn->closed) + FG_UNCONFIRMED;
    if (beyond > a->longest) a->longest = beyond;
    if (!is_empty && a->now - turn->closed < FG_LONGEST_CLOSE) return;
    a->job[turn->place].strays = !is_empty;
    fg_held_release(a, turn);
}

/* Whether a job gets less than its share, because processes that take no turns have most of each turn. */
static inline int fg_turn_is_owed(const fg_arbiter *a, const fg_turn_job *j) {
    return a->others && j->credit > fg_turn_part(j) * fg_arbiter_period(a, FG_KERNELS_A_PERIOD) / 2;
}

static inline int fg_turn_joins(const fg_arbiter *a, const fg_turn_job *j) {
    return fg_turn_is_light(j) || fg_turn_is_owed(a, j);
}

/* Whether a job waits that must not launch beside others. */
static inline int fg_arbiter_has_heavy(const fg_arbiter *a, const fg_turn_view *views) {
    for (int i = 0; i < FG_ARBITER_JOBS; i++)
        if (fg_turn_waits(&a->job[i], &views[i]) && a->job[i].credit > 0 && !fg_turn_joins(a, &a->job[i])) return 1;
    return 0;
}

/* Return when the holder has been without work for too long. */
static inline uint64_t fg_held_idle_at(const fg_arbiter *a, const fg_held_turn *turn, const fg_turn_view *views) {
    uint64_t until = fg_turn_until(&views[turn->place], a->now);
    if (fg_arbiter_is_joint(a) && !fg_arbiter_has_heavy(a, views)) return (until > turn->opened ? until : turn->opened) + FG_PAUSE;
    return until > turn->opened ? until + a->job[turn->place].patience : turn->opened + FG_FIRST_LAUNCH;
}

/* A holder without work gives the turn up, or keeps it parked if no other job may have it. */
static inline void fg_held_rest(fg_arbiter *a, fg_held_turn *turn, const fg_turn_view *views) {
    fg_turn_job *j = &a->job[turn->place];
    const fg_turn_view *view = &views[turn->place];
    int is_wanted = turn != &a->turn || fg_arbiter_rival(a, views) >= 0 || (j->policy == FG_PACE_HARD && j->credit <= 0);
    if (fg_turn_until(view, a->now) <= turn->opened) j->unanswered = view->wants;
    else j->rested = fg_turn_until(view, a->now);
    j->pauses = j->pauses * 7 / 8 + 1. / 8;
    if (is_wanted) fg_held_release(a, turn);
    else j->word = FG_TURN_PARKED;
}

static inline void fg_arbiter_judge(fg_arbiter *a, const fg_turn_view *views) {
    fg_turn_job *j = &a->job[a->turn.place];
    const fg_turn_view *view = &views[a->turn.place];
    if (j->word == FG_TURN_PARKED && view->resumed) {
        j->word = FG_TURN_HELD;
        j->rested = 0;
        a->turn.opened = a->now;
    }
    if (a->turn.closed) fg_held_drain(a, &a->turn, view);
    else if (j->word == FG_TURN_PARKED) {
        if (fg_arbiter_rival(a, views) >= 0) fg_held_close(a, &a->turn);   /* not released: it may just have launched */
    } else if (a->now >= fg_held_idle_at(a, &a->turn, views)) fg_held_rest(a, &a->turn, views);
    else {
        if (fg_arbiter_rival(a, views) < 0 && j->policy == FG_PACE_FAIR && j->credit <= 0)
            fg_arbiter_give_rest(a, views, fg_arbiter_spread(a));
        if (fg_arbiter_left(a, views) <= 0) fg_held_close(a, &a->turn);
    }
}

static inline void fg_arbiter_judge_guest(fg_arbiter *a, fg_held_turn *guest, const fg_turn_view *views) {
    const fg_turn_job *j = &a->job[guest->place];
    const fg_turn_view *view = &views[guest->place];
    int is_light = fg_turn_joins(a, j) && (a->turn.closed || fg_turn_joins(a, &a->job[a->turn.place]));
    int may_stay = j->credit > 0 && (is_light || (a->turn.closed && fg_turn_is_usually_modest(j)));
    if (guest->closed) fg_held_drain(a, guest, view);
    else if (a->now >= fg_held_idle_at(a, guest, views)) fg_held_rest(a, guest, views);
    else if (!may_stay) fg_held_close(a, guest);
}

/* Whether a job that waits may be a guest: of a turn that was closed, or of an open one of another job that pauses. */
static inline int fg_turn_may_be_guest(const fg_arbiter *a, const fg_turn_job *j) {
    return a->turn.closed ? !fg_arbiter_first_guest(a) && fg_turn_is_usually_modest(j) : fg_turn_joins(a, j);
}

/* Return the waiting job with the most credit for its share that may be a guest, or -1. */
static inline int fg_arbiter_next_guest(const fg_arbiter *a, const fg_turn_view *views) {
    int best = -1, is_open = a->turn.place >= 0 && !a->turn.closed;
    if (a->turn.place < 0 || (is_open && !fg_turn_joins(a, &a->job[a->turn.place]))) return -1;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        const fg_turn_job *j = &a->job[i];
        if (a->turn.place == i || !fg_turn_waits(j, &views[i]) || j->credit <= 0) continue;
        if (!fg_turn_may_be_guest(a, j)) {
            if (is_open) return -1;   /* it waits for the end of the turn: no further job may lengthen that */
            continue;
        }
        if (best < 0 || fg_turn_claim(j) > fg_turn_claim(&a->job[best])) best = i;
    }
    return best;
}

/* Return when a guest may come: when the rest of a closed turn is too long to wait for. */
static inline uint64_t fg_arbiter_guest_at(const fg_arbiter *a, const fg_turn_view *views) {
    int is_long = !a->turn.closed || fg_turn_until(&views[a->turn.place], a->now) > a->now + FG_AHEAD;
    return is_long ? a->now : a->turn.closed + FG_AHEAD;
}

static inline void fg_arbiter_invite(fg_arbiter *a, const fg_turn_view *views) {
    for (fg_held_turn *guest = a->guest; guest < a->guest + FG_GUESTS; guest++) {
        int place = guest->place < 0 ? fg_arbiter_next_guest(a, views) : -1;
        if (place >= 0 && a->now >= fg_arbiter_guest_at(a, views)) fg_held_open(a, guest, place);
    }
}

/* The credit with which a hard job begins a turn. */
static inline double fg_turn_start(const fg_turn_job *j) {
    double start = fg_turn_part(j) * (double)FG_PERIOD / 2;
    if (fg_turn_is_modest(j)) return 1;
    return start < (double)FG_TURN_START ? start : (double)FG_TURN_START;
}

/* Give the turn to the waiting job with the most credit for its share. A hard job waits until it has saved some; what it
   leaves a fair job has. */
static inline void fg_arbiter_choose(fg_arbiter *a, const fg_turn_view *views) {
    int best = -1, fair = -1;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        const fg_turn_job *j = &a->job[i];
        if (!fg_turn_waits(j, &views[i])) continue;
        if (j->credit >= fg_turn_start(j) && (best < 0 || fg_turn_claim(j) > fg_turn_claim(&a->job[best]))) best = i;
        if (j->policy == FG_PACE_FAIR && (fair < 0 || fg_turn_claim(j) > fg_turn_claim(&a->job[fair]))) fair = i;
    }
    if (best < 0 && fair >= 0) {
        fg_arbiter_give_rest(a, views, fg_arbiter_spread(a));
        best = fair;
    }
    if (best >= 0) fg_held_open(a, &a->turn, best);
}

/* The time until a waiting job has a credit, in ns. */
static inline double fg_turn_lacks(const fg_turn_job *j, double credit) {
    return j->credit >= credit ? 0 : (credit - j->credit) / fg_turn_part(j) + 1;
}

static inline double fg_arbiter_next_start(const fg_arbiter *a, const fg_turn_view *views) {
    double least = 1e18;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        if (a->turn.place == i || !fg_turn_waits(&a->job[i], &views[i])) continue;
        double lacks = fg_turn_lacks(&a->job[i], a->turn.place < 0 ? fg_turn_start(&a->job[i]) : 1);
        if (lacks > 0 && lacks < least) least = lacks;
    }
    return least;
}

/* Return when a turn that was closed has passed on, if the job says nothing more. */
static inline uint64_t fg_held_over_at(const fg_arbiter *a, const fg_held_turn *turn, const fg_turn_view *views) {
    uint64_t until = fg_turn_until(&views[turn->place], a->now);
    return fg_sooner((until > turn->closed ? until : turn->closed) + FG_UNCONFIRMED, turn->closed + FG_LONGEST_CLOSE);
}

static inline uint64_t fg_guest_wake(const fg_arbiter *a, const fg_held_turn *guest, const fg_turn_view *views) {
    if (guest->place < 0) return fg_arbiter_next_guest(a, views) >= 0 ? fg_arbiter_guest_at(a, views) : UINT64_MAX;
    if (guest->closed) return fg_held_over_at(a, guest, views);
    return fg_sooner(fg_held_idle_at(a, guest, views), a->now + FG_UNINTERRUPTED);   /* its credit */
}

static inline uint64_t fg_guests_wake(const fg_arbiter *a, const fg_turn_view *views) {
    uint64_t at = UINT64_MAX;
    for (int i = 0; i < FG_GUESTS; i++) at = fg_sooner(at, fg_guest_wake(a, &a->guest[i], views));
    return at;
}

/* Return the time of the next step; UINT64_MAX: at the next event. */
static inline uint64_t fg_arbiter_wake(const fg_arbiter *a, const fg_turn_view *views) {
    double in = fg_arbiter_next_start(a, views);
    uint64_t at = UINT64_MAX;
    if (a->turn.place >= 0 && a->turn.closed) {
        at = fg_sooner(fg_held_over_at(a, &a->turn, views), fg_guests_wake(a, views));
        in = 1e18;
    } else if (a->turn.place >= 0 && a->job[a->turn.place].word == FG_TURN_HELD) {
        double left = fg_arbiter_left(a, views);
        at = fg_sooner(fg_held_idle_at(a, &a->turn, views), fg_guests_wake(a, views));
        if (left < in) in = left;
    }
    if (in < 1e17 && a->now + (uint64_t)in < at) at = a->now + (uint64_t)in;
    return at > a->now ? at : a->now + 1;
}

/* Return the window of a job, in ten-thousandths of a period: in it the job launches if the arbiter has ended. Its length
   is the share; fair jobs divide by their shares what no job was given. The windows of all jobs lie one behind another. */
static inline uint32_t fg_arbiter_window(const fg_arbiter *a, int place, uint32_t *from) {
    uint64_t given = 0, fair = 0, length = 0;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        given += a->job[i].share;
        if (a->job[i].policy == FG_PACE_FAIR) fair += a->job[i].share;
    }
    uint64_t whole = given > FG_WHOLE ? given : FG_WHOLE, start = 0;   /* GPUs may be given out several times */
    for (int i = 0; i <= place; i++) {
        const fg_turn_job *j = &a->job[i];
        start += length;
        length = j->share * (uint64_t)FG_WHOLE / whole;
        if (j->share && j->policy == FG_PACE_FAIR) length += (whole - given) * j->share / fair;
    }
    *from = (uint32_t)start;
    return (uint32_t)length;
}

/* Return the most work, in ns, that the holder may queue from now on. */
static inline uint64_t fg_arbiter_ahead(const fg_arbiter *a) { return fg_arbiter_active(a) > 1 && !a->others ? FG_AHEAD : FG_AHEAD_ALONE; }

/* Whether a longer queue of a job delays no other one that pauses after little work: such a job waits for its end. */
static inline int fg_arbiter_may_be_deep(const fg_arbiter *a, int place) {
    for (int i = 0; i < FG_ARBITER_JOBS; i++) {
        const fg_turn_job *j = &a->job[i];
        if (i != place && fg_turn_is_active(a, i) && (fg_turn_is_light(j) || fg_turn_is_usually_modest(j))) return 0;
    }
    return 1;
}

/* Decide what each job may do from now on. views[k]: what the job at place k says. Return when to decide again. */
static inline uint64_t fg_arbiter_step(fg_arbiter *a, const fg_turn_view views[FG_ARBITER_JOBS], uint64_t now) {
    fg_arbiter_pass(a, views, now);
    for (int i = 0; i < FG_GUESTS; i++) if (a->guest[i].place >= 0) fg_arbiter_judge_guest(a, &a->guest[i], views);
    if (a->turn.place >= 0) fg_arbiter_judge(a, views);
    fg_arbiter_invite(a, views);
    if (a->turn.place < 0) fg_arbiter_choose(a, views);
    a->guests += (fg_arbiter_first_guest(a) || a->others) != (int)(a->guests % 2);
    return fg_arbiter_wake(a, views);
}
#endif
