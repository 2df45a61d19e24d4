/* libnvidia-ml.so.1: handles by other names, neighbours of a card, and what is known of processes. */
#include <time.h>
#include "fake.h"

#define API __attribute__((visibility("default"))) int
enum { INVALID_ARGUMENT = 2, NVML_NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
extern int nvmlDeviceGetCount_v2(unsigned *), nvmlDeviceGetHandleByIndex_v2(unsigned, card **);
extern int nvmlDeviceGetHandleByUUID(const char *, card **), nvmlDeviceGetIndex(card *, unsigned *);

API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API nvmlDeviceGetHandleByIndex(unsigned index, card **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
API nvmlDeviceGetSerial(card *device, char *text, unsigned room) {
    unsigned index;
    int status = nvmlDeviceGetIndex(device, &index);
    if (!status) snprintf(text, room, "serial-%u", index);
    return status;
}
static int numbered(const char *text, const char *format, card **device) {
    unsigned number, count;
    int status = nvmlDeviceGetCount_v2(&count);
    if (status) return status;
    return sscanf(text, format, &number) == 1 && number < count ? nvmlDeviceGetHandleByIndex_v2(number, device) : NVML_NOT_FOUND;
}
API nvmlDeviceGetHandleBySerial(const char *serial, card **device) { return numbered(serial, "serial-%u", device); }
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, card **device) {
    unsigned number;
    char at[16];
    if (sscanf(bus, "%*x:%x:", &number) != 1) return INVALID_ARGUMENT;
    snprintf(at, sizeof at, "%u", number - 1);
    return numbered(at, "%u", device);
}
API nvmlDeviceGetHandleByPciBusId(const char *bus, card **device) { return nvmlDeviceGetHandleByPciBusId_v2(bus, device); }
typedef struct { unsigned version, type; union { char text[41]; uint8_t bytes[16]; } value; } uuid;
API nvmlDeviceGetHandleByUUIDV(const uuid *id, card **device) {
    char text[48];
    if (!id || id->type < 1 || id->type > 2) return INVALID_ARGUMENT;
    if (id->type == 2) fake_uuid_text(id->value.bytes, text);
    return nvmlDeviceGetHandleByUUID(id->type == 2 ? text : id->value.text, device);
}
static int cards(const card *except, unsigned *count, card **devices) {
    unsigned all = 0, number;
    int status = nvmlDeviceGetCount_v2(&number);
    if (status || !count) return status ? status : INVALID_ARGUMENT;
    for (unsigned i = 0; i < number; i++) {
        if (&fake_state()->card[i] == except) continue;
        if (devices && all < *count) devices[all] = &fake_state()->card[i];
        all++;
    }
    return *count = all, OK;
}
API nvmlDeviceGetTopologyNearestGpus(card *device, unsigned level, unsigned *count, card **devices) {
    (void)level;
    return cards(device, count, devices);
}
API nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, card **devices) { (void)cpu; return cards(NULL, count, devices); }

API nvmlSystemGetProcessName(unsigned pid, char *text, unsigned room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t length = readlink(path, text, room - 1);
    return length < 0 ? NVML_NOT_FOUND : (text[length] = 0, OK);
}
static int holders(card *device, holder *found, unsigned *count) {
    unsigned index;
    int status = nvmlDeviceGetIndex(device, &index);
    *count = status ? 0 : (unsigned)fake_holders((int)index, found, MAX_PROCESSES);
    return status;
}
/* FILL: the three lists that are arrays of something with room for *count of them. */
#define FILL(device, count, list, entry)                                            \
    holder found[MAX_PROCESSES];                                                    \
    unsigned number, index = 0;                                                     \
    int status = holders(device, found, &number);                                   \
    if (status) return status;                                                      \
    (void)nvmlDeviceGetIndex(device, &index);                                       \
    if (number > (count) || !(list)) return (count) = number, number ? INSUFFICIENT_SIZE : OK; \
    for (unsigned i = 0; i < number; i++) (list)[i] = entry;                         \
    return (count) = number, OK

typedef struct { unsigned pid; uint64_t bytes; unsigned gi, ci; uint64_t secret; } detail;
typedef struct { unsigned version, mode, count; detail *list; } details;
API nvmlDeviceGetRunningProcessDetailList(card *device, details *into) {
    FILL(device, into->count, into->list, ((detail){found[i].pid, found[i].bytes[index], ~0u, ~0u, 0}));
}
typedef struct { unsigned pid; uint64_t time; unsigned sm, memory, encoder, decoder; } sample;
static uint64_t microseconds(uint64_t since) {   /* now, and later than that */
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    uint64_t now = (uint64_t)at.tv_sec * 1000000u + (uint64_t)at.tv_nsec / 1000u;
    return now > since ? now : since + 1;
}
API nvmlDeviceGetProcessUtilization(card *device, sample *into, unsigned *count, uint64_t since) {
    if (device->mute) return 3;
    FILL(device, *count, into, ((sample){found[i].pid, microseconds(since), device->sm, 20, 0, 0}));
}
typedef struct { uint64_t time; unsigned pid, sm, memory, encoder, decoder, jpeg, flow; } load;
typedef struct { unsigned version, count; uint64_t since; load *list; } loads;
API nvmlDeviceGetProcessesUtilizationInfo(card *device, loads *into) {
    FILL(device, into->count, into->list, ((load){into->since + 1, found[i].pid, 10, 20, 0, 0, 0, 0}));
}
typedef struct { unsigned session, pid, rest[6]; } encoder_session;
typedef struct { unsigned session, pid, rest[10]; } capture_session;
/* Of each process one session. Without an array only their number. */
#define SESSIONS(name, type, first)                                       \
    API name(card *device, unsigned *count, type *into) {                 \
        holder those[MAX_PROCESSES];                                      \
        if (!into) return holders(device, those, count);                  \
        FILL(device, *count, into, ((type){first + i, found[i].pid, {0}})); \
    }
SESSIONS(nvmlDeviceGetEncoderSessions, encoder_session, 100)
SESSIONS(nvmlDeviceGetFBCSessions, capture_session, 200)
API nvmlDeviceGetAccountingBufferSize(card *device, unsigned *size) { (void)device; return *size = MAX_PROCESSES, OK; }
API nvmlDeviceGetAccountingPids(card *device, unsigned *count, unsigned *pids) { FILL(device, *count, pids, found[i].pid); }
typedef struct { unsigned gpu, memory; uint64_t most, time, start; unsigned running, reserved[5]; } stats;
API nvmlDeviceGetAccountingStats(card *device, unsigned pid, stats *into) {
    (void)device; (void)pid;
    return *into = (stats){.gpu = 30, .memory = 40, .running = 1}, OK;
}
typedef struct { unsigned pid, running, gpu, memory; uint64_t most; unsigned count; uint64_t sums[2], time, start; } stats_v2;
API nvmlDeviceGetAccountingStats_v2(card *device, stats_v2 *into) { (void)device; return into->running = 1, OK; }
API nvmlUnitGetDevices(void *unit, unsigned *count, card **devices) { (void)unit; return cards(NULL, count, devices); }

/* The private table that nvidia-smi asks for: its size, a card by its number, and three lists of processes.
 * tests/test_hook_smi.py shows that NVIDIA's nvidia-smi reads this table. FAKE_SMI_SLOTS names the slots that list the
 * processes, "213" if it is not set; the other lists are empty. */
typedef struct { unsigned pid; uint64_t bytes; unsigned gi, ci; uint64_t secret; char name[4096]; } smi_process;
static int smi_list_in(int slot, card *device, unsigned *count, smi_process *into) {
    const char *chosen = getenv("FAKE_SMI_SLOTS");
    char own[8];
    holder found[MAX_PROCESSES];
    unsigned room = *count, number, index = 0;
    snprintf(own, sizeof own, "%d", slot);
    if (!strstr(chosen ? chosen : "213", own)) return *count = 0, OK;
    int status = holders(device, found, &number);
    if (status) return status;
    (void)nvmlDeviceGetIndex(device, &index);
    for (unsigned i = 0; i < number && i < room; i++) {
        into[i] = (smi_process){found[i].pid, found[i].bytes[index], ~0u, ~0u, 0, ""};
        nvmlSystemGetProcessName(found[i].pid, into[i].name, sizeof into[i].name);
        if (getenv("FAKE_SMI_ODD")) memset(into[i].name, 120, sizeof into[i].name);   /* a name that never ends */
    }
    return *count = number < room ? number : room, OK;
}
static int smi_list0(card *device, unsigned *count, smi_process *into) { return smi_list_in(213, device, count, into); }
static int smi_list1(card *device, unsigned *count, smi_process *into) { return smi_list_in(214, device, count, into); }
static int smi_list2(card *device, unsigned *count, smi_process *into) { return smi_list_in(215, device, count, into); }
static int smi_card(unsigned index, card **device, int how) { (void)how; return nvmlDeviceGetHandleByIndex_v2(index, device); }
static int smi_kind(card *device, unsigned *kind) { (void)device; return *kind = 2, OK; }   /* pmon and dmon ask for it */
static int smi_other(unsigned value, unsigned *twice) { return *twice = 2 * value, OK; }
static int smi_unsupported(void) { return 3; }
API nvmlInternalGetExportTable(const void **table, const uint8_t *id) {
    static const uint8_t known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    static void *entries[256];
    if (!table || !id || memcmp(id, known, sizeof known)) return INVALID_ARGUMENT;
    for (int i = 1; i < 256; i++) entries[i] = (void *)smi_unsupported;
    entries[0] = (void *)(getenv("FAKE_SMI_SHORT") ? 100 * sizeof *entries : sizeof entries);
    entries[72] = (void *)smi_kind;
    entries[80] = (void *)smi_other;
    entries[81] = (void *)smi_card;
    entries[213] = (void *)smi_list0;
    entries[214] = (void *)smi_list1;
    entries[215] = (void *)smi_list2;
    return *table = entries, OK;
}
/* nvidia-smi lists processes of cards that it knows to be whole. */

API nvmlDeviceGetMigMode(card *device, unsigned *now, unsigned *pending) { return *now = *pending = device->mig, OK; }
API nvmlDeviceGetMaxMigDeviceCount(card *device, unsigned *count) { return *count = device->mig ? 7 : 0, OK; }
API nvmlDeviceIsMigDeviceHandle(card *device, unsigned *is_one) { return *is_one = device->parent != 0, OK; }
API nvmlDeviceGetMigDeviceHandleByIndex(card *device, unsigned index, card **instance) {
    state *s = fake_state();
    for (card *one = s->card; one < s->card + s->cards; one++)
        if (one->parent == (uint32_t)(device - s->card) + 1 && !one->gone && !index--) return *instance = one, OK;
    return NVML_NOT_FOUND;
}
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(card *instance, card **device) {
    return instance->parent ? (*device = &fake_state()->card[instance->parent - 1], OK) : INVALID_ARGUMENT;
}
API nvmlDeviceGetGpuInstanceId(card *instance, unsigned *id) { return instance->parent ? (*id = instance->gi, OK) : INVALID_ARGUMENT; }
API nvmlDeviceGetComputeInstanceId(card *instance, unsigned *id) { return instance->parent ? (*id = instance->ci, OK) : INVALID_ARGUMENT; }
/* nvidia-smi pmon lists processes of cards that no virtual machine uses. */
API nvmlDeviceGetVirtualizationMode(card *device, unsigned *mode) { (void)device; return *mode = 0, OK; }
/* nvidia-smi -q registers for events. */
API nvmlEventSetCreate(void **set) { static int only; return *set = &only, OK; }
API nvmlEventSetFree(void *set) { (void)set; return OK; }
API nvmlDeviceRegisterEvents(card *device, uint64_t types, void *set) { (void)device; (void)types; (void)set; return 3; }
API nvmlDeviceGetSupportedEventTypes(card *device, uint64_t *types) { (void)device; return *types = 0, OK; }
