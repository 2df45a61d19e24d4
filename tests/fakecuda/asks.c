/* asks LIBRARY [VERSION …] <NAMES: what each look-up of each name answers, one line each:

       WAY VERSION FLAGS NAME STATUS SYMBOL-STATUS LIBRARY WHERE

   WAY: dlsym, dlvsym, and with versions also cuGetProcAddress and cuGetProcAddress_v2 with each version and flag.
   WHERE: the symbol in the hook; in another library the address within it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*find_t)(const char *, void **, int, uint64_t);
typedef int (*find2_t)(const char *, void **, int, uint64_t, int *);

static void print(const char *way, int version, int flags, const char *name, int status, int symbol_status, void *found) {
    Dl_info about = {"nothing", 0, "nothing", 0};
    if (found) dladdr(found, &about);
    const char *slash = strrchr(about.dli_fname, '/'), *library = slash ? slash + 1 : about.dli_fname;
    printf("%s %d %d %s %d %d %s ", way, version, flags, name, status, symbol_status, library);
    if (!strcmp(library, "libfgshim.so")) puts(about.dli_sname ? about.dli_sname : "hidden");
    else printf("%lx\n", found ? (unsigned long)((char *)found - (char *)about.dli_fbase) : 0ul);
}
static void ask_driver(find_t find, find2_t find2, int version, const char *name) {
    for (int flags = 0; flags < 3; flags++) {
        void *found = NULL, *found2 = NULL;
        int symbol_status = -1, status;
        if (find) status = find(name, &found, version, (uint64_t)flags), print("cuGetProcAddress", version, flags, name, status, -1, found);
        if (find2) status = find2(name, &found2, version, (uint64_t)flags, &symbol_status), print("cuGetProcAddress_v2", version, flags, name, status, symbol_status, found2);
    }
}
int main(int argc, char **argv) {
    char name[256];
    void *driver = dlopen(argv[1], RTLD_NOW);
    if (!driver) return fprintf(stderr, "%s\n", dlerror()), 1;
    find_t find = (find_t)dlsym(driver, "cuGetProcAddress");
    find2_t find2 = (find2_t)dlsym(driver, "cuGetProcAddress_v2");
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        print("dlsym", 0, 0, name, 0, 0, dlsym(driver, name));
        print("dlvsym", 0, 0, name, 0, 0, dlvsym(driver, name, "libcuda.so.1"));
        for (int at = 2; at < argc; at++) ask_driver(find, find2, atoi(argv[at]), name);
    }
    return 0;
}
