/* The part of the CUDA driver's binary interface that the hook uses: constants and structures by value.
 * Declared here so that the build needs none of NVIDIA's headers. */
#ifndef FG_CUDA_TYPES_H
#define FG_CUDA_TYPES_H
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_INITIALIZED = 3, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5, CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7, CU_MEMPOOL_ATTR_ALLOCATION_TYPE = 9,
    CU_MEMPOOL_ATTR_LOCATION_ID = 11, CU_MEMPOOL_ATTR_LOCATION_TYPE = 12,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CUDA_ARRAY3D_LAYERED = 1, CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
    CU_GRAPH_NODE_TYPE_GRAPH = 4, CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10, CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2, CU_MEM_OPERATION_TYPE_MAP = 1,
    CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL = 1,
};
typedef struct {
    int32_t type, handle_types, location_type, location_id;
    void *win32;
    uint64_t flags;
} fg_allocation_prop;
typedef struct { uint64_t width, height; int32_t format; uint32_t channels; } fg_array_flat;
typedef struct { uint32_t width, height; int32_t format; uint32_t channels; } fg_array_old;
typedef struct { uint64_t width, height, depth; int32_t format; uint32_t channels, flags; } fg_array;
typedef struct { uint32_t width, height, depth; int32_t format; uint32_t channels, flags; } fg_array3d_old;
typedef struct { uint64_t size, alignment; uint32_t reserved[4]; } fg_requirements;
typedef struct {
    int32_t type, handle_types, location_type, location_id;
    void *win32;
    uint64_t most;
    uint16_t usage;
    uint8_t reserved[54];
} fg_pool_props;
typedef struct { int32_t type, id; } fg_location;
typedef struct { fg_pool_props pool; const void *access; uint64_t accesses, bytes, address; } fg_alloc_node;
typedef struct { uint64_t flags; void *stream, *node; int32_t result; } fg_instantiate_params;
typedef struct { char bytes[64]; } fg_ipc_handle;
typedef struct {   /* CUarrayMapInfo: a part of a sparse array and the memory handle mapped to it */
    int32_t kind;
    uint64_t array;
    int32_t part_kind;
    uint64_t part[4];
    int32_t operation, handle_kind;
    uint64_t handle, offset;
    uint32_t devices, flags, reserved[2];
} fg_map_info;
typedef struct {
    unsigned int shape[7];
    void *stream, *attributes;
    unsigned int count;
} fg_launch_config;
typedef struct {
    void *function;
    unsigned int shape[7];
    void *stream;
    void **parameters;
} fg_one_of_many;
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_PRINTF_FIFO_SIZE = 1, CU_LIMIT_MALLOC_HEAP_SIZE = 2, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2, CU_STREAM_PER_THREAD = 2, CUDA_ERROR_NOT_READY = 600, FG_MAX_DEVICES = 16 };
#endif
