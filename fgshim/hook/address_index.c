#include <string.h>
#include <sys/mman.h>
#include "address_index.h"
#include "job.h"

/* Leaves of up to 511 addresses, and a list of the leaves in the order of their addresses. No leaf is empty. */
enum { LEAF_ROOM = 511, MOST_LEAVES = 1 << 20 };
typedef struct { uint64_t count, key[LEAF_ROOM]; } fg_leaf;
static fg_leaf **leaves;      /* address space for MOST_LEAVES; unused pages take no memory */
static uint64_t leaf_count;

/* The last leaf that begins at or below an address; the first one if there is none. */
static uint64_t leaf_of(uint64_t address) {
    uint64_t low = 0, high = leaf_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (leaves[middle]->key[0] <= address) low = middle;
        else high = middle;
    }
    return low;
}
/* The number of addresses in a leaf that are below this one. */
static uint64_t count_below(const fg_leaf *leaf, uint64_t address) {
    uint64_t low = 0, high = leaf->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (leaf->key[middle] < address) low = middle + 1;
        else high = middle;
    }
    return low;
}
/* Insert an empty leaf at a position of the list. */
static fg_leaf *new_leaf(uint64_t at) {
    if (!leaves) leaves = fg_pages(MOST_LEAVES * sizeof *leaves);
    fg_leaf *leaf = leaves && leaf_count < MOST_LEAVES ? fg_pages(sizeof *leaf) : NULL;
    if (!leaf) return NULL;
    memmove(leaves + at + 1, leaves + at, (leaf_count - at) * sizeof *leaves);
    leaves[at] = leaf;
    leaf_count++;
    return leaf;
}
static int split(uint64_t at) {
    fg_leaf *full = leaves[at], *half = new_leaf(at + 1);
    if (!half) return 0;
    half->count = full->count / 2;
    full->count -= half->count;
    memcpy(half->key, full->key + full->count, half->count * sizeof *half->key);
    return 1;
}

int fg_index_add(uint64_t address) {
    if (!leaf_count && !new_leaf(0)) return 0;
    uint64_t at = leaf_of(address);
    if (leaves[at]->count == LEAF_ROOM) {
        if (!split(at)) return 0;
        at = leaf_of(address);
    }
    fg_leaf *leaf = leaves[at];
    uint64_t below = count_below(leaf, address);
    if (below < leaf->count && leaf->key[below] == address) return 1;
    memmove(leaf->key + below + 1, leaf->key + below, (leaf->count - below) * sizeof *leaf->key);
    leaf->key[below] = address;
    leaf->count++;
    return 1;
}

void fg_index_remove(uint64_t address) {
    if (!leaf_count) return;
    uint64_t at = leaf_of(address), below = count_below(leaves[at], address);
    fg_leaf *leaf = leaves[at];
    if (below == leaf->count || leaf->key[below] != address) return;
    leaf->count--;
    memmove(leaf->key + below, leaf->key + below + 1, (leaf->count - below) * sizeof *leaf->key);
    if (leaf->count) return;
    leaf_count--;
    memmove(leaves + at, leaves + at + 1, (leaf_count - at) * sizeof *leaves);
    munmap(leaf, sizeof *leaf);
}

uint64_t fg_index_from(uint64_t address) {
    if (!leaf_count) return UINT64_MAX;
    uint64_t at = leaf_of(address), below = count_below(leaves[at], address);
    if (below < leaves[at]->count) return leaves[at]->key[below];
    return at + 1 < leaf_count ? leaves[at + 1]->key[0] : UINT64_MAX;
}

uint64_t fg_index_until(uint64_t address) {
    if (!leaf_count || leaves[0]->key[0] > address) return UINT64_MAX;
    const fg_leaf *leaf = leaves[leaf_of(address)];
    uint64_t below = count_below(leaf, address);
    return below < leaf->count && leaf->key[below] == address ? address : leaf->key[below - 1];
}

void fg_index_clear(void) {
    while (leaf_count) munmap(leaves[--leaf_count], sizeof(fg_leaf));
}
