# The calls that launch work on a GPU. A launch of a paced job waits for its turn; any other goes to the
# driver at once.
#
# Hooks: cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
#   cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernelMultiDevice,
#   cuGraphLaunch, cuGraphLaunch_ptsz, cuLaunch, cuLaunchGrid, cuLaunchGridAsync, cuStreamDestroy,
#   cuStreamDestroy_v2.
# Exports: nothing.
# Needs: code (fg_begin_launch, fg_end_launch, fg_first_launch); driver (fg_function); graphs (fg_take_for_graph); pace (fg_forget_stream,
#   fg_is_paced, fg_mark_launch, fg_may_wait, fg_wait_turn).

cdef int fg_kernel(
    void *real, bint own, void *function, const unsigned int *shape, void *stream, void **parameters, void **extra
) noexcept nogil:
    """Launch a kernel. `shape`: three sizes of the grid, three of the block, bytes of shared memory."""
    cdef fg_launch launch
    cdef fg_first_launch first
    cdef int status = fg_begin_launch(function, &first)
    if status != CUDA_SUCCESS:
        return status
    cdef bint marks = fg_wait_turn(stream, own, &launch)
    status = (<launch_t> real)(
        function, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], stream, parameters, extra
    )
    if marks:
        fg_mark_launch(&launch)
    if first.measures:
        fg_end_launch(&first)
    return status


cdef int fg_cooperative(
    void *real, bint own, void *function, const unsigned int *shape, void *stream, void **parameters
) noexcept nogil:
    cdef fg_launch launch
    cdef fg_first_launch first
    cdef int status = fg_begin_launch(function, &first)
    if status != CUDA_SUCCESS:
        return status
    cdef bint marks = fg_wait_turn(stream, own, &launch)
    status = (<cooperative_t> real)(
        function, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], stream, parameters
    )
    if marks:
        fg_mark_launch(&launch)
    if first.measures:
        fg_end_launch(&first)
    return status


cdef int fg_by_config(
    void *real, bint own, const fg_launch_config *how, void *function, void **parameters, void **extra
) noexcept nogil:
    cdef fg_launch launch
    cdef fg_first_launch first
    cdef int status = fg_begin_launch(function, &first)
    if status != CUDA_SUCCESS:
        return status
    cdef bint marks = how != NULL and fg_may_wait() and fg_wait_turn(how.stream, own, &launch)
    status = (<launch_ex_t> real)(how, function, parameters, extra)
    if marks:
        fg_mark_launch(&launch)
    if first.measures:
        fg_end_launch(&first)
    return status


cdef int fg_graph(int call, bint own, void *graph, void *stream) noexcept nogil:
    """Launch a graph: one launch for the pacing. The memory that it allocates is charged."""
    cdef fg_launch launch
    cdef bint marks = fg_wait_turn(stream, own, &launch)
    cdef int status = fg_take_for_graph(call, graph, stream, own)
    if marks:
        fg_mark_launch(&launch)
    return status


cdef public int cuLaunchKernel(
    void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters, void **extra
) noexcept nogil:
    cdef unsigned int[7] shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared]
    cdef void *real = fg_function(FG_cuLaunchKernel)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_kernel(real, False, function, shape, stream, parameters, extra)


cdef public int cuLaunchKernel_ptsz(
    void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters, void **extra
) noexcept nogil:
    cdef unsigned int[7] shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared]
    cdef void *real = fg_function(FG_cuLaunchKernel_ptsz)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_kernel(real, True, function, shape, stream, parameters, extra)


cdef public int cuLaunchKernelEx(
    const fg_launch_config *how, void *function, void **parameters, void **extra
) noexcept nogil:
    cdef void *real = fg_function(FG_cuLaunchKernelEx)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_by_config(real, False, how, function, parameters, extra)


cdef public int cuLaunchKernelEx_ptsz(
    const fg_launch_config *how, void *function, void **parameters, void **extra
) noexcept nogil:
    cdef void *real = fg_function(FG_cuLaunchKernelEx_ptsz)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_by_config(real, True, how, function, parameters, extra)


cdef public int cuLaunchCooperativeKernel(
    void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters
) noexcept nogil:
    cdef unsigned int[7] shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared]
    cdef void *real = fg_function(FG_cuLaunchCooperativeKernel)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_cooperative(real, False, function, shape, stream, parameters)


cdef public int cuLaunchCooperativeKernel_ptsz(
    void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters
) noexcept nogil:
    cdef unsigned int[7] shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared]
    cdef void *real = fg_function(FG_cuLaunchCooperativeKernel_ptsz)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    return fg_cooperative(real, True, function, shape, stream, parameters)


cdef void fg_pace_on_device(const fg_one_of_many *one, fg_launch *launch, bint before) noexcept nogil:
    """Wait for a turn, or record the event behind the launch, in the context of the launch's stream."""
    cdef void *context = NULL
    if (<stream_ctx_t> fg_function(FG_cuStreamGetCtx))(one.stream, &context) != CUDA_SUCCESS:
        return
    if (<ctx_in_t> fg_function(FG_cuCtxPushCurrent_v2))(context) != CUDA_SUCCESS:
        return
    if before:
        fg_wait_turn(one.stream, False, launch)
    elif launch.marks:
        fg_mark_launch(launch)
    (<ctx_out_t> fg_function(FG_cuCtxPopCurrent_v2))(&context)


cdef public int cuLaunchCooperativeKernelMultiDevice(
    fg_one_of_many *list, unsigned int count, unsigned int flags
) noexcept nogil:
    """Launch on several GPUs, each of which has its own budget."""
    cdef fg_launch[FG_MAX_DEVICES] launch
    cdef unsigned int at, paced = count if count <= FG_MAX_DEVICES and list != NULL and fg_is_paced() else 0
    cdef void *real = fg_function(FG_cuLaunchCooperativeKernelMultiDevice)
    cdef int status
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    for at in range(paced):
        launch[at].marks = False
        fg_pace_on_device(&list[at], &launch[at], True)
    status = (<many_t> real)(list, count, flags)
    for at in range(paced):
        fg_pace_on_device(&list[at], &launch[at], False)
    return status


cdef public int cuGraphLaunch(void *graph, void *stream) noexcept nogil:
    return fg_graph(FG_cuGraphLaunch, False, graph, stream)


cdef public int cuGraphLaunch_ptsz(void *graph, void *stream) noexcept nogil:
    return fg_graph(FG_cuGraphLaunch_ptsz, True, graph, stream)


cdef int fg_grid(int call, void *function, int width, int height, void *stream) noexcept nogil:
    """Launch by the calls of 2007, where the block size belongs to the function."""
    cdef fg_launch launch
    cdef fg_first_launch first
    cdef unsigned int[7] shape = [width, height, 1, 1, 1, 1, 0]
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = fg_begin_launch(function, &first)
    if status != CUDA_SUCCESS:
        return status
    cdef bint marks = fg_wait_turn(stream, False, &launch)
    if call == FG_cuLaunch:
        status = (<launch_one_t> real)(function)
    elif call == FG_cuLaunchGrid:
        status = (<launch_grid_t> real)(function, width, height)
    else:
        status = (<launch_grid_async_t> real)(function, width, height, stream)
    if marks:
        fg_mark_launch(&launch)
    if first.measures:
        fg_end_launch(&first)
    return status


cdef public int cuLaunch(void *function) noexcept nogil:
    return fg_grid(FG_cuLaunch, function, 1, 1, NULL)


cdef public int cuLaunchGrid(void *function, int width, int height) noexcept nogil:
    return fg_grid(FG_cuLaunchGrid, function, width, height, NULL)


cdef public int cuLaunchGridAsync(void *function, int width, int height, void *stream) noexcept nogil:
    return fg_grid(FG_cuLaunchGridAsync, function, width, height, stream)


cdef int fg_destroy_stream(int call, void *stream) noexcept nogil:
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    fg_forget_stream(stream)
    return (<ctx_in_t> real)(stream)


cdef public int cuStreamDestroy(void *stream) noexcept nogil:
    return fg_destroy_stream(FG_cuStreamDestroy, stream)


cdef public int cuStreamDestroy_v2(void *stream) noexcept nogil:
    return fg_destroy_stream(FG_cuStreamDestroy_v2, stream)
