/* The fake driver: one card state in a file that all processes map, as a real card is one for all. */
#ifndef FAKE_H
#define FAKE_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CARDS 16
#define MAX_SHARED 512
#define MAX_PROCESSES 1024
#define MAX_LIMITS 64
#define GRAIN ((uint64_t)2 << 20)
#define IS_SMALL(bytes) ((bytes) <= (uint64_t)1 << 20)   /* packed into chunks of 2 MiB, 512 bytes at least */
#define GRAINS(bytes) (((bytes) + GRAIN - 1) / GRAIN * GRAIN)

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900,
};

typedef struct {
    char name[64];
    uint8_t uuid[16];
    uint64_t total, reserved;   /* reserved: by the driver, for itself */
    uint64_t context;           /* what a process's context costs */
    uint32_t processors, threads;   /* multiprocessors, and the threads of each; 0: the driver does not tell */
    uint64_t high;              /* the most that was ever in use */
    uint32_t utilization, temperature;
    uint32_t ecc, pending, failed;   /* uncorrected errors; rows to be remapped, and those that cannot be */
    uint32_t lost;              /* fell off the bus */
    uint32_t power, energy, clock, throttle;   /* mW, mJ, MHz, NVML's bits */
    uint32_t sm;                /* percent of the compute time that each process uses */
    uint32_t mute;              /* an old card, which measures none of these */
    uint32_t mig;               /* a card in MIG mode: only its instances can be used */
    uint32_t parent, gi, ci;    /* of a MIG instance: number of its card, from 1, and its ids; 0: a card */
    uint32_t gone;              /* an instance that was destroyed */
} card;

typedef struct {   /* of the device memory of a cgroup */
    char path[256];             /* "": free */
    uint32_t card;
    uint64_t soft, hard;
} limit;

typedef struct {
    uint32_t pid;
    uint64_t bytes[MAX_CARDS];
} holder;

typedef struct {                /* memory that several processes have */
    uint64_t id, bytes;         /* id 0: free */
    int card;
    uint32_t owner, pid[16];
} shared_block;

typedef struct {
    char magic[8];
    pthread_mutex_t lock;       /* robust, shared */
    uint64_t ids;
    shared_block block[MAX_SHARED];
    uint32_t blocks;            /* of them in use, or used before */
    uint32_t cards;
    card card[MAX_CARDS];
    holder holder[MAX_PROCESSES];
    limit limit[MAX_LIMITS];
} state;

/* cuda.c */
int fake_api(void);                                       /* 13000: CUDA 13.0 */

/* card.c */
uint32_t fake_pid(void);                                  /* of this process, without a system call */
state *fake_state(void);                                  /* NULL: no card state, so no driver */
int fake_charge(int card, uint64_t bytes);                /* OK or OUT_OF_MEMORY; for this process */
void fake_release(int card, uint64_t bytes);
uint64_t fake_share(int card, uint64_t bytes);            /* what this process has, from now on for others too */
int fake_join(uint64_t id, int *card, uint64_t *bytes);   /* OK, or INVALID_VALUE */
void fake_part(uint64_t id);                              /* this process has it no more */
uint64_t fake_own(int card);                              /* bytes of this process */
uint64_t fake_room(int card);                             /* bytes that are free */
int fake_evict(int card, uint64_t bytes) __attribute__((weak));   /* managed memory; 1: some of it went */
uint64_t fake_used(int card);                             /* by living processes */
int fake_holders(int card, holder *into, int room);       /* living ones that hold something there */
limit *fake_limit(int card, const char *path, int make);  /* under no lock; NULL: there is none */
void fake_uuid_text(const uint8_t *uuid, char *text);     /* GPU-…, of an instance MIG-… */

/* A tool that is called back from within the exported calls of this thread, but not from within its own. */
extern void (*fake_tool)(const char *call);
extern __thread int fake_in_tool;
static inline void fake_call_back(const char *call) {
    if (!fake_tool || fake_in_tool) return;
    fake_in_tool = 1;
    fake_tool(call);
    fake_in_tool = 0;
}

/* Each driver function has an inner address, which cuGetProcAddress gives, and an exported one. */
#define DRIVER(name, parameters, arguments)                                   \
    int in_##name parameters;                                                 \
    __attribute__((visibility("default"))) int name parameters { fake_call_back(#name); return in_##name arguments; } \
    int in_##name parameters

/* full/: memory with contents, and code. The plain fake driver is linked without them. */
#define OPTIONAL __attribute__((weak))
uint64_t fake_open_memory(uint64_t bytes) OPTIONAL;               /* fresh addresses that can be written */
void fake_close_memory(uint64_t address, uint64_t bytes) OPTIONAL;
int fake_map_block(uint64_t address, uint64_t bytes, int *file, uint64_t block_bytes) OPTIONAL;   /* 1: done */
void fake_unmap_block(uint64_t address, uint64_t bytes) OPTIONAL;
uint64_t fake_duration(uint64_t handle) OPTIONAL;                 /* of a kernel, in nanoseconds */
void fake_compute(uint64_t handle, void **parameters) OPTIONAL;
int fake_property(int card, int which, int *value) OPTIONAL;      /* an attribute of the card: OK, or INVALID_VALUE */
int fake_device_of(int card);                                     /* CUDA's ordinal of a card; -1: not visible */
struct context;
int fake_load_kernel(uint64_t *function) OPTIONAL;                /* OK, or why it cannot be launched; then its time */
void fake_forget_code(struct context *gone) OPTIONAL;
/* memory.c */
int fake_find_mapping(uint64_t address, uint64_t *start, uint64_t *bytes, int *card);   /* under fake_big; 0: none */
/* cuda.c */
typedef struct context {
    int card, refs;
    struct context *next, *primary;   /* primary: of a green one */
    uint64_t limit[5];                /* of cuCtxSetLimit; 0: as usual */
    uint64_t more, heap, local;       /* bytes beyond its cost; of the heap, not taken yet; local memory of a thread */
} context;
typedef struct stream { context *at; int capturing; uint64_t busy; /* until when, ns of CLOCK_MONOTONIC */ } stream;
enum { LINEAR, GRAPH, ASYNC, MANAGED, ARRAY, FOREIGN };
typedef struct piece {   /* one allocation, found by its address */
    uint64_t address, bytes, charged, shared;
    int kind, card;
    context *owner;
    void *pool;
    struct chunk *chunk;   /* of a small one */
    struct piece *next;
} piece;
extern pthread_mutex_t fake_big;                          /* this process's own lists */
context *fake_current(void);
int fake_ready(void);                                     /* OK, or why no call can be served */
int fake_card(int device);                                /* CUDA's ordinal -> card, or -1 */
piece *fake_piece(int kind, int card, uint64_t bytes, uint64_t charged);
void fake_end_tiles(uint64_t array);                      /* of a sparse array that is destroyed */
void fake_drop(piece *taken);                             /* its memory, and it */
piece *fake_find(uint64_t address);                       /* that contains the address; under fake_big */
piece *fake_take(uint64_t address);                       /* out of the list; the caller frees it */
void fake_give(piece *taken);                             /* back into it */
uint64_t fake_address(uint64_t bytes);                    /* fresh addresses */
piece *fake_small_piece(int kind, int card, uint64_t bytes);   /* NULL: the card has no room for another chunk */
void fake_sync_pools(int card);
int fake_free_async(piece *freed);
int fake_free(uint64_t address);
int fake_is_capturing(stream *s, int own);                /* own: stream 0 is the thread's */
void fake_wait(stream *s);
int fake_is_busy(stream *s);
void fake_wait_all(void);                                 /* for all streams of the process */
/* limits.c */
uint64_t fake_threads(int card);
int fake_take_more(context *c, int64_t bytes);            /* charged to a context, until it ends */
int fake_take_heap(context *c);
/* graphs.c */
int fake_graphs(piece *taken);                            /* freed by its address: OK, or INVALID_VALUE */
void fake_capture_node(int kind, uint64_t address, uint64_t size, int card);
void fake_begin_capture(void);
void *fake_end_capture(void);
int fake_graph_memory(uint64_t graph, stream *s, uint64_t *takes);   /* for a launch; takes: in place of a handle, its time */
void fake_graphs_rest(stream *s);                         /* it was waited for; NULL: all were */
#endif
