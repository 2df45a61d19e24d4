/* The turns of this process on shared GPUs: its connection to the arbiter, its queues, and the thread that watches them. */
#ifndef FG_TURN_CLIENT_H
#define FG_TURN_CLIENT_H
#include <stdint.h>
#include "pace.h"
#include "stopwatch.h"

#pragma GCC visibility push(hidden)
/* Wait for the turn on a GPU, given by its position in the region, and note a launch. Without an arbiter, wait for the
   window and the budget of the job. The GPU time is counted in `pace`. Return whether fg_turns_mark must be called
   behind the launch. */
int fg_turns_enter(uint32_t gpu, fg_pace *pace, void *context, void *stream, fg_stopwatch *watch);
void fg_turns_mark(uint32_t gpu, void *context, void *stream, fg_stopwatch *watch);
/* Forget the events of a context before it is destroyed, and a stream before it is. */
void fg_turns_forget_context(void *context);
void fg_turns_forget_stream(void *stream);
/* In the child of a fork: it has neither the connection nor the thread. */
void fg_turns_in_child(void);
/* The stopwatch of the thread, which marks the end of the work of other threads: set before the first turn. */
void fg_turns_set_watch(const fg_stopwatch *watch, int (*enter)(void *context), void (*leave)(void));
#pragma GCC visibility pop
#endif
