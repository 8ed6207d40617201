/* global_avg_pool.c - the mean over all spatial dimensions. */
#include "nn/nn.h"

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_global_avg_pool(scope, x);
}

tern_module *tern_global_avg_pool_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "global_avg_pool", forward, err);
}
