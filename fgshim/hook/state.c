#include "atomics.h"
#include "state.h"

int fg_watches_forks;
uint32_t fg_slot, fg_pid, fg_generation, fg_judged_at[FG_MAX_SLOTS];
uint64_t fg_namespace;
uint64_t fg_held[FG_MAX_GPUS], fg_context[FG_MAX_GPUS];
uint32_t fg_share_refs[FG_MAX_SHARES];
uint64_t fg_deferred[FG_MAX_GPUS];
int fg_has_deferred;

fg_entry *fg_entries;
uint64_t fg_room, fg_used, fg_serial;
uint32_t fg_tile_count;
uint64_t fg_small[FG_MAX_GPUS], fg_chunks[FG_MAX_GPUS];
int fg_keeps_chunks;
int fg_outgrown[FG_MAX_GPUS];
int fg_contexts[FG_MAX_GPUS], fg_in_primary[FG_MAX_GPUS];
uint64_t fg_expected[FG_MAX_GPUS], fg_most_local[FG_MAX_GPUS];
uint32_t fg_unlaunched;
uint8_t fg_unlaunched_at[FG_LAUNCH_MARKS];
pthread_mutex_t fg_own_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

fg_pool *fg_pools;
uint32_t fg_pool_count, fg_stale;
fg_lane fg_lanes[FG_MAX_LANES];
uint64_t fg_graph_memory[FG_MAX_GPUS];
int fg_graph_device[FG_MAX_GPUS];
uint32_t fg_graph_count;
pthread_mutex_t fg_pool_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
const pthread_mutex_t fg_unlocked = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int fg_paces, fg_flight;
uint64_t fg_reported_at;

int fg_is_started;
int fg_devices[64];
void **fg_smi_own, **fg_smi_real;

void fg_apply_deferred(void) {
    if (!__atomic_exchange_n(&fg_has_deferred, 0, __ATOMIC_ACQ_REL)) return;
    for (int i = 0; i < FG_MAX_GPUS; i++) fg_held[i] -= __atomic_exchange_n(&fg_deferred[i], 0, __ATOMIC_ACQ_REL);
}
