/* A CUDA to test against: the functions of CUDA's runtime and of NCCL that torch calls, on memory of the host.
 *
 * Preloaded (LD_PRELOAD) into a process with a torch that is built for CUDA 12 or 13, so that torch's own code for GPUs
 * runs: its allocator, streams, events, graphs and process groups. $BENCH_STANDIN_CUDA has the UUIDs of the GPUs.
 * Kernels are not run: sitecustomize.py computes what they would. Streams do all at once, so nothing is shown about
 * time, and a graph that is replayed does nothing.
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
    char all[MOST][64], *save, *text = strdup(getenv("BENCH_STANDIN_CUDA") ? getenv("BENCH_STANDIN_CUDA") : "");
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

/* Streams, events and graphs: everything is done when its call returns. */

typedef struct { int priority, capturing; u64 id; } Queue;
static Queue legacy[MOST];
static int captures;
static u64 capture_ids;
static __thread int capture_mode;

static Queue *queue(Stream stream) { return (size_t)stream <= 2 ? &legacy[device] : stream; }

/* What waits is refused while this thread captures in a strict mode. */
static int may_wait(void)
{
    READY;
    return failed(captures && capture_mode != 2 ? CAPTURING : OK);
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    int error = may_wait();
    if (!error)
        memmove(to, from, bytes);
    return error;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream stream)
{
    READY;
    memmove(to, from, bytes);
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
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->at_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    event->recorded = 1;
    return OK;
}
int cudaEventRecord(Event *event, Stream stream) { return cudaEventRecordWithFlags(event, stream, 0); }
int cudaEventQuery(Event *event) { READY; return OK; }
int cudaEventSynchronize(Event *event) { return may_wait(); }
int cudaEventElapsedTime(float *ms, Event *begin, Event *end)
{
    enum { NO_TIMING = 2 };
    READY;
    *ms = (float)(end->at_ms - begin->at_ms);
    int both = begin->recorded && end->recorded && !((begin->flags | end->flags) & NO_TIMING);
    return failed(both ? OK : BAD_HANDLE);
}

int cudaDeviceSynchronize(void) { return may_wait(); }
int cudaStreamSynchronize(Stream stream) { return may_wait(); }
int cudaStreamQuery(Stream stream) { return may_wait(); }
int cudaStreamWaitEvent(Stream stream, Event *event, unsigned flags) { READY; return OK; }
int cudaStreamCreateWithPriority(Stream *stream, unsigned flags, int priority)
{
    READY;
    Queue *made = calloc(1, sizeof *made);
    made->priority = priority;
    *stream = made;
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

/* The profiler sees no kernel: there is none. */
int cuptiActivityGetNextRecord() { return 12; /* no more */ }
DOES_NOTHING(cuptiActivityDisable)
DOES_NOTHING(cuptiActivityEnable)
DOES_NOTHING(cuptiActivityEnableCudaEventDeviceTimestamps)
DOES_NOTHING(cuptiActivityEnableDriverApi)
DOES_NOTHING(cuptiActivityEnableRuntimeApi)
DOES_NOTHING(cuptiActivityFlushAll)
DOES_NOTHING(cuptiActivityGetNumDroppedRecords)
DOES_NOTHING(cuptiActivityPopExternalCorrelationId)
DOES_NOTHING(cuptiActivityPushExternalCorrelationId)
DOES_NOTHING(cuptiActivityRegisterCallbacks)
DOES_NOTHING(cuptiActivityRegisterTimestampCallback)
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
typedef struct { int rank, ranks, sense; char *shared; volatile int *barrier; char name[48]; } Communicator;
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
    snprintf(one->name, sizeof one->name, "%.47s", id.internal);
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

int ncclGroupStart(void) { group_depth++; return OK; }
int ncclGroupEnd(void)
{
    if (--group_depth == 0)
        do_calls();
    return OK;
}

int ncclAllReduce(const void *from, void *to, size_t values, int type, int how, Communicator *of, Stream stream)
{
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
