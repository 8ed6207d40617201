/* scratch_pool.c - a locked list of scratch structs. */
#include "data/scratch_pool.h"

static tern__scratch_entry *scratch_pop(tern__scratch_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    tern__scratch_entry *taken = pool->free;
    if (taken) pool->free = taken->next;
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

void *tern__scratch_pool_take(tern__scratch_pool *pool, size_t bytes, const char *func, tern_error *err)
{
    tern__scratch_entry *taken = scratch_pop(pool);
    return taken ? taken : tern__alloc(bytes, func, err);
}

void tern__scratch_pool_give(tern__scratch_pool *pool, void *taken)
{
    tern__scratch_entry *given = taken;
    pthread_mutex_lock(&pool->lock);
    given->next = pool->free;
    pool->free = given;
    pthread_mutex_unlock(&pool->lock);
}

void *tern__scratch_pool_close(tern__scratch_pool *pool)
{
    tern__scratch_entry *taken = scratch_pop(pool);
    if (!taken) pthread_mutex_destroy(&pool->lock);
    return taken;
}
