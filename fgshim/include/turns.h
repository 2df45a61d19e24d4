/* A replay of the turns on a GPU: how its processes shared its time, from what each job recorded.
 *
 * Pure, like pace.h. The GPU gives turns to the processes that have work, one after the other. Jobs record when each of
 * their processes had long kernels, and the time of their short ones. The turns are replayed from that a little later,
 * when the expected ends of the kernels have been corrected. */
#ifndef FG_TURNS_H
#define FG_TURNS_H
#include "pace.h"

#define FG_MOST_JOBS 64             /* on one GPU */
#define FG_LOOKS 64                 /* samples kept for a late measurement */
#define FG_LATE (25 * FG_MS)
#define FG_GONE (2000 * FG_MS)
#define FG_TURN (2 * FG_MS)         /* of a process while others have work, too */
#define FG_LITTLE (50 * FG_US)      /* waiting short kernels below this time take no turn yet */
#define FG_MOST_WAITING (50 * FG_MS)
#define FG_SHORT_ONES FG_FLIGHTS    /* the seat of all short kernels of a job; the seats before it are its processes */

typedef struct { uint64_t from, to; uint32_t part; } fg_report;   /* of the driver: the part of a time; to 0: none */

typedef struct {                    /* the controller's state of a job on a GPU */
    uint64_t at[FG_LOOKS], used[FG_LOOKS], sure[FG_LOOKS];
    uint32_t looks;
    uint32_t recent;                /* ten-thousandths of the GPU's time, recently */
    uint64_t taken_until;           /* how far the turns have been replayed */
    double own, there_for;          /* ns that its long kernels had; ns that processes had long kernels there; decaying */
    double among;                   /* the part of a process of it that always had work */
    uint64_t served[FG_SHORT_ONES + 1];        /* when each seat had its last turn; 0: it is new */
    double left, waiting;           /* ns: rest of the turn of `seat`; waiting short kernels */
    int seat;
    fg_report last;                 /* the driver's last measurement, which is used when the next one has come */
    uint64_t told, counted;         /* ns that the driver reported and that the job counted; decaying */
    uint64_t measured;              /* when; 0: never */
    uint64_t shared;                /* when other processes last used the GPU; 0: never */
    uint64_t lumpy_until;           /* until then its kernels are longer than the period of a measurement */
    uint64_t there;                 /* when it last used the GPU; 0: never */
    uint32_t flying, reserve;       /* in this round */
    const fg_long_runs *runs;       /* as read in this round; NULL: none */
    int is_hungry;
} fg_lender;

typedef struct {                    /* a job during the replay */
    fg_lender *of;
    double rate;                    /* the part of the GPU that its short kernels take */
    uint32_t processes;             /* processes that launch */
    uint32_t running;               /* processes with long kernels */
    int has_long[FG_FLIGHTS];       /* 0: none now; 1: some; 2: some, which had to wait for their first turn */
} fg_player;

/* Return whether a process has long kernels at a moment; lower `next` to the time when that changes. */
static inline int fg_has_long(const fg_spans *r, uint64_t moment, uint64_t *next) {
    uint64_t oldest = r->runs > FG_RUNS ? r->runs - FG_RUNS : 0;
    int is_there = 0;
    for (uint64_t k = r->runs; k-- > oldest && r->run[k % FG_RUNS].until > moment;) {
        const fg_span *run = &r->run[k % FG_RUNS];
        uint64_t change = run->from > moment ? run->from : run->until;
        if (change < *next) *next = change;
        if (run->from <= moment) is_there = run->from > run->launched + FG_LITTLE ? 2 : 1;
    }
    return is_there;
}

static inline uint32_t fg_find_running(fg_player *p, int jobs, uint64_t moment, uint64_t *next) {
    uint32_t running = 0;
    for (int i = 0; i < jobs; i++) {
        p[i].running = 0;
        for (int f = 0; f < FG_FLIGHTS && p[i].of->runs; f++) {
            p[i].has_long[f] = fg_has_long(&p[i].of->runs->of[f], moment, next);
            if (!p[i].has_long[f]) p[i].of->served[f] = 0;
            p[i].running += p[i].has_long[f] != 0;
        }
        running += p[i].running;
    }
    return running;
}

static inline int fg_has_work(const fg_player *p, int seat) {
    return seat < FG_SHORT_ONES ? p->has_long[seat] : !p->running && p->of->waiting > (double)FG_LITTLE;
}

static inline int fg_goes_on(const fg_player *p) { return p->of->left > 0 && fg_has_work(p, p->of->seat); }

/* Return the seat with work that had no turn for the longest time. */
static inline fg_player *fg_next_seat(fg_player *p, int jobs, int *seat) {
    fg_player *found = p;
    uint64_t earliest = UINT64_MAX;
    for (int i = 0; i < jobs; i++)
        for (int s = 0; s <= FG_SHORT_ONES; s++)
            if (p[i].of->served[s] < earliest && fg_has_work(&p[i], s)) {
                found = &p[i];
                earliest = found->of->served[*seat = s];
            }
    return found;
}

/* Return the job whose turn it is: a new seat that begins with a turn, the one whose turn is not over, or the next. */
static inline fg_player *fg_current_turn(fg_player *p, int jobs) {
    int seat = 0;
    fg_player *next = fg_next_seat(p, jobs, &seat);
    int begins = seat < FG_SHORT_ONES && !next->of->served[seat] && next->has_long[seat] == 2;
    for (int i = 0; i < jobs; i++) {
        if (!begins && fg_goes_on(&p[i])) return &p[i];
        p[i].of->left = 0;
    }
    next->of->seat = seat;
    next->of->left = (double)FG_TURN * (seat == FG_SHORT_ONES ? next->processes : 1);
    return next;
}

/* Account for a time in which no kernel came or went. */
static inline void fg_account_turn(fg_player *p, int jobs, fg_player *who, uint64_t from, uint64_t to) {
    double length = (double)(to - from);
    for (int i = 0; i < jobs; i++) {
        fg_lender *l = p[i].of;
        l->there_for += p[i].running * length;
        if (!p[i].running) l->waiting += p[i].rate * length;
        if (l->waiting > (double)FG_MOST_WAITING) l->waiting = (double)FG_MOST_WAITING;
    }
    if (who->of->seat == FG_SHORT_ONES) who->of->waiting -= length;
    else who->of->own += length;
    who->of->left -= length;
    who->of->served[who->of->seat] = to;   /* NOLINT(clang-analyzer-security.ArrayBound): at most FG_SHORT_ONES */
}

/* Account for a time with short kernels only: the waiting players share it. */
static inline void fg_account_short(fg_player *p, int jobs, double length) {
    double waiting = 0;
    for (int i = 0; i < jobs; i++) waiting += p[i].of->waiting += p[i].rate * length;
    for (int i = 0; i < jobs; i++) p[i].of->waiting *= waiting > length ? 1 - length / waiting : 0;
}

/* Replay one turn, or its part before a kernel came or went. Return the end. */
static inline uint64_t fg_take_turn(fg_player *p, int jobs, uint64_t moment, uint64_t to) {
    if (!fg_find_running(p, jobs, moment, &to)) {
        fg_account_short(p, jobs, (double)(to - moment));
        return to;
    }
    fg_player *who = fg_current_turn(p, jobs);
    fg_lender *l = who->of;
    double most = l->seat == FG_SHORT_ONES && l->waiting < l->left * (1 - who->rate) ? l->waiting / (1 - who->rate) : l->left;
    int is_over = most < (double)(to - moment);
    if (is_over) to = moment + (uint64_t)most + 1;
    fg_account_turn(p, jobs, who, moment, to);
    if (is_over) l->left = 0;
    return to;
}

/* Return the part of the GPU that short kernels of a job took at about that moment. */
static inline double fg_rate_at(const fg_lender *l, uint64_t moment) {
    uint32_t first = l->looks > FG_LOOKS ? l->looks - FG_LOOKS + 1 : 1;
    for (uint32_t i = l->looks; i-- > first;) {
        uint32_t at = i % FG_LOOKS, before = (i - 1) % FG_LOOKS;
        if (l->at[(i - 1) % FG_LOOKS] > moment) continue;
        if (l->at[at] <= l->at[before] || l->sure[at] < l->sure[before]) return 0;
        double rate = (double)(l->sure[at] - l->sure[before]) / (double)(l->at[at] - l->at[before]);
        return rate < 1 ? rate : 1;
    }
    return 0;
}

/* Return the part of a process of a job that always had work: a fair division, in which jobs that need less get what
   they need. */
static inline double fg_turn_among(const fg_player *p, int jobs, int me) {
    double level = 0, next = 0;
    for (int turn = 0; turn <= jobs; turn++) {
        double left = 1, heads = 0;
        for (int j = 0; j < jobs; j++) {
            int is_short = !p[j].running && j != me;
            if (is_short && turn && p[j].rate <= level * p[j].processes) left -= p[j].rate;
            else if (!is_short || p[j].rate > 0) heads += p[j].running ? p[j].running : p[j].processes;
        }
        next = heads > 0 && left > 0 ? left / heads : 0;
        if (next <= level) break;
        level = next;
    }
    return level;
}

/* Return the rate of a job's short kernels; 1 for a job that is not paced and launches. */
static inline double fg_rate_of(const fg_lender *l, const fg_pace *p, uint64_t moment) {
    return fg_pace_is_on(p) ? fg_rate_at(l, moment) : l->flying != 0;
}

static inline void fg_take_turns(fg_lender **l, fg_pace **p, int jobs, uint64_t now) {
    fg_player player[FG_MOST_JOBS];
    uint64_t to = now > FG_LATE ? now - FG_LATE : 0, from = 0;
    for (int i = 0; i < jobs; i++) {
        if (l[i]->taken_until > from) from = l[i]->taken_until;
        l[i]->taken_until = to;
        l[i]->own *= 15. / 16;
        l[i]->there_for *= 15. / 16;
    }
    if (from >= to || to - from > 1000 * FG_MS) return;
    for (int i = 0; i < jobs; i++)
        player[i] = (fg_player){.of = l[i], .rate = fg_rate_of(l[i], p[i], from + (to - from) / 2), .processes = fg_pace_launching(p[i], now)};
    while (from < to) from = fg_take_turn(player, jobs, from, to);
    for (int i = 0; i < jobs; i++) {
        double part = fg_turn_among(player, jobs, i);
        l[i]->among += (part - l[i]->among) / (l[i]->among > 0 ? 16 : 1);
    }
}

static inline uint32_t fg_part_of(double own, double time) {
    double part = time > 0 ? own / time * FG_WHOLE : FG_WHOLE;
    return part > FG_WHOLE ? FG_WHOLE : part < FG_WHOLE / 50 ? FG_WHOLE / 50 : (uint32_t)part;
}

/* Return whether a job takes turns: one that is not paced may always have work. */
static inline int fg_is_there(const fg_lender *l, const fg_pace *p, uint64_t now) {
    return !fg_pace_is_on(p) || (l->there && now - l->there < FG_GONE);
}
#endif
