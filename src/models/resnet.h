/* resnet.h - a residual net as part of another model. */
#ifndef TERN_SRC_RESNET_H
#define TERN_SRC_RESNET_H

#include <tern/models.h>

/* Returns the last stage's output (N, channels, H', W') of a net made by tern_resnet_new. Unless `inner` is
 * NULL, sets *inner to the output of the stage before it. */
tern_tensor *tern__resnet_features(tern_module *resnet, tern_scope *s, tern_tensor *x, tern_tensor **inner);

#endif
