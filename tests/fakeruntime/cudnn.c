/* libcudnn.so.9 for JAX, which asks for its version and for a handle before it compiles anything. */
#include <stddef.h>

enum { MAJOR = 9, MINOR = 14 };
size_t cudnnGetVersion(void) { return MAJOR * 10000 + MINOR * 100; }
int cudnnGetProperty(int which, int *value) { return *value = which == 0 ? MAJOR : which == 1 ? MINOR : 0, 0; }
int cudnnCreate(void **handle) { return *handle = handle, 0; }
int cudnnDestroy(void *handle) { return (void)handle, 0; }
int cudnnSetStream(void *handle, void *on) { return (void)handle, (void)on, 0; }
