#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>

/* Whoever fills a large block waits for the kernel to give its pages, and 512 at once are quicker (loading
 * 100 MB: 37 ms of CPU instead of 62). */
void tern__pages_enlarge(void *block, size_t bytes)
{
    enum { PAGE = 2 << 20 };
    uintptr_t begin = ((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)block + bytes) & ~(uintptr_t)(PAGE - 1);
    if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}
