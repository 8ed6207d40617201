/* one_op.c - layers without parameters that consist of one op. */
#include "nn/nn.h"

#define LAYER(name, y)                                                                                       \
    static tern_tensor *name##_forward(tern_module *module, tern_scope *scope, tern_tensor *x)               \
    {                                                                                                        \
        (void)module;                                                                                        \
        return y;                                                                                            \
    }                                                                                                        \
    tern_module *tern_##name##_new(tern_error *err)                                                          \
    {                                                                                                        \
        return tern__module_new(sizeof(tern_module), #name, name##_forward, err);                            \
    }
LAYER(relu, tern_relu(scope, x))
LAYER(silu, tern_silu(scope, x))
LAYER(sigmoid, tern_sigmoid(scope, x))
LAYER(tanh, tern_tanh(scope, x))
LAYER(global_avg_pool, tern_global_avg_pool(scope, x))
LAYER(flatten, tern_flatten(scope, x, 1))

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
