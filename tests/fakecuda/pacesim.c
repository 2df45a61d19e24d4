/* pacesim: the pacing of jobs on a simulated card, in virtual time, with the very code of hook and controller.
 *
 *   pacesim SECONDS nvml|events|eager [switch=µs] JOB…        JOB: share,policy,processes,kernel µs[,key=value…]
 *   keys: gap (µs between launches), sync (launches after which the process waits for the card), from, to (ms: when
 *   the job is there), wake (ms: until when it does nothing), mix (µs: what one kernel in eight takes, which is of
 *   another kind), tail (µs: what one in eight takes of the same kind)
 * Every 100 ms a line: the nanoseconds that each job had the card. The card gives the processes that have work turns
 * of 2 ms, as a real one without MPS, and an event waits for such a turn too, or not ("eager"); a process can have
 * 1024 launches waiting. `switch` is the time from one process's turn to another's: 250 µs on an H100, otherwise 0.
 *
 * The driver's measurement is that of an H100: every fifth of a second it takes one sample, the whole percentage of
 * this time in which the card had work, and ascribes it to the one process that worked last. A question, three
 * times a second, is answered with the mean of the new samples for each process that one of them names. */
#include "lend.h"
#include "meter.h"
#include "simjob.h"

enum { ROOM = 2048, DEPTH = 1024, JOBS = 8, PROCESSES = 8, SAMPLES = 8192 };

typedef struct { uint64_t at; } event;
typedef struct { uint64_t left; event *event; } item;
typedef struct job job;
typedef struct {
    job *of;
    fg_meter meter;
    item queue[ROOM];
    uint64_t wake, launches, asked;   /* asked: when the next launch first asked */
    int head, count, kernels, number, syncing, full;
    unsigned seed;
} process;
struct job {
    fg_pace pace;
    fg_long_runs runs;
    fg_lender lender;
    process *process[PROCESSES];
    job_words asked;
    uint64_t mix, had, had_before;
};
static job jobs[JOBS];
static int n_jobs, by_nvml, is_eager, turn_of;
static process *all[JOBS * PROCESSES];
static int n_all;
static uint64_t now, slice_end, switch_cost, switch_until;
static uint64_t worked, worked_before;   /* time in which the card had work */
static const job *last;                  /* that had work */
static struct { const job *of; uint32_t percent; } sample[SAMPLES];
static int samples, answered;

static void push(process *p, uint64_t left, event *e) {
    if (p->count == ROOM) abort();
    p->queue[(p->head + p->count++) % ROOM] = (item){left, e};
    p->kernels += e == NULL;
}
static void reach(process *p) {   /* marks at the head are reached at once */
    while (p->count && p->queue[p->head].event) {
        p->queue[p->head].event->at = now;
        p->head = (p->head + 1) % ROOM;
        p->count--;
    }
}
static process *running(void);
static int record(void *self, void **at, void *stream) {
    (void)stream;
    if (!*at) *at = malloc(sizeof(event));
    ((event *)*at)->at = NEVER;
    push(self, 0, *at);
    if (is_eager || (running() == self && now >= switch_until)) reach(self);
    return 1;
}
static int reached(void *self, void *e) { (void)self; return ((event *)e)->at <= now; }
static int64_t between(void *self, void *from, void *to) { (void)self; return (int64_t)(((event *)to)->at - ((event *)from)->at); }

/* The card runs what is at the head of the queue whose turn it is. */
static process *running(void) {
    if (n_all && all[turn_of]->count && now < slice_end) return all[turn_of];
    for (int i = 1; i <= n_all; i++) {
        int at = (turn_of + i) % n_all;
        if (!all[at]->count) continue;
        if (at != turn_of) switch_until = now + switch_cost;
        turn_of = at;
        slice_end = switch_until > now ? switch_until + SLICE : now + SLICE;
        if (now >= switch_until) reach(all[at]);
        return all[at]->count ? all[at] : running();
    }
    return NULL;
}
static void run(process *p, uint64_t time) {
    item *first = &p->queue[p->head];
    p->of->had += time;
    worked += time;
    last = p->of;
    first->left -= time;
    now += time;
    if (first->left) return;
    p->head = (p->head + 1) % ROOM;
    p->count--;
    p->kernels--;
    reach(p);
    if ((p->full && p->kernels < DEPTH) || (p->syncing && !p->count)) {
        p->wake = now + (p->syncing ? 10 * FG_US + p->of->asked.gap : 2 * FG_US);
        p->full = p->syncing = 0;
    }
}
static void launch(process *p, uint64_t key, uint64_t takes) {
    fg_stopwatch watch = {record, reached, between, p};
    fg_pace *pace = &p->of->pace;
    fg_turn turn = {0};
    int paced = fg_pace_is_on(pace);
    if (!p->asked) p->asked = now;
    uint64_t wait = paced ? fg_meter_wait(&p->meter, pace, key, p->asked, now, &watch) : 0;
    if (wait) { p->wake = now + wait + 60 * FG_US; return; }   /* a process sleeps a little longer than it asked for */
    p->asked = 0;
    if (paced) fg_meter_begin(&p->meter, fg_track_of(&p->meter, pace, &p->of->runs, p, p), key, now, &watch, &turn);
    push(p, takes, NULL);
    if (turn.marks) fg_track_mark(turn.track, now, &watch);
    pace->flying[p->number] = paced ? turn.track->busy_until : now + 10 * FG_REPORT_PERIOD;
    p->launches++;
    p->wake = now + 3 * FG_US + p->of->asked.gap;
    if (p->of->asked.sync && p->launches % (unsigned)p->of->asked.sync == 0) { p->syncing = 1; p->wake = NEVER; }
    else if (p->kernels >= DEPTH) { p->full = 1; p->wake = NEVER; }
}
static void act(process *p) {
    job *j = p->of;
    if (now >= j->asked.to) { p->wake = NEVER; return; }
    int is_other = (j->mix || j->asked.tail) && (rand_r(&p->seed) & 7) == 0;
    launch(p, is_other && j->mix ? j->mix : j->asked.kernel, !is_other ? j->asked.kernel : j->mix ? j->mix : j->asked.tail);
}
static void controller(void) {
    fg_lender *l[JOBS];
    fg_pace *p[JOBS];
    int n = 0;
    for (int i = 0; i < n_jobs; i++) {
        if (now < jobs[i].asked.from || now >= jobs[i].asked.to) continue;
        jobs[i].lender.runs = &jobs[i].runs;
        fg_lend_look(&jobs[i].lender, &jobs[i].pace, now);
        l[n] = &jobs[i].lender;
        p[n++] = &jobs[i].pace;
    }
    fg_lend(l, p, n, now);
}
static uint32_t mean_of(const job *j) {
    uint32_t sum = 0;
    for (int i = answered; i < samples; i++) sum += sample[i].of == j ? sample[i].percent : 0;
    return sum / (uint32_t)(samples - answered);
}
/* Who shares the card is told so: as controller/gputime does it. */
static void nvml(void) {
    uint64_t period = SECOND / 5;
    for (int i = 0; by_nvml && samples > answered && i < n_jobs; i++) {
        uint32_t own = mean_of(&jobs[i]);
        for (int k = 0; k < n_jobs; k++)
            if (k != i && mean_of(&jobs[k])) fg_lend_shared(&jobs[i].lender, now);
        if (own) fg_lend_measured(&jobs[i].lender, own * 100, SECOND + (uint64_t)answered * period, SECOND + (uint64_t)samples * period);
    }
    answered = samples;
}
static void take_sample(void) {
    if (last && samples < SAMPLES) {
        sample[samples].of = last;
        sample[samples].percent = (uint32_t)((worked - worked_before) * 100 / (SECOND / 5));
    }
    worked_before = worked;
    samples += samples < SAMPLES;
}
static void read_job(const char *text, job *j) {
    j->asked = read_words(text, PROCESSES);
    j->mix = value_of(text, "mix=", 0) * FG_US;
    j->pace.policy = j->asked.policy;
    j->pace.share = j->asked.share;
    for (int i = 0; i < j->asked.processes; i++) {
        process *p = calloc(1, sizeof *p);
        *p = (process){.of = j, .meter.flight = i, .wake = SECOND + value_of(text, "wake=", (j->asked.from - SECOND) / FG_MS) * FG_MS + (uint64_t)i * 777 * FG_US, .number = i, .seed = (unsigned)(n_all + 1)};
        j->process[i] = all[n_all++] = p;
    }
}
int main(int argc, char **argv) {
    uint64_t end = (uint64_t)(atof(argv[1]) * (double)SECOND) + SECOND, tick = SECOND, tell = SECOND + 100 * FG_MS, measure = SECOND + SECOND / 5, ask = SECOND + 300 * FG_MS;
    by_nvml = !strcmp(argv[2], "nvml");
    is_eager = !strcmp(argv[2], "eager");
    now = SECOND;
    switch_cost = argc > 3 ? value_of(argv[3], "switch=", 0) * FG_US : 0;
    for (int i = strstr(argv[3], "switch=") ? 4 : 3; i < argc; i++) read_job(argv[i], &jobs[n_jobs++]);
    while (now < end) {
        uint64_t next = tick < tell ? tick : tell;
        if (measure < next) next = measure;
        if (ask < next) next = ask;
        process *awake = NULL, *at_work = running();
        for (int i = 0; i < n_all; i++)
            if (all[i]->wake < next) { next = all[i]->wake; awake = all[i]; }
        if (next > now && at_work && now < switch_until) {
            if (switch_until < next) next = switch_until;
            worked += next - now;
            now = next;
            if (now == switch_until) reach(at_work);
            continue;
        }
        if (next > now && at_work) {
            uint64_t until = now + at_work->queue[at_work->head].left;
            if (slice_end < until) until = slice_end;
            if (until <= next) { run(at_work, until - now); continue; }
            run(at_work, next - now);
        }
        if (next > now) now = next;
        if (awake) act(awake);
        if (now >= tick) { controller(); tick += 25 * FG_MS; }
        if (now >= measure) { take_sample(); measure += SECOND / 5; }
        if (now >= ask) { nvml(); ask += 300 * FG_MS; }
        if (now >= tell) {
            for (int i = 0; i < n_jobs; i++) {
                printf("%llu%c", (unsigned long long)(jobs[i].had - jobs[i].had_before), i + 1 < n_jobs ? ' ' : '\n');
                jobs[i].had_before = jobs[i].had;
            }
            tell += 100 * FG_MS;
        }
    }
    return 0;
}
