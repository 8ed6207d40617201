/* scratch_pool.h - reusable scratch structs for a dataset's `get`: as many as there are concurrent calls. */
#ifndef TERN_SRC_DATA_SCRATCH_POOL_H
#define TERN_SRC_DATA_SCRATCH_POOL_H

#include "base/base.h"

#include <pthread.h>

/* The first member of a pooled struct. */
typedef struct tern__scratch_entry {
    struct tern__scratch_entry *next;
} tern__scratch_entry;

typedef struct tern__scratch_pool {
    pthread_mutex_t lock;
    tern__scratch_entry *free; /* not used by any call */
} tern__scratch_pool;

#define TERN__SCRATCH_POOL_INITIALIZER                                                                       \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                    \
    }

/* Returns a struct that was given back, or a new one of `bytes` zeros. NULL: E_MEMORY. */
void *tern__scratch_pool_take(tern__scratch_pool *pool, size_t bytes, const char *func, tern_error *err);
void tern__scratch_pool_give(tern__scratch_pool *pool, void *taken);
/* Each call returns another struct, to be freed with tern__free. NULL: none was left, and the pool is
 * destroyed. */
void *tern__scratch_pool_close(tern__scratch_pool *pool);

#endif
