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

/* Two of its steps overflow. */
static inline void step_under(fixture *f, tern_amp *amp, int step)
{
    tern_error err = {0};
    tern_amp_backward(amp, f->s, loss_of(f, step, 0, step == 2 || step == 9 ? 1e38 : 1), NULL);
    tern_optim_step(f->opt, f->s);
    tern_scope_end(f->s, &err);
    assert_ok(err);
}

/* ---- one parameter of one element, whose gradient is what it is multiplied with ---- */

typedef struct one {
    tern_module net;
    tern_tensor *p;
    tern_amp *amp;
    tern_optim *optim;
    tern_scope *scope;
    tern_device *device;
} one;

static inline tern_tensor *return_p(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_mul(scope, ((one *)module)->p, x);
}

static inline void open_one(one *o, const tern_amp_opts *opts, double lr, tern_error *err)
{
    *o = (one){0};
    o->device = tern_device_open("cpu", err);
    tern_device_threads_set(o->device, 1, err);
    tern_module_init(&o->net, "one", return_p, err);
    o->p = tern_parameter_add(&o->net, "p", TERN_F32, 0, NULL, err);
    *(float *)o->p->view.data = 1;
    o->amp = tern_amp_new(&o->net, opts, err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = lr;
    o->optim = tern_sgd_new(&o->net, &sgd, err);
    o->scope = tern_scope_new(o->device, NULL, err);
    assert_ok(*err);
}

static inline void close_one(one *o)
{
    tern_scope_free(o->scope);
    tern_optim_free(o->optim);
    tern_amp_free(o->amp);
    tern_module_release(&o->net);
    tern_device_close(o->device);
}

/* The gradient of p is x. */
static inline void step_one(one *o, double x, const tern_amp_backward_opts *opts)
{
    tern_tensor *in = tern_full(o->scope, TERN_F32, 0, NULL, x);
    tern_amp_backward(o->amp, o->scope, tern_forward(&o->net, o->scope, in), opts);
}

static inline void end_one(one *o)
{
    tern_error err = {0};
    tern_optim_step(o->optim, o->scope);
    tern_scope_end(o->scope, &err);
    assert_ok(err);
}

#endif
