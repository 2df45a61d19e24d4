/* The programs of jobs: a thread of the host for each process, which launches kernels, waits for them and pauses. */
#ifndef GPUSIM_PROGRAM_H
#define GPUSIM_PROGRAM_H
#include "gpu.h"

#define PROCESSES 32
#define REQUESTS 4096
#define JOBS 32

typedef struct {
    double share;                   /* per cent */
    int fair, none, processes, streams, width;  /* policies: hard without `fair` and `none` */
    ns kernel, tail;                /* how long a kernel takes; one in `tail_each` */
    int tail_each, graph;           /* `graph`: kernels of one launch */
    ns copy;                        /* before the first kernel after each wait */
    int wait;                       /* after so many launches; 0: never */
    ns pause, launch;               /* after a wait; what a launch takes the host */
    double rate;                    /* requests a second of `wait` launches each; 0: no requests */
    ns stops;                       /* when its processes are stopped; 0: never */
    ns on, off;                     /* phases: it starts no launch in the second one; 0: always on */
    ns latency[REQUESTS];
    int requests;
    uint64_t launches;
    struct seat *seat;              /* of the pacing */
} job;

typedef struct {
    job *job;
    context gpu;
    int burst, markers;             /* launches since the last wait; streams that it waits for */
    ns arrival;                     /* of the request */
    int is_blocked;                 /* a queue is full */
    int has_copied;                 /* since the last wait */
    unsigned next;                  /* stream */
    struct seat *seat;              /* of the pacing; NULL: it launches as it likes */
    int is_parked, is_woken;        /* its launch waits for the turn; it is on its way out of that */
    int unfinished;                 /* launches */
    ns launched;                    /* when it last launched */
    int is_behind;                  /* its launch waits for another process of the job */
    int is_ahead;                   /* its launch waits for those on the GPU */
    ns nap, spare;                  /* the longest sleep of that; 0: not yet known; queued beyond the usual */
    ns due;                         /* when it looks how far those are */
} process;

static process *programs[PROCESSES];
static int program_count;

static struct { ns late, very_late, wake; double very_often; } host = {60 * US, 2 * MS, 12 * US, 0.01};

static ns lateness(void)            /* of a sleep */
{
    ns late = (ns)((0.5 + random_part()) * (double)host.late);
    return random_part() < host.very_often ? late + host.very_late : late;
}

static ns about(ns time) { return (ns)((0.95 + 0.1 * random_part()) * (double)time); }

static int may_launch(process *program);        /* else the pacing lets the process proceed later */
static void has_launched(process *program);
static void has_finished(process *program);
static void has_begun(process *program);        /* the GPU reached the marker before its first launch on an empty queue */
static void proceed(void *subject);

static stream *stream_of(process *program) { return &program->gpu.streams[program->next % (unsigned)program->job->streams]; }

static int is_stopped(const job *job) { return job->stops && now >= job->stops; }

static ns next_on(const job *job)   /* now, if the phase is on */
{
    ns phase = job->on + job->off;
    return job->on && now % phase >= job->on ? (now / phase + 1) * phase : now;
}

static ns between_requests(const job *job)
{
    double part = random_part();
    return (ns)(-__builtin_log(1 - part) / job->rate * (double)SECOND);
}

static ns kernel_time(const job *job)
{
    int is_tail = job->tail_each && random_word() % (uint64_t)job->tail_each == 0;
    ns time = 0;
    for (int i = 0; i < job->graph; i++)
        time += about(is_tail ? job->tail : job->kernel);
    return time;
}

static void wait_for_gpu(process *program)
{
    for (int i = 0; i < program->job->streams; i++) {
        launch(&program->gpu.streams[i], (operation){MARKER, 0, 0, program});
        program->markers++;
    }
}

static void launch_taken(void *subject)
{
    process *program = subject;
    if (program->job->wait && ++program->burst == program->job->wait)
        wait_for_gpu(program);
    else
        proceed(program);
}

static void proceed(void *subject)
{
    process *program = subject;
    job *job = program->job;
    ns start = next_on(job);
    if (is_stopped(job))
        return;
    if (job->rate > 0 && program->burst == 0 && program->arrival > start)
        start = program->arrival;
    if (start > now) {
        later(start + lateness(), proceed, program);
        return;
    }
    stream *queue = stream_of(program);
    if (length(queue) + 3 > DEPTH) {
        program->is_blocked = 1;
        return;
    }
    if (job->copy && program->burst == 0 && !program->has_copied) {
        launch(queue, (operation){COPY, 0, about(job->copy), program});
        program->has_copied = 1;
    }
    if (!may_launch(program))
        return;
    launch(queue, (operation){KERNEL, job->width, kernel_time(job), program});
    has_launched(program);
    program->next++;
    job->launches++;
    later(now + job->launch, launch_taken, program);
}

static void waited(void *subject)
{
    process *program = subject;
    job *job = program->job;
    program->burst = program->has_copied = 0;
    if (job->rate > 0) {
        if (job->requests < REQUESTS)
            job->latency[job->requests++] = now - program->arrival;
        program->arrival += between_requests(job);
    }
    if (job->pause)
        later(now + about(job->pause) + lateness(), proceed, program);
    else
        proceed(program);
}

static void operation_done(context *context, operation finished)
{
    process *program = (process *)((char *)context - offsetof(process, gpu));
    if (finished.kind == MARKER && finished.owner == program && --program->markers == 0)
        later(now + host.wake, waited, program);
    if (finished.kind == MARKER && finished.owner == NULL)
        has_begun(program);
    if (finished.kind == KERNEL)
        has_finished(program);
    if (program->is_blocked) {
        program->is_blocked = 0;
        later(now, proceed, program);
    }
}
#endif
