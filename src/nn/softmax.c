/* softmax.c - torch.nn.Softmax and LogSoftmax. */
#include "nn/nn.h"

typedef struct softmax {
    tern_module base;
    int dim;
} softmax;

static tern_tensor *softmax_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_softmax(scope, x, ((softmax *)module)->dim);
}

static tern_tensor *log_softmax_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_log_softmax(scope, x, ((softmax *)module)->dim);
}

static tern_module *softmax_new(const char *kind, tern_forward_fn forward, int dim, tern_error *err)
{
    softmax *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    self->dim = dim;
    tern__options_add(&self->base, "dim", 1, &(int64_t){dim});
    return &self->base;
}

tern_module *tern_softmax_new(int dim, tern_error *err)
{
    return softmax_new("softmax", softmax_forward, dim, err);
}

tern_module *tern_log_softmax_new(int dim, tern_error *err)
{
    return softmax_new("log_softmax", log_softmax_forward, dim, err);
}
