/* dataset.c - frees a dataset of any kind. */
#include <tern/data.h>

void tern_dataset_free(tern_dataset *dataset)
{
    if (dataset && dataset->free) dataset->free(dataset);
}
