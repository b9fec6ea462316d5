/* Buffers that CUPTI fills, used again and again. They are asked for in the program's own calls: nothing is waited for
 * there but another thread's asking. */
#ifndef OPSCOPE_BUFFER_POOL_H
#define OPSCOPE_BUFFER_POOL_H

#include <stddef.h>
#include <stdint.h>

enum { BUFFER_BYTES = 2 << 20 };

/* Have all buffers handed out zeroed, which CUPTI would do itself otherwise. To be called before the first. */
void buffer_pool_zero(void);

/* A buffer of BUFFER_BYTES; NULL without memory. */
uint8_t *buffer_take(void);

/* Give one back; NULL is none. */
void buffer_give_back(uint8_t *buffer);

/* Whether CUPTI has any. */
int buffers_are_out(void);

#endif
