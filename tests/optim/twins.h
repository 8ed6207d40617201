/* twins.h - two equal models on every rank, each under its own ddp, whose gradients are equal and random: one
 * with a sharded optimizer, the other without. */
#ifndef TERN_TESTS_OPTIM_TWINS_H
#define TERN_TESTS_OPTIM_TWINS_H

#include "comm/ranks.h"

#include "comm/move/backend.h"

#include "optim/optim.h"

#include <math.h>

enum { PARAMS = 8, FROZEN = 3 };

/* Odd sizes of both dtypes, in two layers; slices are cut inside of them. */
static const struct {
    const char *name;
    tern_dtype dtype;
    int ndim;
    int64_t shape[3];
} twin_params[PARAMS] = {
    {"weight", TERN_F32, 2, {5, 7}},    {"bias", TERN_F32, 1, {1}},     {"scale", TERN_F64, 1, {33}},
    {"frozen", TERN_F32, 3, {4, 3, 3}}, {"weight", TERN_F32, 1, {531}}, {"bias", TERN_F64, 2, {2, 9}},
    {"scale", TERN_F32, 1, {16}},       {"shift", TERN_F32, 1, {17}},
};

typedef struct twin {
    tern_module *net, *layers[2];
    tern_tensor *p[PARAMS];
    tern_ddp *ddp;
    tern_optim *optim;
    tern_schedule *schedule;
} twin;

typedef tern_optim *(*twin_optim)(tern_module *module, tern_error *err);

typedef struct twins {
    int rank, size;
    tern_group *root, *world; /* world is the root or a part of it */
    tern_device *dev;
    tern_scope *s;
    tern_rng *rng;
    twin a, b; /* a is the sharded one */
    tern_error err;
} twins;

static inline void twin_open_net(twin *t, tern_rng *rng, tern_error *err)
{
    t->net = tern_sequential_new(err);
    for (int i = 0; i < 2; i++)
        t->layers[i] = tern_module_add(t->net, i ? "b" : "a", tern_sequential_new(err), err);
    for (int i = 0; i < PARAMS; i++) {
        t->p[i] = tern_parameter_add(t->layers[i >= PARAMS / 2], twin_params[i].name, twin_params[i].dtype,
                                     twin_params[i].ndim, twin_params[i].shape, err);
        if (!t->p[i]) return;
        for (int64_t k = 0; k < tern_tensor_count(t->p[i]); k++) {
            float x;
            tern_rng_normal(rng, &x, 1, 0, 1);
            tern__view_set(&t->p[i]->view, k, x);
        }
    }
    tern_requires_grad_set(t->p[FROZEN], false, err);
}

static inline void twin_open(twins *t, twin *one, twin_optim optim)
{
    tern_rng_seed(t->rng, 3);
    twin_open_net(one, t->rng, &t->err);
    one->ddp = tern_ddp_new(one->net, t->world, NULL, &t->err);
    if (!optim) return;
    one->optim = optim(one->net, &t->err);
    one->schedule = tern_exponential_schedule_new(one->optim, TERN_UNIT_STEPS, 0.9, &t->err);
}

/* Both with optimizers of this make, the first one's sharded; on the ranks of the same color, or on all if it
 * is -1. */
static inline void twins_open_part(twins *t, const tern__bootstrap *boot, int color, twin_optim optim)
{
    *t = (twins){0};
    t->root = t->world = tern__group_open_boot(boot, NULL, &t->err);
    if (color >= 0) t->world = tern_group_split(t->root, color, boot->rank, NULL, &t->err);
    t->rank = tern_group_rank(t->world);
    t->size = tern_group_size(t->world);
    t->dev = tern_device_open("cpu", &t->err);
    tern_device_threads_set(t->dev, 1, &t->err);
    t->rng = tern_rng_new(1, &t->err);
    twin_open(t, &t->a, optim);
    twin_open(t, &t->b, optim);
    if (optim) tern_optim_shard(t->a.optim, t->world, &t->err);
    t->s = tern_scope_new(t->dev, t->world, &t->err);
}

static inline void twins_open(twins *t, const tern__bootstrap *boot, twin_optim optim)
{
    twins_open_part(t, boot, -1, optim);
}

static inline void twin_close(twin *one)
{
    tern_schedule_free(one->schedule);
    tern_optim_free(one->optim);
    tern_ddp_free(one->ddp);
    tern_module_free(one->net);
}

static inline int twins_close(twins *t)
{
    tern_scope_free(t->s);
    twin_close(&t->a);
    twin_close(&t->b);
    tern_rng_free(t->rng);
    tern_device_close(t->dev);
    if (t->world != t->root) tern_group_close(t->world);
    tern_group_close(t->root);
    return 0;
}

/* Which parameters a rank uses in a step: parameter 1 in even steps only, the others by chance. */
static inline bool twins_uses(const twins *t, int step, int i)
{
    uint32_t draw = ((uint32_t)(step * 64 + i * 8 + t->rank) * 2654435761u) >> 16;
    return i == 1 ? step % 2 == 0 : i == 0 || draw % 3 != 0;
}

/* One backward of sum(p * noise), the same noise for both twins of a rank. */
static inline void twins_backward(twins *t, twin *one, int step)
{
    tern_tensor *loss = NULL;
    tern_rng_seed(t->rng, (uint64_t)(step * 100 + t->rank));
    for (int i = 0; i < PARAMS; i++) {
        tern_tensor *noise = tern_randn(t->s, t->rng, twin_params[i].ndim, twin_params[i].shape);
        if (!twins_uses(t, step, i)) continue;
        tern_tensor *p = tern_cast(t->s, one->p[i], TERN_F32);
        tern_tensor *part = tern_sum(t->s, tern_mul(t->s, tern_mul(t->s, p, p), noise));
        loss = loss ? tern_add(t->s, loss, part) : part;
    }
    tern_backward(t->s, loss);
}

/* A whole step: gradients, clipping, update, schedule. */
static inline void twins_step(twins *t, twin *one, int step)
{
    twins_backward(t, one, step);
    tern_clip_grad_norm(t->s, one->net, 5, 2);
    tern_optim_step(one->optim, t->s);
    tern_scope_end(t->s, &t->err);
    tern_schedule_step(one->schedule);
}

static inline bool twins_are_equal(const twins *t)
{
    bool equal = true;
    for (int i = 0; i < PARAMS; i++)
        equal &= !memcmp(t->a.p[i]->view.data, t->b.p[i]->view.data, tern__view_bytes(&t->a.p[i]->view));
    return equal;
}

/* A number that all parameters of the sharded twin go into. */
static inline double twins_evaluate(const twins *t)
{
    double sum = 0;
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < tern_tensor_count(t->a.p[i]); k++)
            sum += tern__view_get(&t->a.p[i]->view, k) * (double)(k % 7 + 1);
    return sum;
}

/* ---- makes of optimizers ---- */

static inline bool twin_is_bias(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)parameter;
    (void)ctx;
    return strstr(name, "bias") || strstr(name, "scale");
}

static inline tern_optim *twin_sgd(tern_module *module, tern_error *err)
{
    return tern_sgd_new(module, NULL, err);
}

static inline tern_optim *twin_nesterov(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.01;
    opts.momentum = 0.9;
    opts.weight_decay = 0.01;
    opts.nesterov = true;
    return tern_sgd_new(module, &opts, err);
}

/* Momentum in the second group alone. */
static inline tern_optim *twin_grouped_sgd(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = 0.5;
    opts.dampening = 0.25;
    opts.maximize = true;
    tern_optim *optim = tern_sgd_new(module, NULL, err);
    tern_sgd_group_add(optim, twin_is_bias, NULL, &opts, err);
    return optim;
}

static inline tern_optim *twin_adam(tern_module *module, tern_error *err)
{
    tern_adam_opts opts = tern_adam_defaults();
    opts.weight_decay = 0.1;
    opts.amsgrad = true;
    return tern_adam_new(module, &opts, err);
}

/* Amsgrad in the second group alone. */
static inline tern_optim *twin_grouped_adamw(tern_module *module, tern_error *err)
{
    tern_adam_opts opts = tern_adamw_defaults();
    opts.lr = 0.1;
    opts.weight_decay = 0;
    opts.amsgrad = true;
    opts.maximize = true;
    tern_optim *optim = tern_adamw_new(module, NULL, err);
    tern_adam_group_add(optim, twin_is_bias, NULL, &opts, err);
    return optim;
}

/* Momentum, and the mean of the gradients, in the second group alone. */
static inline tern_optim *twin_grouped_rmsprop(tern_module *module, tern_error *err)
{
    tern_rmsprop_opts opts = tern_rmsprop_defaults();
    opts.momentum = 0.5;
    opts.centered = true;
    opts.weight_decay = 0.01;
    tern_optim *optim = tern_rmsprop_new(module, NULL, err);
    tern_rmsprop_group_add(optim, twin_is_bias, NULL, &opts, err);
    return optim;
}

static inline tern_optim *twin_adagrad(tern_module *module, tern_error *err)
{
    tern_adagrad_opts opts = tern_adagrad_defaults();
    opts.lr_decay = 0.1;
    opts.initial_accumulator_value = 0.5;
    return tern_adagrad_new(module, &opts, err);
}

static inline tern_optim *twin_lamb(tern_module *module, tern_error *err)
{
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.lr = 0.01;
    return tern_lamb_new(module, &opts, err);
}

/* Without weight decay, and so without trust ratios, in the second group. */
static inline tern_optim *twin_grouped_lamb(tern_module *module, tern_error *err)
{
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.lr = 0.01;
    tern_optim *optim = twin_lamb(module, err);
    opts.weight_decay = 0;
    opts.max_grad_norm = 2;
    tern_lamb_group_add(optim, twin_is_bias, NULL, &opts, err);
    return optim;
}

static inline tern_optim *twin_larc(tern_module *module, tern_error *err)
{
    tern_optim *optim = twin_nesterov(module, err);
    tern_optim_larc(optim, NULL, err);
    return optim;
}

#endif
