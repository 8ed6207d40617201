/* levels.h - a net under amp and, on a rank, under a ddp, with its optimizer; its losses. */
#ifndef TERN_TESTS_AMP_LEVELS_H
#define TERN_TESTS_AMP_LEVELS_H

#include "parallel/ddp_fixture.h"

#include "amp/amp.h"

static inline tern_amp_opts opts_of(tern_opt_level level, tern_dtype half)
{
    tern_amp_opts opts = tern_amp_defaults(level);
    opts.half_type = half;
    return opts;
}

/* conv, batch norm, relu, pool, linear */
static inline tern_module *conv_net(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_conv2d_new(1, 4, 3, 3, NULL, rng, err), err);
    tern_sequential_add(net, tern_batch_norm2d_new(4, NULL, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_global_avg_pool_new(err), err);
    tern_sequential_add(net, tern_linear_new(4, CLASSES, NULL, rng, err), err);
    return net;
}

/* A rank, or nobody, with any net, under amp and, with a group, under a ddp. */
static inline tern_amp *open_under(fixture *f, const tern__bootstrap *boot, tern_module *net,
                                   const tern_amp_opts *amp_opts, const tern_ddp_opts *ddp_opts,
                                   tern_error *err)
{
    *f = (fixture){.rank = boot ? boot->rank : 0, .world_size = boot ? boot->world : 1};
    if (boot) f->world = tern__group_open_boot(boot, NULL, err);
    f->dev = tern_device_open("cpu", err);
    tern_device_threads_set(f->dev, 1, err);
    f->rng = tern_rng_new(7, err);
    f->net = net ? net : fixture_mlp(f->rng, err);
    tern_amp *amp = tern_amp_new(f->net, amp_opts, err);
    if (boot) f->ddp = tern_ddp_new(f->net, f->world, ddp_opts, err);
    f->opt = fixture_sgd(f->net, err);
    f->s = tern_scope_new(f->dev, f->world, err);
    return amp;
}

static inline tern_tensor *scaled(fixture *f, tern_tensor *loss, double factor)
{
    return factor == 1 ? loss : tern_mul(f->s, loss, tern_full(f->s, TERN_F32, 0, NULL, factor));
}

static inline tern_tensor *loss_of(fixture *f, int step, int first, double boost)
{
    tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, first, 8));
    return scaled(f, tern_cross_entropy(f->s, y, fixture_labels(f, first, 8), NULL), boost);
}

static inline tern_tensor *image_rows(fixture *f, int step, int first, int count)
{
    tern_tensor *rows = fixture_rows(f, step, first, count);
    return tern_reshape(f->s, rows, 4, (int64_t[]){count, 1, 3, 4});
}

#endif
