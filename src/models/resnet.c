/* resnet.c - residual networks (He et al. 2015), with torchvision's names and order of construction, so that
 * the same generator gives the same initial weights as in torchvision. */
#include "models/resnet.h"
#include "base/opts.h"
#include "nn/nn.h"

#include <tern/init.h>

#include <stdio.h>
#include <string.h>

/* ---- blocks: relu(bn(conv(.. relu(bn(conv(x))))) + shortcut(x)) ---- */

#define CONVS  3 /* per block, at most */
#define WIDENS 4 /* the factor by which a bottleneck widens */

typedef struct block {
    tern_module base;
    int count; /* convolutions: 2 in a basic block, 3 in a bottleneck */
    tern_module *conv[CONVS], *bn[CONVS];
    tern_module *downsample; /* 1x1 convolution and batch norm if the shape changes; NULL: the identity */
} block;

typedef struct convolution {
    int64_t in, out, kernel, stride, dilation;
} convolution;

static tern_tensor *block_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    block *self = (block *)module;
    tern_tensor *shortcut = self->downsample ? tern_forward(self->downsample, s, x) : x;
    for (int i = 0; i < self->count; i++) {
        x = tern_forward(self->conv[i], s, x);
        x = tern_batch_norm_act_forward(self->bn[i], s, x, i + 1 < self->count ? NULL : shortcut, true);
    }
    return x;
}

/* The padding is such that only the stride changes the size. */
static tern_module *resnet_new_conv(const convolution *c, tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    for (int d = 0; d < 2; d++) {
        opts.stride[d] = c->stride;
        opts.padding[d] = c->kernel / 2 * c->dilation;
        opts.dilation[d] = c->dilation;
    }
    opts.bias = false;
    return tern_conv2d_new(c->in, c->out, c->kernel, c->kernel, &opts, rng, err);
}

static tern_module *new_downsample(int64_t in, int64_t out, int64_t stride, tern_rng *rng, tern_error *err)
{
    tern_module *both = tern_sequential_new(err);
    tern_sequential_add(both, resnet_new_conv(&(convolution){in, out, 1, stride, 1}, rng, err), err);
    tern_sequential_add(both, tern_batch_norm2d_new(out, NULL, err), err);
    return both;
}

static bool add_convolutions(block *self, const convolution *c, int count, tern_rng *rng, tern_error *err)
{
    self->count = count;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof(name), "conv%d", i + 1);
        self->conv[i] = tern_module_add(&self->base, name, resnet_new_conv(&c[i], rng, err), err);
        snprintf(name, sizeof(name), "bn%d", i + 1);
        self->bn[i] = tern_module_add(&self->base, name, tern_batch_norm2d_new(c[i].out, NULL, err), err);
        if (!self->bn[i]) return false;
    }
    return true;
}

/* As torchvision, creates `downsample` first, and registers it last. */
static tern_module *resnet_new_block(const char *kind, const convolution *c, int count, int64_t stride,
                                     tern_rng *rng, tern_error *err)
{
    int64_t in = c[0].in, out = c[count - 1].out;
    bool changes = stride != 1 || in != out;
    tern_module *downsample = changes ? new_downsample(in, out, stride, rng, err) : NULL;
    block *self = tern__module_new(sizeof(*self), kind, block_forward, err);
    if (!self) {
        tern_module_free(downsample);
        return NULL;
    }
    bool whole = add_convolutions(self, c, count, rng, err);
    if (changes) self->downsample = tern_module_add(&self->base, "downsample", downsample, err);
    if (whole && (!changes || self->downsample)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

static tern_module *new_basic(int64_t in, int64_t channels, int64_t stride, int64_t dilation, tern_rng *rng,
                              tern_error *err)
{
    const convolution c[] = {{in, channels, 3, stride, dilation}, {channels, channels, 3, 1, dilation}};
    return resnet_new_block("basic_block", c, 2, stride, rng, err);
}

static tern_module *new_bottleneck(int64_t in, int64_t channels, int64_t stride, int64_t dilation,
                                   tern_rng *rng, tern_error *err)
{
    const convolution c[] = {{in, channels, 1, 1, 1},
                             {channels, channels, 3, stride, dilation},
                             {channels, WIDENS * channels, 1, 1, 1}};
    return resnet_new_block("bottleneck", c, 3, stride, rng, err);
}

/* An error must stop the following steps even if the caller's err is NULL. */
tern_module *tern_basic_block_new(int64_t in, int64_t out, int64_t stride, tern_rng *rng, tern_error *err)
{
    tern_error own = {0};
    return new_basic(in, out, stride, 1, rng, err ? err : &own);
}

/* ---- the net ---- */

typedef struct resnet {
    tern_module base;
    tern_module *conv1, *bn1, *maxpool, *fc;
    int stages;
    tern_module *layer[TERN_RESNET_STAGES];
} resnet;

tern_tensor *tern__resnet_features(tern_module *module, tern_scope *s, tern_tensor *x, tern_tensor **inner)
{
    resnet *self = (resnet *)module;
    x = tern_forward(self->conv1, s, x);
    x = tern_batch_norm_act_forward(self->bn1, s, x, NULL, true);
    if (self->maxpool) x = tern_forward(self->maxpool, s, x);
    for (int i = 0; i < self->stages; i++) {
        if (inner) *inner = x;
        x = tern_forward(self->layer[i], s, x);
    }
    return x;
}

static tern_tensor *resnet_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    resnet *self = (resnet *)module;
    x = tern__resnet_features(module, s, x, NULL);
    return self->fc ? tern_forward(self->fc, s, tern_global_avg_pool(s, x)) : x;
}

tern_resnet_opts tern_resnet_defaults(void)
{
    return (tern_resnet_opts){.size = sizeof(tern_resnet_opts),
                              .in_channels = 3,
                              .classes = 1000,
                              .stages = 4,
                              .blocks = {2, 2, 2, 2},
                              .channels = {64, 128, 256, 512},
                              .kaiming = true};
}

tern_resnet_opts tern_resnet_preset(int depth)
{
    static const struct preset {
        int depth;
        bool bottleneck;
        int blocks[TERN_RESNET_STAGES];
    } presets[] = {{18, false, {2, 2, 2, 2}},
                   {34, false, {3, 4, 6, 3}},
                   {50, true, {3, 4, 6, 3}},
                   {101, true, {3, 4, 23, 3}},
                   {152, true, {3, 8, 36, 3}}};
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.stages = 0;
    for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++) {
        if (presets[i].depth != depth) continue;
        opts.stages = TERN_RESNET_STAGES;
        opts.bottleneck = presets[i].bottleneck;
        memcpy(opts.blocks, presets[i].blocks, sizeof(opts.blocks));
    }
    return opts;
}

static int resnet_check_opts(const tern_resnet_opts *o, tern_error *err)
{
    if (o->stages < 1 || o->stages > TERN_RESNET_STAGES)
        return tern__error_set(err, "tern_resnet_new", TERN_E_RANGE, "resnet: stages is %d, expected 1 to %d",
                               o->stages, TERN_RESNET_STAGES);
    for (int i = 0; i < o->stages; i++)
        if (o->blocks[i] < 1 || o->channels[i] < 1)
            return tern__error_set(err, "tern_resnet_new", TERN_E_RANGE,
                                   "resnet: stage %d has %d blocks of %lld channels, expected at least 1",
                                   i + 1, o->blocks[i], (long long)o->channels[i]);
    if (!o->dilate[0]) return TERN_OK;
    return tern__error_set(err, "tern_resnet_new", TERN_E_INVALID,
                           "resnet: dilate is set for stage 1, which has no stride that it could replace");
}

static tern_module *new_stem_conv(const tern_resnet_opts *o, tern_rng *rng, tern_error *err)
{
    convolution c = {o->in_channels, o->channels[0], o->small_stem ? 3 : 7, o->small_stem ? 1 : 2, 1};
    return resnet_new_conv(&c, rng, err);
}

static tern_module *new_stem_pool(tern_error *err)
{
    tern_pool2d_opts opts = tern_pool2d_defaults();
    opts.stride[0] = opts.stride[1] = 2;
    opts.padding[0] = opts.padding[1] = 1;
    return tern_max_pool2d_new(3, 3, &opts, err);
}

/* Returns the channels of a stage's output. */
static int64_t resnet_widened(const tern_resnet_opts *o, int stage)
{
    return o->channels[stage] * (o->bottleneck ? WIDENS : 1);
}

/* If a stage dilates instead of striding, its first block keeps the dilation of the stage before it, whose
 * output it reads, and all later blocks of the net have twice that dilation. */
static tern_module *new_stage(const tern_resnet_opts *o, int stage, int64_t *dilation, tern_rng *rng,
                              tern_error *err)
{
    tern_module *blocks = tern_sequential_new(err);
    int64_t in = stage ? resnet_widened(o, stage - 1) : o->channels[0], first = *dilation;
    if (o->dilate[stage]) *dilation *= 2;
    for (int b = 0; b < o->blocks[stage] && blocks; b++) {
        tern_module *next = (o->bottleneck ? new_bottleneck : new_basic)(
            b ? resnet_widened(o, stage) : in, o->channels[stage], stage && !b && !o->dilate[stage] ? 2 : 1,
            b ? *dilation : first, rng, err);
        if (tern_sequential_add(blocks, next, err)) continue;
        tern_module_free(blocks);
        return NULL;
    }
    return blocks;
}

/* As torchvision, draws every convolution's weights in order from N(0, 2 / fan out), after all modules are
 * made. */
static bool init_convolutions(tern_module *net, tern_rng *rng, tern_error *err)
{
    if (tern__module_state(net, err)) return false;
    int count = tern_state_count(net);
    for (int i = 0; i < count; i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        if (tensor->view.ndim == 4 &&
            tern_init_kaiming_normal(tensor, 0, TERN_FAN_OUT, TERN_GAIN_RELU, rng, err) != TERN_OK)
            return false;
    }
    return true;
}

static bool add_stages(resnet *self, const tern_resnet_opts *o, tern_rng *rng, tern_error *err)
{
    int64_t dilation = 1;
    self->stages = o->stages;
    for (int i = 0; i < o->stages; i++) {
        char name[24];
        snprintf(name, sizeof(name), "layer%d", i + 1);
        self->layer[i] = tern_module_add(&self->base, name, new_stage(o, i, &dilation, rng, err), err);
        if (!self->layer[i]) return false;
    }
    return true;
}

static bool resnet_add_all(resnet *self, const tern_resnet_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *m = &self->base;
    self->conv1 = tern_module_add(m, "conv1", new_stem_conv(o, rng, err), err);
    self->bn1 = tern_module_add(m, "bn1", tern_batch_norm2d_new(o->channels[0], NULL, err), err);
    if (!o->small_stem) self->maxpool = tern_module_add(m, "maxpool", new_stem_pool(err), err);
    bool whole = self->bn1 && (o->small_stem || self->maxpool) && add_stages(self, o, rng, err);
    if (!whole || o->classes == 0) return whole;
    self->fc = tern_module_add(
        m, "fc", tern_linear_new(resnet_widened(o, o->stages - 1), o->classes, NULL, rng, err), err);
    return self->fc;
}

tern_module *tern_resnet_new(const tern_resnet_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts o = tern_resnet_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        resnet_check_opts(&o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    resnet *self = tern__module_new(sizeof(*self), "resnet", resnet_forward, err);
    if (!self) return NULL;
    if (resnet_add_all(self, &o, rng, err) &&
        (!o.kaiming || !rng || init_convolutions(&self->base, rng, err)))
        return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
