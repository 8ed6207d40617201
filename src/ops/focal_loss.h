/* focal_loss.h - the two forms of the focal loss: for masks it is an element-wise loss (error_loss.c), for
 * classes a cross entropy (cross_entropy.c). */
#ifndef TERN_SRC_OPS_FOCAL_LOSS_H
#define TERN_SRC_OPS_FOCAL_LOSS_H

#include "ops/ops.h"

#include <tern/loss.h>

tern_tensor *tern__focal_mask_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *mask,
                                   const tern_focal_opts *opts);
tern_tensor *tern__focal_class_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *label,
                                    const tern_focal_opts *opts);

#endif
