/* trainer.h - a rank, or a single process, that trains a small residual net or a ResNet-18 on rows of one
 * long batch. */
#ifndef TERN_TESTS_PARALLEL_TRAINER_H
#define TERN_TESTS_PARALLEL_TRAINER_H

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "nn/nn.h"

#define CLASSES    5
#define ROWS_MAX   16
#define PIXELS_MAX (3 * 64 * 64)

typedef enum scale { SMALL, RESNET18 } scale;

typedef struct trainer {
    int side;          /* an image's side */
    tern_dtype region; /* the autocast region's; F32: none */
    tern_group *world;
    tern_device *dev;
    tern_rng *rng;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_scope *s;
} trainer;

static inline tern_module *new_net(scale size, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.classes = CLASSES;
    if (size == SMALL) {
        opts.stages = 2;
        opts.small_stem = true;
        opts.blocks[0] = opts.blocks[1] = 1;
        opts.channels[0] = 8;
        opts.channels[1] = 16;
    }
    return tern_resnet_new(&opts, rng, err);
}

/* A deep net gets a low rate: a ReLU that rounding switches changes the following values as much as a step
 * does. */
static inline tern_optim *new_sgd(tern_module *net, scale size, tern_error *err)
{
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = size == SMALL ? 0.002 : 0.0002;
    sgd.momentum = 0.5;
    return tern_sgd_new(net, &sgd, err);
}

/* `boot` NULL: a single process. Losses are weighted by their samples. */
static inline void open_trainer(trainer *t, const tern__bootstrap *boot, scale size, bool synced,
                                tern_error *err)
{
    *t = (trainer){.side = size == SMALL ? 16 : 64,
                   .world = boot ? tern__group_open_boot(boot, NULL, err) : NULL};
    t->dev = tern_device_open("cpu", err);
    tern_device_threads_set(t->dev, 1, err);
    t->rng = tern_rng_new(3, err);
    t->net = new_net(size, t->rng, err);
    if (synced) tern_sync_batch_norm_convert(t->net, t->world, err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    opts.broadcast_buffers = !synced; /* each rank's own buffers equal all others' */
    if (boot) t->ddp = tern_ddp_new(t->net, t->world, &opts, err);
    t->opt = new_sgd(t->net, size, err);
    t->s = tern_scope_new(t->dev, t->world, err);
}

static inline void close_trainer(trainer *t)
{
    tern_scope_free(t->s);
    tern_optim_free(t->opt);
    tern_ddp_free(t->ddp);
    tern_module_free(t->net);
    tern_rng_free(t->rng);
    tern_device_close(t->dev);
    tern_group_close(t->world);
}

/* Returns rows [first, first + count) of the batch of `step`; each row has its own brightness. */
static inline tern_tensor *images(const trainer *t, int step, int first, int count)
{
    static _Thread_local float x[ROWS_MAX * PIXELS_MAX];
    int pixels = 3 * t->side * t->side;
    for (int i = 0; i < count; i++) {
        uint32_t state = (uint32_t)(step * 1000 + first + i) * 2654435761u + 1;
        for (int k = 0; k < pixels; k++) {
            state = state * 1664525u + 1013904223u;
            x[i * pixels + k] = (float)(int32_t)state / 2147483648.0f + (float)((first + i) % 3);
        }
    }
    return tern_tensor_from(t->s, x, TERN_F32, 4, (int64_t[]){count, 3, t->side, t->side});
}

static inline tern_tensor *labels(const trainer *t, int first, int count)
{
    int64_t y[ROWS_MAX];
    for (int i = 0; i < count; i++) y[i] = (first + i) % CLASSES;
    return tern_tensor_from(t->s, y, TERN_I64, 1, (int64_t[]){count});
}

/* Returns this rank's loss; NAN for an empty batch. */
static inline double train_step(trainer *t, int step, int first, int count, tern_error *err)
{
    tern_autocast_set(t->s, t->region);
    tern_tensor *y = tern_forward(t->net, t->s, images(t, step, first, count));
    tern_tensor *loss = tern_cross_entropy(t->s, y, labels(t, first, count), NULL);
    tern_autocast_set(t->s, TERN_F32);
    tern_backward(t->s, loss);
    double value = tern_item(loss);
    tern_optim_step(t->opt, t->s);
    tern_scope_end(t->s, err);
    return value;
}

#endif
