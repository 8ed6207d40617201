/* ledger.h - an allocator that counts requests and live blocks, and can refuse a request. */
#ifndef TERN_TESTS_LEDGER_H
#define TERN_TESTS_LEDGER_H

#include "base/base.h"
#include "check.h"

#include <stdatomic.h>
#include <stdlib.h>

#define LEDGER_BIG ((size_t)256 << 10) /* more than a scope's own chunks */

typedef struct ledger {
    atomic_int refuse_at;   /* the number of the first request that is refused; 0: none */
    atomic_bool refuse_all; /* refuses all requests after it, too                        */
    atomic_int requests;
    atomic_int live; /* blocks not yet freed              */
    atomic_int big;  /* requests of at least LEDGER_BIG bytes */
} ledger;

static inline void *ledger_alloc(size_t bytes, size_t align, void *ctx)
{
    ledger *books = ctx;
    int number = atomic_fetch_add(&books->requests, 1) + 1;
    bool late = books->refuse_all && number > books->refuse_at;
    if (books->refuse_at && (number == books->refuse_at || late)) return NULL;
    void *block = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!block) return NULL;
    atomic_fetch_add(&books->live, 1);
    if (bytes >= LEDGER_BIG) atomic_fetch_add(&books->big, 1);
    return block;
}

static inline void ledger_free(void *block, void *ctx)
{
    ledger *books = ctx;
    atomic_fetch_sub(&books->live, 1);
    free(block);
}

/* Makes the library allocate through `books` until ledger_close. */
static inline void ledger_open(ledger *books)
{
    tern__allocator_replace(&(tern_allocator){ledger_alloc, ledger_free, books});
}

/* Checks that all blocks were freed, and restores the default allocator. */
static inline void ledger_close(ledger *books)
{
    tern__allocator_replace(NULL);
    assert_int_equal(atomic_load(&books->live), 0);
}

#endif
