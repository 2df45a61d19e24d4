/* Modules, libraries and kernels. Every image loads, and has each kernel and variable that is asked for. A kernel takes
   FAKE_CUDA_KERNEL_NS nanoseconds and computes nothing, but for PyTorch's fills. */
#include "driver.h"

typedef void (*compute)(void **parameters);
typedef struct named { char *name; struct named *next; struct image *of; compute run; uint64_t address; } named;
typedef struct image { named *kernels, *variables; } image;
enum { VARIABLE_BYTES = 4096 };

/* PyTorch's kernel that fills a tensor with a value: its parameters are a count, the value, and the address. */
#define FILL(bytes, type)                                               \
    static void fill_##bytes(void **parameters) {                       \
        type *to = *(type **)parameters[2], value = *(type *)parameters[1]; \
        for (int at = 0; at < *(int *)parameters[0]; at++) to[at] = value; \
    }
FILL(1, uint8_t) FILL(2, uint16_t) FILL(4, uint32_t) FILL(8, uint64_t)
/* The mangled name tells the type of the value. */
static compute compute_of(const char *kernel) {
    static const char functor[] = "11FillFunctorI";
    const char *at = strstr(kernel, "vectorized_elementwise_kernel") ? strstr(kernel, functor) : NULL;
    char type = at ? at[sizeof functor - 1] : 0;
    if (!type) return NULL;
    if (strchr("abh", type)) return fill_1;
    if (strchr("st", type)) return fill_2;
    if (strchr("fij", type)) return fill_4;
    return strchr("dlm", type) ? fill_8 : NULL;
}
static named *find(named **list, image *of, const char *name) {
    pthread_mutex_lock(&fake_big);
    named *found = *list;
    while (found && strcmp(found->name, name)) found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found);
        *found = (named){strdup(name), *list, of, compute_of(name), 0};
        *list = found;
    }
    pthread_mutex_unlock(&fake_big);
    return found;
}
static CUresult load(void *out) {
    *(image **)out = calloc(1, sizeof(image));
    return needs_context();
}
static CUresult kernel_of(void *out, void *from, const char *name) {
    if (!from || !name) return CUDA_ERROR_INVALID_VALUE;
    *(named **)out = find(&((image *)from)->kernels, from, name);
    return CUDA_SUCCESS;
}
static CUresult variable_of(CUdeviceptr *address, size_t *bytes, void *from, const char *name) {
    if (!from || !name) return CUDA_ERROR_INVALID_VALUE;
    named *found = find(&((image *)from)->variables, from, name);
    if (!found->address) found->address = fake_address(VARIABLE_BYTES);
    if (address) *address = found->address;
    if (bytes) *bytes = VARIABLE_BYTES;
    return CUDA_SUCCESS;
}
DRIVER(cuModuleLoad, (CUmodule *out, const char *path UNUSED), (out, path)) { return load(out); }
DRIVER(cuModuleLoadData, (CUmodule *out, const void *code UNUSED), (out, code)) { return load(out); }
DRIVER(cuModuleLoadDataEx, (CUmodule *out, const void *code UNUSED, unsigned count UNUSED, CUjit_option *options UNUSED, void **values UNUSED), (out, code, count, options, values)) {
    return load(out);
}
DRIVER(cuModuleLoadFatBinary, (CUmodule *out, const void *code UNUSED), (out, code)) { return load(out); }
DRIVER(cuModuleGetFunction, (CUfunction *out, CUmodule from, const char *name), (out, from, name)) { return kernel_of(out, from, name); }
DRIVER(cuModuleGetGlobal_v2, (CUdeviceptr *address, size_t *bytes, CUmodule from, const char *name), (address, bytes, from, name)) {
    return variable_of(address, bytes, from, name);
}
DRIVER(cuModuleGetLoadingMode, (CUmoduleLoadingMode *mode), (mode)) {
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
#define OPTIONS CUjit_option *a UNUSED, void **b UNUSED, unsigned c UNUSED, CUlibraryOption *d UNUSED, void **e UNUSED, unsigned f UNUSED
DRIVER(cuLibraryLoadData, (CUlibrary *out, const void *code UNUSED, OPTIONS), (out, code, a, b, c, d, e, f)) {
    *out = calloc(1, sizeof(image));   /* needs no context */
    return CUDA_SUCCESS;
}
DRIVER(cuLibraryLoadFromFile, (CUlibrary *out, const char *path UNUSED, OPTIONS), (out, path, a, b, c, d, e, f)) {
    return in_cuLibraryLoadData(out, path, a, b, c, d, e, f);
}
DRIVER(cuLibraryGetKernel, (CUkernel *out, CUlibrary from, const char *name), (out, from, name)) { return kernel_of(out, from, name); }
DRIVER(cuLibraryGetModule, (CUmodule *out, CUlibrary from), (out, from)) {
    *out = (CUmodule)from;
    return CUDA_SUCCESS;
}
DRIVER(cuLibraryGetGlobal, (CUdeviceptr *address, size_t *bytes, CUlibrary from, const char *name), (address, bytes, from, name)) {
    return variable_of(address, bytes, from, name);
}
DRIVER(cuLibraryGetManaged, (CUdeviceptr *address, size_t *bytes, CUlibrary from, const char *name), (address, bytes, from, name)) {
    return variable_of(address, bytes, from, name);
}
DRIVER(cuLibraryGetKernelCount, (unsigned *count, CUlibrary from), (count, from)) {
    *count = 0;
    for (named *each = ((image *)from)->kernels; each; each = each->next) ++*count;
    return CUDA_SUCCESS;
}
DRIVER(cuKernelGetFunction, (CUfunction *out, CUkernel kernel), (out, kernel)) {
    *out = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
DRIVER(cuKernelGetLibrary, (CUlibrary *out, CUkernel kernel), (out, kernel)) {
    *out = (CUlibrary)((named *)kernel)->of;
    return CUDA_SUCCESS;
}
DRIVER(cuFuncGetModule, (CUmodule *out, CUfunction kernel), (out, kernel)) {
    *out = (CUmodule)((named *)kernel)->of;
    return CUDA_SUCCESS;
}
DRIVER(cuKernelGetName, (const char **out, CUkernel kernel), (out, kernel)) {
    *out = ((named *)kernel)->name;
    return CUDA_SUCCESS;
}
DRIVER(cuFuncGetName, (const char **out, CUfunction kernel), (out, kernel)) {
    *out = ((named *)kernel)->name;
    return CUDA_SUCCESS;
}
static CUresult attribute(int *value, CUfunction_attribute which) {
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = 227 << 10; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
DRIVER(cuKernelGetAttribute, (int *value, CUfunction_attribute which, CUkernel of UNUSED, CUdevice device UNUSED), (value, which, of, device)) {
    return attribute(value, which);
}
DRIVER(cuFuncGetAttribute, (int *value, CUfunction_attribute which, CUfunction of UNUSED), (value, which, of)) { return attribute(value, which); }
DRIVER(cuFuncIsLoaded, (CUfunctionLoadingState *state, CUfunction of UNUSED), (state, of)) {
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
static CUresult blocks_that_fit(int *count, int block) {
    *count = block > 0 ? 2048 / block : 0;
    return CUDA_SUCCESS;
}
DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *count, CUfunction of UNUSED, int block, size_t shared UNUSED), (count, of, block, shared)) {
    return blocks_that_fit(count, block);
}
DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *count, CUfunction of UNUSED, int block, size_t shared UNUSED, unsigned flags UNUSED), (count, of, block, shared, flags)) {
    return blocks_that_fit(count, block);
}
DRIVER(cuOccupancyMaxPotentialBlockSize, (int *grid, int *block, CUfunction of UNUSED, CUoccupancyB2DSize shared_of UNUSED, size_t shared UNUSED, int limit), (grid, block, of, shared_of, shared, limit)) {
    *grid = 2 * 132;
    *block = limit ? limit : 1024;
    return CUDA_SUCCESS;
}
DRIVER(cuOccupancyMaxPotentialBlockSizeWithFlags, (int *grid, int *block, CUfunction of, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned flags UNUSED), (grid, block, of, shared_of, shared, limit, flags)) {
    return in_cuOccupancyMaxPotentialBlockSize(grid, block, of, shared_of, shared, limit);
}
/* What was compiled is linked to an image like any other. */
DRIVER(cuLinkCreate_v2, (unsigned count UNUSED, CUjit_option *options UNUSED, void **values UNUSED, CUlinkState *out), (count, options, values, out)) {
    *out = calloc(1, 64);
    return CUDA_SUCCESS;
}
DRIVER(cuLinkComplete, (CUlinkState link, void **code, size_t *bytes), (link, code, bytes)) {
    *code = link;
    if (bytes) *bytes = 64;
    return CUDA_SUCCESS;
}

/* A handle below 2^40 is a time in nanoseconds, as in the plain fake driver; any other is a kernel of this file. */
static int is_kernel(uint64_t handle) { return handle >= (uint64_t)1 << 40; }
uint64_t fake_duration(uint64_t handle) {
    static int64_t each = -1;
    if (each < 0) each = getenv("FAKE_CUDA_KERNEL_NS") ? atoll(getenv("FAKE_CUDA_KERNEL_NS")) : 0;
    return is_kernel(handle) ? (uint64_t)each : handle;
}
void fake_compute(uint64_t handle, void **parameters) {
    if (is_kernel(handle) && parameters && ((named *)handle)->run && fake_current()) ((named *)handle)->run(parameters);
}
