#define _GNU_SOURCE
#include "record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { STAGE_BYTES = 1 << 16, MOST_ATTEMPTS = 1000, HIGH_DESCRIPTOR = 512 };

struct stage {
    size_t used;
    uint32_t count;
    unsigned char bytes[STAGE_BYTES];
};

static struct {
    int descriptor;
    dev_t device;
    ino_t inode;
    off_t end; /* up to here the file is whole */
    uint64_t most; /* bytes; 0 for no limit */
    int is_full;
    char path[PATH_MAX];
    struct file_header header;
    struct stage stages[CHUNK_KINDS];
} file = {.descriptor = -1};

static int identify(void)
{
    struct stat status;
    if (fstat(file.descriptor, &status) != 0) return errno;
    file.device = status.st_dev;
    file.inode = status.st_ino;
    return 0;
}

/* Out of the way of programs that expect small numbers, or that close them. */
static int moved_up(int descriptor)
{
    int high = fcntl(descriptor, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0) return descriptor;
    close(descriptor);
    return high;
}

static void write_header(void)
{
    ssize_t written;
    do {
        written = pwrite(file.descriptor, &file.header, sizeof file.header, 0);
    } while (written < 0 && errno == EINTR);
    if (written < 0) file.header.write_errno = errno;
}

int record_file_open(const char *folder)
{
    for (int number = 0; number < MOST_ATTEMPTS && file.descriptor < 0; number++) {
        int length = snprintf(file.path, sizeof file.path, "%s/%d.%d.cuda", folder, (int)getpid(), number);
        if (length < 0 || (size_t)length >= sizeof file.path) return ENAMETOOLONG;
        file.descriptor = open(file.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file.descriptor < 0 && errno != EEXIST) return errno;
    }
    if (file.descriptor < 0) return EEXIST;
    file.descriptor = moved_up(file.descriptor);
    memcpy(file.header.mark, RECORD_MARK, sizeof RECORD_MARK);
    file.header.header_bytes = sizeof file.header;
    file.header.state = FILE_STARTED;
    file.header.process = (uint32_t)getpid();
    file.header.parent_process = (uint32_t)getppid();
    write_header();
    file.end = sizeof file.header;
    return identify();
}

void record_file_limit(uint64_t bytes)
{
    file.most = bytes;
}

struct file_header *record_file_header(void)
{
    return &file.header;
}

/* A program may close descriptors it did not open, and be given the number for a file of its own. */
static int has_descriptor(void)
{
    struct stat status;
    if (file.descriptor >= 0 && fstat(file.descriptor, &status) == 0 && status.st_dev == file.device &&
        status.st_ino == file.inode) {
        return 1;
    }
    if (file.path[0] == '\0') return 0;
    file.descriptor = open(file.path, O_RDWR | O_CLOEXEC);
    if (file.descriptor < 0) return 0;
    file.descriptor = moved_up(file.descriptor);
    if (identify() == 0) return 1;
    return 0;
}

static int write_all(struct iovec *parts, int count)
{
    off_t position = file.end;
    while (count > 0) {
        ssize_t written = pwritev(file.descriptor, parts, count, position);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        if (written == 0) return ENOSPC;
        position += written;
        while (count > 0 && (size_t)written >= parts->iov_len) {
            written -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
    file.end = position;
    return 0;
}

/* A chunk is written whole or not at all: what is behind it stays readable. Behind the limit comes nothing more, so that
 * what is there is all that came until then. */
static void append(struct chunk_head head, const void *bytes)
{
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)bytes, head.bytes}};
    int is_record = head.kind != CHUNK_DEVICES; /* few, and read at the end */
    if (is_record && file.most > 0 && (uint64_t)file.end + sizeof head + head.bytes > file.most) file.is_full = 1;
    int failure = is_record && file.is_full ? WRITE_LIMIT : has_descriptor() ? write_all(parts, 2) : EBADF;
    uint64_t records = head.kind < CHUNK_DEVICES ? head.count : 0;
    if (failure == 0) {
        file.header.record_count += records;
        return;
    }
    file.header.write_errno = failure;
    file.header.lost_count += records;
    if (failure != EBADF && failure != WRITE_LIMIT && ftruncate(file.descriptor, file.end) != 0) file.header.write_errno = errno;
}

static void write_stage(enum chunk_kind kind)
{
    struct stage *stage = &file.stages[kind];
    if (stage->count == 0) return;
    struct chunk_head head = {.kind = (uint32_t)kind, .count = stage->count, .bytes = stage->used};
    append(head, stage->bytes);
    stage->used = 0;
    stage->count = 0;
}

void record_file_put(enum chunk_kind kind, const void *record, size_t bytes)
{
    struct stage *stage = &file.stages[kind];
    if (stage->used + bytes > sizeof stage->bytes) {
        write_stage(CHUNK_TEXTS); /* the names come before what refers to them */
        write_stage(kind);
    }
    memcpy(stage->bytes + stage->used, record, bytes);
    stage->used += bytes;
    stage->count++;
}

void record_file_put_text(enum text_table table, uint32_t id, const char *text, size_t bytes)
{
    struct stage *stage = &file.stages[CHUNK_TEXTS];
    size_t most = sizeof stage->bytes - sizeof(struct text_record) - 8;
    if (bytes > most) bytes = most;
    size_t padded = (bytes + 7) & ~(size_t)7;
    struct text_record record = {(uint32_t)table, id, (uint32_t)bytes, 0};
    if (stage->used + sizeof record + padded > sizeof stage->bytes) write_stage(CHUNK_TEXTS);
    memcpy(stage->bytes + stage->used, &record, sizeof record);
    memset(stage->bytes + stage->used + sizeof record, 0, padded);
    memcpy(stage->bytes + stage->used + sizeof record, text, bytes);
    stage->used += sizeof record + padded;
    stage->count++;
}

void record_file_flush(void)
{
    write_stage(CHUNK_TEXTS);
    for (int kind = 0; kind < CHUNK_KINDS; kind++) write_stage((enum chunk_kind)kind);
    if (has_descriptor()) write_header();
}

void record_file_abandon(void)
{
    if (file.descriptor >= 0) close(file.descriptor);
    file.descriptor = -1;
    file.path[0] = '\0';
}
