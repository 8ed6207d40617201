/* resnet.c - residual nets of basic blocks (He et al. 2015), torchvision's names and order of construction,
 * so that the initial weights are those of torchvision for the same generator. */
#include "base/opts.h"
#include "nn/nn.h"

#include <tern/init.h>
#include <tern/models.h>

#include <stdio.h>
#include <string.h>

/* ---- basic block: relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)) ---- */

typedef struct block {
    tern_module base;
    tern_module *conv1, *bn1, *conv2, *bn2;
    tern_module
        *downsample; /* 1x1 convolution and batch norm, where the shape changes; NULL: the input itself */
} block;

static tern_tensor *block_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    block *self = (block *)module;
    tern_tensor *shortcut = self->downsample ? tern_forward(self->downsample, s, x) : x;
    tern_tensor *y = tern_forward(self->conv1, s, x);
    y = tern_batch_norm_act_forward(self->bn1, s, y, NULL, true);
    y = tern_forward(self->conv2, s, y);
    return tern_batch_norm_act_forward(self->bn2, s, y, shortcut, true);
}

static tern_module *new_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, tern_rng *rng,
                             tern_error *err)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.stride[0] = opts.stride[1] = stride;
    opts.padding[0] = opts.padding[1] = kernel / 2;
    opts.bias = false;
    return tern_conv2d_new(in, out, kernel, kernel, &opts, rng, err);
}

static tern_module *new_downsample(int64_t in, int64_t out, int64_t stride, tern_rng *rng, tern_error *err)
{
    tern_module *both = tern_sequential_new(err);
    tern_sequential_add(both, new_conv(in, out, 1, stride, rng, err), err);
    tern_sequential_add(both, tern_batch_norm2d_new(out, NULL, err), err);
    return both;
}

/* torchvision makes a stage's downsample before the block that uses it, and registers it last. */
static tern_module *new_block(int64_t in, int64_t out, int64_t stride, tern_rng *rng, tern_error *err)
{
    bool changes = stride != 1 || in != out;
    tern_module *downsample = changes ? new_downsample(in, out, stride, rng, err) : NULL;
    block *self = tern__module_new(sizeof(*self), "basic_block", block_forward, err);
    if (!self) {
        tern_module_free(downsample);
        return NULL;
    }
    tern_module *m = &self->base;
    self->conv1 = tern_module_add(m, "conv1", new_conv(in, out, 3, stride, rng, err), err);
    self->bn1 = tern_module_add(m, "bn1", tern_batch_norm2d_new(out, NULL, err), err);
    self->conv2 = tern_module_add(m, "conv2", new_conv(out, out, 3, 1, rng, err), err);
    self->bn2 = tern_module_add(m, "bn2", tern_batch_norm2d_new(out, NULL, err), err);
    if (changes) self->downsample = tern_module_add(m, "downsample", downsample, err);
    if (self->bn2 && (!changes || self->downsample)) return m;
    tern_module_free(m);
    return NULL;
}

/* A failure must stop what comes after it, also for a caller who does not want to hear of it. */
tern_module *tern_basic_block_new(int64_t in, int64_t out, int64_t stride, tern_rng *rng, tern_error *err)
{
    tern_error own = {0};
    return new_block(in, out, stride, rng, err ? err : &own);
}

/* ---- the net ---- */

typedef struct resnet {
    tern_module base;
    tern_module *conv1, *bn1, *maxpool, *fc;
    int stages;
    tern_module *layer[TERN_RESNET_STAGES];
} resnet;

static tern_tensor *resnet_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    resnet *self = (resnet *)module;
    x = tern_forward(self->conv1, s, x);
    x = tern_batch_norm_act_forward(self->bn1, s, x, NULL, true);
    if (self->maxpool) x = tern_forward(self->maxpool, s, x);
    for (int i = 0; i < self->stages; i++) x = tern_forward(self->layer[i], s, x);
    return tern_forward(self->fc, s, tern_global_avg_pool(s, x));
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

static int check_opts(const tern_resnet_opts *o, tern_error *err)
{
    if (o->stages < 1 || o->stages > TERN_RESNET_STAGES)
        return tern__error_set(err, "tern_resnet_new", TERN_E_RANGE, "resnet: stages is %d, expected 1 to %d",
                               o->stages, TERN_RESNET_STAGES);
    for (int i = 0; i < o->stages; i++)
        if (o->blocks[i] < 1 || o->channels[i] < 1)
            return tern__error_set(err, "tern_resnet_new", TERN_E_RANGE,
                                   "resnet: stage %d has %d blocks of %lld channels, expected at least 1",
                                   i + 1, o->blocks[i], (long long)o->channels[i]);
    return TERN_OK;
}

static tern_module *new_stem_conv(const tern_resnet_opts *o, tern_rng *rng, tern_error *err)
{
    return o->small_stem ? new_conv(o->in_channels, o->channels[0], 3, 1, rng, err)
                         : new_conv(o->in_channels, o->channels[0], 7, 2, rng, err);
}

static tern_module *new_stem_pool(tern_error *err)
{
    tern_pool2d_opts opts = tern_pool2d_defaults();
    opts.stride[0] = opts.stride[1] = 2;
    opts.padding[0] = opts.padding[1] = 1;
    return tern_max_pool2d_new(3, 3, &opts, err);
}

static tern_module *new_stage(const tern_resnet_opts *o, int stage, tern_rng *rng, tern_error *err)
{
    tern_module *blocks = tern_sequential_new(err);
    int64_t in = o->channels[stage ? stage - 1 : 0], out = o->channels[stage];
    for (int b = 0; b < o->blocks[stage] && blocks; b++) {
        tern_module *next = new_block(b ? out : in, out, stage && !b ? 2 : 1, rng, err);
        if (tern_sequential_add(blocks, next, err)) continue;
        tern_module_free(blocks);
        return NULL;
    }
    return blocks;
}

/* torchvision: after everything is made, every convolution in order from N(0, 2 / fan out). */
static bool init_convolutions(tern_module *net, tern_rng *rng, tern_error *err)
{
    if (tern__module_state(net, err)) return false;
    int count = tern_state_count(net);
    for (int i = 0; i < count; i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        if (tensor->view.ndim == 4 &&
            tern_init_kaiming_normal(tensor, 0, TERN_FAN_OUT, TERN_RELU, rng, err) != TERN_OK)
            return false;
    }
    return true;
}

static bool add_all(resnet *self, const tern_resnet_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *m = &self->base;
    self->conv1 = tern_module_add(m, "conv1", new_stem_conv(o, rng, err), err);
    self->bn1 = tern_module_add(m, "bn1", tern_batch_norm2d_new(o->channels[0], NULL, err), err);
    if (!o->small_stem) self->maxpool = tern_module_add(m, "maxpool", new_stem_pool(err), err);
    bool whole = self->bn1 && (o->small_stem || self->maxpool);
    self->stages = o->stages;
    for (int i = 0; i < o->stages && whole; i++) {
        char name[24];
        snprintf(name, sizeof(name), "layer%d", i + 1);
        self->layer[i] = tern_module_add(m, name, new_stage(o, i, rng, err), err);
        whole = self->layer[i];
    }
    if (whole)
        self->fc = tern_module_add(
            m, "fc", tern_linear_new(o->channels[o->stages - 1], o->classes, NULL, rng, err), err);
    return self->fc;
}

tern_module *tern_resnet_new(const tern_resnet_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts o = tern_resnet_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || check_opts(&o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* what follows is chained through it */
    resnet *self = tern__module_new(sizeof(*self), "resnet", resnet_forward, err);
    if (!self) return NULL;
    if (add_all(self, &o, rng, err) && (!o.kaiming || init_convolutions(&self->base, rng, err)))
        return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
