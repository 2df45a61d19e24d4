/* The arbiter's process: sockets and pages around the decisions of arbiter.h.
 *
 * The controller sends it datagrams of text:
 *     + JOB ATTEMPT UID GPUS  {POSITION GPU POLICY SHARE}…  DIRECTORY    a job has started; POSITION: in its region
 *     - JOB ATTEMPT                                                      it has ended
 *     o GPU COUNT             so many processes of jobs of policy none have work there
 *     f JOB ATTEMPT COUNT     so many processes of this job have work, as its region says
 *     p                                                                is it at work?
 * and gets datagrams of text from it:
 *     p                                                                it is
 *     c JOB ATTEMPT COUNT                                              so many processes of the job are connected: none, or more now
 * It makes a page for each job and GPU, and listens at `turns` in the job's directory, where the hook connects. It outlives
 * its controller. The next controller starts another arbiter, which ends this one by the lock, and sends it all running jobs.
 * The hooks notice the end of a connection. Until they are connected again, they launch in the windows that their pages had. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "launcher.h"
#include "turn_page.h"
#include "turn_server.h"

enum { GPUS = 64, JOBS = 512, CONNECTIONS = 4096 };
#define ORPHAN_PATIENCE (10000 * FG_MS)
#define ORPHAN_CHECK (2000 * FG_MS)   /* without a controller: how often the directories of the jobs are looked for */

typedef struct { long id; int is_used, others; fg_arbiter arbiter; uint64_t wake; int is_due; } gpu;
typedef struct {
    unsigned long job;
    unsigned attempt, uid, pages, flying;   /* flying: counts while none of its processes is connected */
    int listener, folder;
    int file[FG_TURN_GPUS], place[FG_TURN_GPUS], shown[FG_TURN_GPUS];
    uint32_t position[FG_TURN_GPUS];
    gpu *of[FG_TURN_GPUS];
    fg_turn_page *page[FG_TURN_GPUS];
    fg_launcher launcher[FG_TURN_GPUS];
    uint8_t taken[FG_TURN_SEATS];
} turn_job;
typedef struct { int fd; turn_job *job; uint32_t seat; } connection;

static gpu gpus[GPUS];
static turn_job *jobs[JOBS];
static connection connections[CONNECTIONS];
static int n_connections, most_connections = CONNECTIONS, controller;
static struct { char *message; unsigned uid; } waiting[JOBS];   /* jobs that got no place */
static int spare = -1;   /* a descriptor for accept_or_refuse */

static uint64_t nanoseconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* -- users --------------------------------------------------------------------------------------------------------- */
/* A user has at most as many places of a table as are free, so that the next user gets some, too. The arbiter's own user
   may fill it: in user mode there is no other one, in system mode it is root. */
static int has_enough(unsigned uid, int own, int unused) { return unused <= 0 || (own >= unused && uid != geteuid()); }

static int connections_of(unsigned uid) {
    int own = 0;
    for (int i = 0; i < n_connections; i++) own += connections[i].job->uid == uid;
    return own;
}

static int jobs_of(unsigned uid, int *unused) {
    int own = 0;
    *unused = JOBS;
    for (int i = 0; i < JOBS; i++) {
        *unused -= jobs[i] != NULL;
        own += jobs[i] && jobs[i]->uid == uid;
    }
    return own;
}

static int places_of(unsigned uid, const gpu *g, int *unused) {
    int own = 0;
    *unused = FG_ARBITER_JOBS;
    for (int i = 0; i < JOBS; i++)
        for (unsigned k = 0; jobs[i] && k < jobs[i]->pages; k++) {
            *unused -= jobs[i]->of[k] == g;
            own += jobs[i]->of[k] == g && jobs[i]->uid == uid;
        }
    return own;
}

static int waiting_of(unsigned uid, int *unused) {
    int own = 0;
    *unused = JOBS;
    for (int i = 0; i < JOBS; i++) {
        *unused -= waiting[i].message != NULL;
        own += waiting[i].message && waiting[i].uid == uid;
    }
    return own;
}

/* -- turns --------------------------------------------------------------------------------------------------------- */
static fg_turn_view view_of(turn_job *j, unsigned at) {
    fg_turn_view view = {0};
    fg_turn_page *page = j->page[at];
    view.resumed = (int)__atomic_exchange_n(&page->resumed, 0, __ATOMIC_ACQ_REL);
    for (int i = 0; i < FG_TURN_SEATS; i++) {
        if (!j->taken[i]) continue;
        uint64_t wants = __atomic_load_n(&page->seat[i].wants, __ATOMIC_ACQUIRE), until = __atomic_load_n(&page->seat[i].until, __ATOMIC_ACQUIRE);
        if (wants > view.wants) view.wants = wants;   /* not the oldest: its process may be stopped */
        if (until > view.until) view.until = until;
        view.had += __atomic_load_n(&page->seat[i].had, __ATOMIC_RELAXED);
    }
    return view;
}

static void show_word(uint32_t *at, uint32_t word) {
    __atomic_store_n(at, word, __ATOMIC_RELEASE);
    syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Choose the process of a job that launches. Return whether another one waits for it. */
static int lead(turn_job *j, unsigned at, uint64_t now) {
    static fg_seat_view seats[FG_TURN_SEATS];
    gpu *g = j->of[at];
    fg_turn_page *page = j->page[at];
    int waiting = 0, is_held = fg_arbiter_word(&g->arbiter, j->place[at]) == FG_TURN_HELD;
    for (uint32_t i = 0; i < FG_TURN_SEATS; i++) {
        seats[i] = (fg_seat_view){0};
        if (!j->taken[i]) continue;
        seats[i].wants = __atomic_load_n(&page->seat[i].wants, __ATOMIC_ACQUIRE);
        seats[i].until = fg_lease(__atomic_load_n(&page->seat[i].until, __ATOMIC_ACQUIRE), now);
        waiting |= seats[i].wants != 0;
    }
    int is_on = is_held && (fg_arbiter_active(&g->arbiter) > 1 || g->arbiter.others);
    uint64_t wake = fg_launcher_step(&j->launcher[at], seats, FG_TURN_SEATS, is_on, now);
    g->wake = fg_sooner(g->wake, wake);
    if (page->launcher != j->launcher[at].launcher) show_word(&page->launcher, j->launcher[at].launcher);
    return is_on && waiting;
}

static void show(turn_job *j, unsigned at, int is_contended) {
    fg_turn_page *page = j->page[at];
    int word = fg_arbiter_word(&j->of[at]->arbiter, j->place[at]), before = j->shown[at];
    uint32_t current = __atomic_load_n(&page->word, __ATOMIC_ACQUIRE);
    __atomic_store_n(&page->ahead, fg_arbiter_ahead(&j->of[at]->arbiter), __ATOMIC_RELAXED);
    __atomic_store_n(&page->may_be_deep, (uint32_t)fg_arbiter_may_be_deep(&j->of[at]->arbiter, j->place[at]), __ATOMIC_RELAXED);
    __atomic_store_n(&page->beat, j->of[at]->arbiter.now, __ATOMIC_RELAXED);
    __atomic_store_n(&page->guests, j->of[at]->arbiter.guests, __ATOMIC_RELAXED);
    __atomic_store_n(&page->is_contended, (uint32_t)is_contended, __ATOMIC_RELAXED);
    j->shown[at] = word;
    if (current == (uint32_t)word || (word == FG_TURN_PARKED && before == FG_TURN_PARKED)) return;   /* it may just resume */
    show_word(&page->word, (uint32_t)word);
}

/* Show each job its window, after a job has come or gone. */
static void show_windows(void) {
    for (int i = 0; i < JOBS; i++)
        for (unsigned k = 0; jobs[i] && k < jobs[i]->pages; k++) {
            uint32_t from, window = fg_arbiter_window(&jobs[i]->of[k]->arbiter, jobs[i]->place[k], &from);
            __atomic_store_n(&jobs[i]->page[k]->window_from, from, __ATOMIC_RELAXED);
            __atomic_store_n(&jobs[i]->page[k]->window, window, __ATOMIC_RELAXED);
        }
}

static int is_connected(const turn_job *j) {
    for (int i = 0; i < FG_TURN_SEATS; i++) if (j->taken[i]) return 1;
    return 0;
}

/* Tell the controller whether a job has connected processes. It counts all jobs again for each message. */
static void tell_connected(const turn_job *j) {
    char text[64];
    int count = 0;
    for (int i = 0; i < FG_TURN_SEATS; i++) count += j->taken[i];
    if (controller >= 0 && count < 2 && snprintf(text, sizeof text, "c %lu %u %d", j->job, j->attempt, count) > 0)
        send(controller, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void step(gpu *g, uint64_t now) {
    fg_turn_view views[FG_ARBITER_JOBS] = {0};
    int waiting = 0;
    g->arbiter.others = g->others;
    for (int i = 0; i < JOBS; i++)
        for (unsigned k = 0; jobs[i] && k < jobs[i]->pages; k++)
            if (jobs[i]->of[k] == g) {
                views[jobs[i]->place[k]] = view_of(jobs[i], k);
                waiting += views[jobs[i]->place[k]].wants && jobs[i]->shown[k] == FG_TURN_NONE;
                g->arbiter.others += is_connected(jobs[i]) ? 0 : (int)jobs[i]->flying;   /* a hook of an earlier release */
            }
    g->wake = fg_arbiter_step(&g->arbiter, views, now);
    g->is_due = 0;
    for (int i = 0; i < JOBS; i++)
        for (unsigned k = 0; jobs[i] && k < jobs[i]->pages; k++)
            if (jobs[i]->of[k] == g) show(jobs[i], k, lead(jobs[i], k, now) || waiting > 0);
}

static void mark_due(turn_job *j) {
    for (unsigned k = 0; k < j->pages; k++) j->of[k]->is_due = 1;
}

/* -- processes ----------------------------------------------------------------------------------------------------- */
static void hang_up(int at) {
    connection *c = &connections[at];
    for (unsigned k = 0; k < c->job->pages; k++) memset(&c->job->page[k]->seat[c->seat], 0, sizeof(fg_turn_seat));
    c->job->taken[c->seat] = 0;
    tell_connected(c->job);
    mark_due(c->job);
    close(c->fd);
    *c = connections[--n_connections];
}

static int send_welcome(int to, const turn_job *j, uint32_t seat) {
    fg_turn_welcome welcome = {.magic = FG_TURN_MAGIC, .seat = seat, .pages = j->pages};
    union { struct cmsghdr head; char room[CMSG_SPACE(FG_TURN_GPUS * sizeof(int))]; } control;
    struct iovec part = {&welcome, sizeof welcome};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(j->pages * sizeof(int))};
    memset(&control, 0, sizeof control);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(j->pages * sizeof(int));
    memcpy(CMSG_DATA(head), j->file, j->pages * sizeof(int));
    for (unsigned k = 0; k < j->pages; k++) welcome.position[k] = j->position[k];
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof welcome;
}

/* Accept a connection. If no descriptor is left, refuse it: ppoll would report it without end while it waits. */
static int accept_or_refuse(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || spare < 0) return fd;
    close(spare);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    spare = open("/", O_PATH | O_CLOEXEC);
    return -1;
}

/* Accept a process of the job's user; others may pass through the directories of jobs that have their own mounts. */
static void accept_process(turn_job *j) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    uint32_t seat = 0;
    int fd = accept_or_refuse(j->listener);
    if (fd < 0) return;
    while (seat < FG_TURN_SEATS && j->taken[seat]) seat++;
    int is_theirs = !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == j->uid;
    int is_full = seat == FG_TURN_SEATS || has_enough(j->uid, connections_of(j->uid), most_connections - n_connections);
    if (!is_theirs || is_full || !send_welcome(fd, j, seat)) {
        close(fd);
        return;
    }
    j->taken[seat] = 1;
    connections[n_connections++] = (connection){fd, j, seat};
    tell_connected(j);
}

static void hear(int at) {
    char bytes[64];
    ssize_t got = 0;
    int most = 64;
    while (most-- && (got = recv(connections[at].fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) ;
    mark_due(connections[at].job);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) hang_up(at);
}

/* -- jobs ---------------------------------------------------------------------------------------------------------- */
static gpu *gpu_of(long id) {
    gpu *unused = NULL;
    for (int i = 0; i < GPUS; i++) {
        if (gpus[i].is_used && gpus[i].id == id) return &gpus[i];
        if (!gpus[i].is_used && !unused) unused = &gpus[i];
    }
    if (!unused) return NULL;
    *unused = (gpu){.id = id, .is_used = 1, .wake = UINT64_MAX};
    fg_arbiter_init(&unused->arbiter);
    return unused;
}

static int find_job(unsigned long job, unsigned attempt) {
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->job == job && jobs[i]->attempt == attempt) return i;
    return -1;
}

static void drop_job(int at) {
    turn_job *j = jobs[at];
    for (int i = n_connections; i--;) if (connections[i].job == j) hang_up(i);
    for (unsigned k = 0; k < j->pages; k++) {
        fg_arbiter_leave(&j->of[k]->arbiter, j->place[k]);
        j->of[k]->is_due = 1;
        munmap(j->page[k], FG_TURN_PAGE_SIZE);
        close(j->file[k]);
    }
    if (j->listener >= 0) close(j->listener);
    if (j->folder >= 0) close(j->folder);
    jobs[at] = NULL;
    free(j);
    show_windows();
}

/* Make a page. Its size is sealed: a job that could cut it short would end this process. Return NULL, or why the job takes
   no turns, as the functions below. */
static const char *add_page(turn_job *j, gpu *g, uint32_t position, uint32_t policy, uint32_t share) {
    unsigned at = j->pages;
    int unused, own = places_of(j->uid, g, &unused);
    if (has_enough(j->uid, own, unused)) return unused ? "too many jobs of its user take turns on its GPU" : "too many jobs take turns on its GPU";
    int file = memfd_create("fgsched turns", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int is_sealed = file >= 0 && !ftruncate(file, FG_TURN_PAGE_SIZE) && !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void *page = is_sealed ? mmap(NULL, FG_TURN_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    int place = page == MAP_FAILED ? -1 : fg_arbiter_join(&g->arbiter, policy, share);
    if (place < 0) {
        const char *why = page == MAP_FAILED ? strerror(errno) : "its policy takes none";
        if (page != MAP_FAILED) munmap(page, FG_TURN_PAGE_SIZE);
        if (file >= 0) close(file);
        return why;
    }
    j->file[at] = file;
    j->page[at] = page;
    j->of[at] = g;
    j->place[at] = place;
    j->position[at] = position;
    j->pages++;
    return NULL;
}

static const char gone[] = "its directory is gone";   /* the job has ended, and the controller is about to say so */
static const char *why_not(void) { return errno == ENOENT ? gone : strerror(errno); }

/* Listen in the job's directory. The directory may be the user's: nothing in it is followed or changed in its rights. */
static const char *listen_in(turn_job *j, const char *folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    j->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (j->folder < 0) return why_not();
    j->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->listener < 0) return why_not();
    unlinkat(j->folder, FG_TURN_SOCKET, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" FG_TURN_SOCKET, j->folder);
    umask(0);
    int bound = !bind(j->listener, (struct sockaddr *)&address, sizeof address) && !listen(j->listener, 64);
    umask(077);
    return bound ? NULL : why_not();
}

static const char *take_gpus(turn_job *j, unsigned count, char **at) {
    for (unsigned k = 0; k < count; k++) {
        uint32_t position = (uint32_t)strtoul(*at, at, 10);
        long id = strtol(*at, at, 10);
        uint32_t policy = (uint32_t)strtoul(*at, at, 10), share = (uint32_t)strtoul(*at, at, 10);
        gpu *g = gpu_of(id);
        const char *why = g ? add_page(j, g, position, policy, share) : "jobs take turns on too many GPUs";
        if (why) return why;
    }
    return NULL;
}

static const char *start_job(turn_job *j, unsigned count, char *at) {
    const char *why = count && count <= FG_TURN_GPUS ? take_gpus(j, count, &at) : "too many GPUs";
    if (!why && *at != ' ') why = "the controller's message has no directory";
    return why ? why : listen_in(j, at + 1);
}

/* Return why the job takes no turns, or NULL. */
static const char *add_job(char *at) {
    unsigned long number = strtoul(at, &at, 10);
    unsigned attempt = (unsigned)strtoul(at, &at, 10), uid = (unsigned)strtoul(at, &at, 10), count = (unsigned)strtoul(at, &at, 10);
    int place = 0, unused, own = jobs_of(uid, &unused);
    if (find_job(number, attempt) >= 0) return NULL;
    if (has_enough(uid, own, unused)) return unused ? "too many jobs of its user take turns" : "too many jobs take turns";
    while (jobs[place]) place++;
    turn_job *j = calloc(1, sizeof *j);
    const char *why = strerror(ENOMEM);
    if (j) {
        *j = (turn_job){.job = number, .attempt = attempt, .uid = uid, .listener = -1, .folder = -1};
        jobs[place] = j;
        why = start_job(j, count, at);
    }
    if (why && j) drop_job(place);
    else show_windows();
    return why;
}

/* Keep the message about a job that got no place, to try again when another job has ended. */
static void keep_waiting(char *message, unsigned uid) {
    int place = 0, unused, own = waiting_of(uid, &unused);
    if (!message || has_enough(uid, own, unused)) {
        free(message);
        return;
    }
    while (waiting[place].message) place++;
    waiting[place].message = message;
    waiting[place].uid = uid;
}

static void add_or_wait(char *at) {
    char *copy = strdup(at), *end = at;
    const char *why = add_job(at);
    unsigned long number = strtoul(end, &end, 10);
    strtoul(end, &end, 10);
    unsigned uid = (unsigned)strtoul(end, &end, 10);
    if (why && why != gone) dprintf(2, "fgspawn: job %lu takes no turns: %s\n", number, why);
    if (why) keep_waiting(copy, uid);
    else free(copy);
}

static void add_waiting(void) {
    for (int i = 0; i < JOBS; i++) {
        char *copy = waiting[i].message ? strdup(waiting[i].message) : NULL;
        if (copy && !add_job(copy)) {
            free(waiting[i].message);
            waiting[i].message = NULL;
        }
        free(copy);
    }
}

static void forget_waiting(unsigned long job, unsigned attempt) {
    for (int i = 0; i < JOBS; i++) {
        char *at = waiting[i].message;
        if (!at || strtoul(at, &at, 10) != job || strtoul(at, &at, 10) != attempt) continue;
        free(waiting[i].message);
        waiting[i].message = NULL;
    }
}

static void obey(char *text) {
    char *at = text + 1;
    if (*text == '+') add_or_wait(at);
    if (*text == 'p') send(controller, "p", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (*text == '-') {
        unsigned long number = strtoul(at, &at, 10);
        unsigned attempt = (unsigned)strtoul(at, &at, 10);
        int place = find_job(number, attempt);
        forget_waiting(number, attempt);
        if (place >= 0) drop_job(place);
        add_waiting();
    }
    if (*text == 'f') {
        unsigned long number = strtoul(at, &at, 10);
        int place = find_job(number, (unsigned)strtoul(at, &at, 10));
        if (place >= 0) jobs[place]->flying = (unsigned)strtoul(at, &at, 10);
    }
    if (*text == 'o') {
        gpu *g = gpu_of(strtol(at, &at, 10));
        if (!g) return;
        g->others = (int)strtol(at, &at, 10);
        g->is_due = 1;
    }
}

static void hear_controller(void) {
    static char text[PATH_MAX + 1024];
    for (;;) {
        ssize_t got = recv(controller, text, sizeof text - 1, MSG_DONTWAIT);
        if (got < 0) return;
        if (got == 0) {   /* it has ended: the jobs go on */
            close(controller);
            controller = -1;
            for (int i = 0; i < GPUS; i++) gpus[i].others = 0;   /* the counts come from the controller: they would not change any more */
            for (int i = 0; i < JOBS; i++) if (jobs[i]) jobs[i]->flying = 0;
            return;
        }
        text[got] = 0;
        obey(text);
    }
}

/* Without a controller: forget the jobs whose directories are gone. Return whether there are others. Directories may stay
   for ever, so it also ends when no process was connected for a time; a later one has its budget. */
static int forget_ended(void) {
    static uint64_t connected;
    struct stat status;
    int left = 0;
    uint64_t now = nanoseconds();
    if (n_connections || !connected) connected = now;
    if (now - connected > ORPHAN_PATIENCE) return 0;
    for (int i = 0; i < JOBS; i++) {
        if (!jobs[i]) continue;
        if (fstat(jobs[i]->folder, &status) || !status.st_nlink) drop_job(i);
        else left++;
    }
    return left;
}

/* -- the loop ------------------------------------------------------------------------------------------------------ */
static void wait_for_events(struct pollfd *polled, int count, uint64_t now) {
    uint64_t wake = controller < 0 ? now + ORPHAN_CHECK : UINT64_MAX;
    for (int i = 0; i < GPUS; i++) {
        if (gpus[i].is_due) wake = now;
        if (gpus[i].is_used && gpus[i].wake < wake) wake = gpus[i].wake;
    }
    uint64_t rest = wake > now ? wake - now : 0;
    struct timespec time = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
    if (ppoll(polled, (nfds_t)count, wake == UINT64_MAX ? NULL : &time, NULL) < 0) 
        for (int i = 0; i < count; i++) polled[i].revents = 0;
}

static void serve_once(void) {
    static struct pollfd polled[1 + JOBS + CONNECTIONS];
    static int listening[JOBS];
    int count = 0, listeners = 0, connected = n_connections;
    polled[count++] = (struct pollfd){controller, POLLIN, 0};
    for (int i = 0; i < JOBS; i++) {
        if (!jobs[i]) continue;
        listening[listeners++] = i;
        polled[count++] = (struct pollfd){jobs[i]->listener, POLLIN, 0};
    }
    for (int i = 0; i < connected; i++) polled[count++] = (struct pollfd){connections[i].fd, POLLIN, 0};
    wait_for_events(polled, count, nanoseconds());
    for (int i = connected; i--;)   /* from the last one: an end moves the last one to its place */
        if (polled[1 + listeners + i].revents) hear(i);
    for (int i = 0; i < listeners; i++)
        if (polled[1 + i].revents && jobs[listening[i]]) accept_process(jobs[listening[i]]);
    if (controller >= 0 && polled[0].revents) hear_controller();
    uint64_t now = nanoseconds();
    for (int i = 0; i < GPUS; i++)
        if (gpus[i].is_used && (gpus[i].is_due || gpus[i].wake <= now)) step(&gpus[i], now);
}

/* End the arbiter of an earlier controller, and take its lock. */
static int take_lock(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct flock lock = {.l_type = F_WRLCK}, holder = {.l_type = F_WRLCK};
    if (file < 0) return 0;
    if (!fcntl(file, F_SETLK, &lock)) return 1;
    if (!fcntl(file, F_GETLK, &holder) && holder.l_type != F_UNLCK && holder.l_pid > 1) {
        kill(holder.l_pid, SIGTERM);
        kill(holder.l_pid, SIGCONT);   /* a stopped process would not end */
    }
    return !fcntl(file, F_SETLKW, &lock);
}

int fg_give_turns(int from, const char *lock) {
    struct rlimit files;
    controller = from;
    signal(SIGPIPE, SIG_IGN);
    umask(077);
    if (!geteuid()) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    fcntl(controller, F_SETFD, FD_CLOEXEC);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        if (files.rlim_cur / 2 < CONNECTIONS) most_connections = (int)(files.rlim_cur / 2);   /* the others are for the jobs */
    }
    spare = open("/", O_PATH | O_CLOEXEC);
    if (!take_lock(lock)) {
        dprintf(2, "fgspawn: no turns: %s: %s\n", lock, strerror(errno));
        return 1;
    }
    while (controller >= 0 || forget_ended()) serve_once();
    return 0;
}
