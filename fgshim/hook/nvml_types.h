/* The part of NVML's binary interface that the hook uses: constants and structures by value. */
#ifndef FG_NVML_TYPES_H
#define FG_NVML_TYPES_H
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
typedef struct { uint32_t session, pid, vgpu, codec, width, height, fps, latency; } fg_nvml_encoder_session;
typedef struct { uint32_t session, pid, vgpu, display, type, flags, most[2], size[2], fps, latency; } fg_nvml_capture_session;
#endif
