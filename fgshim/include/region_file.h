/* Where the controller reads and writes in the file of a region, in bytes from its beginning. */
#ifndef FG_REGION_FILE_H
#define FG_REGION_FILE_H
#include <stddef.h>
#include "region.h"

#define FG_HEADER offsetof(fg_region, slot)                                       /* the part under the seal lies before it */
#define FG_WRITTEN(gpus) (offsetof(fg_region, pace) + (gpus) * sizeof(fg_pace))   /* a new region has zeros from here on */
#define FG_READ_SIZE offsetof(fg_region, runs)   /* the rest is of earlier releases */
#define FG_GPU_AT(position) (offsetof(fg_region, gpu) + (position) * sizeof(fg_region_gpu))
#define FG_UNTRACKED_AT(position) (FG_GPU_AT(position) + offsetof(fg_region_gpu, untracked))
#define FG_SEEN_AT(slot, position) (offsetof(fg_region, counts) + (position) * sizeof(fg_region_counts) \
                                    + offsetof(fg_region_counts, seen) + (slot) * sizeof(uint64_t))
#define FG_PACE_AT(position) (offsetof(fg_region, pace) + (position) * sizeof(fg_pace))
#define FG_SLOTS_AT ((long)offsetof(fg_region, slots))
#define FG_SLOT_AT(at) ((long)(offsetof(fg_region, slot) + (at) * sizeof(fg_region_slot)))
#define FG_ENDED_AT(at) (FG_SLOT_AT(at) + (long)offsetof(fg_region_slot, ended))
#define FG_SLOT(data, slot) (&((const fg_region_slot *)(const void *)(data))[slot])
#endif
