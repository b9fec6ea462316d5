#include "activities.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call_names.h"
#include "cupti_functions.h"
#include "record_file.h"

/* New versions of a record append fields to the older ones: the fields read here lie at the same offsets in all
 * versions (asserted below), so that a library of another version than the headers is read right too. */
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 Kernel;
#elif CUPTI_API_VERSION >= 26
typedef CUpti_ActivityKernel9 Kernel;
#else
typedef CUpti_ActivityKernel8 Kernel;
#endif
typedef CUpti_ActivityMemcpy5 Copy;
typedef CUpti_ActivityMemcpyPtoP4 PeerCopy;
typedef CUpti_ActivityMemset4 Set;
typedef CUpti_ActivityUnifiedMemoryCounter2 Migration;
typedef CUpti_ActivityOverhead Overhead;

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), "CUPTI's " #field " has moved")
AT(Kernel, start, 16);
AT(Kernel, deviceId, 40);
AT(Kernel, gridX, 52);
AT(Kernel, correlationId, 92);
AT(Kernel, name, 104);
AT(Kernel, graphNodeId, 144);
AT(Kernel, graphId, 156);
AT(Copy, bytes, 8);
AT(Copy, correlationId, 44);
AT(Copy, graphId, 72);
AT(PeerCopy, correlationId, 60);
AT(PeerCopy, graphId, 80);
AT(Set, correlationId, 44);
AT(Set, graphId, 72);
AT(Migration, dstId, 44);
AT(Overhead, start, 24);
AT(CUpti_ActivityAPI, correlationId, 32);

enum { CALL_IDS = 4096, FIRST_NAMES = 1024, MOST_THREADS = 1024 };
enum call_state { CALL_NEW = 0, CALL_RECORDED = 1, CALL_LEFT_OUT = 2 };

/* A name by the address CUPTI gives for it. An address may be given to another name once a module is unloaded, so the
 * text is compared every time. */
struct name_entry {
    const char *address;
    char *text;
    uint32_t id;
};

static struct {
    struct name_entry *entries;
    size_t capacity, used;
    uint32_t next_id;
} names;

static uint8_t call_states[2][CALL_IDS];
static uint32_t threads[MOST_THREADS];
static size_t thread_count;
static atomic_int uses_unified_memory;

static size_t slot_of(const struct name_entry *entries, size_t capacity, const char *address)
{
    uint64_t hash = (uint64_t)(uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15);
    size_t slot = (size_t)(hash >> 32) & (capacity - 1);
    while (entries[slot].address != NULL && entries[slot].address != address) slot = (slot + 1) & (capacity - 1);
    return slot;
}

static int grow_names(void)
{
    size_t capacity = names.capacity == 0 ? FIRST_NAMES : 2 * names.capacity;
    struct name_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL) return 0;
    for (size_t i = 0; i < names.capacity; i++) {
        const char *address = names.entries[i].address;
        if (address != NULL) entries[slot_of(entries, capacity, address)] = names.entries[i];
    }
    free(names.entries);
    names.entries = entries;
    names.capacity = capacity;
    return 1;
}

static uint32_t name_id(const char *name)
{
    if (name == NULL) return UINT32_MAX;
    if (2 * names.used >= names.capacity && !grow_names()) return UINT32_MAX;
    struct name_entry *entry = &names.entries[slot_of(names.entries, names.capacity, name)];
    if (entry->address != NULL && strcmp(entry->text, name) == 0) return entry->id;
    char *text = strdup(name);
    if (text == NULL) return UINT32_MAX;
    if (entry->address == NULL) names.used++;
    free(entry->text);
    *entry = (struct name_entry){name, text, names.next_id++};
    record_file_put_text(TEXT_KERNEL, entry->id, text, strlen(text));
    return entry->id;
}

static void put_kernel(const Kernel *from)
{
    struct kernel_record to = {
        .start_ns = from->start,
        .end_ns = from->end,
        .graph_node = from->graphNodeId,
        .name = name_id(from->name),
        .correlation = from->correlationId,
        .device = from->deviceId,
        .context = from->contextId,
        .stream = from->streamId,
        .graph = from->graphId,
        .grid = {from->gridX, from->gridY, from->gridZ},
        .block = {from->blockX, from->blockY, from->blockZ},
        .static_shared_bytes = (uint32_t)from->staticSharedMemory,
        .dynamic_shared_bytes = (uint32_t)from->dynamicSharedMemory,
        .registers = from->registersPerThread,
    };
    record_file_put(CHUNK_KERNELS, &to, sizeof to);
}

/* CUPTI's two kinds of copies have the same fields, but for the devices of one between two. */
#define PUT_COPY(from, of_source, of_target)                                                                           \
    record_file_put(CHUNK_COPIES,                                                                                      \
                    &(struct copy_record){                                                                             \
                        .start_ns = (from)->start,                                                                     \
                        .end_ns = (from)->end,                                                                         \
                        .size_bytes = (from)->bytes,                                                                   \
                        .graph_node = (from)->graphNodeId,                                                             \
                        .correlation = (from)->correlationId,                                                          \
                        .device = (from)->deviceId,                                                                    \
                        .context = (from)->contextId,                                                                  \
                        .stream = (from)->streamId,                                                                    \
                        .graph = (from)->graphId,                                                                      \
                        .source_device = (of_source),                                                                  \
                        .target_device = (of_target),                                                                  \
                        .kind = (from)->copyKind,                                                                      \
                        .source = (from)->srcKind,                                                                     \
                        .target = (from)->dstKind,                                                                     \
                        .flags = (from)->flags,                                                                        \
                    },                                                                                                 \
                    sizeof(struct copy_record))

static void put_copy(const Copy *from)
{
    PUT_COPY(from, UINT32_MAX, UINT32_MAX);
}

static void put_peer_copy(const PeerCopy *from)
{
    PUT_COPY(from, from->srcDeviceId, from->dstDeviceId);
}

static void put_set(const Set *from)
{
    struct set_record to = {
        .start_ns = from->start,
        .end_ns = from->end,
        .size_bytes = from->bytes,
        .graph_node = from->graphNodeId,
        .correlation = from->correlationId,
        .device = from->deviceId,
        .context = from->contextId,
        .stream = from->streamId,
        .graph = from->graphId,
        .memory_kind = from->memoryKind,
    };
    record_file_put(CHUNK_SETS, &to, sizeof to);
}

static void put_migration(const Migration *from)
{
    if (from->counterKind != CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD &&
        from->counterKind != CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH &&
        from->counterKind != CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD) {
        return;
    }
    atomic_store(&uses_unified_memory, 1);
    struct migration_record to = {
        .start_ns = from->start,
        .end_ns = from->end,
        .size_bytes = from->value,
        .address = from->address,
        .kind = (uint32_t)from->counterKind,
        .source = from->srcId,
        .target = from->dstId,
    };
    record_file_put(CHUNK_MIGRATIONS, &to, sizeof to);
}

static void put_overhead(const Overhead *from)
{
    int is_of_thread = from->objectKind == CUPTI_ACTIVITY_OBJECT_THREAD;
    struct overhead_record to = {
        .start_ns = from->start,
        .end_ns = from->end,
        .kind = (uint32_t)from->overheadKind,
        .thread = is_of_thread ? from->objectId.pt.threadId : 0,
    };
    record_file_put(CHUNK_OVERHEADS, &to, sizeof to);
}

static CUpti_CallbackDomain domain_of(enum chunk_kind kind)
{
    return kind == CHUNK_RUNTIME_CALLS ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
}

static const char *call_name(enum chunk_kind kind, CUpti_CallbackId function)
{
    const char *name = NULL;
    if (cupti.cuptiGetCallbackName(domain_of(kind), function, &name) != CUPTI_SUCCESS) return NULL;
    return name;
}

static enum call_state new_call_state(enum chunk_kind kind, CUpti_CallbackId function)
{
    const char *name = call_name(kind, function);
    if (name == NULL) return CALL_RECORDED;
    if (is_query(name)) return CALL_LEFT_OUT;
    if (strstr(name, "MallocManaged") != NULL || strstr(name, "MemAllocManaged") != NULL) {
        atomic_store(&uses_unified_memory, 1);
    }
    enum text_table table = kind == CHUNK_RUNTIME_CALLS ? TEXT_RUNTIME_FUNCTION : TEXT_DRIVER_FUNCTION;
    record_file_put_text(table, function, name, strlen(name));
    return CALL_RECORDED;
}

/* The name of a thread is read while it lives, at its first call. */
static void note_thread(uint32_t thread)
{
    static uint32_t last;
    if (thread == last) return;
    last = thread;
    for (size_t i = 0; i < thread_count; i++) {
        if (threads[i] == thread) return;
    }
    if (thread_count == MOST_THREADS) return;
    threads[thread_count++] = thread;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", thread);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    char name[64];
    ssize_t length = read(descriptor, name, sizeof name);
    close(descriptor);
    if (length > 0 && name[length - 1] == '\n') length--;
    if (length > 0) record_file_put_text(TEXT_THREAD, thread, name, (size_t)length);
}

static void put_call(enum chunk_kind kind, const CUpti_ActivityAPI *from)
{
    if (from->cbid < CALL_IDS) {
        uint8_t *state = &call_states[kind == CHUNK_RUNTIME_CALLS][from->cbid];
        if (*state == CALL_NEW) *state = (uint8_t)new_call_state(kind, from->cbid);
        if (*state == CALL_LEFT_OUT) return;
    }
    note_thread(from->threadId);
    struct call_record to = {
        .start_ns = from->start,
        .end_ns = from->end,
        .correlation = from->correlationId,
        .thread = from->threadId,
        .function = from->cbid,
        .result = from->returnValue,
    };
    record_file_put(kind, &to, sizeof to);
}

static void put(const CUpti_Activity *record)
{
    const void *from = record;
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: put_kernel(from); break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: put_copy(from); break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2: put_peer_copy(from); break;
    case CUPTI_ACTIVITY_KIND_MEMSET: put_set(from); break;
    case CUPTI_ACTIVITY_KIND_RUNTIME: put_call(CHUNK_RUNTIME_CALLS, from); break;
    case CUPTI_ACTIVITY_KIND_DRIVER: put_call(CHUNK_DRIVER_CALLS, from); break;
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: put_migration(from); break;
    case CUPTI_ACTIVITY_KIND_OVERHEAD: put_overhead(from); break;
    default: break;
    }
}

static void leave_out(enum chunk_kind kind, CUptiResult (*enable)(CUpti_CallbackId, uint8_t))
{
    if (enable == NULL) return;
    for (CUpti_CallbackId function = 1; function < CALL_IDS; function++) {
        const char *name = call_name(kind, function);
        if (name != NULL && is_query(name)) enable(function, 0);
    }
}

void activities_leave_out_queries(void)
{
    leave_out(CHUNK_RUNTIME_CALLS, cupti.cuptiActivityEnableRuntimeApi);
    leave_out(CHUNK_DRIVER_CALLS, cupti.cuptiActivityEnableDriverApi);
}

void activities_put(uint8_t *buffer, size_t valid_bytes)
{
    CUpti_Activity *record = NULL;
    CUptiResult result;
    while ((result = cupti.cuptiActivityGetNextRecord(buffer, valid_bytes, &record)) == CUPTI_SUCCESS) put(record);
    if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) record_file_header()->unreadable_count++;
}

int activities_use_unified_memory(void)
{
    return atomic_load(&uses_unified_memory);
}
