/* predictions.h - what metrics take: predictions and labels that fit each other, without gaps. */
#ifndef TERN_SRC_REPORT_PREDICTIONS_H
#define TERN_SRC_REPORT_PREDICTIONS_H

#include "ops/ops.h"

typedef struct tern__operands {
    tern_tensor *x, *label;
    int64_t of_sample; /* labels of one sample; set by the functions below */
} tern__operands;

/* Scores (N, C, ..) and labels (N, ..), or (C) and (); maps of one shape; scores and a mask of their shape,
 * or of it without a dimension 1 of one channel. classes 0: any. TERN_OK, or the scope's error: E_SHAPE,
 * E_DTYPE. */
int tern__scores_take(tern_scope *scope, const char *func, const char *op, int64_t classes,
                      tern__operands *in);
int tern__maps_take(tern_scope *scope, const char *func, const char *op, tern__operands *in);
int tern__mask_take(tern_scope *scope, const char *func, const char *op, tern__operands *in);

#endif
