#include "base/opts.h"
#include "nn/nn.h"

typedef struct pool2d {
    tern_module base;
    int64_t kernel_h, kernel_w;
    tern_pool2d_opts opts;
} pool2d;

static tern_tensor *max_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool2d *self = (pool2d *)module;
    return tern_max_pool2d(scope, x, self->kernel_h, self->kernel_w, &self->opts);
}

static tern_tensor *avg_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool2d *self = (pool2d *)module;
    return tern_avg_pool2d(scope, x, self->kernel_h, self->kernel_w, &self->opts);
}

static void add_options(pool2d *self)
{
    const tern_pool2d_opts *o = &self->opts;
    tern__options_add(&self->base, "kernel", 2, (int64_t[]){self->kernel_h, self->kernel_w});
    tern__options_add(&self->base, "stride", 2, o->stride);
    tern__options_add(&self->base, "padding", 2, o->padding);
    tern__options_add(&self->base, "dilation", 2, o->dilation);
    if (o->ceil_mode) tern__options_add(&self->base, "ceil_mode", 0, NULL);
    if (!o->count_include_pad) tern__options_add(&self->base, "without pad", 0, NULL);
}

static tern_module *new_pool2d(const char *func, const char *kind, tern_forward_fn forward, int64_t kernel_h,
                               int64_t kernel_w, const tern_pool2d_opts *opts, tern_error *err)
{
    tern_pool2d_opts o = tern_pool2d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, func, err)) return NULL;
    pool2d *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    self->kernel_h = kernel_h;
    self->kernel_w = kernel_w;
    self->opts = o;
    add_options(self);
    return &self->base;
}

tern_module *tern_max_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                 tern_error *err)
{
    return new_pool2d(__func__, "max_pool2d", max_forward, kernel_h, kernel_w, opts, err);
}

tern_module *tern_avg_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                 tern_error *err)
{
    return new_pool2d(__func__, "avg_pool2d", avg_forward, kernel_h, kernel_w, opts, err);
}
