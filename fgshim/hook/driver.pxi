# The table of hooked calls, and the real functions behind them.

cdef extern from *:
    """
    #include <dlfcn.h>
    #include <link.h>
    #include "_calls.h"

    enum { FG_linker, FG_cuda, FG_nvml };
    #define FG_NAME(export, ...) FG_##export,
    enum { FG_CALLS(FG_NAME) FG_HOOKED, FG_LAST_HOOKED = FG_HOOKED - 1, FG_ASKED(FG_NAME) FG_ALL };

    /* Our own functions by address alone: their types differ, and are declared elsewhere. */
    #define FG_DECLARE(export, ...) extern char fg_at_##export[] __asm__(#export);
    FG_CALLS(FG_DECLARE)

    typedef struct { const char *symbol; int library; const char *name; int version, own_stream; void *hook; } fg_call;
    #define FG_ROW(export, library, name, version, own_stream) \
        {#export, FG_##library, name, version, own_stream, fg_at_##export},
    #define FG_PLAIN_ROW(export, library) {#export, FG_##library, "", 0, 0, 0},
    static const fg_call fg_calls[] = { FG_CALLS(FG_ROW) FG_ASKED(FG_PLAIN_ROW) };

    static void *fg_real[FG_ALL];    /* as the library exports it */
    static void *fg_inner[FG_ALL];   /* as cuGetProcAddress gives it */
    static void *fg_handle[3];
    static int fg_bound[3], fg_knows_inner;

    #define fg_load(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define fg_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    static struct link_map *fg_map_of(const void *address) {
        Dl_info info;
        struct link_map *map = NULL;
        return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
    }

    /* The linker's own functions cannot be asked for: dlsym and dlvsym are hooked, and a versioned reference to them
       is bound to us like any other. So the next library that defines one is looked for, as RTLD_NEXT would. */
    static const char *fg_dynamic(const struct link_map *map, ElfW(Sxword) tag) {
        for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++)
            if (d->d_tag == tag)
                return (const char *)(d->d_un.d_ptr + (d->d_un.d_ptr < map->l_addr ? map->l_addr : 0));
        return NULL;
    }
    static void *fg_defined(const struct link_map *map, const char *name) {
        const uint32_t *hash = (const uint32_t *)fg_dynamic(map, DT_GNU_HASH);
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)fg_dynamic(map, DT_SYMTAB);
        const char *strings = fg_dynamic(map, DT_STRTAB);
        uint32_t value = 5381, at;
        if (!hash || !symbols || !strings || !hash[0]) return NULL;
        for (const char *c = name; *c; c++) value = value * 33 + (unsigned char)*c;
        const uint32_t *buckets = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / 4), *chain = buckets + hash[0] - hash[1];
        for (at = buckets[value % hash[0]]; at >= hash[1]; at++) {
            if ((chain[at] | 1) == (value | 1) && symbols[at].st_shndx && !strcmp(strings + symbols[at].st_name, name))
                return (void *)(map->l_addr + symbols[at].st_value);
            if (chain[at] & 1) break;
        }
        return NULL;
    }
    static void *fg_defined_next(const char *name) {
        struct link_map *own = fg_map_of(fg_calls), *map = own;
        void *found = NULL;
        while (map && !found && (map = map->l_next)) found = fg_defined(map, name);
        for (map = own; map && map->l_prev; ) map = map->l_prev;
        for (; map && map != own && !found; map = map->l_next) found = fg_defined(map, name);
        return found;
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
        int own_stream
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
    int fg_knows_inner
    const int FG_linker, FG_cuda, FG_nvml, FG_HOOKED, FG_ALL
    void *RTLD_NEXT
    void *RTLD_DEFAULT
    const int RTLD_LAZY, RTLD_NOLOAD
    int dladdr(const void *, Dl_info *) nogil
    void *fg_load(void *) nogil
    int fg_load_int "fg_load"(int *) nogil
    void fg_store(void *, void *) nogil
    void fg_store_int "fg_store"(int *, int) nogil
    link_map *fg_map_of(const void *) nogil
    void *fg_defined(const link_map *, const char *) nogil
    void *fg_defined_next(const char *) nogil
    bint fg_before(link_map *, link_map *) nogil

ctypedef void *(*dlsym_t)(void *, const char *) noexcept nogil
ctypedef void *(*dlopen_t)(const char *, int) noexcept nogil


cdef void *fg_linkers(int at) noexcept nogil:
    """The linker's own function. Threads that race for it find the same one, so there is nothing to lock."""
    cdef void *found = fg_load(&fg_real[at])
    if not found:
        found = fg_defined_next(fg_calls[at].symbol)
        fg_store(&fg_real[at], found)
    return found


cdef inline dlsym_t fg_dlsym_real() noexcept nogil:
    return <dlsym_t> fg_linkers(FG_dlsym)


cdef void *fg_library(int library, int how) noexcept nogil:
    """The driver's library, or NULL where this process has not loaded it. Never closed again."""
    cdef void *handle = fg_load(&fg_handle[library])
    cdef const char *name = "libcuda.so.1" if library == FG_cuda else "libnvidia-ml.so.1"
    if not handle:
        handle = (<dlopen_t> fg_linkers(FG_dlopen))(name, RTLD_LAZY | how)
        if handle:
            fg_store(&fg_handle[library], handle)
    return handle


cdef void fg_bind(int library) noexcept nogil:
    """Find the library's own functions.

    Without a lock: a program can call us from within dlopen, whose lock we need here.
    """
    cdef int at, saved = errno
    cdef void *handle = fg_library(library, RTLD_NOLOAD)
    if not handle:
        handle = fg_library(library, 0)
    for at in range(FG_ALL if handle else 0):
        if fg_calls[at].library == library:
            fg_store(&fg_real[at], fg_dlsym_real()(handle, fg_calls[at].symbol))
    if handle:
        fg_store_int(&fg_bound[library], 1)
    set_errno(saved)


cdef inline void *fg_function(int at) noexcept nogil:
    """The driver's own function; NULL where this driver has none."""
    if not fg_load_int(&fg_bound[fg_calls[at].library]):
        fg_bind(fg_calls[at].library)
    return fg_load(&fg_real[at])
