/* conv.c - torch.nn.Conv1d to Conv3d and ConvTranspose1d to ConvTranspose3d: a weight, perhaps a bias, and
 * one op. */
#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"

#include <tern/conv.h>

#include <string.h>

typedef struct conv {
    tern_module base;
    tern_tensor *weight, *bias;
    union {
        tern_conv1d_opts conv1d;
        tern_conv2d_opts conv2d;
        tern_conv3d_opts conv3d;
        tern_conv_transpose1d_opts conv_transpose1d;
        tern_conv_transpose2d_opts conv_transpose2d;
        tern_conv_transpose3d_opts conv_transpose3d;
    } opts;
} conv;

#define FORWARD(name)                                                                                        \
    static tern_tensor *name##_forward(tern_module *module, tern_scope *scope, tern_tensor *x)               \
    {                                                                                                        \
        conv *self = (conv *)module;                                                                         \
        return tern_##name(scope, x, self->weight, self->bias, &self->opts.name);                            \
    }
FORWARD(conv1d)
FORWARD(conv2d)
FORWARD(conv3d)
FORWARD(conv_transpose1d)
FORWARD(conv_transpose2d)
FORWARD(conv_transpose3d)

typedef struct kind {
    const char *func, *name;
    tern_forward_fn forward;
    int spatial;
    bool transposed;
} kind;

typedef struct sizes {
    int64_t in, out, groups, kernel[3];
    bool bias;
    tern_padding_mode padding_mode;
} sizes;

static int conv_check(const kind *k, const sizes *s, tern_error *err)
{
    char text[TERN__SHAPE_TEXT];
    bool fit =
        s->in >= 1 && s->out >= 1 && s->groups >= 1 && s->in % s->groups == 0 && s->out % s->groups == 0;
    for (int d = 0; d < k->spatial; d++) fit = fit && s->kernel[d] >= 1;
    if (fit) return TERN_OK;
    tern__view kernel = tern__view_make(TERN_F32, TERN__PLAIN, k->spatial, s->kernel);
    return tern__error_set(err, k->func, TERN_E_RANGE,
                           "%s: expected at least 1 channel in and out, both divisible by the groups, and a "
                           "kernel of at least 1; got %lld in, %lld out, %lld groups, kernel %s",
                           k->name, (long long)s->in, (long long)s->out, (long long)s->groups,
                           tern__shape_text(&kernel, text));
}

static int add_members(conv *self, const kind *k, const sizes *s, tern_rng *rng, tern_error *err)
{
    int64_t first = k->transposed ? s->in : s->out, second = (k->transposed ? s->out : s->in) / s->groups;
    int64_t shape[5] = {first, second, s->kernel[0], s->kernel[1], s->kernel[2]};
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, 2 + k->spatial, shape, err);
    if (s->bias) self->bias = tern_parameter_add(&self->base, "bias", TERN_F32, 1, &s->out, err);
    if (!self->weight || (s->bias && !self->bias)) return TERN_E_MEMORY;
    return tern__init_default(self->weight, self->bias, rng, err);
}

/* Writes " stride 2x2 padding 1x1 ..." from the numbers that follow the size in each options struct. A
 * padding of -1 means "same". */
static void add_options(conv *self, const kind *k, tern_padding_mode padding_mode)
{
    static const char *const names[] = {"stride", "padding", "output_padding", "dilation"};
    static const char *const modes[] = {"", "reflect", "replicate", "circular"};
    const int64_t *number = (const int64_t *)((const char *)&self->opts + sizeof(size_t));
    for (int i = 0; i < 4; i++) {
        int64_t values[3];
        if (i == 2 && !k->transposed) continue;
        for (int d = 0; d < k->spatial; d++, number++)
            values[d] = *number == TERN_PADDING_SAME ? -1 : *number;
        tern__options_add(&self->base, names[i], k->spatial, values);
    }
    tern__options_add(&self->base, "groups", 1, number);
    if (padding_mode > TERN_PADDING_MODE_ZEROS && padding_mode <= TERN_PADDING_MODE_CIRCULAR)
        tern__options_add(&self->base, modes[padding_mode], 0, NULL);
}

static tern_module *conv_new_conv(const kind *k, const sizes *s, const void *opts, size_t opts_bytes,
                                  tern_rng *rng, tern_error *err)
{
    if (conv_check(k, s, err)) return NULL;
    conv *self = tern__module_new(sizeof(*self), k->name, k->forward, err);
    if (!self) return NULL;
    memcpy(&self->opts, opts, opts_bytes);
    add_options(self, k, s->padding_mode);
    if (add_members(self, k, s, rng, err) == TERN_OK) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_conv2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                             const tern_conv2d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts o = tern_conv2d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv2d_new", "conv2d", conv2d_forward, 2, false};
    sizes s = {in, out, o.groups, {kernel_h, kernel_w}, o.bias, o.padding_mode};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}

tern_module *tern_conv1d_new(int64_t in, int64_t out, int64_t kernel, const tern_conv1d_opts *opts,
                             tern_rng *rng, tern_error *err)
{
    tern_conv1d_opts o = tern_conv1d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv1d_new", "conv1d", conv1d_forward, 1, false};
    sizes s = {in, out, o.groups, {kernel}, o.bias, o.padding_mode};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}

tern_module *tern_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                                       const tern_conv_transpose2d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_conv_transpose2d_opts o = tern_conv_transpose2d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv_transpose2d_new", "conv_transpose2d", conv_transpose2d_forward, 2,
                           true};
    sizes s = {in, out, o.groups, {kernel_h, kernel_w}, o.bias, TERN_PADDING_MODE_ZEROS};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}

tern_module *tern_conv_transpose1d_new(int64_t in, int64_t out, int64_t kernel,
                                       const tern_conv_transpose1d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_conv_transpose1d_opts o = tern_conv_transpose1d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv_transpose1d_new", "conv_transpose1d", conv_transpose1d_forward, 1,
                           true};
    sizes s = {in, out, o.groups, {kernel}, o.bias, TERN_PADDING_MODE_ZEROS};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}

tern_module *tern_conv3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                             const tern_conv3d_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_conv3d_opts o = tern_conv3d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv3d_new", "conv3d", conv3d_forward, 3, false};
    sizes s = {in, out, o.groups, {kernel_d, kernel_h, kernel_w}, o.bias, o.padding_mode};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}

tern_module *tern_conv_transpose3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h,
                                       int64_t kernel_w, const tern_conv_transpose3d_opts *opts,
                                       tern_rng *rng, tern_error *err)
{
    tern_conv_transpose3d_opts o = tern_conv_transpose3d_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err)) return NULL;
    static const kind k = {"tern_conv_transpose3d_new", "conv_transpose3d", conv_transpose3d_forward, 3,
                           true};
    sizes s = {in, out, o.groups, {kernel_d, kernel_h, kernel_w}, o.bias, TERN_PADDING_MODE_ZEROS};
    return conv_new_conv(&k, &s, &o, sizeof(o), rng, err);
}
