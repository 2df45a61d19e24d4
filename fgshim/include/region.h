/* The region of a job: one file that the controller, the shepherd and the hook of every process of the job map.
 *
 * This header is the only declaration of its layout. Cython takes offsets and sizes from it when it compiles
 * (region.pxd names fields, never offsets), and the assertions below fail the build if a field moves without a new
 * FG_REGION_VERSION.
 *
 * The region lies in the job's directory. The controller writes the limits once, under a seal; the hook counts in it;
 * the shepherd and the controller read it. What a process holds is written in its own slot and nowhere else, so a total
 * is always the sum over the slots of living processes, and no crash can leave a total wrong. */
#ifndef FG_REGION_H
#define FG_REGION_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "pace.h"

#define FG_REGION_MAGIC 0x31676572646e6766ull   /* "fgndreg1" */
#define FG_REGION_VERSION 6
#define FG_MAX_GPUS 16
#define FG_MAX_SLOTS 256
#define FG_MAX_SHARES 1024
#define FG_LIFE_HOLDER 0x3fffffff   /* FUTEX_TID_MASK: the thread that holds a mutex */
#define FG_LIFE_ENDED 0x40000000    /* FUTEX_OWNER_DIED: set by the kernel when that thread has ended */
#define FG_MAX_HOLDERS 4    /* processes that a refusal names */
enum { FG_FOR_MEMORY, FG_FOR_CONTEXT, FG_FOR_SLOT };   /* what was refused; FG_FOR_SLOT: all slots are taken */
#define FG_LOCK_KIND 0x90   /* glibc's mark of a robust mutex shared between processes */
#define FG_ROOM_OF_LIFE 48  /* bytes of a pthread_mutex_t on every processor that the hook is built for */

typedef struct {            /* one GPU of the job; all amounts are bytes */
    uint8_t  uuid[16];
    uint64_t limit;         /* the most that the job may hold */
    uint64_t untracked;     /* seen by the controller in processes that have no slot */
    uint64_t peak;          /* the most that was held at once */
    uint64_t refusals;      /* number of allocations refused */
    int32_t  index;         /* NVML index */
    uint16_t is_instance;   /* a MIG instance: `uuid` is its own, and not that of its GPU */
    uint16_t is_assumed;    /* no context was measured on this GPU model: `context` is without the stacks of its threads */
    uint64_t last_asked;    /* size of the last refused allocation */
    uint64_t last_held;     /* held at that moment */
    uint64_t context;       /* reserved for the contexts of a process until the controller has measured them */
} fg_region_gpu;

typedef struct {            /* one process */
    /* Held by the thread that took the slot, until that thread ends or the process executes another program: the kernel
     * marks it then. A slot whose mutex is held belongs to a living process, and /proc is not read. */
    union { pthread_mutex_t life; uint8_t life_room[FG_ROOM_OF_LIFE]; };
    uint32_t pid;           /* 0: the slot is free; as its own pid namespace numbers it */
    uint32_t generation;    /* incremented each time the slot changes hands */
    uint32_t ended;         /* written by the shepherd: the generation whose process it found to have ended */
    uint32_t reserved;
    uint64_t start;         /* start time of the process, clock ticks since boot */
    uint64_t image;         /* identifies the executed program: see owner.h */
    uint64_t pid_namespace; /* inode number of the process's pid namespace */
} fg_region_slot;

typedef struct {            /* bytes of each slot on one GPU, side by side: they are added up at every allocation */
    uint64_t bytes[FG_MAX_SLOTS];     /* allocated by hooked calls */
    /* Memory that no hooked call allocated, as tagged words (see below). */
    uint64_t context[FG_MAX_SLOTS];   /* the estimate for the contexts; the process changes the tag with it */
    uint64_t seen[FG_MAX_SLOTS];      /* the controller's measurement, under the tag that it read */
} fg_region_counts;

typedef struct {            /* memory that processes of the job share by IPC or exported handles: counted once */
    uint64_t key;           /* hash of the IPC handle; 0: an exported block, identified by its size */
    uint64_t bytes;
    uint32_t gpu;
    uint32_t giver;         /* slot number + 1 of the exporting process while it still holds the memory */
    uint64_t holder[FG_MAX_SLOTS / 64];   /* one bit for each slot; none set: the share is free */
} fg_region_share;

typedef struct { uint64_t bytes; uint32_t pid, reserved; } fg_region_holder;
typedef struct {            /* the last refused allocation, with the state at that moment */
    uint64_t asked, held, limit;   /* bytes */
    uint32_t gpu;           /* position in fg_region.gpu */
    uint32_t pid;           /* the process that was refused */
    uint32_t holders;       /* number of processes that held memory there */
    uint32_t what;          /* FG_FOR_MEMORY or FG_FOR_CONTEXT */
    fg_region_holder most[FG_MAX_HOLDERS];   /* the largest holders, in descending order */
} fg_region_refusal;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t size;          /* sizeof(fg_region): detects a different build */
    uint64_t job;
    uint32_t attempt;
    uint32_t gpus;          /* number of valid elements of gpu[] */
    union { pthread_mutex_t lock; uint8_t lock_room[56]; };   /* robust, process-shared */
    uint32_t by_position;   /* 1: the numbers in CUDA_VISIBLE_DEVICES are positions in gpu[]; 0: the driver's, in older regions */
    uint32_t unused;
    uint64_t seal;          /* checksum of everything that is written once: fg_region_seal */
    fg_region_gpu gpu[FG_MAX_GPUS];
    fg_region_refusal refusal;
    fg_pace pace[FG_MAX_GPUS];
    uint32_t slots;         /* number of the last slot in use, at least: bounds every sum */
    uint32_t shares;        /* the same of the shares */
    uint32_t pool_step;     /* MiB by which a pool of the job was seen to grow, if that is more than drivers do; 0: none */
    uint32_t reserved[13];
    uint64_t shared[FG_MAX_GPUS];   /* sum of the shares, bytes; counted again after the death of a lock's holder */
    fg_region_slot slot[FG_MAX_SLOTS];
    fg_region_counts counts[FG_MAX_GPUS];
    fg_region_share share[FG_MAX_SHARES];
    uint8_t runs[198656];   /* written by hooks before the windows, for the controllers of that time */
} fg_region;

/* A region outlives the build that wrote it: jobs run on across an upgrade. A change of any of these numbers needs a new
 * FG_REGION_VERSION. */
#define FG_LAYOUT(member, offset) \
    _Static_assert(offsetof(fg_region, member) == (offset), #member " moved: increment FG_REGION_VERSION")
FG_LAYOUT(lock, 32);
FG_LAYOUT(by_position, 88);
FG_LAYOUT(seal, 96);
FG_LAYOUT(gpu, 104);
FG_LAYOUT(refusal, 1384);
FG_LAYOUT(pace, 1488);
FG_LAYOUT(slots, 5072);
FG_LAYOUT(shared, 5136);
FG_LAYOUT(slot, 5264);
FG_LAYOUT(counts, 27792);
FG_LAYOUT(share, 126096);
FG_LAYOUT(runs, 183440);
_Static_assert(sizeof(fg_region) == 382096, "the region has another size: increment FG_REGION_VERSION");
_Static_assert(sizeof(pthread_mutex_t) <= 56, "the lock does not fit its room");
_Static_assert(sizeof(pthread_mutex_t) <= FG_ROOM_OF_LIFE, "a slot's mutex does not fit its room");
_Static_assert(FG_MAX_SLOTS % 64 == 0, "fg_region_share.holder has whole words");

/* The job can write to its region: no count read from it is used unchecked. */
static inline uint32_t fg_region_gpus(const fg_region *r) {
    return r->gpus < FG_MAX_GPUS ? r->gpus : FG_MAX_GPUS;
}
static inline uint32_t fg_region_slots(const fg_region *r) {
    uint32_t slots = __atomic_load_n(&r->slots, __ATOMIC_RELAXED);
    return slots < FG_MAX_SLOTS ? slots : FG_MAX_SLOTS;
}
static inline uint32_t fg_region_shares(const fg_region *r) {
    return r->shares < FG_MAX_SHARES ? r->shares : FG_MAX_SHARES;
}

/* Tagged words: 48 bits of bytes below a tag of 16 bits, read and written as one word. */
#define FG_TAG_SHIFT 48
#define FG_MAX_TAGGED (((uint64_t)1 << FG_TAG_SHIFT) - 1)
static inline uint64_t fg_region_tagged(uint64_t tag, uint64_t bytes) {
    return tag << FG_TAG_SHIFT | (bytes < FG_MAX_TAGGED ? bytes : FG_MAX_TAGGED);
}
/* Return a word with other bytes and the next tag. The tag is never 0, which is that of a fresh slot. */
static inline uint64_t fg_region_retagged(uint64_t word, uint64_t bytes) {
    uint64_t tag = ((word >> FG_TAG_SHIFT) + 1) & 0xffff;
    return fg_region_tagged(tag ? tag : 1, bytes);
}
/* Return what a process holds outside the hooked calls: the measurement if the tags agree, which means that nothing
 * changed since it was made, else the estimate. */
static inline int fg_region_is_measured(uint64_t context, uint64_t seen) {
    return context >> FG_TAG_SHIFT == seen >> FG_TAG_SHIFT;
}
static inline uint64_t fg_region_past_bytes(uint64_t context, uint64_t seen) {
    return (fg_region_is_measured(context, seen) ? seen : context) & FG_MAX_TAGGED;
}

/* Return the bytes that the process of a slot holds on a GPU, contexts included. */
static inline uint64_t fg_region_held(const fg_region *r, uint32_t slot, uint32_t gpu) {
    const fg_region_counts *c = &r->counts[gpu];
    uint64_t past = fg_region_past_bytes(__atomic_load_n(&c->context[slot], __ATOMIC_RELAXED), __atomic_load_n(&c->seen[slot], __ATOMIC_RELAXED));
    uint64_t bytes = __atomic_load_n(&c->bytes[slot], __ATOMIC_RELAXED);
    return bytes + past < past ? UINT64_MAX : bytes + past;
}
/* Whether a slot's process may have ended: its mutex was never taken, or the kernel marked it. */
static inline int fg_region_may_have_ended(const fg_region_slot *slot) {
    int word = __atomic_load_n(&slot->life.__data.__lock, __ATOMIC_RELAXED);
    return !(word & FG_LIFE_HOLDER) || (word & FG_LIFE_ENDED);
}
/* Add what the processes of all slots but one hold on a GPU (`except`: slot number + 1; 0: none). The sum saturates.
 * `doubtful` becomes 1 if one of them may have ended. */
static inline uint64_t fg_region_add_slots(const fg_region *r, uint32_t gpu, uint32_t except, uint64_t total, int *doubtful) {
    int doubt = 0;
    for (uint32_t at = 0, slots = fg_region_slots(r); at < slots; at++) {
        if (!__atomic_load_n(&r->slot[at].pid, __ATOMIC_RELAXED) || at + 1 == except) continue;
        uint64_t held = fg_region_held(r, at, gpu);
        total = total + held < held ? UINT64_MAX : total + held;
        doubt |= fg_region_may_have_ended(&r->slot[at]);
    }
    *doubtful = doubt;
    return total;
}

/* The seal detects a torn or overwritten file. It is a checksum (FNV-1a) and not a secret. */
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
        if (r->by_position) {   /* older regions were sealed without these */
            seal = fg_region_mix(seal, &r->gpu[i].is_instance, sizeof r->gpu[i].is_instance);
            seal = fg_region_mix(seal, &r->gpu[i].is_assumed, sizeof r->gpu[i].is_assumed);
        }
        seal = fg_region_mix(seal, &r->pace[i].policy, sizeof r->pace[i].policy);
        seal = fg_region_mix(seal, &r->pace[i].share, sizeof r->pace[i].share);
    }
    return seal;
}
/* Return the seal found in the first `length` bytes of a region, which need not be aligned; 0 if they are too few. */
static inline uint64_t fg_region_seal_in(const char *head, uint64_t length) {
    uint64_t seal = 0;
    if (length >= offsetof(fg_region, seal) + sizeof seal) memcpy(&seal, head + offsetof(fg_region, seal), sizeof seal);
    return seal;
}
/* Return why a file of `length` bytes cannot be used as a region, or NULL. */
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

/* Return the largest peak of all GPUs of the job, in bytes. */
static inline uint64_t fg_region_most(const fg_region *r) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < fg_region_gpus(r); i++)
        if (r->gpu[i].peak > most) most = r->gpu[i].peak;
    return most;
}
/* Return the number of refused allocations on all GPUs of the job. */
static inline uint64_t fg_region_refused(const fg_region *r) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < fg_region_gpus(r); i++) sum += r->gpu[i].refusals;
    return sum;
}
/* Return the GPU with the most refusals. */
static inline const fg_region_gpu *fg_region_refusing(const fg_region *r) {
    const fg_region_gpu *most = &r->gpu[0];
    for (uint32_t i = 1; i < fg_region_gpus(r); i++)
        if (r->gpu[i].refusals > most->refusals) most = &r->gpu[i];
    return most;
}
static inline int fg_mebibytes(char *to, size_t room, uint64_t bytes) {
    return snprintf(to, room, "%.1f MiB", (double)bytes / 1048576.0);
}
/* Describe the last refusal in one line for a person. Return the length; 0 if nothing was refused or `room` is below
 * 200 bytes. */
static inline int fg_region_tell(const fg_region *r, char *to, size_t room) {
    const fg_region_refusal *last = &r->refusal;
    char asked[40], held[40], limit[40], had[40];
    uint64_t times = fg_region_refused(r);
    int is_context = last->what == FG_FOR_CONTEXT;
    if (!times || !last->pid || last->gpu >= fg_region_gpus(r) || room < 200) return 0;
    fg_mebibytes(asked, sizeof asked, last->asked);
    fg_mebibytes(held, sizeof held, last->held);
    fg_mebibytes(limit, sizeof limit, last->limit);
    int at = snprintf(to, room, "GPU %d: %s%s%s refused to process %u: %s%s of %s held", r->gpu[last->gpu].index,
                      is_context ? "a CUDA context, taken to cost " : "", asked, is_context ? "," : "", last->pid,
                      last->what == FG_FOR_SLOT ? "256 processes of the job use GPUs already, and no more can be counted; " : "",
                      held, limit);
    for (uint32_t i = 0; i < FG_MAX_HOLDERS && last->most[i].pid && (size_t)at + 80 < room; i++) {
        fg_mebibytes(had, sizeof had, last->most[i].bytes);
        at += snprintf(to + at, room - (size_t)at, "%s process %u %s", i ? "," : ", by", last->most[i].pid, had);
    }
    if (last->holders > FG_MAX_HOLDERS && (size_t)at + 80 < room)
        at += snprintf(to + at, room - (size_t)at, " and %u more", last->holders - FG_MAX_HOLDERS);
    if (times > 1 && (size_t)at + 80 < room)
        at += snprintf(to + at, room - (size_t)at, "; %llu refusals in all", (unsigned long long)times);
    return at;
}
#endif
