/* loader.h - the loader on plain buffers: batches in the order of their numbers, each in a slot. */
#ifndef TERN_SRC_LOADER_H
#define TERN_SRC_LOADER_H

#include <tern/data.h>

/* Borrowed from `slot` until that is released. Both buffers start at a multiple of 64 bytes. */
typedef struct tern__batch {
    float *x;      /* (count, sample shape)                                       */
    void *y;       /* (count, target shape)                                       */
    int64_t count; /* samples; the last batch of a pass may have fewer than others */
    int64_t index; /* 0, 1, .. in this pass                                       */
    int slot;
} tern__batch;

/* 1: *out is the next batch. 0: the pass is over, the next call starts the next epoch. Negative, with *err
 * filled: the batch could not be fetched (the error names batch and sample; the pass goes on after it) or all
 * slots are held. */
int tern__loader_next(tern_loader *loader, tern__batch *out, tern_error *err);

/* How many batches may be held at a time; 0 if it is NULL. */
int tern__loader_room(const tern_loader *loader);
/* Gives a batch back, from any thread, also after the loader was freed: its memory lasts until then. */
void tern__loader_slot_release(tern_loader *loader, int slot);

/* Makes x and y of a batch that is held the addresses of its copy in the memory of the device for which the
 * loader was asked first, and has the next batches copied there beside the step. */
int tern__loader_carry(tern_loader *loader, tern_device *device, tern__batch *batch, tern_error *err);
/* Are its slots pinned, since it was? */
bool tern__loader_is_pinned(const tern_loader *loader);

/* Where the loader is: the epoch of its pass, or the next one's, and how many samples of this rank's share it
 * has handed out in it. */
typedef struct tern__loader_place {
    int64_t epoch, samples;
} tern__loader_place;
tern__loader_place tern__loader_place_get(const tern_loader *loader);
/* The next batch begins there; the pass under way is given up. */
void tern__loader_place_set(tern_loader *loader, tern__loader_place place);
/* Borrowed. */
tern_sampler *tern__loader_sampler(const tern_loader *loader);

/* Of what `dataset->get` writes to y. */
static inline tern_dtype tern__target_dtype(const tern_dataset *dataset)
{
    return dataset->target_ndim ? dataset->target_dtype : TERN_I64;
}

/* E_RANGE for a label outside of the dataset's classes. */
int tern__label_check(const char *func, const tern_dataset *dataset, const void *y, tern_error *err);

/* For the shape of a sample. Borrowed. */
const tern_dataset *tern__loader_dataset(const tern_loader *loader);

#endif
