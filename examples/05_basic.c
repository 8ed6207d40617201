/* 05_basic.c - the smallest data-parallel training: a toy model, random data, mean squared error, SGD.
 *
 *     build/examples/05_basic 4                 starts 4 ranks with tern_spawn
 *     tern run -n 4 build/examples/05_basic     tern run starts the 4 ranks
 *
 * Prints the mean loss over the ranks of ten steps. Ranks may share cores: any number of ranks runs on any
 * number of cores. */
#include "demo.h"

#define BATCH 20

static int demo_basic(int rank, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_mlp_new((int64_t[]){10, 10, 5}, 3, rng, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.1;
    tern_optim *opt = tern_sgd_new(net, &sgd, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    float x[BATCH * 10], labels[BATCH * 5];
    if (!err.code) {
        tern_rng_seed(rng, (uint64_t)rank);
        tern_rng_normal(rng, x, BATCH * 10, 0, 1);
        tern_rng_normal(rng, labels, BATCH * 5, 0, 1);
    }
    for (int step = 0; step < 10 && !err.code; step++) {
        tern_tensor *outputs =
            tern_forward(net, s, tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){BATCH, 10}));
        tern_tensor *truth = tern_tensor_from(s, labels, TERN_F32, 2, (int64_t[]){BATCH, 5});
        tern_backward(s, tern_mse_loss(s, outputs, truth, TERN_LOSS_MEAN));
        tern_optim_step(opt, s);
        if (rank == 0) printf("step %d  loss %.6f\n", step, tern_ddp_loss_mean(ddp));
        tern_scope_end(s, &err);
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err);
}

int main(int argc, char **argv)
{
    return run_demo(
        demo_basic, argc, argv,
        "The smallest data-parallel training. Without a launcher it starts the ranks itself (default 2).");
}
