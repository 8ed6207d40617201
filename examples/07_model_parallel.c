/* 07_model_parallel.c - model parallelism within data parallelism: the two parts of the model are on two
 * devices, and each rank has a copy of both parts.
 *
 *     build/examples/07_model_parallel 2              starts 2 ranks with tern_spawn
 *     tern run -n 2 build/examples/07_model_parallel  tern run starts the 2 ranks
 *
 * Activations move from the first device to the second, and their gradients back; the labels are on the
 * second. Each rank uses two devices, the cores "cpu:0" and "cpu:1"; if there is only one core, both parts
 * are on it. Prints the devices of the parts and the mean loss over the ranks of ten steps. */
#include "demo.h"

#define BATCH 20

typedef struct net {
    tern_module base;
    tern_module *net1, *net2;
    tern_device *dev1; /* of net2 */
} net;

static tern_tensor *net_forward(tern_module *module, tern_scope *s, tern_tensor *x) /* (N, 10) -> (N, 5) */
{
    net *self = (net *)module;
    tern_tensor *middle = tern_linear_act_forward(self->net1, s, x, true);
    return tern_forward(self->net2, s, tern_to(s, middle, self->dev1));
}

static void net_init(net *self, tern_device *dev0, tern_device *dev1, tern_rng *rng, tern_error *err)
{
    tern_module_init(&self->base, "net", net_forward, err);
    self->net1 = tern_module_add(&self->base, "net1", tern_linear_new(10, 10, NULL, rng, err), err);
    self->net2 = tern_module_add(&self->base, "net2", tern_linear_new(10, 5, NULL, rng, err), err);
    self->dev1 = dev1;
    tern_module_to(self->net1, dev0, err);
    tern_module_to(self->net2, dev1, err);
}

/* Opens the second core, or the first if it is the only one. */
static tern_device *open_second(tern_error *err)
{
    tern_error none = {0};
    tern_device *device = tern_device_open("cpu:1", &none);
    return none.code == TERN_E_RANGE ? tern_device_open("cpu:0", err) : device;
}

static int demo_model_parallel(int rank, void *arg)
{
    (void)arg;
    net model;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev0 = tern_device_open("cpu:0", &err), *dev1 = open_second(&err);
    tern_rng *rng = tern_rng_new(0, &err);
    net_init(&model, dev0, dev1, rng, &err);
    tern_ddp *ddp = tern_ddp_new(&model.base, world, NULL, &err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.1;
    tern_optim *opt = tern_sgd_new(&model.base, &sgd, &err);
    tern_scope *s = tern_scope_new(dev0, world, &err);
    float x[BATCH * 10], labels[BATCH * 5];
    if (!err.code) {
        if (rank == 0) printf("net1 on %s, net2 on %s\n", tern_device_name(dev0), tern_device_name(dev1));
        tern_rng_seed(rng, (uint64_t)rank);
        tern_rng_normal(rng, x, BATCH * 10, 0, 1);
        tern_rng_normal(rng, labels, BATCH * 5, 0, 1);
    }
    for (int step = 0; step < 10 && !err.code; step++) {
        tern_tensor *outputs =
            tern_forward(&model.base, s, tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){BATCH, 10}));
        tern_tensor *truth =
            tern_to(s, tern_tensor_from(s, labels, TERN_F32, 2, (int64_t[]){BATCH, 5}), dev1);
        tern_backward(s, tern_mse_loss(s, outputs, truth, TERN_LOSS_MEAN));
        tern_optim_step(opt, s);
        if (rank == 0) printf("step %d  loss %.6f\n", step, tern_ddp_loss_mean(ddp));
        tern_scope_end(s, &err);
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_release(&model.base);
    tern_rng_free(rng);
    tern_device_close(dev1);
    tern_device_close(dev0);
    tern_group_close(world);
    return tern_error_print(&err);
}

int main(int argc, char **argv)
{
    return run_demo(demo_model_parallel, argc, argv,
                    "Trains a model whose parts are on two devices. Without a launcher it starts the ranks "
                    "itself (default 2).");
}
