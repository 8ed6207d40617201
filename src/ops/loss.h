/* loss.h - what losses have in common. */
#ifndef TERN_SRC_OPS_LOSS_H
#define TERN_SRC_OPS_LOSS_H

#include "ops/ops.h"

#include <tern/loss.h>

/* Applies a loss's reduction (none, mean, sum) to its elements. */
tern_tensor *tern__loss_reduce(tern_scope *scope, tern_tensor *losses, tern_reduction reduction);

/* The focal loss of classes is a cross entropy (cross_entropy.c), that of masks an element-wise loss
 * (error_loss.c). */
tern_tensor *tern__focal_class_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *label,
                                    const tern_focal_opts *opts);

#endif
