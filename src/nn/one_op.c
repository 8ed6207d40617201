/* one_op.c - layers without parameters that consist of one op. */
#include "base/opts.h"
#include "nn/nn.h"

static tern_tensor *relu_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_relu(scope, x);
}

tern_module *tern_relu_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "relu", relu_forward, err);
}

static tern_tensor *silu_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_silu(scope, x);
}

tern_module *tern_silu_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "silu", silu_forward, err);
}

static tern_tensor *sigmoid_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_sigmoid(scope, x);
}

tern_module *tern_sigmoid_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "sigmoid", sigmoid_forward, err);
}

static tern_tensor *tanh_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_tanh(scope, x);
}

tern_module *tern_tanh_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "tanh", tanh_forward, err);
}

static tern_tensor *global_avg_pool_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_global_avg_pool(scope, x);
}

tern_module *tern_global_avg_pool_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "global_avg_pool", global_avg_pool_forward, err);
}

static tern_tensor *flatten_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    return tern_flatten(scope, x, 1);
}

tern_module *tern_flatten_new(tern_error *err)
{
    return tern__module_new(sizeof(tern_module), "flatten", flatten_forward, err);
}

bool tern__is_relu(const tern_module *module)
{
    return module->forward == relu_forward;
}

typedef struct gelu {
    tern_module base;
    bool approximate;
} gelu;

static tern_tensor *gelu_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_gelu(scope, x, ((gelu *)module)->approximate);
}

tern_module *tern_gelu_new(bool approximate, tern_error *err)
{
    gelu *self = tern__module_new(sizeof(*self), "gelu", gelu_forward, err);
    if (!self) return NULL;
    self->approximate = approximate;
    if (approximate) tern__options_add(&self->base, "approximate", 0, NULL);
    return &self->base;
}

typedef struct leaky_relu {
    tern_module base;
    double slope;
} leaky_relu;

static tern_tensor *leaky_relu_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_leaky_relu(scope, x, ((leaky_relu *)module)->slope);
}

tern_module *tern_leaky_relu_new(double slope, tern_error *err)
{
    leaky_relu *self = tern__module_new(sizeof(*self), "leaky_relu", leaky_relu_forward, err);
    if (!self) return NULL;
    self->slope = slope;
    tern__options_add_real(&self->base, "slope", slope);
    return &self->base;
}

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

typedef struct upsample {
    tern_module base;
    tern_interpolate_opts opts;
} upsample;

static tern_tensor *upsample_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_interpolate(scope, x, &((upsample *)module)->opts);
}

static void upsample_options_add(upsample *self)
{
    static const char *const scales[] = {"scale", "scale1", "scale2"};
    const tern_interpolate_opts *o = &self->opts;
    tern__options_add(&self->base, o->mode == TERN_INTERPOLATE_LINEAR ? "linear" : "nearest", 0, NULL);
    if (o->align_corners) tern__options_add(&self->base, "align_corners", 0, NULL);
    if (o->shape[0]) tern__options_add(&self->base, "to", 3, o->shape);
    for (int d = 0; d < 3 && !o->shape[0]; d++)
        if (o->scale[d] != 0) tern__options_add_real(&self->base, scales[d], o->scale[d]);
}

tern_module *tern_upsample_new(const tern_interpolate_opts *opts, tern_error *err)
{
    tern_interpolate_opts o = tern_interpolate_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    upsample *self = tern__module_new(sizeof(*self), "upsample", upsample_forward, err);
    if (!self) return NULL;
    self->opts = o;
    upsample_options_add(self);
    return &self->base;
}
