# fgprove: checks in a job's own environment, before its script, that enforcement is effective.
#
# An ordinary dynamic program, like a user's: the hook is preloaded into it. It calls no function of the driver that
# needs an initialised driver. Its exit status is the answer (docs/design/enforcement.md).
#
# cython: language_level=3, cdivision=True

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport strcmp, strcpy, strlen, strrchr

from fgshim.region cimport fg_region, fg_region_flaw

cdef extern from "<dlfcn.h>" nogil:
    int RTLD_LAZY, RTLD_NOLOAD
    ctypedef struct Dl_info:
        const char *dli_fname
    void *dlopen(const char *name, int how)
    void *dlsym(void *handle, const char *name)
    int dladdr(const void *address, Dl_info *info)

cdef extern from "kernel.h" nogil:
    int O_RDWR, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
    struct stat_t "stat":
        unsigned int st_mode
        long st_size
    int fstat(int fd, stat_t *about)
    int fg_is_regular(unsigned int mode)
    int open(const char *path, int flags)
    long read(int fd, void *to, size_t length)
    unsigned long strtoul(const char *text, char **end, int base)

cdef enum:  # exit codes: see spawner/prove.pxi
    HOLDS = 90
    NOT_LOADED
    NOT_FIRST
    NOT_LOOKED_UP
    NO_REGION
    NOT_ITS

ctypedef int (*look_up_t)(const char *, void **, int, uint64_t, int *) noexcept nogil

cdef fg_region region_copy


cdef long length_of(int fd) noexcept nogil:
    """Return the length of a regular file in bytes; -1 if it is none."""
    cdef stat_t about
    return about.st_size if fstat(fd, &about) == 0 and fg_is_regular(about.st_mode) else -1


cdef bint is_hooks(const void *function, const char *hook) noexcept nogil:
    cdef Dl_info where
    return dladdr(function, &where) != 0 and where.dli_fname != NULL and strcmp(where.dli_fname, hook) == 0


cdef int of_driver(const char *hook) noexcept nogil:
    """Return whether the hook answers for the driver, by every look-up. Without a driver the answer is yes."""
    cdef void *driver = dlopen(b"libcuda.so.1", RTLD_LAZY)
    cdef void *look_up
    cdef void *found = NULL
    cdef int symbol = 0
    if driver == NULL:
        return HOLDS
    if not is_hooks(dlsym(driver, b"cuMemAlloc_v2"), hook):
        return NOT_FIRST
    look_up = dlsym(driver, b"cuGetProcAddress_v2")
    if look_up == NULL:  # before CUDA 12
        return HOLDS
    if not is_hooks(look_up, hook):
        return NOT_LOOKED_UP
    if (<look_up_t> look_up)(b"cuMemAlloc", &found, 12000, 0, &symbol) == 0 and found and not is_hooks(found, hook):
        return NOT_LOOKED_UP
    return HOLDS


cdef int of_region(const char *hook, char **about) noexcept nogil:
    """Return whether the region beside the hook is writable, valid, and this job's."""
    cdef char path[4200]
    cdef int fd
    cdef long length
    if strlen(hook) > 4096:
        return NO_REGION
    strcpy(path, hook)
    strcpy(strrchr(path, c"/") + 1, b"region")
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    length = length_of(fd) if fd >= 0 else -1
    if length < 0 or read(fd, &region_copy, sizeof(region_copy)) != <long> sizeof(region_copy):
        return NO_REGION
    if fg_region_flaw(&region_copy, <uint64_t> length):
        return NO_REGION
    if (region_copy.job != strtoul(about[0], NULL, 10) or region_copy.attempt != strtoul(about[1], NULL, 10)
            or region_copy.seal != strtoul(about[2], NULL, 16)):
        return NOT_ITS
    return HOLDS


cdef public int main(int argc, char **argv) noexcept nogil:
    """Run `fgprove HOOK JOB ATTEMPT SEAL`."""
    if argc != 5 or argv[1][0] != c"/":
        return 2
    if dlopen(argv[1], RTLD_LAZY | RTLD_NOLOAD) == NULL:
        return NOT_LOADED
    cdef int found = of_region(argv[1], argv + 2)
    return of_driver(argv[1]) if found == HOLDS else found
