/* libnvidia-ml.so.1: tells of the same cards. */
#include "fake.h"

enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9, IS_LOST = 15 };
#define API __attribute__((visibility("default"))) int
static int users;

static int card_of(const card *device) {
    state *s = users ? fake_state() : NULL;
    return s && device >= s->card && device < s->card + s->cards && !device->gone ? (int)(device - s->card) : -1;
}
/* Cards come before all instances. */
static unsigned whole(void) {
    unsigned count = 0;
    while (count < fake_state()->cards && !fake_state()->card[count].parent) count++;
    return count;
}
static int put(char *text, unsigned room, const char *value) {
    if (strlen(value) + 1 > room) return INSUFFICIENT_SIZE;
    return strcpy(text, value), OK;
}
/* A late driver: it does not answer before the file exists that FAKE_NVML_AWAITS names. */
static void await_file(void) {
    const char *path = getenv("FAKE_NVML_AWAITS");
    while (path && access(path, F_OK)) usleep(10000);
}
API nvmlInit_v2(void) { await_file(); return fake_state() ? (users++, OK) : NOT_LOADED; }
API nvmlInit(void) { return nvmlInit_v2(); }
API nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
API nvmlShutdown(void) { return users ? (users--, OK) : UNINITIALIZED; }
__attribute__((visibility("default"))) const char *nvmlErrorString(int error) {
    static const char *const text[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
                                       "Already Initialized", "Not Found", "Insufficient Size"};
    return error >= 0 && error < 8 ? text[error] : error == NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}
API nvmlSystemGetDriverVersion(char *text, unsigned room) { 
    const char *version = getenv("FAKE_NVML_VERSION");
    return users ? put(text, room, version ? version : "580.0.0") : UNINITIALIZED;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13050, OK; }
API nvmlDeviceGetCount_v2(unsigned *count) { return users ? (*count = whole(), OK) : UNINITIALIZED; }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, card **device) {
    if (!users) return UNINITIALIZED;
    return index < whole() ? (*device = &fake_state()->card[index], OK) : INVALID_ARGUMENT;
}
API nvmlDeviceGetHandleByUUID(const char *uuid, card **device) {
    char text[48];
    if (!users) return UNINITIALIZED;
    for (uint32_t i = 0; i < fake_state()->cards; i++) {
        fake_uuid_text(fake_state()->card[i].uuid, text);
        if (!strcmp(text, uuid) && !fake_state()->card[i].gone) return *device = &fake_state()->card[i], OK;
    }
    return NVML_NOT_FOUND;
}
API nvmlDeviceGetIndex(card *device, unsigned *index) { return card_of(device) < 0 ? INVALID_ARGUMENT : (*index = (unsigned)card_of(device), OK); }
API nvmlDeviceGetMinorNumber(card *device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }
API nvmlDeviceGetName(card *device, char *text, unsigned room) { return card_of(device) < 0 ? INVALID_ARGUMENT : put(text, room, device->name); }
API nvmlDeviceGetUUID(card *device, char *text, unsigned room) {
    char uuid[48];
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    fake_uuid_text(device->uuid, uuid);
    return put(text, room, uuid);
}
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci;
API nvmlDeviceGetPciInfo_v3(card *device, pci *info) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    *info = (pci){.bus = (unsigned)card_of(device) + 1, .id = 0x233510de};
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->text, sizeof info->text, "00000000:%02X:00.0", info->bus);
    return OK;
}
typedef struct { uint64_t total, free, used; } memory;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_v2;
API nvmlDeviceGetMemoryInfo(card *device, memory *info) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    if (device->lost) return IS_LOST;
    info->total = device->total;
    info->used = fake_used(card_of(device)) + device->reserved;
    info->free = info->total - info->used;
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(card *device, memory_v2 *info) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    if (device->lost) return IS_LOST;
    if (info->version != (sizeof *info | 2 << 24)) return 25;   /* argument version mismatch */
    info->total = device->total;
    info->reserved = device->reserved;
    info->used = fake_used(card_of(device));
    info->free = info->total - info->used - info->reserved;
    return OK;
}
typedef struct { unsigned pid; uint64_t bytes; } process;
typedef struct { unsigned pid; uint64_t bytes; unsigned instance, compute; } process_v2;
typedef struct { process_v2 first; uint64_t secret; } process_of_535;   /* in the _v3 lists of 535.43 to 535.86 */
static int has_large_entries(void) {
    const char *version = getenv("FAKE_NVML_VERSION");
    int minor = version && !strncmp(version, "535.", 4) ? atoi(version + 4) : 0;
    return minor >= 43 && minor <= 86;
}
/* A card in MIG mode lists the processes of its instances. */
static unsigned of_instances(int parent, process_v2 *into, unsigned room) {
    holder found[MAX_PROCESSES];
    unsigned count = 0;
    for (int at = parent + 1; at < (int)fake_state()->cards; at++) {
        card *own = &fake_state()->card[at];
        int number = own->parent == (uint32_t)parent + 1 ? fake_holders(at, found, MAX_PROCESSES) : 0;
        for (int i = 0; i < number; i++, count++)
            if (count < room) into[count] = (process_v2){found[i].pid, found[i].bytes[at], own->gi, own->ci};
    }
    return count;
}
static int list(card *device, unsigned *count, void *into, int layout) {
    holder found[MAX_PROCESSES];
    int at = card_of(device);
    if (at < 0 || !count || (*count && !into)) return INVALID_ARGUMENT;
    unsigned room = *count, held = (unsigned)fake_holders(at, found, MAX_PROCESSES);
    *count = held + (device->mig ? of_instances(at, NULL, 0) : 0);
    if (*count > room) return INSUFFICIENT_SIZE;
    unsigned gi = device->parent ? device->gi : 0xffffffff, ci = device->parent ? device->ci : 0xffffffff;
    for (unsigned i = 0; i < held; i++)
        if (layout == 1) ((process *)into)[i] = (process){found[i].pid, found[i].bytes[at]};
        else if (layout == 3 && has_large_entries()) ((process_of_535 *)into)[i] = (process_of_535){{found[i].pid, found[i].bytes[at], gi, ci}, 0};
        else ((process_v2 *)into)[i] = (process_v2){found[i].pid, found[i].bytes[at], gi, ci};
    if (device->mig && layout != 1) of_instances(at, (process_v2 *)into + held, *count - held);
    return OK;
}
static int nobody(card *device, unsigned *count) { return card_of(device) < 0 || !count ? INVALID_ARGUMENT : (*count = 0, OK); }
API nvmlDeviceGetComputeRunningProcesses(card *d, unsigned *n, void *into) { return list(d, n, into, 1); }
API nvmlDeviceGetComputeRunningProcesses_v2(card *d, unsigned *n, void *into) { return list(d, n, into, 2); }
API nvmlDeviceGetComputeRunningProcesses_v3(card *d, unsigned *n, void *into) { return list(d, n, into, 3); }
#define NOBODY(name) API name(card *d, unsigned *n, void *into) { (void)into; return nobody(d, n); }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)
/* Each card is near two CPUs of its own. */
API nvmlDeviceGetCpuAffinity(card *device, unsigned words, unsigned long *set) {
    if (card_of(device) < 0 || !words) return INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    return set[0] = 3ul << 2 * card_of(device), OK;
}
API nvmlDeviceGetUtilizationRates(card *device, unsigned *rates) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    if (device->mig || device->parent) return NOT_SUPPORTED;
    uint64_t used = fake_used(card_of(device));
    rates[0] = device->utilization;
    rates[1] = (unsigned)(100 * used / device->total);
    return OK;
}
API nvmlDeviceGetTemperature(card *device, int sensor, unsigned *value) {
    return card_of(device) < 0 || sensor ? INVALID_ARGUMENT : (*value = device->temperature, OK);
}
API nvmlDeviceGetTotalEccErrors(card *device, int type, int counter, uint64_t *count) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    return type == 1 && counter == 0 ? (*count = device->ecc, OK) : NOT_SUPPORTED;
}
API nvmlDeviceGetRemappedRows(card *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    if (card_of(device) < 0) return INVALID_ARGUMENT;
    *corrected = *uncorrected = 0;
    *pending = device->pending;
    *failed = device->failed;
    return OK;
}
/* Figures that an old card does not have. */
static int figure(card *device, unsigned value, unsigned *into) {
    return card_of(device) < 0 || !into ? INVALID_ARGUMENT : device->mute || device->parent ? NOT_SUPPORTED : (*into = value, OK);
}
API nvmlDeviceGetPowerUsage(card *device, unsigned *milliwatts) { return figure(device, device->power, milliwatts); }
API nvmlDeviceGetClockInfo(card *device, int which, unsigned *mhz) { return which != 1 && which != 2 ? INVALID_ARGUMENT : figure(device, device->clock, mhz); }
API nvmlDeviceGetTotalEnergyConsumption(card *device, unsigned long long *millijoules) {
    unsigned value;
    int status = figure(device, device->energy, &value);
    return status ? status : (*millijoules = value, OK);
}
API nvmlDeviceGetCurrentClocksThrottleReasons(card *device, unsigned long long *mask) {
    unsigned value;
    int status = figure(device, device->throttle, &value);
    return status ? status : (*mask = value, OK);
}
/* Limits on cgroups, as drivers from r615 have them: only where FAKE_NVML_LIMITS says so. */
typedef struct { const char *path; uint64_t soft, hard; } set_limits;
typedef struct { const char *path; uint64_t soft, hard, used; } get_limits;
static int old_driver(void) { return !getenv("FAKE_NVML_LIMITS"); }
API nvmlDeviceSetMemoryLimits_v1(card *device, set_limits *wish) {
    int at = card_of(device);
    if (at < 0 || !wish || !wish->path || access(wish->path, F_OK)) return INVALID_ARGUMENT;
    if (old_driver()) return NOT_SUPPORTED;
    if (!strcmp(getenv("FAKE_NVML_LIMITS"), "broken")) return OK;
    limit *found = fake_limit(at, wish->path, 1);
    if (!found) return INVALID_ARGUMENT;
    found->soft = wish->soft;
    found->hard = wish->hard;
    return OK;
}
API nvmlDeviceGetMemoryLimits_v1(card *device, get_limits *asked) {
    int at = card_of(device);
    if (at < 0 || !asked || !asked->path) return INVALID_ARGUMENT;
    if (old_driver()) return NOT_SUPPORTED;
    limit *found = fake_limit(at, asked->path, 0);
    if (!found) return NVML_NOT_FOUND;
    asked->soft = found->soft;
    asked->hard = found->hard;
    return OK;
}
