/* Every variable of the hook in one process, and the lock that protects it.
 *
 * All of them start at zero: no module body and no constructor ever runs in the hook. In the child of a fork they are
 * reset by the functions that end in _in_child, since what the parent holds is the parent's.
 *
 * Locks are taken in the order fg_pool_lock, fg_own_lock, the region's lock. The region's
 * lock is never held while the driver is called.
 * fg_pool_lock and fg_own_lock are recursive, because a tool that the driver calls back may call the driver in the
 * same thread. */
#ifndef FG_STATE_H
#define FG_STATE_H
#include <pthread.h>
#include <stdint.h>
#include "region.h"

enum {                /* kinds of entries; the kinds up to FG_IPC are freed with their context */
    FG_FREE, FG_MEMORY, FG_ARRAY, FG_MIPMAP, FG_IPC,
    FG_ASYNC, FG_BLOCK, FG_HANDLE, FG_MAPPING, FG_TILE, FG_GREEN, FG_EXEC, FG_CONTEXT,
    FG_CHUNK,     /* 2 MiB of addresses with small allocations; count: how many live */
    FG_CODE,      /* a module or library; count: bits of the GPUs on which it was looked into */
    FG_FUNCTION   /* block: its module or library; share: 1: a kernel; count: bits of the GPUs on which it was launched */
};
typedef struct {      /* one thing that this process holds */
    uint64_t key;     /* its address or handle, or the serial number of a block */
    uint64_t bytes;   /* the charge; of a mapping: its length */
    uint64_t block;   /* of a handle or a mapping: its block; of a kind that is freed with its context: that context */
    uint32_t count;   /* of a block: handles and mappings; else how often it was given out */
    uint32_t share;   /* number + 1 of the share that counts it; 0: counted in the slot */
    uint16_t kind, gpu;
} fg_entry;

enum { FG_USUAL_STEP = 32 << 20, FG_NO_POOL = 0, FG_OPEN = 1, FG_DESTROYED = 2, FG_OF_HOST = 3, FG_MAX_POOLS = 1 << 18 };
typedef struct {         /* one memory pool */
    void *pool;
    uint64_t reserved;   /* bytes charged */
    uint64_t step;       /* every amount that the pool was seen to reserve is a multiple of this; 0: none seen */
    uint64_t waste;      /* the most that the pool was seen to grow beyond need, in bytes */
    uint32_t live;       /* allocations that have not been freed */
    uint16_t gpu, state; /* FG_DESTROYED: destroyed by the program, but some of its memory lives; FG_OF_HOST: of host memory */
    uint64_t held;       /* bytes of the live allocations */
    uint64_t most;       /* the most that they were since the pool was trimmed */
    uint64_t managed;    /* 1: managed memory, which the driver may back later */
} fg_pool;

enum { FG_MAX_LANES = 256, FG_MAX_DEPTH = 8 };
typedef struct { uint64_t key, most; uint32_t gpu, used; } fg_lane;   /* a stream, or a graph that keeps memory */

enum { FG_LAUNCH_MARKS = 1024, FG_USUAL_STACK = 1024 };   /* FG_USUAL_STACK: bytes of a thread's stack, CUDA's default */

#pragma GCC visibility push(hidden)
/* The ledger: what this process has charged to its job. Under the region's lock, except fg_deferred and fg_has_deferred. */
extern int fg_watches_forks;
extern uint32_t fg_slot, fg_pid;             /* fg_slot: slot number + 1; 0: none */
extern uint32_t fg_generation;               /* of the slot, when it was taken */
extern uint32_t fg_judged_at[FG_MAX_SLOTS];  /* when a slot's process was last found alive in /proc, ms; atomic */
extern uint64_t fg_namespace;                /* of this process: the inode number of its pid namespace; 0: not known; atomic */
extern uint64_t fg_held[FG_MAX_GPUS];        /* bytes that this process holds */
extern uint64_t fg_context[FG_MAX_GPUS];     /* the tagged word of its slot: fg_region_counts.context */
extern uint32_t fg_share_refs[FG_MAX_SHARES];/* how often this process holds each share */
extern uint64_t fg_deferred[FG_MAX_GPUS];        /* bytes freed while the lock could not be had, modulo 2^64; atomic */
extern int fg_outgrown[FG_MAX_GPUS];         /* 1: managed memory outgrows a GPU that no other job uses; atomic */
extern int fg_has_deferred;                          /* 1: some fg_deferred is not 0; atomic */

/* What this process holds: a hash table. Under fg_own_lock. */
extern fg_entry *fg_entries;
extern uint64_t fg_room, fg_used;            /* fg_room: 0 or a power of two */
extern uint64_t fg_serial;                   /* the last block's */
extern uint32_t fg_tile_count;               /* mapped parts of sparse arrays */
extern uint64_t fg_small[FG_MAX_GPUS];       /* parts of chunks that small allocations take, bytes: small.h */
extern uint64_t fg_chunks[FG_MAX_GPUS];      /* chunks in which they lie */
extern int fg_keeps_chunks;                  /* 1: the table is walked through, so empty chunks stay in it */
extern int fg_contexts[FG_MAX_GPUS];         /* contexts that live or are being made */
extern int fg_in_primary[FG_MAX_GPUS];       /* 1: the primary context is among them */
extern uint64_t fg_expected[FG_MAX_GPUS];    /* bytes in fg_context that the driver will take, but was not seen to take */
extern uint64_t fg_most_local[FG_MAX_GPUS];  /* the most local memory of a thread that a launch was measured to need */
extern uint32_t fg_unlaunched;               /* number of FG_FUNCTION that were not launched on every GPU; atomic */
extern uint8_t fg_unlaunched_at[FG_LAUNCH_MARKS]; /* by a hash of their addresses, how many they are; 255 stays; read without the lock */
extern pthread_mutex_t fg_own_lock;

/* Pools and graphs. Under fg_pool_lock. */
extern fg_pool *fg_pools;                    /* FG_MAX_POOLS rows of address space; unused pages take no memory */
extern uint32_t fg_pool_count;               /* rows in use, or used before */
extern uint32_t fg_stale;                    /* 1: memory was freed since the pools were read */
extern fg_lane fg_lanes[FG_MAX_LANES];
extern uint64_t fg_graph_memory[FG_MAX_GPUS];/* bytes charged */
extern int fg_graph_device[FG_MAX_GPUS];
extern uint32_t fg_graph_count;              /* graphs with memory that were ever instantiated */
extern pthread_mutex_t fg_pool_lock;
extern const pthread_mutex_t fg_unlocked;    /* an unlocked recursive mutex */

/* Pacing. Atomic. */
extern int fg_paces;                         /* 0: not known yet; else FG_NOT_PACED … of pace.pxi */
extern int fg_flight;                        /* index + 1 of this process in fg_pace.flying; 0: none */
extern uint64_t fg_reported_at;                     /* when this process last reported that it launches; ns */

extern int fg_is_started;                    /* 1: cuInit has succeeded in this process; atomic */
extern int fg_devices[64];                   /* by CUDA ordinal: position in the region + 1; 0: not known; atomic */
extern void **fg_smi_own, **fg_smi_real;     /* nvidia-smi's private table: the hook's copy, and NVML's; atomic */

/* Apply fg_deferred. Under the region's lock. */
void fg_apply_deferred(void);
#pragma GCC visibility pop

/* A key for the calling thread's stream 0, which differs between threads. */
#define FG_OWN_STREAM ((uint64_t)pthread_self())
#endif
