/* The fake driver as frameworks need it: memory with contents, code, host memory. It is compiled with CUDA's own cuda.h,
   which gives types, constants, and the prototypes that every function here is checked against. What is not here is
   "not supported", or a call that succeeds and does nothing: see everyname.py. */
#ifndef FULL_DRIVER_H
#define FULL_DRIVER_H
#define __CUDA_API_VERSION_INTERNAL   /* cuda.h declares each ABI under its own name */
#include <cuda.h>
#include "../fake.h"

#undef DRIVER
#define DRIVER(name, parameters, arguments)                                                            \
    CUresult in_##name parameters;                                                                     \
    __attribute__((visibility("default"))) CUresult name parameters { return in_##name arguments; }    \
    CUresult in_##name parameters
/* A function and its variant for the thread's own stream, with one body. */
#define PAIR(name, twin, parameters, arguments)                        \
    static CUresult both_##name parameters;                            \
    DRIVER(name, parameters, arguments) { return both_##name arguments; } \
    DRIVER(name##twin, parameters, arguments) { return both_##name arguments; } \
    static CUresult both_##name parameters
#define ASYNC_PAIR(name, parameters, arguments) PAIR(name, _ptsz, parameters, arguments)
#define SYNC_PAIR(name, parameters, arguments) PAIR(name, _ptds, parameters, arguments)
#define UNUSED __attribute__((unused))
#define HOST(address) ((char *)(uintptr_t)(address))

static inline CUresult needs_context(void) { return fake_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
#endif
