/* batch_norm.h - batch norm modules from inside. */
#ifndef TERN_SRC_NN_BATCH_NORM_H
#define TERN_SRC_NN_BATCH_NORM_H

#include "nn/nn.h"
#include "ops/batch_norm.h"

bool tern__is_batch_norm(const tern_module *module);
/* Batch norms under `module`, itself included, that are synchronised, be it in a group of one: the same on
 * all ranks of a model. */
int tern__batch_norm_sync_count(const tern_module *module);
/* Makes all of them so; each copies `sync`, with itself in it. */
void tern__batch_norm_sync_set(tern_module *module, const tern__batch_norm_sync *sync);

#endif
