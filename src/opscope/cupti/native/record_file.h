/* Writes the file of one process. Knows nothing of CUPTI; the caller holds one lock around all calls. */
#ifndef OPSCOPE_RECORD_FILE_H
#define OPSCOPE_RECORD_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "record_format.h"

/* Make the file `<process>.<number>.cuda` in a folder; the number is the first that is free, since a program that
 * executes another keeps its process id. Returns 0, or errno. */
int record_file_open(const char *folder);

/* Let the file grow no larger: what comes once it has reached this is counted as lost, with WRITE_LIMIT for errno. */
void record_file_limit(uint64_t bytes);

/* The header as it will be written by the next flush. */
struct file_header *record_file_header(void);

/* Add one record of a kind; it is kept until enough have come together. */
void record_file_put(enum chunk_kind kind, const void *record, size_t bytes);

/* Add a text; ahead of the records that are still kept. */
void record_file_put_text(enum text_table table, uint32_t id, const char *text, size_t bytes);

/* Write what is kept, and the header. What cannot be written is counted as lost. */
void record_file_flush(void);

/* Forget the file, without writing: for a process forked off the one that opened it. */
void record_file_abandon(void);

#endif
