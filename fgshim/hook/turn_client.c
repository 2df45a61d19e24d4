#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "backlog.h"
#include "launcher.h"
#include "clock.h"
#include "linker.h"
#include "owner.h"
#include "turn_page.h"
#include "turn_client.h"

#define FG_ASK_AGAIN (250 * FG_MS)    /* between two attempts to connect */
#define FG_ASK_SELDOM (5000 * FG_MS)  /* the same after an arbiter that did not answer */
#define FG_LONGEST_SILENCE (2000 * FG_MS)     /* an arbiter that is asked and takes no step for this time hangs */
#define FG_CHECK (100 * FG_MS)        /* how often the connection is checked in a turn */
#define FG_SPIN (300 * FG_US)         /* how long the end of the last work is waited for without sleep */
#define FG_WANT_AGAIN (20 * FG_MS)    /* the wait of a launch until it says again that it waits */
#define FG_STAYS_AWAKE (20 * FG_MS)   /* the thread looks every millisecond for this time after the last work */
#define FG_PATIENCE_OF_LAUNCH (100 * FG_MS)   /* the first wait of a launch for a kernel that does not end; it doubles */
#define FG_LONGEST_PATIENCE (1000 * FG_MS)
#define FG_QUEUES 6                   /* contexts of one GPU in which a process launches; a further one takes the place of the oldest */
#define FG_LOCK_SPINS 200
#define FG_LOCK_NAP (10 * FG_US)      /* between two looks at the lock, if its holder has lost the processor */

typedef struct {
    fg_turn_page *page;               /* NULL: no arbiter gives turns here; atomic */
    const fg_turn_page *last;         /* the page of the last arbiter, with the job's window; NULL: there was none */
    fg_pace *pace;                    /* the job's account in the region; NULL: nothing was launched here */
    fg_backlog queue[FG_QUEUES];      /* one for each context */
    uint32_t queues;                  /* those in use, or used before: a launch looks at no other */
    uint32_t next;                    /* the queue that a further context takes */
    uint64_t looked;                  /* when the marks were last looked at */
    uint64_t overdue;                 /* since when the last work of a turn that was closed is about to end; 0: it is not */
} fg_gpu_turns;

static fg_gpu_turns gpus[FG_TURN_GPUS];
static uint64_t lock;                 /* of all of this, except pages: the thread that has it; 0: none; atomic */
static int connection = -1, has_thread, sleeps;   /* sleeps: the thread waits until it is woken */
static uint32_t seat, flight, bell;   /* flight: index in fg_pace.flying; bell: a futex, for the thread; atomic */
static ino_t inode;                   /* of the connection: a program may close any descriptor */
static uint64_t asked, checked, worked, patience, ask_again = FG_ASK_AGAIN;
static fg_stopwatch keeper_watch;
static int (*enter_context)(void *);
static void (*leave_context)(void);

static uint32_t peek(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void put(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static fg_turn_page *page_of(uint32_t gpu) { return __atomic_load_n(&gpus[gpu].page, __ATOMIC_ACQUIRE); }

/* Raw system calls: a launch is no cancellation point, so nothing in it may be one. */
static int file_status(int fd, struct stat *status) { return (int)syscall(SYS_fstat, fd, status); }
static void close_file(int fd) { syscall(SYS_close, fd); }
static ssize_t receive_byte(int fd) {
    char byte;
    return syscall(SYS_recvfrom, fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK, NULL, NULL);
}

/* Take the lock. Return 0 if this thread has it already: a tool that the driver called back launches. A thread is known by
   the address of its errno. The holder keeps the lock for a microsecond. Another thread spins, then sleeps for short times
   instead of waiting in the kernel, so that unlocking is one store and needs no system call. */
static int take_lock(void) {
    uint64_t self = (uint64_t)&errno, holder = 0;
    for (int i = 0; !__atomic_compare_exchange_n(&lock, &holder, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED); i++, holder = 0) {
        if (holder == self) return 0;
        if (i >= FG_LOCK_SPINS) {
            int saved = errno;
            fg_sleep(FG_LOCK_NAP);
            errno = saved;
        }
#if defined(__x86_64__)
        else __builtin_ia32_pause();
#endif
    }
    return 1;
}

static void give_lock(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static void wait_on(uint32_t *word, uint32_t value, uint64_t time) {
    struct timespec rest = {(time_t)(time / 1000000000u), (long)(time % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, time == UINT64_MAX ? NULL : &rest, NULL, 0);
}

/* -- the connection ------------------------------------------------------------------------------------------------ */
static int is_ours(void) {
    struct stat status;
    return connection >= 0 && !file_status(connection, &status) && S_ISSOCK(status.st_mode) && status.st_ino == inode;
}

/* Take no more turns: the arbiter has ended, or the program has closed the connection. The pages stay mapped, because
   another thread may be about to read them. Under the lock. */
static void disconnect(void) {
    if (is_ours()) close_file(connection);
    connection = -1;
    for (int i = 0; i < FG_TURN_GPUS; i++) {
        if (gpus[i].page) gpus[i].last = gpus[i].page;
        __atomic_store_n(&gpus[i].page, NULL, __ATOMIC_RELEASE);
    }
}

static void poke(void) {
    if (!is_ours() || (syscall(SYS_sendto, connection, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR)) disconnect();
}

static void check(uint64_t now) {
    if (now - checked < FG_CHECK || connection < 0) return;
    checked = now;
    if (!is_ours() || receive_byte(connection) == 0) disconnect();
}

static int connect_to(int folder, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience_of_welcome = {0, 200000};
    int made = (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, "/proc/self/fd/");
    fg_owner_number((uint32_t)folder, address.sun_path + strlen(address.sun_path));
    strcat(strcat(address.sun_path, "/"), name);
    for (int which = 0; made >= 0 && which < 2; which++)   /* an arbiter that hangs holds no launch up */
        syscall(SYS_setsockopt, made, SOL_SOCKET, which ? SO_SNDTIMEO : SO_RCVTIMEO, &patience_of_welcome, sizeof patience_of_welcome);
    if (made < 0 || !syscall(SYS_connect, made, (struct sockaddr *)&address, sizeof address)) return made;
    close_file(made);
    return -1;
}

/* Connect to the socket beside this library. Its directory is opened first: a path may be longer than an address. */
static int connect_here(void) {
    const struct link_map *own = fg_own_map();
    const char *end = own && own->l_name ? strrchr(own->l_name, '/') : NULL;
    char path[4096];
    if (!end || (size_t)(end - own->l_name) >= sizeof path) return -1;
    memcpy(path, own->l_name, (size_t)(end - own->l_name));
    path[end - own->l_name] = 0;
    int folder = (int)syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    int made = connect_to(folder, FG_TURN_SOCKET);
    if (made < 0) made = connect_to(folder, FG_TURN_SOCKET_OF_HOST);
    close_file(folder);
    return made;
}

static void take_pages(const fg_turn_welcome *welcome, const int *files, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        void *page = mmap(NULL, FG_TURN_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, files[i], 0);
        close_file(files[i]);
        if (page == MAP_FAILED || welcome->position[i] >= FG_TURN_GPUS) continue;
        __atomic_store_n(&gpus[welcome->position[i]].page, page, __ATOMIC_RELEASE);
    }
}

typedef struct {                      /* what an arbiter answered */
    int connection, files[FG_TURN_GPUS];
    uint32_t count;                   /* of files */
    ssize_t got;
    fg_turn_welcome welcome;
} fg_turn_answer;

static void ask(fg_turn_answer *answer) {
    union { struct cmsghdr head; char room[CMSG_SPACE(FG_TURN_GPUS * sizeof(int))]; } control;
    struct iovec part = {&answer->welcome, sizeof answer->welcome};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memset(answer, 0, sizeof *answer);
    answer->connection = connect_here();
    if (answer->connection < 0) return;
    answer->got = syscall(SYS_recvmsg, answer->connection, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = answer->got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!head || head->cmsg_type != SCM_RIGHTS) return;
    answer->count = (uint32_t)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(answer->files, CMSG_DATA(head), answer->count * sizeof(int));
}

/* Under the lock. */
static void take_answer(const fg_turn_answer *answer) {
    struct stat status;
    const fg_turn_welcome *welcome = &answer->welcome;
    if (answer->connection < 0 || file_status(answer->connection, &status)) return;
    connection = answer->connection;
    inode = status.st_ino;
    ask_again = answer->got < 0 ? FG_ASK_SELDOM : FG_ASK_AGAIN;
    if (answer->got == sizeof *welcome && welcome->magic == FG_TURN_MAGIC && welcome->seat < FG_TURN_SEATS && welcome->pages == answer->count) {
        seat = welcome->seat;
        take_pages(welcome, answer->files, answer->count);
        return;
    }
    for (uint32_t i = 0; i < answer->count; i++) close_file(answer->files[i]);
    disconnect();
}

/* Whether it is time to look for an arbiter again. Under the lock. */
static int is_to_ask(uint64_t now) {
    if (connection >= 0 || (asked && now - asked < ask_again)) return 0;
    asked = now;
    return 1;
}

/* -- the queues ---------------------------------------------------------------------------------------------------- */
static fg_backlog *known_queue(fg_gpu_turns *g, const void *context) {
    for (fg_backlog *q = g->queue; q < g->queue + g->queues; q++)
        if (q->context == context) return q;
    return NULL;
}

static fg_backlog *queue_of(fg_gpu_turns *g, const void *context) {
    fg_backlog *q = known_queue(g, context);
    if (!q) q = known_queue(g, NULL);
    if (q) return q;
    return &g->queue[g->queues < FG_QUEUES ? g->queues++ : g->next++ % FG_QUEUES];
}

static uint64_t end_of_work(const fg_gpu_turns *g) {
    uint64_t end = 0;
    for (const fg_backlog *q = g->queue; q < g->queue + g->queues; q++)
        if (fg_backlog_end(q) > end) end = fg_backlog_end(q);
    return end;
}

/* Publish the time until which the process has work. Without an arbiter, no other process reads it. */
static void publish(fg_gpu_turns *g, fg_turn_page *page, uint64_t end, uint64_t now) {
    uint64_t had = 0;
    for (const fg_backlog *q = g->queue; q < g->queue + g->queues; q++) had += q->had;
    if (g->pace) fg_pace_put(&g->pace->flying[flight], end);
    if (!page) return;
    put(&page->seat[seat].had, had);
    put(&page->seat[seat].until, end < now + FG_TURN_LEASE ? end : now + FG_TURN_LEASE);
}

/* Set what a queue must know: whether the times between its marks are the job's alone, and whether its budget is charged. */
static void prepare(fg_backlog *q, const fg_gpu_turns *g, const fg_turn_page *page) {
    q->guests = page ? peek(&page->guests) : 0;
    q->pace = g->pace;
    q->is_charged = !page;
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */
/* Look at one queue. Return until when it has work. */
static uint64_t look_at(fg_gpu_turns *g, fg_backlog *q, const fg_turn_page *page, int is_closed, uint64_t now) {
    prepare(q, g, page);
    int is_entered = q->context && !enter_context(q->context);
    if (is_closed && is_entered) fg_backlog_seal(q, now, &keeper_watch);
    uint64_t end = is_entered || !q->pending ? fg_backlog_look(q, now, &keeper_watch) : now;
    if (is_entered) leave_context();
    return end;
}

/* Look at the queues of one GPU. Return the ns until they are looked at again; UINT64_MAX: when the thread is woken. */
static uint64_t keep(fg_gpu_turns *g, fg_turn_page *page, uint64_t now) {
    uint32_t word = page ? peek(&page->word) : FG_TURN_HELD;
    uint64_t end = 0;
    for (fg_backlog *q = g->queue; q < g->queue + g->queues; q++) {
        uint64_t until = q->context ? look_at(g, q, page, word == FG_TURN_NONE, now) : 0;
        if (until > end) end = until;
    }
    publish(g, page, end, now);
    if (end > now) {
        worked = now;
        if (word != FG_TURN_NONE) g->overdue = 0;
        uint64_t soon = end < now + FG_TURN_LEASE / 4 ? end - now : FG_TURN_LEASE / 4;
        if (word != FG_TURN_NONE) return soon > FG_MARK_DUE / 2 ? soon : FG_MARK_DUE / 2;
        if (soon > 2 * FG_MARK_DUE) return soon - FG_MARK_DUE;
        if (!g->overdue) g->overdue = now;
        return now - g->overdue < FG_SPIN ? 5 * FG_US : (now - g->overdue) / 16;
    }
    g->overdue = 0;
    if (word == FG_TURN_NONE) put(&page->seat[seat].until, 0);
    if (page && (word == FG_TURN_NONE || peek(&page->is_contended))) poke();
    return word == FG_TURN_HELD && now - worked < FG_STAYS_AWAKE ? FG_MS : UINT64_MAX;
}

static uint64_t keep_all(uint64_t now, uint32_t **word, uint32_t *value) {
    uint64_t soonest = UINT64_MAX;
    *word = &bell;
    *value = peek(&bell);
    for (int i = 0; i < FG_TURN_GPUS; i++) {
        fg_turn_page *page = page_of((uint32_t)i);
        if (!gpus[i].pace) continue;
        uint32_t seen = page ? peek(&page->word) : 0;
        uint64_t wait = keep(&gpus[i], page, now);
        if (page && (wait < soonest || *word == &bell)) {
            *word = &page->word;
            *value = seen;
        }
        if (wait < soonest) soonest = wait;
    }
    check(now);
    return soonest;
}

/* Without the lock, for an arbiter that hangs answers late: no launch waits for it. */
static void look_for_arbiter(void) {
    fg_turn_answer answer;
    ask(&answer);
    take_lock();
    take_answer(&answer);
    give_lock();
}

static void *keeper(void *unused) {
    (void)unused;
    syscall(SYS_prctl, PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    syscall(SYS_prctl, PR_SET_NAME, "fgsched turns", 0, 0, 0);
    for (;;) {
        uint32_t *word, value;
        take_lock();
        uint64_t now = fg_clock(), wait = keep_all(now, &word, &value);
        uint32_t rung = peek(&bell);
        int asks = is_to_ask(now);
        sleeps = wait == UINT64_MAX && !asks;
        int is_deep = sleeps;
        give_lock();
        if (asks) look_for_arbiter();
        else if (is_deep) wait_on(&bell, rung, UINT64_MAX);
        else if (wait >= 10 * FG_US) wait_on(word, value, wait);
    }
    return NULL;
}

/* Wake the thread if it sleeps: once, however long it takes until the host gives it a processor. */
static void give_lock_and_ring(void) {
    int rings = sleeps;
    sleeps = 0;
    give_lock();
    if (!rings) return;
    __atomic_add_fetch(&bell, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Start the thread. All signals are blocked in it: they are the program's. 32 to 34 are those of the C library: by them
   setuid() reaches each thread. Under the lock. */
static void start_keeper(void) {
    uint64_t all = ~(UINT64_C(7) << 31), before;
    pthread_attr_t how;
    pthread_t thread;
    if (has_thread || pthread_attr_init(&how)) return;
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, 256 << 10);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    flight = (uint32_t)syscall(SYS_getpid) % FG_FLIGHTS;
    has_thread = !pthread_create(&thread, &how, keeper, NULL);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    pthread_attr_destroy(&how);
}

/* -- a launch ------------------------------------------------------------------------------------------------------ */
/* Say that a launch waits, and wait until a word of the page changes. `since`: when it began to wait. An arbiter that
   was asked since then and has taken no step hangs: the process takes no more turns until it answers. */
static void wait_for_turn(fg_turn_page *page, uint32_t *word, uint32_t value, uint64_t since, uint64_t now) {
    uint64_t beat = __atomic_load_n(&page->beat, __ATOMIC_RELAXED), silent = beat > since ? beat : since;
    if (!take_lock()) return;
    check(now);
    if (beat && now > silent && now - silent > FG_LONGEST_SILENCE) {
        disconnect();
        asked = now;
        ask_again = FG_ASK_SELDOM;
    }
    put(&page->seat[seat].wants, now);
    poke();
    give_lock_and_ring();   /* its last work may not have been looked at yet */
    wait_on(word, value, FG_WANT_AGAIN);
}

static void resume(fg_turn_page *page) {
    uint32_t parked = FG_TURN_PARKED;
    if (!__atomic_compare_exchange_n(&page->word, &parked, FG_TURN_HELD, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
    __atomic_store_n(&page->resumed, 1, __ATOMIC_RELEASE);
    if (!take_lock()) return;
    poke();
    give_lock();
}

/* A launch does not wait for ever for a kernel that may wait for this very launch. */
static int has_waited_enough(uint64_t since, uint64_t now) {
    uint64_t most = patience ? patience : FG_PATIENCE_OF_LAUNCH;
    if (now - since < most) return 0;
    patience = most < FG_LONGEST_PATIENCE / 2 ? 2 * most : FG_LONGEST_PATIENCE;
    return 1;
}

/* Return the ns that a launch has to wait without an arbiter, and lower *most to what it may queue. */
static uint64_t budget_wait(fg_gpu_turns *g, const fg_backlog *q, uint64_t now, uint64_t *most) {
    uint32_t window = g->last ? __atomic_load_n(&g->last->window, __ATOMIC_RELAXED) : 0;
    uint64_t wait = fg_pace_wait(g->pace, window, fg_backlog_runs_for(q, now), now), left = FG_AHEAD_ALONE;
    if (!window) return wait;
    uint64_t closed = fg_window_wait(g->last->window_from, window, now, &left);
    if (left < *most) *most = left;
    return wait > closed ? wait : closed;
}

/* Return the ns that a launch has to wait because enough is queued, or without an arbiter because the job has had enough. */
static uint64_t too_much(fg_gpu_turns *g, fg_backlog *q, const fg_turn_page *page, uint64_t now) {
    uint64_t most = page ? __atomic_load_n(&page->ahead, __ATOMIC_RELAXED) : FG_AHEAD, wait = 0;
    if (most < FG_AHEAD || most > FG_AHEAD_ALONE) most = FG_AHEAD;
    if (!page) wait = budget_wait(g, q, now, &most);
    else if (__atomic_load_n(&page->may_be_deep, __ATOMIC_RELAXED)) most = fg_backlog_depth(q, most);
    uint64_t queued = fg_backlog_wait(q, most, now);
    return wait > queued ? wait : queued;
}

/* The same after a look at the queue, if that is due. `woke`: when the launch has slept until; 0: it has not. Under the lock. */
static uint64_t launch_wait(fg_gpu_turns *g, fg_backlog *q, fg_turn_page *page, uint64_t since, uint64_t woke, uint64_t now, fg_stopwatch *watch) {
    uint64_t settled = q->end;
    prepare(q, g, page);
    uint64_t wait = too_much(g, q, page, now);
    int is_due = wait || fg_backlog_is_doubtful(q, now);
    if (!woke && (!is_due || now - g->looked < FG_MARK_DUE / 2)) return wait;
    g->looked = now;
    uint64_t end = fg_backlog_look(q, now, watch);
    publish(g, page, end_of_work(g), now);
    if (woke) fg_backlog_woke(q, end, woke);
    if (q->end > settled) patience = 0;
    wait = too_much(g, q, page, now);
    return wait && since && has_waited_enough(since, now) ? 0 : wait;
}

static int note_launch(fg_gpu_turns *g, fg_backlog *q, fg_turn_page *page, void *context, void *stream, uint64_t now, fg_stopwatch *watch) {
    worked = now;
    int marks = fg_backlog_launch(q, context, stream, now, watch);
    if (page && page->seat[seat].wants) put(&page->seat[seat].wants, 0);
    publish(g, page, end_of_work(g), now);
    if (!has_thread) start_keeper();
    return marks;
}

/* Return whether the job has to wait for its turn, or the process for another one of its job. */
static int waits_for_others(fg_turn_page *page, uint64_t *behind, uint64_t now) {
    uint32_t word = peek(&page->word), launcher = peek(&page->launcher);
    int is_behind = launcher != FG_LAUNCHER_ANY && launcher != seat + 1;
    if (word != FG_TURN_NONE && !is_behind) return 0;
    if (!*behind) *behind = now;
    if (word == FG_TURN_NONE) wait_for_turn(page, &page->word, word, *behind, now);
    else wait_for_turn(page, &page->launcher, launcher, *behind, now);
    return 1;
}

static int enter(uint32_t gpu, fg_pace *pace, void *context, void *stream, fg_stopwatch *watch) {
    fg_gpu_turns *g = &gpus[gpu];
    uint64_t since = 0, behind = 0, woke = 0, wait = 0;
    for (;;) {
        fg_turn_page *page = page_of(gpu);
        uint64_t now = fg_clock();
        if (page && waits_for_others(page, &behind, now)) continue;
        if (page && peek(&page->word) == FG_TURN_PARKED) resume(page);
        if (!take_lock()) return 0;
        g->pace = pace;
        fg_backlog *q = queue_of(g, context);
        if (!page && !has_thread && is_to_ask(now)) {   /* later the thread asks */
            fg_turn_answer answer;
            ask(&answer);
            take_answer(&answer);
        }
        int is_late = page != page_of(gpu), marks = 0;   /* it has just connected, or is no longer */
        if (!is_late && !(wait = launch_wait(g, q, page, since, woke, now, watch))) marks = note_launch(g, q, page, context, stream, now, watch);
        give_lock_and_ring();
        if (is_late) continue;
        if (!wait) return marks;
        if (!since) since = now;
        fg_sleep(wait < FG_MAX_SLEEP ? wait : FG_MAX_SLEEP);
        woke = fg_clock();
    }
}

/* A program may read errno behind a launch: the driver's calls leave it alone. */
int fg_turns_enter(uint32_t gpu, fg_pace *pace, void *context, void *stream, fg_stopwatch *watch) {
    int saved = errno, marks = enter(gpu, pace, context, stream, watch);
    errno = saved;
    return marks;
}

void fg_turns_mark(uint32_t gpu, void *context, void *stream, fg_stopwatch *watch) {
    if (!take_lock()) return;
    fg_backlog *q = known_queue(&gpus[gpu], context);
    if (q) fg_backlog_mark(q, stream, fg_clock(), watch);
    give_lock();
}

void fg_turns_forget_context(void *context) {
    if (!take_lock()) return;
    for (int i = 0; i < FG_TURN_GPUS; i++)
        for (int k = 0; k < FG_QUEUES; k++) fg_backlog_forget(&gpus[i].queue[k], context);
    give_lock();
}

void fg_turns_forget_stream(void *stream) {
    if (!take_lock()) return;
    for (int i = 0; i < FG_TURN_GPUS; i++)
        for (int k = 0; k < FG_QUEUES; k++) fg_backlog_drop(&gpus[i].queue[k], stream);
    give_lock();
}

void fg_turns_in_child(void) {
    if (is_ours()) close_file(connection);   /* or the arbiter would not see the end of the parent */
    connection = -1;
    has_thread = sleeps = 0;
    asked = 0;
    for (int i = 0; i < FG_TURN_GPUS; i++) if (gpus[i].pace || gpus[i].page) memset(&gpus[i], 0, sizeof gpus[i]);
    lock = 0;
}

void fg_turns_set_watch(const fg_stopwatch *watch, int (*enter)(void *), void (*leave)(void)) {
    keeper_watch = *watch;
    enter_context = enter;
    leave_context = leave;
}
