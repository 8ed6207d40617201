/* labels.h - the errors of kernels about labels and indices that are out of range. */
#ifndef TERN_SRC_KERNELS_LABELS_H
#define TERN_SRC_KERNELS_LABELS_H

#include "tensor/view.h"

typedef struct tern__labels {
    const char *func, *op, *what; /* what: NULL for "label"  */
    int64_t classes, of_sample;   /* number of labels per sample */
} tern__labels;

/* Sets E_RANGE with the label and its position, given its index among all labels. */
int tern__label_error(tern_error *err, tern__labels labels, int64_t number, int64_t label);
/* The same for an embedding's index, with its position in the index's shape. */
int tern__index_error(tern_error *err, const tern__view *index, int64_t rows, int64_t number, int64_t row);

#endif
