# cython: language_level=3, cdivision=True
# libfgshim.so: the hook. It is preloaded into programs without Python, so it contains no Python object: every function
# is `noexcept nogil`, and nothing is set at module level, because the module body never runs.
#
# It has no constructor. The driver is looked up at the first call of one of its functions, and the region is attached
# at the first request for device memory. hook/state.h has all variables, hook/*.pxi the functions; each file says at
# its top what it exports and what it needs.

from libc.errno cimport errno
from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strcpy, strncmp, strrchr

from fgshim.cuda cimport *
from fgshim.nvml cimport *
from fgshim.owner cimport (
    fg_owner,
    fg_owner_lives,
    fg_owner_namespace,
    fg_owner_read,
    fg_owner_sees_its_namespace,
)
from fgshim.pace cimport *
from fgshim.region cimport (
    FG_MAX_GPUS,
    GPUS,
    FG_MAX_SHARES,
    FG_MAX_SLOTS,
    FG_MAX_HOLDERS,
    FG_FOR_CONTEXT,
    FG_FOR_MEMORY,
    FG_FOR_SLOT,
    FG_MAX_TAGGED,
    fg_region,
    fg_region_gpus,
    fg_region_add_slots,
    fg_region_counts,
    fg_region_held,
    fg_region_is_measured,
    fg_region_may_have_ended,
    fg_region_past_bytes,
    fg_region_refusal,
    fg_region_retagged,
    fg_region_share,
    fg_region_shares,
    fg_region_slot,
    fg_region_slots,
    pthread_mutex_t,
)

cdef extern from "<errno.h>":
    const int EOWNERDEAD

cdef extern from "atomics.h" nogil:
    void set_errno "fg_set_errno"(int)
    void *fg_load(void *)
    int fg_load_int "fg_load"(int *)
    void fg_store(void *, void *)
    void fg_store_int "fg_store"(int *, int)
    void fg_set "fg_store"(uint64_t *, uint64_t)
    void fg_publish "fg_store"(uint32_t *, uint32_t)
    uint64_t fg_peek(const uint64_t *)
    uint32_t fg_peek_int "fg_peek"(const uint32_t *)
    bint fg_first(int *)
    uint64_t fg_sum(uint64_t, uint64_t)
    void fg_raise(uint64_t *, uint64_t)
    void fg_add(uint64_t *, uint64_t)

cdef extern from "clock.h" nogil:
    uint64_t fg_clock()
    uint64_t fg_rough_clock()

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_mutex_consistent(pthread_mutex_t *)
    unsigned long pthread_self()

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void *, size_t)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef extern from "address_index.h" nogil:
    bint fg_index_add(uint64_t)
    void fg_index_remove(uint64_t)
    uint64_t fg_index_from(uint64_t)
    uint64_t fg_index_until(uint64_t)
    void fg_index_clear()

cdef extern from "state.h" nogil:
    const int FG_FREE, FG_MEMORY, FG_ARRAY, FG_MIPMAP, FG_IPC
    const int FG_ASYNC, FG_BLOCK, FG_HANDLE, FG_MAPPING, FG_TILE, FG_GREEN, FG_EXEC, FG_CONTEXT, FG_CHUNK, FG_CODE, FG_FUNCTION
    ctypedef struct fg_entry:
        uint64_t key
        uint64_t bytes
        uint64_t block
        uint32_t count
        uint32_t share
        uint16_t kind
        uint16_t gpu
    const uint64_t FG_USUAL_STEP
    const int FG_NO_POOL, FG_OPEN, FG_DESTROYED, FG_OF_HOST
    const uint32_t FG_MAX_POOLS
    ctypedef struct fg_pool:
        void *pool
        uint64_t reserved
        uint64_t step
        uint64_t waste
        uint32_t live
        uint16_t gpu
        uint16_t state
        uint64_t held
        uint64_t most
        uint64_t managed
    const int FG_MAX_LANES, FG_MAX_DEPTH
    ctypedef struct fg_lane:
        uint64_t key
        uint64_t most
        uint32_t gpu
        uint32_t used
    const uint64_t FG_OWN_STREAM
    int fg_watches_forks, fg_has_deferred
    uint32_t fg_slot, fg_pid, fg_generation
    uint64_t fg_namespace
    uint32_t *fg_judged_at
    uint64_t *fg_held
    uint64_t *fg_context
    uint64_t *fg_deferred
    uint32_t *fg_share_refs
    fg_entry *fg_entries
    uint64_t fg_room, fg_used, fg_serial
    uint32_t fg_tile_count
    uint64_t *fg_small
    uint64_t *fg_chunks
    int fg_keeps_chunks
    int *fg_outgrown
    int *fg_contexts
    int *fg_in_primary
    const int FG_LAUNCH_MARKS
    const uint64_t FG_USUAL_STACK
    uint64_t *fg_expected
    uint64_t *fg_most_local
    uint32_t fg_unlaunched
    uint8_t *fg_unlaunched_at
    fg_pool *fg_pools
    uint32_t fg_pool_count, fg_stale
    fg_lane *fg_lanes
    uint64_t *fg_graph_memory
    int *fg_graph_device
    uint32_t fg_graph_count
    int fg_paces, fg_flight
    uint64_t fg_reported_at
    pthread_mutex_t fg_own_lock, fg_pool_lock
    const pthread_mutex_t fg_unlocked
    int fg_is_started
    int *fg_devices
    void **fg_smi_own
    void **fg_smi_real
    void fg_apply_deferred()

include "hook/_calls.pxi"
include "hook/driver.pxi"
include "hook/lookup.pxi"
include "hook/region.pxi"
include "hook/slots.pxi"
include "hook/ledger.pxi"
include "hook/shares.pxi"
include "hook/entries.pxi"
include "hook/memory.pxi"
include "hook/pool_table.pxi"
include "hook/pace.pxi"
include "hook/launch.pxi"
include "hook/pools.pxi"
include "hook/streams.pxi"
include "hook/graphs.pxi"
include "hook/graph_instances.pxi"
include "hook/imports.pxi"
include "hook/blocks.pxi"
include "hook/tiles.pxi"
include "hook/arrays.pxi"
include "hook/context_charges.pxi"
include "hook/contexts.pxi"
include "hook/outside.pxi"
include "hook/limits.pxi"
include "hook/code.pxi"
include "hook/views.pxi"
include "hook/old_abi.pxi"
include "hook/visible.pxi"
include "hook/cards.pxi"
include "hook/processes.pxi"
include "hook/smi.pxi"
