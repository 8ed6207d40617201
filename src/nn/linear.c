/* linear.c - torch.nn.Linear: a weight, perhaps a bias, and one op. */
#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"

typedef struct linear {
    tern_module base;
    tern_tensor *weight, *bias;
} linear;

static tern_tensor *linear_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    linear *self = (linear *)module;
    return tern_linear(scope, x, self->weight, self->bias);
}

static tern_tensor *with_relu(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    linear *self = (linear *)module;
    return tern_linear_act(scope, x, self->weight, self->bias, true);
}

tern_tensor *tern_linear_act_forward(tern_module *module, tern_scope *scope, tern_tensor *x, bool relu)
{
    if (!module || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (module->forward == linear_forward)
        return tern__forward_by(module, scope, x, relu ? with_relu : linear_forward);
    tern__scope_fail(scope, __func__, TERN_E_INVALID, "expected a linear with its own forward, got %s",
                     module->kind);
    return NULL;
}

tern_linear_opts tern_linear_defaults(void)
{
    return (tern_linear_opts){.size = sizeof(tern_linear_opts), .bias = true};
}

tern_module *tern__linear_new_zeros(int64_t in, int64_t out, bool bias, const char *func, tern_error *err)
{
    if (in < 1 || out < 1) {
        tern__error_set(err, func, TERN_E_RANGE,
                        "linear: expected at least 1 feature in and out, got %lld and %lld", (long long)in,
                        (long long)out);
        return NULL;
    }
    linear *self = tern__module_new(sizeof(*self), "linear", linear_forward, err);
    if (!self) return NULL;
    self->base.tree->with_relu = with_relu;
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, 2, (int64_t[]){out, in}, err);
    if (bias) self->bias = tern_parameter_add(&self->base, "bias", TERN_F32, 1, &out, err);
    if (self->weight && (self->bias || !bias)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_linear_new(int64_t in, int64_t out, const tern_linear_opts *opts, tern_rng *rng,
                             tern_error *err)
{
    tern_linear_opts o = tern_linear_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    tern_module *module = tern__linear_new_zeros(in, out, o.bias, __func__, err);
    linear *self = (linear *)module;
    if (!module || !tern__init_default(self->weight, self->bias, rng, err)) return module;
    tern_module_free(module);
    return NULL;
}
