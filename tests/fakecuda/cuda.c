/* libcuda.so.1: start, devices, contexts, streams. */
#include "fake.h"

pthread_mutex_t fake_big = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static uint32_t started;   /* a fork's child cannot use the driver */
static int visible[MAX_CARDS], devices;
static context primary[MAX_CARDS], *contexts;
static int with_context[MAX_CARDS];
static __thread context *stack[32];
static __thread int depth;
static piece *pieces;
void (*fake_tool)(const char *call);
__thread int fake_in_tool;
__attribute__((visibility("default"))) void fake_subscribe(void (*tool)(const char *call)) { fake_tool = tool; }

/* FAKE_CUDA_CLOSED: the cards whose device nodes the process cannot open, such as 0,2. The driver does not count them. */
static int is_closed(uint32_t card) {
    const char *list = getenv("FAKE_CUDA_CLOSED");
    for (; list && *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
        if ((uint32_t)strtoul(list, NULL, 10) == card) return 1;
    return 0;
}
static int is_counted(uint32_t card) {
    state *s = fake_state();
    return card < s->cards && !s->card[card].mig && !is_closed(card);
}
/* The card that a number of the list means. */
static int numbered(long number) {
    for (uint32_t i = 0; number >= 0 && i < fake_state()->cards; i++)
        if (!is_closed(i) && !number--) return (int)i;
    return -1;
}

static void see(const char *word, size_t length) {
    char *end, text[48];
    state *s = fake_state();
    long number = strtol(word, &end, 10);
    int card = (size_t)(end - word) == length && length ? numbered(number) : -1;
    for (uint32_t i = 0; card < 0 && i < s->cards; i++) {
        fake_uuid_text(s->card[i].uuid, text);
        if (length > 4 && !strncmp(text, word, length)) card = (int)i;
    }
    if (card < 0 || !is_counted((uint32_t)card) || s->card[card].gone) devices |= 0x1000;   /* what follows an unknown one is not seen */
    else if (!(devices & 0x1000)) visible[devices++] = card;
}

DRIVER(cuInit, (unsigned flags), (flags)) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    state *s = fake_state();
    if (!s || flags) return s ? INVALID_VALUE : NO_DEVICE;
    pthread_mutex_lock(&fake_big);
    if (!started) {
        for (uint32_t i = 0; !list && i < s->cards; i++)
            if (is_counted(i) && !s->card[i].parent) visible[devices++] = (int)i;
        for (; list && *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
            see(list, strcspn(list, ","));
        devices &= 0xfff;
        if (devices && s->card[visible[0]].parent) devices = 1;   /* a process has one instance */
        started = fake_pid();
    }
    pthread_mutex_unlock(&fake_big);
    return started != fake_pid() ? NOT_INITIALIZED : devices ? OK : NO_DEVICE;
}

int fake_ready(void) { return started && started == fake_pid() ? OK : NOT_INITIALIZED; }
int fake_card(int device) { return device >= 0 && device < devices ? visible[device] : -1; }

/* FAKE_CUDA_API: the version of CUDA that the driver is of; what came later is not answered. */
int fake_api(void) {
    const char *text = getenv("FAKE_CUDA_API");
    return text ? atoi(text) : 13050;
}
DRIVER(cuDriverGetVersion, (int *version), (version)) { return version ? (*version = fake_api(), OK) : INVALID_VALUE; }
DRIVER(cuDeviceGetCount, (int *count), (count)) { return fake_ready() ? NOT_INITIALIZED : (*count = devices, OK); }
DRIVER(cuDeviceGet, (int *device, int ordinal), (device, ordinal)) {
    if (fake_ready()) return NOT_INITIALIZED;
    return fake_card(ordinal) < 0 ? INVALID_DEVICE : (*device = ordinal, OK);
}
DRIVER(cuDeviceGetName, (char *name, int room, int device), (name, room, device)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    snprintf(name, (size_t)room, "%s", fake_state()->card[fake_card(device)].name);
    return OK;
}
DRIVER(cuDeviceGetUuid, (uint8_t *uuid, int device), (uuid, device)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    card *c = &fake_state()->card[fake_card(device)];
    memcpy(uuid, c->parent ? fake_state()->card[c->parent - 1].uuid : c->uuid, 16);
    return OK;
}
DRIVER(cuDeviceGetUuid_v2, (uint8_t *uuid, int device), (uuid, device)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    memcpy(uuid, fake_state()->card[fake_card(device)].uuid, 16);
    return OK;
}
DRIVER(cuDeviceTotalMem_v2, (size_t *bytes, int device), (bytes, device)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    card *c = &fake_state()->card[fake_card(device)];
    return bytes ? (*bytes = c->total - c->reserved, OK) : INVALID_VALUE;
}
DRIVER(cuDeviceGetAttribute, (int *value, int which, int device), (value, which, device)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    card *c = &fake_state()->card[fake_card(device)];
    uint32_t own = which == 16 ? c->processors : which == 39 ? c->threads : 0;
    if (own) return *value = (int)own, OK;
    return fake_property ? fake_property(fake_card(device), which, value) : INVALID_VALUE;
}
DRIVER(cuGetErrorString, (int error, const char **text), (error, text)) {
    *text = error == OK ? "no error" : error == OUT_OF_MEMORY ? "out of memory" : "another error";
    return OK;
}
DRIVER(cuGetErrorName, (int error, const char **text), (error, text)) {
    *text = error == OK ? "CUDA_SUCCESS" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return OK;
}
DRIVER(cuGetExportTable, (const void **table, const void *id), (table, id)) { (void)id; *table = NULL; return NOT_FOUND; }

/* The first context of a process on a card costs memory there, the last to go gives it back. */
static int enter(context *c) {
    if (with_context[c->card]++) return OK;
    int status = fake_charge(c->card, fake_state()->card[c->card].context);
    if (status) with_context[c->card]--;
    return status;
}
static void leave(context *c) {
    for (piece **at = &pieces; *at;) {
        piece *p = *at;
        if (p->owner != c || p->kind == ASYNC || p->kind == GRAPH) { at = &p->next; continue; }
        *at = p->next;
        fake_drop(p);
    }
    if (c->more) fake_release(c->card, c->more);
    if (fake_forget_code) fake_forget_code(c);
    c->more = c->heap = c->local = 0;
    memset(c->limit, 0, sizeof c->limit);
    if (!--with_context[c->card]) fake_release(c->card, fake_state()->card[c->card].context);
}

context *fake_current(void) { return depth && !fake_ready() ? stack[depth - 1] : NULL; }

DRIVER(cuDevicePrimaryCtxRetain, (context **out, int device), (out, device)) {
    int card = fake_card(device), status = fake_ready();
    if (status || card < 0) return status ? status : INVALID_DEVICE;
    pthread_mutex_lock(&fake_big);
    context *c = &primary[card];
    c->card = card;
    status = c->refs ? OK : enter(c);
    if (!status) { c->refs++; *out = c; }
    pthread_mutex_unlock(&fake_big);
    return status;
}
static int drop_primary(int device, int all) {
    int card = fake_card(device);
    if (card < 0) return INVALID_DEVICE;
    pthread_mutex_lock(&fake_big);
    context *c = &primary[card];
    int had = c->refs;
    if (had) {
        c->refs = all ? 0 : had - 1;
        if (!c->refs) leave(c);
    }
    pthread_mutex_unlock(&fake_big);
    return had || all ? OK : INVALID_CONTEXT;
}
DRIVER(cuDevicePrimaryCtxRelease_v2, (int device), (device)) { return drop_primary(device, 0); }
DRIVER(cuDevicePrimaryCtxReset_v2, (int device), (device)) { return drop_primary(device, 1); }
DRIVER(cuDevicePrimaryCtxRelease, (int device), (device)) { return drop_primary(device, 0); }
DRIVER(cuDevicePrimaryCtxReset, (int device), (device)) { return drop_primary(device, 1); }
DRIVER(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), (device, flags, active)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    *flags = 0;
    return *active = primary[fake_card(device)].refs > 0, OK;
}
enum { ENDED = -1 };
/* A green context is a part of its device: memory that is taken in it is the primary context's. */
DRIVER(cuGreenCtxCreate, (context **out, void *resources, int device, unsigned flags), (out, resources, device, flags)) {
    context *whole;
    (void)resources; (void)flags;
    int status = in_cuDevicePrimaryCtxRetain(&whole, device);
    if (status) return status;
    *out = calloc(1, sizeof **out);
    (*out)->card = whole->card;
    (*out)->primary = whole;
    (*out)->refs = device;
    return OK;
}
DRIVER(cuCtxFromGreenCtx, (context **out, context *green), (out, green)) { return *out = green, OK; }
DRIVER(cuGreenCtxDestroy, (context *green), (green)) {
    if (depth && stack[depth - 1] == green) depth--;
    int status = drop_primary(green->refs, 0);
    green->card = ENDED;   /* not freed: a program that enters it is ended, where a driver would use freed memory */
    return status;
}
DRIVER(cuCtxCreate_v2, (context **out, unsigned flags, int device), (out, flags, device)) {
    int card = fake_card(device), status = fake_ready();
    (void)flags;
    if (status || card < 0) return status ? status : INVALID_DEVICE;
    context *c = calloc(1, sizeof *c);
    c->card = card;
    pthread_mutex_lock(&fake_big);
    if (!(status = enter(c))) {
        c->next = contexts;
        contexts = c;
        stack[depth++] = *out = c;
    }
    pthread_mutex_unlock(&fake_big);
    return status;
}
DRIVER(cuCtxCreate, (context **out, unsigned flags, int device), (out, flags, device)) { return in_cuCtxCreate_v2(out, flags, device); }
DRIVER(cuGLCtxCreate, (context **out, unsigned flags, int device), (out, flags, device)) { return in_cuCtxCreate_v2(out, flags, device); }
DRIVER(cuGLCtxCreate_v2, (context **out, unsigned flags, int device), (out, flags, device)) { return in_cuCtxCreate_v2(out, flags, device); }
DRIVER(cuVDPAUCtxCreate_v2, (context **out, unsigned flags, int device, uint32_t display, void *look_up), (out, flags, device, display, look_up)) {
    return display != 7 || look_up != (void *)8 ? INVALID_VALUE : in_cuCtxCreate_v2(out, flags, device);
}
DRIVER(cuVDPAUCtxCreate, (context **out, unsigned flags, int device, uint32_t display, void *look_up), (out, flags, device, display, look_up)) {
    return in_cuVDPAUCtxCreate_v2(out, flags, device, display, look_up);
}
DRIVER(cuCtxCreate_v3, (context **out, void *affinity, int count, unsigned flags, int device), (out, affinity, count, flags, device)) {
    return affinity || count ? INVALID_VALUE : in_cuCtxCreate_v2(out, flags, device);
}
DRIVER(cuCtxCreate_v4, (context **out, void *how, unsigned flags, int device), (out, how, flags, device)) {
    return how ? INVALID_VALUE : in_cuCtxCreate_v2(out, flags, device);
}
DRIVER(cuCtxDestroy_v2, (context *c), (c)) {
    pthread_mutex_lock(&fake_big);
    context **at = &contexts;
    while (*at && *at != c) at = &(*at)->next;
    int known = *at != NULL;
    if (known) { *at = c->next; leave(c); }
    pthread_mutex_unlock(&fake_big);
    if (depth && stack[depth - 1] == c) depth--;
    return known ? OK : INVALID_CONTEXT;
}
DRIVER(cuCtxDestroy, (context *c), (c)) { return in_cuCtxDestroy_v2(c); }
/* The oldest way: whoever attaches leaves again, and the last to leave ends it. */
DRIVER(cuCtxAttach, (context **c, unsigned flags), (c, flags)) {
    (void)flags;
    if (!(*c = fake_current())) return INVALID_CONTEXT;
    return (*c)->refs++, OK;
}
DRIVER(cuCtxDetach, (context *c), (c)) {
    if (c != fake_current()) return INVALID_CONTEXT;
    return c->refs ? (c->refs--, OK) : in_cuCtxDestroy_v2(c);
}
DRIVER(cuCtxSetCurrent, (context *c), (c)) {
    if (fake_ready()) return NOT_INITIALIZED;
    depth = c ? (stack[depth ? depth - 1 : 0] = c, depth ? depth : 1) : depth ? depth - 1 : 0;
    return OK;
}
DRIVER(cuCtxGetCurrent, (context **c), (c)) { return fake_ready() ? NOT_INITIALIZED : (*c = fake_current(), OK); }
DRIVER(cuCtxPushCurrent_v2, (context *c), (c)) {
    if (c && c->card == ENDED) abort();
    return c && depth < 32 ? (stack[depth++] = c, OK) : INVALID_CONTEXT;
}
DRIVER(cuCtxPopCurrent_v2, (context **c), (c)) { return depth ? (*c = stack[--depth], OK) : INVALID_CONTEXT; }
DRIVER(cuCtxGetDevice, (int *device), (device)) {
    if (fake_ready()) return NOT_INITIALIZED;
    if (!fake_current()) return INVALID_CONTEXT;
    for (*device = 0; visible[*device] != fake_current()->card; ++*device) ;
    return OK;
}
DRIVER(cuCtxSynchronize, (void), ()) { return fake_current() ? (fake_wait_all(), fake_sync_pools(fake_current()->card), fake_graphs_rest(NULL), OK) : INVALID_CONTEXT; }
DRIVER(cuCtxSynchronize_v2, (context *c), (c)) { return c ? (fake_sync_pools(c->card), fake_graphs_rest(NULL), OK) : INVALID_CONTEXT; }
DRIVER(cuEventSynchronize, (void *event), (event)) { (void)event; return in_cuCtxSynchronize(); }

uint64_t fake_address(uint64_t bytes) {
    static uint64_t next = 0x700000000000;
    if (fake_open_memory) return fake_open_memory(bytes);
    return __atomic_fetch_add(&next, GRAINS(bytes) + GRAIN, __ATOMIC_RELAXED);
}
/* Under fake_big. */
piece *fake_piece(int kind, int card, uint64_t bytes, uint64_t charged) {
    context *c = fake_current();
    piece *p = calloc(1, sizeof *p), made = {fake_address(bytes), bytes, charged, 0, kind, card, c, NULL, NULL, pieces};
    *p = made;
    if (c && c->primary) p->owner = c->primary;
    return pieces = p;
}
/* Chunks that small allocations of one card share. A chunk is filled from its beginning, and is free with its last one. */
typedef struct chunk { uint64_t base, top; int card, live; struct chunk *next; } chunk;
static chunk *chunks;
piece *fake_small_piece(int kind, int card, uint64_t bytes) {
    uint64_t size = (bytes + 511) / 512 * 512;
    chunk *c = chunks;
    while (c && (c->card != card || c->top + size > GRAIN)) c = c->next;
    if (!c) {
        if (fake_charge(card, GRAIN)) return NULL;
        c = calloc(1, sizeof *c);
        *c = (chunk){fake_address(GRAIN), 0, card, 0, chunks};
        chunks = c;
    }
    context *here = fake_current();
    piece *p = calloc(1, sizeof *p);
    *p = (piece){.address = c->base + c->top, .bytes = bytes, .kind = kind, .card = card, .chunk = c, .next = pieces};
    p->owner = here && here->primary ? here->primary : here;
    c->top += size;
    c->live++;
    return pieces = p;
}
static void leave_chunk(chunk *c) {
    if (!c || --c->live) return;
    for (chunk **at = &chunks; *at; at = &(*at)->next)
        if (*at == c) { *at = c->next; break; }
    fake_release(c->card, GRAIN);
    if (fake_close_memory) fake_close_memory(c->base, GRAIN);
    free(c);
}
int fake_evict(int card, uint64_t bytes) {
    uint64_t gone = 0;
    pthread_mutex_lock(&fake_big);
    for (piece *p = pieces; p && gone < bytes; p = p->next) {
        uint64_t part = p->kind == MANAGED && p->card == card ? p->charged : 0;
        if (part > bytes - gone) part = GRAINS(bytes - gone);
        p->charged -= part;
        gone += part;
    }
    if (gone) fake_release(card, gone);
    pthread_mutex_unlock(&fake_big);
    return gone != 0;
}
void fake_drop(piece *p) {
    if (p->chunk) { leave_chunk(p->chunk); free(p); return; }
    if (p->shared) fake_part(p->shared);
    else if (p->charged) fake_release(p->card, p->charged);
    if (fake_close_memory) fake_close_memory(p->address, p->bytes);
    free(p);
}
piece *fake_find(uint64_t address) {
    piece *p = pieces;
    while (p && address - p->address >= p->bytes) p = p->next;
    return p;
}
piece *fake_take(uint64_t address) {
    for (piece **at = &pieces; *at; at = &(*at)->next) {
        piece *p = *at;
        if (p->address != address) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}
void fake_give(piece *taken) {
    taken->next = pieces;
    pieces = taken;
}
