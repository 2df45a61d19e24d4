# Cython declarations of include/pace.h and include/stopwatch.h.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "pace.h" nogil:
    const uint32_t FG_WHOLE, FG_PACE_NONE, FG_PACE_HARD, FG_PACE_FAIR
    const int FG_FLIGHTS
    enum:
        FLIGHTS "FG_FLIGHTS"
    const uint64_t FG_REPORT_PERIOD
    ctypedef struct fg_pace:
        uint32_t policy, share
        uint64_t filled
        int64_t level
        uint64_t busy_until, used
        uint64_t flying[FLIGHTS]
    bint fg_pace_is_on(const fg_pace *)
    bint fg_pace_only_reports(const fg_pace *)
    void fg_pace_charge(fg_pace *, int64_t time)
    uint64_t fg_pace_wait(fg_pace *, uint32_t window, uint64_t uncounted, uint64_t now)
    uint64_t fg_pace_count(fg_pace *, uint64_t start, uint64_t end, uint64_t had)
    uint32_t fg_pace_flying(const fg_pace *, uint64_t now)
    uint64_t fg_window_wait(uint32_t start, uint32_t length, uint64_t now, uint64_t *left)

cdef extern from "stopwatch.h" nogil:
    ctypedef struct fg_stopwatch:
        int (*record)(void *, void **, void *) noexcept nogil
        int (*reached)(void *, void *) noexcept nogil
        int64_t (*between)(void *, void *, void *) noexcept nogil
        void *self
