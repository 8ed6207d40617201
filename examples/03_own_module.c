/* 03_own_module.c - a custom module: two linear layers, a forward function, and a second function that uses
 * the same parameters.
 *
 *     tern run -n 2 build/examples/03_own_module
 *
 * Trains with a loss that uses both functions, forward and middle; prints the mean loss over the ranks of ten
 * steps. */
#include <stdio.h>

#include <tern.h>

#include "usage.h"

/* [own module] */
typedef struct net {
    tern_module base;
    tern_module *nn1, *nn2;
} net;

static tern_tensor *net_forward(tern_module *module, tern_scope *s, tern_tensor *x) /* (N, 10) -> (N, 10) */
{
    net *self = (net *)module;
    return tern_forward(self->nn2, s, tern_forward(self->nn1, s, x));
}

static tern_tensor *net_middle(net *self, tern_scope *s, tern_tensor *x) /* (N, 10) -> (N, 20) */
{
    return tern_forward(self->nn1, s, x);
}

static void net_init(net *self, tern_rng *rng, tern_error *err)
{
    tern_module_init(&self->base, "net", net_forward, err);
    self->nn1 = tern_module_add(&self->base, "nn1", tern_linear_new(10, 20, NULL, rng, err), err);
    self->nn2 = tern_module_add(&self->base, "nn2", tern_linear_new(20, 10, NULL, rng, err), err);
}
/* [own module] */

int main(int argc, char **argv)
{
    usage_read(argc, argv, "", "Trains a module of its own, on the ranks of a launcher.");
    tern_error err = {0};
    net model;
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    net_init(&model, rng, &err);
    tern_ddp *ddp = tern_ddp_new(&model.base, world, NULL, &err);
    tern_optim *opt = tern_sgd_new(&model.base, NULL, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    float x[20 * 10], target[20 * 10], middle_target[20 * 20];
    if (!err.code) {
        tern_rng_seed(rng, (uint64_t)tern_group_rank(world));
        tern_rng_normal(rng, x, 20 * 10, 0, 1);
        tern_rng_normal(rng, target, 20 * 10, 0, 1);
        tern_rng_normal(rng, middle_target, 20 * 20, 0, 1);
        tern_optim_lr_set(opt, 0, 0.1);
    }
    for (int step = 0; step < 10 && !err.code; step++) {
        tern_tensor *in = tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){20, 10});
        tern_tensor *out = tern_tensor_from(s, target, TERN_F32, 2, (int64_t[]){20, 10});
        tern_tensor *mid = tern_tensor_from(s, middle_target, TERN_F32, 2, (int64_t[]){20, 20});
        tern_tensor *loss =
            tern_add(s, tern_mse_loss(s, tern_forward(&model.base, s, in), out, TERN_LOSS_MEAN),
                     tern_mse_loss(s, net_middle(&model, s, in), mid, TERN_LOSS_MEAN));
        tern_backward(s, loss);
        tern_optim_step(opt, s);
        if (tern_group_rank(world) == 0) printf("step %d  loss %.6f\n", step, tern_ddp_loss_mean(ddp));
        tern_scope_end(s, &err);
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_release(&model.base);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err);
}
