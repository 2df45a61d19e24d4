/* libcuda.so.1: memory of other processes and of other interfaces. */
#include "fake.h"

typedef struct { uint64_t id; char rest[56]; } ipc;

DRIVER(cuMemGetAddressRange_v2, (uint64_t *base, size_t *size, uint64_t address), (base, size, address)) {
    pthread_mutex_lock(&fake_big);
    piece *p = fake_find(address);
    if (p && base) *base = p->address;
    if (p && size) *size = p->bytes;
    pthread_mutex_unlock(&fake_big);
    return p ? OK : INVALID_VALUE;
}
DRIVER(cuIpcGetMemHandle, (ipc *out, uint64_t address), (out, address)) {
    pthread_mutex_lock(&fake_big);
    piece *p = fake_find(address);
    int good = p && p->kind == LINEAR;
    if (good && !p->shared) p->shared = fake_share(p->card, p->charged);
    if (good) *out = (ipc){p->shared, "a handle"};
    pthread_mutex_unlock(&fake_big);
    return good ? OK : INVALID_VALUE;
}
/* One handle that is opened more than once has one address, and is closed as often. */
static struct { uint64_t id, address; int times; } opened[1024];
static int open_it(uint64_t *out, ipc from) {
    int at = 0, free = -1, card;
    uint64_t bytes;
    if (!fake_current()) return INVALID_CONTEXT;
    if (fake_join(from.id, &card, &bytes) || card != fake_current()->card) return INVALID_VALUE;
    pthread_mutex_lock(&fake_big);
    for (; at < 1024 && !(opened[at].times && opened[at].id == from.id); at++)
        if (!opened[at].times && free < 0) free = at;
    if (at == 1024) {
        piece *p = fake_piece(FOREIGN, card, bytes, 0);
        p->shared = from.id;
        opened[at = free].id = from.id;
        opened[at].address = p->address;
    }
    opened[at].times++;
    *out = opened[at].address;
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuIpcOpenMemHandle, (uint64_t *out, ipc from, unsigned flags), (out, from, flags)) { (void)flags; return open_it(out, from); }
DRIVER(cuIpcOpenMemHandle_v2, (uint64_t *out, ipc from, unsigned flags), (out, from, flags)) { (void)flags; return open_it(out, from); }
DRIVER(cuIpcCloseMemHandle, (uint64_t address), (address)) {
    piece *gone = NULL;
    int known = 0;
    pthread_mutex_lock(&fake_big);
    for (int at = 0; at < 1024; at++) {
        if (!opened[at].times || opened[at].address != address) continue;
        known = 1;
        if (!--opened[at].times) gone = fake_take(address);
    }
    pthread_mutex_unlock(&fake_big);
    if (gone) fake_drop(gone);
    return known ? OK : INVALID_VALUE;
}

/* Memory that another interface took: here it costs nothing. */
DRIVER(cuImportExternalMemory, (void **out, const void *how), (out, how)) { (void)how; return *out = (void *)open_it, OK; }
DRIVER(cuExternalMemoryGetMappedBuffer, (uint64_t *out, void *from, const uint64_t *how), (out, from, how)) {
    if (!from || !fake_current()) return INVALID_VALUE;
    pthread_mutex_lock(&fake_big);
    *out = fake_piece(LINEAR, fake_current()->card, how[1], 0)->address;   /* offset, size, flags */
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuDestroyExternalMemory, (void *gone), (gone)) { return gone ? OK : INVALID_VALUE; }
