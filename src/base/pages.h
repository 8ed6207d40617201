/* pages.h - how large pages are, and large ones under large blocks. */
#ifndef TERN_SRC_BASE_PAGES_H
#define TERN_SRC_BASE_PAGES_H

#include <stddef.h>
#include <unistd.h>

static inline size_t tern__page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Asks for pages of 2 MiB under as much of a block as they fit into, so that no memory is taken beyond it. */
void tern__pages_enlarge(void *block, size_t bytes);

#endif
