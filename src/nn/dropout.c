/* dropout.c - torch.nn.Dropout, and Dropout1d to Dropout3d for whole channels. */
#include "nn/nn.h"

typedef tern_tensor *(*dropout_fn)(tern_scope *scope, tern_tensor *x, double p);

typedef struct dropout {
    tern_module base;
    dropout_fn op;
    double p;
} dropout;

static tern_tensor *dropout_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    dropout *self = (dropout *)module;
    return module->training ? self->op(scope, x, self->p) : x;
}

static tern_module *new_dropout(const char *func, const char *kind, dropout_fn op, double p, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!(p >= 0 && p <= 1)) {
        tern__error_set(err, func, TERN_E_RANGE, "dropout: expected a probability in [0, 1], got %g", p);
        return NULL;
    }
    dropout *self = tern__module_new(sizeof(*self), kind, dropout_forward, err);
    if (!self) return NULL;
    self->op = op;
    self->p = p;
    tern__options_add_real(&self->base, "p", p);
    return &self->base;
}

tern_module *tern_dropout_new(double p, tern_error *err)
{
    return new_dropout(__func__, "dropout", tern_dropout, p, err);
}

tern_module *tern_dropout2d_new(double p, tern_error *err)
{
    return new_dropout(__func__, "dropout2d", tern_dropout2d, p, err);
}

tern_module *tern_dropout3d_new(double p, tern_error *err)
{
    return new_dropout(__func__, "dropout3d", tern_dropout3d, p, err);
}
