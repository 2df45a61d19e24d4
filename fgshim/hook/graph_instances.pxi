# Graphs: instantiation, upload and end. launch.pxi launches them.
#
# Hooks: cuGraphInstantiate, cuGraphInstantiate_v2, cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams,
#   cuGraphInstantiateWithParams_ptsz, cuGraphUpload, cuGraphUpload_ptsz, cuGraphExecDestroy,
#   cuDeviceGraphMemTrim.
# Exports: nothing.
# Needs: driver (fg_function); entries (fg_remove); graphs (fg_add_needs, fg_exec_key, fg_graph_needs,
#   fg_record_graph, fg_take_for_graph, fg_trim_graph_memory); ledger (fg_charge); memory (fg_gpu_of).

cdef int fg_instantiated(int status, void **made, const fg_graph_needs *needs) noexcept nogil:
    cdef void *destroy = fg_function(FG_cuGraphExecDestroy)
    if status == CUDA_SUCCESS and needs.taken and not fg_record_graph(made[0], needs):
        (<destroy_t> destroy)(made[0])
        return CUDA_ERROR_OUT_OF_MEMORY
    return status


cdef int fg_instantiate_old(int call, void **made, void *graph, void **node, char *log, size_t room) noexcept nogil:
    cdef fg_graph_needs needs
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    memset(&needs, 0, sizeof(needs))
    fg_add_needs(graph, &needs, 0)
    return fg_instantiated((<instantiate_old_t> real)(made, graph, node, log, room), made, &needs)


cdef public int cuGraphInstantiate(void **made, void *graph, void **node, char *log, size_t room) noexcept nogil:
    return fg_instantiate_old(FG_cuGraphInstantiate, made, graph, node, log, room)


cdef public int cuGraphInstantiate_v2(void **made, void *graph, void **node, char *log, size_t room) noexcept nogil:
    return fg_instantiate_old(FG_cuGraphInstantiate_v2, made, graph, node, log, room)


cdef public int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) noexcept nogil:
    cdef fg_graph_needs needs
    cdef void *real = fg_function(FG_cuGraphInstantiateWithFlags)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    memset(&needs, 0, sizeof(needs))
    fg_add_needs(graph, &needs, 0)
    return fg_instantiated((<instantiate_t> real)(made, graph, flags), made, &needs)


cdef int fg_instantiate(int call, int upload, void **made, void *graph, fg_instantiate_params *how, bint own) noexcept nogil:
    """Instantiate a graph. A requested upload is done in a second step, so that it can be refused."""
    cdef fg_graph_needs needs
    cdef fg_instantiate_params quiet
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    memset(&needs, 0, sizeof(needs))
    fg_add_needs(graph, &needs, 0)
    if how == NULL or not needs.taken or not how.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD:
        return fg_instantiated((<instantiate_how_t> real)(made, graph, how), made, &needs)
    quiet = how[0]
    quiet.flags &= ~<uint64_t> CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    cdef int status = fg_instantiated((<instantiate_how_t> real)(made, graph, &quiet), made, &needs)
    how.node = quiet.node
    how.result = quiet.result
    if status == CUDA_SUCCESS:
        status = fg_take_for_graph(upload, made[0], how.stream, own)
        if status != CUDA_SUCCESS:
            cuGraphExecDestroy(made[0])
    return status


cdef public int cuGraphInstantiateWithParams(void **made, void *graph, fg_instantiate_params *how) noexcept nogil:
    return fg_instantiate(FG_cuGraphInstantiateWithParams, FG_cuGraphUpload, made, graph, how, False)


cdef public int cuGraphInstantiateWithParams_ptsz(void **made, void *graph, fg_instantiate_params *how) noexcept nogil:
    return fg_instantiate(FG_cuGraphInstantiateWithParams_ptsz, FG_cuGraphUpload_ptsz, made, graph, how, True)


cdef public int cuGraphUpload(void *graph, void *stream) noexcept nogil:
    return fg_take_for_graph(FG_cuGraphUpload, graph, stream, False)


cdef public int cuGraphUpload_ptsz(void *graph, void *stream) noexcept nogil:
    return fg_take_for_graph(FG_cuGraphUpload_ptsz, graph, stream, True)


cdef public int cuGraphExecDestroy(void *graph) noexcept nogil:
    """Destroy a graph instance. The driver keeps the memory that it left until it is trimmed or freed."""
    cdef fg_charge charge
    cdef uint32_t gpu
    cdef void *real = fg_function(FG_cuGraphExecDestroy)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    for gpu in range(FG_MAX_GPUS if fg_peek_int(&fg_graph_count) else 0):
        fg_remove(FG_EXEC, fg_exec_key(graph, gpu), &charge)
    cdef int status = (<destroy_t> real)(graph)
    fg_publish(&fg_stale, 1)
    return status


cdef public int cuDeviceGraphMemTrim(int device) noexcept nogil:
    cdef int gpu = fg_gpu_of(device)
    cdef void *real = fg_function(FG_cuDeviceGraphMemTrim)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    cdef int status = (<device_t> real)(device)
    if gpu >= 0:
        pthread_mutex_lock(&fg_pool_lock)
        fg_trim_graph_memory(gpu, device)
        pthread_mutex_unlock(&fg_pool_lock)
    return status
