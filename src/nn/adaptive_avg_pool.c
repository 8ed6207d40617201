/* adaptive_avg_pool.c - torch.nn.AdaptiveAvgPool1d to AdaptiveAvgPool3d. */
#include "nn/nn.h"

typedef struct adaptive_avg_pool {
    tern_module base;
    int64_t size[3]; /* [depth,] height, width */
} adaptive_avg_pool;

static tern_tensor *forward2d(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const int64_t *size = ((adaptive_avg_pool *)module)->size;
    return tern_adaptive_avg_pool2d(scope, x, size[0], size[1]);
}

static tern_tensor *forward3d(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const int64_t *size = ((adaptive_avg_pool *)module)->size;
    return tern_adaptive_avg_pool3d(scope, x, size[0], size[1], size[2]);
}

static tern_module *new_adaptive_avg_pool(const char *kind, tern_forward_fn forward, int axes,
                                          const int64_t *size, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    adaptive_avg_pool *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    for (int d = 0; d < axes; d++) self->size[d] = size[d];
    tern__options_add(&self->base, "to", axes, size);
    return &self->base;
}

tern_module *tern_adaptive_avg_pool2d_new(int64_t height, int64_t width, tern_error *err)
{
    return new_adaptive_avg_pool("adaptive_avg_pool2d", forward2d, 2, (int64_t[]){height, width}, err);
}

tern_module *tern_adaptive_avg_pool3d_new(int64_t depth, int64_t height, int64_t width, tern_error *err)
{
    return new_adaptive_avg_pool("adaptive_avg_pool3d", forward3d, 3, (int64_t[]){depth, height, width}, err);
}
