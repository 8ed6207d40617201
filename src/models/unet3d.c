/* unet3d.c - 3-D U-Net (Cicek et al. 2016): pairs of convolutions at `levels` sizes, each half the one
 * before. On the way down, a max pool halves the size. On the way up, the result is upsampled by 2, and the
 * result of the same size from the way down is concatenated in front of it. */
#include "base/opts.h"
#include "models/conv_norm.h"
#include "nn/nn.h"

#include <tern/models.h>

#include <stdio.h>

/* ---- two convolutions ---- */

typedef struct pair {
    tern_module base;
    tern__conv_norm convs[2];
} pair;

static tern_tensor *pair_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    pair *self = (pair *)module;
    for (int i = 0; i < 2; i++) x = tern__conv_norm_forward(&self->convs[i], s, x);
    return x;
}

static tern_module *unet3d_new_conv(int64_t in, int64_t out, tern_rng *rng, tern_error *err)
{
    tern_conv3d_opts opts = tern_conv3d_defaults();
    for (int d = 0; d < 3; d++) opts.padding[d] = 1;
    opts.bias = false;
    return tern_conv3d_new(in, out, 3, 3, 3, &opts, rng, err);
}

static tern_module *new_norm(const tern_unet3d_opts *o, int64_t channels, tern_error *err)
{
    return o->norm == TERN_UNET_GROUP ? tern_group_norm_new(o->groups, channels, NULL, err)
                                      : tern_batch_norm3d_new(channels, NULL, err);
}

static tern_module *new_pair(const tern_unet3d_opts *o, int64_t in, int64_t out, tern_rng *rng,
                             tern_error *err)
{
    pair *self = tern__module_new(sizeof(*self), "unet_pair", pair_forward, err);
    bool whole = true;
    if (!self) return NULL;
    for (int i = 0; i < 2 && whole; i++)
        whole = tern__conv_norm_add(&self->convs[i], &self->base, 3 * i,
                                    unet3d_new_conv(i ? out : in, out, rng, err), new_norm(o, out, err), err);
    if (whole) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

/* ---- the net ---- */

typedef struct unet3d {
    tern_module base;
    int levels;
    tern_module *encoder[TERN_UNET_LEVELS], *up[TERN_UNET_LEVELS], *decoder[TERN_UNET_LEVELS], *head;
} unet3d;

static bool sizes_fit(const unet3d *self, tern_scope *s, const tern__view *x)
{
    char shape[TERN__SHAPE_TEXT];
    int64_t part = 1 << (self->levels - 1);
    bool fit = x->ndim == 5;
    for (int d = 2; d < x->ndim; d++) fit = fit && x->shape[d] > 0 && x->shape[d] % part == 0;
    if (!fit)
        tern__scope_fail(s, "tern_forward", TERN_E_SHAPE,
                         "unet3d: expected (N, C, D, H, W) with sizes divisible by %lld, got input %s",
                         (long long)part, tern__shape_text(x, shape));
    return fit;
}

/* Doubles the size. */
static tern_tensor *enlarge(tern_module *up, tern_scope *s, tern_tensor *x)
{
    if (up) return tern_forward(up, s, x);
    tern_interpolate_opts opts = tern_interpolate_defaults();
    opts.mode = TERN_INTERPOLATE_LINEAR;
    opts.scale[0] = 2;
    return x ? tern_interpolate(s, x, &opts) : NULL;
}

static tern_tensor *unet3d_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    unet3d *self = (unet3d *)module;
    tern_tensor *kept[TERN_UNET_LEVELS];
    int last = self->levels - 1;
    if (!sizes_fit(self, s, &x->view)) return NULL;
    tern_pool3d_opts pool = tern_pool3d_defaults();
    for (int i = 0; i <= last; i++) {
        if (i) x = tern_max_pool3d(s, x, 2, 2, 2, &pool);
        x = kept[i] = x ? tern_forward(self->encoder[i], s, x) : NULL;
    }
    for (int i = 0; i < last; i++) {
        tern_tensor *both[] = {kept[last - 1 - i], enlarge(self->up[i], s, x)};
        x = tern_forward(self->decoder[i], s, tern_cat(s, 2, both, 1));
    }
    return tern_forward(self->head, s, x);
}

/* ---- new ---- */

tern_unet3d_opts tern_unet3d_defaults(void)
{
    return (tern_unet3d_opts){.size = sizeof(tern_unet3d_opts),
                              .in_channels = 1,
                              .classes = 1,
                              .width = 32,
                              .levels = 4,
                              .norm = TERN_UNET_BATCH,
                              .groups = 8,
                              .deconv = true};
}

static int unet3d_check_opts(const tern_unet3d_opts *o, tern_error *err)
{
    bool group = o->norm == TERN_UNET_GROUP;
    if (o->levels < 2 || o->levels > TERN_UNET_LEVELS)
        return tern__error_set(err, "tern_unet3d_new", TERN_E_RANGE, "unet3d: levels is %d, expected 2 to %d",
                               o->levels, TERN_UNET_LEVELS);
    if (!group && o->norm != TERN_UNET_BATCH)
        return tern__error_set(err, "tern_unet3d_new", TERN_E_RANGE, "unet3d: norm is %d", (int)o->norm);
    return TERN_OK;
}

static tern_module *new_up(int64_t in, int64_t out, tern_rng *rng, tern_error *err)
{
    tern_conv_transpose3d_opts opts = tern_conv_transpose3d_defaults();
    for (int d = 0; d < 3; d++) opts.stride[d] = 2;
    return tern_conv_transpose3d_new(in, out, 2, 2, 2, &opts, rng, err);
}

/* Appends `child` to the list. */
static bool unet3d_append(tern_module **slot, tern_module *list, tern_module *child, tern_error *err)
{
    return (*slot = tern_sequential_add(list, child, err));
}

static bool add_way_down(unet3d *self, const tern_unet3d_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *list = tern_module_add(&self->base, "encoder", tern_sequential_new(err), err);
    bool whole = list;
    for (int i = 0; i < o->levels && whole; i++)
        whole = unet3d_append(&self->encoder[i], list,
                              new_pair(o, i ? o->width << (i - 1) : o->in_channels, o->width << i, rng, err),
                              err);
    return whole;
}

static bool add_way_up(unet3d *self, const tern_unet3d_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *ups = o->deconv ? tern_module_add(&self->base, "up", tern_sequential_new(err), err) : NULL;
    tern_module *list = tern_module_add(&self->base, "decoder", tern_sequential_new(err), err);
    bool whole = list && (ups || !o->deconv);
    for (int i = 0; i + 1 < o->levels && whole; i++) {
        int64_t below = o->width << (o->levels - 1 - i), out = below / 2;
        if (ups) whole = unet3d_append(&self->up[i], ups, new_up(below, out, rng, err), err);
        whole = whole && unet3d_append(&self->decoder[i], list,
                                       new_pair(o, out + (o->deconv ? out : below), out, rng, err), err);
    }
    return whole;
}

tern_module *tern_unet3d_new(const tern_unet3d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_unet3d_opts o = tern_unet3d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        unet3d_check_opts(&o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    unet3d *self = tern__module_new(sizeof(*self), "unet3d", unet3d_forward, err);
    if (!self) return NULL;
    self->levels = o.levels;
    if (add_way_down(self, &o, rng, err) && add_way_up(self, &o, rng, err))
        self->head = tern_module_add(&self->base, "head",
                                     tern_conv3d_new(o.width, o.classes, 1, 1, 1, NULL, rng, err), err);
    if (self->head) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
