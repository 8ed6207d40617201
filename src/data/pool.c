#include "data/pool.h"

static tern__pooled *pop(tern__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    tern__pooled *taken = pool->free;
    if (taken) pool->free = taken->next;
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

void *tern__pool_take(tern__pool *pool, size_t bytes, const char *func, tern_error *err)
{
    tern__pooled *taken = pop(pool);
    return taken ? taken : tern__alloc(bytes, func, err);
}

void tern__pool_give(tern__pool *pool, void *taken)
{
    tern__pooled *given = taken;
    pthread_mutex_lock(&pool->lock);
    given->next = pool->free;
    pool->free = given;
    pthread_mutex_unlock(&pool->lock);
}

void *tern__pool_close(tern__pool *pool)
{
    tern__pooled *taken = pop(pool);
    if (!taken) pthread_mutex_destroy(&pool->lock);
    return taken;
}
