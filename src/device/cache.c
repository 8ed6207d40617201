/* cache.c - the block cache of a device, and its scratch buffers.
 *
 * A block is a header of one cache line followed by the caller's bytes. Sizes are rounded up to a class.
 * There are four classes to each power of two, so at most a fifth is wasted, and shapes that differ a little
 * share blocks. Each class keeps its free blocks in a stack: the block freed last is still in the CPU's
 * cache. */
#include "device/backend.h"
#include "base/pages.h"

#include <sys/mman.h>

struct tern__block {
    int bin;
    size_t bytes;
    struct tern__block *next;
} __attribute__((aligned(TERN__LINE)));

#define SMALLEST 64
#define LARGEST  ((size_t)1 << 53) /* the largest size class, here and in the plug-in */

static int bin_of(size_t bytes, size_t *rounded)
{
    size_t base = SMALLEST;
    int bin = 0;
    while (base * 2 <= bytes) {
        base *= 2;
        bin += 4;
    }
    int quarter = 0;
    while (base + base / 4 * (size_t)quarter < bytes) quarter++;
    *rounded = base + base / 4 * (size_t)quarter;
    return bin + quarter;
}

void tern__device_cache_empty(tern_device *device)
{
    for (int bin = 0; bin < TERN__DEVICE_BINS; bin++) {
        struct tern__block *block = device->bins[bin];
        device->bins[bin] = NULL;
        while (block) {
            struct tern__block *next = block->next;
            device->bytes -= block->bytes;
            tern__free(block);
            block = next;
        }
    }
}

static struct tern__block *cache_new_block(tern_device *device, int bin, size_t bytes)
{
    struct tern__block *block = tern__alloc_raw(sizeof(*block) + bytes, TERN__LINE);
    if (!block) {
        tern__device_cache_empty(device);
        block = tern__alloc_raw(sizeof(*block) + bytes, TERN__LINE);
    }
    if (!block) return NULL;
    tern__pages_enlarge(block, bytes);
    *block = (struct tern__block){.bin = bin, .bytes = bytes};
    device->bytes += bytes;
    return block;
}

void *tern__device_alloc(tern_device *device, size_t bytes)
{
    if (bytes > LARGEST) return NULL;
    if (device->backend) return device->backend->alloc(device, TERN__MAX(bytes, (size_t)1));
    size_t rounded;
    int bin = bin_of(TERN__MAX(bytes, (size_t)SMALLEST), &rounded);
    pthread_mutex_lock(&device->lock);
    struct tern__block *block = device->bins[bin];
    if (block)
        device->bins[bin] = block->next;
    else
        block = cache_new_block(device, bin, rounded);
    pthread_mutex_unlock(&device->lock);
    return block ? block + 1 : NULL;
}

void tern__device_free(tern_device *device, void *data)
{
    if (!data) return;
    if (device->backend) {
        device->backend->free(device, data);
        return;
    }
    struct tern__block *block = (struct tern__block *)data - 1;
    pthread_mutex_lock(&device->lock);
    block->next = device->bins[block->bin];
    device->bins[block->bin] = block;
    pthread_mutex_unlock(&device->lock);
}

/* free() keeps a block that is part of malloc's heap, and malloc puts larger and larger blocks there once
 * such have been freed. This cost 40 of ResNet-18's 400 MB. So the block's pages are returned first. */
static void drop_pages(struct tern__block *block)
{
    uintptr_t page = tern__page_bytes();
    uintptr_t begin = tern__align_up((uintptr_t)(block + 1), page);
    uintptr_t end = ((uintptr_t)(block + 1) + block->bytes) / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void tern__device_release(tern_device *device, void *data)
{
    if (!data) return;
    if (device->backend) {
        device->backend->free(device, data);
        return;
    }
    struct tern__block *block = (struct tern__block *)data - 1;
    pthread_mutex_lock(&device->lock);
    device->bytes -= block->bytes;
    pthread_mutex_unlock(&device->lock);
    drop_pages(block);
    tern__free(block);
}

size_t tern__device_bytes(tern_device *device)
{
    if (device->backend) return device->backend->bytes(device);
    pthread_mutex_lock(&device->lock);
    size_t bytes = device->bytes;
    pthread_mutex_unlock(&device->lock);
    return bytes;
}

void *tern__device_scratch(tern_device *device, int which, size_t bytes)
{
    if (!device->scratch[which].data || device->scratch[which].bytes < bytes) {
        tern__device_release(device, device->scratch[which].data);
        device->scratch[which].data = tern__device_alloc(device, bytes);
        device->scratch[which].bytes = device->scratch[which].data ? bytes : 0;
    }
    return device->scratch[which].data;
}

void tern__device_scratch_free(tern_device *device, int kept)
{
    for (int i = 0; i < TERN__SCRATCH_COUNT; i++) {
        if (i == kept) continue;
        tern__device_release(device, device->scratch[i].data);
        device->scratch[i].data = NULL;
        device->scratch[i].bytes = 0;
    }
}
