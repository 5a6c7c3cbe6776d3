/* A driver to test against: the NVML functions that bench calls, answering from a script.
 *
 * Built by tests/standin/__init__.py with the soname of the real library. The file that $BENCH_STANDIN_NVML names is
 * looked at in every call, so a test may change what the driver says while a process uses it. Its lines, in NVML's order of
 * devices (words without spaces; an underscore in a name becomes a space):
 *
 *     device UUID DOMAIN BUS DEVICE NAME TOTAL_BYTES
 *     process UUID PID BYTES                        BYTES may be 18446744073709551615, "not available"
 *     graphics UUID PID BYTES                       likewise, in the list of graphics processes
 *     value UUID METRIC NUMBER                      what a metric is; 0 without such a line
 *     error UUID METRIC CODE                        the code that a call returns instead; UUID may be *
 *     every UUID METRIC/N NUMBER                    what every Nth call gives instead of its value
 *     name NAME PID NUMBER                          the name of a process (the number is not looked at)
 *     scrambled 1                                   processes come in the layout of early R535: 32 bytes a row, not 24
 *     insufficient N                                the first N filled calls for processes are too small (a race)
 *     delay_us N                                    what a call for processes takes
 *     delay_all_us N                                what every other call about a device takes
 *     log PATH                                      the name of every call is appended there
 *
 * With OLD_DRIVER it lacks the symbols that drivers before R535 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MAX_DEVICES = 16, MAX_LINES = 256 };

typedef struct { char uuid[96], name[96]; unsigned domain, bus, device; unsigned long long total; } Device;
typedef struct { char kind[16], uuid[96], key[64]; unsigned long long number; } Line;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, code;
    unsigned long long value;
} FieldValue;
typedef struct { unsigned gpu, memory; } Utilization;

static Device devices[MAX_DEVICES];
static Line lines[MAX_LINES];
static unsigned device_count, line_count;
static unsigned long long insufficient, delay_us, delay_all_us, scrambled;
static struct { char key[192]; unsigned long long calls; } counters[MAX_LINES];
static unsigned long long insufficient_so_far;
static int started;

static void tell(const char *log, const char *function)
{
    if (log[0]) {
        FILE *out = fopen(log, "a");
        fprintf(out, "%s\n", function);
        fclose(out);
    }
}

/* Read the script anew where it was changed, and tell the log which function was called. */
static void load(const char *function)
{
    static char log[400];
    static struct stat read_as;
    char text[512];
    struct stat now;
    const char *path = getenv("BENCH_STANDIN_NVML");
    if (!path || stat(path, &now)) {
        perror("BENCH_STANDIN_NVML");
        abort();
    }
    int same = now.st_ino == read_as.st_ino && now.st_size == read_as.st_size && now.st_mtim.tv_sec == read_as.st_mtim.tv_sec
               && now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec;
    read_as = now;
    if (same) {
        tell(log, function);
        return;
    }
    FILE *script = fopen(path, "r");
    log[0] = 0;
    device_count = line_count = 0;
    insufficient = delay_us = delay_all_us = scrambled = 0;
    if (!script) {
        perror("BENCH_STANDIN_NVML");
        abort();
    }
    while (fgets(text, sizeof text, script)) {
        Device *d = &devices[device_count];
        Line *l = &lines[line_count];
        if (sscanf(text, "device %95s %u %u %u %95s %llu", d->uuid, &d->domain, &d->bus, &d->device, d->name, &d->total) == 6) {
            for (char *c = d->name; *c; c++)
                if (*c == '_')
                    *c = ' ';
            device_count++;
        } else if (sscanf(text, "%15s %95s %63s %llu", l->kind, l->uuid, l->key, &l->number) == 4) {
            line_count++;
        } else if (sscanf(text, "insufficient %llu", &insufficient) != 1 && sscanf(text, "delay_us %llu", &delay_us) != 1
                   && sscanf(text, "delay_all_us %llu", &delay_all_us) != 1 && sscanf(text, "scrambled %llu", &scrambled) != 1) {
            if (sscanf(text, "log %399s", log) != 1) {
                fprintf(stderr, "not understood: %s", text);
                abort();
            }
        }
    }
    fclose(script);
    tell(log, function);
}

static const Line *find(const char *kind, const char *uuid, const char *key)
{
    for (unsigned i = 0; i < line_count; i++) {
        const Line *l = &lines[i];
        int same = strcmp(l->uuid, "*") == 0 || strcmp(l->uuid, uuid) == 0;
        if (same && strcmp(l->kind, kind) == 0 && strcmp(l->key, key) == 0)
            return l;
    }
    return NULL;
}

static void wait_us(unsigned long long us)
{
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

/* How often this was asked, this time included. */
static unsigned long long count_call(const char *uuid, const char *key)
{
    char name[192];
    snprintf(name, sizeof name, "%s %s", uuid, key);
    for (unsigned i = 0; i < MAX_LINES; i++) {
        if (!counters[i].key[0])
            snprintf(counters[i].key, sizeof counters[i].key, "%s", name);
        if (strcmp(counters[i].key, name) == 0)
            return ++counters[i].calls;
    }
    abort();
}

/* The line of this kind whose key is METRIC/N, and its N. */
static const Line *find_counted(const char *kind, const char *uuid, const char *key, unsigned long long *n)
{
    for (unsigned i = 0; i < line_count; i++) {
        const Line *l = &lines[i];
        const char *slash = strchr(l->key, '/');
        int same = strcmp(l->uuid, "*") == 0 || strcmp(l->uuid, uuid) == 0;
        if (same && slash && strcmp(l->kind, kind) == 0 && strlen(key) == (size_t)(slash - l->key)
            && strncmp(l->key, key, strlen(key)) == 0) {
            *n = strtoull(slash + 1, NULL, 10);
            return l;
        }
    }
    return NULL;
}

/* What a metric of a device is, or the error that the script has for it. A handle is a place in `devices`, from 1. */
static int metric(const char *function, void *handle, const char *key, unsigned long long *number)
{
    load(function);
    if (!started)
        return UNINITIALIZED;
    const char *uuid = handle ? devices[(size_t)handle - 1].uuid : "";
    const Line *error = find("error", uuid, key);
    if (error)
        return (int)error->number;
    if (handle && strcmp(key, "processes"))
        wait_us(delay_all_us);
    unsigned long long n, calls = count_call(uuid, key);
    const Line *value = find("value", uuid, key);
    const Line *every = find_counted("every", uuid, key, &n);
    *number = every && calls % n == 0 ? every->number : value ? value->number : 0;
    return SUCCESS;
}

static int unsigned_metric(const char *function, void *handle, const char *key, unsigned *number)
{
    unsigned long long wide = 0;
    int code = metric(function, handle, key, &wide);
    *number = (unsigned)wide;
    return code;
}

static int text(const char *function, void *handle, const char *key, const char *from, char *to, unsigned length)
{
    unsigned long long unused;
    int code = metric(function, handle, key, &unused);
    snprintf(to, length, "%s", from);
    return code;
}

#define DEVICE(handle) (devices[(size_t)(handle)-1])
/* A function of NVML that gives one number of a device. */
#define NUMBER(function, key) \
    int function(void *handle, unsigned *number) { return unsigned_metric(__func__, handle, key, number); }
#define WIDE(function, key) \
    int function(void *handle, unsigned long long *number) { return metric(__func__, handle, key, number); }

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    load(__func__);
    const Line *error = find("error", "", "init");
    started = !error;
    return error ? (int)error->number : SUCCESS;
}

int nvmlShutdown(void)
{
    load(__func__);
    int code = started ? SUCCESS : UNINITIALIZED;
    started = 0;
    return code;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return text(__func__, NULL, "driver_version", "999.01", version, length);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return text(__func__, NULL, "nvml_version", "13.999.01", version, length);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    unsigned unused;
    int code = unsigned_metric(__func__, NULL, "count", &unused);
    *count = device_count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    load(__func__);
    *handle = (void *)(size_t)(index + 1);
    const Line *error = index < device_count ? find("error", devices[index].uuid, "handle") : NULL;
    return error ? (int)error->number : index < device_count ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    load(__func__);
    for (unsigned i = 0; i < device_count; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length)
{
    return text(__func__, handle, "uuid", DEVICE(handle).uuid, uuid, length);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length)
{
    return text(__func__, handle, "name", DEVICE(handle).name, name, length);
}

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci)
{
    unsigned unused;
    int code = unsigned_metric(__func__, handle, "pci", &unused);
    const Device *d = &DEVICE(handle);
    memset(pci, 0, sizeof *pci);
    pci->domain = d->domain;
    pci->bus = d->bus;
    pci->device = d->device;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", d->domain, d->bus, d->device);
    return code;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    unsigned number;
    int code = unsigned_metric(__func__, handle, "capability", &number);
    *major = (int)number / 10;
    *minor = (int)number % 10;
    return code;
}

NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit")

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory)
{
    int code = metric(__func__, handle, "used", &memory->used);
    memory->total = DEVICE(handle).total;
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates)
{
    rates->memory = 0;
    return unsigned_metric(__func__, handle, "utilisation", &rates->gpu);
}

NUMBER(nvmlDeviceGetPowerUsage, "power")
WIDE(nvmlDeviceGetTotalEnergyConsumption, "energy")

int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz)
{
    static const char *const names[] = {"graphics_clock", "sm_clock", "memory_clock", "video_clock"};
    return unsigned_metric(__func__, handle, names[type], mhz);
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius)
{
    (void)sensor;
    return unsigned_metric(__func__, handle, "temperature", celsius);
}

WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")

static int list_of(const char *kind, const char *function, void *handle, unsigned *count, Process *processes)
{
    unsigned long long unused;
    unsigned there = 0, room = *count;
    int code = metric(function, handle, "processes", &unused);
    if (code)
        return code;
    wait_us(delay_us);
    int race = processes && insufficient_so_far < insufficient && ++insufficient_so_far;
    for (unsigned i = 0; i < line_count; i++) {
        if (strcmp(lines[i].kind, kind) || strcmp(lines[i].uuid, DEVICE(handle).uuid))
            continue;
        if (processes && scrambled && there < room) { /* pid, memory, instances, then 8 bytes that the reader knows nothing of */
            char *row = (char *)processes + 32 * there;
            unsigned long long confidential = 0;
            *(Process *)row = (Process){(unsigned)strtoul(lines[i].key, NULL, 10), lines[i].number, -1u, -1u};
            memcpy(row + 24, &confidential, sizeof confidential);
        } else if (processes && there < room)
            processes[there] = (Process){(unsigned)strtoul(lines[i].key, NULL, 10), lines[i].number, -1u, -1u};
        there++;
    }
    *count = there;
    return race || there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory)
{
    unsigned long long reserved = 0;
    int code = metric(__func__, handle, "used", &memory->used);
    const Line *line = find("value", DEVICE(handle).uuid, "reserved");
    reserved = line ? line->number : 0;
    memory->total = DEVICE(handle).total;
    memory->reserved = reserved;
    memory->used -= reserved;
    memory->free = memory->total - memory->used - reserved;
    return code;
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values)
{
    unsigned long long unused;
    int code = metric(__func__, handle, "fields", &unused);
    for (int i = 0; i < count && !code; i++) {
        const char *key = values[i].field == 197 ? "pcie_tx" : values[i].field == 198 ? "pcie_rx" : values[i].field == 138 ? "nvlink_tx" : values[i].field == 90 ? "nvlink_speed" : "nvlink_rx";
        values[i].type = 3;
        values[i].code = metric(__func__, handle, key, &values[i].value);
    }
    return code;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    int code = unsigned_metric(__func__, handle, "mig", current);
    *pending = *current;
    return code;
}

#ifndef OLD_DRIVER
/* GPM as R525 has it: room for 98 metrics. */
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { void *device; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *before, *now; GpmMetric metrics[98]; } GpmMetrics;

int nvmlGpmQueryDeviceSupport(void *handle, GpmSupport *support)
{
    return unsigned_metric(__func__, handle, "gpm", &support->supported);
}

int nvmlGpmSampleAlloc(GpmSample **sample)
{
    *sample = calloc(1, sizeof **sample);
    load(__func__);
    return SUCCESS;
}

int nvmlGpmSampleFree(GpmSample *sample)
{
    free(sample);
    load(__func__);
    return SUCCESS;
}

int nvmlGpmSampleGet(void *handle, GpmSample *sample)
{
    unsigned unused;
    sample->device = handle;
    return unsigned_metric(__func__, handle, "gpm_sample", &unused);
}

int nvmlGpmMetricsGet(GpmMetrics *asked)
{
    unsigned long long number;
    char key[64];
    unsigned version;
    int code = unsigned_metric(__func__, asked->now->device, "gpm_version", &version);
    if (code || asked->version != (version ? version : 1))
        return code ? code : 25;
    for (unsigned i = 0; i < asked->count; i++) {
        GpmMetric *m = &asked->metrics[i];
        snprintf(key, sizeof key, "gpm_%u", m->id);
        m->code = metric(__func__, asked->now->device, key, &number);
        m->value = (double)number;
    }
    return SUCCESS;
}
#endif

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    load(__func__);
    for (unsigned i = 0; i < line_count; i++)
        if (strcmp(lines[i].kind, "name") == 0 && strtoul(lines[i].key, NULL, 10) == pid) {
            snprintf(name, length, "%s", lines[i].uuid);
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    load(__func__);
    const Line *line = find("value", "*", "cuda");
    *version = line ? (int)line->number : 13020;
    return SUCCESS;
}

NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")

int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending)
{
    int code = unsigned_metric(__func__, handle, "ecc", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *mhz)
{
    static const char *const names[] = {"max_graphics_clock", "max_sm_clock", "max_memory_clock", "max_video_clock"};
    return unsigned_metric(__func__, handle, names[type], mhz);
}

NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "default_power_limit")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_pcie_generation")

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active)
{
    unsigned links = 0;
    int code = unsigned_metric(__func__, handle, "nvlinks", &links);
    *active = link < links;
    return code;
}

NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_pcie_width")

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level)
{
    (void)other;
    unsigned number = 0;
    int code = unsigned_metric(__func__, one, "topology", &number);
    *level = (int)number;
    return code;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status)
{
    (void)other;
    unsigned number = 0;
    int code = unsigned_metric(__func__, one, index == 0 ? "p2p_read" : index == 2 ? "p2p_nvlink" : "p2p_other", &number);
    *status = (int)number;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, Process *processes)
{
    return list_of("process", __func__, handle, count, processes);
}

#ifndef OLD_DRIVER
WIDE(nvmlDeviceGetCurrentClocksEventReasons, "throttle")

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes)
{
    return list_of("process", __func__, handle, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *processes)
{
    return list_of("graphics", __func__, handle, count, processes);
}
#endif
