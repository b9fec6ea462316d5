#define _GNU_SOURCE
#include "requests.h"

#include <pthread.h>
#include <time.h>

#include "deadlines.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int wanted, done;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER};

void requests_start(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&work.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void request(int kinds, long wait_ms)
{
    struct timespec deadline = in_milliseconds(CLOCK_MONOTONIC, wait_ms);
    pthread_mutex_lock(&work.lock);
    work.wanted |= kinds;
    work.done &= ~kinds;
    pthread_cond_broadcast(&work.changed);
    while (wait_ms > 0 && (work.done & kinds) != kinds) {
        if (pthread_cond_timedwait(&work.changed, &work.lock, &deadline) != 0) break;
    }
    pthread_mutex_unlock(&work.lock);
}

int next_request(int kinds, long wait_ms)
{
    struct timespec deadline = in_milliseconds(CLOCK_MONOTONIC, wait_ms);
    pthread_mutex_lock(&work.lock);
    while ((work.wanted & kinds) == 0) {
        if (pthread_cond_timedwait(&work.changed, &work.lock, &deadline) != 0) break;
    }
    int found = work.wanted & kinds;
    work.wanted &= ~kinds;
    pthread_mutex_unlock(&work.lock);
    return found;
}

void request_done(int kinds)
{
    pthread_mutex_lock(&work.lock);
    work.done |= kinds;
    pthread_cond_broadcast(&work.changed);
    pthread_mutex_unlock(&work.lock);
}
