/* The layout of the private table out of which nvidia-smi takes its list of processes. */
#ifndef FG_SMI_TABLE_H
#define FG_SMI_TABLE_H
#include <stdint.h>

enum { FG_SMI_CARD = 81, FG_SMI_LIST = 213, FG_SMI_LISTS = 3, FG_SMI_LEAST = 216, FG_SMI_MOST = 8192 };
typedef struct {
    uint32_t pid;
    uint64_t used;
    uint32_t gi, ci;
    uint64_t secret;
    char name[4096];
} fg_smi_process;
typedef int (*fg_smi_call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
static const uint8_t fg_smi_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6e, 0x4c,
                                      0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
#endif
