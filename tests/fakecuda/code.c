/* libcuda.so.1: modules and libraries that take memory. The driver for frameworks has its own (full/code.c).

   An image is a text: each "global BYTES" is a variable, each "local BYTES" the local memory of a thread of its kernels.
   CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2: variables are loaded by the first look-up in a module, or the
   first launch of a kernel of a library. The local memory of the largest kernel is taken by its first launch. */
#ifndef FAKE_FULL
#include "fake.h"

typedef struct image { uint64_t bytes, local; context *in[16]; int is_library; struct image *next; } image;
typedef struct kernel { image *of; int is_kernel; uint64_t duration; struct kernel *next; } kernel;   /* or a function */
static image *images;
static kernel *kernels;

static int is_lazy(void) {
    const char *text = getenv("CUDA_MODULE_LOADING");
    return text ? !strcmp(text, "LAZY") : fake_api() >= 12020;
}
static context *whole(void) {
    context *c = fake_current();
    return c && c->primary ? c->primary : c;
}
/* Under fake_big. */
static int load_into(image *of, context *c) {
    int free = -1, status;
    for (int at = 15; at >= 0; at--) {
        if (of->in[at] == c) return OK;
        if (!of->in[at]) free = at;
    }
    if ((status = fake_take_heap(c)) || (status = fake_take_more(c, (int64_t)of->bytes))) return status;
    return of->in[free] = c, OK;
}
static int load_here(image *of) {
    if (!whole()) return INVALID_CONTEXT;
    pthread_mutex_lock(&fake_big);
    int status = load_into(of, whole());
    pthread_mutex_unlock(&fake_big);
    return status;
}
void fake_forget_code(context *c) {
    for (image *each = images; each; each = each->next)
        for (int at = 0; at < 16; at++) if (each->in[at] == c) each->in[at] = NULL;
}
static image *read_image(const char *text, int is_library) {
    image *made = calloc(1, sizeof *made);
    made->is_library = is_library;
    for (const char *at = text; (at = strstr(at, "global ")); at++) made->bytes += strtoull(at + 7, NULL, 10);
    const char *local = strstr(text, "local ");
    made->local = local ? strtoull(local + 6, NULL, 10) : 0;
    pthread_mutex_lock(&fake_big);
    made->next = images;
    images = made;
    pthread_mutex_unlock(&fake_big);
    return made;
}
static int unload(image *gone) {
    image **at = &images;
    pthread_mutex_lock(&fake_big);
    while (*at && *at != gone) at = &(*at)->next;
    if (*at) *at = gone->next;
    for (int i = 0; *at != NULL || i < 16; i++) {
        if (i == 16) break;
        if (gone->in[i]) fake_take_more(gone->in[i], -(int64_t)gone->bytes);
        gone->in[i] = NULL;
    }
    for (kernel **k = &kernels; *k;) if ((*k)->of == gone) *k = (*k)->next; else k = &(*k)->next;
    pthread_mutex_unlock(&fake_big);
    return OK;
}
static int load(image **out, const char *text, int is_library) {
    int lazy = is_lazy(), status = OK;
    if (fake_ready()) return NOT_INITIALIZED;
    if (!out || !text) return INVALID_VALUE;
    if (!is_library && !whole()) return INVALID_CONTEXT;
    image *made = read_image(text, is_library);
    if (!lazy && whole()) status = load_here(made);
    if (status) return unload(made), status;
    return *out = made, OK;
}
static int from_file(image **out, const char *path, int is_library) {
    char text[4096] = "";
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) return 301;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return text[length] = 0, load(out, text, is_library);
}
static int find(kernel **out, image *of, const char *name, int is_kernel) {
    if (!out || !of || !name) return INVALID_VALUE;
    kernel *made = calloc(1, sizeof *made);
    *made = (kernel){of, is_kernel, 0, NULL};
    pthread_mutex_lock(&fake_big);
    made->next = kernels;
    kernels = made;
    pthread_mutex_unlock(&fake_big);
    return *out = made, OK;
}
static int variable(uint64_t *address, size_t *bytes, image *of) {
    int status = of ? load_here(of) : INVALID_VALUE;
    if (status) return status;
    if (address) *address = 0x600000000000;
    return bytes ? (*bytes = of->bytes, OK) : OK;
}
DRIVER(cuModuleLoad, (image **out, const char *path), (out, path)) { return from_file(out, path, 0); }
DRIVER(cuModuleLoadData, (image **out, const char *text), (out, text)) { return load(out, text, 0); }
DRIVER(cuModuleLoadFatBinary, (image **out, const char *text), (out, text)) { return load(out, text, 0); }
DRIVER(cuModuleLoadDataEx, (image **out, const char *text, unsigned n, void *o, void *v), (out, text, n, o, v)) {
    (void)n; (void)o; (void)v;
    return load(out, text, 0);
}
DRIVER(cuModuleUnload, (image *gone), (gone)) { return gone ? unload(gone) : INVALID_VALUE; }
DRIVER(cuModuleGetFunction, (kernel **out, image *from, const char *name), (out, from, name)) {
    int status = from ? load_here(from) : INVALID_VALUE;
    return status ? status : find(out, from, name, 0);
}
DRIVER(cuModuleGetGlobal_v2, (uint64_t *address, size_t *bytes, image *from, const char *name), (address, bytes, from, name)) {
    (void)name;
    return variable(address, bytes, from);
}
DRIVER(cuModuleGetGlobal, (uint32_t *address, uint32_t *bytes, image *from, const char *name), (address, bytes, from, name)) {
    (void)address; (void)bytes; (void)name;
    return variable(NULL, NULL, from);
}
#define OPTIONS void *a, void **b, unsigned c, void *d, void **e, unsigned f
#define UNUSED_OPTIONS (void)a; (void)b; (void)c; (void)d; (void)e; (void)f
DRIVER(cuLibraryLoadData, (image **out, const char *text, OPTIONS), (out, text, a, b, c, d, e, f)) { UNUSED_OPTIONS; return load(out, text, 1); }
DRIVER(cuLibraryLoadFromFile, (image **out, const char *path, OPTIONS), (out, path, a, b, c, d, e, f)) { UNUSED_OPTIONS; return from_file(out, path, 1); }
DRIVER(cuLibraryUnload, (image *gone), (gone)) { return gone ? unload(gone) : INVALID_VALUE; }
DRIVER(cuLibraryGetKernel, (kernel **out, image *from, const char *name), (out, from, name)) { return find(out, from, name, 1); }
DRIVER(cuLibraryEnumerateKernels, (kernel **out, unsigned count, image *from), (out, count, from)) { return count ? find(out, from, "k", 1) : INVALID_VALUE; }
DRIVER(cuLibraryGetModule, (image **out, image *from), (out, from)) {
    int status = from ? load_here(from) : INVALID_VALUE;
    return status ? status : (*out = from, OK);
}
DRIVER(cuLibraryGetGlobal, (uint64_t *address, size_t *bytes, image *from, const char *name), (address, bytes, from, name)) {
    (void)name;
    return variable(address, bytes, from);
}
DRIVER(cuLibraryGetManaged, (uint64_t *address, size_t *bytes, image *from, const char *name), (address, bytes, from, name)) {
    (void)name;
    return variable(address, bytes, from);
}
DRIVER(cuLibraryGetUnifiedFunction, (void **out, image *from, const char *name), (out, from, name)) {
    int status = from ? load_here(from) : INVALID_VALUE;
    (void)name;
    return status ? status : (*out = from, OK);
}
DRIVER(cuKernelGetFunction, (kernel **out, kernel *from), (out, from)) {
    int status = from ? load_here(from->of) : INVALID_VALUE;
    return status ? status : find(out, from->of, "f", 0);
}
DRIVER(cuFuncLoad, (kernel *f), (f)) { return f ? load_here(f->of) : INVALID_VALUE; }
DRIVER(cuFuncGetAttribute, (int *value, int which, kernel *f), (value, which, f)) {
    return !f || !value ? INVALID_VALUE : (*value = which == 3 ? (int)f->of->local : 0, OK);
}
/* Before a launch: what its function needs. Other numbers in place of functions are times (launch.c). */
int fake_load_kernel(uint64_t *function) {
    kernel *k = kernels;
    int status;
    if (!k) return OK;
    pthread_mutex_lock(&fake_big);
    while (k && (uint64_t)k != *function) k = k->next;
    context *c = whole();
    status = !k ? OK : !c ? INVALID_CONTEXT : load_into(k->of, c);
    uint64_t usual = c && c->limit[0] ? c->limit[0] : 1024, most = c && c->local > usual ? c->local : usual;
    if (k && !status && k->of->local > most) {
        status = fake_take_more(c, (int64_t)((k->of->local - most) * fake_threads(c->card)));
        if (!status) c->local = k->of->local;
    }
    pthread_mutex_unlock(&fake_big);
    if (k) *function = 0;
    return status;
}
#endif
