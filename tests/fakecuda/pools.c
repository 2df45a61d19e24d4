/* libcuda.so.1: streams with a state of capture, and pools that keep what is freed up to a threshold. */
#include "fake.h"

typedef struct pool { int card, gone, managed, where, id; uint64_t threshold, reserved, used, reserved_high, used_high; struct pool *next; } pool;
static pool standard[MAX_CARDS], local[MAX_CARDS], managed[MAX_CARDS], of_host = {.card = -1}, *current[MAX_CARDS], *current_managed[MAX_CARDS], *pools;
static __thread int own_capturing;   /* of the thread's own stream 0 */

static stream *stream_of(stream *s, stream *zero, int own) {
    if (s && s != (stream *)1 && s != (stream *)2) return s;
    zero->at = fake_current();
    zero->capturing = (own || s == (stream *)2) && own_capturing;
    return zero;
}
int fake_is_capturing(stream *s, int own) {
    stream zero = {0};
    return stream_of(s, &zero, own)->capturing;
}
DRIVER(cuStreamCreate, (stream **out, unsigned flags), (out, flags)) {
    (void)flags;
    if (!fake_current()) return INVALID_CONTEXT;
    *out = calloc(1, sizeof **out);
    (*out)->at = fake_current();
    return OK;
}
DRIVER(cuStreamDestroy_v2, (stream *s), (s)) { return s ? (free(s), OK) : INVALID_HANDLE; }
DRIVER(cuStreamDestroy, (stream *s), (s)) { return s ? (free(s), OK) : INVALID_HANDLE; }
#define STREAMS(SUFFIX, OWN)                                                                              \
    DRIVER(cuStreamIsCapturing##SUFFIX, (stream *s, int *how), (s, how)) {                                \
        stream zero;                                                                                      \
        return *how = stream_of(s, &zero, OWN)->capturing, OK;                                            \
    }                                                                                                     \
    DRIVER(cuStreamGetCtx##SUFFIX, (stream *s, context **at), (s, at)) {                                  \
        stream zero;                                                                                      \
        return (*at = stream_of(s, &zero, OWN)->at) ? OK : INVALID_CONTEXT;                               \
    }                                                                                                     \
    DRIVER(cuStreamBeginCapture_v2##SUFFIX, (stream *s, int mode), (s, mode)) {                           \
        (void)mode;                                                                                       \
        if ((!s && !OWN) || s == (stream *)1) return CAPTURE_UNSUPPORTED;                                 \
        fake_begin_capture();                                                                             \
        return !s || s == (stream *)2 ? (own_capturing = 1, OK) : (s->capturing = 1, OK);                 \
    }                                                                                                     \
    DRIVER(cuStreamEndCapture##SUFFIX, (stream *s, void **graph), (s, graph)) {                           \
        *graph = fake_end_capture();                                                                      \
        return !s || s == (stream *)2 ? (own_capturing = 0, OK) : (s->capturing = 0, OK);                 \
    }                                                                                                     \
    DRIVER(cuStreamSynchronize##SUFFIX, (stream *s), (s)) {                                               \
        stream zero;                                                                                      \
        if (!stream_of(s, &zero, OWN)->at) return INVALID_CONTEXT;                                        \
        if (stream_of(s, &zero, OWN)->capturing) return CAPTURE_UNSUPPORTED;                              \
        fake_wait(s);                                                                                     \
        fake_graphs_rest(s ? s : (stream *)1);                                                            \
        return fake_sync_pools(stream_of(s, &zero, OWN)->at->card), OK;                                   \
    }
STREAMS(, 0)
STREAMS(_ptsz, 1)

/* A pool grows, and shrinks, in steps of FAKE_CUDA_POOL_STEP bytes. */
static uint64_t in_steps(uint64_t bytes) {
    const char *text = getenv("FAKE_CUDA_POOL_STEP");
    uint64_t step = text ? strtoull(text, NULL, 10) : GRAIN;
    return (bytes + step - 1) / step * step;
}
static void shrink(pool *p, uint64_t keep) {
    uint64_t to = p->used > keep ? p->used : keep;
    if (to >= p->reserved || (to = in_steps(to)) >= p->reserved) return;
    if (p->card >= 0) fake_release(p->card, p->reserved - to);
    p->reserved = to;
}
void fake_sync_pools(int card) {
    pthread_mutex_lock(&fake_big);
    shrink(&standard[card], standard[card].threshold);
    shrink(&managed[card], managed[card].threshold);
    for (pool *p = pools; p; p = p->next)
        if (p->card == card) shrink(p, p->threshold);
    pthread_mutex_unlock(&fake_big);
}
DRIVER(cuDeviceGetDefaultMemPool, (pool **out, int device), (out, device)) {
    int card = fake_card(device);
    if (card < 0) return INVALID_DEVICE;
    standard[card].card = card;
    return *out = &standard[card], OK;
}
DRIVER(cuDeviceGetMemPool, (pool **out, int device), (out, device)) {
    int status = in_cuDeviceGetDefaultMemPool(out, device);
    if (!status && current[fake_card(device)]) *out = current[fake_card(device)];
    return status;
}
DRIVER(cuDeviceSetMemPool, (int device, pool *p), (device, p)) {
    return fake_card(device) < 0 ? INVALID_DEVICE : (current[fake_card(device)] = p, OK);
}
DRIVER(cuMemSetMemPool, (const int32_t *location, int kind, pool *p), (location, kind, p)) {
    int card = location[0] == 1 ? fake_card(location[1]) : fake_current() ? fake_current()->card : 0;
    if (card < 0) return INVALID_DEVICE;
    if (kind == 2) return current_managed[card] = p, OK;
    return location[0] != 1 || kind != 1 ? INVALID_VALUE : in_cuDeviceSetMemPool(location[1], p);
}
/* Of a card, or of a locality domain of one: the second byte says which. */
static int card_at(const int32_t *location) { return fake_card(location[0] == 6 ? location[1] & 0xff : location[1]); }
DRIVER(cuMemGetDefaultMemPool, (pool **out, const int32_t *location, int kind), (out, location, kind)) {
    int card = card_at(location);
    if (fake_api() < 13000) return NOT_FOUND;
    if (kind == 1 && (location[0] == 2 || location[0] == 3)) return *out = &of_host, OK;
    if (kind == 2 && location[0] != 6) {   /* managed memory may have no preferred location */
        card = location[0] == 1 ? card : fake_current() ? fake_current()->card : 0;
        if (card < 0) return INVALID_DEVICE;
        managed[card] = (pool){.card = card, .managed = 1, .where = location[0], .id = location[1], .threshold = managed[card].threshold,
                               .reserved = managed[card].reserved, .used = managed[card].used};
        return *out = &managed[card], OK;
    }
    if (kind != 1 || card < 0 || (location[0] != 1 && location[0] != 6)) return INVALID_VALUE;
    if (location[0] == 1) return in_cuDeviceGetDefaultMemPool(out, location[1]);
    local[card].card = card;
    return *out = &local[card], OK;
}
/* The pool that was set there, or the default pool. */
DRIVER(cuMemGetMemPool, (pool **out, const int32_t *location, int kind), (out, location, kind)) {
    int status = in_cuMemGetDefaultMemPool(out, location, kind);
    if (status || *out == &of_host || location[0] == 6) return status;
    pool **set = kind == 2 ? current_managed : current;
    if (set[(*out)->card]) *out = set[(*out)->card];
    return OK;
}
DRIVER(cuMemPoolCreate, (pool **out, const int32_t *properties), (out, properties)) {
    int here = properties[2] == 1 || properties[2] == 6;   /* as in cuMemCreate: type, handle types, location; others are the host's */
    int card = here ? card_at(properties + 2) : -1, is_managed = properties[0] == 2;
    if (is_managed && !here) card = fake_current() ? fake_current()->card : 0;   /* it moves to a card when it is used there */
    if (here && card < 0) return INVALID_DEVICE;
    *out = calloc(1, sizeof **out);
    **out = (pool){.card = card, .managed = is_managed, .where = properties[2], .id = properties[3]};
    pthread_mutex_lock(&fake_big);
    (*out)->next = pools;
    pools = *out;
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemPoolDestroy, (pool *gone), (gone)) {
    pthread_mutex_lock(&fake_big);
    for (pool **at = &pools; *at; at = &(*at)->next)
        if (*at == gone) { *at = gone->next; break; }
    for (int i = 0; i < MAX_CARDS; i++) { if (current[i] == gone) current[i] = NULL; if (current_managed[i] == gone) current_managed[i] = NULL; }
    gone->threshold = 0;
    gone->gone = 1;
    shrink(gone, 0);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
DRIVER(cuMemPoolTrimTo, (pool *p, size_t keep), (p, keep)) {
    pthread_mutex_lock(&fake_big);
    shrink(p, keep);
    pthread_mutex_unlock(&fake_big);
    return OK;
}
static uint64_t *attribute(pool *p, int which) {
    uint64_t *known[] = {&p->threshold, &p->reserved, &p->reserved_high, &p->used, &p->used_high};
    return which >= 4 && which <= 8 ? known[which - 4] : NULL;
}
DRIVER(cuMemPoolGetAttribute, (pool *p, int which, uint64_t *value), (p, which, value)) {
    uint64_t *from = attribute(p, which);
    int device = 0;
    if (which > 4 && fake_api() < 11030) return INVALID_VALUE;
    if (which > 8 && fake_api() < 13020) return INVALID_VALUE;
    if (p->managed && which >= 9 && which <= 12)   /* allocation type, handle types, id and type of its location */
        return *(int *)value = which == 9 ? 2 : which == 10 ? 0 : which == 11 ? p->id : p->where, OK;
    if (p->managed && which == 5) return *value = 0, OK;   /* the driver backs it when it is used */
    if (p >= local && p < local + MAX_CARDS && (which == 11 || which == 12)) {   /* id and type of its location */
        while (fake_card(device) != p->card) device++;
        return *(int *)value = which == 11 ? device : 6, OK;
    }
    if (which >= 1 && which <= 3) return *(int *)value = 1, OK;
    return from ? (*value = *from, OK) : INVALID_VALUE;
}
DRIVER(cuMemPoolSetAttribute, (pool *p, int which, uint64_t *value), (p, which, value)) {
    if (which >= 1 && which <= 3) return OK;   /* how memory is used again */
    if (which == 4) return p->threshold = *value, OK;
    if ((which != 6 && which != 8) || *value) return INVALID_VALUE;
    return *attribute(p, which) = *attribute(p, which - 1), OK;   /* a high mark starts again from what is there */
}

static int grow(pool *p, uint64_t size) {
    uint64_t need;
    if (size > (uint64_t)1 << 50) return OUT_OF_MEMORY;
    need = p->used + size > p->reserved ? in_steps(p->used + size - p->reserved) : 0;
    if (need && p->card >= 0 && fake_charge(p->card, need)) return OUT_OF_MEMORY;
    p->reserved += need;
    p->used += size;
    if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
    if (p->used > p->used_high) p->used_high = p->used;
    return OK;
}
static int take(uint64_t *address, uint64_t size, pool *from, stream *s, int own) {
    stream zero, *on = stream_of(s, &zero, own);
    pool *p = from;
    if (!on->at) return INVALID_CONTEXT;
    if (!address || !size) return INVALID_VALUE;
    if (!p) p = current[on->at->card] ? current[on->at->card] : &standard[on->at->card];
    if (!from) p->card = on->at->card;
    pthread_mutex_lock(&fake_big);
    int status = on->capturing ? OK : grow(p, size);
    if (!status) {
        piece *made = fake_piece(on->capturing ? GRAPH : ASYNC, p->card, size, 0);
        made->pool = p;
        *address = made->address;
        if (on->capturing) fake_capture_node(10, *address, size, p->card);
    }
    pthread_mutex_unlock(&fake_big);
    return status;
}
int fake_free_async(piece *freed) {
    pthread_mutex_lock(&fake_big);
    pool *p = freed->pool;
    p->used -= freed->bytes;
    if (p->gone || p->managed) shrink(p, 0);   /* managed memory is backed while it is used */
    pthread_mutex_unlock(&fake_big);
    if (fake_close_memory) fake_close_memory(freed->address, freed->bytes);
    free(freed);
    return OK;
}
static int give(uint64_t address, stream *s, int own) {
    if (fake_is_capturing(s, own)) return fake_capture_node(11, address, 0, 0), OK;
    return fake_free(address);
}
DRIVER(cuMemAllocAsync, (uint64_t *address, size_t size, stream *s), (address, size, s)) { return take(address, size, NULL, s, 0); }
DRIVER(cuMemAllocAsync_ptsz, (uint64_t *address, size_t size, stream *s), (address, size, s)) { return take(address, size, NULL, s, 1); }
DRIVER(cuMemAllocFromPoolAsync, (uint64_t *address, size_t size, pool *p, stream *s), (address, size, p, s)) { return p ? take(address, size, p, s, 0) : INVALID_VALUE; }
DRIVER(cuMemAllocFromPoolAsync_ptsz, (uint64_t *address, size_t size, pool *p, stream *s), (address, size, p, s)) { return p ? take(address, size, p, s, 1) : INVALID_VALUE; }
DRIVER(cuMemFreeAsync, (uint64_t address, stream *s), (address, s)) { return give(address, s, 0); }
DRIVER(cuMemFreeAsync_ptsz, (uint64_t address, stream *s), (address, s)) { return give(address, s, 1); }
