/* pages.h - the page size, and huge pages for large blocks. */
#ifndef TERN_SRC_BASE_PAGES_H
#define TERN_SRC_BASE_PAGES_H

#include <stddef.h>
#include <unistd.h>

static inline size_t tern__page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Asks for 2 MiB pages for the part of a block that whole pages cover, so that they take no memory outside
 * it. */
void tern__pages_enlarge(void *block, size_t bytes);

#endif
