/* Libraries that stand in the way of the hook, one for each -D:
   LOOKUPS  a libcuda.so.1 that gives another address each time it is asked for one
   TRACES   to be preloaded: looks names up in the place of the linker, and answers one of them itself, if TRACES is 2
   WAITS    to be preloaded: says in the file that ODD_FILE names that it is there, and waits for ever
   (none)   nothing, in which a driver that it is linked against can be found */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define SHOWN __attribute__((visibility("default")))

#ifdef LOOKUPS
static char addresses[65536];
SHOWN int cuMemAlloc_v2(uint64_t *at, size_t size) { return at && size ? 1 : 2; }
SHOWN int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *about) {
    static int turn;
    (void)name; (void)version; (void)flags; (void)about;
    *found = addresses + turn++ % 65536;
    return 0;
}
#endif
#ifdef TRACES
SHOWN int odd_alloc(uint64_t *at, size_t size) { return at && size ? 1 : 2; }
SHOWN void *dlsym(void *handle, const char *name) {
    static const char *version[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *(*next)(void *, const char *) = NULL;
    for (int i = 0; i < 3 && !next; i++) next = dlvsym(RTLD_NEXT, "dlsym", version[i]);
    return TRACES == 2 && !strcmp(name, "cuMemAlloc_v2") ? (void *)odd_alloc : next(handle, name);
}
#endif
#ifdef WAITS
__attribute__((constructor)) static void wait_here(void) {
    int file = open(getenv("ODD_FILE"), O_WRONLY);
    if (file < 0 || write(file, "here\n", 5) != 5) abort();
    for (;;) pause();
}
#endif
SHOWN int odd = 1;
