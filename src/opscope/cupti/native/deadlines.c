#define _GNU_SOURCE
#include "deadlines.h"

struct timespec in_milliseconds(clockid_t clock, long milliseconds)
{
    struct timespec moment;
    clock_gettime(clock, &moment);
    moment.tv_sec += milliseconds / 1000;
    moment.tv_nsec += milliseconds % 1000 * 1000000L;
    if (moment.tv_nsec >= 1000000000L) {
        moment.tv_sec++;
        moment.tv_nsec -= 1000000000L;
    }
    return moment;
}

int lock_within(pthread_mutex_t *lock, long milliseconds)
{
    struct timespec deadline = in_milliseconds(CLOCK_REALTIME, milliseconds);
    return pthread_mutex_timedlock(lock, &deadline) == 0;
}
