/* The holders of a share of the region, as a set of slots, and the keys that identify shared things. */
#ifndef FG_SHARE_BITS_H
#define FG_SHARE_BITS_H
#include "cuda_types.h"
#include "region.h"

#define FG_FNV_START 0xcbf29ce484222325ull
#define FG_BIT(slot) (1ull << ((slot) % 64))

static inline int fg_share_taken(const fg_region_share *s) {
    return (s->holder[0] | s->holder[1] | s->holder[2] | s->holder[3]) != 0;
}
static inline int fg_share_holds(const fg_region_share *s, uint32_t slot) {
    return (s->holder[slot / 64] & FG_BIT(slot)) != 0;
}
static inline void fg_share_join(fg_region_share *s, uint32_t slot) { s->holder[slot / 64] |= FG_BIT(slot); }
static inline void fg_share_leave(fg_region_share *s, uint32_t slot) {
    s->holder[slot / 64] &= ~FG_BIT(slot);
    if (s->giver == slot + 1) s->giver = 0;
}
static inline int fg_share_holders(const fg_region_share *s) {
    int sum = 0;
    for (int i = 0; i < FG_MAX_SLOTS / 64; i++) sum += __builtin_popcountll(s->holder[i]);
    return sum;
}

/* The key of an IPC handle, which has 64 bytes. Never 0. */
static inline uint64_t fg_share_key(const void *handle) { return fg_region_mix(FG_FNV_START, handle, 64) | 1; }

/* The key of a part of a sparse array: a mip tail is identified by layer, offset and size, a tile by its box. */
static inline uint64_t fg_tile_key(const fg_map_info *part, int is_tail) {
    uint64_t key = fg_region_mix(FG_FNV_START, &part->array, 8);
    key = fg_region_mix(key, &part->part_kind, 4);
    if (!is_tail) return fg_region_mix(key, part->part, sizeof part->part);
    return fg_region_mix(fg_region_mix(key, part->part, 4), part->part + 1, 16);
}
_Static_assert(FG_MAX_SLOTS == 256, "fg_share_taken looks at four words");
#endif
