# The region: one small file that controller, shepherd and hook of one job map.
#
# It lies in the job's own directory. Whoever makes it writes the limits once;
# the hook counts in it; the shepherd and the controller read it. What a process
# holds is written in its own slot and nowhere else, so the truth is always the
# sum of the slots of living processes and no crash can leave a total wrong.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FG_REGION_LAYOUT
    #define FG_REGION_LAYOUT
    #include <pthread.h>
    #include <stdint.h>

    #define FG_REGION_MAGIC 0x31676572646e6766ull   /* "fgndreg1" */
    #define FG_REGION_VERSION 1
    #define FG_MAX_GPUS 16
    #define FG_MAX_SLOTS 256
    #define FG_LOCK_KIND 0x90   /* how glibc marks a robust mutex that processes share */

    typedef struct {
        uint8_t  uuid[16];      /* which card */
        uint64_t limit;         /* bytes that the job may hold on it */
        uint64_t untracked;     /* bytes the controller saw beyond what the slots tell */
        uint64_t peak;          /* the most that was held at once */
        uint64_t refusals;      /* allocations refused */
        int32_t  index;         /* as NVML counts */
        uint32_t reserved;
        uint64_t last_asked;    /* bytes that were refused last, and */
        uint64_t last_held;     /* what was held then */
    } fg_region_gpu;

    typedef struct {
        uint32_t pid;           /* 0: free */
        uint32_t generation;    /* grows each time the slot changes hands */
        uint64_t start;         /* start time of the process, clock ticks since boot */
        uint64_t image;         /* differs between two programs that one pid executes */
        uint64_t bytes[FG_MAX_GPUS];
    } fg_region_slot;

    typedef struct {
        uint64_t magic;
        uint32_t version;
        uint32_t size;          /* of this structure: a check against another build */
        uint64_t job;
        uint32_t attempt;
        uint32_t gpus;          /* how many of gpu[] are the job's */
        union { pthread_mutex_t lock; uint8_t lock_room[64]; };   /* robust, process-shared */
        fg_region_gpu gpu[FG_MAX_GPUS];
        uint32_t slots;         /* slots ever used: how far a sum has to look */
        uint32_t reserved[15];
        fg_region_slot slot[FG_MAX_SLOTS];
    } fg_region;

    /* The job can write to its region: no count in it is ever followed blindly. */
    static inline uint32_t fg_region_gpus(const fg_region *r) {
        return r->gpus < FG_MAX_GPUS ? r->gpus : FG_MAX_GPUS;
    }
    static inline uint32_t fg_region_slots(const fg_region *r) {
        return r->slots < FG_MAX_SLOTS ? r->slots : FG_MAX_SLOTS;
    }
    /* Why this cannot be used as a region, or NULL. */
    static inline const char *fg_region_flaw(const fg_region *r, uint64_t length) {
        if (length != sizeof *r) return "is not as long as a region";
        if (r->magic != FG_REGION_MAGIC) return "is not a region";
        if (r->version != FG_REGION_VERSION || r->size != sizeof *r) return "is of another build";
        if (r->gpus == 0 || r->gpus > FG_MAX_GPUS) return "does not say which GPUs are the job's";
        if (r->slots > FG_MAX_SLOTS) return "counts more processes than it has room for";
        if (r->lock.__data.__kind != FG_LOCK_KIND) return "has no lock";
        return NULL;
    }
    static inline int fg_region_lock_init(fg_region *r) {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        return pthread_mutex_init(&r->lock, &how);
    }
    /* The largest peak of any of the job's cards. */
    static inline uint64_t fg_region_most(const fg_region *r) {
        uint64_t most = 0;
        for (uint32_t i = 0; i < fg_region_gpus(r); i++)
            if (r->gpu[i].peak > most) most = r->gpu[i].peak;
        return most;
    }
    /* How often the job was refused memory, on all of its cards. */
    static inline uint64_t fg_region_refused(const fg_region *r) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < fg_region_gpus(r); i++) sum += r->gpu[i].refusals;
        return sum;
    }
    /* The card on which the job was refused most often. */
    static inline const fg_region_gpu *fg_region_refusing(const fg_region *r) {
        const fg_region_gpu *most = &r->gpu[0];
        for (uint32_t i = 1; i < fg_region_gpus(r); i++)
            if (r->gpu[i].refusals > most->refusals) most = &r->gpu[i];
        return most;
    }
    #endif
    """
    const uint64_t FG_REGION_MAGIC
    const uint32_t FG_REGION_VERSION
    const uint32_t FG_MAX_GPUS
    const uint32_t FG_MAX_SLOTS
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct fg_region_gpu:
        uint8_t uuid[16]
        uint64_t limit
        uint64_t untracked
        uint64_t peak
        uint64_t refusals
        int32_t index
        uint64_t last_asked
        uint64_t last_held
    ctypedef struct fg_region_slot:
        uint32_t pid
        uint32_t generation
        uint64_t start
        uint64_t image
        uint64_t bytes[16]
    ctypedef struct fg_region:
        uint64_t magic
        uint32_t version
        uint32_t size
        uint64_t job
        uint32_t attempt
        uint32_t gpus
        pthread_mutex_t lock
        fg_region_gpu gpu[16]
        uint32_t slots
        fg_region_slot slot[256]

    uint32_t fg_region_gpus(const fg_region *r) noexcept nogil
    uint32_t fg_region_slots(const fg_region *r) noexcept nogil
    uint64_t fg_region_most(const fg_region *r) noexcept nogil
    uint64_t fg_region_refused(const fg_region *r) noexcept nogil
    const fg_region_gpu *fg_region_refusing(const fg_region *r) noexcept nogil
    const char *fg_region_flaw(const fg_region *r, uint64_t length) noexcept nogil
    int fg_region_lock_init(fg_region *r) noexcept nogil
