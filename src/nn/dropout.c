#include "nn/nn.h"

typedef struct dropout {
    tern_module base;
    double p;
} dropout;

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    dropout *self = (dropout *)module;
    return module->training ? tern_dropout(scope, x, self->p) : x;
}

tern_module *tern_dropout_new(double p, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!(p >= 0 && p <= 1)) {
        tern__error_set(err, __func__, TERN_E_RANGE, "dropout: expected a probability in [0, 1], got %g", p);
        return NULL;
    }
    dropout *self = tern__module_new(sizeof(*self), "dropout", forward, err);
    if (!self) return NULL;
    self->p = p;
    tern__options_add_real(&self->base, "p", p);
    return &self->base;
}
