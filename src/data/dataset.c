/* dataset.c - a dataset of any kind: freeing it, and finding the one behind subsets and augmentations. */
#include "data/dataset.h"

void tern_dataset_free(tern_dataset *dataset)
{
    if (dataset && dataset->free) dataset->free(dataset);
}

const tern_dataset *tern__dataset_origin(const tern_dataset *dataset, int64_t *index)
{
    const tern_dataset *source = dataset;
    while (source) {
        dataset = source;
        source = tern__subset_source(dataset, index);
        if (!source) source = tern__augment_source(dataset);
    }
    return dataset;
}
