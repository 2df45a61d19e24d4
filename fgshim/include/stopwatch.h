/* The calls of the driver that time launches by events on their streams. */
#ifndef FG_STOPWATCH_H
#define FG_STOPWATCH_H
#include <stdint.h>

typedef struct {
    int (*record)(void *self, void **event, void *stream);              /* creates the event if necessary; 1: done */
    int (*reached)(void *self, void *event);                            /* 1: yes; 0: not yet; -1: unknown */
    int64_t (*between)(void *self, void *from, void *to);               /* ns; below 0: unknown */
    void *self;
} fg_stopwatch;
#endif
