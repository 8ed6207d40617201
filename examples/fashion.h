/* fashion.h - shared by the Fashion-MNIST examples: the two datasets, loaders, exact accuracy, a hash of the
 * weights. */
#ifndef TERN_EXAMPLES_FASHION_H
#define TERN_EXAMPLES_FASHION_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tern.h>

#include "usage.h"

#define FASHION_DIR     "/usr/share/datasets/fashion-mnist"
#define FASHION_TRAIN   60000
#define FASHION_TEST    10000
#define FASHION_CLASSES 10
#define FASHION_MEAN    0.2860f
#define FASHION_STD     0.3530f

static const char *const fashion_names[FASHION_CLASSES] = {"T-shirt", "trouser", "pullover", "dress", "coat",
                                                           "sandal",  "shirt",   "sneaker",  "bag",   "boot"};

/* Tells the user of a single rank how to start several. */
static inline void fashion_say_ranks(const tern_group *world, const char *program)
{
    if (tern_group_size(world) == 1) printf("1 rank (start with tern run -n 2 %s)\n", program);
}

/* Returns the number of epochs from argument `i`. */
static inline int fashion_epochs(int argc, char **argv, int i, int fallback)
{
    return usage_number(argc, argv, i, "epochs", 10000, fallback);
}

/* Opens a dataset, "train" or "t10k", with normalised pixels, from a folder with Fashion-MNIST's files. */
static inline tern_dataset *fashion_open_in(const char *folder, const char *name, tern_error *err)
{
    char images[512], labels[512];
    tern_idx_opts opts = tern_idx_defaults();
    opts.mean = FASHION_MEAN;
    opts.std = FASHION_STD;
    snprintf(images, sizeof(images), "%s/%s-images-idx3-ubyte.gz", folder, name);
    snprintf(labels, sizeof(labels), "%s/%s-labels-idx1-ubyte.gz", folder, name);
    return tern_idx_open(images, labels, &opts, err);
}

/* As above, from the folder of Debian's package. */
static inline tern_dataset *fashion_open(const char *name, tern_error *err)
{
    bool tried = !err->code;
    tern_dataset *set = fashion_open_in(FASHION_DIR, name, err);
    if (tried && !set) fprintf(stderr, "the dataset is in Debian's package dataset-fashion-mnist\n");
    return set;
}

/* Returns this rank's share of `count` samples: padded and reshuffled every epoch for training; for a test,
 * every sample exactly once over all ranks. */
static inline tern_sampler *fashion_order(const tern_group *world, int64_t count, bool is_training,
                                          tern_error *err)
{
    tern_distributed_opts opts = tern_distributed_defaults();
    opts.shuffle = opts.pad = is_training;
    return world ? tern_distributed_sampler_new(count, tern_group_size(world), tern_group_rank(world), &opts,
                                                err)
                 : NULL;
}

/* Returns this rank's share of the training set, reshuffled every epoch. */
static inline tern_sampler *fashion_train_order(const tern_group *world, tern_error *err)
{
    return fashion_order(world, FASHION_TRAIN, true, err);
}

/* Returns a rank's share of a batch of `batch` over all ranks. */
static inline int64_t fashion_share(int64_t batch, const tern_group *world)
{
    return world ? batch / tern_group_size(world) : batch;
}

/* Returns this rank's share of the test set: every image exactly once over all ranks. */
static inline tern_sampler *fashion_test_order(const tern_group *world, tern_error *err)
{
    return fashion_order(world, FASHION_TEST, false, err);
}

static inline tern_loader *fashion_loader(tern_dataset *set, tern_sampler *order, int64_t batch,
                                          bool drop_last, tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = batch;
    opts.sampler = order;
    opts.drop_last = drop_last;
    return tern_loader_new(set, &opts, err);
}

/* The group, the device and both datasets, with this rank's batches for training and its share of the test
 * images. */
typedef struct fashion_data {
    tern_group *world;
    tern_device *dev;
    tern_dataset *train_set, *test_set;
    tern_sampler *train_order, *test_order;
    tern_loader *train, *test;
} fashion_data;

/* Opens everything, with batches of `batch` images on each rank. folder NULL: that of Debian's package. */
static inline void fashion_data_open(fashion_data *d, const char *folder, int64_t batch, tern_error *err)
{
    d->world = tern_group_open(NULL, err);
    d->dev = tern_device_open(NULL, err);
    d->train_set = folder ? fashion_open_in(folder, "train", err) : fashion_open("train", err);
    d->test_set = folder ? fashion_open_in(folder, "t10k", err) : fashion_open("t10k", err);
    d->train_order = fashion_order(d->world, d->train_set ? d->train_set->length : 0, true, err);
    d->test_order = fashion_order(d->world, d->test_set ? d->test_set->length : 0, false, err);
    d->train = fashion_loader(d->train_set, d->train_order, batch, true, err);
    d->test = fashion_loader(d->test_set, d->test_order, 250, false, err);
}

static inline void fashion_data_close(fashion_data *d)
{
    tern_loader_free(d->test);
    tern_loader_free(d->train);
    tern_sampler_free(d->test_order);
    tern_sampler_free(d->train_order);
    tern_dataset_free(d->test_set);
    tern_dataset_free(d->train_set);
    tern_device_close(d->dev);
    tern_group_close(d->world);
}

/* (N, 1, 28, 28) -> (N, 10): 784-128-10 with ReLU. */
static inline tern_module *fashion_mlp_new(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_flatten_new(err), err);
    tern_sequential_add(net, tern_linear_new(784, 128, NULL, rng, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_linear_new(128, FASHION_CLASSES, NULL, rng, err), err);
    return net;
}

/* (N, 1, 28, 28) -> (N, 10): a small ResNet, 77754 parameters. */
static inline tern_module *fashion_resnet_new(uint64_t seed, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.in_channels = 1;
    opts.classes = FASHION_CLASSES;
    opts.stages = 3;
    for (int i = 0; i < 3; i++) {
        opts.blocks[i] = 1;
        opts.channels[i] = 16 << i;
    }
    opts.small_stem = true;
    opts.kaiming = false;
    tern_rng *rng = tern_rng_new(seed, err);
    tern_module *net = tern_resnet_new(&opts, rng, err);
    tern_rng_free(rng);
    return net;
}

/* Returns the seconds since an arbitrary point in time. */
static inline double fashion_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns how many rows of `scores` (N, C) have their largest value at `label` (N); 0 after an error in the
 * scope. */
static inline int64_t fashion_right(tern_scope *s, tern_tensor *scores, tern_tensor *label)
{
    int64_t guess[1024], truth[1024], right = 0;
    tern_tensor *best = tern_argmax(s, scores, 1, false);
    size_t bytes = best ? (size_t)tern_tensor_count(best) * sizeof(int64_t) : 0;
    if (!best || bytes > sizeof(guess)) return 0;
    if (tern_tensor_read(best, guess, bytes, NULL) || tern_tensor_read(label, truth, bytes, NULL)) return 0;
    for (size_t i = 0; i < bytes / sizeof(int64_t); i++) right += guess[i] == truth[i];
    return right;
}

/* Returns the share of correctly classified images of a test set of `images`, over all ranks. */
static inline double fashion_accuracy(tern_module *net, tern_loader *test, int64_t images, tern_scope *s,
                                      tern_group *world, tern_error *err)
{
    int64_t counts[2] = {0}; /* right, seen */
    tern_batch b;
    tern_progress_opts opts = tern_progress_defaults();
    opts.unit = "img";
    opts.leave = false;
    opts.line_seconds = 5;
    int ranks = tern_group_size(world);
    tern_progress *bar = tern_progress_new("test", (images + ranks - 1) / ranks, world, &opts, err);
    tern_eval(net);
    bool before = tern_grad_enabled_set(s, false);
    while (!err->code && tern_loader_next(test, s, &b)) {
        counts[0] += fashion_right(s, tern_forward(net, s, b.x), b.y);
        counts[1] += b.count;
        tern_progress_update(bar, b.count);
        tern_scope_end(s, err);
    }
    tern_progress_free(bar);
    tern_grad_enabled_set(s, before);
    tern_train(net);
    tern_all_reduce(world, counts, 2, TERN_I64, TERN_SUM, err);
    return (double)counts[0] / (double)counts[1];
}

static inline double fashion_data_accuracy(const fashion_data *d, tern_module *net, tern_scope *s,
                                           tern_error *err)
{
    return fashion_accuracy(net, d->test, d->test_set->length, s, d->world, err);
}

/* Returns the FNV-1a hash of all parameters and buffers. */
static inline uint64_t fashion_hash(const tern_module *net, tern_error *err)
{
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < tern_state_count(net); i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(tensor) * tern_dtype_bytes(tern_tensor_dtype(tensor));
        unsigned char *data = malloc(bytes);
        if (data && tern_tensor_read(tensor, data, bytes, err) == TERN_OK)
            for (size_t k = 0; k < bytes; k++) hash = (hash ^ data[k]) * 1099511628211u;
        free(data);
    }
    return hash;
}

/* Prints "weights identical on 2 ranks: <hash>" on rank 0. If they differ, every rank prints so and the
 * function returns false. */
static inline bool fashion_compare_weights(const tern_module *net, tern_group *world, tern_error *err)
{
    int ranks = tern_group_size(world), same = 1;
    uint64_t mine = fashion_hash(net, err), *all = calloc((size_t)ranks, sizeof(*all));
    if (!all || tern_all_gather(world, &mine, all, 1, TERN_I64, err)) same = 0;
    for (int r = 0; r < ranks && same; r++) same = all[r] == mine;
    if (!same || tern_group_rank(world) == 0)
        printf("weights %s on %d rank%s: %016llx\n", same ? "identical" : "DIFFER", ranks,
               ranks == 1 ? "" : "s", (unsigned long long)mine);
    free(all);
    return same;
}

#endif
