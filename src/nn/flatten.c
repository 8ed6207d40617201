/* flatten.c - torch.nn.Flatten. */
#include "nn/nn.h"

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_flatten(scope, x, 1);
}

tern_module *tern_flatten_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "flatten", forward, err);
}
