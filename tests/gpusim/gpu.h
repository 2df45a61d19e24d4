/* A GPU whose time processes share: a context each, in a ring; one context at a time has the GPU for a time slice.
 *
 * Kernels of a context's streams run at once while the sum of their widths is at most that of the GPU. A marker (an event
 * of the driver) is reached only while its context has the GPU. Copies have an engine of their own. Changing to another
 * context takes time, and more time if a kernel is interrupted. A context without work gives the GPU up at once. */
#ifndef GPUSIM_GPU_H
#define GPUSIM_GPU_H
#include <stddef.h>
#include "engine.h"

#define STREAMS 32
#define DEPTH 1024                  /* of a stream's queue */
#define WHOLE 1000                  /* the width of the GPU */
#define CONTEXTS 64

enum kind { KERNEL, COPY, MARKER };
typedef struct { enum kind kind; int width; ns left; void *owner; } operation;
typedef struct {
    operation queue[DEPTH];
    unsigned first, arrived, end;   /* counted without end; those before `arrived` have reached the GPU */
    int is_copying;
    struct context *context;
} stream;
typedef struct context {
    stream streams[STREAMS];
    uint32_t ready, running;        /* sets of streams: a kernel or a marker is in front; its kernel has started */
    int width;                      /* of the running kernels */
    int next_stream;                /* the first that may start a kernel: streams follow in turn */
    ns busy;                        /* time in which it had the GPU and a kernel ran */
    void (*done)(struct context *, operation);
} context;

static struct {
    ns slice, interrupting, changing, reach;    /* how long; `reach`: from a launch to the GPU */
    context *ring[CONTEXTS];
    int contexts, current, is_changing;
    ns changed, slice_end, next, last, copied;  /* when */
} gpu = {.slice = 2 * MS, .interrupting = 300 * US, .changing = 150 * US, .reach = 4 * US, .next = NEVER};

static operation *front(stream *queue) { return &queue->queue[queue->first % DEPTH]; }
static unsigned length(const stream *queue) { return queue->end - queue->first; }
static uint32_t bit(const stream *queue) { return 1u << (queue - queue->context->streams); }

static void copy_done(void *subject);

static void look_at_front(stream *queue)   /* the operation in front is another one */
{
    context *context = queue->context;
    context->ready &= ~bit(queue);
    if (queue->first == queue->arrived)
        return;
    if (front(queue)->kind != COPY)
        context->ready |= bit(queue);
    else if (!queue->is_copying) {
        queue->is_copying = 1;
        gpu.copied = (gpu.copied > now ? gpu.copied : now) + front(queue)->left;
        later(gpu.copied, copy_done, queue);
    }
}

static void finish(stream *queue)
{
    operation finished = *front(queue);
    queue->first++;
    look_at_front(queue);
    queue->context->done(queue->context, finished);
}

static void run_kernels(void)       /* until now */
{
    ns time = now - gpu.last;
    gpu.last = now;
    context *current = gpu.ring[gpu.current];
    if (gpu.is_changing || !current->running)
        return;
    current->busy += time;
    for (uint32_t set = current->running; set; set &= set - 1)
        front(&current->streams[__builtin_ctz(set)])->left -= time;
}

static void finish_kernels(context *current)
{
    for (uint32_t set = current->running; set; set &= set - 1) {
        stream *queue = &current->streams[__builtin_ctz(set)];
        if (front(queue)->left > 0)
            continue;
        current->running &= ~bit(queue);
        current->width -= front(queue)->width;
        finish(queue);
    }
}

static uint32_t rotated(uint32_t set, int by) { return set >> by | set << (-by & 31); }

static void start_kernels(context *current)
{
    int base = current->next_stream;
    for (uint32_t set = rotated(current->ready & ~current->running, base); set; set &= set - 1) {
        int number = (__builtin_ctz(set) + base) % STREAMS;
        stream *queue = &current->streams[number];
        while (current->ready & bit(queue) && front(queue)->kind == MARKER)
            finish(queue);
        if (!(current->ready & bit(queue)) || (current->running && current->width + front(queue)->width > WHOLE))
            continue;
        current->running |= bit(queue);
        current->width += front(queue)->width;
        current->next_stream = (number + 1) % STREAMS;
    }
}

static ns first_end(context *current)
{
    ns left = NEVER - now;
    for (uint32_t set = current->running; set; set &= set - 1) {
        stream *queue = &current->streams[__builtin_ctz(set)];
        if (front(queue)->left < left)
            left = front(queue)->left;
    }
    return now + left;
}

static int next_with_work(void)     /* in the ring; the current context if there is no other */
{
    for (int i = 1; i < gpu.contexts; i++)
        if (gpu.ring[(gpu.current + i) % gpu.contexts]->ready)
            return (gpu.current + i) % gpu.contexts;
    return gpu.current;
}

static void change(int target, ns takes)
{
    gpu.current = target;
    gpu.is_changing = 1;
    gpu.changed = gpu.next = now + takes;
}

static void schedule(void)          /* something has happened: the GPU goes on, and `next` is when it does something itself */
{
    run_kernels();
    if (gpu.is_changing && now < gpu.changed)
        return;
    if (gpu.is_changing) {
        gpu.is_changing = 0;
        gpu.slice_end = now + gpu.slice;
    }
    context *current = gpu.ring[gpu.current];
    finish_kernels(current);
    start_kernels(current);
    int other = next_with_work();
    if (!current->running) {
        gpu.next = NEVER;
        if (other != gpu.current)
            change(other, gpu.changing);
        return;
    }
    if (now >= gpu.slice_end) {
        if (other != gpu.current) {
            change(other, gpu.interrupting);
            return;
        }
        gpu.slice_end += ((now - gpu.slice_end) / gpu.slice + 1) * gpu.slice;
    }
    ns end = first_end(current);
    gpu.next = end < gpu.slice_end ? end : gpu.slice_end;
}

static void copy_done(void *subject)
{
    stream *queue = subject;
    queue->is_copying = 0;
    finish(queue);
    schedule();
}

static void arrive(void *subject)
{
    stream *queue = subject;
    if (queue->first == queue->arrived++) {
        look_at_front(queue);
        schedule();
    }
}

static void launch(stream *queue, operation launched)
{
    queue->queue[queue->end++ % DEPTH] = launched;
    later(now + gpu.reach, arrive, queue);
}
#endif
