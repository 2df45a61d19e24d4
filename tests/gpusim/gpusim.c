/* Simulate jobs that share a GPU: gpusim [OPTION=VALUE ...] JOB ...
 *
 * Options, times in microseconds: seconds=6 seed=1 slice=2000 interrupting=300 changing=150 reach=4 late=60 very_late=2000
 * very_often=0.01 wake=12; turns=1: jobs take exclusive turns, with launchers=1 poll=100 near=200 (see pacing.h).
 * A JOB is a list such as share=25,kernel=171,wait=4 of: share (per cent), fair, none (policies other than hard),
 * processes, streams, width (of a kernel: part of the GPU), kernel, tail and tail_each (one in so many kernels takes
 * `tail`), graph (kernels of a launch), copy (before the first launch), wait (after so many launches), pause (then), launch
 * (time of the host), rate (requests a second of `wait` launches), on and off (phases), stops (its processes, then).
 * Prints a line for each job: per cent of the time that it had the GPU, launches, requests, and their p50 and p99 in
 * milliseconds. */
#include <string.h>
#include "program.h"
#include "pacing.h"

static ns duration = 6 * SECOND;
static job jobs[JOBS];
static int job_count;

static void fail(const char *word)
{
    fprintf(stderr, "gpusim: unknown: %s\n", word);
    exit(2);
}

typedef struct { const char *name; enum { TIME, NUMBER, PART } type; void *value; } option;

static void set(const option *options, char *word)
{
    size_t name = strcspn(word, "=");
    double value = word[name] ? atof(word + name + 1) : 1;
    for (; options->name; options++)
        if (strlen(options->name) == name && !strncmp(options->name, word, name)) {
            if (options->type == TIME)
                *(ns *)options->value = (ns)(value * US);
            else if (options->type == NUMBER)
                *(int *)options->value = (int)value;
            else
                *(double *)options->value = value;
            return;
        }
    fail(word);
}

static void set_option(char *word)
{
    static double seconds, seed;
    const option options[] = {
        {"seconds", PART, &seconds}, {"seed", PART, &seed}, {"slice", TIME, &gpu.slice},
        {"interrupting", TIME, &gpu.interrupting}, {"changing", TIME, &gpu.changing}, {"reach", TIME, &gpu.reach},
        {"late", TIME, &host.late}, {"very_late", TIME, &host.very_late}, {"very_often", PART, &host.very_often},
        {"wake", TIME, &host.wake}, {"turns", NUMBER, &pacing.is_on}, {"launchers", NUMBER, &pacing.launchers},
        {"poll", TIME, &pacing.poll}, {"near", TIME, &pacing.near}, {NULL, TIME, NULL},
    };
    set(options, word);
    duration = seconds > 0 ? (ns)(seconds * SECOND) : duration;
    random_state = ((uint64_t)seed + 1) * 0x9E3779B97F4A7C15ULL;
}

static void add_job(char *words)
{
    job *job = &jobs[job_count++];
    double width = 1;
    job->processes = job->streams = job->graph = 1;
    job->kernel = 171 * US;
    job->launch = 2 * US;
    const option options[] = {
        {"share", PART, &job->share}, {"fair", NUMBER, &job->fair}, {"none", NUMBER, &job->none},
        {"processes", NUMBER, &job->processes}, {"stops", TIME, &job->stops},
        {"streams", NUMBER, &job->streams}, {"width", PART, &width}, {"kernel", TIME, &job->kernel},
        {"tail", TIME, &job->tail}, {"tail_each", NUMBER, &job->tail_each}, {"graph", NUMBER, &job->graph},
        {"copy", TIME, &job->copy}, {"wait", NUMBER, &job->wait}, {"pause", TIME, &job->pause},
        {"launch", TIME, &job->launch}, {"rate", PART, &job->rate}, {"on", TIME, &job->on}, {"off", TIME, &job->off},
        {NULL, TIME, NULL},
    };
    for (char *word = strtok(words, ","); word; word = strtok(NULL, ","))
        set(options, word);
    job->width = (int)(width * WHOLE);
    if (job->streams > STREAMS || (job->rate > 0 && !job->wait))
        fail("a job with too many streams, or with requests of no launches");
}

static void start_process(job *job)
{
    if (program_count == PROCESSES)
        fail("too many processes");
    process *program = programs[program_count++] = calloc(1, sizeof *program);
    program->job = job;
    program->seat = job->seat;
    program->gpu.done = operation_done;
    for (int i = 0; i < STREAMS; i++)
        program->gpu.streams[i].context = &program->gpu;
    gpu.ring[gpu.contexts++] = &program->gpu;
    if (job->rate > 0)
        program->arrival = between_requests(job);
    later((ns)(random_part() * (double)MS), proceed, program);
}

static void start(job *job)
{
    job->seat = take_seat(job);
    for (int i = 0; i < job->processes; i++)
        start_process(job);
}

static int by_time(const void *a, const void *b)
{
    ns x = *(const ns *)a, y = *(const ns *)b;
    return (x > y) - (x < y);
}

static void report(job *job)
{
    ns busy = 0;
    for (int i = 0; i < program_count; i++)
        busy += programs[i]->job == job ? programs[i]->gpu.busy : 0;
    qsort(job->latency, (size_t)job->requests, sizeof(ns), by_time);
    double p50 = 0, p99 = 0;
    if (job->requests) {
        p50 = (double)job->latency[job->requests / 2] / MS;
        p99 = (double)job->latency[job->requests * 99 / 100] / MS;
    }
    double part = 100.0 * (double)busy / (double)duration;
    printf("%.2f %lu %d %.2f %.2f\n", part, job->launches, job->requests, p50, p99);
}

int main(int argc, char **argv)
{
    random_state = 0x9E3779B97F4A7C15ULL;
    fg_arbiter_init(&pacing.arbiter);
    int word = 1;
    for (; word < argc && !strchr(argv[word], ',') && strncmp(argv[word], "share=", 6); word++)
        set_option(argv[word]);
    for (; word < argc && job_count < JOBS; word++)
        add_job(argv[word]);
    for (int i = 0; i < job_count; i++)
        start(&jobs[i]);
    while (now < duration) {
        if (event_count == 0 || gpu.next <= events[0].at) {
            if (gpu.next >= duration)
                break;
            now = gpu.next;
            schedule();
        } else {
            event due = next_event();
            now = due.at;
            due.call(due.subject);
        }
    }
    now = duration;
    run_kernels();
    for (int i = 0; i < job_count; i++)
        report(&jobs[i]);
}
