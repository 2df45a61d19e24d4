/* Whose turn it was: how the processes on a card shared its time, worked out from what each job tells.
 *
 * Pure, as pace.h. The card gives the processes that have work turns of one length. A job that has short kernels knows
 * what they take, and has that much; the long ones of all jobs share the rest, by processes. Worked out a while later,
 * when what was foretold of the kernels has been corrected. */
#ifndef FG_TURNS_H
#define FG_TURNS_H
#include "pace.h"

#define FG_MOST_JOBS 64             /* of one card */
#define FG_LOOKS 64                 /* looks that are remembered, for a measurement that comes late */
#define FG_LATE (50 * FG_MS)
#define FG_GONE (2000 * FG_MS)
#define FG_POINTS 25                /* moments of each span at which is looked who had work */

typedef struct {                    /* what the controller remembers of a job on a card */
    uint64_t at[FG_LOOKS], used[FG_LOOKS], sure[FG_LOOKS];
    uint32_t looks;
    uint32_t recent;                /* ten-thousandths of the card's time, of late */
    uint64_t taken_until;           /* how far the turns have been worked out */
    double own, long_time, heads_time;         /* ns that its long kernels had, and that they were there, the older the less */
    uint64_t told, counted;         /* ns that the driver told of and the job counted, the older the less */
    uint64_t measured;              /* when; 0: never */
    uint64_t lumpy_until;           /* its kernels are longer than what a measurement is of */
    uint64_t there;                 /* when it was last seen to use the card; 0: never */
    uint32_t flying, reserve;       /* at this look */
    const fg_long_runs *runs;       /* as they were then; NULL: there are none */
    int is_hungry;
} fg_lender;

typedef struct {                    /* of a job, at one moment */
    uint32_t running, processes;    /* those with long kernels on the card; those that launch at all */
    double rate;                    /* what its short kernels take of the card */
} fg_part;

static inline uint32_t fg_running(const fg_long_runs *p, uint64_t moment) {
    uint32_t count = 0;
    for (int i = 0; p && i < FG_FLIGHTS; i++) {
        int is_there = 0;
        uint64_t runs = p->of[i].runs < FG_RUNS ? p->of[i].runs : FG_RUNS;
        const fg_span *run = p->of[i].run;
        for (uint64_t k = 0; k < runs; k++) is_there |= run[k].from <= moment && moment < run[k].until;
        count += (uint32_t)is_there;
    }
    return count;
}

/* What its short kernels took of the card about then. */
static inline double fg_rate_at(const fg_lender *l, uint64_t moment) {
    uint32_t first = l->looks > FG_LOOKS ? l->looks - FG_LOOKS + 2 : 2;
    for (uint32_t i = l->looks; i-- > first;) {
        uint32_t at = i % FG_LOOKS, before = (i - 2) % FG_LOOKS;
        if (l->at[(i - 1) % FG_LOOKS] > moment) continue;
        if (l->at[at] <= l->at[before] || l->sure[at] < l->sure[before]) return 0;
        double rate = (double)(l->sure[at] - l->sure[before]) / (double)(l->at[at] - l->at[before]);
        return rate < 1 ? rate : 1;
    }
    return 0;
}

/* What a process has of the card that always has work: those that want less than that have what they want. */
static inline double fg_turn_among(const fg_part *part, int jobs, int me) {
    double level = 0, next = 0;
    for (int turn = 0; turn <= jobs; turn++) {
        double left = 1, heads = 0;
        for (int j = 0; j < jobs; j++) {
            int is_short = !part[j].running && j != me;
            if (is_short && turn && part[j].rate <= level * part[j].processes) left -= part[j].rate;
            else if (!is_short || part[j].rate > 0) heads += part[j].running ? part[j].running : part[j].processes;
        }
        next = heads > 0 && left > 0 ? left / heads : 0;
        if (next <= level) break;
        level = next;
    }
    return level;
}

static inline void fg_take_turns_at(fg_lender **l, int jobs, uint64_t moment, double length, fg_part *part) {
    for (int i = 0; i < jobs; i++) part[i].running = fg_running(l[i]->runs, moment);
    for (int i = 0; i < jobs; i++) {
        double weight = part[i].running ? length : length / 64;   /* what it would have: until there is better */
        uint32_t heads = part[i].running ? part[i].running : part[i].processes;
        l[i]->own += weight * fg_turn_among(part, jobs, i) * heads;
        l[i]->long_time += weight;
        l[i]->heads_time += weight * heads;
    }
}

static inline void fg_take_turns(fg_lender **l, fg_pace **p, int jobs, uint64_t now) {
    fg_part part[FG_MOST_JOBS];
    uint64_t to = now > FG_LATE ? now - FG_LATE : 0, from = 0;
    for (int i = 0; i < jobs; i++) {
        if (l[i]->taken_until > from) from = l[i]->taken_until;
        l[i]->taken_until = to;
        l[i]->own *= 63. / 64;
        l[i]->long_time *= 63. / 64;
        l[i]->heads_time *= 63. / 64;
    }
    if (from >= to || to - from > 1000 * FG_MS) return;
    for (int i = 0; i < jobs; i++) part[i] = (fg_part){0, fg_pace_launching(p[i], now), fg_rate_at(l[i], from + (to - from) / 2)};
    for (uint64_t k = 0; k < FG_POINTS; k++)
        fg_take_turns_at(l, jobs, from + (to - from) * (2 * k + 1) / (2 * FG_POINTS), (double)(to - from) / FG_POINTS, part);
}

static inline uint32_t fg_part_of(double own, double time) {
    double part = time > 0 ? own / time * FG_WHOLE : FG_WHOLE;
    return part > FG_WHOLE ? FG_WHOLE : part < FG_WHOLE / 50 ? FG_WHOLE / 50 : (uint32_t)part;
}

/* Whether it counts among those who have turns: one that nobody paces may always have work. */
static inline int fg_is_there(const fg_lender *l, const fg_pace *p, uint64_t now) {
    return !fg_pace_is_on(p) || (l->there && now - l->there < FG_GONE);
}
#endif
