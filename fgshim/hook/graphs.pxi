# Graph memory: allocated when a graph is launched or uploaded, and kept by the driver until it is trimmed.
#
# The most that a launch can allocate is the sum of the graph's allocations. Graphs that are launched one
# after the other on a stream use the same memory, so the largest one counts for each stream. A graph that
# leaves memory behind counts for itself. All of this is under fg_pool_lock.
#
# Exports: fg_add_needs, fg_each_graph_memory, fg_exec_key, fg_forget_graphs, fg_graph_needs, fg_record_graph,
#   fg_take_for_graph, fg_trim_graph_memory.
# Needs: driver (fg_function); entries (fg_charge_of, fg_get, fg_record); ledger (fg_change_charge, fg_charge,
#   fg_record_refusal, fg_reserve); memory (fg_device_at, fg_gpu_of, fg_round_to_2_mib); pool_table
#   (fg_each_pool).

cdef struct fg_graph_needs:
    uint64_t bytes[GPUS]  # by position in the region
    uint32_t taken, freed


cdef void fg_forget_graphs() noexcept nogil:
    """Forget the state of the parent, in the child of a fork."""
    global fg_graph_count
    memset(fg_lanes, 0, FG_MAX_LANES * sizeof(fg_lane))
    memset(fg_graph_memory, 0, FG_MAX_GPUS * sizeof(uint64_t))
    fg_graph_count = 0


cdef uint64_t fg_graph_reserved(uint32_t gpu) noexcept nogil:
    cdef uint64_t value = 0
    cdef void *ask = fg_function(FG_cuDeviceGetGraphMemAttribute)
    if ask:
        (<graph_memory_t> ask)(fg_graph_device[gpu], CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value)
    return value


cdef void fg_read_graph_memory(uint32_t gpu, const fg_charge *reserved) noexcept nogil:
    """Charge what the driver keeps for graphs now. `reserved` was charged for it before; NULL: nothing."""
    cdef uint64_t now = fg_graph_reserved(gpu)
    cdef uint64_t before = fg_graph_memory[gpu] + (reserved.bytes if reserved else 0)
    fg_graph_memory[gpu] = now
    fg_change_charge(gpu, before, now, reserved != NULL)


cdef void fg_each_graph_memory() noexcept nogil:
    cdef uint32_t gpu
    for gpu in range(FG_MAX_GPUS):
        if fg_graph_memory[gpu]:
            fg_read_graph_memory(gpu, NULL)


cdef void fg_trim_graph_memory(uint32_t gpu, int device) noexcept nogil:
    """Trim the memory that no launched graph uses. Reset the lanes once the driver keeps nothing."""
    cdef void *trim = fg_function(FG_cuDeviceGraphMemTrim)
    cdef int at
    if not fg_graph_count or not trim:
        return
    (<device_t> trim)(device)
    fg_graph_device[gpu] = device
    fg_read_graph_memory(gpu, NULL)
    for at in range(FG_MAX_LANES):
        if fg_graph_memory[gpu] == 0 and fg_lanes[at].gpu == gpu:
            fg_lanes[at].used = 0


cdef fg_lane *fg_lane_of(uint64_t key, uint32_t gpu) noexcept nogil:
    """Return the lane of a stream or graph. If all are taken, the last one is shared by all others."""
    cdef int at, free = FG_MAX_LANES - 1
    for at in range(FG_MAX_LANES):
        if fg_lanes[at].used and fg_lanes[at].key == key and fg_lanes[at].gpu == gpu:
            return &fg_lanes[at]
    for at in range(FG_MAX_LANES - 1):
        if not fg_lanes[at].used:
            free = at
            break
    memset(&fg_lanes[free], 0, sizeof(fg_lane))
    fg_lanes[free].key = key
    fg_lanes[free].gpu = gpu
    fg_lanes[free].used = 1
    return &fg_lanes[free]


cdef uint64_t fg_graph_growth(uint32_t gpu, uint64_t key, uint64_t bytes) noexcept nogil:
    """Return by how many bytes the driver's memory for graphs can grow: at most what this graph allocates."""
    cdef fg_lane *own = fg_lane_of(key, gpu)
    cdef uint64_t total = 0
    cdef int at
    own.most = max(own.most, bytes)
    for at in range(FG_MAX_LANES):
        if fg_lanes[at].used and fg_lanes[at].gpu == gpu:
            total = fg_sum(total, fg_lanes[at].most)
    return min(bytes, total - fg_graph_memory[gpu] if total > fg_graph_memory[gpu] else 0)


cdef bint fg_reserve_graph(uint32_t gpu, uint64_t key, uint64_t bytes, fg_charge *charge) noexcept nogil:
    fg_read_graph_memory(gpu, NULL)
    charge.gpu = gpu
    charge.bytes = fg_graph_growth(gpu, key, bytes)
    if fg_reserve(charge):
        return True
    fg_each_pool(gpu, True)
    fg_trim_graph_memory(gpu, fg_graph_device[gpu])
    charge.bytes = fg_graph_growth(gpu, key, bytes)
    return fg_reserve(charge)


cdef void *fg_graph_nodes(void *graph, size_t *count) noexcept nogil:
    """Return the nodes of a graph in pages of the hook; NULL if it has none."""
    cdef void *ask = fg_function(FG_cuGraphGetNodes)
    cdef void *nodes
    count[0] = 0
    if not ask or (<graph_nodes_t> ask)(graph, NULL, count) != CUDA_SUCCESS or count[0] == 0:
        return NULL
    nodes = fg_pages(count[0] * sizeof(void *))
    if nodes and (<graph_nodes_t> ask)(graph, <void **> nodes, count) != CUDA_SUCCESS:
        count[0] = 0
    return nodes


cdef void fg_node_needs(void *node, fg_graph_needs *needs, int depth) noexcept nogil:
    cdef int kind = 0, device, gpu
    cdef void *child = NULL
    cdef fg_alloc_node asked
    if (<node_type_t> fg_function(FG_cuGraphNodeGetType))(node, &kind) != CUDA_SUCCESS:
        return
    needs.freed += kind == CU_GRAPH_NODE_TYPE_MEM_FREE
    if kind == CU_GRAPH_NODE_TYPE_GRAPH and fg_function(FG_cuGraphChildGraphNodeGetGraph):
        if (<child_graph_t> fg_function(FG_cuGraphChildGraphNodeGetGraph))(node, &child) == CUDA_SUCCESS:
            fg_add_needs(child, needs, depth + 1)
    if kind != CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return
    if (<alloc_node_t> fg_function(FG_cuGraphMemAllocNodeGetParams))(node, &asked) != CUDA_SUCCESS:
        return
    device = fg_device_at(asked.pool.location_type, asked.pool.location_id)
    gpu = fg_gpu_of(device) if device >= 0 else -1
    if gpu >= 0:
        fg_graph_device[gpu] = device
        needs.bytes[gpu] = fg_sum(needs.bytes[gpu], fg_round_to_2_mib(asked.bytes))
        needs.taken += 1


cdef void fg_add_needs(void *graph, fg_graph_needs *needs, int depth) noexcept nogil:
    """Add up the allocations of a graph and of its child graphs."""
    cdef size_t count, at, room
    cdef void **nodes
    if depth > FG_MAX_DEPTH or not fg_function(FG_cuGraphMemAllocNodeGetParams):
        return
    nodes = <void **> fg_graph_nodes(graph, &count)
    room = count * sizeof(void *)
    for at in range(count):
        fg_node_needs(nodes[at], needs, depth)
    if nodes:
        munmap(nodes, room)


cdef inline uint64_t fg_exec_key(void *graph, uint32_t gpu) noexcept nogil:
    return <uint64_t> graph ^ <uint64_t> gpu << 56


cdef bint fg_record_graph(void *graph, const fg_graph_needs *needs) noexcept nogil:
    """Record what a graph instance allocates on each GPU. `charge.share` marks one that leaves memory behind."""
    global fg_graph_count
    cdef fg_charge charge
    cdef uint32_t gpu
    cdef bint known = True
    memset(&charge, 0, sizeof(charge))
    charge.share = needs.taken > needs.freed
    for gpu in range(FG_MAX_GPUS):
        charge.gpu = gpu
        charge.bytes = needs.bytes[gpu]
        if charge.bytes:
            fg_publish(&fg_graph_count, fg_graph_count + 1)
            known = fg_record(FG_EXEC, fg_exec_key(graph, gpu), &charge) and known
    return known


cdef bint fg_graph_takes(void *graph, uint32_t gpu, fg_charge *charge) noexcept nogil:
    """Return whether a graph instance allocates on a GPU, and fill `charge`."""
    cdef fg_entry *entry
    pthread_mutex_lock(&fg_own_lock)
    entry = fg_get(FG_EXEC, fg_exec_key(graph, gpu))
    if entry:
        fg_charge_of(entry, charge)
    pthread_mutex_unlock(&fg_own_lock)
    return entry != NULL


cdef int fg_run_graph(void *real, void *graph, void *stream, uint64_t lane) noexcept nogil:
    """Launch or upload a graph. Holds fg_pool_lock from the reservations until the driver's figures are read."""
    cdef fg_charge takes
    cdef fg_charge charge[GPUS]
    cdef uint32_t gpu, reserved = 0
    cdef int status = CUDA_SUCCESS
    pthread_mutex_lock(&fg_pool_lock)
    for gpu in range(FG_MAX_GPUS):
        charge[gpu].bytes = 0
        if status != CUDA_SUCCESS or not fg_graph_takes(graph, gpu, &takes):
            continue
        if fg_reserve_graph(gpu, <uint64_t> graph if takes.share else lane, takes.bytes, &charge[gpu]):
            reserved |= <uint32_t> 1 << gpu
        else:
            fg_record_refusal(gpu, takes.bytes)
            status = CUDA_ERROR_OUT_OF_MEMORY
    if status == CUDA_SUCCESS:
        status = (<graph_run_t> real)(graph, stream)
    for gpu in range(FG_MAX_GPUS):
        if reserved >> gpu & 1:
            fg_read_graph_memory(gpu, &charge[gpu])
    pthread_mutex_unlock(&fg_pool_lock)
    return status


cdef inline int fg_take_for_graph(int call, void *graph, void *stream, bint own) noexcept nogil:
    """Launch or upload a graph. `own`: stream 0 is the thread's. Without graph memory the driver is called at once."""
    cdef void *real = fg_function(call)
    if not real:
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    if not fg_peek_int(&fg_graph_count):
        return (<graph_run_t> real)(graph, stream)
    return fg_run_graph(real, graph, stream, FG_OWN_STREAM if own and not stream else <uint64_t> stream)
