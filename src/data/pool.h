/* pool.h - what a call of get needs for a while: as many as there were calls at the same time. */
#ifndef TERN_SRC_DATA_POOL_H
#define TERN_SRC_DATA_POOL_H

#include "base/base.h"

#include <pthread.h>

/* Stands first in the struct that is pooled. */
typedef struct tern__pooled {
    struct tern__pooled *next;
} tern__pooled;

typedef struct tern__pool {
    pthread_mutex_t lock;
    tern__pooled *free; /* that no call uses */
} tern__pool;

#define TERN__POOL_INITIALIZER                                                                               \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                    \
    }

/* One that was given back, or a new one of `bytes` zeros. NULL: E_MEMORY. */
void *tern__pool_take(tern__pool *pool, size_t bytes, const char *func, tern_error *err);
void tern__pool_give(tern__pool *pool, void *taken);
/* One after the other, to be freed with tern__free; NULL: there is none left, and the pool is no more. */
void *tern__pool_close(tern__pool *pool);

#endif
