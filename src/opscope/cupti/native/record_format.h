/* The file that one process writes: a header of fixed size, then chunks. Read by ../record_format.py.
 *
 * A chunk is its head and `count` records of one kind. All numbers are little endian, all times nanoseconds on
 * CUPTI's clock, all sizes multiples of eight. Ids that are absent are 0xffffffff. */
#ifndef OPSCOPE_RECORD_FORMAT_H
#define OPSCOPE_RECORD_FORMAT_H

#include <stdint.h>

/* The number changes with whatever is below. */
#define RECORD_MARK "opscope cuda 01"

enum file_state { FILE_STARTED = 1, FILE_RECORDING = 2, FILE_ENDED = 3 };

enum unified_state { UNIFIED_UNTRIED = 0, UNIFIED_RECORDED = 1, UNIFIED_REFUSED = 2, UNIFIED_UNWANTED = 3 };

enum { WRITE_LIMIT = -1 };

struct file_header {
    char mark[16];
    uint32_t header_bytes;
    uint32_t state;
    uint32_t process;
    uint32_t parent_process;
    uint64_t start_ns;          /* CUPTI's clock */
    uint64_t start_realtime_ns; /* the same moment since the Unix epoch */
    uint64_t end_ns;
    uint32_t cupti_built;  /* CUPTI_API_VERSION of the headers */
    uint32_t cupti_loaded; /* of the library */
    uint32_t driver_version;
    int32_t signal;       /* that ended the recording; 0 for none */
    int32_t failed_code;  /* CUptiResult of what failed; 0 if nothing did, -1 for a failure of another kind */
    int32_t unified_code; /* CUptiResult of switching unified memory on */
    uint32_t unified_state;
    int32_t write_errno; /* of what could not be written last; WRITE_LIMIT where the file was to grow no larger */
    uint64_t record_count;
    uint64_t dropped_count;    /* by CUPTI */
    uint64_t lost_count;       /* could not be written */
    uint64_t unreadable_count; /* buffers CUPTI could not read to their end */
    char failed_text[192];
    char unified_text[96];
    char cupti_path[256];
    char program[256];
    unsigned char reserved[104];
};

_Static_assert(sizeof(struct file_header) == 1024, "the header's size is part of the format");

enum chunk_kind {
    CHUNK_KERNELS = 1,
    CHUNK_COPIES = 2,
    CHUNK_SETS = 3,
    CHUNK_RUNTIME_CALLS = 4,
    CHUNK_DRIVER_CALLS = 5,
    CHUNK_MIGRATIONS = 6,
    CHUNK_OVERHEADS = 7,
    CHUNK_DEVICES = 8,
    CHUNK_TEXTS = 9,
    CHUNK_KINDS = 10
};

struct chunk_head {
    uint32_t kind;
    uint32_t count;
    uint64_t bytes; /* of what follows */
};

struct kernel_record {
    uint64_t start_ns, end_ns, graph_node;
    uint32_t name, correlation, device, context, stream, graph;
    int32_t grid[3], block[3];
    uint32_t static_shared_bytes, dynamic_shared_bytes, registers, unused;
};

struct copy_record {
    uint64_t start_ns, end_ns, size_bytes, graph_node;
    uint32_t correlation, device, context, stream, graph, source_device, target_device;
    uint8_t kind, source, target, flags;
};

struct set_record {
    uint64_t start_ns, end_ns, size_bytes, graph_node;
    uint32_t correlation, device, context, stream, graph, memory_kind;
};

struct call_record {
    uint64_t start_ns, end_ns;
    uint32_t correlation, thread, function, result;
};

/* Of unified memory. */
struct migration_record {
    uint64_t start_ns, end_ns, size_bytes, address;
    uint32_t kind, source, target, unused;
};

struct overhead_record {
    uint64_t start_ns, end_ns;
    uint32_t kind, thread; /* 0: of no thread */
};

struct device_record {
    uint64_t memory_bytes;
    int32_t device, major, minor, multiprocessors, warp_size, threads_per_block, threads_per_multiprocessor;
    int32_t registers_per_block, registers_per_multiprocessor;
    int32_t shared_per_block, shared_per_block_optin, shared_per_multiprocessor;
    char name[128];
};

/* What a text says. Ids are those in the records; parts of a long text have ids 0, 1, 2, … */
enum text_table {
    TEXT_KERNEL = 1,
    TEXT_RUNTIME_FUNCTION = 2,
    TEXT_DRIVER_FUNCTION = 3,
    TEXT_THREAD = 4,
    TEXT_COMMAND = 5,
    TEXT_MAPS = 6
};

/* Followed by the text, padded to eight bytes. */
struct text_record {
    uint32_t table, id, bytes, unused;
};

_Static_assert(sizeof(struct kernel_record) == 88, "layout");
_Static_assert(sizeof(struct copy_record) == 64, "layout");
_Static_assert(sizeof(struct set_record) == 56, "layout");
_Static_assert(sizeof(struct call_record) == 32, "layout");
_Static_assert(sizeof(struct migration_record) == 48, "layout");
_Static_assert(sizeof(struct overhead_record) == 24, "layout");
_Static_assert(sizeof(struct device_record) == 184, "layout");
_Static_assert(sizeof(struct text_record) == 16, "layout");

#endif
