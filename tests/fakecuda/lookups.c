/* lookups: how a program sees names, by each way that the linker has. One line a question: 1 where the answers agree.
   Built with -rdynamic and against libasker.so, which is lookups.c again with -DASKER. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ASKER
int asker_own(void) { return 7; }
__attribute__((noinline)) void *asker(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    __asm__ volatile("" ::: "memory");   /* no tail call: the caller is this library */
    return found;
}
#else
static const char *of(void *address) {
    Dl_info about;
    const char *slash;
    if (!address) return "nobody";
    if (!dladdr(address, &about)) return "unknown";
    slash = strrchr(about.dli_fname, '/');
    return slash ? slash + 1 : about.dli_fname;
}
/* lookups HANDLE NAME …: who answers; HANDLE: driver, nvml, libc, next, default, global, asker-default, asker-next */
int main(int argc, char **argv) {
    void *driver = getenv("WITHOUT_DRIVER") ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *nvml = getenv("WITHOUT_DRIVER") ? NULL : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *library = dlopen("libasker.so", RTLD_NOW | RTLD_LOCAL);
    void *(*ask)(void *, const char *) = library ? dlsym(library, "asker") : NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *handle = argv[i], *name = argv[i + 1];
        void *found = NULL;
        if (!strcmp(handle, "driver")) found = dlsym(driver, name);
        else if (!strcmp(handle, "nvml")) found = dlsym(nvml, name);
        else if (!strcmp(handle, "libc")) found = dlsym(dlopen("libc.so.6", RTLD_LAZY), name);
        else if (!strcmp(handle, "next")) found = dlsym(RTLD_NEXT, name);
        else if (!strcmp(handle, "default")) found = dlsym(RTLD_DEFAULT, name);
        else if (!strcmp(handle, "global")) found = dlsym(dlopen(NULL, RTLD_LAZY), name);
        else if (!strcmp(handle, "asker-default")) found = ask(RTLD_DEFAULT, name);
        else if (!strcmp(handle, "asker-next")) found = ask(RTLD_NEXT, name);
        const char *complaint = found ? NULL : dlerror();
        printf("%s%s\n", of(found), found || complaint ? "" : " (and no dlerror)");
    }
    return 0;
}
#endif
