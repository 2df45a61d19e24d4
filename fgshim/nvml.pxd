# Cython declarations of hook/nvml_types.h, and the types of the NVML functions that the hook calls.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "nvml_types.h":
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
        uint32_t pid
        uint64_t used
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
    ctypedef struct fg_nvml_encoder_session:
        pass
    ctypedef struct fg_nvml_capture_session:
        pass

ctypedef int (*nvml_memory_t)(void *, void *) noexcept nogil
ctypedef int (*nvml_processes_t)(void *, uint32_t *, void *) noexcept nogil
ctypedef int (*nvml_uuid_t)(void *, char *, uint32_t) noexcept nogil
ctypedef int (*nvml_count_t)(uint32_t *) noexcept nogil
ctypedef int (*nvml_by_index_t)(uint32_t, void **) noexcept nogil
ctypedef int (*nvml_by_name_t)(const char *, void **) noexcept nogil
ctypedef int (*nvml_index_t)(void *, uint32_t *) noexcept nogil
ctypedef int (*nvml_instance_t)(void *, uint32_t, void **) noexcept nogil
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
