/* loader.h - the loader without tensors: it hands out batches as plain buffers, in order, each in a slot. */
#ifndef TERN_SRC_DATA_LOADER_H
#define TERN_SRC_DATA_LOADER_H

#include "data/dataset.h"

/* A batch, borrowed from `slot` until that is released. Both buffers are aligned to 64 bytes. */
typedef struct tern__batch {
    float *x;      /* (count, sample shape), of the dataset's dtype    */
    void *y;       /* (count, target shape)                            */
    int64_t count; /* samples; the last batch of a pass may have fewer */
    int64_t index; /* 0, 1, .. in this pass                            */
    int slot;
} tern__batch;

/* Returns 1: *out is the next batch. 0: the pass has ended; the next call starts the next epoch. Negative,
 * with *err set: the batch could not be fetched (the error names batch and sample, and the pass goes on after
 * it), or all slots are held. */
int tern__loader_next(tern_loader *loader, tern__batch *out, tern_error *err);

/* Returns how many batches may be held at a time; 0 for NULL. */
int tern__loader_room(const tern_loader *loader);
/* Gives a batch back. Any thread may call it, even after the loader was freed: a freed loader's memory lasts
 * until its last batch is released. */
void tern__loader_slot_release(tern_loader *loader, int slot);

/* Points x and y of a held batch at its copy in the device's memory, and starts copying the next batches
 * beside the step. Copies always go to the device of the first call. */
int tern__loader_copy_to_device(tern_loader *loader, tern_device *device, tern__batch *batch,
                                tern_error *err);
/* Returns true once the slots are pinned, because batches are copied to a device. */
bool tern__loader_is_pinned(const tern_loader *loader);

/* The loader's position: the epoch of its pass (between passes, of the next one), and how many samples of
 * this rank's share it has handed out in it. */
typedef struct tern__loader_place {
    int64_t epoch, samples;
} tern__loader_place;
tern__loader_place tern__loader_place_get(const tern_loader *loader);
/* Ends the current pass; the next batch starts at `place`. */
void tern__loader_place_set(tern_loader *loader, tern__loader_place place);
/* Borrowed. */
tern_sampler *tern__loader_sampler(const tern_loader *loader);

/* Borrowed. */
const tern_dataset *tern__loader_dataset(const tern_loader *loader);

#endif
