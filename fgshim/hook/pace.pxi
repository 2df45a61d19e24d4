# Pacing of launches: a launch waits for the job's turn on a shared GPU. turn_client.c has the turns, backlog.h the
# measurement.
# A launch into a captured stream is not paced: its
# graph is, when it is launched.
#
# Exports: fg_forget_marks, fg_forget_stream, fg_is_paced, fg_mark_launch, fg_may_wait, fg_wait_turn.
# Needs: driver (fg_function, fg_is_initialized); memory (fg_gpu_of); region (fg_attach, fg_lock, fg_unlock); slots
#   (fg_ensure_slot).

cdef extern from "pace.h" nogil:
    void fg_fly "fg_pace_put"(uint64_t *, uint64_t)

cdef extern from "turn_client.h" nogil:
    bint fg_turns_enter(uint32_t gpu, fg_pace *pace, void *context, void *stream, fg_stopwatch *)
    void fg_turns_mark(uint32_t gpu, void *context, void *stream, fg_stopwatch *)
    void fg_turns_forget_context(void *context)
    void fg_turns_forget_stream(void *stream)
    void fg_turns_in_child()
    void fg_turns_set_watch(const fg_stopwatch *, int (*enter)(void *) noexcept nogil, void (*leave)() noexcept nogil)

cdef extern from "backlog.h" nogil:
    void *FG_NO_STREAM

cdef enum:
    FG_NOT_PACED = 1
    FG_PACED = 2
    FG_ONLY_REPORTS = 3  # policy none on a shared GPU: it only reports that it launches

cdef struct fg_launch:  # a launch that is paced
    bint own  # stream 0 is the calling thread's stream
    bint marks  # fg_mark_launch must be called behind it
    uint32_t gpu  # position in the region
    void *context
    void *stream


cdef int fg_watch_record(void *self, void **event, void *stream) noexcept nogil:
    """Record an event. The relaxed capture mode permits it while another thread captures."""
    cdef fg_launch *launch = <fg_launch *> self
    cdef bint own = launch.own
    cdef void *create = fg_function(FG_cuEventCreate)
    cdef void *record = fg_function(FG_cuEventRecord_ptsz if own else FG_cuEventRecord)
    cdef void *exchange = fg_function(FG_cuThreadExchangeStreamCaptureMode)
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED, done
    if not create or not record or not exchange or (<exchange_mode_t> exchange)(&mode) != CUDA_SUCCESS:
        return False
    done = event[0] != NULL or (<event_create_t> create)(event, 0) == CUDA_SUCCESS
    if done:
        stream = launch.stream if stream == FG_NO_STREAM else stream
        done = (<event_record_t> record)(event[0], stream) == CUDA_SUCCESS
    (<exchange_mode_t> exchange)(&mode)
    return done


cdef int fg_watch_reached(void *self, void *event) noexcept nogil:
    cdef void *exchange = fg_function(FG_cuThreadExchangeStreamCaptureMode)
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED, status
    (<exchange_mode_t> exchange)(&mode)
    status = (<event_query_t> fg_function(FG_cuEventQuery))(event)
    (<exchange_mode_t> exchange)(&mode)
    return 1 if status == CUDA_SUCCESS else 0 if status == CUDA_ERROR_NOT_READY else -1


cdef int64_t fg_watch_between(void *self, void *start, void *end) noexcept nogil:
    cdef float milliseconds = 0
    cdef void *elapsed = fg_function(FG_cuEventElapsedTime)
    if not elapsed or (<event_elapsed_t> elapsed)(&milliseconds, start, end) != CUDA_SUCCESS:
        return -1
    return <int64_t> (<double> milliseconds * 1e6)


cdef int fg_watch_record_idle(void *self, void **event, void *stream) noexcept nogil:
    """Record an event behind the work of another thread, whose stream may be captured by now."""
    cdef int how = 0, mode = CU_STREAM_CAPTURE_MODE_RELAXED, status
    cdef void *exchange = fg_function(FG_cuThreadExchangeStreamCaptureMode)
    cdef void *ask = fg_function(FG_cuStreamIsCapturing)
    if not exchange or not ask or (<exchange_mode_t> exchange)(&mode) != CUDA_SUCCESS:
        return False
    status = (<stream_capturing_t> ask)(stream, &how)
    (<exchange_mode_t> exchange)(&mode)
    return status == CUDA_SUCCESS and how == 0 and fg_watch_record(self, event, stream)


cdef int fg_enter_context(void *context) noexcept nogil:
    return (<ctx_in_t> fg_function(FG_cuCtxPushCurrent_v2))(context)


cdef void fg_leave_entered() noexcept nogil:
    cdef void *context = NULL
    (<ctx_out_t> fg_function(FG_cuCtxPopCurrent_v2))(&context)


cdef fg_launch fg_of_thread  # of the thread that watches the queues; all zero


cdef void fg_give_watch() noexcept nogil:
    cdef fg_stopwatch watch
    watch.record, watch.reached, watch.between, watch.self = fg_watch_record_idle, fg_watch_reached, fg_watch_between, &fg_of_thread
    fg_turns_set_watch(&watch, fg_enter_context, fg_leave_entered)


cdef void fg_pace_in_child() noexcept nogil:
    """Forget the events and the pacing slot of the parent, in the child of a fork."""
    global fg_flight
    fg_flight = 0
    fg_turns_in_child()


cdef bint fg_decide_pacing() noexcept nogil:
    """Decide at the first launch, from the region, whether launches of this process are paced."""
    global fg_paces
    cdef fg_region *region = fg_attach()
    cdef uint32_t at
    cdef int paces = FG_NOT_PACED
    if region:
        for at in range(fg_region_gpus(region)):
            if fg_pace_is_on(&region.pace[at]):
                paces = FG_PACED
            elif fg_pace_only_reports(&region.pace[at]) and paces == FG_NOT_PACED:
                paces = FG_ONLY_REPORTS
    if paces != FG_NOT_PACED and fg_load_int(&fg_paces) == 0:
        fg_give_watch()
        __register_atfork(NULL, NULL, fg_pace_in_child, NULL)
        if paces == FG_PACED and fg_lock(region):  # the slot tells the controller that this process is the job's
            fg_ensure_slot(region)
            fg_unlock(region)
    fg_store_int(&fg_paces, paces)
    return paces == FG_PACED


cdef inline bint fg_is_paced() noexcept nogil:
    cdef int paces = fg_load_int(&fg_paces)
    return paces == FG_PACED or (paces == 0 and fg_decide_pacing())


cdef inline bint fg_may_wait() noexcept nogil:
    """Return whether a launch may have to wait. If not, the hook reads no argument of the launch."""
    return fg_load_int(&fg_paces) != FG_NOT_PACED and fg_is_initialized()


cdef inline int fg_gpu_here(const fg_region *region) noexcept nogil:
    """Return the position in the region of the current context's GPU; -1 if launches there are not paced."""
    cdef void *ask
    cdef int device = 0, gpu = 0
    if fg_region_gpus(region) > 1:
        ask = fg_function(FG_cuCtxGetDevice)
        if not ask or (<ctx_device_t> ask)(&device) != CUDA_SUCCESS:
            return -1
        gpu = fg_gpu_of(device)
    return gpu if gpu >= 0 and fg_pace_is_on(&region.pace[gpu]) else -1


cdef bint fg_only_records(void *stream, bint own) noexcept nogil:
    """Return whether the stream is being captured. If the driver does not say, it is taken to be."""
    cdef int how = 0
    cdef void *ask = fg_function(FG_cuStreamIsCapturing_ptsz if own else FG_cuStreamIsCapturing)
    return ask != NULL and ((<stream_capturing_t> ask)(stream, &how) != CUDA_SUCCESS or how != 0)


cdef void fg_report_launch() noexcept nogil:
    """Report at most every 10 ms that this process launches, for a job that is not paced."""
    global fg_reported_at, fg_flight
    cdef fg_region *region = fg_attach()
    cdef uint64_t now = fg_rough_clock()
    cdef uint32_t at
    if now - fg_reported_at < FG_REPORT_PERIOD:
        return
    fg_reported_at = now
    if not fg_flight:
        fg_flight = getpid() % FG_FLIGHTS + 1
    for at in range(fg_region_gpus(region)):
        fg_fly(&region.pace[at].flying[fg_flight - 1], now + 10 * FG_REPORT_PERIOD)


cdef void fg_forget_marks(void *context) noexcept nogil:
    """Forget the events of a context before it is destroyed."""
    if fg_load_int(&fg_paces) == FG_PACED:
        fg_turns_forget_context(context)


cdef void fg_forget_stream(void *stream) noexcept nogil:
    """Forget a stream before it is destroyed."""
    if fg_load_int(&fg_paces) == FG_PACED:
        fg_turns_forget_stream(stream)


cdef bint fg_wait_turn(void *stream, bint own, fg_launch *launch) noexcept nogil:
    """Wait for this launch's turn. Return True if fg_mark_launch must be called behind it."""
    cdef fg_region *region
    cdef fg_stopwatch watch
    cdef int gpu
    launch.own, launch.stream, launch.marks = own, stream, False
    if not fg_is_paced():
        if fg_load_int(&fg_paces) == FG_ONLY_REPORTS:
            fg_report_launch()
        return False
    if fg_only_records(stream, own):
        return False
    region = fg_attach()
    gpu = fg_gpu_here(region)
    if gpu < 0 or (<ctx_out_t> fg_function(FG_cuCtxGetCurrent))(&launch.context) != CUDA_SUCCESS:
        return False
    watch.record, watch.reached, watch.between, watch.self = fg_watch_record, fg_watch_reached, fg_watch_between, launch
    launch.gpu = <uint32_t> gpu
    cdef bint is_of_thread = <uint64_t> stream == CU_STREAM_PER_THREAD or (own and stream == NULL)
    launch.marks = fg_turns_enter(launch.gpu, &region.pace[gpu], launch.context, FG_NO_STREAM if is_of_thread else stream, &watch)
    return launch.marks


cdef void fg_mark_launch(fg_launch *launch) noexcept nogil:
    """Record the event behind the launch."""
    cdef fg_stopwatch watch
    watch.record, watch.reached, watch.between, watch.self = fg_watch_record, fg_watch_reached, fg_watch_between, launch
    fg_turns_mark(launch.gpu, launch.context, launch.stream, &watch)
