# The functions behind the hooked calls: those of the driver, of NVML and of the dynamic linker.
#
# Exports: fg_dlsym_real, fg_function, fg_is_initialized, fg_library, fg_linker_function.
# Needs: nothing.

cdef extern from "<dlfcn.h>" nogil:
    void *RTLD_NEXT
    void *RTLD_DEFAULT
    const int RTLD_LAZY, RTLD_NOLOAD, RTLD_DEEPBIND

cdef extern from "call_table.h" nogil:
    ctypedef struct fg_call_t "fg_call":
        const char *symbol
        int library
        const char *name
        int version
        int own_stream
        void *hook
    const fg_call_t *fg_calls
    void **fg_real
    void **fg_inner
    void **fg_handle
    int *fg_bound
    int fg_knows_inner
    const int FG_linker, FG_cuda, FG_nvml, FG_HOOKED, FG_ALL

cdef extern from "linker.h" nogil:
    struct link_map:
        const char *l_name
    link_map *fg_map_of(const void *)
    link_map *fg_own_map()
    bint fg_is_in_driver(const void *)
    void *fg_defined(const link_map *, const char *)
    void *fg_defined_next(const char *)
    int fg_compare(const char *, const char *)
    bint fg_before(const link_map *, const link_map *)
    void fg_clear_weak()

ctypedef void *(*dlsym_t)(void *, const char *) noexcept nogil
ctypedef void *(*dlopen_t)(const char *, int) noexcept nogil


cdef void *fg_linker_function(int at) noexcept nogil:
    """Return the dynamic linker's own function. No lock: threads that race for it find the same one."""
    cdef void *found = fg_load(&fg_real[at])
    if not found:
        found = fg_defined_next(fg_calls[at].symbol)
        fg_store(&fg_real[at], found)
    return found


cdef inline dlsym_t fg_dlsym_real() noexcept nogil:
    return <dlsym_t> fg_linker_function(FG_dlsym)


cdef void *fg_library(int library, int how) noexcept nogil:
    """Return the handle of a driver library; NULL if this process has not loaded it. The handle is never closed."""
    cdef void *handle = fg_load(&fg_handle[library])
    cdef const char *name = "libcuda.so.1" if library == FG_cuda else "libnvidia-ml.so.1"
    if not handle:
        handle = (<dlopen_t> fg_linker_function(FG_dlopen))(name, RTLD_LAZY | how)
        if handle:
            fg_store(&fg_handle[library], handle)
    return handle


cdef void fg_bind(int library) noexcept nogil:
    """Look up the exported functions of a driver library.

    No lock of the hook is held: a program may call from within dlopen, whose lock is needed here.
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
    if handle and library == FG_cuda:
        fg_clear_weak()
    set_errno(saved)


cdef inline void *fg_function(int at) noexcept nogil:
    """Return the driver's own function; NULL if this driver does not have it."""
    if not fg_load_int(&fg_bound[fg_calls[at].library]):
        fg_bind(fg_calls[at].library)
    return fg_load(&fg_real[at])


cdef bint fg_is_initialized() noexcept nogil:
    """Return whether the program has initialized CUDA. Before that, the driver answers without reading any argument."""
    cdef void *context = NULL
    cdef void *ask = fg_function(FG_cuCtxGetCurrent)
    return ask != NULL and (<ctx_out_t> ask)(&context) != CUDA_ERROR_NOT_INITIALIZED
