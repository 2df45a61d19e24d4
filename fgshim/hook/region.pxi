# The job's region: attached once, locked for moments, never trusted.
#
# The job can write to its region. So cards and limits are those of a copy whose
# seal was good when this process attached, and a lock that is none is given up.

cdef extern from *:
    """
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <time.h>

    typedef struct { fg_region *region; uint32_t cards; fg_region_gpu card[FG_MAX_GPUS]; } fg_job;
    static fg_job *fg_attached;               /* NULL: not yet */

    static inline int fg_has_lock(const fg_region *r) { return r->lock.__data.__kind == FG_LOCK_KIND; }
    #define fg_set(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    #define fg_peek(at) __atomic_load_n(at, __ATOMIC_RELAXED)
    static int fg_first(int *flag) { return !__atomic_exchange_n(flag, 1, __ATOMIC_ACQ_REL); }
    static int fg_install(fg_job *job) {
        fg_job *none = NULL;
        return __atomic_compare_exchange_n(&fg_attached, &none, job, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }

    /* Whether a thread is one of the job's processes': those are in the slots. */
    static int fg_is_of_job(const fg_region *r, uint32_t thread) {
        char path[64];
        for (uint32_t at = 0; at < fg_region_slots(r); at++) {
            if (!fg_peek(&r->slot[at].pid)) continue;
            fg_owner_path(fg_peek(&r->slot[at].pid), path);   /* /proc/<pid>/stat */
            strcpy(strrchr(path, '/'), "/task/");
            fg_owner_number(thread, path + strlen(path));
            if (!access(path, F_OK)) return 1;
        }
        return 0;
    }
    /* It is held for less than a microsecond at a time. One that a stranger or nobody has for a second is no lock;
       a process of the job can be stopped, or find no processor, for a while. Once it was given up it is tried
       for a twentieth of that. */
    static int fg_is_hopeless(const fg_region *r, uint32_t holder, int tries) {
        static int gave_up;
        int hopeless = tries > 1200;
        if (holder && syscall(SYS_tkill, holder, 0)) hopeless = 1;
        else if (tries > (fg_peek(&gave_up) ? 0 : 20)) hopeless |= !fg_is_of_job(r, holder);
        fg_set(&gave_up, hopeless);
        return hopeless;
    }
    static int fg_wait_for(fg_region *r) {
        struct timespec until;
        uint32_t holder, seen = 0;
        int tries = 0, status = pthread_mutex_trylock(&r->lock);
        while (status == EBUSY || status == ETIMEDOUT) {
            holder = (uint32_t)fg_peek(&r->lock.__data.__lock) & 0x3fffffff;
            tries = holder == seen ? tries + 1 : 0;   /* it passes from hand to hand: that is what it is for */
            if (tries && fg_is_hopeless(r, holder, tries)) return ETIMEDOUT;
            seen = holder;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 50000000;
            if (until.tv_nsec >= 1000000000) { until.tv_sec++; until.tv_nsec -= 1000000000; }
            status = pthread_mutex_timedlock(&r->lock, &until);
        }
        return status;
    }

    static void *fg_pages(size_t size) {
        void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    /* The head is copied before it is looked at: nobody changes the copy. */
    static int fg_know_cards(fg_job *job) {
        fg_region *head = fg_pages(sizeof *head);
        int good;
        if (!head) return 0;
        memcpy(head, job->region, offsetof(fg_region, slot));
        good = !fg_region_flaw(head, sizeof *head);
        if (good) {
            memcpy(job->card, head->gpu, sizeof job->card);
            job->cards = fg_region_gpus(head);
        }
        munmap(head, sizeof *head);
        return good;
    }
    /* What of the file was never written has no place yet, and a page that finds none is the end of the process: so
       all of it is made room for. A file system that cannot has its own way. Here and below the system calls
       themselves, since a thread can be cancelled in libc's. */
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
        if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == sizeof(fg_region) && fg_has_room(fd))
            at = mmap(NULL, sizeof(fg_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        return at == MAP_FAILED ? NULL : at;
    }
    static void fg_attach_to(const char *path) {
        fg_job *job = fg_pages(sizeof *job);
        if (!job) return;
        job->region = fg_map_region(path);
        if (job->region && fg_know_cards(job) && fg_install(job)) return;
        if (job->region) munmap(job->region, sizeof(fg_region));
        munmap(job, sizeof *job);
    }
    """
    ctypedef struct fg_card_t "fg_region_gpu":
        uint8_t uuid[16]
        uint64_t limit
        uint64_t context
    ctypedef struct fg_job:
        fg_region *region
        uint32_t cards
        fg_card_t card[16]
    fg_job *fg_attached
    bint fg_has_lock(const fg_region *) nogil
    void fg_set(uint64_t *, uint64_t) nogil
    void fg_publish "fg_set"(uint32_t *, uint32_t) nogil
    uint64_t fg_peek(const uint64_t *) nogil
    uint32_t fg_peek_int "fg_peek"(const uint32_t *) nogil
    bint fg_first(int *) nogil
    int fg_wait_for(fg_region *) nogil
    void *fg_pages(size_t) nogil
    void fg_attach_to(const char *) nogil
    void *mmap(void *, size_t, int, int, int, long) nogil
    int munmap(void *, size_t) nogil
    const int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void *MAP_FAILED

cdef extern from "pthread.h" nogil:
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_mutex_consistent(pthread_mutex_t *)


cdef fg_job *fg_find_job() noexcept nogil:
    """The region beside the path that this library was loaded from."""
    cdef Dl_info own
    cdef char path[4096]
    cdef const char *end
    cdef int saved = errno
    if not dladdr(<void *> fg_calls, &own) or own.dli_fname == NULL:
        return NULL
    end = strrchr(own.dli_fname, c"/")
    if end == NULL or end - own.dli_fname > 4000:
        return NULL
    memcpy(path, own.dli_fname, end - own.dli_fname + 1)
    strcpy(path + (end - own.dli_fname + 1), "region")
    fg_attach_to(path)
    fg_watch_forks()
    set_errno(saved)
    return <fg_job *> fg_load(&fg_attached)


cdef inline fg_job *fg_own_job() noexcept nogil:
    """NULL: there is none, so no device memory."""
    cdef fg_job *job = <fg_job *> fg_load(&fg_attached)
    return job if job else fg_find_job()


cdef inline fg_region *fg_attach() noexcept nogil:
    """The job's region; NULL: none."""
    cdef fg_job *job = fg_own_job()
    return job.region if job else NULL


cdef inline uint64_t fg_limit(uint32_t gpu) noexcept nogil:
    """What the job may hold on a card. Only once it is attached."""
    return fg_own_job().card[gpu].limit


cdef int fg_position(const uint8_t *uuid) noexcept nogil:
    """The number in the region of the card with this UUID; -1: it is not the job's."""
    cdef fg_job *job = fg_own_job()
    cdef uint32_t at
    if job:
        for at in range(job.cards):
            if memcmp(job.card[at].uuid, uuid, 16) == 0:
                return at
    return -1


cdef bint fg_lock(fg_region *region) noexcept nogil:
    """Take the region's lock, from a dead holder if need be: whatever it left is whole, word by word."""
    cdef int saved = errno
    cdef int status
    if region == NULL or not fg_has_lock(region):
        return False
    status = fg_wait_for(region)
    if status == EOWNERDEAD:
        status = pthread_mutex_consistent(&region.lock)
    set_errno(saved)
    return status == 0


cdef inline void fg_unlock(fg_region *region) noexcept nogil:
    pthread_mutex_unlock(&region.lock)
