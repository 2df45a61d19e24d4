# The little of NVML's interface that the hook speaks, by value.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FG_NVML
    #define FG_NVML
    #include <stdint.h>

    enum { NVML_SUCCESS = 0, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_MEMORY = 20,
           NVML_ERROR_FUNCTION_NOT_FOUND = 13 };
    typedef struct { uint64_t total, free, used; } fg_nvml_memory;
    typedef struct { uint32_t version; uint64_t total, reserved, free, used; } fg_nvml_memory_v2;
    typedef struct { uint32_t pid; uint64_t used; } fg_nvml_process;                 /* unversioned */
    typedef struct { uint32_t pid; uint64_t used; uint32_t gi, ci; } fg_nvml_process_v2;   /* _v2, _v3 */
    #endif
    """
    enum:
        NVML_SUCCESS
        NVML_ERROR_INSUFFICIENT_SIZE
        NVML_ERROR_MEMORY
        NVML_ERROR_FUNCTION_NOT_FOUND
    ctypedef struct fg_nvml_memory:
        uint64_t total
        uint64_t free
        uint64_t used
    ctypedef struct fg_nvml_memory_v2:
        uint64_t total
        uint64_t free
        uint64_t used
    ctypedef struct fg_nvml_process:
        pass
    ctypedef struct fg_nvml_process_v2:
        pass

ctypedef int (*nvml_memory_t)(void *, void *) noexcept nogil
ctypedef int (*nvml_processes_t)(void *, uint32_t *, void *) noexcept nogil
ctypedef int (*nvml_uuid_t)(void *, char *, uint32_t) noexcept nogil
