/* loader_inner.h - a loader from inside: slots, readers, a carrier, and what its files call of each other. */
#ifndef TERN_SRC_LOADER_INNER_H
#define TERN_SRC_LOADER_INNER_H

#include "base/base.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "device/backend.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum tern__slot_state { TERN__FREE, TERN__FETCHING, TERN__READY, TERN__HELD } tern__slot_state;

/* A block of a device's memory for a batch. */
typedef struct tern__copy {
    char *x;                  /* NULL: there is none yet */
    char *y;                  /* behind it */
    tern__device_event *left; /* the step's stream, where the batch that was there last was given back */
    bool taken;
    int64_t given_back; /* what number of all that were */
} tern__copy;

typedef struct tern__loader_slot {
    tern__slot_state state;
    tern__batch batch;
    tern_error error; /* of fetching it */

    /* Of a loader whose batches are carried to a device. */
    tern__copy *copy;          /* of a batch that is READY or HELD; NULL: none */
    tern__device_event *there; /* the copying stream, behind what was last copied from here */
    int64_t number;            /* of that among all copies; 0: nobody reads what is here  */
} tern__loader_slot;

/* How batches come to a device with memory of its own (carry.c). */
typedef struct tern__carrier {
    tern_device *device;
    tern__copy *copies; /* as many as slots, of which some have memory */
    int64_t sent, given_back;
    bool x_pinned, y_pinned;
} tern__carrier;

/* Who fetches: a worker, or the caller where there are none. */
typedef struct tern__reader {
    tern_loader *loader;
    int number;
    pthread_t thread;
    void *cursor; /* of a stream, by whoever fetches; NULL: not open    */
    int64_t skip; /* samples of it that come before this pass's first   */
    int64_t next; /* batch of a stream that it fetches next             */
    bool ended;   /* of a stream: there is no more of it in this pass   */
} tern__reader;

struct tern_loader {
    tern_dataset *dataset;
    bool stream; /* the dataset is one: the sampler only counts epochs */
    tern_sampler *sampler;
    tern_sampler *own_sampler; /* NULL: the caller's */
    tern_loader_opts opts;
    int64_t batches;       /* in a pass that begins at a batch's edge */
    int64_t sample_floats; /* in a sample */
    size_t target_bytes;   /* of a sample */
    int64_t *indices;      /* of this pass, in order */
    int64_t epoch;         /* of this pass */
    bool running;          /* in a pass */
    int64_t start;         /* samples that the next pass leaves out: it was begun before a resume */
    int64_t shift;         /* samples before batch 0 of this pass; < batch_size */
    int64_t pass_batches;  /* number of the batch at which this pass ends       */
    int64_t next_taken;    /* batch number that the caller gets next */
    int64_t waited_ns;     /* for samples, by the caller */

    pthread_mutex_t lock;
    pthread_cond_t claimable; /* a slot or a batch number became free, or stopping */
    pthread_cond_t ready;     /* a slot became READY, or a reader ended */
    int64_t next_claimed;     /* batch number that is fetched next; `pass_batches`: none */
    bool flowing;             /* a stream is being read */
    atomic_bool stopping;
    bool abandoned; /* freed while batches are held: the last one given back destroys it */

    tern__loader_slot *slots;
    int slot_count;
    char *x, *y;             /* of all slots    */
    size_t x_step, y_step;   /* of a slot       */
    size_t x_bytes, y_bytes; /* in whole pages  */
    tern__carrier *carrier;  /* NULL: batches are used where they are */
    tern__reader *readers;
    int reader_count, worker_count; /* workers: readers whose threads run */
};

/* fetch.c: fills a claimed slot, without the lock; false if the reader's part of a stream is at its end. */
bool tern__loader_fetch(tern__reader *reader, tern__loader_slot *slot);
void tern__reader_close(tern__reader *reader);

/* carry.c */
/* Waits until nobody reads the memory of a claimed slot. */
int tern__slot_await(const tern_loader *loader, tern__loader_slot *slot, tern_error *err);
/* Its batch is used no more. Locked. */
void tern__slot_leave(const tern_loader *loader, tern__loader_slot *slot);
/* Waits for copies that are under way. */
void tern__carrier_free(tern_loader *loader);

/* loader.c */
void *tern__loader_work(void *reader);
tern__loader_slot *tern__loader_slot_in(const tern_loader *loader, tern__slot_state state);
/* The slot of batch `index`, READY; NULL if it is not fetched yet. Locked. */
tern__loader_slot *tern__loader_slot_of(const tern_loader *loader, int64_t index);
/* Is it one of a stream's part that was at its end before? Locked. */
bool tern__loader_is_skipped(const tern_loader *loader, int64_t index);
/* Batches in that many samples. */
int64_t tern__loader_batches(const tern_loader *loader, int64_t samples);
void tern__loader_destroy(tern_loader *loader);

#endif
