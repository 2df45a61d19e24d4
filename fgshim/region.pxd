# Cython declarations of include/region.h. Names and types only: offsets, sizes and array bounds are the header's.

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from fgshim.pace cimport fg_pace

cdef extern from "region.h" nogil:
    const uint32_t FG_REGION_VERSION, FG_MAX_GPUS, FG_MAX_SLOTS, FG_MAX_SHARES
    const int FG_MAX_HOLDERS, FG_TAG_SHIFT, FG_FOR_MEMORY, FG_FOR_CONTEXT, FG_FOR_SLOT
    const uint64_t FG_REGION_MAGIC, FG_MAX_TAGGED
    enum:  # the bounds again, as constants that Cython accepts in a declaration
        GPUS "FG_MAX_GPUS"
        SLOTS_IN_REGION "FG_MAX_SLOTS"
        SHARES "FG_MAX_SHARES"
        HOLDERS "FG_MAX_HOLDERS"
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct fg_region_gpu:
        uint8_t uuid[16]
        uint64_t limit
        uint64_t untracked
        uint64_t peak
        uint64_t refusals
        int32_t index
        uint64_t last_asked
        uint16_t is_instance
        uint16_t is_assumed
        uint64_t last_held
        uint64_t context
    ctypedef struct fg_region_slot:
        pthread_mutex_t life
        uint32_t pid
        uint32_t generation
        uint32_t ended
        uint64_t start
        uint64_t image
        uint64_t pid_namespace
    ctypedef struct fg_region_counts:
        uint64_t bytes[SLOTS_IN_REGION]
        uint64_t context[SLOTS_IN_REGION]
        uint64_t seen[SLOTS_IN_REGION]
    ctypedef struct fg_region_share:
        uint64_t key
        uint64_t bytes
        uint32_t gpu
        uint32_t giver
        uint64_t *holder
    ctypedef struct fg_region_holder:
        uint64_t bytes
        uint32_t pid
    ctypedef struct fg_region_refusal:
        uint64_t asked
        uint64_t held
        uint64_t limit
        uint32_t gpu
        uint32_t pid
        uint32_t holders
        uint32_t what
        fg_region_holder most[HOLDERS]
    ctypedef struct fg_region:
        uint64_t magic
        uint32_t version
        uint32_t size
        uint64_t job
        uint32_t attempt
        uint32_t gpus
        pthread_mutex_t lock
        uint32_t by_position
        uint64_t seal
        fg_region_gpu gpu[GPUS]
        fg_region_refusal refusal
        fg_pace pace[GPUS]
        uint32_t slots
        uint32_t shares
        uint32_t pool_step
        uint64_t shared[GPUS]
        fg_region_slot slot[SLOTS_IN_REGION]
        fg_region_counts counts[GPUS]
        fg_region_share share[SHARES]

    uint32_t fg_region_gpus(const fg_region *r)
    uint32_t fg_region_slots(const fg_region *r)
    uint32_t fg_region_shares(const fg_region *r)
    uint64_t fg_region_most(const fg_region *r)
    uint64_t fg_region_refused(const fg_region *r)
    const fg_region_gpu *fg_region_refusing(const fg_region *r)
    const char *fg_region_flaw(const fg_region *r, uint64_t length)
    uint64_t fg_region_tagged(uint64_t tag, uint64_t bytes)
    uint64_t fg_region_retagged(uint64_t word, uint64_t bytes)
    bint fg_region_is_measured(uint64_t context, uint64_t seen)
    uint64_t fg_region_past_bytes(uint64_t context, uint64_t seen)
    uint64_t fg_region_held(const fg_region *r, uint32_t slot, uint32_t gpu)
    uint64_t fg_region_add_slots(const fg_region *r, uint32_t gpu, uint32_t without, uint64_t total, int *doubtful)
    bint fg_region_may_have_ended(const fg_region_slot *slot)
    int fg_region_lock_init(fg_region *r)
    uint64_t fg_region_seal(const fg_region *r)
    uint64_t fg_region_seal_in(const char *head, uint64_t length)
    int fg_region_tell(const fg_region *r, char *to, size_t room)
