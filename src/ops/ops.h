/* ops.h - what the ops share. */
#ifndef TERN_SRC_OPS_H
#define TERN_SRC_OPS_H

#include "autograd/autograd.h"

#include <tern/ops.h>

/* The tensor itself if its layout is plain, else a plain copy with gradient. NULL after a failure. */
tern_tensor *tern__plain(tern_scope *scope, tern_tensor *x);

/* For errors: ` "layer1.0.conv1"` if `weight` is a parameter of a module with a name, else "". Returns text.
 */
#define TERN__LAYER_TEXT 128
const char *tern__layer_text(const tern_tensor *weight, char text[TERN__LAYER_TEXT]);

#endif
