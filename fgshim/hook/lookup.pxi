# Symbol look-up by name: dlsym, dlvsym, dlopen, dlmopen and cuGetProcAddress.
#
# Every answer is the one without the hook, except that a function of the driver is replaced by the hook's.
#
# Hooks: fg_dlsym, fg_dlvsym, fg_dlopen, fg_dlmopen, cuGetProcAddress, cuGetProcAddress_v2.
# Exports: nothing.
# Needs: driver (fg_dlsym_real, fg_function, fg_library, fg_linker_function).

cdef extern from "deep.h" nogil:
    bint fg_may_bind_deep(const char *)

ctypedef void *(*dlvsym_t)(void *, const char *, const char *) noexcept nogil

ctypedef public struct fg_answer:
    void *value
    void *jump  # the address to jump to; NULL: return `value`


cdef int fg_find(const char *name) noexcept nogil:
    """Return the row of a hooked name, or -1. Does not allocate, lock, or read anything but the name."""
    cdef int low = 0, high = FG_HOOKED, middle, order
    if name == NULL or not ((name[0] == c"c" and name[1] == c"u") or (name[0] == c"n" and name[1] == c"v")
                            or (name[0] == c"d" and name[1] == c"l")):
        return -1
    while low < high:
        middle = (low + high) // 2
        order = fg_compare(name, fg_calls[middle].symbol)
        if order == 0:
            return middle
        if order < 0:
            high = middle
        else:
            low = middle + 1
    return -1


cdef void *fg_replaced(int at, void *found) noexcept nogil:
    """Return the hook's function for a function of the driver or the linker; else `found` unchanged."""
    if found and (fg_calls[at].library == FG_linker or fg_is_in_driver(found)):
        return fg_calls[at].hook
    return found


cdef inline fg_answer fg_return_value(void *value) noexcept nogil:
    cdef fg_answer answer
    answer.value = value
    answer.jump = NULL
    return answer


cdef inline fg_answer fg_jump_to_linker(int at) noexcept nogil:
    """Let the stub jump to the linker's own function, as if the caller had called it."""
    cdef fg_answer answer
    answer.value = NULL
    answer.jump = fg_linker_function(at)
    return answer


cdef void *fg_ask_linker(void *handle, const char *name, const char *version) noexcept nogil:
    """Look a symbol up with the linker's own function. `version` NULL: any version."""
    if version == NULL:
        return fg_dlsym_real()(handle, name)
    return (<dlvsym_t> fg_linker_function(FG_dlvsym))(handle, name, version)


cdef fg_answer fg_answer_next(int at, const char *name, const char *version, void *caller) noexcept nogil:
    """Answer RTLD_NEXT: the first definition after the caller in the order of loading."""
    cdef link_map *asks = fg_map_of(caller)
    cdef link_map *own = fg_map_of(<void *> fg_calls)
    cdef fg_answer unknown = fg_jump_to_linker(FG_dlvsym if version else FG_dlsym)
    cdef void *driver = NULL
    if asks == NULL:
        return unknown
    if fg_before(asks, own):  # the hook comes next, in place of the definition after it
        return fg_return_value(fg_replaced(at, fg_ask_linker(RTLD_NEXT, name, version)))
    if fg_calls[at].library == FG_linker:  # a library that defines the name itself asks for what it wraps
        return unknown if fg_defined(asks, name) else fg_return_value(fg_calls[at].hook)
    driver = fg_library(fg_calls[at].library, RTLD_NOLOAD)
    if driver and asks != <link_map *> driver and fg_before(asks, <link_map *> driver):
        return fg_return_value(fg_calls[at].hook)
    return unknown


cdef fg_answer fg_look_up(void *handle, const char *name, const char *version, void *caller) noexcept nogil:
    cdef int at = fg_find(name)
    cdef void *found
    cdef void *driver = NULL
    if at < 0:
        return fg_jump_to_linker(FG_dlvsym if version else FG_dlsym)
    if handle == RTLD_NEXT:
        return fg_answer_next(at, name, version, caller)
    found = fg_ask_linker(handle, name, version)
    if found == fg_calls[at].hook:  # the hook precedes the driver, even one that is not loaded
        if handle == RTLD_DEFAULT and fg_calls[at].library != FG_linker:
            driver = fg_library(fg_calls[at].library, RTLD_NOLOAD)
        found = fg_ask_linker(RTLD_NEXT, name, version)  # last, so that dlerror reports this look-up
        if not found and driver:
            return fg_return_value(fg_calls[at].hook)
    return fg_return_value(fg_replaced(at, found))


cdef public fg_answer fg_dlsym(void *handle, const char *name, void *unused, void *caller) noexcept nogil:
    """Answer dlsym. Called by the stub with the address of the caller."""
    return fg_look_up(handle, name, NULL, caller)


cdef public fg_answer fg_dlvsym(void *handle, const char *name, const char *version, void *caller) noexcept nogil:
    if version == NULL:
        return fg_jump_to_linker(FG_dlvsym)
    return fg_look_up(handle, name, version, caller)


cdef fg_answer fg_open_library(int at, const char *file, long mode) noexcept nogil:
    """Let the stub jump to the linker. Its `value` tells the stub to keep RTLD_DEEPBIND."""
    cdef fg_answer answer = fg_jump_to_linker(at)
    cdef int saved = errno
    if mode & RTLD_DEEPBIND and fg_may_bind_deep(file):
        answer.value = answer.jump
    set_errno(saved)
    return answer


cdef public fg_answer fg_dlopen(const char *file, long mode, void *unused, void *caller) noexcept nogil:
    """Answer dlopen. With RTLD_DEEPBIND, a library that has to do with CUDA would find the driver before the hook."""
    return fg_open_library(FG_dlopen, file, mode)


cdef public fg_answer fg_dlmopen(long space, const char *file, long mode, void *caller) noexcept nogil:
    return fg_open_library(FG_dlmopen, file, mode)


cdef void fg_ask_inner(int at) noexcept nogil:
    """Ask the driver's own look-up for this ABI. It returns an address that the driver does not export.

    For an ABI that is newer than the driver, it returns the address of the newest one that the driver has.
    Such an address is not this row's.
    """
    cdef void *found = NULL
    cdef uint64_t flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM if fg_calls[at].own_stream else 0
    cdef void *look_up2 = fg_function(FG_cuGetProcAddress_v2)
    cdef void *look_up = fg_function(FG_cuGetProcAddress)
    cdef int status = 1
    if look_up2:
        status = (<find2_t> look_up2)(fg_calls[at].name, &found, fg_calls[at].version, flags, NULL)
    elif look_up:
        status = (<find_t> look_up)(fg_calls[at].name, &found, fg_calls[at].version, flags)
    fg_store(&fg_inner[at], found if status == CUDA_SUCCESS and fg_function(at) else NULL)


cdef bint fg_fits_better(int at, int than, int version, bint own_stream) noexcept nogil:
    """Return whether row `at` fits the requested ABI better: the newest version that is not newer than requested."""
    cdef bint fits = fg_calls[at].version <= version
    if than < 0 or fits != (fg_calls[than].version <= version):
        return than < 0 or fits
    if fg_calls[at].own_stream != fg_calls[than].own_stream:
        return fg_calls[at].own_stream == own_stream
    return fg_calls[at].version > fg_calls[than].version


cdef void fg_route(void **found, int version, uint64_t flags) noexcept nogil:
    """Replace the driver's function by the hook's. An equal address means an equal ABI, whatever the requested name.

    No lock: threads that race for the addresses find the same ones.
    """
    cdef int at, best = -1
    cdef bint own_stream = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0
    if found == NULL or found[0] == NULL:
        return
    if not fg_load_int(&fg_knows_inner):
        for at in range(FG_HOOKED):
            if fg_calls[at].version:
                fg_ask_inner(at)
        fg_store_int(&fg_knows_inner, 1)
    for at in range(FG_HOOKED):
        if fg_calls[at].library == FG_cuda and (found[0] == fg_load(&fg_inner[at]) or found[0] == fg_load(&fg_real[at])):
            if fg_fits_better(at, best, version, own_stream):
                best = at
    if best >= 0:
        found[0] = fg_calls[best].hook


cdef public int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) noexcept nogil:
    cdef void *real = fg_function(FG_cuGetProcAddress)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<find_t> real)(name, found, version, flags)
    if status == CUDA_SUCCESS:
        fg_route(found, version, flags)
    return status


cdef public int cuGetProcAddress_v2(
    const char *name, void **found, int version, uint64_t flags, int *symbol_status
) noexcept nogil:
    cdef void *real = fg_function(FG_cuGetProcAddress_v2)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<find2_t> real)(name, found, version, flags, symbol_status)
    if status == CUDA_SUCCESS:
        fg_route(found, version, flags)
    return status
