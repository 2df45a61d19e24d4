/* Small allocations, which drivers pack into chunks of 2 MiB: from each address on that is a multiple of 2 MiB.
 *
 * A chunk belongs to the process as long as one allocation in it lives, so the process is charged for the chunks in which
 * its addresses lie. It is charged at least what its allocations need if they are packed as densely as their sizes allow,
 * in case a driver packs less densely than its addresses suggest. Under fg_own_lock. */
#ifndef FG_SMALL_H
#define FG_SMALL_H
#include "state.h"

#define FG_CHUNK_BYTES ((uint64_t)2 << 20)
#define FG_SMALL_BYTES (FG_CHUNK_BYTES / 2)   /* a larger allocation has chunks of its own */
#define FG_SMALL_GRAIN 512                    /* the least that an allocation takes */

/* Return the part of a chunk, in bytes, that one of many equal small allocations takes. */
static inline uint64_t fg_part_of_chunk(uint64_t bytes) {
    uint64_t size = bytes ? (bytes + FG_SMALL_GRAIN - 1) / FG_SMALL_GRAIN * FG_SMALL_GRAIN : FG_SMALL_GRAIN;
    uint64_t fit = FG_CHUNK_BYTES / size;
    return (FG_CHUNK_BYTES + fit - 1) / fit;
}
/* Return what this process is charged on a GPU for its small allocations, in bytes. */
static inline uint64_t fg_small_charge(uint32_t gpu) {
    uint64_t chunks = fg_chunks[gpu] * FG_CHUNK_BYTES;
    return chunks > fg_small[gpu] ? chunks : fg_small[gpu];
}
#endif
