/* device.h - a device: its memory with the block cache, its threads, and opaque slots in which kernels keep
 * their caches. */
#ifndef TERN_SRC_DEVICE_H
#define TERN_SRC_DEVICE_H

#include "base/base.h"

#include <tern/device.h>

#include <pthread.h>

#define TERN__DEVICE_BINS 192
#define TERN__DEVICE_NAME 64

typedef enum tern__device_slot { TERN__SLOT_DNNL, TERN__SLOT_COUNT } tern__device_slot;

/* A kernel may hold one scratch buffer of each kind at a time: oneDNN's scratchpad, the positions that a
 * strided 1x1 convolution reads, and each operand that is copied into another format. */
typedef enum tern__scratch {
    TERN__SCRATCH_LIBRARY,
    TERN__SCRATCH_THIN,
    TERN__SCRATCH_OPERAND,
    TERN__SCRATCH_COUNT = TERN__SCRATCH_OPERAND + 4
} tern__scratch;

/* Addresses [base, base + bytes). */
typedef struct tern__memory {
    char *base;
    size_t bytes;
} tern__memory;

/* Is called when a device is closed. Embedded by objects that own something of the device. */
typedef struct tern__close_listener {
    struct tern__close_listener *next;
    void (*closing)(struct tern__close_listener *self);
} tern__close_listener;

struct tern_device {
    char name[TERN__DEVICE_NAME];
    const struct tern__device_backend *backend; /* NULL: the device is the host's processor    */
    int index;                                  /* the back end's number for the device        */
    void *state;                                /* belongs to the back end                     */
    tern_device *host;                          /* runs the ops for which the back end has no kernel */
    tern__memory memory;                        /* addresses of the back end's memory          */
    bool reference;                             /* reference kernels only                      */
    int threads;
    tern_device_conv_opts conv;
    size_t workspace; /* default of conv.workspace                                         */
    bool follows;     /* does not measure convolutions: another rank or replica sends its choices */
    bool graphs;      /* with a back end: launch repeated sequences as graphs              */
    struct tern__choices *choices; /* of algorithms, by measuring (device/choices.h)                    */
    const char *algorithm;         /* of the latest convolution; NULL: none ran since this was reset    */
    struct tern__worker *worker;   /* the thread of a group of cores; NULL for other devices            */
    size_t bytes;                  /* of all blocks, free or not        */
    pthread_mutex_t lock;          /* protects bins and bytes           */
    struct tern__block *bins[TERN__DEVICE_BINS]; /* free blocks by size class, last freed first */
    struct {
        void *data;
        void (*free)(void *data);
    } slots[TERN__SLOT_COUNT]; /* filled and emptied by the kernels that own them */
    struct {
        void *data;
        size_t bytes;
    } scratch[TERN__SCRATCH_COUNT];
    struct tern__kernel_observer *observer; /* or NULL (kernels/kernel.h)               */
    tern__close_listener *listeners;        /* of a device with a back end              */
    const struct tern__mirrors *mirrors;    /* in use, or NULL (device/mirror.h)        */
};

/* Ends a step (tern__device_backend.flush). */
int tern__device_flush(tern_device *device, tern_error *err);

/* ---- quota.c ---- */

/* Returns the whole cores that the cgroups grant this process, at least one; INT_MAX: no limit. */
int tern__device_quota(void);

/* ---- share.c ---- */

/* Returns how many cores this process may use: its affinity mask (base/cores.h), limited by the quota. */
int tern__device_cores(void);
/* Returns this rank's share of those cores: `count`, at least one, from number `first` on. The cores are
 * divided among the ranks that share them. A group finds out who these are when it opens; before that they
 * are all ranks that the launcher started on this host, unless it bound each to cores. */
int tern__device_share(int *first, int *count, tern_error *err);
/* Called by a group when all ranks have met: this is rank `rank` of the `ranks` that share its cores, and
 * `on_host` ranks share the host's quota. */
void tern__device_share_among(int rank, int ranks, int on_host);

/* ---- processor.c ---- */

/* Copies the value of the first line of /proc/cpuinfo whose key begins with `key`, truncated to `size`.
 * Returns false if there is no such line. */
bool tern__device_cpuinfo(const char *key, char *value, size_t size);
/* The processor's model name. Linux has none on ARM: there the numbers of implementer and part. */
bool tern__device_cpu_name(char *name, size_t size);

/* ---- backend.c: devices with memory of their own ---- */

/* Whether `name` is a back end's device ("cuda", "cuda:1"). */
bool tern__device_is_plugged(const char *name);
/* Opens the back end's device. "cuda" is the one whose number is this rank's index on its host.
 * E_UNSUPPORTED: no plug-in or no driver; E_RANGE: no device of that number. */
int tern__device_plug(tern_device *device, const char *name, tern_error *err);
void tern__device_unplug(tern_device *device);
/* Registers a listener. When the device is closed its `closing` is called once, while the device still works;
 * unlisten removes it before that. */
void tern__device_listen(tern_device *device, tern__close_listener *listener);
void tern__device_unlisten(tern_device *device, tern__close_listener *listener);

/* ---- cache.c ---- */

/* At least `bytes` bytes, 64-byte aligned, not zeroed. They come from the cache if it has a block of that
 * size class, so a step whose sizes were seen before calls no allocator. NULL: out of memory, even after the
 * cache was emptied. */
void *tern__device_alloc(tern_device *device, size_t bytes);
void tern__device_free(tern_device *device, void *data);
/* Frees to the system instead of the cache, for sizes that will not be asked for again. */
void tern__device_release(tern_device *device, void *data);
/* Frees all cached blocks to the system. */
void tern__device_cache_empty(tern_device *device);
/* Bytes that the device has allocated from the system for tensors. */
size_t tern__device_bytes(tern_device *device);

/* Returns scratch buffer `which`, at least `bytes` large. The buffer and its contents stay until the next
 * call for the same `which`. A buffer that is too small goes back to the system, since no tensor has its
 * size. NULL: out of memory. */
void *tern__device_scratch(tern_device *device, int which, size_t bytes);
/* Frees all scratch buffers but `kept` (-1: none) to the system, for example those of algorithms that were
 * only tried. */
void tern__device_scratch_free(tern_device *device, int kept);

/* ---- memory.c: memory of any device ---- */

/* Returns the open device whose memory `data` points into; NULL: the host's memory. Any thread. */
tern_device *tern__memory_device(const void *data);
/* Copies `bytes` bytes between any two memories, after the work that their devices have been given. Host
 * memory may be reused when the call returns. Only a copy to the host waits. */
int tern__memory_copy(void *to, const void *from, size_t bytes, tern_error *err);
int tern__memory_zero(void *to, size_t bytes, tern_error *err);
/* Allocates a long-lived buffer from the device; for NULL and devices without memory of their own from the
 * host, zeroed. NULL: E_MEMORY. `free` finds the owner by the address. */
void *tern__memory_new(tern_device *device, size_t bytes, const char *func, tern_error *err);
void tern__memory_free(void *data);

/* ---- worker.c ---- */

/* Starts a thread bound to the cores that `list` names ("0", "0-3", "1,3"). *count: how many cores these are.
 */
struct tern__worker *tern__worker_new(const char *list, int *count, tern_error *err);
void tern__worker_free(struct tern__worker *worker);

/* Runs fn(ctx) on the device's thread and returns at once. Await returns when it is done and must be called
 * before the next start. A device without a thread of its own runs fn in the calling thread. */
void tern__device_start(tern_device *device, void (*fn)(void *ctx), void *ctx);
void tern__device_await(tern_device *device);
/* Ends the calling thread's OpenMP team, whose threads would otherwise spin on the cores for milliseconds
 * after a kernel. The next kernel that needs a team starts a new one. */
void tern__device_rest(const tern_device *device);
/* Called before a kernel on the device's thread: moves its OpenMP team to the device's cores, wherever OpenMP
 * has bound the team. */
void tern__device_gather(const tern_device *device);
/* Whether kernels of this device may run on the calling thread. */
bool tern__device_is_here(const tern_device *device);

#endif
