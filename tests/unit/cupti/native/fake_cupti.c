/* A CUPTI without a GPU: what the recorder calls of it, and functions by which a program makes activities.
 *
 * FAKE_SUBSCRIBE and FAKE_UNIFIED name results to answer with; FAKE_DROPPED, how many records were dropped. Unified
 * memory waits for cuInit, as a driver's locks may have it; with FAKE_STUCK, for longer than the program runs. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_result.h>
#include <cupti_version.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t initializing = PTHREAD_MUTEX_INITIALIZER;
static CUpti_CallbackFunc callback;
static CUpti_BuffersCallbackRequestFunc requested;
static CUpti_BuffersCallbackCompleteFunc completed;
static uint8_t *buffer;
static size_t capacity, used;
static uint32_t correlation = 100;
static int is_enabled[CUPTI_ACTIVITY_KIND_COUNT];
static int is_left_out[2][4096];
static int dropped_told;

static int from_environment(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? 0 : atoi(value);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    *timestamp = now_ns();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_SUCCESS                                        ? "CUPTI_SUCCESS"
            : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED      ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
            : result == CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED              ? "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED"
                                                                            : "CUPTI_ERROR_UNKNOWN";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function, void *data)
{
    (void)data;
    callback = function;
    *subscriber = NULL;
    return (CUptiResult)from_environment("FAKE_SUBSCRIBE");
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    (void)subscriber;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id)
{
    (void)enable, (void)subscriber, (void)domain, (void)id;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type)
{
    (void)type;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *bytes, void *value)
{
    (void)attribute, (void)bytes, (void)value;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    requested = request;
    completed = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    is_enabled[kind] = 1;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId function, uint8_t enable)
{
    is_left_out[0][function] = !enable;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId function, uint8_t enable)
{
    is_left_out[1][function] = !enable;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityConfigureUnifiedMemoryCounter(CUpti_ActivityUnifiedMemoryCounterConfig *wanted, uint32_t count)
{
    (void)wanted, (void)count;
    if (from_environment("FAKE_STUCK")) pause();
    pthread_mutex_lock(&initializing);
    pthread_mutex_unlock(&initializing);
    return (CUptiResult)from_environment("FAKE_UNIFIED");
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    *dropped = dropped_told ? 0 : (size_t)from_environment("FAKE_DROPPED");
    dropped_told = 1;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name)
{
    *name = NULL;
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
        if (id == 10) *name = "cudaGetLastError_v3020";
        if (id == 120) *name = "cudaMallocManaged_v6000";
        if (id == 211) *name = "cudaLaunchKernel_v7000";
        if (id == 212) *name = "cudaLaunchKernel_ptsz_v7000";
    } else if (id == 307) {
        *name = "cuLaunchKernel";
    }
    return *name == NULL ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}

static size_t bytes_of(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel8);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: return sizeof(CUpti_ActivityUnifiedMemoryCounter2);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(CUpti_ActivityOverhead);
    default: return 0;
    }
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *from, size_t valid_bytes, CUpti_Activity **record)
{
    uint8_t *next = *record == NULL ? from : (uint8_t *)*record + bytes_of(*record);
    if (next >= from + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return bytes_of(*record) == 0 ? CUPTI_ERROR_INVALID_KIND : CUPTI_SUCCESS;
}

static void deliver(void)
{
    uint8_t *full = buffer;
    size_t bytes = capacity, valid = used;
    buffer = NULL;
    capacity = used = 0;
    if (full == NULL) return;
    pthread_mutex_unlock(&lock);
    completed(NULL, 0, full, bytes, valid);
    pthread_mutex_lock(&lock);
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    deliver();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

static void add(const void *record)
{
    const CUpti_Activity *activity = record;
    if (!is_enabled[activity->kind]) return;
    pthread_mutex_lock(&lock);
    size_t bytes = bytes_of(activity);
    if (used + bytes > capacity) deliver();
    if (buffer == NULL) {
        size_t unused;
        requested(&buffer, &capacity, &unused);
    }
    memcpy(buffer + used, record, bytes);
    used += bytes;
    pthread_mutex_unlock(&lock);
}

/* --- What a program does --- */

void fake_cu_init(void)
{
    CUpti_ResourceData data = {0};
    pthread_mutex_lock(&initializing);
    callback(NULL, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, &data);
    pthread_mutex_unlock(&initializing);
}

void fake_context(void)
{
    CUpti_ResourceData data = {0};
    callback(NULL, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED, &data);
}

void fake_device_reset(void)
{
    CUpti_CallbackData data = {.callbackSite = CUPTI_API_ENTER};
    callback(NULL, CUPTI_CB_DOMAIN_RUNTIME_API, 164, &data);
}

void fake_module_load(void)
{
    CUpti_CallbackData data = {.callbackSite = CUPTI_API_ENTER};
    callback(NULL, CUPTI_CB_DOMAIN_DRIVER_API, 19, &data);
}

static uint32_t next_correlation(void)
{
    pthread_mutex_lock(&lock);
    uint32_t id = ++correlation;
    pthread_mutex_unlock(&lock);
    return id;
}

uint32_t fake_call(int is_driver, uint32_t function, uint64_t start, uint64_t end, uint32_t result)
{
    CUpti_ActivityAPI call = {0};
    uint32_t id = next_correlation();
    if (is_left_out[is_driver][function]) return id;
    call.kind = is_driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    call.cbid = function;
    call.start = start;
    call.end = end;
    call.processId = (uint32_t)getpid();
    call.threadId = (uint32_t)syscall(SYS_gettid);
    call.correlationId = id;
    call.returnValue = result;
    add(&call);
    return id;
}

void fake_kernel(const char *name, uint64_t start, uint64_t end)
{
    CUpti_ActivityKernel8 kernel = {0};
    kernel.correlationId = fake_call(0, 211, start - 2000, start - 1000, 0);
    kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernel.registersPerThread = 32;
    kernel.start = start;
    kernel.end = end;
    kernel.contextId = 1;
    kernel.streamId = 7;
    kernel.gridX = 4;
    kernel.gridY = kernel.gridZ = 1;
    kernel.blockX = 256;
    kernel.blockY = kernel.blockZ = 1;
    kernel.staticSharedMemory = 128;
    kernel.dynamicSharedMemory = 1024;
    kernel.name = name;
    add(&kernel);
}

void fake_copy(uint8_t kind, uint8_t source, uint8_t target, uint64_t bytes, uint64_t start, uint64_t end)
{
    CUpti_ActivityMemcpy5 copy = {0};
    copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    copy.copyKind = kind;
    copy.srcKind = source;
    copy.dstKind = target;
    copy.bytes = bytes;
    copy.start = start;
    copy.end = end;
    copy.contextId = 1;
    copy.streamId = 7;
    copy.correlationId = next_correlation();
    add(&copy);
}

void fake_set(uint64_t bytes, uint64_t start, uint64_t end)
{
    CUpti_ActivityMemset4 set = {0};
    set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    set.bytes = bytes;
    set.start = start;
    set.end = end;
    set.contextId = 1;
    set.streamId = 7;
    set.correlationId = next_correlation();
    set.memoryKind = 3;
    add(&set);
}

void fake_migration(int kind, uint64_t bytes, uint64_t start, uint64_t end)
{
    CUpti_ActivityUnifiedMemoryCounter2 migration = {0};
    migration.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
    migration.counterKind = (CUpti_ActivityUnifiedMemoryCounterKind)kind;
    migration.value = bytes;
    migration.start = start;
    migration.end = end;
    migration.srcId = kind == 1 ? UINT32_MAX : 0;
    migration.dstId = kind == 1 ? 0 : UINT32_MAX;
    migration.streamId = UINT32_MAX;
    add(&migration);
}

void fake_overhead(uint64_t start, uint64_t end)
{
    CUpti_ActivityOverhead overhead = {0};
    overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
    overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
    overhead.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
    overhead.objectId.pt.threadId = (uint32_t)syscall(SYS_gettid);
    overhead.start = start;
    overhead.end = end;
    add(&overhead);
}
