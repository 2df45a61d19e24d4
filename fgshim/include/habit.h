/* What one function or graph takes of the card, learned from the launches of it that were timed.
 *
 * Alone on the card, that is the time between two events. Among other jobs their turns lie in between: a kernel that
 * is shorter than a turn is seldom interrupted, so what it usually takes is what it takes; of a longer one the job has
 * its part of the turns. A short one whose samples are long more often than interruptions explain is not short, nor is
 * one of which the job seems to have had far more time. Pure, as pace.h. */
#ifndef FG_HABIT_H
#define FG_HABIT_H
#include "pace.h"

#define FG_AGAIN (250 * FG_MS)   /* a function's cost is measured alone again after this */
#define FG_TRIALS 4              /* launches that are timed at once: the first of all loads its code */
#define FG_SHORT (2200 * FG_US)  /* no longer than a turn of the card: a kernel that is seldom interrupted */
#define FG_BRIEF (1200 * FG_US)  /* of the longer ones the controller is told one by one */
#define FG_ODD 300               /* ten-thousandths of samples that may be odd, beside those that were interrupted */
#define FG_TRIAL (100 * FG_MS)   /* the longest that the second launch waits for the first of its kind */

typedef struct {                 /* a function or graph; cost: what the job is charged; wall: how long it takes */
    uint64_t key, sampled;
    uint64_t queued;             /* when it was last timed on a stream that had work before it */
    uint64_t tried, due;         /* when it was last launched to be measured, and was to begin */
    int64_t cost, wall, mean;    /* mean: of what all samples had, where their length says little */
    uint32_t seen;               /* how often, up to FG_TRIALS */
    int32_t odd;                 /* ten-thousandths of the samples of late that were longer than usual */
} fg_habit;

/* A quarter of the way to what was seen, and by no more than a part: one sample in which others had a turn of the
   card is hundreds of times too long. */
static inline void fg_nudge(int64_t *known, int64_t seen, int64_t part) {
    int64_t step = (seen - *known) / 4, most = *known / part + 1;
    *known += step > most ? most : step < -most && part > 4 ? -most : step;
}

static inline void fg_begin_or_nudge(int64_t *known, int64_t seen, int is_new) {
    if (is_new && (!*known || seen < *known)) *known = seen;
    else fg_nudge(known, seen, 4);
}

static inline void fg_learn(fg_habit *habit, int64_t wall, int64_t cost, uint64_t now) {
    if (cost < wall / 16) cost = wall / 16;   /* its like on another stream was charged: not for ever */
    if (!habit->seen) habit->wall = habit->cost = 0;   /* no more than a guess */
    fg_begin_or_nudge(&habit->wall, wall, habit->seen < FG_TRIALS);
    fg_begin_or_nudge(&habit->cost, cost, habit->seen < FG_TRIALS);
    habit->seen += habit->seen < FG_TRIALS;
    habit->sampled = now;
}

/* Samples of a short kernel that are too long are those that others had a turn in, if they are no more than that. */
static inline int fg_is_varied(const fg_habit *habit) {
    return habit->odd > FG_ODD + 3 * habit->wall / 2 * FG_WHOLE / FG_MS;
}

static inline int fg_is_short(const fg_habit *habit) { return habit->seen && habit->wall <= FG_SHORT && !fg_is_varied(habit); }

/* Among other jobs. What is short takes what it takes when nobody interrupts it; what is long, its part of the turns.
   A time that may hold a wait for the first turn says only that no more was taken. */
static inline void fg_learn_in_turns(fg_habit *habit, int64_t wall, int64_t own, int is_idle, uint64_t now) {
    int64_t usual = habit->wall, most = usual + (usual / 2 > 20 * FG_US ? usual / 2 : 20 * FG_US);
    habit->sampled = now;
    if (is_idle && now - habit->queued < 4 * FG_AGAIN + 64 * (uint64_t)usual) {
        if (wall < usual) fg_nudge(&habit->wall, wall, 8);
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
    } else if (wall <= most) fg_nudge(&habit->wall, wall, 8);
    habit->cost = habit->wall <= FG_SHORT && !fg_is_varied(habit) ? habit->wall : habit->mean;
    habit->seen += habit->seen < FG_TRIALS;
}

/* The second launch of what is not known waits for the first; what runs on costs as long as it has run. */
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
