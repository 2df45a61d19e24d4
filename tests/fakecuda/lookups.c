/* lookups: how a program sees names, by each way that the linker has. Built with -rdynamic.
   With -DASKER it is libasker.so, a library that asks for itself; with -DDEEP as well it is libdeep.so, which is
   linked against the driver. */
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
__attribute__((noinline)) void *asker_open(const char *name) {   /* by this library's own RUNPATH */
    void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    __asm__ volatile("" ::: "memory");
    return found;
}
#ifdef DEEP
extern int cuMemAlloc_v2(void), cuDriverGetVersion(void);
void *deep_linked(const char *name) { return strcmp(name, "cuDriverGetVersion") ? (void *)cuMemAlloc_v2 : (void *)cuDriverGetVersion; }
#endif
#else
typedef void *look(void *, const char *);
static void *driver, *nvml, *libc, *library, *deep;

static const char *of(void *address) {
    Dl_info about;
    const char *slash;
    if (!address) return "nobody";
    if (!dladdr(address, &about)) return "unknown";
    slash = strrchr(about.dli_fname, '/');
    return slash ? slash + 1 : about.dli_fname;
}
static void *versioned(void *handle, const char *name) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *found = NULL;
    for (int i = 0; i < 3 && !found; i++) found = dlvsym(handle, name, versions[i]);
    return found;
}
static void *by(const char *way, const char *name) {
    look *ask = library ? dlsym(library, "asker") : NULL;
    if (!strcmp(way, "driver")) return dlsym(driver, name);
    if (!strcmp(way, "nvml")) return dlsym(nvml, name);
    if (!strcmp(way, "libc")) return dlsym(libc, name);
    if (!strcmp(way, "next")) return dlsym(RTLD_NEXT, name);
    if (!strcmp(way, "default")) return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "global")) return dlsym(dlopen(NULL, RTLD_LAZY), name);
    if (!strcmp(way, "asker-default")) return ask(RTLD_DEFAULT, name);
    if (!strcmp(way, "asker-next")) return ask(RTLD_NEXT, name);
    if (!strcmp(way, "versioned-driver")) return versioned(driver, name);
    if (!strcmp(way, "versioned-default")) return versioned(RTLD_DEFAULT, name);
    if (!strcmp(way, "versioned-next")) return versioned(RTLD_NEXT, name);
    if (!strcmp(way, "versioned-libc")) return versioned(libc, name);
    /* a dlsym of one's own, to go round the one that is in the way */
    if (!strcmp(way, "regained-default")) return ((look *)versioned(RTLD_DEFAULT, "dlsym"))(driver, name);
    if (!strcmp(way, "regained-next")) return ((look *)versioned(RTLD_NEXT, "dlsym"))(driver, name);
    if (!strcmp(way, "regained-libc")) return ((look *)dlsym(libc, "dlsym"))(driver, name);
    if (!strcmp(way, "regained-asker")) return ((look *)ask(RTLD_NEXT, "dlsym"))(driver, name);
    /* a library that sees its own dependencies first */
    if (!strcmp(way, "deep")) return ((look *)dlsym(deep, "asker"))(driver, name);
    if (!strcmp(way, "deep-open")) return dlsym(((void *(*)(const char *))dlsym(deep, "asker_open"))("libcuda.so.1"), name);
    if (!strcmp(way, "deep-linked")) return ((void *(*)(const char *))dlsym(deep, "deep_linked"))(name);
    if (!strcmp(way, "plugin")) return dlsym(((void *(*)(const char *))dlsym(library, "asker_open"))("libplugin.so"), name);
    if (!strcmp(way, "renamed")) return dlsym(dlopen(getenv("LOOKUPS_DRIVER"), RTLD_NOW | RTLD_LOCAL), name);
    /* a namespace of its own, asked from here */
    if (!strcmp(way, "apart")) return dlsym(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL), name);
    abort();
}
/* lookups WAY NAME …: who answers. */
int main(int argc, char **argv) {
    if (!getenv("WITHOUT_DRIVER")) {
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        deep = dlopen("libdeep.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    }
    libc = dlopen("libc.so.6", RTLD_LAZY);
    library = dlopen("libasker.so", RTLD_NOW | RTLD_LOCAL);
    for (int i = 1; i + 1 < argc; i += 2) {
        dlerror();
        void *found = by(argv[i], argv[i + 1]);
        const char *complaint = found ? NULL : dlerror();
        printf("%s%s\n", of(found), found || complaint ? "" : " (and no dlerror)");
    }
    return 0;
}
#endif
