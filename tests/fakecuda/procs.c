/* procs VERSION FLAGS NAME …: what cuGetProcAddress says of each name: "<status> <symbol status> <library>". */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found;
    int (*find2)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    int (*find)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
    for (int i = 3; i < argc; i++) {
        Dl_info about = {"/nobody", 0, "nothing", 0};
        int said = -1, status;
        found = NULL;
        if (getenv("PROCS_OLD")) status = find(argv[i], &found, atoi(argv[1]), strtoull(argv[2], NULL, 10));
        else status = find2(argv[i], &found, atoi(argv[1]), strtoull(argv[2], NULL, 10), &said);
        if (found) dladdr(found, &about);
        printf("%d %d %s %s\n", status, said, strrchr(about.dli_fname, '/') + 1, about.dli_sname ? about.dli_sname : "inner");
    }
    return 0;
}
