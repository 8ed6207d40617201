/* layers.h - a module of a few layers without a forward, whose parameters get gradients one by one: what the
 * optimizers' tests share. */
#ifndef TERN_TESTS_OPTIM_LAYERS_H
#define TERN_TESTS_OPTIM_LAYERS_H

#include "ledger.h"
#include "ops/world.h"
#include "optim/optim.h"

#include <string.h>

enum { LAYERS = 4, WIDTH = 3 };

/* A module "net" of children "0".. with a weight and a bias each, in f32 or, every other one, in f64. */
typedef struct bench {
    world w;
    tern_module *net, *layers[LAYERS];
    tern_tensor *weight[LAYERS], *bias[LAYERS];
} bench;

static inline void add_layer(bench *b, int i, tern_dtype dtype)
{
    static const char *const names[LAYERS] = {"0", "1", "2", "3"};
    tern_error *err = &b->w.err;
    b->layers[i] = tern_module_add(b->net, names[i], tern_sequential_new(err), err);
    b->weight[i] = tern_parameter_add(b->layers[i], "weight", dtype, 2, (int64_t[]){WIDTH, WIDTH}, err);
    b->bias[i] = tern_parameter_add(b->layers[i], "bias", dtype, 1, (int64_t[]){WIDTH}, err);
}

static inline bench open_bench(bool mixed)
{
    bench b = {.w = open_world()};
    b.net = tern_sequential_new(&b.w.err);
    for (int i = 0; i < LAYERS; i++) add_layer(&b, i, mixed && i % 2 ? TERN_F64 : TERN_F32);
    assert_ok(b.w.err);
    return b;
}

static inline void close_bench(bench *b)
{
    tern_module_free(b->net);
    close_world(&b->w);
}

/* The gradient of the parameter's sum: one everywhere. */
static inline void use(bench *b, tern_tensor *parameter)
{
    assert_int_equal(tern_backward(b->w.scope, tern_sum(b->w.scope, parameter)), TERN_OK);
}

static inline void use_all(bench *b)
{
    for (int i = 0; i < LAYERS; i++) {
        use(b, b->weight[i]);
        use(b, b->bias[i]);
    }
}

static inline double first(const tern_tensor *tensor)
{
    return tern__view_get(&tensor->view, 0);
}

static inline void step(bench *b, tern_optim *optim)
{
    tern_optim_step(optim, b->w.scope);
    assert_int_equal(tern_scope_end(b->w.scope, &b->w.err), TERN_OK);
}

static inline bool is_bias(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)ctx;
    (void)parameter;
    return strstr(name, "bias") != NULL;
}

#endif
