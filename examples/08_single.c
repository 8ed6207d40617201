/* 08_single.c - an MLP on Fashion-MNIST, on one device.
 *
 *     build/examples/08_single
 *
 * 08_single.c, 09_data_parallel.c and 10_ddp.c run the same training on one device, on several devices, and
 * in several processes: `diff` shows the lines that differ. Prints the loss of every hundredth step. */
#include "fashion.h"

#define BATCH 60 /* over all devices or ranks; 2, 3 and 4 divide it */

int main(int argc, char **argv)
{
    usage_read(argc, argv, "", "Trains an MLP on Fashion-MNIST; see docs/parallel.md.");
    tern_error err = {0};
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_dataset *set = fashion_open("train", &err);
    tern_sampler *order = tern_random_sampler_new(FASHION_TRAIN, 0, &err);
    tern_loader *train = fashion_loader(set, order, BATCH, true, &err);
    tern_module *net = fashion_mlp_new(rng, &err);
    tern_optim *opt = tern_sgd_new(net, NULL, &err);
    tern_scope *s = tern_scope_new(dev, NULL, &err);
    if (err.code) return tern_error_print(&err);
    tern_optim_lr_set(opt, 0, 0.05);

    tern_batch b;
    for (int step = 0; tern_loader_next(train, s, &b); step++) {
        tern_tensor *scores = tern_forward(net, s, b.x);
        tern_tensor *loss = tern_cross_entropy(s, scores, b.y, NULL);
        tern_backward(s, loss);
        tern_optim_step(opt, s);
        if (step % 100 == 0) printf("step %d  loss %.4f\n", step, tern_item(loss));
        if (tern_scope_end(s, &err)) break;
    }

    tern_scope_free(s);
    tern_optim_free(opt);
    tern_module_free(net);
    tern_loader_free(train);
    tern_sampler_free(order);
    tern_dataset_free(set);
    tern_rng_free(rng);
    tern_device_close(dev);
    return tern_error_print(&err);
}
