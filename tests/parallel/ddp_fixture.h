/* ddp_fixture.h - a rank with a small net under a ddp. Its batches are rows of one long batch that is the
 * same for every world, so the result of N ranks can be compared with that of one process on all rows. */
#ifndef TERN_TESTS_PARALLEL_DDP_FIXTURE_H
#define TERN_TESTS_PARALLEL_DDP_FIXTURE_H

#include "comm/ranks.h"

#include "parallel/ddp.h"

#include <math.h>

#define FEATURES 12
#define CLASSES  4

typedef struct fixture {
    int rank, world_size;
    tern_group *world;
    tern_device *dev;
    tern_rng *rng;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_scope *s;
} fixture;

static inline tern_module *fixture_mlp(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){FEATURES, 32, 16, CLASSES}, 4, rng, err);
}

/* SGD with momentum. */
static inline tern_optim *fixture_sgd(tern_module *net, tern_error *err)
{
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.125;
    sgd.momentum = 0.5;
    return tern_sgd_new(net, &sgd, err);
}

/* Uses the rank's own seed, so that the ddp must broadcast rank 0's weights. `net` NULL: an MLP. */
static inline void fixture_open(fixture *f, const tern__bootstrap *boot, tern_module *net,
                                const tern_ddp_opts *opts, tern_error *err)
{
    *f = (fixture){.rank = boot->rank, .world_size = boot->world};
    f->world = tern__group_open_boot(boot, NULL, err);
    f->dev = tern_device_open("cpu", err);
    f->rng = tern_rng_new((uint64_t)boot->rank + 7, err);
    f->net = net ? net : fixture_mlp(f->rng, err);
    f->ddp = tern_ddp_new(f->net, f->world, opts, err);
    f->opt = fixture_sgd(f->net, err);
    f->s = tern_scope_new(f->dev, f->world, err);
}

/* Makes the net that `make` gives rank 0, without a group. */
static inline void fixture_open_alone_with(fixture *f, tern_module *(*make)(tern_rng *, tern_error *),
                                           tern_error *err)
{
    *f = (fixture){.world_size = 1, .dev = tern_device_open("cpu", err), .rng = tern_rng_new(7, err)};
    f->net = make(f->rng, err);
    f->opt = fixture_sgd(f->net, err);
    f->s = tern_scope_new(f->dev, NULL, err);
}

static inline void fixture_open_alone(fixture *f, tern_error *err)
{
    fixture_open_alone_with(f, fixture_mlp, err);
}

static inline void fixture_close(fixture *f)
{
    tern_scope_free(f->s);
    tern_optim_free(f->opt);
    tern_ddp_free(f->ddp);
    tern_module_free(f->net);
    tern_rng_free(f->rng);
    tern_device_close(f->dev);
    tern_group_close(f->world);
}

/* Returns rows [first, first + count) of the batch of `step`. */
static inline tern_tensor *fixture_rows(fixture *f, int step, int first, int count)
{
    static _Thread_local float x[512 * FEATURES];
    for (int i = 0; i < count; i++) {
        uint32_t state = (uint32_t)(step * 1000 + first + i) * 2654435761u + 1;
        for (int k = 0; k < FEATURES; k++) {
            state = state * 1664525u + 1013904223u;
            x[i * FEATURES + k] = (float)(int32_t)state / 2147483648.0f;
        }
    }
    return tern_tensor_from(f->s, x, TERN_F32, 2, (int64_t[]){count, FEATURES});
}

static inline tern_tensor *fixture_labels(fixture *f, int first, int count)
{
    int64_t y[512];
    for (int i = 0; i < count; i++) y[i] = (first + i) % CLASSES;
    return tern_tensor_from(f->s, y, TERN_I64, 1, (int64_t[]){count});
}

static inline void fixture_backward(fixture *f, int step, int first, int count)
{
    tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, first, count));
    tern_backward(f->s, tern_cross_entropy(f->s, y, fixture_labels(f, first, count), NULL));
}

static inline void fixture_step(fixture *f, int step, int first, int count, tern_error *err)
{
    fixture_backward(f, step, first, count);
    tern_optim_step(f->opt, f->s);
    tern_scope_end(f->s, err);
}

/* Returns a hash of the whole state dict. */
static inline uint64_t fixture_hash(const tern_module *net)
{
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *t = tern_state_get(net, i).tensor;
        const unsigned char *data = t->view.data;
        for (size_t k = 0; k < tern__view_bytes(&t->view); k++) hash = (hash ^ data[k]) * 1099511628211u;
    }
    return hash;
}

static inline bool fixture_same(tern_group *world, uint64_t mine, tern_error *err)
{
    uint64_t all[RANKS_MAX];
    if (tern_all_gather(world, &mine, all, 1, TERN_I64, err)) return false;
    for (int r = 0; r < tern_group_size(world); r++)
        if (all[r] != mine) return false;
    return true;
}

static inline double fixture_difference(const tern_module *a, const tern_module *b)
{
    double largest = 0;
    for (int i = 0; i < tern_state_count(a); i++) {
        const tern_tensor *x = tern_state_get(a, i).tensor, *y = tern_state_get(b, i).tensor;
        for (int64_t k = 0; k < tern_tensor_count(x); k++)
            largest = fmax(largest, fabs(tern__view_get(&x->view, k) - tern__view_get(&y->view, k)));
    }
    return largest;
}

#endif
