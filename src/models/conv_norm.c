/* conv_norm.c - a convolution, a norm and a ReLU. */
#include "models/conv_norm.h"
#include "nn/batch_norm.h"

#include <stdio.h>

bool tern__conv_norm_add(tern__conv_norm *pair, tern_module *parent, int index, tern_module *conv,
                         tern_module *norm, tern_error *err)
{
    char name[16];
    snprintf(name, sizeof(name), "%d", index);
    pair->conv = tern_module_add(parent, name, conv, err);
    snprintf(name, sizeof(name), "%d", index + 1);
    pair->norm = tern_module_add(parent, name, norm, err);
    return pair->conv && pair->norm;
}

tern_tensor *tern__conv_norm_forward(const tern__conv_norm *pair, tern_scope *s, tern_tensor *x)
{
    x = tern_forward(pair->conv, s, x);
    if (tern__is_batch_norm(pair->norm)) return tern_batch_norm_act_forward(pair->norm, s, x, NULL, true);
    return tern_relu(s, tern_forward(pair->norm, s, x));
}
