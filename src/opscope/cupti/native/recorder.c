/* The library that CUDA loads into a program through CUDA_INJECTION64_PATH: records what CUPTI reports.
 *
 * CUPTI fills buffers, from the program's threads; full ones, and those a thread of this library asks for every
 * FLUSH_PERIOD_MS, come back and go to the file. Locks, in the order they are taken: `flushing` around CUPTI's flush,
 * `writing` around the file. CUPTI's request for a buffer, which is made in the program's own calls, takes neither. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include "activities.h"
#include "buffer_pool.h"
#include "cupti_functions.h"
#include "deadlines.h"
#include "devices.h"
#include "ending.h"
#include "memory_maps.h"
#include "record_file.h"
#include "requests.h"
#include "unified_memory.h"

enum {
    FLUSH_PERIOD_MS = 200,
    END_WAIT_MS = 5000,     /* for a thread that is in CUPTI, when the program ends */
    SETUP_WAIT_MS = 500,    /* in the program's own call, for unified memory to be switched on */
    MIGRATION_WAIT_MS = 20, /* CUPTI collects those on a thread of its own */
    MOST_DEVICES = 64
};

/* What is asked of the threads of this library: one sets up, which may take CUPTI long, the other flushes. */
enum { WORK_UNIFIED = 1, WORK_DEVICES = 2, WORK_END = 4, WORK_DRIVER = 8 };

static pid_t owner;
static CUpti_SubscriberHandle subscriber;
static pthread_mutex_t flushing = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER;
static int is_stopped;       /* under `flushing`: CUPTI may be gone */
static atomic_int has_ended; /* the recording is in the file */
static atomic_int ended_by;  /* a signal's number */
static atomic_int has_devices;
static atomic_int is_unified_open = 1; /* copies of unified memory may still be switched on */

/* --- Buffers --- */

static void CUPTIAPI on_buffer_requested(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *buffer = buffer_take();
    *bytes = *buffer == NULL ? 0 : BUFFER_BYTES; /* without memory CUPTI drops records, and counts them */
    *most_records = 0;
}

static void count_dropped(CUcontext context, uint32_t stream)
{
    size_t dropped = 0;
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
        record_file_header()->dropped_count += dropped;
    }
}

static void CUPTIAPI on_buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                         size_t valid_bytes)
{
    (void)bytes;
    if (getpid() == owner) {
        pthread_mutex_lock(&writing);
        if (buffer != NULL && valid_bytes > 0) activities_put(buffer, valid_bytes);
        count_dropped(context, stream);
        record_file_flush();
        pthread_mutex_unlock(&writing);
    }
    buffer_give_back(buffer);
}

/* --- What is asked of CUPTI and the driver while the program runs --- */

static void flush_complete(void)
{
    pthread_mutex_lock(&flushing);
    if (!is_stopped) cupti.cuptiActivityFlushAll(0);
    pthread_mutex_unlock(&flushing);
}

static void record_unified_memory(void)
{
    struct file_header *header = record_file_header();
    if (!atomic_load(&is_unified_open)) return;
    CUptiResult result = unified_memory_enable();
    if (result == CUPTI_SUCCESS) atomic_store(&is_unified_open, 0);
    pthread_mutex_lock(&writing);
    header->unified_state = result == CUPTI_SUCCESS ? UNIFIED_RECORDED : UNIFIED_REFUSED;
    header->unified_code = (int32_t)result;
    snprintf(header->unified_text, sizeof header->unified_text, "%s", cupti_result_name(result));
    pthread_mutex_unlock(&writing);
}

/* Each launch of the runtime calls the driver, whose record costs as much again and tells nothing new. So driver
 * calls are recorded only of a program that loads code through the driver itself. */
static void record_driver_calls(void)
{
    if (cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER) == CUPTI_SUCCESS) activities_leave_out_queries();
}

static void note_devices(void)
{
    struct device_record records[MOST_DEVICES];
    uint32_t driver_version = 0;
    if (atomic_load(&has_devices)) return;
    int count = devices_read(records, MOST_DEVICES, &driver_version);
    if (count < 0) return;
    pthread_mutex_lock(&writing);
    if (!atomic_load(&has_devices)) {
        record_file_header()->driver_version = driver_version;
        for (int i = 0; i < count; i++) record_file_put(CHUNK_DEVICES, &records[i], sizeof records[i]);
        record_file_flush();
        /* Only now: who ends the program waits for nothing that is said to be there. */
        atomic_store(&has_devices, 1);
    }
    pthread_mutex_unlock(&writing);
}

/* Now and then, for a program that will be killed: soon, and at twice the time each. */
static void note_maps_in_time(void)
{
    static unsigned flushes, next = 1;
    if (++flushes < next) return;
    next *= 2;
    pthread_mutex_lock(&writing);
    memory_maps_put();
    record_file_flush();
    pthread_mutex_unlock(&writing);
}

/* --- The end --- */

static void flush_last(void)
{
    if (!lock_within(&flushing, END_WAIT_MS)) return;
    if (!is_stopped) {
        cupti.cuptiActivityFlushAll(0);
        if (activities_use_unified_memory()) {
            struct timespec pause = {0, MIGRATION_WAIT_MS * 1000000L};
            nanosleep(&pause, NULL);
        }
        cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    is_stopped = 1;
    pthread_mutex_unlock(&flushing);
}

static void finish_file(void)
{
    uint64_t now_ns = 0;
    if (!lock_within(&writing, END_WAIT_MS)) return;
    struct file_header *header = record_file_header();
    count_dropped(NULL, 0);
    memory_maps_put();
    if (cupti.cuptiGetTimestamp(&now_ns) == CUPTI_SUCCESS) header->end_ns = now_ns;
    header->signal = atomic_load(&ended_by);
    header->state = FILE_ENDED;
    record_file_flush();
    pthread_mutex_unlock(&writing);
}

/* Write all there is; what CUPTI delivers later is still added. */
static void end_recording(void)
{
    if (!lock_within(&ending, END_WAIT_MS)) return;
    if (!atomic_load(&has_ended)) {
        flush_last();
        finish_file();
        /* Not after a signal: the thread that crashed may hold the driver's locks. */
        if (atomic_load(&ended_by) == 0) note_devices();
        atomic_store(&has_ended, 1);
    }
    pthread_mutex_unlock(&ending);
}

static void on_exit_of_program(void)
{
    if (getpid() == owner) end_recording();
}

/* --- The threads of this library --- */

/* Not here but by the thread that flushes: this one must go on, and end the program, if CUPTI hangs. */
static void on_ending(int number)
{
    atomic_store(&ended_by, number);
    if (!atomic_load(&has_ended)) request(WORK_END, END_WAIT_MS);
}

static void *run_setup(void *unused)
{
    (void)unused;
    while (!atomic_load(&has_ended)) {
        int wanted = next_request(WORK_UNIFIED | WORK_DEVICES | WORK_DRIVER, FLUSH_PERIOD_MS);
        if (wanted & WORK_DRIVER) record_driver_calls();
        request_done(wanted & WORK_DRIVER);
        if (wanted & WORK_UNIFIED) record_unified_memory();
        request_done(wanted & WORK_UNIFIED);
        if (wanted & WORK_DEVICES) note_devices();
        request_done(wanted & WORK_DEVICES);
    }
    return NULL;
}

static void *run_flushes(void *unused)
{
    (void)unused;
    while (!atomic_load(&has_ended)) {
        int wanted = next_request(WORK_END, FLUSH_PERIOD_MS);
        if (wanted & WORK_END) {
            end_recording();
        } else if (buffers_are_out()) {
            flush_complete();
            note_maps_in_time();
        }
    }
    request_done(WORK_END);
    return NULL;
}

static int start_thread(void *(*function)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, NULL) != 0) return 0;
    pthread_detach(thread);
    return 1;
}

/* Signals are for the program's own threads. */
static int start_threads(void)
{
    sigset_t all, before;
    requests_start();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int is_started = start_thread(run_setup) && start_thread(run_flushes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

/* --- CUPTI's callbacks --- */

static void on_resource(CUpti_CallbackId event)
{
    static atomic_int contexts;
    if (event == CUPTI_CBID_RESOURCE_CU_INIT_FINISHED) {
        /* Done while the program goes on: CUPTI may need what cuInit still holds. */
        request(WORK_UNIFIED, 0);
    } else if (atomic_fetch_add(&contexts, 1) == 0) {
        /* There is no managed memory before the first context. A driver that was not ready is now. */
        if (atomic_load(&is_unified_open)) request(WORK_UNIFIED, SETUP_WAIT_MS);
        request(WORK_DEVICES, 0);
    }
}

static void on_code_loaded(void)
{
    static atomic_int is_asked;
    if (!atomic_exchange(&is_asked, 1)) request(WORK_DRIVER, SETUP_WAIT_MS);
}

static void CUPTIAPI on_callback(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    (void)unused;
    if (getpid() != owner || atomic_load(&has_ended)) return;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
        on_resource(id);
    } else if (((const CUpti_CallbackData *)data)->callbackSite != CUPTI_API_ENTER) {
        return;
    } else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && id != CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy_v2) {
        on_code_loaded();
    } else {
        /* A context is about to be destroyed, with what CUPTI holds of it. */
        cupti.cuptiActivityFlushAll(0);
    }
}

/* --- The start --- */

static void fail(int code, const char *what, const char *why)
{
    struct file_header *header = record_file_header();
    header->failed_code = code;
    snprintf(header->failed_text, sizeof header->failed_text, "%s: %s", what, why);
}

static int succeeded(CUptiResult result, const char *what)
{
    if (result == CUPTI_SUCCESS) return 1;
    fail((int)result, what, cupti_result_name(result));
    return 0;
}

/* Calls that a program makes to run code through the driver; the runtime loads its own with cuLibraryLoadData. */
static const CUpti_CallbackId LOADS_CODE[] = {
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoad,
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx,
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary,
    CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction,
};

/* cuLaunchKernelEx and its form for streams of a thread: the runtime does not call them, libraries do (cuBLAS).
 * Numbers of cupti_driver_cbid.h, which CUDA 11.7 does not have yet. */
static const CUpti_CallbackId LAUNCHES[] = {652, 653};

static void enable_callbacks(void)
{
    /* Without one of these the recording is still good. */
    cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CU_INIT_FINISHED);
    cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
    cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API,
                              CUPTI_RUNTIME_TRACE_CBID_cudaDeviceReset_v3020);
    cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy_v2);
    for (size_t i = 0; i < sizeof LOADS_CODE / sizeof *LOADS_CODE; i++) {
        cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, LOADS_CODE[i]);
    }
}

static void set_attributes(void)
{
    uint8_t yes = 1;
    size_t bytes = sizeof yes;
    cupti.cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
    /* Otherwise CUPTI zeroes each buffer in the program's own calls. */
    if (cupti.cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &bytes, &yes) ==
        CUPTI_SUCCESS) {
        buffer_pool_zero();
    }
}

static int enable_activities(void)
{
    static const CUpti_ActivityKind NEEDED[] = {
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_RUNTIME,
    };
    static const CUpti_ActivityKind WELCOME[] = {
        CUPTI_ACTIVITY_KIND_MEMCPY2,
        CUPTI_ACTIVITY_KIND_OVERHEAD,
    };
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        if (!succeeded(cupti.cuptiActivityEnable(NEEDED[i]), "cuptiActivityEnable")) return 0;
    }
    for (size_t i = 0; i < sizeof WELCOME / sizeof *WELCOME; i++) cupti.cuptiActivityEnable(WELCOME[i]);
    activities_leave_out_queries();
    if (cupti.cuptiActivityEnableDriverApi == NULL) {
        record_driver_calls();
    } else {
        for (size_t i = 0; i < sizeof LAUNCHES / sizeof *LAUNCHES; i++) {
            cupti.cuptiActivityEnableDriverApi(LAUNCHES[i], 1);
        }
    }
    return 1;
}

static int start_cupti(const char *path)
{
    struct file_header *header = record_file_header();
    char reason[160];
    header->cupti_built = CUPTI_API_VERSION;
    if (!cupti_load(path, reason, sizeof reason)) {
        fail(-1, "CUPTI cannot be loaded", reason);
        return 0;
    }
    snprintf(header->cupti_path, sizeof header->cupti_path, "%s", cupti_loaded_path());
    if (!succeeded(cupti.cuptiGetVersion(&header->cupti_loaded), "cuptiGetVersion")) return 0;
    if (!succeeded(cupti.cuptiSubscribe(&subscriber, on_callback, NULL), "cuptiSubscribe")) return 0;
    enable_callbacks();
    set_attributes();
    if (succeeded(cupti.cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed),
                  "cuptiActivityRegisterCallbacks") &&
        enable_activities()) {
        return 1;
    }
    cupti.cuptiUnsubscribe(subscriber);
    return 0;
}

static void note_start(void)
{
    struct file_header *header = record_file_header();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    header->start_realtime_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    if (cupti.cuptiGetTimestamp(&header->start_ns) != CUPTI_SUCCESS || header->start_ns == 0) {
        header->start_ns = header->start_realtime_ns;
    }
}

static void note_program(void)
{
    struct file_header *header = record_file_header();
    ssize_t length = readlink("/proc/self/exe", header->program, sizeof header->program - 1);
    header->program[length < 0 ? 0 : length] = '\0';
    char command[4096];
    int descriptor = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    length = read(descriptor, command, sizeof command);
    close(descriptor);
    if (length > 0) record_file_put_text(TEXT_COMMAND, 0, command, (size_t)length);
}

static void on_fork_in_child(void)
{
    ending_forget();
    record_file_abandon();
}

static void watch_for_the_end(void)
{
    atexit(on_exit_of_program);
    pthread_atfork(NULL, NULL, on_fork_in_child);
    if (start_threads()) ending_watch(on_ending);
}

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value == NULL || value[0] == '\0' ? NULL : value;
}

__attribute__((visibility("default"))) int InitializeInjection(void);

/* Called by CUDA's driver while it initializes. Whatever happens, the program goes on: 1 is success. */
int InitializeInjection(void)
{
    static atomic_flag is_started = ATOMIC_FLAG_INIT;
    const char *folder = setting("OPSCOPE_TRACE_FOLDER");
    const char *cupti_path = setting("OPSCOPE_TRACE_CUPTI");
    const char *unified = setting("OPSCOPE_TRACE_UNIFIED");
    if (atomic_flag_test_and_set(&is_started) || folder == NULL || cupti_path == NULL) return 1;
    const char *most = setting("OPSCOPE_TRACE_MOST_BYTES");
    if (most != NULL) record_file_limit(strtoull(most, NULL, 10));
    if (record_file_open(folder) != 0) return 1;
    owner = getpid();
    pthread_mutex_lock(&writing);
    note_program();
    if (unified != NULL && strcmp(unified, "0") == 0) {
        record_file_header()->unified_state = UNIFIED_UNWANTED;
        atomic_store(&is_unified_open, 0);
    }
    pthread_mutex_unlock(&writing);
    if (start_cupti(cupti_path)) {
        note_start();
        record_file_header()->state = FILE_RECORDING;
        watch_for_the_end();
    }
    pthread_mutex_lock(&writing);
    record_file_flush();
    pthread_mutex_unlock(&writing);
    return 1;
}
