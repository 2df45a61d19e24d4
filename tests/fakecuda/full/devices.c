/* A card that looks like an H100, as far as frameworks ask. A property that is not listed is 0. */
#include "driver.h"

static const int properties[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 48 << 10,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 227 << 10,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 228 << 10,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1 << 10,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 64 << 10,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 64 << 10,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 64 << 10,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 132,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 2619000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 5120,
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 50 << 20,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_ECC_ENABLED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    [CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = -1,
};
int fake_property(int card, int which, int *value) {
    if (which < 1 || which >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? card + 1 : properties[which];
    return CUDA_SUCCESS;
}
DRIVER(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device), (major, minor, device)) {
    if (fake_card(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
    *major = properties[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = 0;
    return CUDA_SUCCESS;
}
DRIVER(cuDeviceGetPCIBusId, (char *text, int room, CUdevice device), (text, room, device)) {
    if (fake_card(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)room, "0000:%02X:00.0", fake_card(device) + 1);
    return CUDA_SUCCESS;
}
/* CUDA's number of a card; -1 if it is none of the visible ones. */
int fake_device_of(int card) {
    for (int device = 0; fake_card(device) >= 0; device++)
        if (fake_card(device) == card) return device;
    return -1;
}
DRIVER(cuDeviceGetByPCIBusId, (CUdevice *device, const char *text), (device, text)) {
    unsigned bus;
    if (sscanf(text, "%*x:%x:", &bus) != 1) return CUDA_ERROR_INVALID_VALUE;
    *device = fake_device_of((int)bus - 1);
    return *device < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
DRIVER(cuDeviceCanAccessPeer, (int *can, CUdevice device UNUSED, CUdevice peer UNUSED), (can, device, peer)) {
    *can = 0;
    return CUDA_SUCCESS;
}
DRIVER(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute which UNUSED, CUdevice from UNUSED, CUdevice to UNUSED), (value, which, from, to)) {
    *value = 0;
    return CUDA_SUCCESS;
}
DRIVER(cuCtxGetApiVersion, (CUcontext at UNUSED, unsigned *version), (at, version)) {
    *version = 3020;
    return CUDA_SUCCESS;
}
DRIVER(cuCtxGetFlags, (unsigned *flags), (flags)) {
    *flags = 0;
    return needs_context();
}
DRIVER(cuCtxGetId, (CUcontext at, unsigned long long *id), (at, id)) {
    *id = (unsigned long long)(at ? (void *)at : (void *)fake_current());
    return CUDA_SUCCESS;
}
DRIVER(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest)) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
DRIVER(cuCtxGetDevice_v2, (CUdevice *device, CUcontext at), (device, at)) {
    context *asked = at ? (context *)at : fake_current();
    if (!asked) return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_device_of(asked->card);
    return CUDA_SUCCESS;
}
DRIVER(cuMemPoolGetAccess, (CUmemAccess_flags *flags, CUmemoryPool pool UNUSED, CUmemLocation *where UNUSED), (flags, pool, where)) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
DRIVER(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *where UNUSED, CUdeviceptr at UNUSED), (flags, where, at)) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
