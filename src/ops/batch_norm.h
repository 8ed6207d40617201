/* batch_norm.h - callbacks between the kernels of a batch norm over the batches of several ranks. parallel/
 * fills them in and knows the ranks; the op only knows that its sums may be parts of larger ones. */
#ifndef TERN_SRC_OPS_BATCH_NORM_H
#define TERN_SRC_OPS_BATCH_NORM_H

#include "ops/ops.h"

/* Each function returns TERN_OK or sets the scope's error. They are called for empty batches, too. Views are
 * f64, dense, on the op's device. */
typedef struct tern__batch_norm_sync {
    struct tern_module *module; /* the batch norm   */
    tern_group *group;          /* borrowed */
    int world, rank;
    /* Forward: fills in the rows of all ranks in (world, ..), which holds this rank's row. */
    int (*gather)(const struct tern__batch_norm_sync *self, tern_scope *scope, const tern__view *rows);
    /* Backward: turns this rank's sums into means over the values of all ranks; `count`, a scalar, is
     * their number. */
    int (*average)(const struct tern__batch_norm_sync *self, tern_scope *scope, const tern__view *sums,
                   const tern__view *count);
} tern__batch_norm_sync;

/* The tensors of tern_batch_norm_act; all but x may be NULL. */
typedef struct tern__batch_norm_tensors {
    tern_tensor *x, *running_mean, *running_var, *weight, *bias, *residual;
} tern__batch_norm_tensors;

/* tern_batch_norm_act over the ranks of `sync`, which is for training only; NULL: this rank alone. */
tern_tensor *tern__batch_norm_act(tern_scope *scope, const tern__batch_norm_tensors *tensors,
                                  const tern_batch_norm_act_opts *opts, const tern__batch_norm_sync *sync);

#endif
