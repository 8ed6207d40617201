/* pool.c - torch.nn.MaxPool and AvgPool of two and three dimensions. */
#include "base/opts.h"
#include "nn/nn.h"

typedef struct pool {
    tern_module base;
    int64_t kernel[3]; /* [depth,] height, width */
    union {
        tern_pool2d_opts pool2d;
        tern_pool3d_opts pool3d;
    } opts;
} pool;

/* ---- forward ---- */

static tern_tensor *max2d_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool *self = (pool *)module;
    return tern_max_pool2d(scope, x, self->kernel[0], self->kernel[1], &self->opts.pool2d);
}

static tern_tensor *avg2d_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool *self = (pool *)module;
    return tern_avg_pool2d(scope, x, self->kernel[0], self->kernel[1], &self->opts.pool2d);
}

static tern_tensor *max3d_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool *self = (pool *)module;
    return tern_max_pool3d(scope, x, self->kernel[0], self->kernel[1], self->kernel[2], &self->opts.pool3d);
}

static tern_tensor *avg3d_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    pool *self = (pool *)module;
    return tern_avg_pool3d(scope, x, self->kernel[0], self->kernel[1], self->kernel[2], &self->opts.pool3d);
}

/* ---- making ---- */

/* Adds the options beside the kernel to the module's text. */
#define ADD_OPTIONS(self, axes, o)                                                                           \
    do {                                                                                                     \
        tern__options_add(&(self)->base, "kernel", axes, (self)->kernel);                                    \
        tern__options_add(&(self)->base, "stride", axes, (o)->stride);                                       \
        tern__options_add(&(self)->base, "padding", axes, (o)->padding);                                     \
        tern__options_add(&(self)->base, "dilation", axes, (o)->dilation);                                   \
        if ((o)->ceil_mode) tern__options_add(&(self)->base, "ceil_mode", 0, NULL);                          \
        if (!(o)->count_include_pad) tern__options_add(&(self)->base, "without pad", 0, NULL);               \
    } while (0)

static tern_module *new_pool2d(const char *func, const char *kind, tern_forward_fn forward, int64_t kernel_h,
                               int64_t kernel_w, const tern_pool2d_opts *opts, tern_error *err)
{
    tern_pool2d_opts o = tern_pool2d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, func, err)) return NULL;
    pool *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    self->kernel[0] = kernel_h;
    self->kernel[1] = kernel_w;
    self->opts.pool2d = o;
    ADD_OPTIONS(self, 2, &o);
    return &self->base;
}

static tern_module *new_pool3d(const char *func, const char *kind, tern_forward_fn forward,
                               const int64_t kernel[3], const tern_pool3d_opts *opts, tern_error *err)
{
    tern_pool3d_opts o = tern_pool3d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, func, err)) return NULL;
    pool *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    for (int d = 0; d < 3; d++) self->kernel[d] = kernel[d];
    self->opts.pool3d = o;
    ADD_OPTIONS(self, 3, &o);
    return &self->base;
}

tern_module *tern_max_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                 tern_error *err)
{
    return new_pool2d(__func__, "max_pool2d", max2d_forward, kernel_h, kernel_w, opts, err);
}

tern_module *tern_avg_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                 tern_error *err)
{
    return new_pool2d(__func__, "avg_pool2d", avg2d_forward, kernel_h, kernel_w, opts, err);
}

tern_module *tern_max_pool3d_new(int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                                 const tern_pool3d_opts *opts, tern_error *err)
{
    int64_t kernel[] = {kernel_d, kernel_h, kernel_w};
    return new_pool3d(__func__, "max_pool3d", max3d_forward, kernel, opts, err);
}

tern_module *tern_avg_pool3d_new(int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                                 const tern_pool3d_opts *opts, tern_error *err)
{
    int64_t kernel[] = {kernel_d, kernel_h, kernel_w};
    return new_pool3d(__func__, "avg_pool3d", avg3d_forward, kernel, opts, err);
}
