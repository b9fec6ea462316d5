/* Which calls of the CUDA runtime and driver are recorded: all but those that only ask, are made by the thousand and
 * take nanoseconds. */
#ifndef OPSCOPE_CALL_NAMES_H
#define OPSCOPE_CALL_NAMES_H

/* Whether a function is one of those, by CUPTI's name of it (`cudaGetDevice_v3020`). */
int is_query(const char *name);

#endif
