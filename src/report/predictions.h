/* predictions.h - the inputs of metrics: predictions and labels of matching shapes, without gaps. */
#ifndef TERN_SRC_REPORT_PREDICTIONS_H
#define TERN_SRC_REPORT_PREDICTIONS_H

#include "ops/ops.h"

typedef struct tern__operands {
    tern_tensor *x, *label;
    int64_t of_sample; /* labels per sample; set by the functions below */
} tern__operands;

/* Check the operands and make them contiguous. Return TERN_OK, or the scope's error: E_SHAPE, E_DTYPE.
 * - scores: scores (N, C, ..) and labels (N, ..), or (C) and (); `classes` 0: any number;
 * - maps: two maps of the same shape;
 * - mask: scores, and a mask of their shape or, for scores (N, 1, ..), of shape (N, ..). */
int tern__scores_take(tern_scope *scope, const char *func, const char *op, int64_t classes,
                      tern__operands *in);
int tern__maps_take(tern_scope *scope, const char *func, const char *op, tern__operands *in);
int tern__mask_take(tern_scope *scope, const char *func, const char *op, tern__operands *in);

#endif
