/* The simulated clock: what happens later, in the order of its time; and random numbers of a seed. */
#ifndef GPUSIM_ENGINE_H
#define GPUSIM_ENGINE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define US 1000L
#define MS 1000000L
#define SECOND 1000000000L
#define NEVER INT64_MAX

typedef int64_t ns;
typedef struct { ns at; uint64_t order; void (*call)(void *); void *subject; } event;

static ns now;
static event *events;
static size_t event_count, event_room;
static uint64_t event_order, random_state;

static uint64_t random_word(void)   /* xorshift64* */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1DULL;
}

static double random_part(void) { return (double)(random_word() >> 11) * 0x1p-53; }

static int is_before(const event *a, const event *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void later(ns at, void (*call)(void *), void *subject)
{
    if (event_count == event_room) {
        event_room = event_room ? 2 * event_room : 1024;
        events = realloc(events, event_room * sizeof *events);
        if (events == NULL) {
            perror("gpusim");
            exit(1);
        }
    }
    event new = {at < now ? now : at, event_order++, call, subject};
    size_t place = event_count++;
    for (; place && is_before(&new, &events[(place - 1) / 2]); place = (place - 1) / 2)
        events[place] = events[(place - 1) / 2];
    events[place] = new;
}

static event next_event(void)
{
    event first = events[0], last = events[--event_count];
    size_t place = 0, child;
    while ((child = 2 * place + 1) < event_count) {
        if (child + 1 < event_count && is_before(&events[child + 1], &events[child]))
            child++;
        if (!is_before(&events[child], &last))
            break;
        events[place] = events[child];
        place = child;
    }
    events[place] = last;
    return first;
}
#endif
