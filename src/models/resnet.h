/* resnet.h - a residual net as part of another model. */
#ifndef TERN_SRC_RESNET_H
#define TERN_SRC_RESNET_H

#include <tern/models.h>

/* The last stage's results (N, channels, H', W') of a net that tern_resnet_new made, and, unless `inner` is
 * NULL, those of the stage before it. */
tern_tensor *tern__resnet_features(tern_module *resnet, tern_scope *s, tern_tensor *x, tern_tensor **inner);

#endif
