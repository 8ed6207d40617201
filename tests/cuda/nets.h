/* nets.h - small models and a batch, for devices that must match the CPU. */
#ifndef TERN_TESTS_CUDA_NETS_H
#define TERN_TESTS_CUDA_NETS_H

#include "check.h"
#include "gpus.h"

typedef struct batch {
    float x[8 * 3 * 12 * 12];
    int64_t y[8];
    int ndim;
    int64_t shape[4];
} batch;

static inline void draw_batch(batch *b, int64_t classes, int ndim, const int64_t *shape)
{
    tern_rng *rng = tern_rng_new(11, NULL);
    size_t count = 1;
    b->ndim = ndim;
    for (int d = 0; d < ndim; d++) count *= (size_t)(b->shape[d] = shape[d]);
    tern_rng_normal(rng, b->x, count, 0, 1);
    for (int64_t i = 0; i < shape[0]; i++) b->y[i] = i * 7 % classes;
    tern_rng_free(rng);
}

/* This rank's part of the batch. */
static inline tern_tensor *rows_of(tern_scope *scope, const batch *b, int rank, int parts)
{
    int64_t shape[4] = {b->shape[0] / parts}, each = shape[0];
    for (int d = 1; d < b->ndim; d++) each *= shape[d] = b->shape[d];
    return tern_tensor_from(scope, b->x + rank * each, TERN_F32, b->ndim, shape);
}

static inline tern_tensor *labels_of(tern_scope *scope, const batch *b, int rank, int parts)
{
    int64_t rows = b->shape[0] / parts;
    return tern_tensor_from(scope, b->y + rank * rows, TERN_I64, 1, &rows);
}

typedef tern_module *(*make_fn)(tern_rng *rng, tern_error *err);
typedef tern_optim *(*optim_fn)(tern_module *module, tern_error *err);

static inline tern_module *make_mlp(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){24, 40, 5}, 3, rng, err);
}

static inline tern_module *make_resnet(tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.stages = 2;
    opts.blocks[0] = opts.blocks[1] = 1;
    opts.channels[0] = 8;
    opts.channels[1] = 16;
    opts.classes = 5;
    opts.small_stem = true;
    return tern_resnet_new(&opts, rng, err);
}

static inline tern_optim *make_sgd(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.1;
    opts.momentum = 0.9;
    return tern_sgd_new(module, &opts, err);
}

static inline tern_optim *make_adam(tern_module *module, tern_error *err)
{
    return tern_adam_new(module, NULL, err);
}

#endif
