# The little of the CUDA driver's interface that the hook speaks, by value.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FG_CUDA
    #define FG_CUDA
    #include <stddef.h>
    #include <stdint.h>

    enum {
        CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
        CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5, CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    };
    typedef struct {
        int32_t type, handle_types, location_type, location_id;
        void *win32;
        uint64_t flags;
    } fg_allocation_prop;
    #endif
    """
    enum:
        CUDA_SUCCESS
        CUDA_ERROR_OUT_OF_MEMORY
        CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
        CU_MEM_LOCATION_TYPE_DEVICE
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    ctypedef struct fg_allocation_prop:
        int32_t location_type
        int32_t location_id

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
