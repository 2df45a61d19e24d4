# The little of NVML's interface that the hook speaks, by value.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FG_NVML
    #define FG_NVML
    #include <stdint.h>

    enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_MEMORY = 20,
           NVML_ERROR_FUNCTION_NOT_FOUND = 13 };
    typedef struct { uint64_t total, free, used; } fg_nvml_memory;
    typedef struct { uint32_t version; uint64_t total, reserved, free, used; } fg_nvml_memory_v2;
    typedef struct { uint32_t pid; uint64_t used; } fg_nvml_process;                 /* unversioned */
    typedef struct { uint32_t pid; uint64_t used; uint32_t gi, ci; } fg_nvml_process_v2;   /* _v2, _v3 */
    typedef struct { uint32_t pid; uint64_t used; uint32_t gi, ci; uint64_t secret; } fg_nvml_detail;
    typedef struct { uint32_t version, mode, count; fg_nvml_detail *list; } fg_nvml_details;
    typedef struct { uint32_t pid; uint64_t time; uint32_t sm, memory, encoder, decoder; } fg_nvml_sample;
    typedef struct { uint64_t time; uint32_t pid, sm, memory, encoder, decoder, jpeg, flow; } fg_nvml_load;
    typedef struct { uint32_t version, count; uint64_t since; fg_nvml_load *list; } fg_nvml_loads;
    #endif
    """
    enum:
        NVML_SUCCESS
        NVML_ERROR_NOT_FOUND
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
    ctypedef struct fg_nvml_detail:
        pass
    ctypedef struct fg_nvml_details:
        uint32_t count
        fg_nvml_detail *list
    ctypedef struct fg_nvml_sample:
        pass
    ctypedef struct fg_nvml_load:
        uint32_t pid
    ctypedef struct fg_nvml_loads:
        uint32_t count
        fg_nvml_load *list

ctypedef int (*nvml_memory_t)(void *, void *) noexcept nogil
ctypedef int (*nvml_processes_t)(void *, uint32_t *, void *) noexcept nogil
ctypedef int (*nvml_uuid_t)(void *, char *, uint32_t) noexcept nogil
ctypedef int (*nvml_count_t)(uint32_t *) noexcept nogil
ctypedef int (*nvml_by_index_t)(uint32_t, void **) noexcept nogil
ctypedef int (*nvml_by_name_t)(const char *, void **) noexcept nogil
ctypedef int (*nvml_index_t)(void *, uint32_t *) noexcept nogil
ctypedef int (*nvml_whole_t)(void *, void **) noexcept nogil
ctypedef int (*nvml_nearest_t)(void *, uint32_t, uint32_t *, void **) noexcept nogil
ctypedef int (*nvml_gpu_set_t)(uint32_t, uint32_t *, void **) noexcept nogil
ctypedef int (*nvml_name_of_t)(uint32_t, char *, uint32_t) noexcept nogil
ctypedef int (*nvml_samples_t)(void *, void *, uint32_t *, uint64_t) noexcept nogil
ctypedef int (*nvml_pids_t)(void *, uint32_t *, uint32_t *) noexcept nogil
ctypedef int (*nvml_stats_t)(void *, uint32_t, void *) noexcept nogil
ctypedef int (*nvml_text_t)(char *, uint32_t) noexcept nogil
ctypedef int (*nvml_table_t)(const void **, const void *) noexcept nogil
ctypedef int (*nvml_devices_t)(void *, uint32_t *, void **) noexcept nogil
