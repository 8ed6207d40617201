/* 01_mlp.c - an MLP on Fashion-MNIST, on one rank or several.
 *
 *     tern run -n 2 build/examples/01_mlp [epochs]
 *
 * prints one line an epoch (loss as the mean over the ranks, test accuracy) and, at the end, a hash of the
 * weights that is the same on every rank. Each rank takes batches of 64. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern.h>

#define DATA "/usr/share/datasets/fashion-mnist/"

static tern_dataset *open_set(const char *name, tern_error *err)
{
    char images[256], labels[256];
    tern_idx_opts opts = tern_idx_defaults();
    opts.mean = 0.2860f;
    opts.std = 0.3530f;
    snprintf(images, sizeof(images), DATA "%s-images-idx3-ubyte.gz", name);
    snprintf(labels, sizeof(labels), DATA "%s-labels-idx1-ubyte.gz", name);
    return tern_idx_open(images, labels, &opts, err);
}

static tern_module *new_mlp(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_flatten_new(err), err);
    tern_sequential_add(net, tern_linear_new(784, 128, NULL, rng, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_linear_new(128, 10, NULL, rng, err), err);
    return net;
}

static tern_loader *new_loader(tern_dataset *set, tern_sampler *sampler, bool drop_last, tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 64;
    opts.sampler = sampler;
    opts.drop_last = drop_last;
    return tern_loader_new(set, &opts, err);
}

/* The share of test images whose class is right, each image counted once over all ranks. */
static double accuracy(tern_module *net, tern_loader *test, tern_scope *s, tern_group *world, tern_error *err)
{
    int64_t counts[2] = {0}; /* right, seen */
    tern_batch b;
    tern_eval(net);
    bool before = tern_grad_set(s, false);
    while (!err->code && tern_loader_next(test, s, &b)) {
        int64_t guess[64], truth[64];
        tern_tensor *best = tern_argmax(s, tern_forward(net, s, b.x));
        if (best && !tern_tensor_read(best, guess, (size_t)b.count * 8, err) &&
            !tern_tensor_read(b.y, truth, (size_t)b.count * 8, err))
            for (int64_t i = 0; i < b.count; i++) counts[0] += guess[i] == truth[i];
        counts[1] += b.count;
        tern_scope_end(s, err);
    }
    tern_grad_set(s, before);
    tern_train(net);
    tern_all_reduce(world, counts, 2, TERN_I64, TERN_SUM, err);
    return (double)counts[0] / (double)counts[1];
}

/* FNV-1a over all weights. */
static uint64_t hash_weights(const tern_module *net, tern_error *err)
{
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < tern_state_count(net); i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(tensor) * tern_dtype_bytes(tern_tensor_dtype(tensor));
        unsigned char *data = malloc(bytes);
        if (data && !tern_tensor_read(tensor, data, bytes, err))
            for (size_t k = 0; k < bytes; k++) hash = (hash ^ data[k]) * 1099511628211u;
        free(data);
    }
    return hash;
}

int main(int argc, char **argv)
{
    int epochs = argc > 1 ? atoi(argv[1]) : 1;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    if (err.code) return tern_error_print(&err);
    int rank = tern_group_rank(world), ranks = tern_group_size(world);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_dataset *train_set = open_set("train", &err), *test_set = open_set("t10k", &err);
    tern_distributed_opts exact = tern_distributed_defaults();
    exact.shuffle = exact.pad = false;
    tern_sampler *train_order = tern_distributed_sampler_new(60000, ranks, rank, NULL, &err);
    tern_sampler *test_order = tern_distributed_sampler_new(10000, ranks, rank, &exact, &err);
    tern_loader *train = new_loader(train_set, train_order, true, &err);
    tern_loader *test = new_loader(test_set, test_order, false, &err);
    tern_module *net = new_mlp(rng, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    tern_optim *opt = tern_sgd_new(net, &sgd, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    if (err.code) return tern_error_print(&err);

    for (int epoch = 0; epoch < epochs && !err.code; epoch++) {
        tern_batch b;
        double loss = 0;
        while (tern_loader_next(train, s, &b)) {
            tern_backward(s, tern_cross_entropy(s, tern_forward(net, s, b.x), b.y));
            tern_optim_step(opt, s);
            loss += tern_ddp_loss_mean(ddp);
            if (tern_scope_end(s, &err)) break;
        }
        double right = accuracy(net, test, s, world, &err);
        if (rank == 0 && !err.code)
            printf("epoch %d  loss %.4f  test accuracy %.2f %%\n", epoch,
                   loss / (double)tern_loader_length(train), 100 * right);
    }

    uint64_t mine = hash_weights(net, &err), all[64] = {0};
    if (ranks <= 64) tern_all_gather(world, &mine, all, 1, TERN_I64, &err);
    bool same = true;
    for (int r = 0; r < ranks && r < 64; r++) same &= all[r] == mine;
    if (rank == 0 && !err.code)
        printf("weights %s on %d ranks: %016" PRIx64 "\n", same ? "identical" : "DIFFER", ranks, mine);
    if (!same && !err.code) err.code = TERN_E_MISMATCH;

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
