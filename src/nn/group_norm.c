/* group_norm.c - torch.nn.LayerNorm, RMSNorm and GroupNorm. */
#include "base/opts.h"
#include "nn/nn.h"

#include <tern/init.h>

#include <string.h>

typedef struct norm {
    tern_module base;
    tern_tensor *weight, *bias; /* NULL if not affine */
    double eps;
    tern__view like; /* layer and root mean square norm: the shape to normalise over */
    int64_t groups;  /* group norm                                                    */
} norm;

/* Checks the shape here, because without a weight the op has nothing to compare it with. */
static bool shape_fits(const norm *self, tern_scope *scope, const char *func, const tern__view *x)
{
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT];
    int before = x->ndim - self->like.ndim;
    if (before >= 0 &&
        !memcmp(x->shape + before, self->like.shape, (size_t)self->like.ndim * sizeof(*x->shape)))
        return true;
    tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: expected an input whose last dimensions are %s, got %s",
                     self->base.kind, tern__shape_text(&self->like, want), tern__shape_text(x, have));
    return false;
}

static tern_tensor *layer_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    norm *self = (norm *)module;
    tern_layer_norm_opts opts = tern_layer_norm_defaults();
    if (!shape_fits(self, scope, "tern_layer_norm", &x->view)) return NULL;
    opts.ndim = self->like.ndim;
    opts.eps = self->eps;
    return tern_layer_norm(scope, x, self->weight, self->bias, &opts);
}

static tern_tensor *rms_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    norm *self = (norm *)module;
    tern_rms_norm_opts opts = tern_rms_norm_defaults();
    if (!shape_fits(self, scope, "tern_rms_norm", &x->view)) return NULL;
    opts.ndim = self->like.ndim;
    opts.eps = self->eps;
    return tern_rms_norm(scope, x, self->weight, &opts);
}

static tern_tensor *group_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    norm *self = (norm *)module;
    return tern_group_norm(scope, x, self->groups, self->weight, self->bias, self->eps);
}

tern_norm_opts tern_norm_defaults(void)
{
    return (tern_norm_opts){.size = sizeof(tern_norm_opts), .eps = 1e-5, .affine = true};
}

/* A negative eps, the dtype's own, is left out of the options. */
static norm *norm_new(const char *kind, tern_forward_fn forward, int ndim, const int64_t *shape, double eps,
                      tern_error *err)
{
    norm *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) return NULL;
    self->eps = eps;
    if (eps >= 0) tern__options_add_real(&self->base, "eps", eps);
    tern__options_add(&self->base, "shape", ndim, shape);
    self->like = tern__view_make(TERN_F32, TERN__PLAIN, ndim, shape);
    return self;
}

/* Adds the parameters. On failure frees the layer and returns NULL. */
static norm *add_affine(norm *self, bool bias, tern_error *err)
{
    const tern__view *like = &self->like;
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, like->ndim, like->shape, err);
    if (bias) self->bias = tern_parameter_add(&self->base, "bias", TERN_F32, like->ndim, like->shape, err);
    if (self->weight && (self->bias || !bias)) {
        tern_init_constant(self->weight, 1, err);
        return self;
    }
    tern_module_free(&self->base);
    return NULL;
}

static norm *norm_with_bias_new(const char *func, const char *kind, tern_forward_fn forward, int ndim,
                                const int64_t *shape, const tern_norm_opts *opts, tern_error *err)
{
    tern_norm_opts o = tern_norm_defaults();
    if (tern__opts_read(&o, sizeof(o), opts, func, err)) return NULL;
    norm *self = norm_new(kind, forward, ndim, shape, o.eps, err);
    return self && o.affine ? add_affine(self, true, err) : self;
}

static bool is_shape(const char *func, const char *kind, int ndim, const int64_t *shape, tern_error *err)
{
    if (tern__is_set(err) || tern__shape_check(func, TERN_F32, ndim, shape, err)) return false;
    if (ndim > 0) return true;
    tern__error_set(err, func, TERN_E_RANGE, "%s: expected at least 1 dimension", kind);
    return false;
}

tern_module *tern_layer_norm_new(int ndim, const int64_t *shape, const tern_norm_opts *opts, tern_error *err)
{
    if (!is_shape(__func__, "layer_norm", ndim, shape, err)) return NULL;
    norm *self = norm_with_bias_new(__func__, "layer_norm", layer_forward, ndim, shape, opts, err);
    return self ? &self->base : NULL;
}

tern_module *tern__layer_norm_new(int64_t features, double eps, bool bias, tern_error *err)
{
    norm *self = norm_new("layer_norm", layer_forward, 1, &features, eps, err);
    if (self) self = add_affine(self, bias, err);
    return self ? &self->base : NULL;
}

tern_module *tern_rms_norm_new(int ndim, const int64_t *shape, const tern_rms_norm_opts *opts,
                               tern_error *err)
{
    tern_rms_norm_opts o = tern_rms_norm_defaults();
    if (!is_shape(__func__, "rms_norm", ndim, shape, err)) return NULL;
    if (tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    norm *self = norm_new("rms_norm", rms_forward, ndim, shape, o.eps, err);
    if (self) self = add_affine(self, false, err);
    return self ? &self->base : NULL;
}

tern_module *tern_group_norm_new(int64_t groups, int64_t channels, const tern_norm_opts *opts,
                                 tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (groups < 1 || channels < 1 || channels % groups) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "group_norm: expected at least 1 group, and channels divisible by the groups; got "
                        "%lld groups, %lld channels",
                        (long long)groups, (long long)channels);
        return NULL;
    }
    norm *self = norm_with_bias_new(__func__, "group_norm", group_forward, 1, &channels, opts, err);
    if (!self) return NULL;
    self->groups = groups;
    tern__options_add(&self->base, "groups", 1, &groups);
    return &self->base;
}
