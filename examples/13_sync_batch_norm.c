/* 13_sync_batch_norm.c - shows why batch norm needs the batches of all ranks: trains a small convolutional
 * network on Fashion-MNIST, 2 images per rank and step, with batch norm and with synchronised batch norm.
 *
 *     tern run -n 2 build/examples/13_sync_batch_norm [seeds] [steps]
 *
 * Both start with the same weights and see the same images. Prints the accuracy on held-out images in
 * evaluation mode and draws the curves of the means over all seeds into sync_batch_norm.png. */
#include "fashion.h"

#include <math.h>

#define BATCH  2 /* per rank */
#define POINTS 15
#define SEEDS  32
#define HELD   2000 /* images of the test set */
#define STAGES 4
#define LR     0.01

/* The net halves the image four times: the last batch norm sees 2 x 2 positions per image, or 8 values per
 * channel and rank. */
static tern_module *new_net(uint64_t seed, tern_error *err)
{
    static const int64_t channels[] = {1, 16, 32, 32, 64};
    tern_rng *rng = tern_rng_new(seed, err);
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.stride[0] = opts.stride[1] = 2;
    opts.padding[0] = opts.padding[1] = 1;
    opts.bias = false;
    tern_module *net = tern_sequential_new(err);
    for (int i = 0; i < STAGES; i++) {
        tern_sequential_add(net, tern_conv2d_new(channels[i], channels[i + 1], 3, 3, &opts, rng, err), err);
        tern_sequential_add(net, tern_batch_norm2d_new(channels[i + 1], NULL, err), err);
        tern_sequential_add(net, tern_relu_new(err), err);
    }
    tern_sequential_add(net, tern_global_avg_pool_new(err), err);
    tern_sequential_add(net, tern_linear_new(channels[STAGES], FASHION_CLASSES, NULL, rng, err), err);
    tern_rng_free(rng);
    return net;
}

/* What all runs share. */
typedef struct shared {
    tern_group *world;
    tern_device *dev;
    tern_dataset *train_set, *test_set;
    tern_loader *test;
    tern_sampler *test_order;
    int steps;
} shared;

/* Trains a net and stores its held-out accuracy in percent at POINTS equally spaced steps. */
static void train(const shared *k, uint64_t seed, bool synced, double accuracy[POINTS], tern_error *err)
{
    tern_distributed_opts order_opts = tern_distributed_defaults();
    order_opts.seed = seed;
    tern_sampler *order = tern_distributed_sampler_new(FASHION_TRAIN, tern_group_size(k->world),
                                                       tern_group_rank(k->world), &order_opts, err);
    tern_loader *loader = fashion_loader(k->train_set, order, BATCH, true, err);
    tern_module *net = new_net(seed, err);
    if (synced) tern_sync_batch_norm_convert(net, k->world, err);
    tern_ddp *ddp = tern_ddp_new(net, k->world, NULL, err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = LR;
    sgd.momentum = 0.9;
    tern_optim *opt = tern_sgd_new(net, &sgd, err);
    tern_scope *s = tern_scope_new(k->dev, k->world, err);
    tern_batch b;
    for (int step = 1; step <= k->steps && !err->code && tern_loader_next(loader, s, &b); step++) {
        tern_backward(s, tern_cross_entropy(s, tern_forward(net, s, b.x), b.y, NULL));
        tern_optim_step(opt, s);
        tern_scope_end(s, err);
        if (step % (k->steps / POINTS) == 0)
            accuracy[step / (k->steps / POINTS) - 1] =
                100 * fashion_accuracy(net, k->test, HELD, s, k->world, err);
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_loader_free(loader);
    tern_sampler_free(order);
}

/* ---- all seeds ---- */

/* One kind of batch norm: the curve of every seed, and the curve that is drawn. */
typedef struct way {
    double accuracy[SEEDS][POINTS];
    double step[POINTS], mean[POINTS], low[POINTS], high[POINTS];
} way;

/* Computes the mean over the seeds, plus and minus the standard error. */
static void summarise(way *w, int seeds, int steps)
{
    for (int p = 0; p < POINTS; p++) {
        double sum = 0, square = 0;
        for (int i = 0; i < seeds; i++) sum += w->accuracy[i][p];
        w->mean[p] = sum / seeds;
        for (int i = 0; i < seeds; i++) square += pow(w->accuracy[i][p] - w->mean[p], 2);
        double error = seeds > 1 ? sqrt(square / (seeds - 1) / seeds) : 0;
        w->step[p] = (p + 1) * (steps / POINTS);
        w->low[p] = w->mean[p] - error;
        w->high[p] = w->mean[p] + error;
    }
}

static void print(const way ways[2], int seeds)
{
    printf("held-out accuracy in %%, mean of %d seed%s\n  step  batch norm  synchronised\n", seeds,
           seeds == 1 ? "" : "s");
    for (int p = 0; p < POINTS; p++)
        printf("%6.0f  %10.2f  %12.2f\n", ways[0].step[p], ways[0].mean[p], ways[1].mean[p]);
}

static void draw(way ways[2], int ranks, tern_error *err)
{
    char title[128];
    snprintf(title, sizeof(title), "A batch of %d images on each of %d ranks, Fashion-MNIST", BATCH, ranks);
    tern_curve curves[2];
    for (int i = 0; i < 2; i++)
        curves[i] = (tern_curve){.name = i ? "synchronised batch norm" : "batch norm",
                                 .x = ways[i].step,
                                 .y = ways[i].mean,
                                 .low = ways[i].low,
                                 .high = ways[i].high,
                                 .count = POINTS};
    const tern_chart chart = {title, "step", "held-out accuracy, %", curves, 2};
    tern_chart_save("sync_batch_norm.png", &chart, err);
}

static int argument(int argc, char **argv, int i, int fallback, int low, int high)
{
    int value = argc > i ? atoi(argv[i]) : fallback;
    if (value >= low && value <= high) return value;
    fprintf(stderr, "%s: expected [seeds, 1 to %d] [steps, %d or more]\n", argv[0], SEEDS, POINTS);
    exit(2);
}

int main(int argc, char **argv)
{
    usage_read(argc, argv, "[seeds] [steps]",
               "Compares batch norm and synchronised batch norm at 2 images per rank (default 8 seeds, 3000 "
               "steps).\n"
               "Writes sync_batch_norm.png.");
    int seeds = argument(argc, argv, 1, 8, 1, SEEDS);
    shared k = {.steps = argument(argc, argv, 2, 3000, POINTS, 10000)};
    static way ways[2];
    tern_error err = {0};
    k.world = tern_group_open(NULL, &err);
    k.dev = tern_device_open(NULL, &err);
    k.train_set = fashion_open("train", &err);
    k.test_set = fashion_open("t10k", &err);
    tern_distributed_opts held = tern_distributed_defaults();
    held.shuffle = held.pad = false;
    if (!err.code)
        k.test_order = tern_distributed_sampler_new(HELD, tern_group_size(k.world), tern_group_rank(k.world),
                                                    &held, &err);
    k.test = fashion_loader(k.test_set, k.test_order, 250, false, &err);
    for (int seed = 0; seed < seeds && !err.code; seed++)
        for (int synced = 0; synced < 2; synced++)
            train(&k, (uint64_t)seed, synced, ways[synced].accuracy[seed], &err);
    if (!err.code && tern_group_rank(k.world) == 0) {
        for (int i = 0; i < 2; i++) summarise(&ways[i], seeds, k.steps);
        print(ways, seeds);
        tern_error figure = {0}; /* a missing plug-in does not fail the run */
        draw(ways, tern_group_size(k.world), &figure);
        tern_error_print(&figure);
    }
    tern_loader_free(k.test);
    tern_sampler_free(k.test_order);
    tern_dataset_free(k.test_set);
    tern_dataset_free(k.train_set);
    tern_device_close(k.dev);
    tern_group_close(k.world);
    return tern_error_print(&err);
}
