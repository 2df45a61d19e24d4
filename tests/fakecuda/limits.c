/* libcuda.so.1: limits of a context that take device memory. FAKE_CUDA_HEAP_AT=module: the heap is taken when the next
   module is loaded, as NVIDIA's programming guide has it, and not by the call. */
#include "fake.h"

enum { STACK, FIFO, HEAP, DEPTH, LAUNCHES, LIMITS, UNSUPPORTED = 215 };
static const uint64_t usual[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048};

static context *whole(void) {
    context *c = fake_current();
    return c && c->primary ? c->primary : c;
}
uint64_t fake_threads(int at) { return (uint64_t)fake_state()->card[at].processors * fake_state()->card[at].threads; }
static uint64_t cost(const context *c, int which, uint64_t value) {
    if (which == STACK) return value * fake_threads(c->card);
    return which == DEPTH ? value << 27 : which == LAUNCHES ? value << 10 : value;
}
static uint64_t *limit_of(context *c, int which) {
    if (!c->limit[which]) c->limit[which] = usual[which];
    return &c->limit[which];
}
int fake_take_more(context *c, int64_t bytes) {   /* charged to a context, until it ends */
    int status = bytes > 0 ? fake_charge(c->card, GRAINS((uint64_t)bytes)) : OK;
    if (status) return status;
    if (bytes < 0) fake_release(c->card, GRAINS((uint64_t)-bytes));
    c->more += bytes > 0 ? GRAINS((uint64_t)bytes) : -GRAINS((uint64_t)-bytes);
    return OK;
}
int fake_take_heap(context *c) {
    int status = fake_take_more(c, (int64_t)c->heap);
    if (!status) c->heap = 0;
    return status;
}
DRIVER(cuCtxGetLimit, (size_t *value, int which), (value, which)) {
    if (!whole()) return fake_ready() ? NOT_INITIALIZED : INVALID_CONTEXT;
    if (which < 0 || which > 6 || !value) return which < 0 || !value ? INVALID_VALUE : UNSUPPORTED;
    return *value = which < LIMITS ? *limit_of(whole(), which) : 0, OK;
}
DRIVER(cuCtxSetLimit, (int which, size_t value), (which, value)) {
    const char *when = getenv("FAKE_CUDA_HEAP_AT");
    context *c = whole();
    if (!c) return fake_ready() ? NOT_INITIALIZED : INVALID_CONTEXT;
    if (which < 0 || which > 6) return which < 0 ? INVALID_VALUE : UNSUPPORTED;
    if (which >= LIMITS) return OK;
    if (value > (uint64_t)1 << 50) return INVALID_VALUE;
    uint64_t *old = limit_of(c, which);
    int64_t more = (int64_t)(cost(c, which, value) - cost(c, which, *old));
    int later = which == HEAP && when && !strcmp(when, "module");
    if (later) c->heap = (uint64_t)((int64_t)c->heap + more);
    int status = later ? OK : fake_take_more(c, more);
    if (!status) *old = value;
    return status;
}
