/* upsample.c - torch.nn.Upsample: interpolation by fixed options. */
#include "base/opts.h"
#include "nn/nn.h"

typedef struct upsample {
    tern_module base;
    tern_interpolate_opts opts;
} upsample;

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_interpolate(scope, x, &((upsample *)module)->opts);
}

static void add_options(upsample *self)
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
    upsample *self = tern__module_new(sizeof(*self), "upsample", forward, err);
    if (!self) return NULL;
    self->opts = o;
    add_options(self);
    return &self->base;
}
