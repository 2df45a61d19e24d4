/* Clocks of the pacing: nanoseconds of CLOCK_MONOTONIC. */
#ifndef FG_CLOCK_H
#define FG_CLOCK_H
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t fg_clock_nanoseconds(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static inline uint64_t fg_clock(void) { return fg_clock_nanoseconds(CLOCK_MONOTONIC); }

/* Late by up to a kernel tick (milliseconds), and cheaper. */
static inline uint64_t fg_rough_clock(void) { return fg_clock_nanoseconds(CLOCK_MONOTONIC_COARSE); }

/* Sleep for `time` nanoseconds. A raw system call: a launch is no cancellation point, so this must not be one either. */
static inline void fg_sleep(uint64_t time) {
    struct timespec rest = {(time_t)(time / 1000000000u), (long)(time % 1000000000u)};
    syscall(SYS_nanosleep, &rest, (void *)0);
}
#endif
