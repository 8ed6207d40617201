/* labels.h - what kernels say of a label that is no class. */
#ifndef TERN_SRC_KERNELS_LABELS_H
#define TERN_SRC_KERNELS_LABELS_H

#include "tensor/view.h"

typedef struct tern__labels {
    const char *func, *op, *what; /* what: NULL for "label"  */
    int64_t classes, of_sample;   /* labels of one sample    */
} tern__labels;

/* E_RANGE that names the label and its place, by its number among all. */
int tern__label_error(tern_error *err, tern__labels labels, int64_t number, int64_t label);
/* The same of an embedding's index, by its shape. */
int tern__index_error(tern_error *err, const tern__view *index, int64_t rows, int64_t number, int64_t row);

#endif
