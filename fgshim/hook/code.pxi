# Code and its variables: modules and libraries.
#
# The image of a module does not tell what it takes on a GPU (it may be compressed, or compiled when it is loaded),
# so each call that can load one is measured (outside.pxi). A module that exceeds the job's limit is unloaded, and
# the call is refused. With lazy loading the driver loads variables at the first look-up in a module, or at the
# first launch of a kernel of a library, and the local memory of a kernel at its first launch: so each function is
# remembered, and its first launch on a GPU is measured.
#
# Hooks: cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuModuleUnload,
#   cuModuleGetFunction, cuModuleGetGlobal, cuModuleGetGlobal_v2, cuLibraryLoadData, cuLibraryLoadFromFile,
#   cuLibraryUnload, cuLibraryGetKernel, cuLibraryEnumerateKernels, cuLibraryGetModule, cuLibraryGetGlobal, cuLibraryGetManaged,
#   cuLibraryGetUnifiedFunction, cuKernelGetFunction, cuFuncLoad.
# Exports: fg_begin_launch, fg_end_launch, fg_first_launch, fg_forget_code, fg_forget_launches.
# Needs: driver (fg_function); entries (fg_drop, fg_get, fg_put); ledger (fg_record_refusal); memory
#   (fg_gpu_of); outside (fg_begin_measuring, fg_capture_mode, fg_charge_outside, fg_end_measuring,
#   fg_fits_limit, fg_measuring, fg_release_outside); region (fg_attach).

cdef struct fg_code_load:  # the arguments of a call that loads code
    int call
    int unload             # the call that unloads it
    void **made
    const void *image      # or the path of a file
    unsigned int count     # of options
    void *options
    void *values
    unsigned int library_count
    void *library_options
    void *library_values

cdef struct fg_first_launch:  # of a function whose local memory may grow
    bint measures
    uint64_t local            # bytes of each thread
    fg_measuring before


cdef void fg_forget_code() noexcept nogil:
    """Forget the functions of the parent, in the child of a fork."""
    fg_publish(&fg_unlaunched, 0)
    memset(fg_unlaunched_at, 0, FG_LAUNCH_MARKS)


cdef inline uint32_t fg_all_gpus() noexcept nogil:
    return (<uint32_t> 1 << fg_region_gpus(fg_attach())) - 1


cdef inline uint8_t *fg_launch_mark(const void *function) noexcept nogil:
    """Return the mark that tells a launch whether its function may be one that was not launched yet."""
    return &fg_unlaunched_at[(<uint64_t> function >> 4) * <uint64_t> 0x9e3779b97f4a7c15 >> 54]


# -- code and functions to measure ----------------------------------------------------------------------------

cdef void fg_remember_code(void *code, int gpu, uint64_t bytes) noexcept nogil:
    """Remember a module or library. Its variables may be loaded by the first look-up."""
    cdef fg_entry *entry
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_put(FG_CODE, <uint64_t> code, gpu, bytes)
    pthread_mutex_unlock(&fg_own_lock)


cdef inline bint fg_is_launched_everywhere(const fg_entry *function) noexcept nogil:
    return function.count & fg_all_gpus() == fg_all_gpus()


cdef void fg_count_unlaunched(const fg_entry *function, int change) noexcept nogil:
    """Count one function more or less that was not launched on every GPU. A full mark stays. Under fg_own_lock."""
    cdef uint8_t *mark = fg_launch_mark(<void *> function.key)
    mark[0] += change if mark[0] < 255 else 0
    fg_publish(&fg_unlaunched, fg_unlaunched + change)


cdef void fg_remember_function(void *function, void *code, bint is_kernel) noexcept nogil:
    """Remember a function of a module or library, or a kernel of a library, to measure its first launches."""
    cdef fg_entry *entry = NULL
    if function == NULL or fg_attach() == NULL:
        return
    pthread_mutex_lock(&fg_own_lock)
    if fg_get(FG_FUNCTION, <uint64_t> function) == NULL:
        entry = fg_put(FG_FUNCTION, <uint64_t> function, 0, 0)
    if entry:
        entry.block = <uint64_t> code
        entry.share = is_kernel
        fg_count_unlaunched(entry, 1)
    pthread_mutex_unlock(&fg_own_lock)


cdef void fg_forget_functions(uint64_t code) noexcept nogil:
    """Forget the functions of a module or library that is unloaded. Under fg_own_lock."""
    cdef uint64_t at = 0
    while at < fg_room:
        if fg_entries[at].kind == FG_FUNCTION and fg_entries[at].block == code:
            if not fg_is_launched_everywhere(&fg_entries[at]):
                fg_count_unlaunched(&fg_entries[at], -1)
            fg_drop(&fg_entries[at])
        else:
            at += 1


cdef void fg_forget_launches(int gpu) noexcept nogil:
    """Forget what was loaded and launched on a GPU, with its last context. Libraries are loaded again in the next one.

    Under fg_own_lock.
    """
    cdef uint64_t at
    cdef bint was_everywhere
    for at in range(fg_room):
        if fg_entries[at].kind == FG_CODE:
            fg_entries[at].count &= ~(<uint32_t> 1 << gpu)
        elif fg_entries[at].kind == FG_FUNCTION:
            was_everywhere = fg_is_launched_everywhere(&fg_entries[at])
            fg_entries[at].count &= ~(<uint32_t> 1 << gpu)
            if was_everywhere:
                fg_count_unlaunched(&fg_entries[at], 1)


# -- loading -------------------------------------------------------------------------------------------

cdef int fg_call_loader(const fg_code_load *load) noexcept nogil:
    cdef void *real = fg_function(load.call)
    if load.call == FG_cuModuleLoadDataEx:
        return (<load_module_t> real)(load.made, load.image, load.count, load.options, load.values)
    if load.call == FG_cuLibraryLoadData or load.call == FG_cuLibraryLoadFromFile:
        return (<load_library_t> real)(
            load.made, load.image, load.options, load.values, load.count,
            load.library_options, load.library_values, load.library_count,
        )
    return (<load_t> real)(load.made, load.image)


cdef int fg_unload_again(const fg_code_load *load, const fg_measuring *loaded, uint64_t bytes) noexcept nogil:
    """Unload code that exceeds the limit, and refuse it."""
    (<ctx_in_t> fg_function(load.unload))(load.made[0])
    load.made[0] = NULL
    fg_release_outside(loaded.gpu, bytes, 0)
    fg_record_refusal(loaded.gpu, bytes)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef int fg_load_code(const fg_code_load *load) noexcept nogil:
    """Load code, and charge what the driver took for it."""
    cdef fg_measuring before
    cdef uint64_t bytes = 0
    cdef bint measures
    if not fg_function(load.call):
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    measures = fg_begin_measuring(&before)
    cdef int status = fg_call_loader(load)
    if status != CUDA_SUCCESS:
        return status
    if measures:
        bytes = fg_charge_outside(before.gpu, fg_end_measuring(&before))
    if bytes and not fg_fits_limit(&before):
        return fg_unload_again(load, &before, bytes)
    fg_remember_code(load.made[0], before.gpu if measures else 0, bytes)
    return CUDA_SUCCESS


cdef int fg_unload_code(int call, void *code) noexcept nogil:
    """Unload a module or library, and release what the driver gives back, at most what was charged for it."""
    cdef fg_measuring before
    cdef fg_entry *entry
    cdef uint64_t bytes = 0
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef bint measures = fg_begin_measuring(&before)
    cdef int status = (<ctx_in_t> real)(code)
    if status != CUDA_SUCCESS:
        return status
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_CODE, <uint64_t> code)
    if entry:
        bytes = entry.bytes if measures and entry.gpu == before.gpu else 0
        fg_drop(entry)
    fg_forget_functions(<uint64_t> code)
    pthread_mutex_unlock(&fg_own_lock)
    if bytes:
        fg_release_outside(before.gpu, min(<uint64_t> max(0, -fg_end_measuring(&before)), bytes), 0)
    return CUDA_SUCCESS


cdef int fg_load_module(int call, void **module, const void *image) noexcept nogil:
    cdef fg_code_load load
    memset(&load, 0, sizeof(load))
    load.call, load.unload = call, FG_cuModuleUnload
    load.made, load.image = module, image
    return fg_load_code(&load)


cdef public int cuModuleLoad(void **module, const void *path) noexcept nogil:
    return fg_load_module(FG_cuModuleLoad, module, path)


cdef public int cuModuleLoadData(void **module, const void *image) noexcept nogil:
    return fg_load_module(FG_cuModuleLoadData, module, image)


cdef public int cuModuleLoadFatBinary(void **module, const void *image) noexcept nogil:
    return fg_load_module(FG_cuModuleLoadFatBinary, module, image)


cdef public int cuModuleLoadDataEx(
    void **module, const void *image, unsigned int count, void *options, void *values
) noexcept nogil:
    cdef fg_code_load load
    memset(&load, 0, sizeof(load))
    load.call, load.unload = FG_cuModuleLoadDataEx, FG_cuModuleUnload
    load.made, load.image = module, image
    load.count, load.options, load.values = count, options, values
    return fg_load_code(&load)


cdef int fg_load_library(
    int call, void **library, const void *image, void *options, void *values, unsigned int count,
    void *library_options, void *library_values, unsigned int library_count
) noexcept nogil:
    cdef fg_code_load load
    load.call, load.unload = call, FG_cuLibraryUnload
    load.made, load.image = library, image
    load.count, load.options, load.values = count, options, values
    load.library_count, load.library_options, load.library_values = library_count, library_options, library_values
    return fg_load_code(&load)


cdef public int cuLibraryLoadData(
    void **library, const void *image, void *options, void *values, unsigned int count,
    void *library_options, void *library_values, unsigned int library_count
) noexcept nogil:
    return fg_load_library(
        FG_cuLibraryLoadData, library, image, options, values, count, library_options, library_values, library_count
    )


cdef public int cuLibraryLoadFromFile(
    void **library, const void *path, void *options, void *values, unsigned int count,
    void *library_options, void *library_values, unsigned int library_count
) noexcept nogil:
    return fg_load_library(
        FG_cuLibraryLoadFromFile, library, path, options, values, count, library_options, library_values, library_count
    )


cdef public int cuModuleUnload(void *module) noexcept nogil:
    return fg_unload_code(FG_cuModuleUnload, module)


cdef public int cuLibraryUnload(void *library) noexcept nogil:
    return fg_unload_code(FG_cuLibraryUnload, library)


# -- first look-ups --------------------------------------------------------------------------------------

cdef bint fg_begin_look_up(const void *code, fg_measuring *before) noexcept nogil:
    """Begin to measure a look-up, if it is the first one in a module or library on the current GPU."""
    cdef fg_entry *entry
    cdef int device = 0, gpu
    cdef bint is_first
    if code == NULL or (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device) != CUDA_SUCCESS:
        return False
    gpu = fg_gpu_of(device)
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_CODE, <uint64_t> code)
    is_first = entry != NULL and gpu >= 0 and not entry.count >> gpu & 1
    pthread_mutex_unlock(&fg_own_lock)
    return is_first and fg_begin_measuring(before)


cdef int fg_end_look_up(int status, const void *code, const fg_measuring *before) noexcept nogil:
    """Charge what the look-up took. While the job exceeds its limit, it is refused and will be measured again."""
    cdef fg_entry *entry
    cdef uint64_t bytes
    if status != CUDA_SUCCESS:
        return status
    bytes = fg_charge_outside(before.gpu, fg_end_measuring(before))
    cdef bint fits = fg_fits_limit(before)
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_CODE, <uint64_t> code)
    if entry:
        entry.bytes += bytes
        entry.gpu = before.gpu
        entry.count |= <uint32_t> fits << before.gpu
    pthread_mutex_unlock(&fg_own_lock)
    if not fits:
        fg_record_refusal(before.gpu, bytes)
    return CUDA_SUCCESS if fits else CUDA_ERROR_OUT_OF_MEMORY


cdef int fg_look_up_code(int call, void **found, void *code, const char *name) noexcept nogil:
    cdef fg_measuring before
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef bint measures = fg_begin_look_up(code, &before)
    cdef int status = (<find_code_t> real)(found, code, name)
    return fg_end_look_up(status, code, &before) if measures else status


cdef int fg_look_up_variable(int call, uint64_t *address, size_t *size, void *code, const char *name) noexcept nogil:
    cdef fg_measuring before
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef bint measures = fg_begin_look_up(code, &before)
    cdef int status = (<find_variable_t> real)(address, size, code, name)
    return fg_end_look_up(status, code, &before) if measures else status


cdef public int cuModuleGetFunction(void **function, void *module, const char *name) noexcept nogil:
    cdef int status = fg_look_up_code(FG_cuModuleGetFunction, function, module, name)
    if status == CUDA_SUCCESS:
        fg_remember_function(function[0], module, False)
    return status


cdef public int cuModuleGetGlobal(uint32_t *address, uint32_t *size, void *module, const char *name) noexcept nogil:
    return fg_look_up_variable(FG_cuModuleGetGlobal, <uint64_t *> address, <size_t *> size, module, name)


cdef public int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, void *module, const char *name) noexcept nogil:
    return fg_look_up_variable(FG_cuModuleGetGlobal_v2, address, size, module, name)


cdef public int cuLibraryGetGlobal(uint64_t *address, size_t *size, void *library, const char *name) noexcept nogil:
    return fg_look_up_variable(FG_cuLibraryGetGlobal, address, size, library, name)


cdef public int cuLibraryGetManaged(uint64_t *address, size_t *size, void *library, const char *name) noexcept nogil:
    return fg_look_up_variable(FG_cuLibraryGetManaged, address, size, library, name)


cdef public int cuLibraryGetUnifiedFunction(void **function, void *library, const char *name) noexcept nogil:
    return fg_look_up_code(FG_cuLibraryGetUnifiedFunction, function, library, name)


cdef public int cuLibraryGetModule(void **module, void *library) noexcept nogil:
    cdef fg_measuring before
    cdef void *real = fg_function(FG_cuLibraryGetModule)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef bint measures = fg_begin_look_up(library, &before)
    cdef int status = (<out_of_t> real)(module, library)
    return fg_end_look_up(status, library, &before) if measures else status


cdef public int cuLibraryGetKernel(void **kernel, void *library, const char *name) noexcept nogil:
    """Look a kernel up. The driver may load its library when the kernel is launched."""
    cdef void *real = fg_function(FG_cuLibraryGetKernel)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<find_code_t> real)(kernel, library, name)
    if status == CUDA_SUCCESS:
        fg_remember_function(kernel[0], library, True)
    return status


cdef public int cuLibraryEnumerateKernels(void **kernels, unsigned int count, void *library) noexcept nogil:
    cdef unsigned int at
    cdef void *real = fg_function(FG_cuLibraryEnumerateKernels)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<enumerate_t> real)(kernels, count, library)
    for at in range(count if status == CUDA_SUCCESS else 0):
        fg_remember_function(kernels[at], library, True)
    return status


cdef void *fg_code_of(const void *function) noexcept nogil:
    """Return the module or library of a function or kernel; NULL if it is not known."""
    cdef fg_entry *entry
    cdef uint64_t code
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_FUNCTION, <uint64_t> function)
    code = entry.block if entry else 0
    pthread_mutex_unlock(&fg_own_lock)
    return <void *> code


cdef int fg_function_of(void **function, void *kernel) noexcept nogil:
    """Ask the driver for the function of a kernel, for which it loads the library."""
    cdef fg_measuring before
    cdef void *library = fg_code_of(kernel)
    cdef bint measures = fg_begin_look_up(library, &before)
    cdef int status = (<out_of_t> fg_function(FG_cuKernelGetFunction))(function, kernel)
    return fg_end_look_up(status, library, &before) if measures else status


cdef public int cuKernelGetFunction(void **function, void *kernel) noexcept nogil:
    if not fg_function(FG_cuKernelGetFunction):
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_function_of(function, kernel)
    if status == CUDA_SUCCESS:
        fg_remember_function(function[0], fg_code_of(kernel), False)
    return status


cdef public int cuFuncLoad(void *function) noexcept nogil:
    """Load a function now. Its module was loaded when it was looked up."""
    cdef fg_measuring before
    cdef void *real = fg_function(FG_cuFuncLoad)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef bint measures = fg_begin_measuring(&before)
    cdef int status = (<ctx_in_t> real)(function)
    if status == CUDA_SUCCESS and measures:
        fg_charge_outside(before.gpu, fg_end_measuring(&before))
    return status


# -- first launches --------------------------------------------------------------------------------------

cdef bint fg_is_to_measure(void *function, int gpu, void **library) noexcept nogil:
    """Return whether a function was not launched on a GPU before, and the library if it is a kernel of one."""
    cdef fg_entry *entry
    cdef bint measures
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_FUNCTION, <uint64_t> function)
    measures = entry != NULL and not entry.count >> gpu & 1
    library[0] = <void *> entry.block if measures and entry.share else NULL
    pthread_mutex_unlock(&fg_own_lock)
    return measures


cdef void fg_is_launched(void *function, int gpu) noexcept nogil:
    """Remember that a function was launched on a GPU."""
    cdef fg_entry *entry
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_FUNCTION, <uint64_t> function)
    if entry and not fg_is_launched_everywhere(entry):
        entry.count |= <uint32_t> 1 << gpu
        if fg_is_launched_everywhere(entry):
            fg_count_unlaunched(entry, -1)
    pthread_mutex_unlock(&fg_own_lock)


cdef uint64_t fg_local_bytes(void *function) noexcept nogil:
    """Return the local memory of each thread of a function, in bytes; 0 if the driver does not tell."""
    cdef void *ask = fg_function(FG_cuFuncGetAttribute)
    cdef int bytes = 0
    if ask == NULL or (<function_attribute_t> ask)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) != CUDA_SUCCESS:
        return 0
    return max(0, bytes)


cdef int fg_prepare_launch(void *function, fg_first_launch *first) noexcept nogil:
    """Load the library of a kernel before its first launch, and find out if the launch needs more local memory."""
    cdef void *library = NULL
    cdef void *loaded = function
    cdef int device = 0, gpu, mode, status = CUDA_SUCCESS
    if (<ctx_device_t> fg_function(FG_cuCtxGetDevice))(&device) != CUDA_SUCCESS:
        return CUDA_SUCCESS
    gpu = fg_gpu_of(device)
    if gpu < 0 or not fg_is_to_measure(function, gpu, &library):
        return CUDA_SUCCESS
    mode = fg_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED)
    if library and fg_function(FG_cuKernelGetFunction):
        status = fg_function_of(&loaded, function)
    if status == CUDA_SUCCESS:
        first.local = fg_local_bytes(loaded)
    fg_capture_mode(mode)
    if status == CUDA_ERROR_OUT_OF_MEMORY:
        return status
    fg_is_launched(function, gpu)
    if status == CUDA_SUCCESS and first.local > max(fg_most_local[gpu], FG_USUAL_STACK):
        first.measures = fg_begin_measuring(&first.before)
    return CUDA_SUCCESS


cdef inline int fg_begin_launch(void *function, fg_first_launch *first) noexcept nogil:
    """Return the status of what has to be done before a launch. A function that was launched before costs nothing."""
    first.measures = False
    if fg_peek_int(&fg_unlaunched) == 0 or fg_launch_mark(function)[0] == 0:
        return CUDA_SUCCESS
    return fg_prepare_launch(function, first)


cdef void fg_end_launch(const fg_first_launch *first) noexcept nogil:
    """Charge the local memory that the launch took. A launch into a captured stream takes none yet."""
    cdef int gpu = first.before.gpu
    if fg_charge_outside(gpu, fg_end_measuring(&first.before)):
        fg_most_local[gpu] = max(fg_most_local[gpu], first.local)
