/* device.h - bytes and threads: the block cache, the thread count, and opaque slots in which kernels keep
 * their caches. */
#ifndef TERN_SRC_DEVICE_H
#define TERN_SRC_DEVICE_H

#include "base/base.h"

#include <tern/device.h>

#include <pthread.h>

#define TERN__DEVICE_BINS 192

typedef enum tern__device_slot { TERN__SLOT_DNNL, TERN__SLOT_SCRATCH, TERN__SLOT_COUNT } tern__device_slot;

struct tern_device {
    const char *name;
    bool reference; /* plain kernels only                  */
    int threads;
    pthread_mutex_t lock;                        /* over bins                           */
    struct tern__block *bins[TERN__DEVICE_BINS]; /* free blocks by size class, last freed first */
    struct {
        void *data;
        void (*free)(void *data);
    } slots[TERN__SLOT_COUNT]; /* filled and emptied by the kernels that own them */
};

/* Cores that this process may use: the affinity mask, cut down to the cgroup's quota. */
int tern__device_cores(void);

/* At least `bytes` bytes, 64-byte aligned, not zeroed; from the cache if a block of its class is there, so a
 * step whose sizes were seen before calls no allocator. NULL: out of memory, after the cache was emptied. */
void *tern__device_alloc(tern_device *device, size_t bytes);
void tern__device_free(tern_device *device, void *data);

/* A scratch buffer of at least `bytes` that keeps its size: contents last until the next call. */
void *tern__device_scratch(tern_device *device, size_t bytes);

#endif
