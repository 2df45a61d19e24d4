/* libcuda.so.1: memory that is taken and freed by address, and virtual memory management. */
#include "fake.h"

static int take(int kind, uint64_t *address, size_t size) {
    context *c = fake_current();
    if (!c) return fake_ready() ? NOT_INITIALIZED : INVALID_CONTEXT;
    if (!address || !size) return INVALID_VALUE;
    if (size > (uint64_t)1 << 50) return OUT_OF_MEMORY;
    uint64_t here = GRAINS(size);   /* managed memory need not fit: the rest stays on the host */
    if (kind == MANAGED && here > fake_room(c->card)) here = fake_room(c->card) / GRAIN * GRAIN;
    int status = IS_SMALL(size) || !here ? OK : fake_charge(c->card, here);
    if (status) return status;
    pthread_mutex_lock(&fake_big);
    piece *made = IS_SMALL(size) ? fake_small_piece(kind, c->card, size) : fake_piece(kind, c->card, size, here);
    if (made) *address = made->address;
    pthread_mutex_unlock(&fake_big);
    return made ? OK : OUT_OF_MEMORY;
}

DRIVER(cuMemAlloc_v2, (uint64_t *address, size_t size), (address, size)) { return take(LINEAR, address, size); }
DRIVER(cuMemAllocManaged, (uint64_t *address, size_t size, unsigned flags), (address, size, flags)) {
    return flags != 1 && flags != 2 ? INVALID_VALUE : take(MANAGED, address, size);
}
DRIVER(cuMemAllocPitch_v2, (uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned element),
       (address, pitch, width, height, element)) {
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return INVALID_VALUE;
    if (width > SIZE_MAX - 511 || height > SIZE_MAX / (width + 511)) return OUT_OF_MEMORY;
    *pitch = (width + 511) / 512 * 512;
    return take(LINEAR, address, *pitch * height);
}
/* Whatever was taken as memory: arrays and what others gave end otherwise. */
int fake_free(uint64_t address) {
    pthread_mutex_lock(&fake_big);
    piece *p = fake_take(address);
    pthread_mutex_unlock(&fake_big);
    if (!p) return INVALID_VALUE;
    if (p->kind == GRAPH) return fake_graphs(p);
    if (p->kind == ASYNC) return fake_free_async(p);
    if (p->kind == ARRAY || p->kind == FOREIGN) return (pthread_mutex_lock(&fake_big), fake_give(p), pthread_mutex_unlock(&fake_big)), INVALID_VALUE;
    pthread_mutex_lock(&fake_big);   /* a chunk is its neighbours', too */
    fake_drop(p);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemFree_v2, (uint64_t address), (address)) {
    if (fake_ready()) return NOT_INITIALIZED;
    return address ? fake_free(address) : OK;
}
DRIVER(cuMemGetInfo_v2, (size_t *free, size_t *total), (free, total)) {
    context *c = fake_current();
    if (!c) return INVALID_CONTEXT;
    if (!free && !total) return INVALID_VALUE;
    if (total) *total = fake_state()->card[c->card].total - fake_state()->card[c->card].reserved;
    if (free) *free = fake_room(c->card);
    return OK;
}

/* The calls of 2007, whose addresses and sizes have 32 bits. */
static int low(int status, uint64_t where, uint32_t *address) {
    static uint32_t next = 0x10000;
    if (status) return status;
    pthread_mutex_lock(&fake_big);
    piece *p = fake_take(where);
    p->address = *address = next += 0x10000;
    fake_give(p);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemAlloc, (uint32_t *address, uint32_t size), (address, size)) {
    uint64_t where = 0;
    int status = address ? take(LINEAR, &where, size) : INVALID_VALUE;
    return low(status, where, address);
}
DRIVER(cuMemAllocPitch, (uint32_t *address, uint32_t *pitch, uint32_t width, uint32_t height, uint32_t element),
       (address, pitch, width, height, element)) {
    uint64_t where = 0;
    size_t row = 0;
    if (!address || !pitch) return INVALID_VALUE;
    int status = in_cuMemAllocPitch_v2(&where, &row, width, height, element);
    *pitch = (uint32_t)row;
    return low(status, where, address);
}
DRIVER(cuMemFree, (uint32_t address), (address)) { return in_cuMemFree_v2(address); }
static uint32_t narrow(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes; }
DRIVER(cuMemGetInfo, (uint32_t *free, uint32_t *total), (free, total)) {
    size_t left, all;
    int status = in_cuMemGetInfo_v2(&left, &all);
    if (status || !free || !total) return status ? status : INVALID_VALUE;
    *free = narrow(left);
    *total = narrow(all);
    return OK;
}
int in_cuDeviceTotalMem_v2(size_t *, int);
DRIVER(cuDeviceTotalMem, (uint32_t *bytes, int device), (bytes, device)) {
    size_t all;
    int status = in_cuDeviceTotalMem_v2(&all, device);
    if (status || !bytes) return status ? status : INVALID_VALUE;
    return *bytes = narrow(all), OK;
}

/* Physical blocks: they live until the last handle and the last mapping are gone. Handles are used again at once. */
typedef struct { uint64_t bytes; int card, handles, maps, used; uint64_t shared; int file; /* its contents */ } block;
typedef struct { int block, refs; } handle;
typedef struct mapping { uint64_t address, size; int block; struct mapping *next; } mapping;
typedef struct { int32_t type, handles, where, id; void *win32; uint64_t flags; } prop;
static block blocks[4096];
static handle handles[4096];
static mapping *mappings;

static void settle(block *b) {
    if (b->handles || b->maps || !b->used) return;
    if (b->shared) fake_part(b->shared);
    else if (b->card >= 0) fake_release(b->card, b->bytes);
    if (b->file) close(b->file);
    b->used = b->file = 0;
}
static int fresh_handle(int at) {
    int h = 1;
    while (h < 4095 && handles[h].refs) h++;
    handles[h] = (handle){at, 1};
    blocks[at].handles++;
    return h;
}
DRIVER(cuMemGetAllocationGranularity, (size_t *grain, const prop *p, int option), (grain, p, option)) {
    (void)p; (void)option;
    return *grain = GRAIN, OK;
}
DRIVER(cuMemCreate, (uint64_t *out, size_t size, const prop *p, uint64_t flags), (out, size, p, flags)) {
    if (fake_ready()) return NOT_INITIALIZED;
    if (!out || !p || flags || !size || size % GRAIN || (p->where != 1 && p->where != 3 && p->where != 6)) return INVALID_VALUE;
    int at = 0, card = p->where == 3 ? -1 : fake_card(p->where == 6 ? p->id & 0xff : p->id);   /* 6: a domain of one */
    if (p->where != 3 && card < 0) return INVALID_DEVICE;
    if (card >= 0 && (size > (uint64_t)1 << 50 || fake_charge(card, size))) return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_big);
    while (at < 4095 && blocks[at].used) at++;
    blocks[at] = (block){size, card, 0, 0, 1, 0, 0};
    *out = (uint64_t)fresh_handle(at);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
/* Given to other processes under a number, which stands for a descriptor and for a handle of a fabric. */
DRIVER(cuMemExportToShareableHandle, (uint64_t *out, uint64_t h, int kind, uint64_t flags), (out, h, kind, flags)) {
    (void)kind;
    pthread_mutex_lock(&fake_big);
    block *b = h && h < 4096 && handles[h].refs && !flags ? &blocks[handles[h].block] : NULL;
    if (b && !b->shared) b->shared = fake_share(b->card, b->bytes);
    if (b) *out = b->shared;
    pthread_mutex_unlock(&fake_big);
    return b ? OK : INVALID_VALUE;
}
DRIVER(cuMemImportFromShareableHandle, (uint64_t *out, void *from, int kind), (out, from, kind)) {
    int at = 0, free = -1, card;
    uint64_t bytes;
    (void)kind;
    if (fake_ready()) return NOT_INITIALIZED;
    if (fake_join((uint64_t)from, &card, &bytes)) return INVALID_VALUE;
    pthread_mutex_lock(&fake_big);
    for (; at < 4096 && !(blocks[at].used && blocks[at].shared == (uint64_t)from); at++)
        if (!blocks[at].used && free < 0) free = at;
    if (at == 4096) blocks[at = free] = (block){bytes, card, 0, 0, 1, (uint64_t)from, 0};
    *out = (uint64_t)fresh_handle(at);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemGetAllocationPropertiesFromHandle, (prop *out, uint64_t h), (out, h)) {
    int device = 0, card;
    if (!h || h >= 4096 || !handles[h].refs) return INVALID_VALUE;
    card = blocks[handles[h].block].card;
    while (card >= 0 && fake_card(device) != card) device++;
    return *out = (prop){1, 0, card < 0 ? 3 : 1, card < 0 ? 0 : device, NULL, 0}, OK;
}
/* A checkpoint moves what a process holds to the host, and a restore brings it back. Of this process only. */
static int locked, away;
static uint64_t kept[MAX_CARDS];
DRIVER(cuCheckpointProcessLock, (int pid, const void *how), (pid, how)) {
    (void)how;
    if (pid != getpid()) return INVALID_VALUE;
    return locked ? 401 : (locked = 1, OK);
}
DRIVER(cuCheckpointProcessCheckpoint, (int pid, const void *how), (pid, how)) {
    (void)how;
    if (pid != getpid() || !locked || away) return pid != getpid() ? INVALID_VALUE : 401;
    for (int at = 0; at < (int)fake_state()->cards; at++)
        if ((kept[at] = fake_own(at))) fake_release(at, kept[at]);
    return away = 1, OK;
}
DRIVER(cuCheckpointProcessRestore, (int pid, const void *how), (pid, how)) {
    int status = OK, at = 0;
    (void)how;
    if (pid != getpid() || !away) return pid != getpid() ? INVALID_VALUE : 401;
    for (; at < (int)fake_state()->cards && !status; at++) if (kept[at]) status = fake_charge(at, kept[at]);
    for (at -= 2; status && at >= 0; at--) if (kept[at]) fake_release(at, kept[at]);
    return status ? status : (away = 0, OK);
}
DRIVER(cuCheckpointProcessUnlock, (int pid, const void *how), (pid, how)) {
    (void)how;
    if (pid != getpid() || !locked || away) return pid != getpid() ? INVALID_VALUE : 401;
    return locked = 0, OK;
}
DRIVER(cuCheckpointProcessGetState, (int pid, int *state), (pid, state)) {
    if (pid != getpid() || !state) return INVALID_VALUE;
    return *state = away ? 2 : locked, OK;
}
#define MULTICAST ((uint64_t)1 << 40)
DRIVER(cuMulticastCreate, (uint64_t *out, const void *how), (out, how)) { (void)how; return *out = MULTICAST, OK; }
DRIVER(cuMemRelease, (uint64_t h), (h)) {
    if (h == MULTICAST) return OK;
    pthread_mutex_lock(&fake_big);
    int known = h && h < 4096 && handles[h].refs;
    if (known && --handles[h].refs >= 0) {
        block *b = &blocks[handles[h].block];
        b->handles--;
        settle(b);
    }
    pthread_mutex_unlock(&fake_big);
    return known ? OK : INVALID_VALUE;
}
DRIVER(cuMemAddressReserve, (uint64_t *out, size_t size, size_t align, uint64_t want, uint64_t flags),
       (out, size, align, want, flags)) {
    (void)align; (void)want; (void)flags;
    return !size || size % GRAIN ? INVALID_VALUE : (*out = fake_address(size), OK);
}
DRIVER(cuMemAddressFree, (uint64_t address, size_t size), (address, size)) { return address && size ? OK : INVALID_VALUE; }
DRIVER(cuMemSetAccess, (uint64_t address, size_t size, const void *how, size_t count), (address, size, how, count)) {
    (void)how; (void)count;
    return address && size ? OK : INVALID_VALUE;
}
DRIVER(cuMemMap, (uint64_t address, size_t size, size_t offset, uint64_t h, uint64_t flags),
       (address, size, offset, h, flags)) {
    pthread_mutex_lock(&fake_big);
    int good = !flags && !offset && h && h < 4096 && handles[h].refs && size <= blocks[handles[h].block].bytes;
    for (mapping *m = mappings; m; m = m->next) good &= address + size <= m->address || address >= m->address + m->size;
    block *b = good ? &blocks[handles[h].block] : NULL;
    if (good && fake_map_block) good = fake_map_block(address, size, &b->file, b->bytes);
    if (good) {
        mapping *m = calloc(1, sizeof *m);
        *m = (mapping){address, size, handles[h].block, mappings};
        mappings = m;
        b->maps++;
    }
    pthread_mutex_unlock(&fake_big);
    return good ? OK : INVALID_VALUE;
}
DRIVER(cuMemUnmap, (uint64_t address, size_t size), (address, size)) {
    int found = 0;
    pthread_mutex_lock(&fake_big);
    for (mapping **at = &mappings; *at;) {
        mapping *m = *at;
        if (m->address - address >= size) { at = &m->next; continue; }
        *at = m->next;
        blocks[m->block].maps--;
        if (fake_unmap_block) fake_unmap_block(m->address, m->size);
        settle(&blocks[m->block]);
        free(m);
        found++;
    }
    pthread_mutex_unlock(&fake_big);
    return found ? OK : INVALID_VALUE;
}
int fake_find_mapping(uint64_t address, uint64_t *start, uint64_t *bytes, int *card) {
    mapping *m = mappings;
    while (m && address - m->address >= m->size) m = m->next;
    if (!m) return 0;
    *start = m->address;
    *bytes = m->size;
    *card = blocks[m->block].card;
    return 1;
}
DRIVER(cuMemRetainAllocationHandle, (uint64_t *out, void *address), (out, address)) {
    int given = 0;
    pthread_mutex_lock(&fake_big);
    for (mapping *m = mappings; m && !given; m = m->next) {
        if ((uint64_t)address - m->address >= m->size) continue;
        for (int h = 1; h < 4096 && !given; h++)
            if (handles[h].refs && handles[h].block == m->block) {
                handles[given = h].refs++;
                blocks[m->block].handles++;
            }
        if (!given) given = fresh_handle(m->block);
    }
    pthread_mutex_unlock(&fake_big);
    *out = (uint64_t)given;
    return given ? OK : INVALID_VALUE;
}

/* Parts of sparse arrays that are mapped: of one array, known by the first number of the part. */
typedef struct { int32_t kind; uint64_t array; int32_t part_kind; uint64_t part[4]; int32_t operation, handle_kind; uint64_t handle, offset; uint32_t rest[4]; } part;
static struct { uint64_t array, where; int block; } tiles[256];
static void unmap_tile(int at) {
    blocks[tiles[at].block].maps--;
    settle(&blocks[tiles[at].block]);
    tiles[at].array = 0;
}
void fake_end_tiles(uint64_t array) {
    pthread_mutex_lock(&fake_big);
    for (int at = 0; at < 256; at++) if (tiles[at].array == array) unmap_tile(at);
    pthread_mutex_unlock(&fake_big);
}
static int map_parts(const part *p, unsigned count) {
    pthread_mutex_lock(&fake_big);
    for (; count; count--, p++) {
        int free = -1;
        for (int at = 255; at >= 0; at--) {
            if (tiles[at].array == p->array && tiles[at].where == p->part[0]) unmap_tile(at);
            if (!tiles[at].array) free = at;
        }
        if (p->operation != 1 || !p->handle || p->handle >= 4096 || !handles[p->handle].refs || free < 0) continue;
        tiles[free].array = p->array;
        tiles[free].where = p->part[0];
        tiles[free].block = handles[p->handle].block;
        blocks[tiles[free].block].maps++;
    }
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemMapArrayAsync, (const part *p, unsigned count, void *s), (p, count, s)) { (void)s; return map_parts(p, count); }
DRIVER(cuMemMapArrayAsync_ptsz, (const part *p, unsigned count, void *s), (p, count, s)) { (void)s; return map_parts(p, count); }
