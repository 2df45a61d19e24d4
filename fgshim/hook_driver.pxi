# The real functions, and who is given which when a program looks one up by name.

cdef extern from *:
    """
    #include <dlfcn.h>
    #include <link.h>
    #include "_table.h"

    /* dlsym asks who called it, so it must be reached by a jump, with the caller's
       return address still on the stack: a C wrapper would change what RTLD_NEXT
       and RTLD_DEFAULT mean. fg_dlsym answers, or says where to jump. */
    #if defined(__x86_64__)
    __asm__(".pushsection .text.dlsym,\\"ax\\",@progbits; .globl dlsym; .type dlsym,@function; dlsym: .cfi_startproc;"
            "endbr64; push %rdi; .cfi_adjust_cfa_offset 8; push %rsi; .cfi_adjust_cfa_offset 8;"
            "push %rdx; .cfi_adjust_cfa_offset 8; mov 24(%rsp), %rdx; call fg_dlsym; mov %rdx, %r11;"
            "pop %rdx; .cfi_adjust_cfa_offset -8; pop %rsi; .cfi_adjust_cfa_offset -8;"
            "pop %rdi; .cfi_adjust_cfa_offset -8; test %r11, %r11; jz 1f; jmp *%r11; 1: ret;"
            ".cfi_endproc; .size dlsym, . - dlsym; .popsection");
    #elif defined(__aarch64__)
    __asm__(".pushsection .text.dlsym,\\"ax\\",@progbits; .globl dlsym; .type dlsym,%function; dlsym: .cfi_startproc;"
            "hint #34; stp x29, x30, [sp, #-48]!; .cfi_adjust_cfa_offset 48; .cfi_rel_offset x29, 0;"
            ".cfi_rel_offset x30, 8; mov x29, sp; stp x0, x1, [sp, #16]; str x2, [sp, #32]; mov x2, x30;"
            "bl fg_dlsym; mov x17, x0; mov x16, x1; ldp x0, x1, [sp, #16]; ldr x2, [sp, #32];"
            "ldp x29, x30, [sp], #48; .cfi_adjust_cfa_offset -48; .cfi_restore x29; .cfi_restore x30;"
            "cbz x16, 1f; br x16; 1: mov x0, x17; ret; .cfi_endproc; .size dlsym, . - dlsym; .popsection");
    #else
    #error "the hook's dlsym is written for x86_64 and aarch64"
    #endif

    enum { FG_linker, FG_cuda, FG_nvml };
    #define FG_NAME(export, ...) FG_##export,
    enum { FG_CALLS(FG_NAME) FG_HOOKED, FG_LAST_HOOKED = FG_HOOKED - 1, FG_ASKED(FG_NAME) FG_ALL };

    /* Our own functions by address alone: their types differ, and are declared elsewhere. */
    #define FG_DECLARE(export, ...) extern char fg_at_##export[] __asm__(#export);
    FG_CALLS(FG_DECLARE)

    typedef struct { const char *symbol; int library; const char *name; int version, ptsz; void *hook; } fg_call;
    #define FG_ROW(export, library, name, version, ptsz) {#export, FG_##library, name, version, ptsz, fg_at_##export},
    #define FG_PLAIN_ROW(export, library) {#export, FG_##library, "", 0, 0, 0},
    static const fg_call fg_calls[] = { FG_CALLS(FG_ROW) FG_ASKED(FG_PLAIN_ROW) };

    static void *fg_real[FG_ALL];    /* as the library exports it */
    static void *fg_inner[FG_ALL];   /* as cuGetProcAddress gives it */
    static void *fg_handle[3];
    static int fg_bound[3];
    static void *fg_linker_dlsym;

    #define fg_load(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define fg_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    static struct link_map *fg_map_of(const void *address) {
        Dl_info info;
        struct link_map *map = NULL;
        return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
    }
    static int fg_before(struct link_map *map, struct link_map *later) {
        while (map && map != later) map = map->l_next;
        return map != NULL;
    }
    """
    ctypedef struct fg_call_t "fg_call":
        const char *symbol
        int library
        const char *name
        int version
        int ptsz
        void *hook
    struct link_map:
        pass
    ctypedef struct Dl_info:
        const char *dli_fname
    const fg_call_t *fg_calls
    void **fg_real
    void **fg_inner
    void **fg_handle
    int *fg_bound
    void *fg_linker_dlsym
    const int FG_linker, FG_cuda, FG_nvml, FG_HOOKED, FG_ALL
    void *RTLD_NEXT
    void *RTLD_DEFAULT
    const int RTLD_LAZY, RTLD_NOLOAD
    void *dlopen(const char *, int) nogil
    void *dlvsym(void *, const char *, const char *) nogil
    int dladdr(const void *, Dl_info *) nogil
    void *fg_load(void *) nogil
    int fg_load_int "fg_load"(int *) nogil
    void fg_store(void *, void *) nogil
    void fg_store_int "fg_store"(int *, int) nogil
    link_map *fg_map_of(const void *) nogil
    bint fg_before(link_map *, link_map *) nogil

ctypedef void *(*dlsym_t)(void *, const char *) noexcept nogil

ctypedef public struct fg_answer:
    void *value
    void *jump  # where to go on instead, when it is not NULL


cdef dlsym_t fg_dlsym_real() noexcept nogil:
    """The linker's dlsym. Threads that race for it find the same one, so there is nothing to lock."""
    cdef void *found = fg_load(&fg_linker_dlsym)
    if not found:
        found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34")
        if not found:
            found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17")
        if not found:
            found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5")
        fg_store(&fg_linker_dlsym, found)
    return <dlsym_t> found


cdef void *fg_library(int library, int how) noexcept nogil:
    """The driver's library, or NULL where this process has not loaded it. Never closed again."""
    cdef void *handle = fg_load(&fg_handle[library])
    if not handle:
        handle = dlopen("libcuda.so.1" if library == FG_cuda else "libnvidia-ml.so.1", RTLD_LAZY | how)
        if handle:
            fg_store(&fg_handle[library], handle)
    return handle


cdef void fg_bind(int library) noexcept nogil:
    """Find the library's own functions.

    Without a lock: a program can call us from within dlopen, whose lock we need here.
    """
    cdef int at
    cdef void *handle = fg_library(library, RTLD_NOLOAD)
    if not handle:
        handle = fg_library(library, 0)
    if not handle:
        return
    for at in range(FG_ALL):
        if fg_calls[at].library == library:
            fg_store(&fg_real[at], fg_dlsym_real()(handle, fg_calls[at].symbol))
    fg_store_int(&fg_bound[library], 1)


cdef inline void *fg_function(int at) noexcept nogil:
    """The driver's own function; NULL where this driver has none."""
    if not fg_load_int(&fg_bound[fg_calls[at].library]):
        fg_bind(fg_calls[at].library)
    return fg_load(&fg_real[at])


cdef int fg_find(const char *name) noexcept nogil:
    """The row of a hooked name, or -1. Must not allocate, lock, or look at anything but the name."""
    cdef int low = 0, high = FG_HOOKED, middle, order
    if name == NULL or not ((name[0] == c"c" and name[1] == c"u") or (name[0] == c"n" and name[1] == c"v")
                            or (name[0] == c"d" and name[1] == c"l")):
        return -1
    while low < high:
        middle = (low + high) // 2
        order = strcmp(name, fg_calls[middle].symbol)
        if order == 0:
            return middle
        if order < 0:
            high = middle
        else:
            low = middle + 1
    return -1


cdef bint fg_is_drivers(const void *address) noexcept nogil:
    """Whether a driver's library, wherever it was loaded from, contains this address."""
    cdef Dl_info info
    cdef const char *name
    if not dladdr(address, &info) or info.dli_fname == NULL:
        return False
    name = strrchr(info.dli_fname, c"/")
    name = info.dli_fname if name == NULL else name + 1
    return strncmp(name, "libcuda.so", 10) == 0 or strncmp(name, "libnvidia-ml.so", 15) == 0


cdef void *fg_replaced(int at, void *found) noexcept nogil:
    """Every answer is what it would have been, but for the driver's own functions."""
    if found and (fg_calls[at].library == FG_linker or fg_is_drivers(found)):
        return fg_calls[at].hook
    return found


cdef fg_answer fg_answer_next(int at, const char *name, void *caller) noexcept nogil:
    """RTLD_NEXT: what comes after the caller in the order of loading."""
    cdef fg_answer answer
    cdef link_map *asks = fg_map_of(caller)
    cdef link_map *own = fg_map_of(<void *> fg_calls)
    cdef void *driver = NULL
    answer.value = NULL
    answer.jump = <void *> fg_dlsym_real()
    if fg_calls[at].library == FG_linker or asks == NULL:
        return answer
    if fg_before(asks, own):  # then we come next, in the place of what comes after us
        answer.value = fg_replaced(at, fg_dlsym_real()(RTLD_NEXT, name))
        answer.jump = NULL
        return answer
    driver = fg_library(fg_calls[at].library, RTLD_NOLOAD)
    if driver and asks != <link_map *> driver and fg_before(asks, <link_map *> driver):
        answer.value = fg_calls[at].hook
        answer.jump = NULL
    return answer


cdef public fg_answer fg_dlsym(void *handle, const char *name, void *caller) noexcept nogil:
    """What dlsym says: called by its stub, with the address that it was called from."""
    cdef fg_answer answer
    cdef int at = fg_find(name)
    cdef void *found
    cdef void *driver = NULL
    answer.value = NULL
    answer.jump = <void *> fg_dlsym_real()
    if at < 0:
        return answer
    if handle == RTLD_NEXT:
        return fg_answer_next(at, name, caller)
    answer.jump = NULL
    found = fg_dlsym_real()(handle, name)
    if found == fg_calls[at].hook:  # we stand in front of the driver, even of one that is not there
        if handle == RTLD_DEFAULT:
            driver = fg_library(fg_calls[at].library, RTLD_NOLOAD)
        found = fg_dlsym_real()(RTLD_NEXT, name)  # last, so that dlerror speaks of it
        if not found and driver:
            answer.value = fg_calls[at].hook
            return answer
    answer.value = fg_replaced(at, found)
    return answer


cdef void *fg_inner_of(int at) noexcept nogil:
    """What the driver's own look-up gives for this very ABI: an address that it does not export."""
    cdef void *found = fg_load(&fg_inner[at])
    cdef uint64_t flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM if fg_calls[at].ptsz else 0
    cdef void *look_up2 = fg_function(FG_cuGetProcAddress_v2)
    cdef void *look_up = fg_function(FG_cuGetProcAddress)
    if found:
        return found
    if look_up2:
        (<find2_t> look_up2)(fg_calls[at].name, &found, fg_calls[at].version, flags, NULL)
    elif look_up:
        (<find_t> look_up)(fg_calls[at].name, &found, fg_calls[at].version, flags)
    fg_store(&fg_inner[at], found)
    return found


cdef void fg_route(const char *name, void **found) noexcept nogil:
    """Put our function in the place of the driver's: the same address is the same ABI."""
    cdef int at
    if name == NULL or found == NULL or found[0] == NULL or name[0] != c"c":
        return
    for at in range(FG_HOOKED):
        if strcmp(fg_calls[at].name, name) == 0 and (found[0] == fg_inner_of(at) or found[0] == fg_function(at)):
            found[0] = fg_calls[at].hook
            return


cdef public int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) noexcept nogil:
    cdef void *real = fg_function(FG_cuGetProcAddress)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<find_t> real)(name, found, version, flags)
    if status == CUDA_SUCCESS:
        fg_route(name, found)
    return status


cdef public int cuGetProcAddress_v2(
    const char *name, void **found, int version, uint64_t flags, int *symbol_status
) noexcept nogil:
    cdef void *real = fg_function(FG_cuGetProcAddress_v2)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<find2_t> real)(name, found, version, flags, symbol_status)
    if status == CUDA_SUCCESS:
        fg_route(name, found)
    return status
