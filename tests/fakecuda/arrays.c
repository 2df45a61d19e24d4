/* libcuda.so.1: arrays. Rows are padded to 64 bytes, planes to 8 lines, the whole to 64 KiB. */
#include "fake.h"

enum { LAYERED = 1, SPARSE = 0x40, DEFERRED = 0x80 };
typedef struct { uint64_t width, height, depth; int32_t format; uint32_t channels, flags; } array3d;
typedef struct { uint64_t width, height; int32_t format; uint32_t channels; } array2d;
typedef struct { uint32_t width, height; int32_t format; uint32_t channels; } array2d_old;
typedef struct { uint32_t width, height, depth; int32_t format; uint32_t channels, flags; } array3d_old;
typedef struct { uint64_t size, alignment; uint32_t reserved[4]; } requirements;

static uint64_t texel(const array3d *a) {
    switch (a->format) {
    case 0x01: case 0x08: return a->channels;
    case 0x02: case 0x09: case 0x10: return 2 * a->channels;
    case 0x03: case 0x0a: case 0x20: return 4 * a->channels;
    default: return 0;
    }
}
static uint64_t of_level(const array3d *a, unsigned level) {
    uint64_t w = a->width >> level, h = a->height >> level, d = a->flags & LAYERED ? a->depth : a->depth >> level;
    uint64_t row = ((w ? w : 1) * texel(a) + 63) / 64 * 64;
    h = h ? h : 1;
    return row * (h > 1 ? (h + 7) / 8 * 8 : 1) * (d ? d : 1);
}
static uint64_t size_of(const array3d *a, unsigned levels) {
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels; level++) sum += of_level(a, level);
    return (sum + 65535) / 65536 * 65536;
}
static int make(uint64_t *out, const array3d *a, unsigned levels) {
    context *c = fake_current();
    if (!c) return fake_ready() ? NOT_INITIALIZED : INVALID_CONTEXT;
    if (!out || !a || !a->width || !texel(a) || !levels || a->channels > 4) return INVALID_VALUE;
    if (a->width > 1 << 20 || a->height > 1 << 20 || a->depth > 1 << 20) return INVALID_VALUE;
    uint64_t size = size_of(a, levels), takes = a->flags & (SPARSE | DEFERRED) ? 0 : size;
    if (takes && fake_charge(c->card, takes)) return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_big);
    piece *p = fake_piece(ARRAY, c->card, a->flags & DEFERRED ? size : 0, takes);
    *out = p->address;
    pthread_mutex_unlock(&fake_big);
    return OK;
}
static int destroy(uint64_t handle) {
    pthread_mutex_lock(&fake_big);
    piece *p = fake_take(handle);
    if (p && p->kind != ARRAY) { fake_give(p); p = NULL; }
    pthread_mutex_unlock(&fake_big);
    if (!p) return INVALID_HANDLE;
    fake_end_tiles(handle);
    if (p->charged) fake_release(p->card, p->charged);
    return free(p), OK;
}
/* Only of those whose memory is mapped later, as the manual says. */
static int measure(requirements *out, uint64_t handle) {
    pthread_mutex_lock(&fake_big);
    piece *p = fake_take(handle);
    if (p) fake_give(p);
    pthread_mutex_unlock(&fake_big);
    if (!p || p->kind != ARRAY || !p->bytes) return INVALID_VALUE;
    return *out = (requirements){p->bytes, 65536, {0}}, OK;
}
static array3d flat(uint64_t width, uint64_t height, int format, unsigned channels) {
    return (array3d){width, height, 0, format, channels, 0};
}
DRIVER(cuArray3DCreate_v2, (uint64_t *out, const array3d *a), (out, a)) { return make(out, a, 1); }
DRIVER(cuArrayCreate_v2, (uint64_t *out, const array2d *a), (out, a)) {
    if (!a) return INVALID_VALUE;
    array3d whole = flat(a->width, a->height, a->format, a->channels);
    return make(out, &whole, 1);
}
DRIVER(cuArrayCreate, (uint64_t *out, const array2d_old *a), (out, a)) {
    array3d whole = flat(a->width, a->height, a->format, a->channels);
    return make(out, &whole, 1);
}
DRIVER(cuArray3DCreate, (uint64_t *out, const array3d_old *a), (out, a)) {
    array3d whole = {a->width, a->height, a->depth, a->format, a->channels, a->flags};
    return make(out, &whole, 1);
}
DRIVER(cuMipmappedArrayCreate, (uint64_t *out, const array3d *a, unsigned levels), (out, a, levels)) { return make(out, a, levels); }
DRIVER(cuArrayDestroy, (uint64_t handle), (handle)) { return destroy(handle); }
DRIVER(cuMipmappedArrayDestroy, (uint64_t handle), (handle)) { return destroy(handle); }
DRIVER(cuArrayGetMemoryRequirements, (requirements *out, uint64_t handle, int device), (out, handle, device)) {
    (void)device;
    return getenv("FAKE_CUDA_OLD") ? INVALID_VALUE : measure(out, handle);
}
DRIVER(cuMipmappedArrayGetMemoryRequirements, (requirements *out, uint64_t handle, int device), (out, handle, device)) {
    (void)device;
    return getenv("FAKE_CUDA_OLD") ? INVALID_VALUE : measure(out, handle);
}
