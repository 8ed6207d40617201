/* batch_norm.h - batch norm modules from inside. */
#ifndef TERN_SRC_NN_BATCH_NORM_H
#define TERN_SRC_NN_BATCH_NORM_H

#include "nn/nn.h"
#include "ops/batch_norm.h"

bool tern__is_batch_norm(const tern_module *module);
/* Returns the number of synchronised batch norms in the tree of `module`. One that is synchronised in a group
 * of one rank counts, too, so the number is the same on all ranks of a model. */
int tern__batch_norm_sync_count(const tern_module *module);
/* Synchronises all batch norms in the tree of `module`. Each gets a copy of `sync` with its own module. */
void tern__batch_norm_sync_set(tern_module *module, const tern__batch_norm_sync *sync);

#endif
