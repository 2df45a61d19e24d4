/* The cost of a function or graph, learned from timed launches.
 *
 * For a job alone on its GPU, a sample is the time between two events. Beside other jobs, their turns lie in between.
 * A kernel shorter than a turn is seldom interrupted, so its usual time is its cost; of a longer kernel, the job's part
 * of the turns is. A kernel counts as long if it has more long samples than interruptions explain, or if the job seems
 * to have had much more time than it was charged. Pure, like pace.h. */
#ifndef FG_HABIT_H
#define FG_HABIT_H
#include "pace.h"

#define FG_AGAIN (250 * FG_MS)   /* a kind is timed alone again after this time */
#define FG_TRIALS 4              /* first launches, all timed: the very first loads code */
#define FG_SHORT (2200 * FG_US)  /* one turn of the GPU: shorter kernels are seldom interrupted */
#define FG_BRIEF (1200 * FG_US)  /* longer kernels are recorded for the controller one by one */
#define FG_ODD 300               /* ten-thousandths of samples that may be long besides interrupted ones */
#define FG_TRIAL (100 * FG_MS)   /* the longest wait of the second launch of a kind for the first */

typedef struct {                 /* a kind of launch; cost: the charge; wall: its duration; both ns */
    uint64_t key, sampled;
    uint64_t queued;             /* when it was last timed behind other work of its stream */
    uint64_t tried, due;         /* when it was last launched to be timed, and its expected beginning */
    int64_t cost, wall, mean;    /* mean: average part of all samples, used if the duration says little */
    uint32_t seen;               /* number of samples, up to FG_TRIALS */
    int32_t odd;                 /* ten-thousandths of recent samples that were longer than usual */
} fg_habit;

/* Move a quarter of the way towards a sample, by at most known / part: a sample that contains a turn of another job
   can be hundreds of times too long. */
static inline void fg_approach(int64_t *known, int64_t seen, int64_t part) {
    int64_t step = (seen - *known) / 4, most = *known / part + 1;
    *known += step > most ? most : step < -most && part > 4 ? -most : step;
}

static inline void fg_start_or_approach(int64_t *known, int64_t seen, int is_new) {
    if (is_new && (!*known || seen < *known)) *known = seen;
    else fg_approach(known, seen, 4);
}

static inline void fg_learn(fg_habit *habit, int64_t wall, int64_t cost, uint64_t now) {
    if (cost < wall / 16) cost = wall / 16;   /* overlapped with another stream: a lower bound */
    if (!habit->seen) habit->wall = habit->cost = 0;   /* only an estimate so far */
    fg_start_or_approach(&habit->wall, wall, habit->seen < FG_TRIALS);
    fg_start_or_approach(&habit->cost, cost, habit->seen < FG_TRIALS);
    habit->seen += habit->seen < FG_TRIALS;
    habit->sampled = now;
}

/* Whether a short kernel has more long samples than interruptions by other jobs explain. */
static inline int fg_is_irregular(const fg_habit *habit) {
    return habit->odd > FG_ODD + 3 * habit->wall / 2 * FG_WHOLE / FG_MS;
}

static inline int fg_is_short(const fg_habit *habit) { return habit->seen && habit->wall <= FG_SHORT && !fg_is_irregular(habit); }

/* Learn from a sample taken beside other jobs. A short kernel costs its uninterrupted time, a long one its part of the
   turns. A time that may include the wait for the first turn is an upper bound only. */
static inline void fg_learn_in_turns(fg_habit *habit, int64_t wall, int64_t own, int is_idle, uint64_t now) {
    int64_t usual = habit->wall, most = usual + (usual / 2 > 20 * FG_US ? usual / 2 : 20 * FG_US);
    habit->sampled = now;
    if (is_idle && now - habit->queued < 4 * FG_AGAIN + 64 * (uint64_t)usual) {
        if (wall < usual) fg_approach(&habit->wall, wall, 8);
        return;
    }
    if (!is_idle) habit->queued = now;
    habit->mean = habit->mean ? habit->mean + (own - habit->mean) / (usual > FG_SHORT ? 4 : 16) : own;
    if (usual > FG_SHORT && wall > FG_SHORT && habit->seen) {
        fg_learn(habit, wall, own, now);
        habit->cost = habit->mean;
        return;
    }
    if (habit->seen) habit->odd += ((wall > most) * FG_WHOLE - habit->odd) / 64;
    if (!habit->seen || wall < usual / 2 || habit->odd > FG_WHOLE * 7 / 8) {
        habit->wall = wall;
        habit->odd = 0;
    } else if (wall <= most) fg_approach(&habit->wall, wall, 8);
    habit->cost = habit->wall <= FG_SHORT && !fg_is_irregular(habit) ? habit->wall : habit->mean;
    habit->seen += habit->seen < FG_TRIALS;
}

/* Return the ns for which the second launch of an unknown kind waits for the first; the cost of a kernel that runs
   longer than expected is raised to the time that it has run. */
static inline uint64_t fg_habit_wait(fg_habit *habit, fg_pace *pace, uint64_t now) {
    if (!habit->tried || habit->sampled >= habit->tried) return 0;
    uint64_t since = now - habit->tried;
    int64_t ran = now > habit->due ? (int64_t)(now - habit->due) : 0;
    if (!habit->sampled && since < FG_TRIAL) return since / 8 + 20 * FG_US < FG_MS ? since / 8 + 20 * FG_US : FG_MS;
    if (ran > 4 * habit->wall + 20 * FG_MS) {
        habit->wall = ran;
        habit->cost = (int64_t)fg_pace_scaled(pace, fg_pace_turn(pace, (uint64_t)ran, &pace->turns, now), now);
    }
    return 0;
}
#endif
