/* A CUDA to test against: the functions of CUDA's runtime and of NCCL that torch calls, on memory of the host.
 *
 * Preloaded (LD_PRELOAD) into a process with a torch that is built for CUDA 12 or 13, so that torch's own code for GPUs
 * runs: its allocator, streams, events, graphs and process groups. $STANDIN_CUDA has the UUIDs of the GPUs.
 * Kernels are not run: sitecustomize.py computes what they would, at once. On its stream each takes $STANDIN_KERNEL_MS
 * (0), one that exchanges also its bytes at $STANDIN_NCCL_GB_PER_S, and the profiler sees it. A graph that is replayed
 * does nothing.
 *
 * As in CUDA, a fork of a process that has used a device has none, and a stream that is being captured refuses to be
 * waited for. Ranks of one machine reduce through shared memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK, INVALID_VALUE, NO_MEMORY, NOT_INITIALISED, NO_DEVICE = 100, BAD_DEVICE, BAD_HANDLE = 400, CAPTURING = 900 };
enum { UNREGISTERED, HOST, DEVICE };
enum { MOST = 16 };
#define MEMORY (80ull << 30)

typedef void *Stream;
typedef unsigned long long u64;

/* Devices */

static char uuids[MOST][64];
static int ordinals[MOST], device_count = -1, initialised_by;
static __thread int device, last_error;

static void look(void)
{
    if (device_count >= 0)
        return;
    char all[MOST][64], *save, *text = strdup(getenv("STANDIN_CUDA") ? getenv("STANDIN_CUDA") : "");
    int there = 0;
    for (char *one = strtok_r(text, ",", &save); one && there < MOST; one = strtok_r(NULL, ",", &save))
        snprintf(all[there++], sizeof *all, "%s", one);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    device_count = 0;
    if (!visible)
        for (int i = 0; i < there; i++, device_count++)
            strcpy(uuids[i], all[i]), ordinals[i] = i;
    text = strdup(visible ? visible : "");
    for (char *one = strtok_r(text, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        int found = -1;
        for (int i = 0; i < there; i++)
            if (!strcmp(all[i], one) || (one[0] >= '0' && one[0] <= '9' && atoi(one) == i))
                found = i;
        if (found < 0)
            break; /* what comes after a name that is none is not seen */
        strcpy(uuids[device_count], all[found]);
        ordinals[device_count++] = found;
    }
}

static int failed(int error)
{
    if (error)
        last_error = error;
    return error;
}

/* Every call that needs a device begins with this. */
static int ready(void)
{
    look();
    if (!device_count)
        return failed(NO_DEVICE);
    if (initialised_by && initialised_by != getpid())
        return failed(NOT_INITIALISED);
    initialised_by = getpid();
    return OK;
}
#define READY do { int error = ready(); if (error) return error; } while (0)

int cudaGetDeviceCount(int *count)
{
    look();
    *count = device_count;
    return failed(device_count ? OK : NO_DEVICE);
}

int cudaGetDevice(int *current) { look(); *current = device; return failed(device_count ? OK : NO_DEVICE); }
int cudaSetDevice(int one)
{
    READY;
    if (one < 0 || one >= device_count)
        return failed(BAD_DEVICE);
    device = one;
    return OK;
}
int cudaDriverGetVersion(int *version) { *version = 13000; return OK; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return OK; }

int cudaDeviceGetAttribute(int *value, int attribute, int one)
{
    look();
    if (one < 0 || one >= device_count)
        return failed(BAD_DEVICE);
    /* the compute capability, threads of a warp, processors; other attributes are what it can do */
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : attribute == 16 ? 132 : 1;
    return OK;
}

/* What a device is, by the places of the fields in cudaDeviceProp, the later of which CUDA 13 moved. */
enum { PROCESSORS, BUS, CACHE, THREADS, SHARED, REGISTERS, MOST_SHARED, BLOCKS };
static int properties_of(char *told, int one, const int *at, size_t bytes)
{
    static const int alike[][2] = {
        {304, 65536}, {308, 32}, {320, 1024}, {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647}, {340, 65535},
        {344, 65535}, {360, 9}, {364, 0},
    };
    look();
    if (one < 0 || one >= device_count)
        return failed(BAD_DEVICE);
    memset(told, 0, bytes);
    strcpy(told, "Stand-in");
    const char *digit = uuids[one] + 4; /* after GPU- */
    for (int i = 0; i < 16 && digit[0] && digit[1]; digit += 2) {
        unsigned byte;
        digit += *digit == '-';
        sscanf(digit, "%2x", &byte);
        told[256 + i++] = (char)byte;
    }
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        *(int *)(told + alike[i][0]) = alike[i][1];
    *(size_t *)(told + 288) = MEMORY;
    *(size_t *)(told + 296) = 48 << 10;
    *(int *)(told + at[PROCESSORS]) = 132;
    *(int *)(told + at[BUS]) = ordinals[one] + 1;
    *(int *)(told + at[CACHE]) = 50 << 20;
    *(int *)(told + at[THREADS]) = 2048;
    *(size_t *)(told + at[SHARED]) = 228 << 10;
    *(int *)(told + at[REGISTERS]) = 65536;
    *(size_t *)(told + at[MOST_SHARED]) = 227 << 10;
    *(int *)(told + at[BLOCKS]) = 32;
    return OK;
}

int cudaGetDeviceProperties(char *told, int one)
{
    static const int at[] = {384, 568, 596, 604, 624, 632, 672, 688};
    return properties_of(told, one, at, 1008);
}

int cudaGetDeviceProperties_v2(char *told, int one) /* of CUDA 12 */
{
    static const int at[] = {388, 584, 616, 624, 640, 648, 696, 712};
    return properties_of(told, one, at, 1032);
}

int cudaDeviceGetPCIBusId(char *text, int room, int one)
{
    snprintf(text, (size_t)room, "0000:%02x:00.0", ordinals[one] + 1);
    return OK;
}
int cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = one != other; return OK; }
int cudaDeviceEnablePeerAccess(int other, unsigned flags) { READY; return OK; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { READY; *least = 0, *greatest = -5; return OK; }

/* Memory */

typedef struct { char *at; size_t bytes; int device, kind, mapped; } Block;
static Block *blocks;
static int block_count, block_room;
static size_t used[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int block_of(const void *at)
{
    for (int i = block_count - 1; i >= 0; i--)
        if ((char *)at >= blocks[i].at && (char *)at < blocks[i].at + blocks[i].bytes)
            return i;
    return -1;
}

static int keep(void *at, size_t bytes, int kind, int mapped)
{
    if (block_count == block_room)
        blocks = realloc(blocks, sizeof *blocks * (size_t)(block_room = block_room ? 2 * block_room : 256));
    blocks[block_count++] = (Block){at, bytes, device, kind, mapped};
    used[device] += kind == DEVICE ? bytes : 0;
    return OK;
}

static int allocate(void **at, size_t bytes, int kind)
{
    READY;
    pthread_mutex_lock(&lock);
    int full = kind == DEVICE && used[device] + bytes > MEMORY;
    *at = full ? MAP_FAILED
               : mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int error = *at == MAP_FAILED ? NO_MEMORY : keep(*at, bytes ? bytes : 1, kind, 1);
    pthread_mutex_unlock(&lock);
    return failed(error);
}

static int release(void *at)
{
    READY;
    pthread_mutex_lock(&lock);
    int found = at ? block_of(at) : -1;
    if (found >= 0) {
        Block block = blocks[found];
        blocks[found] = blocks[--block_count];
        used[block.device] -= block.kind == DEVICE ? block.bytes : 0;
        if (block.mapped)
            munmap(block.at, block.bytes);
    }
    pthread_mutex_unlock(&lock);
    return failed(at && found < 0 ? INVALID_VALUE : OK);
}

int cudaMalloc(void **at, size_t bytes) { return allocate(at, bytes, DEVICE); }
int cudaMallocHost(void **at, size_t bytes) { return allocate(at, bytes, HOST); }
int cudaHostAlloc(void **at, size_t bytes, unsigned flags) { return allocate(at, bytes, HOST); }
int cudaFree(void *at) { return release(at); }
int cudaFreeHost(void *at) { return release(at); }
int cudaHostUnregister(void *at) { return release(at); }
int cudaHostGetDevicePointer(void **there, void *at, unsigned flags) { *there = at; return OK; }
int cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    READY;
    pthread_mutex_lock(&lock);
    keep(at, bytes, HOST, 0);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    READY;
    *total = MEMORY, *free_bytes = MEMORY - used[device] - (3ull << 30);
    return OK;
}

typedef struct { int kind, device; void *on_device, *on_host; } PointerAttributes;
int cudaPointerGetAttributes(PointerAttributes *told, void *at)
{
    pthread_mutex_lock(&lock);
    int found = block_of(at);
    *told = (PointerAttributes){UNREGISTERED, -2, NULL, NULL};
    if (found >= 0)
        *told = (PointerAttributes){blocks[found].kind, blocks[found].device, at, blocks[found].kind == HOST ? at : NULL};
    pthread_mutex_unlock(&lock);
    return OK;
}

/* Streams, events and graphs. A stream knows when it will be done (ms of the monotonic clock); who waits sleeps so long. */

enum { NOT_READY = 600, MOST_STREAMS = 4096 };
typedef struct { int priority, capturing, device; u64 id; double done_ms; } Queue;
static Queue legacy[MOST], *queues[MOST_STREAMS];
static int captures, queue_count;
static u64 capture_ids;
static __thread int capture_mode;

static Queue *queue_of(int one, Stream stream) { return (size_t)stream <= 2 ? &legacy[one] : stream; }
static Queue *queue(Stream stream) { return queue_of(device, stream); }

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void sleep_until(double ms)
{
    struct timespec then = {(time_t)(ms / 1e3), (long)(fmod(ms, 1e3) * 1e6)};
    if (ms > now_ms())
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL))
            ;
}

static void note(const char *name, int one, double begin_ms, double ms);

static double setting(const char *name) { return getenv(name) ? atof(getenv(name)) : 0.0; }

/* A kernel of so many milliseconds begins when the stream has done what it had. */
static void run(int one, Stream stream, double ms, const char *name)
{
    Queue *of = queue_of(one, stream);
    double begin_ms = fmax(of->done_ms, now_ms());
    if (of->capturing || ms <= 0.0)
        return;
    of->done_ms = begin_ms + ms;
    note(name, one, begin_ms, ms);
}
void standin_launched(int one, Stream stream, const char *name)
{
    run(one, stream, setting("STANDIN_KERNEL_MS"), name);
}

/* What waits is refused while this thread captures in a strict mode. */
static int may_wait(void)
{
    READY;
    return failed(captures && capture_mode != 2 ? CAPTURING : OK);
}

static int wait_until(double ms)
{
    int error = may_wait();
    if (!error)
        sleep_until(ms);
    return error;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    int error = wait_until(legacy[device].done_ms);
    if (!error)
        memmove(to, from, bytes);
    return error;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream stream)
{
    READY;
    memmove(to, from, bytes);
    standin_launched(device, stream, "Memcpy");
    return OK;
}
int cudaMemcpyPeerAsync(void *to, int on, const void *from, int of, size_t bytes, Stream stream)
{
    return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t pitch, size_t width, size_t height, int kind, Stream s)
{
    READY;
    for (size_t row = 0; row < height; row++)
        memmove(to + row * to_pitch, from + row * pitch, width);
    return OK;
}
int cudaMemset(void *at, int value, size_t bytes) { READY; memset(at, value, bytes); return OK; }
int cudaMemsetAsync(void *at, int value, size_t bytes, Stream stream) { return cudaMemset(at, value, bytes); }
int cudaMemcpyToSymbol(void *symbol, const void *from, size_t bytes, size_t offset, int kind) { READY; return OK; }

typedef struct { double at_ms; unsigned flags; int recorded; } Event;
int cudaEventCreateWithFlags(Event **event, unsigned flags)
{
    READY;
    *event = calloc(1, sizeof **event);
    (*event)->flags = flags;
    return OK;
}
int cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(Event *event) { READY; free(event); return OK; }
int cudaEventRecordWithFlags(Event *event, Stream stream, unsigned flags)
{
    READY;
    event->at_ms = fmax(now_ms(), queue(stream)->done_ms);
    event->recorded = 1;
    return OK;
}
int cudaEventRecord(Event *event, Stream stream) { return cudaEventRecordWithFlags(event, stream, 0); }
int cudaEventQuery(Event *event) { READY; return event->at_ms > now_ms() ? NOT_READY : OK; }
int cudaEventSynchronize(Event *event) { return wait_until(event->at_ms); }
int cudaEventElapsedTime(float *ms, Event *begin, Event *end)
{
    enum { NO_TIMING = 2 };
    READY;
    *ms = (float)(end->at_ms - begin->at_ms);
    int both = begin->recorded && end->recorded && !((begin->flags | end->flags) & NO_TIMING);
    return failed(both ? OK : BAD_HANDLE);
}

int cudaDeviceSynchronize(void)
{
    double last_ms = legacy[device].done_ms;
    for (int i = 0; i < queue_count; i++)
        if (queues[i]->device == device)
            last_ms = fmax(last_ms, queues[i]->done_ms);
    return wait_until(last_ms);
}
int cudaStreamSynchronize(Stream stream) { return wait_until(queue(stream)->done_ms); }
int cudaStreamQuery(Stream stream)
{
    int error = may_wait();
    return error ? error : queue(stream)->done_ms > now_ms() ? NOT_READY : OK;
}
int cudaStreamWaitEvent(Stream stream, Event *event, unsigned flags)
{
    READY;
    queue(stream)->done_ms = fmax(queue(stream)->done_ms, event->at_ms);
    return OK;
}
int cudaStreamCreateWithPriority(Stream *stream, unsigned flags, int priority)
{
    READY;
    Queue *made = calloc(1, sizeof *made);
    made->priority = priority, made->device = device;
    *stream = queues[queue_count++] = made;
    return OK;
}
int cudaStreamCreateWithFlags(Stream *stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamCreate(Stream *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
int cudaStreamDestroy(Stream stream) { READY; return OK; }
int cudaStreamGetPriority(Stream stream, int *priority) { READY; *priority = queue(stream)->priority; return OK; }
int cudaStreamIsCapturing(Stream stream, int *status) { READY; *status = queue(stream)->capturing; return OK; }
int cudaStreamGetCaptureInfo(
    Stream stream, int *status, u64 *id, void **graph, void **nodes, void **edges, size_t *node_count)
{
    READY;
    *status = queue(stream)->capturing;
    if (id)
        *id = queue(stream)->id;
    if (graph)
        *graph = queue(stream);
    if (node_count)
        *node_count = 0;
    return OK;
}
int cudaStreamGetCaptureInfo_v2(Stream stream, int *status, u64 *id, void **graph, void **nodes, size_t *node_count)
{
    return cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, NULL, node_count);
}
int cudaStreamBeginCapture(Stream stream, int mode)
{
    READY;
    if (!stream)
        return failed(CAPTURING);
    queue(stream)->capturing = 1, queue(stream)->id = ++capture_ids, captures++;
    return OK;
}
int cudaStreamEndCapture(Stream stream, void **graph)
{
    READY;
    queue(stream)->capturing = 0, captures--;
    *graph = calloc(1, 64);
    return OK;
}
int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode, *mode = before;
    return OK;
}
int cudaGraphInstantiate(void **made, void *graph, u64 flags) { READY; *made = calloc(1, 64); return OK; }
int cudaGraphInstantiateWithFlags(void **made, void *graph, u64 flags)
{
    return cudaGraphInstantiate(made, graph, flags);
}
int cudaGraphGetNodes(void *graph, void *nodes, size_t *count) { READY; *count = 1; return OK; }
int cudaUserObjectCreate(void **made, void *held, void *destroy, unsigned count, unsigned flags)
{
    *made = &legacy;
    return OK;
}
int cudaLaunchHostFunc(Stream stream, void (*call)(void *), void *with) { READY; call(with); return OK; }

/* Kernels */

typedef struct { unsigned x, y, z; } Size;
int cudaLaunchKernel(const void *kernel, Size grid, Size block, void **with, size_t shared, Stream stream)
{
    READY;
    return OK;
}
int __cudaLaunchKernel(const void *kernel, Size grid, Size block, void **with, size_t shared, Stream stream)
{
    READY;
    return OK;
}
int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return OK; }
int __cudaPushCallConfiguration(Size grid, Size block, size_t shared, Stream stream) { return OK; }
int __cudaPopCallConfiguration(Size *grid, Size *block, size_t *shared, Stream *stream)
{
    *grid = *block = (Size){1, 1, 1};
    *shared = 0, *stream = NULL;
    return OK;
}
void *__cudaRegisterFatBinary(void *binary) { static void *handle[4]; return handle; }
int cudaFuncGetAttributes(int *attributes, const void *kernel)
{
    memset(attributes, 0, 144);
    attributes[6] = 1024, attributes[7] = 32, attributes[8] = attributes[9] = 90; /* threads, registers, code for 9.0 */
    return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *kernel, int size, size_t shared)
{
    *count = 2;
    return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int size, size_t shared, unsigned f)
{
    *count = 2;
    return OK;
}
int cudaGetSymbolAddress(void **at, const void *symbol) { *at = calloc(1, 4096); return OK; }

static int nothing() { return OK; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, u64 flags, int *result)
{
    *function = (void *)nothing;
    if (result)
        *result = OK;
    return OK;
}

int cudaGetLastError(void) { int error = last_error; last_error = OK; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(int error) { return "cudaError"; }
const char *cudaGetErrorString(int error)
{
    switch (error) {
    case OK: return "no error";
    case NO_MEMORY: return "out of memory";
    case NOT_INITIALISED: return "initialization error";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case BAD_DEVICE: return "invalid device ordinal";
    case CAPTURING: return "operation not permitted when stream is capturing";
    default: return "the stand-in refuses";
    }
}

/* What torch calls for its effect alone. */
#define DOES_NOTHING(function) int function() { return OK; }
DOES_NOTHING(__cudaRegisterFatBinaryEnd)
DOES_NOTHING(__cudaRegisterFunction)
DOES_NOTHING(__cudaRegisterVar)
DOES_NOTHING(__cudaUnregisterFatBinary)
DOES_NOTHING(__cudaInitModule)
DOES_NOTHING(cudaFuncSetAttribute)
DOES_NOTHING(cudaGraphDestroy)
DOES_NOTHING(cudaGraphExecDestroy)
DOES_NOTHING(cudaGraphLaunch)
DOES_NOTHING(cudaGraphRetainUserObject)
DOES_NOTHING(cudaProfilerStart)
DOES_NOTHING(cudaProfilerStop)
DOES_NOTHING(cudaStreamUpdateCaptureDependencies)
DOES_NOTHING(cudaUserObjectRelease)

/* The driver, which torch opens by itself. */
DOES_NOTHING(cuInit)
DOES_NOTHING(cuCtxGetCurrent)
DOES_NOTHING(cuCtxSetCurrent)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDeviceGetAttribute)
DOES_NOTHING(cuDevicePrimaryCtxRetain)
DOES_NOTHING(cuFuncGetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuFuncSetCacheConfig)
DOES_NOTHING(cuGetErrorString)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLinkAddData_v2)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate_v2)
DOES_NOTHING(cuModuleGetFunction)
DOES_NOTHING(cuModuleLoad)
DOES_NOTHING(cuModuleLoadData)
DOES_NOTHING(cuModuleLoadDataEx)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
DOES_NOTHING(cuPointerGetAttribute)
DOES_NOTHING(cuTensorMapEncodeTiled)
int cuDevicePrimaryCtxGetState(int one, unsigned *flags, int *active)
{
    *flags = 0, *active = initialised_by == getpid();
    return OK;
}

/* The profiler: a record of each kernel, of its launch, and of the operator around that. */

enum { RECORD = 256, MOST_RECORDS = 1 << 18, KERNEL = 10, LAUNCH = 5, OPERATOR = 39 };
static char *records, *buffer;
static double ticks_per_ms;
static int record_count, recording, correlation;
static struct { u64 ids[1024]; int depth; } __thread around[2];
static u64 (*profiler_clock)(void);
static void (*ask_for_buffer)(char **, size_t *, size_t *), (*give_buffer)(void *, unsigned, char *, size_t, size_t);

static char *record(int kind)
{
    if (!records)
        records = mmap(NULL, (size_t)RECORD * MOST_RECORDS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *one = records + (size_t)RECORD * (size_t)(__sync_fetch_and_add(&record_count, 1) % MOST_RECORDS);
    memset(one, 0, RECORD);
    *(int *)one = kind;
    return one;
}

static void note(const char *name, int one, double begin_ms, double ms)
{
    if (!recording || !profiler_clock)
        return;
    size_t size, most;
    if (!buffer)
        ask_for_buffer(&buffer, &size, &most);
    u64 now = profiler_clock();
    double ahead = (begin_ms - now_ms()) * ticks_per_ms;
    int id = __sync_add_and_fetch(&correlation, 1);
    for (int kind = 0; kind < 2; kind++)
        if (around[kind].depth) {
            char *of = record(OPERATOR);
            *(int *)(of + 4) = 3 + kind; /* CUSTOM0, CUSTOM1 */
            *(u64 *)(of + 8) = around[kind].ids[around[kind].depth - 1];
            *(int *)(of + 16) = id;
        }
    char *launch = record(LAUNCH);
    *(int *)(launch + 4) = 211; /* cudaLaunchKernel */
    *(u64 *)(launch + 8) = now, *(u64 *)(launch + 16) = now + 1000;
    *(int *)(launch + 24) = getpid(), *(int *)(launch + 28) = (int)pthread_self(), *(int *)(launch + 32) = id;
    char *kernel = record(KERNEL);
    *(u64 *)(kernel + 16) = now + (u64)ahead, *(u64 *)(kernel + 24) = now + (u64)(ahead + ms * ticks_per_ms);
    *(int *)(kernel + 40) = one, *(int *)(kernel + 48) = 7;
    for (int at = 52; at < 76; at += 4)
        *(int *)(kernel + at) = 1;
    *(int *)(kernel + 92) = id;
    *(const char **)(kernel + 104) = name;
}

int cuptiActivityEnable(int kind) { recording |= kind == KERNEL; return OK; }
int cuptiActivityDisable(int kind) { recording &= kind != KERNEL; return OK; }
int cuptiActivityRegisterTimestampCallback(u64 (*clock)(void))
{
    double begin_ms = now_ms();
    u64 begin = clock();
    sleep_until(begin_ms + 20.0);
    ticks_per_ms = (double)(clock() - begin) / (now_ms() - begin_ms);
    profiler_clock = clock;
    return OK;
}
int cuptiActivityRegisterCallbacks(void (*ask)(char **, size_t *, size_t *), void (*give)(void *, unsigned, char *, size_t, size_t))
{
    ask_for_buffer = ask, give_buffer = give;
    return OK;
}
int cuptiActivityPushExternalCorrelationId(int kind, u64 id)
{
    if (kind == 3 || kind == 4)
        around[kind - 3].ids[around[kind - 3].depth++] = id;
    return OK;
}
int cuptiActivityPopExternalCorrelationId(int kind, u64 *id)
{
    if ((kind == 3 || kind == 4) && around[kind - 3].depth)
        around[kind - 3].depth--;
    return OK;
}
int cuptiActivityFlushAll(unsigned flags)
{
    if (buffer) {
        char *full = buffer;
        ((void **)full)[0] = records, ((size_t *)full)[1] = (size_t)record_count;
        buffer = records = NULL, record_count = 0;
        give_buffer(NULL, 0, full, 16, 16);
    }
    return OK;
}
int cuptiActivityGetNextRecord(char *full, size_t valid, char **one)
{
    char *first = *(char **)full, *end = first + ((size_t *)full)[1] * RECORD;
    *one = *one ? *one + RECORD : first;
    return *one < end ? OK : 12; /* no more */
}
DOES_NOTHING(cuptiActivityEnableCudaEventDeviceTimestamps)
DOES_NOTHING(cuptiActivityEnableDriverApi)
DOES_NOTHING(cuptiActivityEnableRuntimeApi)
DOES_NOTHING(cuptiActivityGetNumDroppedRecords)
DOES_NOTHING(cuptiActivitySetAttribute)
DOES_NOTHING(cuptiEnableCallback)
DOES_NOTHING(cuptiEnableDomain)
DOES_NOTHING(cuptiFinalize)
DOES_NOTHING(cuptiGetCallbackName)
DOES_NOTHING(cuptiGetResultString)
DOES_NOTHING(cuptiGetVersion)
DOES_NOTHING(cuptiSubscribe)
DOES_NOTHING(cuptiUnsubscribe)

/* NCCL */

#define SLOT (16 << 20)
typedef struct { int rank, ranks, sense, splits; char *shared; volatile int *barrier; char name[64]; } Communicator;
typedef struct { char internal[128]; } Id;
static const size_t WIDTH[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

DOES_NOTHING(ncclCommDeregister)
DOES_NOTHING(ncclCommFinalize)
DOES_NOTHING(ncclCommRegister)
int ncclMemAlloc(void **at, size_t bytes) { return allocate(at, bytes, DEVICE); }
int ncclMemFree(void *at) { return release(at); }
int ncclGetVersion(int *version) { *version = 22800; return OK; }
int ncclGetUniqueId(Id *id)
{
    static int made;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 48, "/bench-standin-%d-%d-%ld", getpid(), made++, now.tv_nsec);
    return OK;
}
int ncclCommInitRank(Communicator **made, int ranks, Id id, int rank)
{
    Communicator *one = *made = calloc(1, sizeof *one);
    one->rank = rank, one->ranks = ranks;
    snprintf(one->name, sizeof one->name, "%.63s", id.internal);
    size_t bytes = 4096 + (size_t)SLOT * (size_t)ranks;
    int file = shm_open(one->name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes))
        return 2;
    one->shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    one->barrier = (volatile int *)one->shared;
    __sync_fetch_and_add(&one->barrier[2], 1);
    while (one->barrier[2] < ranks)
        usleep(200);
    if (!rank)
        shm_unlink(one->name); /* all have it, and nothing is left of a rank that is killed */
    return OK;
}
int ncclCommInitRankConfig(Communicator **made, int ranks, Id id, int rank, void *config)
{
    return ncclCommInitRank(made, ranks, id, rank);
}
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int ids, Id *id, void *config)
{
    return ncclCommInitRank(made, ranks, *id, rank);
}
int ncclCommCount(Communicator *one, int *ranks) { *ranks = one->ranks; return OK; }
int ncclCommUserRank(Communicator *one, int *rank) { *rank = one->rank; return OK; }
int ncclCommGetAsyncError(Communicator *one, int *error) { *error = OK; return OK; }
int ncclCommDestroy(Communicator *one) { return OK; }
int ncclCommAbort(Communicator *one) { return OK; }
const char *ncclGetErrorString(int error) { return error ? "the stand-in refuses" : "no error"; }
const char *ncclGetLastError(Communicator *one) { return ""; }

static void barrier(Communicator *one)
{
    int sense = one->sense = !one->sense;
    if (__sync_add_and_fetch(&one->barrier[0], 1) == one->ranks) {
        one->barrier[0] = 0;
        __sync_synchronize();
        one->barrier[1] = sense;
    } else
        for (int turns = 0; one->barrier[1] != sense; turns++)
            turns < 200 ? (void)sched_yield() : (void)usleep(50);
}

/* Those of one colour, in the order of their keys. */
int ncclCommSplit(Communicator *of, int colour, int key, Communicator **made, void *config)
{
    int *told = (int *)(of->shared + 1024), rank = 0, ranks = 0;
    told[2 * of->rank] = colour, told[2 * of->rank + 1] = key;
    int number = ++of->splits;
    barrier(of);
    for (int other = 0; other < of->ranks; other++)
        if (told[2 * other] == colour) {
            int others = told[2 * other + 1];
            ranks++, rank += others < key || (others == key && other < of->rank);
        }
    barrier(of);
    *made = NULL;
    Id id;
    snprintf(id.internal, sizeof id.internal, "%s-%d-%d", of->name, number, colour & 0xffff);
    return colour < 0 ? OK : ncclCommInitRank(made, ranks, id, rank);
}

/* A collective begins when all ranks' streams have come to it, and takes what its bytes do. */
static void exchange(Communicator *one, size_t bytes, const char *name, Stream stream)
{
    double ms = setting("STANDIN_KERNEL_MS"), gb_per_s = setting("STANDIN_NCCL_GB_PER_S");
    double *begin_ms = (double *)(one->shared + 64), *done_ms = &queue(stream)->done_ms;
    if (one->shared && ms > 0.0) {
        begin_ms[one->rank] = fmax(now_ms(), *done_ms);
        barrier(one);
        for (int rank = 0; rank < one->ranks; rank++)
            *done_ms = fmax(*done_ms, begin_ms[rank]);
        barrier(one);
    }
    run(device, stream, gb_per_s > 0.0 ? ms + (double)bytes / gb_per_s / 1e6 : ms, name);
}

static char *slot(Communicator *one, int rank) { return one->shared + 4096 + (size_t)SLOT * (size_t)rank; }

static double of_half(unsigned short bits)
{
    int exponent = (bits >> 10) & 31, rest = bits & 1023;
    double value = exponent == 31 ? (rest ? NAN : INFINITY) : exponent ? ldexp(1024 + rest, exponent - 25) : ldexp(rest, -24);
    return bits >> 15 ? -value : value;
}

static unsigned short as_half(double value)
{
    int sign = signbit(value) ? 0x8000 : 0, exponent;
    value = fabs(value);
    if (isnan(value))
        return (unsigned short)(sign | 0x7e00);
    if (value >= 65520.0)
        return (unsigned short)(sign | 0x7c00);
    if (value < ldexp(1.0, -14))
        return (unsigned short)(sign | (int)nearbyint(ldexp(value, 24)));
    frexp(value, &exponent);
    return (unsigned short)(sign | (((exponent + 14) << 10) + (int)nearbyint(ldexp(value, 11 - exponent)) - 1024));
}

static double value_of(const void *at, size_t i, int type)
{
    switch (type) {
    case 0: return ((const signed char *)at)[i];
    case 1: return ((const unsigned char *)at)[i];
    case 2: return ((const int *)at)[i];
    case 3: return ((const unsigned *)at)[i];
    case 4: return (double)((const long long *)at)[i];
    case 5: return (double)((const u64 *)at)[i];
    case 6: return of_half(((const unsigned short *)at)[i]);
    case 7: return ((const float *)at)[i];
    case 8: return ((const double *)at)[i];
    default: { /* bf16 */
        unsigned bits = (unsigned)((const unsigned short *)at)[i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    }
}

static void set_value(void *at, size_t i, int type, double value)
{
    switch (type) {
    case 0: ((signed char *)at)[i] = (signed char)value; break;
    case 1: ((unsigned char *)at)[i] = (unsigned char)value; break;
    case 2: ((int *)at)[i] = (int)value; break;
    case 3: ((unsigned *)at)[i] = (unsigned)value; break;
    case 4: ((long long *)at)[i] = (long long)value; break;
    case 5: ((u64 *)at)[i] = (u64)value; break;
    case 6: ((unsigned short *)at)[i] = as_half(value); break;
    case 7: ((float *)at)[i] = (float)value; break;
    case 8: ((double *)at)[i] = value; break;
    default: {
        float single = (float)value;
        unsigned bits;
        memcpy(&bits, &single, 4);
        int nan = (bits & 0x7fffffff) > 0x7f800000;
        ((unsigned short *)at)[i] = nan ? 0x7fc0 : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
    }
}

/* Sum, product, maximum, minimum or mean of what several have. */
static void reduce(void *to, void *const *from, int count, size_t values, int type, int how)
{
    for (size_t i = 0; i < values; i++) {
        double all = value_of(from[0], i, type);
        for (int rank = 1; rank < count; rank++) {
            double one = value_of(from[rank], i, type);
            all = how == 1 ? all * one : how == 2 ? (one > all ? one : all) : how == 3 ? (one < all ? one : all) : all + one;
        }
        set_value(to, i, type, how == 4 ? all / count : all);
    }
}

/* A process with several devices has a communicator of each without shared memory; their calls are done as a group. */
typedef struct { int all, root, type, how; const void *from; void *to; size_t values; Communicator *of; } Call;
static __thread Call calls[1024];
static __thread int call_count, group_depth;

int ncclCommInitAll(Communicator **made, int ranks, const int *devices)
{
    for (int rank = 0; rank < ranks; rank++) {
        made[rank] = calloc(1, sizeof **made);
        made[rank]->rank = rank, made[rank]->ranks = ranks;
    }
    return OK;
}

enum { ALL_REDUCE, REDUCE, BROADCAST };

static void do_calls(void)
{
    for (int i = 0; i < call_count; i++) {
        int rank = calls[i].of->rank, ranks = calls[i].of->ranks, set[MOST], found = 0;
        if (rank)
            continue; /* rank 0 stands for its set: the first call of each other rank that is not done */
        for (int want = 0; want < ranks; want++)
            for (int j = 0; j < call_count; j++)
                if (calls[j].of && calls[j].of->rank == want && calls[j].all == calls[i].all && calls[j].values == calls[i].values
                    && calls[j].from) {
                    set[found++] = j;
                    break;
                }
        void *from[MOST], *sum = malloc(calls[i].values * WIDTH[calls[i].type] + 1);
        for (int k = 0; k < found; k++)
            from[k] = (void *)calls[set[k]].from;
        size_t bytes = calls[i].values * WIDTH[calls[i].type];
        if (calls[i].all == BROADCAST)
            memcpy(sum, from[calls[i].root], bytes);
        else
            reduce(sum, from, found, calls[i].values, calls[i].type, calls[i].how);
        for (int k = 0; k < found; k++) {
            if (calls[i].all != REDUCE || calls[set[k]].of->rank == calls[i].root)
                memcpy(calls[set[k]].to, sum, bytes);
            calls[set[k]].from = NULL;
        }
        free(sum);
    }
    call_count = 0;
}

static int later(int all, const void *from, void *to, size_t values, int type, int how, int root, Communicator *of)
{
    if (of->shared)
        return 0;
    calls[call_count++] = (Call){all, root, type, how, from, to, values, of};
    if (!group_depth)
        do_calls();
    return 1;
}

/* From rank to rank through a mailbox of each pair; those of a group at once. */
typedef struct { int sends, peer; char *at; size_t bytes, done; Communicator *of; } Mail;
static __thread Mail mails[256];
static __thread int mail_count;

static void post(void)
{
    for (int left = mail_count; left; usleep(20))
        for (int i = 0; i < mail_count; i++) {
            Mail *one = &mails[i];
            if (one->done > one->bytes)
                continue;
            Communicator *of = one->of;
            int from = one->sends ? of->rank : one->peer, to = one->sends ? one->peer : of->rank;
            volatile int *full = (volatile int *)(of->shared + 2048) + from * MOST + to;
            size_t room = SLOT / (size_t)of->ranks, part = one->bytes - one->done < room ? one->bytes - one->done : room;
            char *box = slot(of, from) + (size_t)to * room;
            if (*full == one->sends)
                continue;
            one->sends ? memcpy(box, one->at + one->done, part) : memcpy(one->at + one->done, box, part);
            __sync_synchronize();
            *full = one->sends;
            one->done += part;
            if (one->done == one->bytes)
                one->done++, left--;
        }
    mail_count = 0;
}
static int mail(int sends, void *at, size_t values, int type, int peer, Communicator *of)
{
    mails[mail_count++] = (Mail){sends, peer, at, values * WIDTH[type], 0, of};
    if (!group_depth)
        post();
    return OK;
}
int ncclSend(void *at, size_t values, int type, int peer, Communicator *of, Stream s) { return mail(1, at, values, type, peer, of); }
int ncclRecv(void *at, size_t values, int type, int peer, Communicator *of, Stream s) { return mail(0, at, values, type, peer, of); }

int ncclGroupStart(void) { group_depth++; return OK; }
int ncclGroupEnd(void)
{
    if (--group_depth == 0) {
        do_calls();
        post();
    }
    return OK;
}

int ncclAllReduce(const void *from, void *to, size_t values, int type, int how, Communicator *of, Stream stream)
{
    exchange(of, values * WIDTH[type], "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream);
    if (later(ALL_REDUCE, from, to, values, type, how, 0, of))
        return OK;
    void *slots[MOST];
    size_t width = WIDTH[type], most = SLOT / width;
    for (size_t at = 0; at < values; at += most) {
        size_t part = values - at < most ? values - at : most;
        size_t begin = part * (size_t)of->rank / (size_t)of->ranks, end = part * (size_t)(of->rank + 1) / (size_t)of->ranks;
        for (int rank = 0; rank < of->ranks; rank++)
            slots[rank] = slot(of, rank) + begin * width;
        memcpy(slot(of, of->rank), (const char *)from + at * width, part * width);
        barrier(of);
        reduce(slots[0], slots, of->ranks, end - begin, type, how); /* each rank its share */
        barrier(of);
        memcpy((char *)to + at * width, slot(of, 0), part * width);
        barrier(of);
    }
    return OK;
}
int ncclReduce(const void *from, void *to, size_t values, int type, int how, int root, Communicator *of, Stream stream)
{
    if (later(REDUCE, from, to, values, type, how, root, of))
        return OK;
    void *own = of->rank == root ? to : malloc(values * WIDTH[type]);
    int error = ncclAllReduce(from, own, values, type, how, of, stream);
    if (own != to)
        free(own);
    return error;
}
int ncclAllGather(const void *from, char *to, size_t values, int type, Communicator *of, Stream stream)
{
    size_t bytes = values * WIDTH[type];
    exchange(of, bytes, "ncclDevKernel_AllGather_RING_LL", stream);
    for (size_t at = 0; at < bytes; at += SLOT) {
        size_t part = bytes - at < SLOT ? bytes - at : SLOT;
        memcpy(slot(of, of->rank), (const char *)from + at, part);
        barrier(of);
        for (int rank = 0; rank < of->ranks; rank++)
            memcpy(to + (size_t)rank * bytes + at, slot(of, rank), part);
        barrier(of);
    }
    return OK;
}
int ncclBroadcast(const void *from, void *to, size_t values, int type, int root, Communicator *of, Stream stream)
{
    if (later(BROADCAST, from, to, values, type, 0, root, of))
        return OK;
    char *all = malloc(values * WIDTH[type] * (size_t)of->ranks);
    ncclAllGather(of->rank == root ? from : to, all, values, type, of, stream);
    memcpy(to, all + (size_t)root * values * WIDTH[type], values * WIDTH[type]);
    free(all);
    return OK;
}
int ncclBcast(void *at, size_t values, int type, int root, Communicator *of, Stream stream)
{
    return ncclBroadcast(at, at, values, type, root, of, stream);
}
int ncclReduceScatter(const void *from, void *to, size_t values, int type, int how, Communicator *of, Stream stream)
{
    size_t bytes = values * WIDTH[type];
    char *all = malloc(bytes * (size_t)of->ranks);
    int error = ncclAllReduce(from, all, values * (size_t)of->ranks, type, how, of, stream);
    memcpy(to, all + (size_t)of->rank * bytes, bytes);
    free(all);
    return error;
}
