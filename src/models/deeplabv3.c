/* deeplabv3.c - DeepLabV3 (Chen et al. 2017), with torchvision's names and order of construction: a residual
 * network whose last stages dilate instead of striding, atrous spatial pyramid pooling over its features, and
 * a classifier of every position, whose scores are interpolated to the size of the input. */
#include "base/opts.h"
#include "models/conv_norm.h"
#include "models/resnet.h"
#include "nn/nn.h"

#include <string.h>

#define RATES    3
#define BRANCHES (RATES + 2)

static tern_module *deeplab_new_conv(int64_t in, int64_t out, int64_t kernel, int64_t rate, tern_rng *rng,
                                     tern_error *err)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    for (int d = 0; d < 2; d++) {
        opts.padding[d] = kernel / 2 * rate;
        opts.dilation[d] = rate;
    }
    opts.bias = false;
    return tern_conv2d_new(in, out, kernel, kernel, &opts, rng, err);
}

static bool add_pair(tern__conv_norm *pair, tern_module *parent, int index, tern_module *conv, int64_t out,
                     tern_error *err)
{
    return tern__conv_norm_add(pair, parent, index, conv, tern_batch_norm2d_new(out, NULL, err), err);
}

static tern_tensor *deeplab_resize(tern_scope *s, tern_tensor *x, const int64_t size[2])
{
    tern_interpolate_opts opts = tern_interpolate_defaults();
    opts.mode = TERN_INTERPOLATE_LINEAR;
    for (int d = 0; d < 2; d++) opts.shape[d] = size[d];
    return x ? tern_interpolate(s, x, &opts) : NULL;
}

/* ---- a branch of the pyramid, and the projection of all branches: a convolution, batch norm and ReLU ----
 */

typedef struct branch {
    tern_module base;
    tern__conv_norm pair;
} branch;

static tern_tensor *branch_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    return tern__conv_norm_forward(&((branch *)module)->pair, s, x);
}

/* The branch of the mean over all positions; every position gets the result. */
static tern_tensor *pooling_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    int64_t shape[4];
    memcpy(shape, tern_tensor_shape(x), sizeof(shape));
    tern_tensor *mean = tern_global_avg_pool(s, x);
    mean = mean ? tern_reshape(s, mean, 4, (int64_t[]){shape[0], shape[1], 1, 1}) : NULL;
    return mean ? deeplab_resize(s, branch_forward(module, s, mean), shape + 2) : NULL;
}

static tern_module *new_branch(const char *kind, tern_forward_fn forward, int index, tern_module *conv,
                               int64_t out, tern_error *err)
{
    branch *self = tern__module_new(sizeof(*self), kind, forward, err);
    if (!self) {
        tern_module_free(conv);
        return NULL;
    }
    if (add_pair(&self->pair, &self->base, index, conv, out, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

/* ---- atrous spatial pyramid pooling ---- */

typedef struct aspp {
    tern_module base;
    tern_module *branches[BRANCHES], *project;
    double dropout;
} aspp;

static tern_tensor *aspp_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    aspp *self = (aspp *)module;
    tern_tensor *y[BRANCHES];
    for (int i = 0; i < BRANCHES; i++) y[i] = tern_forward(self->branches[i], s, x);
    x = tern_forward(self->project, s, tern_cat(s, BRANCHES, y, 1));
    return module->training && self->dropout > 0 ? tern_dropout(s, x, self->dropout) : x;
}

/* torchvision has the branches in a ModuleList. */
static tern_module *new_branches(aspp *self, const tern_deeplabv3_opts *o, int64_t in, tern_rng *rng,
                                 tern_error *err)
{
    int64_t out = o->head_channels;
    tern_module *list = tern_sequential_new(err);
    for (int i = 0; i < BRANCHES && list; i++) {
        bool pools = i == BRANCHES - 1, atrous = i && !pools;
        tern_module *conv = deeplab_new_conv(in, out, atrous ? 3 : 1, atrous ? o->rates[i - 1] : 1, rng, err);
        self->branches[i] =
            tern_sequential_add(list,
                                new_branch(pools ? "aspp_pooling" : "aspp_conv",
                                           pools ? pooling_forward : branch_forward, pools, conv, out, err),
                                err);
        if (self->branches[i]) continue;
        tern_module_free(list);
        return NULL;
    }
    return list;
}

static tern_module *new_aspp(const tern_deeplabv3_opts *o, int64_t in, tern_rng *rng, tern_error *err)
{
    int64_t out = o->head_channels;
    aspp *self = tern__module_new(sizeof(*self), "aspp", aspp_forward, err);
    if (!self) return NULL;
    self->dropout = o->dropout;
    tern__options_add_real(&self->base, "dropout", o->dropout);
    bool whole = tern_module_add(&self->base, "convs", new_branches(self, o, in, rng, err), err);
    if (whole)
        self->project =
            tern_module_add(&self->base, "project",
                            new_branch("aspp_conv", branch_forward, 0,
                                       deeplab_new_conv(BRANCHES * out, out, 1, 1, rng, err), out, err),
                            err);
    if (self->project) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

/* ---- a head: scores for every position of the features ---- */

typedef struct head {
    tern_module base;
    tern_module *aspp; /* NULL in the auxiliary head */
    tern__conv_norm pair;
    tern_module *scores;
    double dropout; /* before the scores */
} head;

static tern_tensor *head_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    head *self = (head *)module;
    if (self->aspp) x = tern_forward(self->aspp, s, x);
    x = tern__conv_norm_forward(&self->pair, s, x);
    if (module->training && self->dropout > 0) x = tern_dropout(s, x, self->dropout);
    return tern_forward(self->scores, s, x);
}

static tern_module *finish_head(head *self, int index, int64_t in, int64_t out, int64_t classes,
                                tern_rng *rng, tern_error *err)
{
    tern_module *m = &self->base;
    bool whole = add_pair(&self->pair, m, index, deeplab_new_conv(in, out, 3, 1, rng, err), out, err);
    if (whole)
        self->scores = tern_module_add(m, "4", tern_conv2d_new(out, classes, 1, 1, NULL, rng, err), err);
    if (self->scores) return m;
    tern_module_free(m);
    return NULL;
}

static tern_module *new_head(const tern_deeplabv3_opts *o, int64_t in, tern_rng *rng, tern_error *err)
{
    head *self = tern__module_new(sizeof(*self), "deeplab_head", head_forward, err);
    if (!self) return NULL;
    self->aspp = tern_module_add(&self->base, "0", new_aspp(o, in, rng, err), err);
    if (self->aspp) return finish_head(self, 1, o->head_channels, o->head_channels, o->classes, rng, err);
    tern_module_free(&self->base);
    return NULL;
}

static tern_module *new_aux_head(const tern_deeplabv3_opts *o, int64_t in, tern_rng *rng, tern_error *err)
{
    head *self = tern__module_new(sizeof(*self), "fcn_head", head_forward, err);
    if (!self) return NULL;
    self->dropout = o->aux_dropout;
    tern__options_add_real(&self->base, "dropout", o->aux_dropout);
    return finish_head(self, 0, in, in / 4, o->classes, rng, err);
}

/* ---- the net ---- */

typedef struct deeplabv3 {
    tern_module base;
    tern_module *backbone, *classifier, *aux_classifier;
    tern_tensor **aux; /* where to put the auxiliary scores of this call; NULL: not wanted */
} deeplabv3;

static tern_tensor *deeplabv3_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    deeplabv3 *self = (deeplabv3 *)module;
    int64_t size[2];
    tern_tensor *inner, *y = tern__resnet_features(self->backbone, s, x, &inner);
    if (!y) return NULL;
    memcpy(size, tern_tensor_shape(x) + 2, sizeof(size));
    y = deeplab_resize(s, tern_forward(self->classifier, s, y), size);
    if (self->aux && self->aux_classifier)
        *self->aux = deeplab_resize(s, tern_forward(self->aux_classifier, s, inner), size);
    return y;
}

/* Has no frame of its own: a frame keeps only one result alive. */
tern_tensor *tern_deeplabv3_forward(tern_module *module, tern_scope *s, tern_tensor *x, tern_tensor **aux)
{
    if (!aux) return tern_forward(module, s, x);
    *aux = NULL;
    if (!module || !TERN__ENTER(s, __func__, 1, &x)) return NULL;
    if (module->forward != deeplabv3_forward) {
        tern__scope_fail(s, __func__, TERN_E_INVALID, "expected a deeplabv3, got %s", module->kind);
        return NULL;
    }
    ((deeplabv3 *)module)->aux = aux;
    tern_tensor *y = tern__module_call(module, s, x, module->forward);
    ((deeplabv3 *)module)->aux = NULL;
    return y;
}

tern_deeplabv3_opts tern_deeplabv3_defaults(void)
{
    return (tern_deeplabv3_opts){.size = sizeof(tern_deeplabv3_opts),
                                 .depth = 50,
                                 .in_channels = 3,
                                 .classes = 21,
                                 .channels = {64, 128, 256, 512},
                                 .output_stride = 8,
                                 .head_channels = 256,
                                 .dropout = 0.5,
                                 .aux_dropout = 0.1};
}

/* Returns how many of the last stages dilate; -1 if no number gives that output stride. */
static int dilated_stages(const tern_deeplabv3_opts *o)
{
    int whole = o->small_stem ? 8 : 32;
    for (int count = 0; count < TERN_RESNET_STAGES; count++)
        if (o->output_stride == whole >> count) return count;
    return -1;
}

static int deeplab_check_opts(const tern_deeplabv3_opts *o, tern_error *err)
{
    int depth = tern_resnet_preset(o->depth).stages ? o->depth : 0;
    if (!depth)
        return tern__error_set(err, "tern_deeplabv3_new", TERN_E_RANGE,
                               "deeplabv3: depth is %d, expected 18, 34, 50, 101 or 152", o->depth);
    if (dilated_stages(o) < 0)
        return tern__error_set(err, "tern_deeplabv3_new", TERN_E_RANGE,
                               "deeplabv3: output_stride is %d, expected %s", o->output_stride,
                               o->small_stem ? "1, 2, 4 or 8 with a small stem" : "4, 8, 16 or 32");
    if (o->dropout >= 0 && o->dropout < 1 && o->aux_dropout >= 0 && o->aux_dropout < 1) return TERN_OK;
    return tern__error_set(err, "tern_deeplabv3_new", TERN_E_RANGE,
                           "deeplabv3: dropout is %g and aux_dropout %g, expected at least 0 and less than 1",
                           o->dropout, o->aux_dropout);
}

static tern_resnet_opts backbone_opts(const tern_deeplabv3_opts *o)
{
    tern_resnet_opts opts = tern_resnet_preset(o->depth);
    opts.in_channels = o->in_channels;
    opts.classes = 0;
    opts.small_stem = o->small_stem;
    memcpy(opts.channels, o->channels, sizeof(opts.channels));
    for (int i = 0; i < dilated_stages(o); i++) opts.dilate[TERN_RESNET_STAGES - 1 - i] = true;
    return opts;
}

/* As torchvision, creates the auxiliary head first, and registers it last. */
static bool deeplab_add_all(deeplabv3 *self, const tern_deeplabv3_opts *o, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = backbone_opts(o);
    int64_t widened = opts.bottleneck ? 4 : 1;
    self->backbone = tern_module_add(&self->base, "backbone", tern_resnet_new(&opts, rng, err), err);
    if (!self->backbone) return false;
    tern_module *aux = o->aux ? new_aux_head(o, widened * o->channels[2], rng, err) : NULL;
    self->classifier =
        tern_module_add(&self->base, "classifier", new_head(o, widened * o->channels[3], rng, err), err);
    if (o->aux) self->aux_classifier = tern_module_add(&self->base, "aux_classifier", aux, err);
    return self->classifier && (!o->aux || self->aux_classifier);
}

tern_module *tern_deeplabv3_new(const tern_deeplabv3_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_deeplabv3_opts o = tern_deeplabv3_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        deeplab_check_opts(&o, err))
        return NULL;
    for (int i = 0; i < RATES; i++)
        if (o.rates[i] == 0) o.rates[i] = (i + 1) * 96 / o.output_stride;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    deeplabv3 *self = tern__module_new(sizeof(*self), "deeplabv3", deeplabv3_forward, err);
    if (!self) return NULL;
    if (deeplab_add_all(self, &o, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
