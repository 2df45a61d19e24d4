/* turnsim: exclusive turns on a simulated GPU, in virtual time, with the very code of hook and arbiter.
 *
 *   turnsim SECONDS [none|budget] [ends=ms] [counts] [late] [sleeps=µs] [very_late=µs] [very_often=%] [change=µs] [interrupt=µs] [seed=N] JOB…
 *   none: all jobs launch without turns; budget: there is no arbiter; ends: it ends then; counts: see below; late: a thread that is
 *   woken is as late as one that slept, and requests come at random times, often two in a row
 *   JOB: share,policy,processes,kernel µs[,key=value…]; keys: gap (µs between launches), sync (launches after which the
 *   process waits for the GPU), pause (µs, after that), from, to (ms: when the job is there), tail (µs: one kernel in
 *   eight), streams, width (per cent of the GPU that a kernel fills), rate (requests a second, of `sync` launches each)
 *
 * Every 100 ms a line: the nanoseconds that each job had the GPU. At the end a line for each job that has requests:
 * "requests COUNT P50 P99", in microseconds; with `counts`, for each job "counted NS LAUNCHES" by its hook. The GPU gives the processes that have work time slices of 2 ms; a change to
 * another process costs 0.3 ms if it interrupts and 0.15 ms if it does not, as on an H100. An event waits for a slice.
 * Sleeps are late by 60 µs (those of hook's thread and arbiter, with a small timer slack, by 20), and one in a hundred by
 * 2 ms more, or as `sleeps`, `very_often` and `very_late` say. */
#include "backlog.h"
#include "launcher.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX
#define SLICE (2 * FG_MS)
#define SECOND (1000 * FG_MS)    /* the simulated time begins with it, so that no time is 0 */

typedef struct { uint32_t share, policy; int processes, sync; uint64_t kernel, tail, gap, from, to; } job_words;

static inline uint64_t value_of(const char *text, const char *key, uint64_t otherwise) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : otherwise;
}
static inline job_words read_words(const char *text, int most_processes) {
    job_words words;
    char policy[8];
    double kernel;
    if (sscanf(text, "%u,%7[a-z],%d,%lf", &words.share, policy, &words.processes, &kernel) != 4 || words.processes > most_processes) exit(2);
    words.policy = *policy == 'h' ? FG_PACE_HARD : *policy == 'f' ? FG_PACE_FAIR : FG_PACE_NONE;
    words.kernel = (uint64_t)(kernel * 1000);
    words.tail = value_of(text, "tail=", 0) * FG_US;
    words.gap = value_of(text, "gap=", 0) * FG_US;
    words.sync = (int)value_of(text, "sync=", 0);
    words.from = value_of(text, "from=", 0) * FG_MS + SECOND;
    words.to = value_of(text, "to=", 0) * FG_MS + SECOND;
    if (words.to == SECOND) words.to = NEVER;
    return words;
}

enum { ROOM = 4096, DEPTH = 1024, JOBS = 8, PROCESSES = 8, ALL = 64, STREAMS = 32, LATENCIES = 8192 };

typedef struct { uint64_t at; } event;
typedef struct { uint64_t left, number; event *event; } item;
typedef struct { item queue[ROOM]; int head, count; } stream;
typedef struct job job;
typedef struct {
    job *of;
    fg_backlog backlog;
    stream *stream;
    uint64_t wake, keeper, launches, until, wants, looked, arrival, woke;
    uint32_t seat;
    int kernels, syncing, full, napped;
    unsigned seed;
} process;
struct job {
    job_words asked;
    fg_pace pace;
    int streams, width, place, resumed, requests, is_contended, may_be_deep;
    fg_launcher launcher;
    double rate;
    uint64_t pause, had, had_before, latency[LATENCIES];
    process *process[PROCESSES];
};
static job jobs[JOBS];
static process *all[ALL];
static int n_jobs, n_all, turn_of, is_free, has_budgets, counts, is_late, is_contended, words[JOBS];
static uint64_t now, slice_end, change_until, change = 150 * FG_US, interrupt = 300 * FG_US, arbiter_at = NEVER, arbiter_end = NEVER;
static fg_arbiter arbiter;
static uint64_t launched, ahead = FG_AHEAD;
static uint64_t sleeps = 60 * FG_US, very_late = 2 * FG_MS;
static unsigned noise = 1, very_often = 1;

static uint64_t late(void) { return sleeps + (rand_r(&noise) % 100 < very_often ? very_late : 0); }
static uint64_t little_late(void) { return is_late ? late() : late() - sleeps * 2 / 3; }   /* of a thread that asked for a small timer slack */
static uint64_t poke(void) { return is_late ? late() : 15 * FG_US; }   /* from a futex or a socket to the process that waits */
static uint64_t poke_twice(void) { return is_late ? late() : 30 * FG_US; }   /* the word of several threads */
static double random_part(unsigned *of) { return ((double)rand_r(of) + 1) / (RAND_MAX + 2.); }
static uint64_t between_requests(const job *j, unsigned *of) {
    double part = random_part(of);
    return (uint64_t)((is_late ? -__builtin_log(part) : 0.5 + part) * 1e9 / j->rate);
}
static void sooner(uint64_t *at, uint64_t when) { if (when < *at) *at = when; }

/* -- the GPU ------------------------------------------------------------------------------------------------------- */
static void reach(process *p) {   /* events at the heads are reached at once */
    for (int i = 0; i < p->of->streams; i++)
        for (stream *s = &p->stream[i]; s->count && s->queue[s->head].event; s->count--) {
            s->queue[s->head].event->at = now;
            s->head = (s->head + 1) % ROOM;
        }
}
static int has_work(const process *p) {
    for (int i = 0; i < p->of->streams; i++) if (p->stream[i].count) return 1;
    return 0;
}
static process *running(void) {
    if (n_all && has_work(all[turn_of]) && now < slice_end) return all[turn_of];
    for (int i = 1; i <= n_all; i++) {
        int at = (turn_of + i) % n_all;
        if (!has_work(all[at])) continue;
        if (at != turn_of) change_until = now + (has_work(all[turn_of]) ? interrupt : change);
        turn_of = at;
        slice_end = change_until > now ? change_until + SLICE : now + SLICE;
        if (now >= change_until) reach(all[at]);
        return has_work(all[at]) ? all[at] : running();
    }
    return NULL;
}
static void push(process *p, int at, uint64_t left, event *e) {
    stream *s = &p->stream[at];
    if (s->count == ROOM) abort();
    s->queue[(s->head + s->count++) % ROOM] = (item){left, ++launched, e};
    p->kernels += e == NULL;
}
static int fits(const process *p, int streams[STREAMS]) {   /* the streams whose heads run at once, in the order of their launches */
    int n = 0, width = 0;
    for (uint64_t last = 0;;) {
        int best = -1;
        uint64_t number = NEVER;
        for (int i = 0; i < p->of->streams; i++) {
            const stream *s = &p->stream[i];
            if (s->count && s->queue[s->head].number > last && s->queue[s->head].number < number) number = s->queue[best = i, s->head].number;
        }
        if (best < 0 || (n && width + p->of->width > 100)) return n;
        width += p->of->width;
        streams[n++] = best;
        last = number;
    }
}
static uint64_t first_end(const process *p) {
    int at[STREAMS], n = fits(p, at);
    uint64_t least = NEVER;
    for (int i = 0; i < n; i++) sooner(&least, p->stream[at[i]].queue[p->stream[at[i]].head].left);
    return least;
}
static void finished(process *p) {
    if (p->full && p->kernels < DEPTH) { p->full = 0; p->wake = now + 2 * FG_US; }
    if (!p->syncing || p->kernels) return;
    p->syncing = 0;
    job *j = p->of;
    if (j->rate > 0) {
        if (j->requests < LATENCIES) j->latency[j->requests++] = now + 12 * FG_US - p->arrival;
        p->arrival += between_requests(j, &p->seed);
    }
    p->wake = now + 12 * FG_US + j->asked.gap + (j->pause ? j->pause + late() : 0);
}
static void run(process *p, uint64_t time) {
    int at[STREAMS], n = fits(p, at);
    p->of->had += time;
    now += time;
    for (int i = 0; i < n; i++) {
        stream *s = &p->stream[at[i]];
        if (s->queue[s->head].left -= time) continue;
        s->head = (s->head + 1) % ROOM;
        s->count--;
        p->kernels--;
    }
    reach(p);
    finished(p);
}

/* -- the hook ------------------------------------------------------------------------------------------------------ */
static int record(void *self, void **at, void *stream) {
    process *p = self;
    if (!*at) *at = malloc(sizeof(event));
    ((event *)*at)->at = NEVER;
    push(p, (int)(intptr_t)stream - 1, 0, *at);
    if (running() == p && now >= change_until) reach(p);
    return 1;
}
static int reached(void *self, void *e) { (void)self; return ((event *)e)->at <= now; }
static int64_t between(void *self, void *from, void *to) { (void)self; return (int64_t)(((event *)to)->at - ((event *)from)->at); }

static int is_alone(void) { return has_budgets || now >= arbiter_end; }   /* no arbiter answers */
static int word_of(const job *j) { return j->place < 0 || is_alone() ? FG_TURN_HELD : words[j->place]; }

static void publish(process *p, uint64_t end) {
    p->until = end < now + FG_TURN_LEASE ? end : now + FG_TURN_LEASE;
}
static uint64_t look(process *p) {
    fg_stopwatch watch = {record, reached, between, p};
    p->backlog.guests = is_alone() ? 0 : arbiter.guests;
    p->backlog.is_charged = is_alone();
    uint64_t end = fg_backlog_look(&p->backlog, now, &watch);
    publish(p, end);
    return end;
}
static uint64_t too_much(process *p) {
    job *j = p->of;
    uint64_t most = j->may_be_deep ? fg_backlog_depth(&p->backlog, ahead) : ahead, wait = 0, left;
    if (is_alone()) {
        uint32_t from = 0, window = has_budgets ? 0 : fg_arbiter_window(&arbiter, j->place, &from);
        most = FG_AHEAD;
        wait = fg_pace_wait(&j->pace, window, fg_backlog_runs_for(&p->backlog, now), now);
        uint64_t closed = window ? fg_window_wait(from, window, now, &left) : 0;
        if (window && left < most) most = left;
        if (closed > wait) wait = closed;
    }
    uint64_t queued = fg_backlog_wait(&p->backlog, most, now);
    return wait > queued ? wait : queued;
}
static int may_launch(process *p) {
    job *j = p->of;
    if (is_free || j->place < 0) return 1;
    if (p->napped) p->woke = now;
    p->napped = 0;
    int is_behind = j->launcher.launcher != FG_LAUNCHER_ANY && j->launcher.launcher != p->seat + 1;
    if (!is_alone() && (words[j->place] == FG_TURN_NONE || is_behind)) {
        p->wants = now;
        p->wake = now + 20 * FG_MS;
        sooner(&arbiter_at, now + poke());
        return 0;
    }
    if (word_of(j) == FG_TURN_PARKED) {
        words[j->place] = FG_TURN_HELD;
        j->resumed = 1;
        sooner(&arbiter_at, now + poke());
    }
    p->wants = 0;
    p->backlog.guests = is_alone() ? 0 : arbiter.guests;
    p->backlog.is_charged = is_alone();
    uint64_t wait = too_much(p);
    if (((wait || fg_backlog_is_doubtful(&p->backlog, now)) && now - p->looked > 50 * FG_US) || p->woke) {
        p->looked = now;
        uint64_t end = look(p);
        if (p->woke) fg_backlog_woke(&p->backlog, end, p->woke);
        p->woke = 0;
        wait = too_much(p);
    }
    if (wait) p->wake = now + (wait < FG_MAX_SLEEP ? wait : FG_MAX_SLEEP) + late();
    p->napped = wait != 0;
    return !wait;
}
static void act(process *p) {
    job *j = p->of;
    if (now >= j->asked.to) { p->wake = NEVER; p->wants = 0; return; }
    if (j->rate > 0 && p->launches % (unsigned)j->asked.sync == 0 && now < p->arrival) { p->wake = p->arrival + late(); return; }
    if (!may_launch(p)) return;
    int at = (int)(p->launches % (unsigned)j->streams);
    fg_stopwatch watch = {record, reached, between, p};
    int marks = !is_free && fg_backlog_launch(&p->backlog, p, (void *)(intptr_t)(at + 1), now, &watch);
    push(p, at, j->asked.tail && (rand_r(&p->seed) & 7) == 0 ? j->asked.tail : j->asked.kernel, NULL);
    if (marks) fg_backlog_mark(&p->backlog, (void *)(intptr_t)(at + 1), now, &watch);
    publish(p, fg_backlog_end(&p->backlog));
    if (p->keeper == NEVER && !is_free) p->keeper = now + FG_MS;
    p->launches++;
    p->wake = now + 3 * FG_US + j->asked.gap;
    if (j->asked.sync && p->launches % (unsigned)j->asked.sync == 0) { p->syncing = 1; p->wake = NEVER; }
    else if (p->kernels >= DEPTH) { p->full = 1; p->wake = NEVER; }
}
static void keep(process *p) {   /* the hook's thread */
    fg_stopwatch watch = {record, reached, between, p};
    int word = word_of(p->of);
    if (word == FG_TURN_NONE) fg_backlog_seal(&p->backlog, now, &watch);
    uint64_t end = look(p);
    if (end <= now) {
        p->until = word == FG_TURN_NONE ? 0 : end;
        if (word == FG_TURN_NONE || (word == FG_TURN_HELD && (is_contended || p->of->is_contended))) sooner(&arbiter_at, now + poke());
        p->keeper = word == FG_TURN_HELD ? now + FG_MS : NEVER;
        return;
    }
    uint64_t soon = end < now + FG_TURN_LEASE / 4 ? end : now + FG_TURN_LEASE / 4;
    if (word == FG_TURN_NONE && soon <= now + 2 * FG_MARK_DUE) p->keeper = now + 5 * FG_US;   /* it asks without sleeping */
    else p->keeper = (word == FG_TURN_NONE ? soon - FG_MARK_DUE : soon) + little_late();
}

/* -- the arbiter --------------------------------------------------------------------------------------------------- */
static uint64_t lead(job *j) {   /* which process of the job launches; when to decide again */
    fg_seat_view seats[PROCESSES];
    uint32_t before = j->launcher.launcher;
    int waiting = 0, is_on = fg_arbiter_word(&arbiter, j->place) == FG_TURN_HELD && (fg_arbiter_active(&arbiter) > 1 || arbiter.others);
    for (int k = 0; k < j->asked.processes; k++) {
        process *p = j->process[k];
        seats[k] = (fg_seat_view){p->wants, fg_lease(p->until, now)};
        waiting |= p->wants != 0;
    }
    uint64_t wake = fg_launcher_step(&j->launcher, seats, (uint32_t)j->asked.processes, is_on, now);
    uint32_t launcher = j->launcher.launcher;
    j->is_contended = is_on && waiting;
    if (launcher != before && is_on && launcher != FG_LAUNCHER_NONE)
        for (int k = 0; k < j->asked.processes; k++)
            if (j->process[k]->wants && (!launcher || launcher == (uint32_t)k + 1)) j->process[k]->wake = now + poke_twice();
    return wake;
}
static void show(job *j) {
    int word = fg_arbiter_word(&arbiter, j->place), before = words[j->place];
    words[j->place] = word;
    if (word == before) return;
    for (int k = 0; k < j->asked.processes; k++) {
        process *p = j->process[k];
        if (word == FG_TURN_NONE && p->keeper != NEVER) p->keeper = now + poke();
        if (word == FG_TURN_HELD && before == FG_TURN_NONE && p->wants) p->wake = now + poke_twice();
    }
}
static void arbitrate(void) {
    fg_turn_view views[FG_ARBITER_JOBS] = {0};
    for (int i = 0; i < n_jobs; i++) {
        job *j = &jobs[i];
        if (j->place < 0) continue;
        fg_turn_view *v = &views[j->place];
        v->resumed = j->resumed;
        j->resumed = 0;
        for (int k = 0; k < j->asked.processes; k++) {
            v->had += j->process[k]->backlog.had;
            if (j->process[k]->until > v->until) v->until = j->process[k]->until;
            if (j->process[k]->wants && (!v->wants || j->process[k]->wants < v->wants)) v->wants = j->process[k]->wants;
        }
    }
    arbiter.others = is_contended = 0;
    for (int i = 0; i < FG_ARBITER_JOBS; i++) is_contended += views[i].wants && i != arbiter.turn.place;
    for (int i = 0; i < n_all; i++) arbiter.others += all[i]->of->place < 0 && all[i]->kernels;
    uint64_t wake = fg_arbiter_step(&arbiter, views, now);
    for (int i = 0; i < n_jobs; i++) {
        if (jobs[i].place < 0) continue;
        wake = fg_sooner(wake, lead(&jobs[i]));
        show(&jobs[i]);
        jobs[i].may_be_deep = fg_arbiter_may_be_deep(&arbiter, jobs[i].place);
    }
    ahead = fg_arbiter_ahead(&arbiter);
    arbiter_at = wake == NEVER ? NEVER : wake + little_late();
}

/* -- the jobs ------------------------------------------------------------------------------------------------------ */
static void read_job(const char *text, job *j) {
    j->asked = read_words(text, PROCESSES);
    j->pause = value_of(text, "pause=", 0) * FG_US;
    j->streams = (int)value_of(text, "streams=", 1);
    j->width = (int)value_of(text, "width=", 100);
    j->rate = (double)value_of(text, "rate=", 0);
    j->place = fg_arbiter_join(&arbiter, j->asked.policy, j->asked.share);
    j->pace.policy = j->asked.policy;
    j->pace.share = j->asked.share;
    for (int i = 0; i < j->asked.processes; i++) {
        process *p = calloc(1, sizeof *p);
        *p = (process){.of = j, .wake = j->asked.from + (uint64_t)i * 777 * FG_US, .keeper = NEVER, .arrival = j->asked.from, .seed = (unsigned)n_all + noise, .seat = (uint32_t)i, .backlog.pace = &j->pace};
        p->stream = calloc((size_t)j->streams, sizeof(stream));
        j->process[i] = all[n_all++] = p;
    }
}
static int by_time(const void *a, const void *b) { return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : *(const uint64_t *)a > *(const uint64_t *)b; }
static void tell(void) {
    for (int i = 0; i < n_jobs; i++) {
        printf("%llu%c", (unsigned long long)(jobs[i].had - jobs[i].had_before), i + 1 < n_jobs ? ' ' : '\n');
        jobs[i].had_before = jobs[i].had;
    }
}
static int option(const char *word) {
    if (!strcmp(word, "none")) return is_free = 1;
    if (!strcmp(word, "budget")) return has_budgets = 1;
    if (!strcmp(word, "counts")) return counts = 1;
    if (!strcmp(word, "late")) return is_late = 1;
    if (!strncmp(word, "ends=", 5)) return arbiter_end = SECOND + (uint64_t)atoi(word + 5) * FG_MS, 1;
    if (!strncmp(word, "seed=", 5)) return noise = (unsigned)atoi(word + 5) + 1, 1;
    if (!strncmp(word, "sleeps=", 7)) return sleeps = (uint64_t)atoi(word + 7) * FG_US, 1;
    if (!strncmp(word, "very_late=", 10)) return very_late = (uint64_t)atoi(word + 10) * FG_US, 1;
    if (!strncmp(word, "very_often=", 11)) return very_often = (unsigned)atoi(word + 11), 1;
    if (!strncmp(word, "change=", 7)) return change = (uint64_t)atoi(word + 7) * FG_US, 1;
    if (!strncmp(word, "interrupt=", 10)) return interrupt = (uint64_t)atoi(word + 10) * FG_US, 1;
    return 0;
}
int main(int argc, char **argv) {
    uint64_t end = (uint64_t)(atof(argv[1]) * (double)SECOND) + SECOND, next_row = SECOND + 100 * FG_MS;
    now = SECOND;
    fg_arbiter_init(&arbiter);
    for (int i = 2; i < argc; i++) if (!option(argv[i])) read_job(argv[i], &jobs[n_jobs++]);
    while (now < end) {
        uint64_t next = next_row;
        process *awake = NULL, *keeper = NULL, *at_work = running();
        for (int i = 0; i < n_all; i++) {
            if (all[i]->wake < next) { next = all[i]->wake; awake = all[i]; keeper = NULL; }
            if (all[i]->keeper < next) { next = all[i]->keeper; keeper = all[i]; awake = NULL; }
        }
        if (arbiter_at < next && !is_alone()) { next = arbiter_at; awake = keeper = NULL; }
        if (next > now && at_work) {
            uint64_t until = now < change_until ? change_until : now + first_end(at_work);
            if (now >= change_until && slice_end < until) until = slice_end;
            if (until > next) until = next;
            if (now < change_until) { now = until; if (now == change_until) reach(at_work), finished(at_work); }
            else run(at_work, until - now);
            continue;
        }
        if (next > now) now = next;
        if (now >= arbiter_at && !is_alone()) arbitrate();
        else if (awake) act(awake);
        else if (keeper) keep(keeper);
        else if (now >= next_row) { tell(); next_row += 100 * FG_MS; }
    }
    for (int i = 0; i < n_jobs; i++) {
        if (!jobs[i].requests) continue;
        qsort(jobs[i].latency, (size_t)jobs[i].requests, sizeof(uint64_t), by_time);
        printf("requests %d %llu %llu\n", jobs[i].requests, (unsigned long long)jobs[i].latency[jobs[i].requests / 2] / 1000, (unsigned long long)jobs[i].latency[jobs[i].requests * 99 / 100] / 1000);
    }
    for (int i = 0; counts && i < n_jobs; i++) {
        uint64_t launches = 0;
        for (int k = 0; k < jobs[i].asked.processes; k++) launches += jobs[i].process[k]->launches;
        printf("counted %llu %llu\n", (unsigned long long)jobs[i].pace.used, (unsigned long long)launches);
    }
    return 0;
}
