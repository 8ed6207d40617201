/* net.h - a rank that trains three linear layers with a ddp, for tests of its statistics; and an op that
 * takes a given time. */
#ifndef TERN_TESTS_PARALLEL_NET_H
#define TERN_TESTS_PARALLEL_NET_H

#include "comm/ranks.h"

#include "parallel/ddp.h"

#define NET_WIDTH 32
#define NET_ROWS  8

typedef struct net {
    tern_module base; /* first: the module is the net */
    tern_module *layers[3];
    tern_group *world;
    tern_device *dev;
    tern_rng *rng;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_scope *scope;
} net;

static tern_tensor *net_layers(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    net *n = (net *)module;
    for (int i = 0; i < 3; i++) x = tern_forward(n->layers[i], scope, x);
    return x;
}

static inline void net_open_with(net *n, const tern__bootstrap *boot, const tern_group_opts *group,
                                 const tern_ddp_opts *opts, tern_error *err)
{
    static const char *const names[] = {"first", "second", "third"};
    *n = (net){.world = tern__group_open_boot(boot, group, err)};
    n->dev = tern_device_open("cpu", err);
    if (n->dev) tern_device_threads_set(n->dev, 1, err);
    n->rng = tern_rng_new(7, err);
    tern_module_init(&n->base, "net", net_layers, err);
    for (int i = 0; i < 3; i++)
        n->layers[i] = tern_module_add(&n->base, names[i],
                                       tern_linear_new(NET_WIDTH, NET_WIDTH, NULL, n->rng, err), err);
    n->ddp = tern_ddp_new(&n->base, n->world, opts, err);
    n->opt = tern_sgd_new(&n->base, NULL, err);
    n->scope = tern_scope_new(n->dev, n->world, err);
}

/* `cap`: bytes per bucket, 0 for the defaults. */
static inline void net_open(net *n, const tern__bootstrap *boot, const tern_group_opts *group, size_t cap,
                            tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    if (cap) opts.first_bucket_bytes = opts.bucket_bytes = cap;
    net_open_with(n, boot, group, &opts, err);
}

static inline void net_close(net *n)
{
    tern_scope_free(n->scope);
    tern_optim_free(n->opt);
    tern_ddp_free(n->ddp);
    tern_module_release(&n->base);
    tern_rng_free(n->rng);
    tern_device_close(n->dev);
    tern_group_close(n->world);
}

static inline tern_tensor *net_input(net *n)
{
    float x[NET_ROWS * NET_WIDTH];
    for (int i = 0; i < NET_ROWS * NET_WIDTH; i++) x[i] = (float)(i % 17) / 17;
    return tern_tensor_from(n->scope, x, TERN_F32, 2, (int64_t[]){NET_ROWS, NET_WIDTH});
}

/* ---- an op that takes a given time ---- */

typedef struct spins {
    int64_t forward, backward; /* ns                                    */
    int64_t *ended;            /* NULL, or set to the time when backward ended */
} spins;

static inline void spin(int64_t ns)
{
    int64_t end = tern__now_ns() + ns;
    while (tern__now_ns() < end) continue;
}

static inline int slow_gradient(tern_scope *scope, tern__node *node)
{
    const spins *times = node->attr;
    spin(times->backward);
    if (times->ended) *times->ended = tern__now_ns();
    return tern__grad_give(scope, node, 0, tern__dy(node));
}

static inline tern_tensor *slow(tern_scope *scope, tern_tensor *x, spins times)
{
    if (!TERN__ENTER(scope, "slow", 1, &x)) return NULL;
    tern_tensor *y = tern__result_view(scope, x, &x->view);
    if (!y) return NULL;
    tern__node *node = tern__record(scope, "slow", slow_gradient, y, 1, &x);
    tern__save_attr(scope, node, &times, sizeof(times));
    spin(times.forward);
    return y;
}

/* ---- this thread's allocations (another thread of rank 0 may still serve its store) ---- */

static _Thread_local long requests, refuse_at; /* the allocation of that number fails; 0: none */

static inline void *requests_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    if (++requests == refuse_at) return NULL;
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static inline void requests_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

/* Call it before any other function of the library. */
static inline void requests_count(void)
{
    tern__allocator_replace(&(tern_allocator){requests_alloc, requests_free, NULL});
}

/* Runs backward from sum(y), the optimizer's step and the scope's end. */
static inline int net_step(net *n, tern_tensor *y, tern_error *err)
{
    tern_backward(n->scope, tern_sum(n->scope, y));
    tern_optim_step(n->opt, n->scope);
    return tern_scope_end(n->scope, err);
}

#endif
