/* Lending: what the controller computes in each round from the GPU time that jobs leave unused.
 *
 * Pure, like pace.h. A loan is a lease for a few rounds: a controller that is late, stopped or gone lends nothing. */
#ifndef FG_LEND_H
#define FG_LEND_H
#include "turns.h"

#define FG_AWAKE (50 * FG_MS)       /* how long a job that had to wait counts as one that needs more */
#define FG_LEASE (75 * FG_MS)
#define FG_LONG_LEASE (3000 * FG_MS)   /* on a GPU with a single job */
#define FG_LUMP (150 * FG_MS)       /* recorded at once: a kernel longer than the driver's period */
#define FG_LUMPY (20000 * FG_MS)
#define FG_FRESH (3000 * FG_MS)     /* validity of a measurement */

static inline uint32_t fg_least(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

static inline int fg_is_measured(const fg_lender *l, uint64_t now) {
    return l->measured && now - l->measured < FG_FRESH && now >= l->lumpy_until;
}

/* Note that other processes use the GPU. The driver ascribes each of its samples, five a second, to a single process,
   so its measurements do not tell what one of several used. */
static inline void fg_lend_shared(fg_lender *l, uint64_t now) {
    l->shared = now;
    l->measured = l->told = l->counted = l->last.to = 0;
}

static inline uint32_t fg_scale_of(const fg_lender *l, uint64_t now) {
    uint64_t scale = FG_WHOLE;
    if (fg_is_measured(l, now) && l->counted) scale = l->told * FG_WHOLE / l->counted;
    if (scale > 4 * FG_WHOLE) scale = 4 * FG_WHOLE;
    return !scale ? FG_WHOLE : scale > FG_WHOLE / 50 ? (uint32_t)scale : FG_WHOLE / 50;
}

/* Return the job's own count at a moment, interpolated between two rounds. */
static inline uint64_t fg_used_at(const fg_lender *l, uint64_t moment) {
    uint32_t first = l->looks > FG_LOOKS ? l->looks - FG_LOOKS : 0;
    for (uint32_t i = l->looks; i-- > first;) {
        uint64_t at = l->at[i % FG_LOOKS], used = l->used[i % FG_LOOKS];
        if (at > moment) continue;
        uint64_t next = l->at[(i + 1) % FG_LOOKS], more = l->used[(i + 1) % FG_LOOKS] - used;
        if (i + 1 == l->looks || next <= at || more > next - at) return used;
        return used + (uint64_t)((double)more * (double)(moment - at) / (double)(next - at));
    }
    return l->used[first % FG_LOOKS];
}

/* Compare a measurement of the driver with the job's own count. */
static inline void fg_lend_compare(fg_lender *l, const fg_report *r) {
    uint64_t length = r->to - r->from, counted = fg_used_at(l, r->to) - fg_used_at(l, r->from);
    if (!l->looks || counted > 2 * length) return;   /* the job has overwritten its count */
    if (l->shared && r->from < l->shared + FG_FRESH / 3) return;
    uint64_t told = counted * fg_scale_of(l, r->to) / FG_WHOLE, least = length / FG_WHOLE * r->part, most = least + length / 100;
    if (told < least) told = least;
    if (told > most) told = most;   /* whole percents: values between two of them are not corrected */
    l->told = l->told * 7 / 8 + told;
    l->counted = l->counted * 7 / 8 + counted;
    if (l->counted > 100 * FG_MS) l->measured = r->to;
}

/* Take the driver's measurement: the job used `part` (ten-thousandths, whole percents) of the GPU between two times. It
   is used when the next one comes: the job counts a kernel when it has ended. */
static inline void fg_lend_measured(fg_lender *l, uint32_t part, uint64_t from, uint64_t to) {
    fg_report last = l->last;
    if (to <= from || to - from > FG_MAX_DEBT || part > FG_WHOLE) return;
    l->last = (fg_report){from, to, part};
    if (last.to) fg_lend_compare(l, &last);
}

/* Store a sample. A job cannot use more time than has passed: time that is reported late was used before. */
static inline void fg_lend_remember(fg_lender *l, uint64_t used, uint64_t sure, uint64_t now) {
    uint32_t last = l->looks % FG_LOOKS, back = l->looks < FG_LOOKS ? l->looks : FG_LOOKS - 1;
    uint32_t before = (l->looks - 1) % FG_LOOKS;
    if (back && used > l->used[before] + now - l->at[before] + FG_LUMP) l->lumpy_until = now + FG_LUMPY;
    l->at[last] = now;
    l->used[last] = used;
    l->sure[last] = sure;
    for (uint32_t i = l->looks; back--; i--) {
        uint32_t later = i % FG_LOOKS, at = (i - 1) % FG_LOOKS;
        uint64_t between = l->at[later] - l->at[at];
        if (l->used[later] <= l->used[at] + between) break;
        l->used[at] = l->used[later] - between;
    }
    l->looks++;
}

/* Sample one job: what it uses, and how much of its share is reserved for it. */
static inline void fg_lend_look(fg_lender *l, const fg_pace *p, uint64_t now) {
    uint32_t last = l->looks ? (l->looks - 1) % FG_LOOKS : 0, share = p->share < FG_WHOLE ? p->share : FG_WHOLE, duty = 0;
    if (l->looks && now > l->at[last] && p->used >= l->used[last]) {
        uint64_t own = (p->used - l->used[last]) * fg_scale_of(l, now) / FG_WHOLE;
        duty = fg_least(own * FG_WHOLE / (now - l->at[last]), FG_WHOLE);
    }
    fg_lend_remember(l, p->used, p->sure, now);
    l->flying = fg_pace_flying(p, now);
    if (l->flying && duty < share) duty = share;
    l->recent = (l->recent + duty) / 2;
    if (l->recent || l->flying) l->there = now;
    int had_to_wait = p->wanted <= now && now - p->wanted < FG_AWAKE;
    l->is_hungry = had_to_wait || l->recent * 10 >= share * 9;
    if (!fg_pace_is_on(p) || l->is_hungry || duty * 2 >= share) l->reserve = share;
    else l->reserve = duty || l->recent > FG_WHOLE / 100 ? fg_least(share, l->recent * 5 / 4 + FG_WHOLE / 20) : 0;
}

/* Return what else is on the GPU of a job. */
static inline uint32_t fg_crowd_of(fg_lender **l, int jobs, int me, int has_others) {
    for (int i = 0; has_others && i < jobs; i++)
        if (i != me && l[i]->there_for > (double)FG_MS) return FG_BESIDE_LONG;
    return has_others ? FG_CROWDED : FG_ALONE;
}

/* Compute the loans, scales and parts of all jobs of a GPU, after all were sampled. */
static inline void fg_lend(fg_lender **l, fg_pace **p, int jobs, uint64_t now) {
    uint64_t kept = 0, asking = 0, others = 0;
    fg_take_turns(l, p, jobs, now);
    for (int i = 0; i < jobs; i++) {
        kept += l[i]->reserve;
        others += fg_is_there(l[i], p[i], now);
        if (p[i]->policy == FG_PACE_FAIR && l[i]->is_hungry) asking += p[i]->share;
    }
    for (int i = 0; i < jobs; i++) {
        uint64_t idle = kept < FG_WHOLE ? FG_WHOLE - kept : 0;
        int asks = p[i]->policy == FG_PACE_FAIR && l[i]->is_hungry && asking;
        int has_others = others > (uint64_t)fg_is_there(l[i], p[i], now);
        p[i]->lent = asks ? fg_least(idle * p[i]->share / asking, FG_WHOLE - 1) : 0;
        p[i]->lent_until = now + FG_LEASE;
        if (jobs == 1 && p[i]->policy == FG_PACE_FAIR) {
            p[i]->lent = FG_WHOLE;
            p[i]->lent_until = now + FG_LONG_LEASE;
        }
        if (has_others) fg_lend_shared(l[i], now);
        p[i]->mechanism = fg_is_measured(l[i], now) ? FG_BY_NVML : FG_BY_EVENTS;
        p[i]->scale = fg_scale_of(l[i], now);
        p[i]->crowd = fg_crowd_of(l, jobs, i, has_others);
        p[i]->among = fg_part_of(l[i]->among, l[i]->among > 0);
        p[i]->turns = l[i]->there_for > 0 ? fg_part_of(l[i]->own, l[i]->there_for) : p[i]->among;
        p[i]->scale_until = now + FG_LONG_LEASE;
    }
}
#endif
