/* Copies of unified memory, which CUPTI reports as counters. */
#ifndef OPSCOPE_UNIFIED_MEMORY_H
#define OPSCOPE_UNIFIED_MEMORY_H

#include "cupti_functions.h"

/* Have CUPTI report them. To be called after the driver is initialized; CUPTI may wait for locks of the driver. */
CUptiResult unified_memory_enable(void);

#endif
