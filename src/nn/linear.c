/* linear.c - torch.nn.Linear, and transformers' Conv1D, whose weight is (in, out): a weight, perhaps a bias,
 * and one op; perhaps a low-rank adapter (tern/lora.h). */
#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"
#include "ops/ops.h"

/* Computes y + scale B A dropout(x), which replaces y. x has at least two dimensions. An observer must see
 * the calls of both matrices. */
static tern_tensor *linear_adapt(const tern__linear *self, tern_scope *s, tern_tensor *x, tern_tensor *y)
{
    const tern__lora *lora = &self->lora;
    if (!y) return NULL;
    /* 16-bit weights have adapters of f32. */
    if (!s->autocast.policy) x = tern_cast(s, x, lora->a->weight->view.dtype);
    if (self->base.training && lora->dropout > 0) x = tern_dropout(s, x, lora->dropout);
    x = tern_affine(s, tern_forward(&lora->a->base, s, x), lora->scale, 0);
    if (!s->observer) return tern__linear_add(s, y, x, lora->b->weight);
    return tern_add(s, y, tern_cast(s, tern_forward(&lora->b->base, s, x), y->view.dtype));
}

static tern_tensor *linear_call(tern_module *module, tern_scope *s, tern_tensor *x, bool relu)
{
    const tern__linear *self = (const tern__linear *)module;
    bool is_adapted = self->lora.a && !self->lora.is_merged, fuses = relu && !is_adapted && !self->is_turned;
    bool is_row = is_adapted && x && x->view.ndim == 1;
    if (is_row) x = tern_reshape(s, x, 2, (int64_t[]){1, -1});
    tern_tensor *y = self->is_turned ? tern__linear_turned(s, x, self->weight, self->bias)
                     : fuses         ? tern_linear_act(s, x, self->weight, self->bias, true)
                                     : tern_linear(s, x, self->weight, self->bias);
    if (is_adapted) y = linear_adapt(self, s, x, y);
    if (is_row) y = tern_reshape(s, y, 1, (int64_t[]){-1});
    return relu && !fuses ? tern_relu(s, y) : y;
}

static tern_tensor *linear_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return linear_call(module, scope, x, false);
}

static tern_tensor *with_relu(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return linear_call(module, scope, x, true);
}

tern__linear *tern__linear_of(const tern_module *module)
{
    bool is_one = module && module->tree && module->tree->forward == linear_forward;
    return is_one ? (tern__linear *)module : NULL;
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

/* ---- making ---- */

tern_linear_opts tern_linear_defaults(void)
{
    return (tern_linear_opts){.size = sizeof(tern_linear_opts), .bias = true};
}

/* Makes a linear of zeros; with `is_turned` its weight is (in, out). */
static tern_module *linear_new(int64_t in, int64_t out, bool bias, bool is_turned, const char *func,
                               tern_error *err)
{
    const char *kind = is_turned ? "linear_in_out" : "linear";
    if (in < 1 || out < 1) {
        tern__error_set(err, func, TERN_E_RANGE,
                        "linear: expected at least 1 feature in and out, got %lld and %lld", (long long)in,
                        (long long)out);
        return NULL;
    }
    tern__linear *self = tern__module_new(sizeof(*self), kind, linear_forward, err);
    if (!self) return NULL;
    self->base.tree->with_relu = with_relu;
    self->is_turned = is_turned;
    int64_t shape[] = {is_turned ? in : out, is_turned ? out : in};
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, 2, shape, err);
    if (bias) self->bias = tern_parameter_add(&self->base, "bias", TERN_F32, 1, &out, err);
    if (self->weight && (self->bias || !bias)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern__linear_new_zeros(int64_t in, int64_t out, bool bias, const char *func, tern_error *err)
{
    return linear_new(in, out, bias, false, func, err);
}

tern_module *tern__linear_new_turned(int64_t in, int64_t out, const char *func, tern_error *err)
{
    return linear_new(in, out, true, true, func, err);
}

tern_module *tern_linear_new(int64_t in, int64_t out, const tern_linear_opts *opts, tern_rng *rng,
                             tern_error *err)
{
    tern_linear_opts o = tern_linear_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    tern_module *module = tern__linear_new_zeros(in, out, o.bias, __func__, err);
    tern__linear *self = (tern__linear *)module;
    if (!module || !tern__init_default(self->weight, self->bias, rng, err)) return module;
    tern_module_free(module);
    return NULL;
}
