/* pages.h - large pages under large blocks. */
#ifndef TERN_SRC_BASE_PAGES_H
#define TERN_SRC_BASE_PAGES_H

#include <stddef.h>

/* Asks for pages of 2 MiB under as much of a block as they fit into, so that no memory is taken beyond it. */
void tern__pages_enlarge(void *block, size_t bytes);

#endif
