/* In place of a header of CUDA's compiler: what the runtime's headers need of it when a C compiler reads them. */
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __host__
#define __device__
#define CUDARTAPI
#define CUDARTAPI_CDECL
