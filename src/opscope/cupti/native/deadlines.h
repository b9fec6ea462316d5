/* Waiting that ends: no thread of the program may hang for the recorder's sake. */
#ifndef OPSCOPE_DEADLINES_H
#define OPSCOPE_DEADLINES_H

#include <pthread.h>
#include <time.h>

/* The moment so many milliseconds from now. */
struct timespec in_milliseconds(clockid_t clock, long milliseconds);

/* Take a lock within a time. Returns 1; 0 if it could not be had. */
int lock_within(pthread_mutex_t *lock, long milliseconds);

#endif
