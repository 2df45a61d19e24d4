/* The part of a job that pacesim and turnsim have in common: share,policy,processes,kernel µs[,key=value…]. Times in ns. */
#ifndef SIMJOB_H
#define SIMJOB_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "pace.h"

#define NEVER UINT64_MAX
#define SLICE (2 * FG_MS)
#define SECOND (1000 * FG_MS)    /* the simulated time begins with it, so that no time is 0 */

typedef struct { uint32_t share, policy; int processes, sync; uint64_t kernel, tail, gap, from, to; } job_words;

static inline uint64_t value_of(const char *text, const char *key, uint64_t otherwise) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : otherwise;
}
static inline job_words read_words(const char *text, int most_processes) {
    job_words words;
    char policy[8];
    double kernel;
    if (sscanf(text, "%u,%7[a-z],%d,%lf", &words.share, policy, &words.processes, &kernel) != 4 || words.processes > most_processes) exit(2);
    words.policy = *policy == 'h' ? FG_PACE_HARD : *policy == 'f' ? FG_PACE_FAIR : FG_PACE_NONE;
    words.kernel = (uint64_t)(kernel * 1000);
    words.tail = value_of(text, "tail=", 0) * FG_US;
    words.gap = value_of(text, "gap=", 0) * FG_US;
    words.sync = (int)value_of(text, "sync=", 0);
    words.from = value_of(text, "from=", 0) * FG_MS + SECOND;
    words.to = value_of(text, "to=", 0) * FG_MS + SECOND;
    if (words.to == SECOND) words.to = NEVER;
    return words;
}
#endif
