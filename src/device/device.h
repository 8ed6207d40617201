/* device.h - bytes and threads: the block cache, the thread count, and opaque slots in which kernels keep
 * their caches. */
#ifndef TERN_SRC_DEVICE_H
#define TERN_SRC_DEVICE_H

#include "base/base.h"

#include <tern/device.h>

#include <pthread.h>

#define TERN__DEVICE_BINS 192
#define TERN__DEVICE_NAME 64

typedef enum tern__device_slot { TERN__SLOT_DNNL, TERN__SLOT_CONV, TERN__SLOT_COUNT } tern__device_slot;

/* A kernel may hold one buffer of each kind at once: the vendor library's own, one for the positions that a
 * strided convolution sees, and one for each operand that it copies into another format. */
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

/* Who keeps something of a device hears that it is closed. */
typedef struct tern__guest {
    struct tern__guest *next;
    void (*leave)(struct tern__guest *self);
} tern__guest;

struct tern_device {
    char name[TERN__DEVICE_NAME];
    const struct tern__device_backend *backend; /* of a device with memory of its own; NULL: the host's */
    int index;                                  /* its number there          */
    void *state;                                /* the back end's            */
    tern_device *host;                          /* that computes for it what it has no kernel for */
    tern__memory memory;                        /* where that lies           */
    bool reference;                             /* plain kernels only                  */
    int threads;
    tern_device_conv_opts conv;
    size_t workspace;            /* of convolutions, where `conv` is not told otherwise               */
    bool follows;                /* measures no convolutions: another rank or replica does, and tells */
    bool graphs;                 /* back ends only: launches what repeats as graphs */
    struct tern__notes *notes;   /* of a back end's choices (device/notes.h); NULL: it has none */
    const char *algorithm;       /* of the convolution that ran last, or NULL: none did since          */
    struct tern__worker *worker; /* the thread of a group of cores, else NULL  */
    size_t bytes;                /* of all blocks, free or not                 */
    pthread_mutex_t lock;        /* over bins and bytes                        */
    struct tern__block *bins[TERN__DEVICE_BINS]; /* free blocks by size class, last freed first */
    struct {
        void *data;
        void (*free)(void *data);
    } slots[TERN__SLOT_COUNT]; /* filled and emptied by the kernels that own them */
    struct {
        void *data;
        size_t bytes;
    } scratch[TERN__SCRATCH_COUNT];
    struct tern__kernel_observer *observer; /* NULL: nobody (kernels/kernel.h) */
    tern__guest *guests;                    /* of a back end's device          */
    const struct tern__mirrors *mirrors;    /* that are lent, or NULL (device/mirror.h) */
};

/* The end of a step (tern__device_backend.flush). */
int tern__device_flush(tern_device *device, tern_error *err);

/* ---- quota.c ---- */

/* Whole cores whose time the cgroups leave this process, at least one; INT_MAX: as many as there are. */
int tern__device_quota(void);

/* ---- share.c ---- */

/* Cores that this process may use (base/cores.h), cut down to the cgroup's quota. */
int tern__device_cores(void);
/* This rank's share of them, at least one: `count` cores from number `first` on. Others that have some of
 * these cores are those that a group has met, and before that all that the launcher has started on this host,
 * unless it has bound them. */
int tern__device_share(int *first, int *count, tern_error *err);
/* What a group has found when all had met: this is rank `rank` of the `ranks` that share its cores, among
 * `on_host` that share a quota. */
void tern__device_share_among(int rank, int ranks, int on_host);

/* ---- device.c ---- */

/* What /proc/cpuinfo says of the first processor behind the first key that begins with `key`, as much of it
 * as there is room for. False: nothing. */
bool tern__device_cpuinfo(const char *key, char *value, size_t size);
/* The first processor's name; where Linux has none, as on ARM, the numbers of its maker and its design. */
bool tern__device_cpu_name(char *name, size_t size);

/* ---- backend.c: devices with memory of their own ---- */

/* Is `name` one that a back end has ("cuda", "cuda:1")? */
bool tern__device_is_plugged(const char *name);
/* Opens it; "cuda" is the one whose number is this rank's on its host. E_UNSUPPORTED: no plug-in, no driver;
 * E_RANGE: there are not so many. */
int tern__device_plug(tern_device *device, const char *name, tern_error *err);
void tern__device_unplug(tern_device *device);
/* `leave` is called, once, while the device is still what it was, unless the guest has left by itself. */
void tern__device_join(tern_device *device, tern__guest *guest);
void tern__device_part(tern_device *device, tern__guest *guest);

/* ---- memory.c: bytes, wherever they are ---- */

/* The open device in whose own memory `data` lies; NULL: the host's. Any thread. */
tern_device *tern__memory_device(const void *data);
/* Copies `bytes` bytes between any two memories, in the order of what their devices were asked for; the
 * host's may be used when it returns. Waits only for copies to the host. */
int tern__memory_copy(void *to, const void *from, size_t bytes, tern_error *err);
int tern__memory_zero(void *to, size_t bytes, tern_error *err);
/* Memory of its own for what lives long: of the device, or for NULL and devices without any the host's,
 * zeroed then. NULL: E_MEMORY. `free` gives it back to whom it is of. */
void *tern__memory_new(tern_device *device, size_t bytes, const char *func, tern_error *err);
void tern__memory_free(void *data);

/* Bytes that the device has taken from the system for tensors. */
size_t tern__device_bytes(tern_device *device);

/* ---- worker.c ---- */

/* A thread bound to the cores that `list` names ("0", "0-3", "1,3"); *count is how many. */
struct tern__worker *tern__worker_new(const char *list, int *count, tern_error *err);
void tern__worker_free(struct tern__worker *worker);

/* Runs fn(ctx) on the device's thread and returns at once; await returns when it is done, and comes before
 * the next start. A device without a thread of its own runs it right here. */
void tern__device_start(tern_device *device, void (*fn)(void *ctx), void *ctx);
void tern__device_await(tern_device *device);
/* Lets go of the cores on which kernels of the calling thread have run: OpenMP's threads would spin there for
 * milliseconds after a kernel, in the way of others. They are made anew by the next kernel that wants them.
 */
void tern__device_rest(const tern_device *device);
/* Before a kernel on the device's thread: its team is on the device's cores, wherever OpenMP binds threads.
 */
void tern__device_gather(const tern_device *device);
/* Whether kernels of this device may run on the calling thread. */
bool tern__device_is_here(const tern_device *device);

/* At least `bytes` bytes, 64-byte aligned, not zeroed; from the cache if a block of its class is there, so a
 * step whose sizes were seen before calls no allocator. NULL: out of memory, after the cache was emptied. */
void *tern__device_alloc(tern_device *device, size_t bytes);
void tern__device_free(tern_device *device, void *data);
/* Frees to the system, not to the cache: what is of a size that will not be asked for again. */
void tern__device_release(tern_device *device, void *data);

/* Scratch buffer `which`, at least `bytes` large; it keeps its size, and its contents until the next call for
 * the same one. One that it has outgrown goes back to the system: no tensor is of its size. NULL: out of
 * memory. */
void *tern__device_scratch(tern_device *device, int which, size_t bytes);
/* Gives all of them back to the system: who has tried what is not used makes room for what is. */
void tern__device_scratch_free(tern_device *device);

#endif
