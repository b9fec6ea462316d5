#include "buffer_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_BUFFERS = 64 };

static struct {
    pthread_mutex_t lock;
    uint8_t *free[KEPT_BUFFERS];
    int count;
    int handed_out;
    int is_zeroing;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

void buffer_pool_zero(void)
{
    pool.is_zeroing = 1;
}

uint8_t *buffer_take(void)
{
    uint8_t *buffer = NULL;
    pthread_mutex_lock(&pool.lock);
    if (pool.count > 0) buffer = pool.free[--pool.count];
    if (buffer == NULL) buffer = calloc(1, BUFFER_BYTES);
    if (buffer != NULL) pool.handed_out++;
    pthread_mutex_unlock(&pool.lock);
    return buffer;
}

void buffer_give_back(uint8_t *buffer)
{
    if (buffer == NULL) return;
    if (pool.is_zeroing) memset(buffer, 0, BUFFER_BYTES);
    pthread_mutex_lock(&pool.lock);
    pool.handed_out--;
    if (pool.count < KEPT_BUFFERS) {
        pool.free[pool.count++] = buffer;
        buffer = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
    free(buffer);
}

int buffers_are_out(void)
{
    pthread_mutex_lock(&pool.lock);
    int count = pool.handed_out;
    pthread_mutex_unlock(&pool.lock);
    return count > 0;
}
