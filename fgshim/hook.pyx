# cython: language_level=3, cdivision=True
# The allocator hook. It is preloaded into programs that know no Python, so there
# is no Python object in it: every function is `noexcept nogil`, and nothing is
# set at module level, for a preloaded library's module body never runs.
#
# It has no constructor. The driver is looked for when one of its functions is
# first called, and the region when device memory is first asked for.

from libc.errno cimport errno
from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strcmp, strcpy, strncmp, strrchr

from fgshim.cuda cimport *
from fgshim.nvml cimport *
from fgshim.owner cimport fg_owner, fg_owner_lives, fg_owner_read
from fgshim.pace cimport *
from fgshim.region cimport (
    FG_MAX_GPUS,
    FG_MAX_SHARES,
    FG_MAX_SLOTS,
    FG_MOST,
    FG_FOR_CONTEXT,
    FG_FOR_MEMORY,
    FG_MOST_MARKED,
    fg_region,
    fg_region_gpus,
    fg_region_past,
    fg_region_truer,
    fg_region_refusal,
    fg_region_remarked,
    fg_region_share,
    fg_region_shares,
    fg_region_slot,
    fg_region_slots,
    pthread_mutex_t,
)

cdef extern from *:
    """
    #include <errno.h>
    #define fg_set_errno(value) (errno = (value))
    """
    const int EOWNERDEAD
    void set_errno "fg_set_errno"(int) nogil

include "_rows.pxi"
include "hook_driver.pxi"
include "hook_lookup.pxi"
include "hook_region.pxi"
include "hook_ledger.pxi"
include "hook_shares.pxi"
include "hook_table.pxi"
include "hook_memory.pxi"
include "hook_pool_rows.pxi"
include "hook_pace.pxi"
include "hook_launch.pxi"
include "hook_pools.pxi"
include "hook_streams.pxi"
include "hook_graphs.pxi"
include "hook_instances.pxi"
include "hook_imports.pxi"
include "hook_blocks.pxi"
include "hook_tiles.pxi"
include "hook_arrays.pxi"
include "hook_entering.pxi"
include "hook_contexts.pxi"
include "hook_views.pxi"
include "hook_old.pxi"
include "hook_cards.pxi"
include "hook_processes.pxi"
include "hook_smi.pxi"
