# The region: one small file that controller, shepherd and hook of one job map.
#
# It lies in the job's own directory. Whoever makes it writes the limits once;
# the hook counts in it; the shepherd and the controller read it. What a process
# holds is written in its own slot and nowhere else, so the truth is always the
# sum of the slots of living processes and no crash can leave a total wrong.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fgshim.pace cimport fg_long_runs, fg_pace

cdef extern from *:
    """
    #ifndef FG_REGION_LAYOUT
    #define FG_REGION_LAYOUT
    #include <pthread.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <string.h>
    #include "pace.h"

    #define FG_REGION_MAGIC 0x31676572646e6766ull   /* "fgndreg1" */
    #define FG_REGION_VERSION 5
    #define FG_MAX_GPUS 16
    #define FG_MAX_SLOTS 256
    #define FG_MAX_SHARES 256
    #define FG_MOST 4           /* how many holders a refusal names */
    enum { FG_FOR_MEMORY, FG_FOR_CONTEXT };   /* what was refused */
    #define FG_LOCK_KIND 0x90   /* how glibc marks a robust mutex that processes share */

    typedef struct {
        uint8_t  uuid[16];      /* which card */
        uint64_t limit;         /* bytes that the job may hold on it */
        uint64_t untracked;     /* bytes the controller saw in processes that have no slot */
        uint64_t peak;          /* the most that was held at once */
        uint64_t refusals;      /* allocations refused */
        int32_t  index;         /* as NVML counts */
        uint32_t reserved;
        uint64_t last_asked;    /* bytes that were refused last, and */
        uint64_t last_held;     /* what was held then */
        uint64_t context;       /* what the contexts of a process are taken to cost, until that was seen */
    } fg_region_gpu;


    typedef struct {
        uint32_t pid;           /* 0: free */
        uint32_t generation;    /* grows each time the slot changes hands */
        uint64_t start;         /* start time of the process, clock ticks since boot */
        uint64_t image;         /* differs between two programs that one pid executes */
        uint64_t bytes[FG_MAX_GPUS];
    } fg_region_slot;

    typedef struct {            /* what the process of a slot has past the calls; both under a mark */
        uint64_t context[FG_MAX_GPUS];   /* what its contexts are taken to cost; the mark changes with them */
        uint64_t seen[FG_MAX_GPUS];      /* what the controller saw, under the mark that it found there */
    } fg_region_past;

    typedef struct {            /* memory that processes of the job have given to each other: counted once */
        uint64_t key;           /* of an IPC handle, what it is known by; 0: a block, known by its size */
        uint64_t bytes;
        uint32_t gpu;
        uint32_t giver;         /* number + 1 of the slot whose process gave it, as long as that has it itself */
        uint64_t holder[FG_MAX_SLOTS / 64];   /* a bit for each slot; none: free */
    } fg_region_share;

    typedef struct { uint64_t bytes; uint32_t pid, reserved; } fg_region_holder;
    typedef struct {            /* the last allocation that was refused; all in it as it was then */
        uint64_t asked, held, limit;
        uint32_t gpu;           /* number in the region */
        uint32_t pid;           /* who asked */
        uint32_t holders;       /* how many processes held memory there */
        uint32_t what;          /* FG_FOR_MEMORY, FG_FOR_CONTEXT */
        fg_region_holder most[FG_MOST];   /* who held most of it */
    } fg_region_refusal;

    typedef struct {
        uint64_t magic;
        uint32_t version;
        uint32_t size;          /* of this structure: a check against another build */
        uint64_t job;
        uint32_t attempt;
        uint32_t gpus;          /* how many of gpu[] are the job's */
        union { pthread_mutex_t lock; uint8_t lock_room[64]; };   /* robust, process-shared */
        uint64_t seal;          /* over all that is written once: fg_region_seal */
        fg_region_gpu gpu[FG_MAX_GPUS];
        fg_region_refusal refusal;
        fg_pace pace[FG_MAX_GPUS];
        uint32_t slots;         /* slots ever used: how far a sum has to look */
        uint32_t shares;        /* of share[], likewise */
        uint32_t reserved[14];
        fg_region_slot slot[FG_MAX_SLOTS];
        fg_region_share share[FG_MAX_SHARES];
        fg_region_past past[FG_MAX_SLOTS];
        fg_long_runs runs[FG_MAX_GPUS];
    } fg_region;

    /* The job can write to its region: no count in it is ever followed blindly. */
    static inline uint32_t fg_region_gpus(const fg_region *r) {
        return r->gpus < FG_MAX_GPUS ? r->gpus : FG_MAX_GPUS;
    }
    static inline uint32_t fg_region_slots(const fg_region *r) {
        return r->slots < FG_MAX_SLOTS ? r->slots : FG_MAX_SLOTS;
    }
    static inline uint32_t fg_region_shares(const fg_region *r) {
        return r->shares < FG_MAX_SHARES ? r->shares : FG_MAX_SHARES;
    }
    /* Bytes under a mark of 16 bits, in one word: it is read and written whole. */
    #define FG_MARK_SHIFT 48
    #define FG_MOST_MARKED (((uint64_t)1 << FG_MARK_SHIFT) - 1)
    static inline uint64_t fg_region_marked(uint64_t mark, uint64_t bytes) {
        return mark << FG_MARK_SHIFT | (bytes < FG_MOST_MARKED ? bytes : FG_MOST_MARKED);
    }
    /* The same with other bytes, under another mark: never 0, which is that of a fresh slot. */
    static inline uint64_t fg_region_remarked(uint64_t word, uint64_t bytes) {
        uint64_t mark = ((word >> FG_MARK_SHIFT) + 1) & 0xffff;
        return fg_region_marked(mark ? mark : 1, bytes);
    }
    /* What a process has past the calls: seen, if it was since anything changed; else what that is taken to cost. */
    static inline uint64_t fg_region_truer(uint64_t context, uint64_t seen) {
        return (context >> FG_MARK_SHIFT == seen >> FG_MARK_SHIFT ? seen : context) & FG_MOST_MARKED;
    }
    /* A torn file, or one that was scribbled over, does not fit its seal. It keeps no secret. */
    static inline uint64_t fg_region_mix(uint64_t seal, const void *at, size_t size) {
        for (const uint8_t *byte = at; size; size--) seal = (seal ^ *byte++) * 0x100000001b3ull;
        return seal;
    }
    static inline uint64_t fg_region_seal(const fg_region *r) {
        uint64_t seal = fg_region_mix(0xcbf29ce484222325ull, r, offsetof(fg_region, lock));
        for (uint32_t i = 0; i < fg_region_gpus(r); i++) {
            seal = fg_region_mix(seal, r->gpu[i].uuid, 16);
            seal = fg_region_mix(seal, &r->gpu[i].limit, sizeof r->gpu[i].limit);
            seal = fg_region_mix(seal, &r->gpu[i].index, sizeof r->gpu[i].index);
            seal = fg_region_mix(seal, &r->gpu[i].context, sizeof r->gpu[i].context);
            seal = fg_region_mix(seal, &r->pace[i].policy, sizeof r->pace[i].policy);
            seal = fg_region_mix(seal, &r->pace[i].share, sizeof r->pace[i].share);
        }
        return seal;
    }
    /* The seal in the first bytes of one, which need not be aligned; 0: there are too few. */
    static inline uint64_t fg_region_seal_in(const char *head, uint64_t length) {
        uint64_t seal = 0;
        if (length >= offsetof(fg_region, seal) + sizeof seal) memcpy(&seal, head + offsetof(fg_region, seal), sizeof seal);
        return seal;
    }
    /* Why this cannot be used as a region, or NULL. */
    static inline const char *fg_region_flaw(const fg_region *r, uint64_t length) {
        if (length != sizeof *r) return "is not as long as a region";
        if (r->magic != FG_REGION_MAGIC) return "is not a region";
        if (r->version != FG_REGION_VERSION || r->size != sizeof *r) return "is of another build";
        if (r->gpus == 0 || r->gpus > FG_MAX_GPUS) return "does not say which GPUs are the job's";
        if (r->slots > FG_MAX_SLOTS) return "counts more processes than it has room for";
        if (r->lock.__data.__kind != FG_LOCK_KIND) return "has no lock";
        if (r->seal != fg_region_seal(r)) return "does not fit its seal";
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
    static inline int fg_mebibytes(char *to, size_t room, uint64_t bytes) {
        return snprintf(to, room, "%.1f MiB", (double)bytes / 1048576.0);
    }
    /* The last refusal as a line for a person; how long it is, 0 where nothing was refused. */
    static inline int fg_region_tell(const fg_region *r, char *to, size_t room) {
        const fg_region_refusal *was = &r->refusal;
        char asked[40], held[40], limit[40], had[40];
        uint64_t times = fg_region_refused(r);
        int is_context = was->what == FG_FOR_CONTEXT;
        if (!times || !was->pid || was->gpu >= fg_region_gpus(r) || room < 200) return 0;
        fg_mebibytes(asked, sizeof asked, was->asked);
        fg_mebibytes(held, sizeof held, was->held);
        fg_mebibytes(limit, sizeof limit, was->limit);
        int at = snprintf(to, room, "GPU %d: %s%s%s refused to process %u: %s of %s held", r->gpu[was->gpu].index,
                          is_context ? "a CUDA context, taken to cost " : "", asked, is_context ? "," : "",
                          was->pid, held, limit);
        for (uint32_t i = 0; i < FG_MOST && was->most[i].pid && (size_t)at + 80 < room; i++) {
            fg_mebibytes(had, sizeof had, was->most[i].bytes);
            at += snprintf(to + at, room - (size_t)at, "%s process %u %s", i ? "," : ", by", was->most[i].pid, had);
        }
        if (was->holders > FG_MOST && (size_t)at + 80 < room)
            at += snprintf(to + at, room - (size_t)at, " and %u more", was->holders - FG_MOST);
        if (times > 1 && (size_t)at + 80 < room)
            at += snprintf(to + at, room - (size_t)at, "; %llu refusals in all", (unsigned long long)times);
        return at;
    }
    #endif
    """
    const uint64_t FG_REGION_MAGIC
    const uint32_t FG_REGION_VERSION
    const uint32_t FG_MAX_GPUS
    const uint32_t FG_MAX_SLOTS
    const uint32_t FG_MAX_SHARES
    const uint32_t FG_MOST
    const uint64_t FG_MOST_MARKED
    const int FG_MARK_SHIFT, FG_FOR_MEMORY, FG_FOR_CONTEXT
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
        uint64_t context
    ctypedef struct fg_region_slot:
        uint32_t pid
        uint32_t generation
        uint64_t start
        uint64_t image
        uint64_t bytes[16]
    ctypedef struct fg_region_past:
        uint64_t context[16]
        uint64_t seen[16]
    ctypedef struct fg_region_share:
        uint64_t key
        uint64_t bytes
        uint32_t gpu
        uint32_t giver
        uint64_t holder[4]
    ctypedef struct fg_region_holder:
        uint64_t bytes
        uint32_t pid
    ctypedef struct fg_region_refusal:
        uint64_t asked
        uint64_t held
        uint64_t limit
        uint32_t gpu
        uint32_t pid
        uint32_t holders
        uint32_t what
        fg_region_holder most[4]
    ctypedef struct fg_region:
        uint64_t magic
        uint32_t version
        uint32_t size
        uint64_t job
        uint32_t attempt
        uint32_t gpus
        pthread_mutex_t lock
        uint64_t seal
        fg_region_gpu gpu[16]
        fg_region_refusal refusal
        fg_pace pace[16]
        uint32_t slots
        uint32_t shares
        fg_region_slot slot[256]
        fg_region_share share[256]
        fg_region_past past[256]
        fg_long_runs runs[16]

    uint32_t fg_region_gpus(const fg_region *r) noexcept nogil
    uint32_t fg_region_slots(const fg_region *r) noexcept nogil
    uint32_t fg_region_shares(const fg_region *r) noexcept nogil
    uint64_t fg_region_most(const fg_region *r) noexcept nogil
    uint64_t fg_region_refused(const fg_region *r) noexcept nogil
    const fg_region_gpu *fg_region_refusing(const fg_region *r) noexcept nogil
    const char *fg_region_flaw(const fg_region *r, uint64_t length) noexcept nogil
    uint64_t fg_region_marked(uint64_t mark, uint64_t bytes) noexcept nogil
    uint64_t fg_region_remarked(uint64_t word, uint64_t bytes) noexcept nogil
    uint64_t fg_region_truer(uint64_t context, uint64_t seen) noexcept nogil
    int fg_region_lock_init(fg_region *r) noexcept nogil
    uint64_t fg_region_seal(const fg_region *r) noexcept nogil
    uint64_t fg_region_seal_in(const char *head, uint64_t length) noexcept nogil
    int fg_region_tell(const fg_region *r, char *to, size_t room) noexcept nogil
