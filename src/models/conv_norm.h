/* conv_norm.h - a convolution, a norm and a ReLU, as three consecutive modules of a torch.nn.Sequential. */
#ifndef TERN_SRC_CONV_NORM_H
#define TERN_SRC_CONV_NORM_H

#include <tern/nn.h>

typedef struct tern__conv_norm {
    tern_module *conv, *norm;
} tern__conv_norm;

/* Gives both modules to `parent`, under the names `index` and `index` + 1. Returns false after a failure. */
bool tern__conv_norm_add(tern__conv_norm *pair, tern_module *parent, int index, tern_module *conv,
                         tern_module *norm, tern_error *err);
/* Returns max(norm(conv(x)), 0). */
tern_tensor *tern__conv_norm_forward(const tern__conv_norm *pair, tern_scope *s, tern_tensor *x);

#endif
