/* loader_inner.h - the loader's internals: slots, readers, copies to a device, and the functions that its
 * files share. */
#ifndef TERN_SRC_DATA_LOADER_INNER_H
#define TERN_SRC_DATA_LOADER_INNER_H

#include "base/base.h"
#include "data/dataset_call.h"
#include "data/loader/loader.h"
#include "data/loader/sampler.h"
#include "device/backend.h"

#include <pthread.h>
#include <sys/types.h>
#include <stdatomic.h>

typedef enum tern__slot_state { TERN__FREE, TERN__FETCHING, TERN__READY, TERN__HELD } tern__slot_state;

/* A block of a device's memory that holds one batch. */
typedef struct tern__batch_copy {
    char *x;                      /* NULL: not allocated yet */
    char *y;                      /* after x, in the same allocation */
    tern__device_event *released; /* set on the step's stream when its last batch was given back */
    bool in_use;
    int64_t release_number; /* blocks are reused in this order */
} tern__batch_copy;

typedef struct tern__loader_slot {
    tern__slot_state state;
    tern__batch batch;
    tern_error error; /* from fetching the batch */

    /* Used where batches are copied to a device. */
    tern__batch_copy *copy;     /* of a READY or HELD batch; NULL: not copied */
    tern__device_event *copied; /* set on the copy stream after the last copy from this slot */
    int64_t copy_number;        /* of that copy; 0: no copy reads this slot                  */
} tern__loader_slot;

/* Copies batches to a device with memory of its own (device_copy.c). */
typedef struct tern__device_copier {
    tern_device *device;
    tern__batch_copy *copies; /* (slot_count); some have no memory yet */
    int64_t sent, released_count;
    bool x_pinned, y_pinned;
} tern__device_copier;

/* Fetches batches: a worker or, without workers, the caller. */
typedef struct tern__reader {
    tern_loader *loader;
    int number;
    pthread_t thread;
    tern__dataset_call call;

    /* For a streamed dataset. */
    void *cursor; /* NULL: not open                                            */
    int64_t skip; /* samples to drop first: a resumed pass has used them       */
    int64_t next; /* number of the batch to fetch next                         */
    bool ended;   /* its part of the stream has no more samples in this pass   */
} tern__reader;

struct tern_loader {
    tern_dataset *dataset;
    bool stream; /* the dataset is a stream; the sampler only counts epochs */
    tern_sampler *sampler;
    tern_sampler *own_sampler; /* NULL: the sampler is the caller's */
    tern_loader_opts opts;
    int64_t batches;           /* in a pass that starts at a batch boundary */
    int64_t sample_values;     /* of x, per sample */
    size_t value_bytes;        /* of one of them   */
    size_t target_bytes;       /* per sample       */
    int64_t *indices;          /* of this pass, in order */
    int64_t epoch;             /* of this pass */
    bool running;              /* a pass has started and not ended */
    int64_t start;             /* samples that the next pass skips, because it resumes */
    int64_t shift;             /* samples before batch 0 of this pass; < batch_size */
    int64_t pass_batches;      /* one past the number of this pass's last batch */
    int64_t next_taken;        /* batch number that the caller gets next */
    int64_t waited_ns;         /* time the caller has waited for batches */
    double patience_s;         /* without a batch for so long, a warning names what the readers wait for */
    int64_t idle_since;        /* the caller has waited since then without a batch; 0: it does not wait */
    tern__dataset_watch watch; /* names what the caller waits for when it fetches itself */

    pthread_mutex_t lock;
    pthread_cond_t claimable; /* a slot or a batch number became free, or stopping */
    pthread_cond_t ready;     /* a slot became READY, or a reader ended */
    int64_t next_claimed;     /* batch number to fetch next; `pass_batches`: none left */
    bool flowing;             /* readers may read the stream */
    atomic_bool stopping;
    pid_t pid;      /* of the process that has the worker threads */
    bool abandoned; /* freed while batches were held: releasing the last one destroys the loader */

    tern__loader_slot *slots;
    int slot_count;
    char *x, *y;                 /* of all slots    */
    size_t x_step, y_step;       /* of a slot       */
    size_t x_bytes, y_bytes;     /* in whole pages  */
    tern__device_copier *copier; /* NULL: batches are used in the host's memory */
    tern__reader *readers;
    int reader_count, worker_count; /* workers are readers with a running thread */
};

/* ---- slots: all of these need the lock ---- */

/* Returns a slot in that state, or NULL. */
tern__loader_slot *tern__loader_slot_in(const tern_loader *loader, tern__slot_state state);
/* Returns the READY slot of batch `index`, or NULL if it has not been fetched yet. */
tern__loader_slot *tern__loader_slot_of(const tern_loader *loader, int64_t index);
/* Returns true if batch `index` belongs to a part of the stream that has already ended. */
bool tern__loader_is_skipped(const tern_loader *loader, int64_t index);

/* ---- fetch.c ---- */

/* Fills a claimed slot, without the lock. Returns false if the reader's part of a stream has ended. */
bool tern__loader_fetch(tern__reader *reader, tern__loader_slot *slot);
void tern__reader_close(tern__reader *reader);

/* ---- device_copy.c ---- */

/* Waits until the last copy from a claimed slot has completed. */
int tern__slot_await_copy(const tern_loader *loader, tern__loader_slot *slot, tern_error *err);
/* Gives back the device's copy of the slot's batch. Needs the lock. */
void tern__slot_release_copy(const tern_loader *loader, tern__loader_slot *slot);
/* Waits for pending copies first. */
void tern__device_copier_free(tern_loader *loader);

/* ---- loader.c ---- */

/* The main function of a worker's thread. */
void *tern__loader_work(void *reader);
/* Waits until a batch is ready, a worker's part of a stream has ended, or the clock (tern__now_ns) has
 * reached `until`. Locked. */
void tern__loader_await_worker(tern_loader *loader, int64_t until);
/* Returns the number of batches in that many samples. */
int64_t tern__loader_batches(const tern_loader *loader, int64_t samples);
void tern__loader_destroy(tern_loader *loader);
void tern__loader_memory_free(tern_loader *loader);
/* Returns true in a forked child. It has none of the workers, its copy of the lock may be locked for ever,
 * and open files and the device are its parent's: a child only frees memory. */
bool tern__loader_is_forked(const tern_loader *loader);

#endif
