#include <string.h>
#include "smi_table.h"

const uint8_t fg_smi_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                               0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

int fg_smi_is_proved(const char *version) {
    static const char proved[][5] = {"535.", "550.", "555.", "580."};
    for (unsigned at = 0; at < sizeof proved / sizeof *proved; at++)
        if (!strncmp(version, proved[at], 4)) return 1;
    return 0;
}
