# Cython declarations of include/pace.h, include/meter.h and include/lend.h.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "pace.h" nogil:
    const uint32_t FG_WHOLE, FG_PACE_NONE, FG_PACE_HARD, FG_PACE_FAIR, FG_BY_EVENTS, FG_BY_NVML
    const int FG_FLIGHTS
    enum:
        FLIGHTS "FG_FLIGHTS"
    const uint64_t FG_REPORT_PERIOD
    ctypedef struct fg_pace:
        uint32_t policy, share, lent, scale
        uint64_t lent_until, scale_until
        uint32_t mechanism
        uint64_t filled
        int64_t level
        uint64_t busy_until, used, wanted
        uint64_t flying[FLIGHTS]
    ctypedef struct fg_long_runs:
        pass
    bint fg_pace_is_on(const fg_pace *)
    bint fg_pace_only_reports(const fg_pace *)
    bint fg_pace_is_free(const fg_pace *, uint64_t now)
    void fg_pace_add(fg_pace *, int64_t more)
    void fg_pace_fill(fg_pace *, uint64_t now)
    uint64_t fg_pace_wait(fg_pace *, uint64_t since, uint64_t now)
    int64_t fg_pace_settle(fg_pace *, uint64_t start, uint64_t end, int64_t charged, bint is_sure, uint64_t now)

cdef extern from "meter.h" nogil:
    ctypedef struct fg_stopwatch:
        int (*record)(void *, void **, void *) noexcept nogil
        int (*reached)(void *, void *) noexcept nogil
        int64_t (*between)(void *, void *, void *) noexcept nogil
        void *self
    ctypedef struct fg_track:
        void *context
        uint64_t busy_until
    ctypedef struct fg_meter:
        int flight
    ctypedef struct fg_turn:
        fg_track *track
        bint marks
    fg_track *fg_track_of(fg_meter *, fg_pace *, fg_long_runs *, void *stream, void *context)
    uint64_t fg_meter_wait(fg_meter *, fg_pace *, uint64_t key, uint64_t since, uint64_t now, fg_stopwatch *)
    void fg_meter_begin(fg_meter *, fg_track *, uint64_t key, uint64_t now, fg_stopwatch *, fg_turn *)
    void fg_meter_forget(fg_meter *, void *context)
    int fg_track_mark(fg_track *, uint64_t now, fg_stopwatch *)

cdef extern from "lend.h" nogil:
    const int FG_MOST_JOBS
    enum:
        JOBS "FG_MOST_JOBS"
    ctypedef struct fg_lender:
        uint32_t recent, flying
        const fg_long_runs *runs
    void fg_lend_look(fg_lender *, const fg_pace *, uint64_t now)
    void fg_lend_shared(fg_lender *, uint64_t now)
    void fg_lend_measured(fg_lender *, uint32_t part, uint64_t start, uint64_t end)
    void fg_lend(fg_lender **, fg_pace **, int jobs, uint64_t now)
