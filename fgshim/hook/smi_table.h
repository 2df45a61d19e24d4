/* The private table of NVML out of which nvidia-smi takes its list of processes.
 *
 * The program asks for it by nvmlInternalGetExportTable with an identifier of 16 bytes. The table is an array of
 * pointers whose first word is its size in bytes. NVIDIA promises nothing about its layout, so the hook changes it only
 * on the driver branches of fg_smi_is_proved, where tests/test_hook_smi.py proves with NVIDIA's own programs that the
 * layout is as below. */
#ifndef FG_SMI_TABLE_H
#define FG_SMI_TABLE_H
#include <stdint.h>

enum {
    FG_SMI_CARD = 81,     /* slot of: device handle by index */
    FG_SMI_LIST = 213,    /* first slot of the lists of processes: compute, graphics, MPS */
    FG_SMI_LISTS = 3,
    FG_SMI_LEAST = 216,   /* slots that a table has at least */
    FG_SMI_MOST = 8192    /* bytes that a table has at most */
};
typedef struct {          /* an entry of a list */
    uint32_t pid;
    uint64_t used;        /* bytes */
    uint32_t gi, ci;      /* MIG instances */
    uint64_t secret;      /* protected memory, bytes */
    char name[4096];
} fg_smi_process;
typedef int (*fg_smi_call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

#pragma GCC visibility push(hidden)
extern const uint8_t fg_smi_id[16];
/* Return 1 if `version`, such as "550.163.01", is of a branch whose layout is proved. */
int fg_smi_is_proved(const char *version);
#pragma GCC visibility pop
#endif
