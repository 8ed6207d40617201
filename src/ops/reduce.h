/* reduce.h - reductions that other ops are made of. */
#ifndef TERN_SRC_OPS_REDUCE_H
#define TERN_SRC_OPS_REDUCE_H

#include "ops/ops.h"

#include <tern/loss.h>

/* Applies a loss's reduction (none, mean, sum) to its elements. */
tern_tensor *tern__loss_reduce(tern_scope *scope, tern_tensor *losses, tern_reduction reduction);

#endif
