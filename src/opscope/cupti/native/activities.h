/* CUPTI's records → records of the file. The caller holds the file's lock. */
#ifndef OPSCOPE_ACTIVITIES_H
#define OPSCOPE_ACTIVITIES_H

#include <stddef.h>
#include <stdint.h>

/* Have CUPTI not record the calls that are left out. To be called after the kinds of activity are enabled. */
void activities_leave_out_queries(void);

/* Put all records of a completed buffer. */
void activities_put(uint8_t *buffer, size_t valid_bytes);

/* Whether a record showed that the program uses unified memory. */
int activities_use_unified_memory(void);

#endif
