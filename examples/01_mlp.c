/* 01_mlp.c - an MLP on Fashion-MNIST, on one rank or several.
 *
 *     tern run -n 2 build/examples/01_mlp [epochs]
 *
 * Prints one line per epoch (mean loss over the ranks, test accuracy) and at the end a hash of the weights,
 * which is the same on every rank. Each rank uses batches of 64. */
#include "fashion.h"

int main(int argc, char **argv)
{
    usage_read(argc, argv, "[epochs]",
               "Trains an MLP on Fashion-MNIST (default 1 epoch), on the ranks of a launcher.");
    int epochs = fashion_epochs(argc, argv, 1, 1);
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_dataset *train_set = fashion_open("train", &err), *test_set = fashion_open("t10k", &err);
    tern_sampler *train_order = fashion_train_order(world, &err),
                 *test_order = fashion_test_order(world, &err);
    tern_loader *train = fashion_loader(train_set, train_order, 64, true, &err);
    tern_loader *test = fashion_loader(test_set, test_order, 64, false, &err);
    tern_module *net = fashion_mlp_new(rng, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    tern_optim *opt = tern_sgd_new(net, &sgd, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    if (err.code) return tern_error_print(&err);
    fashion_say_ranks(world, argv[0]);

    for (int epoch = 1; epoch <= epochs && !err.code; epoch++) {
        tern_batch b;
        double loss = 0;
        while (tern_loader_next(train, s, &b)) {
            tern_backward(s, tern_cross_entropy(s, tern_forward(net, s, b.x), b.y, NULL));
            tern_optim_step(opt, s);
            loss += tern_ddp_loss_mean(ddp);
            if (tern_scope_end(s, &err)) break;
        }
        double right = fashion_accuracy(net, test, FASHION_TEST, s, world, &err);
        if (!err.code && tern_group_rank(world) == 0)
            printf("epoch %d  loss %.4f  test accuracy %.2f %%\n", epoch,
                   loss / (double)tern_loader_length(train), 100 * right);
    }
    bool same = !err.code && fashion_compare_weights(net, world, &err);

    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_loader_free(test);
    tern_loader_free(train);
    tern_sampler_free(test_order);
    tern_sampler_free(train_order);
    tern_dataset_free(test_set);
    tern_dataset_free(train_set);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err) || !same;
}
