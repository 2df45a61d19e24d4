/* Memory of the host that the driver knows, and what a program can ask about an address. */
#include "driver.h"

typedef struct host_memory { char *start; size_t bytes; int is_own; struct host_memory *next; } host_memory;
static host_memory *known;

static void keep(void *start, size_t bytes, int is_own) {
    host_memory *made = malloc(sizeof *made);
    pthread_mutex_lock(&fake_big);
    *made = (host_memory){start, bytes, is_own, known};
    known = made;
    pthread_mutex_unlock(&fake_big);
}
static CUresult forget(const void *start) {
    pthread_mutex_lock(&fake_big);
    host_memory **at = &known;
    while (*at && (*at)->start != start) at = &(*at)->next;
    host_memory *gone = *at;
    if (gone) *at = gone->next;
    pthread_mutex_unlock(&fake_big);
    if (!gone) return CUDA_ERROR_INVALID_VALUE;
    if (gone->is_own) free(gone->start);
    free(gone);
    return CUDA_SUCCESS;
}
DRIVER(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags UNUSED), (out, bytes, flags)) {
    if (!fake_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (posix_memalign(out, 4096, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    keep(*out, bytes, 1);
    return CUDA_SUCCESS;
}
DRIVER(cuMemAllocHost_v2, (void **out, size_t bytes), (out, bytes)) { return in_cuMemHostAlloc(out, bytes, 0); }
DRIVER(cuMemFreeHost, (void *start), (start)) { return forget(start); }
DRIVER(cuMemHostRegister_v2, (void *start, size_t bytes, unsigned flags UNUSED), (start, bytes, flags)) {
    keep(start, bytes, 0);
    return CUDA_SUCCESS;
}
DRIVER(cuMemHostUnregister, (void *start), (start)) { return forget(start); }
DRIVER(cuMemHostGetDevicePointer_v2, (CUdeviceptr *out, void *start, unsigned flags UNUSED), (out, start, flags)) {
    *out = (CUdeviceptr)start;
    return CUDA_SUCCESS;
}

typedef struct { CUmemorytype type; uint64_t start, bytes; int card, is_managed; } region;   /* type 0: unknown */
static region of_host(uint64_t address) {
    for (host_memory *each = known; each; each = each->next)
        if (address - (uint64_t)each->start < each->bytes) return (region){CU_MEMORYTYPE_HOST, (uint64_t)each->start, each->bytes, 0, 0};
    return (region){0};
}
static region region_of(uint64_t address) {
    region found = {CU_MEMORYTYPE_DEVICE, 0, 0, 0, 0};
    pthread_mutex_lock(&fake_big);
    piece *p = fake_find(address);
    if (p) found = (region){CU_MEMORYTYPE_DEVICE, p->address, p->bytes, p->card, p->kind == MANAGED};
    else if (!fake_find_mapping(address, &found.start, &found.bytes, &found.card)) found = of_host(address);
    pthread_mutex_unlock(&fake_big);
    return found;
}
/* Bytes of an answer; 0: this attribute is not answered. */
static size_t size_of(CUpointer_attribute which) {
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: case CU_POINTER_ATTRIBUTE_IS_MANAGED: case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default: return 0;
    }
}
static uint64_t value_of(CUpointer_attribute which, const region *about, uint64_t address) {
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return (uint64_t)fake_current();
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return about->type;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return address;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return about->type == CU_MEMORYTYPE_HOST || about->is_managed ? address : 0;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return about->start >> 9;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return (uint64_t)about->is_managed;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return about->type ? (uint64_t)fake_device_of(about->card) : (uint64_t)CU_DEVICE_INVALID;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return about->type == CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return about->start;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return about->bytes;
    case CU_POINTER_ATTRIBUTE_MAPPED: return 1;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return 3;
    default: return 0;
    }
}
static CUresult answer(void *out, CUpointer_attribute which, const region *about, uint64_t address) {
    uint64_t value = value_of(which, about, address);
    memcpy(out, &value, size_of(which));
    return size_of(which) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
DRIVER(cuPointerGetAttribute, (void *out, CUpointer_attribute which, CUdeviceptr address), (out, which, address)) {
    region about = region_of(address);
    int has_none = which == CU_POINTER_ATTRIBUTE_HOST_POINTER && about.type == CU_MEMORYTYPE_DEVICE && !about.is_managed;
    return about.type && !has_none ? answer(out, which, &about, address) : CUDA_ERROR_INVALID_VALUE;
}
/* Of an unknown address all answers are 0, without an error. */
DRIVER(cuPointerGetAttributes, (unsigned count, CUpointer_attribute *which, void **out, CUdeviceptr address), (count, which, out, address)) {
    region about = region_of(address);
    CUresult status = CUDA_SUCCESS;
    for (unsigned at = 0; at < count && status == CUDA_SUCCESS; at++) status = answer(out[at], which[at], &about, address);
    return status;
}
