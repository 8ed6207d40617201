/* batch_norm.h - a batch norm over the batches of several ranks: what is called between its kernels. Who
 * fills it in (parallel/) knows the ranks; the op only knows that its sums may be parts of larger ones. */
#ifndef TERN_SRC_OPS_BATCH_NORM_H
#define TERN_SRC_OPS_BATCH_NORM_H

#include "ops/ops.h"

/* Each call returns TERN_OK or sets the scope's error; it is made for empty batches, too. Views are f64,
 * without gaps, where the op runs. */
typedef struct tern__batch_norm_sync {
    struct tern_module *module; /* of which this is */
    tern_group *group;          /* borrowed */
    int world, rank;
    /* Forward: rows (world, ..), of which this rank has its own, become those of all ranks. */
    int (*gather)(const struct tern__batch_norm_sync *self, tern_scope *scope, const tern__view *rows);
    /* Backward: this rank's sums become the means over all ranks' values; share () is one over their number.
     */
    int (*average)(const struct tern__batch_norm_sync *self, tern_scope *scope, const tern__view *sums,
                   const tern__view *share);
} tern__batch_norm_sync;

/* tern_batch_norm_act; `sync` NULL, or for training only. */
tern_tensor *tern__batch_norm_act(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                  tern_tensor *running_mean, tern_tensor *running_var, tern_tensor *residual,
                                  const tern_batch_norm_act_opts *opts, const tern__batch_norm_sync *sync);

#endif
