# The job's region: attached once, then charged and relieved. Reserve, call the driver, keep or give back.

cdef extern from *:
    """
    #include <sys/stat.h>
    extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

    static fg_region *fg_shared;              /* NULL: not attached */
    static int fg_watches_forks;
    static uint32_t fg_slot, fg_pid;          /* slot: number + 1; under the region's lock */
    static uint64_t fg_held[FG_MAX_GPUS];     /* what this process holds; under the region's lock */
    static int fg_devices[64];                /* CUDA's ordinal -> number in the region + 1; -1: not the job's */

    static inline int fg_has_lock(const fg_region *r) { return r->lock.__data.__kind == FG_LOCK_KIND; }
    static inline uint64_t fg_sum(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }
    static inline void fg_raise(uint64_t *most, uint64_t value) {
        uint64_t seen = __atomic_load_n(most, __ATOMIC_RELAXED);
        while (seen < value && !__atomic_compare_exchange_n(most, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) ;
    }
    #define fg_set(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    static int fg_first(int *flag) { return !__atomic_exchange_n(flag, 1, __ATOMIC_ACQ_REL); }
    static int fg_install(fg_region *r) {
        fg_region *none = NULL;
        return __atomic_compare_exchange_n(&fg_shared, &none, r, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static fg_region *fg_open_region(const char *path) {
        struct stat about;
        void *at = MAP_FAILED;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) return NULL;
        if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == sizeof(fg_region))
            at = mmap(NULL, sizeof(fg_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED) return NULL;
        if (!fg_region_flaw(at, sizeof(fg_region))) return at;
        munmap(at, sizeof(fg_region));
        return NULL;
    }
    """
    fg_region *fg_shared
    int fg_watches_forks
    uint32_t fg_slot, fg_pid
    uint64_t *fg_held
    int *fg_devices
    bint fg_has_lock(const fg_region *) nogil
    uint64_t fg_sum(uint64_t, uint64_t) nogil
    void fg_raise(uint64_t *, uint64_t) nogil
    void fg_set(uint64_t *, uint64_t) nogil
    void fg_publish "fg_set"(uint32_t *, uint32_t) nogil
    bint fg_first(int *) nogil
    bint fg_install(fg_region *) nogil
    fg_region *fg_open_region(const char *) nogil
    int __register_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil, void *) nogil
    int getpid() nogil

cdef struct fg_charge:
    uint32_t gpu    # number in the region
    uint64_t bytes
    uint64_t total  # what the job held with it


cdef void fg_in_child() noexcept nogil:
    """After fork: the slot and all in it are the parent's."""
    global fg_slot
    fg_slot = 0
    memset(fg_held, 0, sizeof(uint64_t) * FG_MAX_GPUS)
    fg_forget_all()


cdef fg_region *fg_attach() noexcept nogil:
    """The region beside the path that this library was loaded from; NULL: none, so no device memory."""
    cdef fg_region *region = <fg_region *> fg_load(&fg_shared)
    cdef Dl_info own
    cdef char path[4096]
    cdef const char *end
    cdef int saved = errno
    if region:
        return region
    if not dladdr(<void *> fg_calls, &own) or own.dli_fname == NULL:
        return NULL
    end = strrchr(own.dli_fname, c"/")
    if end == NULL or end - own.dli_fname > 4000:
        return NULL
    memcpy(path, own.dli_fname, end - own.dli_fname + 1)
    strcpy(path + (end - own.dli_fname + 1), "region")
    region = fg_open_region(path)
    if region and not fg_install(region):
        munmap(region, sizeof(fg_region))
    if region and fg_first(&fg_watches_forks):
        __register_atfork(NULL, NULL, fg_in_child, NULL)
    set_errno(saved)
    return <fg_region *> fg_load(&fg_shared)


cdef bint fg_lock(fg_region *region) noexcept nogil:
    """Take the region's lock, from a dead holder if need be: whatever it left is whole, word by word."""
    if region == NULL or not fg_has_lock(region):
        return False
    cdef int status = pthread_mutex_lock(&region.lock)
    if status == EOWNERDEAD:
        status = pthread_mutex_consistent(&region.lock)
    return status == 0


cdef void fg_reap(fg_region *region) noexcept nogil:
    """Free the slots of processes that have ended or execute another program. Under the lock."""
    cdef uint32_t at
    cdef int saved = errno
    cdef fg_region_slot *slot
    for at in range(fg_region_slots(region)):
        slot = &region.slot[at]
        if slot.pid and at + 1 != fg_slot and fg_owner_lives(slot.pid, slot.start, slot.image) == 0:
            slot.pid = 0
    set_errno(saved)


cdef uint64_t fg_total(const fg_region *region, uint32_t gpu) noexcept nogil:
    """What the job holds on a card. Under the lock."""
    cdef uint32_t at
    cdef uint64_t total = region.gpu[gpu].untracked
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid:
            total = fg_sum(total, region.slot[at].bytes[gpu])
    return total


cdef uint32_t fg_free_slot(fg_region *region, bint may_reap) noexcept nogil:
    """A slot to take, counted from 1; 0: all are taken. Under the lock."""
    cdef uint32_t at
    for at in range(fg_region_slots(region)):
        if region.slot[at].pid == 0:
            return at + 1
    if fg_region_slots(region) < FG_MAX_SLOTS:
        return fg_region_slots(region) + 1
    if not may_reap:
        return 0
    fg_reap(region)
    return fg_free_slot(region, False)


cdef bint fg_take_slot(fg_region *region) noexcept nogil:
    """Make sure that this process has a slot. Under the lock."""
    global fg_slot, fg_pid
    cdef fg_owner self
    cdef fg_region_slot *slot
    cdef uint32_t at
    cdef int saved = errno
    if fg_slot and region.slot[fg_slot - 1].pid == fg_pid:
        return True
    fg_pid = getpid()
    if fg_owner_read(fg_pid, &self) != 1:
        set_errno(saved)
        return False
    for at in range(fg_region_slots(region)):  # of a program that this process executed before
        if region.slot[at].pid == fg_pid:
            region.slot[at].pid = 0
    fg_slot = fg_free_slot(region, True)
    set_errno(saved)
    if fg_slot == 0:
        return False
    slot = &region.slot[fg_slot - 1]
    slot.generation += 1
    slot.start = self.start
    slot.image = self.image
    for at in range(FG_MAX_GPUS):
        slot.bytes[at] = fg_held[at]
    fg_publish(&slot.pid, fg_pid)  # last: until now the slot is free, whoever dies
    if region.slots < fg_slot:
        region.slots = fg_slot
    return True


cdef void fg_hold(fg_region *region, uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Write down what this process holds. Under the lock."""
    fg_held[gpu] = bytes
    if fg_slot:
        fg_set(&region.slot[fg_slot - 1].bytes[gpu], bytes)


cdef bint fg_reserve(fg_charge *charge) noexcept nogil:
    """Count charge.bytes as held, unless that is more than the job may hold."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t limit, total
    cdef bint fits = False
    if not fg_lock(region):
        return False
    limit = region.gpu[charge.gpu].limit
    if fg_take_slot(region):
        total = fg_sum(fg_total(region, charge.gpu), charge.bytes)
        if total > limit:
            fg_reap(region)
            total = fg_sum(fg_total(region, charge.gpu), charge.bytes)
        fits = total <= limit and total != UINT64_MAX
        if fits:
            fg_hold(region, charge.gpu, fg_held[charge.gpu] + charge.bytes)
            charge.total = total
        else:  # for the post-mortem, should it come to a refusal
            region.gpu[charge.gpu].last_asked = charge.bytes
            region.gpu[charge.gpu].last_held = total - charge.bytes
    pthread_mutex_unlock(&region.lock)
    return fits


cdef void fg_give_back(uint32_t gpu, uint64_t bytes) noexcept nogil:
    """Count it as held no longer."""
    cdef fg_region *region = fg_attach()
    if bytes and fg_lock(region):
        fg_hold(region, gpu, fg_held[gpu] - bytes if fg_held[gpu] > bytes else 0)
        pthread_mutex_unlock(&region.lock)


cdef void fg_keep(const fg_charge *charge) noexcept nogil:
    """The driver has given it: now it counts for the peak."""
    fg_raise(&fg_attach().gpu[charge.gpu].peak, charge.total)


cdef void fg_refused(uint32_t gpu) noexcept nogil:
    """Count a refusal."""
    cdef fg_region *region = fg_attach()
    if fg_lock(region):
        region.gpu[gpu].refusals += 1
        pthread_mutex_unlock(&region.lock)


cdef uint64_t fg_job_holds(uint32_t gpu) noexcept nogil:
    """What the job's living processes hold, for a view."""
    cdef fg_region *region = fg_attach()
    cdef uint64_t total = UINT64_MAX
    if fg_lock(region):
        fg_reap(region)
        total = fg_total(region, gpu)
        pthread_mutex_unlock(&region.lock)
    return total


cdef int fg_position(const uint8_t *uuid) noexcept nogil:
    """The number in the region of the card with this UUID; -1: it is not the job's."""
    cdef fg_region *region = fg_attach()
    cdef uint32_t at
    if region:
        for at in range(fg_region_gpus(region)):
            if memcmp(region.gpu[at].uuid, uuid, 16) == 0:
                return at
    return -1
