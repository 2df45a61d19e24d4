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

include "hook/_calls.pxi"
include "hook/driver.pxi"
include "hook/lookup.pxi"
include "hook/region.pxi"
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
include "hook/views.pxi"
include "hook/old_abi.pxi"
include "hook/cards.pxi"
include "hook/processes.pxi"
include "hook/smi.pxi"
