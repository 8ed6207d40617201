#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"

typedef struct conv2d {
    tern_module base;
    tern_tensor *weight, *bias;
    tern_conv2d_opts opts;
} conv2d;

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    conv2d *self = (conv2d *)module;
    return tern_conv2d(scope, x, self->weight, self->bias, &self->opts);
}

static int check(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w, int64_t groups, tern_error *err)
{
    if (in >= 1 && out >= 1 && kernel_h >= 1 && kernel_w >= 1 && groups >= 1 && in % groups == 0 &&
        out % groups == 0)
        return TERN_OK;
    return tern__error_set(
        err, "tern_conv2d_new", TERN_E_RANGE,
        "conv2d: expected at least 1 channel in and out, both divisible by the groups, and "
        "a kernel of at least 1x1; got %lld in, %lld out, %lld groups, kernel %lldx%lld",
        (long long)in, (long long)out, (long long)groups, (long long)kernel_h, (long long)kernel_w);
}

tern_module *tern_conv2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                             const tern_conv2d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts o = tern_conv2d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    if (check(in, out, kernel_h, kernel_w, o.groups, err)) return NULL;
    conv2d *self = tern__module_new(sizeof(*self), "conv2d", forward, err);
    if (!self) return NULL;
    self->opts = o;
    int64_t shape[4] = {out, in / o.groups, kernel_h, kernel_w};
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, 4, shape, err);
    if (o.bias) self->bias = tern_parameter_add(&self->base, "bias", TERN_F32, 1, &out, err);
    bool whole = self->weight && (self->bias || !o.bias);
    if (whole && !tern__init_default(self->weight, self->bias, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
