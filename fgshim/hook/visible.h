/* The numbers of CUDA_VISIBLE_DEVICES.
 *
 * In a job they are positions among the GPUs of the job, from 0, as NVML numbers them there (cards.pxi). The driver counts
 * other GPUs, depending on which device nodes it can open, so it has to read UUIDs. It reads the variable in cuInit, and
 * only there. */
#ifndef FG_VISIBLE_H
#define FG_VISIBLE_H
#include "job.h"

#pragma GCC visibility push(hidden)
/* Put UUIDs in the place of the numbers in the environment of this process. Return whether that changed anything;
 * fg_restore_numbers undoes it. Under fg_own_lock; a second call before the restoration does nothing. */
int fg_show_uuids(const fg_job *job);
void fg_restore_numbers(void);
/* Write a UUID as NVML does, such as GPU-1b2c3d4e-…, in 41 bytes. */
void fg_uuid_text(const uint8_t *uuid, int is_instance, char *text);
#pragma GCC visibility pop
#endif
