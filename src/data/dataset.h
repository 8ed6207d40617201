/* dataset.h - helpers for datasets of any kind. */
#ifndef TERN_SRC_DATA_DATASET_H
#define TERN_SRC_DATA_DATASET_H

#include <tern/data.h>

/* Returns the dtype of what `dataset->get` writes to y. */
static inline tern_dtype tern__target_dtype(const tern_dataset *dataset)
{
    return dataset->target_ndim ? dataset->target_dtype : TERN_I64;
}

/* Returns E_RANGE for a label outside the dataset's classes. */
int tern__label_check(const char *func, const tern_dataset *dataset, const void *y, tern_error *err);

/* Follows subsets and augmentations of a dataset to the one that reads the samples, and sets *index to the
 * sample's index there; -1 if a subset has no such sample. */
const tern_dataset *tern__dataset_origin(const tern_dataset *dataset, int64_t *index);
/* Return the dataset of which this is a subset (and map *index) or an augmentation; NULL if it is none. */
const tern_dataset *tern__subset_source(const tern_dataset *dataset, int64_t *index);
const tern_dataset *tern__augment_source(const tern_dataset *dataset);

#endif
