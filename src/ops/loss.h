/* loss.h - what losses have in common. */
#ifndef TERN_SRC_OPS_LOSS_H
#define TERN_SRC_OPS_LOSS_H

#include "ops/ops.h"

#include <tern/loss.h>

/* Applies a loss's reduction (none, mean, sum) to its elements. */
tern_tensor *tern__loss_reduce(tern_scope *scope, tern_tensor *losses, tern_reduction reduction);

/* What losses of labels share (cross_entropy.c). Each sets the scope's error and returns it, or TERN_OK. */
int tern__entropy_read_opts(tern_scope *scope, const char *func, const char *op,
                            const tern_cross_entropy_opts *user, tern_cross_entropy_opts *opts);
int tern__entropy_check_dtypes(tern_scope *scope, const char *func, const char *op, tern_dtype x,
                               tern_dtype label);
int tern__entropy_check_weight(tern_scope *scope, const char *func, const char *op, int64_t classes,
                               tern_dtype dtype, const tern_tensor *weight);
/* Keeps the sum of the labels' weights as a mean's divisor (tern_loss_normaliser). */
void tern__normaliser_keep(tern_scope *scope, tern__node *node, tern_tensor *weights);

/* The focal loss of classes is a cross entropy (cross_entropy.c), that of masks an element-wise loss
 * (error_loss.c). */
tern_tensor *tern__focal_class_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *label,
                                    const tern_focal_opts *opts);

#endif
