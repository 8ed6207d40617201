/* one_op.c - layers without parameters that consist of one op. */
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
