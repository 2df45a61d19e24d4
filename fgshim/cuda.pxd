# Cython declarations of hook/cuda_types.h, and the types of the driver functions that the hook calls.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from "cuda_types.h":
    enum:
        CUDA_SUCCESS
        CUDA_ERROR_INVALID_VALUE
        CUDA_ERROR_OUT_OF_MEMORY
        CUDA_ERROR_NOT_INITIALIZED
        CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
        CU_MEM_LOCATION_TYPE_DEVICE
        CU_MEM_LOCATION_TYPE_HOST
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_ALLOCATION_TYPE
        CU_MEMPOOL_ATTR_LOCATION_ID
        CU_MEMPOOL_ATTR_LOCATION_TYPE
        CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_MANAGED
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
        CUDA_ARRAY3D_LAYERED
        CUDA_ARRAY3D_SPARSE
        CUDA_ARRAY3D_DEFERRED_MAPPING
        CU_GRAPH_NODE_TYPE_GRAPH
        CU_GRAPH_NODE_TYPE_MEM_ALLOC
        CU_GRAPH_NODE_TYPE_MEM_FREE
        CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        CU_MEM_OPERATION_TYPE_MAP
        CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL
    ctypedef struct fg_allocation_prop:
        int32_t location_type
        int32_t location_id
    ctypedef struct fg_array_flat:
        uint64_t width
        uint64_t height
        int32_t format
        uint32_t channels
    ctypedef struct fg_array_old:
        uint32_t width
        uint32_t height
        int32_t format
        uint32_t channels
    ctypedef struct fg_array:
        uint64_t width
        uint64_t height
        uint64_t depth
        int32_t format
        uint32_t channels
        uint32_t flags
    ctypedef struct fg_array3d_old:
        uint32_t width
        uint32_t height
        uint32_t depth
        int32_t format
        uint32_t channels
        uint32_t flags
    ctypedef struct fg_requirements:
        uint64_t size
    ctypedef struct fg_pool_props:
        int32_t type
        int32_t location_type
        int32_t location_id
    ctypedef struct fg_location:
        int32_t type
        int32_t id
    ctypedef struct fg_alloc_node:
        fg_pool_props pool
        uint64_t bytes
    ctypedef struct fg_instantiate_params:
        uint64_t flags
        void *stream
        void *node
        int32_t result
    ctypedef struct fg_ipc_handle:
        char bytes[64]
    ctypedef struct fg_map_info:
        uint64_t array
        int32_t part_kind
        uint64_t part[4]
        int32_t operation
        uint64_t handle

    enum:
        CU_STREAM_CAPTURE_MODE_RELAXED
        CU_LIMIT_STACK_SIZE
        CU_LIMIT_PRINTF_FIFO_SIZE
        CU_LIMIT_MALLOC_HEAP_SIZE
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        CU_STREAM_PER_THREAD
        CUDA_ERROR_NOT_READY
        FG_MAX_DEVICES
    ctypedef struct fg_launch_config:
        unsigned int shape[7]
        void *stream
    ctypedef struct fg_one_of_many:
        void *function
        unsigned int shape[7]
        void *stream

ctypedef unsigned int shape_t
ctypedef int (*launch_t)(
    void *, shape_t, shape_t, shape_t, shape_t, shape_t, shape_t, shape_t, void *, void **, void **
) noexcept nogil
ctypedef int (*cooperative_t)(
    void *, shape_t, shape_t, shape_t, shape_t, shape_t, shape_t, shape_t, void *, void **
) noexcept nogil
ctypedef int (*launch_ex_t)(const fg_launch_config *, void *, void **, void **) noexcept nogil
ctypedef int (*many_t)(fg_one_of_many *, unsigned int, unsigned int) noexcept nogil
ctypedef int (*graph_launch_t)(void *, void *) noexcept nogil
ctypedef int (*launch_one_t)(void *) noexcept nogil
ctypedef int (*launch_grid_t)(void *, int, int) noexcept nogil
ctypedef int (*launch_grid_async_t)(void *, int, int, void *) noexcept nogil
ctypedef int (*event_create_t)(void **, unsigned int) noexcept nogil
ctypedef int (*event_record_t)(void *, void *) noexcept nogil
ctypedef int (*event_query_t)(void *) noexcept nogil
ctypedef int (*event_elapsed_t)(float *, void *, void *) noexcept nogil
ctypedef int (*exchange_mode_t)(int *) noexcept nogil
ctypedef int (*find_t)(const char *, void **, int, uint64_t) noexcept nogil
ctypedef int (*find2_t)(const char *, void **, int, uint64_t, int *) noexcept nogil
ctypedef int (*alloc_t)(uint64_t *, size_t) noexcept nogil
ctypedef int (*alloc_pitch_t)(uint64_t *, size_t *, size_t, size_t, unsigned int) noexcept nogil
ctypedef int (*alloc_managed_t)(uint64_t *, size_t, unsigned int) noexcept nogil
ctypedef int (*alloc_async_t)(uint64_t *, size_t, void *) noexcept nogil
ctypedef int (*free_t)(uint64_t) noexcept nogil
ctypedef int (*free_async_t)(uint64_t, void *) noexcept nogil
ctypedef int (*create_t)(uint64_t *, size_t, const fg_allocation_prop *, uint64_t) noexcept nogil
ctypedef int (*release_t)(uint64_t) noexcept nogil
ctypedef int (*map_t)(uint64_t, size_t, size_t, uint64_t, uint64_t) noexcept nogil
ctypedef int (*unmap_t)(uint64_t, size_t) noexcept nogil
ctypedef int (*retain_t)(uint64_t *, void *) noexcept nogil
ctypedef int (*mem_info_t)(size_t *, size_t *) noexcept nogil
ctypedef int (*total_t)(size_t *, int) noexcept nogil
ctypedef int (*ctx_device_t)(int *) noexcept nogil
ctypedef int (*ctx_out_t)(void **) noexcept nogil
ctypedef int (*ctx_in_t)(void *) noexcept nogil
ctypedef int (*device_uuid_t)(void *, int) noexcept nogil
ctypedef int (*device_attribute_t)(int *, int, int) noexcept nogil
ctypedef int (*device_pool_t)(void **, int) noexcept nogil
ctypedef int (*pool_attribute_t)(void *, int, void *) noexcept nogil
ctypedef int (*pool_trim_t)(void *, size_t) noexcept nogil
ctypedef int (*stream_ctx_t)(void *, void **) noexcept nogil
ctypedef int (*stream_capturing_t)(void *, int *) noexcept nogil

# The ABI of 2007.
ctypedef int (*old_alloc_t)(uint32_t *, uint32_t) noexcept nogil
ctypedef int (*old_alloc_pitch_t)(uint32_t *, uint32_t *, uint32_t, uint32_t, uint32_t) noexcept nogil
ctypedef int (*old_free_t)(uint32_t) noexcept nogil
ctypedef int (*old_mem_info_t)(uint32_t *, uint32_t *) noexcept nogil
ctypedef int (*old_total_t)(uint32_t *, int) noexcept nogil
ctypedef int (*array_create_t)(void **, const void *) noexcept nogil
ctypedef int (*mipmap_create_t)(void **, const fg_array *, unsigned int) noexcept nogil
ctypedef int (*destroy_t)(void *) noexcept nogil
ctypedef int (*requirements_t)(fg_requirements *, void *, int) noexcept nogil
ctypedef int (*init_t)(unsigned int) noexcept nogil
ctypedef int (*device_t)(int) noexcept nogil
ctypedef int (*primary_retain_t)(void **, int) noexcept nogil
ctypedef int (*primary_state_t)(int, unsigned int *, int *) noexcept nogil
ctypedef int (*ctx_create_t)(void **, unsigned int, int) noexcept nogil
ctypedef int (*ctx_create_v3_t)(void **, void *, int, unsigned int, int) noexcept nogil
ctypedef int (*ctx_create_v4_t)(void **, void *, unsigned int, int) noexcept nogil
ctypedef int (*green_create_t)(void **, void *, int, unsigned int) noexcept nogil
ctypedef int (*ctx_from_green_t)(void **, void *) noexcept nogil
ctypedef int (*ctx_void_t)() noexcept nogil
ctypedef int (*pool_create_t)(void **, const fg_pool_props *) noexcept nogil
ctypedef int (*from_pool_t)(uint64_t *, size_t, void *, void *) noexcept nogil
ctypedef int (*graph_memory_t)(int, int, uint64_t *) noexcept nogil
ctypedef int (*graph_nodes_t)(void *, void **, size_t *) noexcept nogil
ctypedef int (*node_type_t)(void *, int *) noexcept nogil
ctypedef int (*child_graph_t)(void *, void **) noexcept nogil
ctypedef int (*alloc_node_t)(void *, fg_alloc_node *) noexcept nogil
ctypedef int (*graph_run_t)(void *, void *) noexcept nogil
ctypedef int (*instantiate_old_t)(void **, void *, void **, char *, size_t) noexcept nogil
ctypedef int (*instantiate_t)(void **, void *, unsigned long long) noexcept nogil
ctypedef int (*instantiate_how_t)(void **, void *, fg_instantiate_params *) noexcept nogil
ctypedef int (*address_range_t)(uint64_t *, size_t *, uint64_t) noexcept nogil
ctypedef int (*ipc_get_t)(void *, uint64_t) noexcept nogil
ctypedef int (*ipc_open_t)(uint64_t *, fg_ipc_handle, unsigned int) noexcept nogil
ctypedef int (*export_t)(void *, uint64_t, int, uint64_t) noexcept nogil
ctypedef int (*import_t)(uint64_t *, void *, int) noexcept nogil
ctypedef int (*properties_t)(fg_allocation_prop *, uint64_t) noexcept nogil
ctypedef int (*map_array_t)(fg_map_info *, unsigned int, void *) noexcept nogil
ctypedef int (*set_pool_t)(int, void *) noexcept nogil
ctypedef int (*set_location_pool_t)(void *, int, void *) noexcept nogil
ctypedef int (*location_pool_t)(void **, const fg_location *, int) noexcept nogil
ctypedef int (*vdpau_create_t)(void **, unsigned int, int, uint32_t, void *) noexcept nogil
ctypedef int (*limit_get_t)(size_t *, int) noexcept nogil
ctypedef int (*limit_set_t)(int, size_t) noexcept nogil
ctypedef int (*load_t)(void **, const void *) noexcept nogil
ctypedef int (*load_module_t)(void **, const void *, unsigned int, void *, void *) noexcept nogil
ctypedef int (*load_library_t)(void **, const void *, void *, void *, unsigned int, void *, void *, unsigned int) noexcept nogil
ctypedef int (*find_code_t)(void **, void *, const char *) noexcept nogil
ctypedef int (*find_variable_t)(uint64_t *, size_t *, void *, const char *) noexcept nogil
ctypedef int (*out_of_t)(void **, void *) noexcept nogil
ctypedef int (*function_attribute_t)(int *, int, void *) noexcept nogil
ctypedef int (*enumerate_t)(void **, unsigned int, void *) noexcept nogil
