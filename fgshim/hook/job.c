#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "atomics.h"
#include "job.h"
#include "owner.h"

fg_job *fg_attached;

void *fg_pages(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int fg_install(fg_job *job) {
    fg_job *none = NULL;
    return __atomic_compare_exchange_n(&fg_attached, &none, job, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Whether a thread belongs to a process of the job: those processes have slots. */
static int fg_thread_is_of_job(const fg_region *r, uint32_t thread) {
    char path[64];
    for (uint32_t at = 0; at < fg_region_slots(r); at++) {
        if (!fg_peek(&r->slot[at].pid)) continue;
        fg_owner_path(fg_peek(&r->slot[at].pid), "/task/", path);
        fg_owner_number(thread, path + strlen(path));
        if (!access(path, F_OK)) return 1;
    }
    return 0;
}

/* Whether processes of several pid namespaces have slots, so that a thread number may mean a thread of another one. */
static int fg_has_several_namespaces(const fg_region *r) {
    uint64_t first = 0, other;
    for (uint32_t at = 0; at < fg_region_slots(r); at++) {
        if (!fg_peek(&r->slot[at].pid)) continue;
        other = fg_peek(&r->slot[at].pid_namespace);
        if (first && other != first) return 1;
        first = other;
    }
    return 0;
}

/* Whether to give the lock up, after `tries` waits of 50 ms for the same holder. The lock is held for less than a
 * microsecond at a time. A process of the job may be stopped or without a processor for a while, and is waited for
 * longer; so is any holder if the job has several pid namespaces. A holder that has ended, or that is not of the job, is given up after a second, and after one try once a lock
 * has been given up before. */
static int fg_should_give_up(const fg_region *r, uint32_t holder, int tries) {
    static int gave_up;
    int hopeless = tries > 1200;
    if (fg_has_several_namespaces(r)) hopeless |= tries > 20 && !holder;
    else if (holder && syscall(SYS_tkill, holder, 0)) hopeless = 1;
    else if (tries > (fg_peek(&gave_up) ? 0 : 20)) hopeless |= !fg_thread_is_of_job(r, holder);
    fg_store(&gave_up, hopeless);
    return hopeless;
}

int fg_wait_for(fg_region *r) {
    struct timespec until;
    uint32_t holder, seen = 0;
    int tries = 0, status = pthread_mutex_trylock(&r->lock);
    while (status == EBUSY || status == ETIMEDOUT) {
        holder = (uint32_t)fg_peek(&r->lock.__data.__lock) & 0x3fffffff;
        tries = holder == seen ? tries + 1 : 0;   /* a lock that changes hands is in use */
        if (tries && fg_should_give_up(r, holder, tries)) return ETIMEDOUT;
        seen = holder;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) { until.tv_sec++; until.tv_nsec -= 1000000000; }
        status = pthread_mutex_timedlock(&r->lock, &until);
    }
    return status;
}

/* Copy the limits. The head of the region is copied before it is checked, since the job may change it meanwhile. */
static int fg_copy_limits(fg_job *job) {
    fg_region *head = fg_pages(sizeof *head);
    int good;
    if (!head) return 0;
    memcpy(head, job->region, offsetof(fg_region, slot));
    good = !fg_region_flaw(head, sizeof *head);
    if (good) {
        memcpy(job->card, head->gpu, sizeof job->card);
        job->cards = fg_region_gpus(head);
        job->by_position = head->by_position;
    }
    munmap(head, sizeof *head);
    return good;
}

/* Allocate the whole file. A page that was never written and finds no space would end the process with SIGBUS. File
 * systems without fallocate are accepted. Raw system calls here and below: libc's are cancellation points. */
static int fg_has_room(int fd) {
    int status;
    while ((status = (int)syscall(SYS_fallocate, fd, 0, 0L, (long)sizeof(fg_region))) && errno == EINTR) ;
    return !status || (errno != ENOSPC && errno != EDQUOT);
}

static fg_region *fg_map_region(const char *path) {
    struct stat about;
    void *at = MAP_FAILED;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return NULL;
    if (syscall(SYS_fstat, fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == sizeof(fg_region) && fg_has_room(fd))
        at = mmap(NULL, sizeof(fg_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return at == MAP_FAILED ? NULL : at;
}

void fg_attach_to(const char *path) {
    fg_job *job = fg_pages(sizeof *job);
    if (!job) return;
    job->region = fg_map_region(path);
    if (job->region && fg_copy_limits(job) && fg_install(job)) return;
    if (job->region) munmap(job->region, sizeof(fg_region));
    munmap(job, sizeof *job);
}
