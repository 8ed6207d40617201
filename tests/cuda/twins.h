/* twins.h - two equal models on every rank, on its GPU, each with its own ddp: one with a sharded
 * optimizer, the other without. */
#ifndef TERN_TESTS_CUDA_TWINS_H
#define TERN_TESTS_CUDA_TWINS_H

#include "nets.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "nn/nn.h"
#include "optim/optim.h"

enum { ROWS = 8, INPUTS = 48, LAYERS = 3, MOST = 1 << 13 };

typedef enum way { PLAIN, SCALER, LEVEL_2, WAYS } way;

typedef struct job {
    const char *backend; /* NULL: through the host */
    int world;
    way scaling;
    optim_fn optim;
    int what;
    bool is_split; /* the last layer stays on the CPU */
    batch batch;
} job;

typedef struct twin {
    tern_module *net, *layers[LAYERS];
    tern_amp *amp;
    tern_scaler *scaler;
    tern_ddp *ddp;
    tern_optim *optim;
} twin;

typedef struct twins {
    const job *job;
    int rank;
    tern_group *world;
    tern_device *device, *cpu;
    tern_scope *scope;
    twin a, b; /* a is the sharded one */
    tern_error err;
} twins;

/* Layers with ReLU between them, each called on its own device. */
typedef struct net {
    tern_module base;
    tern_module *layers[LAYERS];
    tern_device *where[LAYERS + 1];
} net;

static inline tern_tensor *net_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const net *own = (net *)module;
    for (int i = 0; i < LAYERS; i++)
        x = tern_forward(own->layers[i], scope, tern_to(scope, i ? tern_relu(scope, x) : x, own->where[i]));
    return tern_to(scope, x, own->where[LAYERS]);
}

/* Several of LAMB's sections; slices are cut inside of parameters. The first two layers are alike, and
 * each of their tensors fills whole cache lines. */
static inline void make_net(twins *t, twin *one)
{
    static const int64_t sizes[LAYERS + 1] = {INPUTS, 48, 48, 5};
    static const char *const names[LAYERS] = {"a", "b", "c"};
    tern_rng *rng = tern_rng_new(3, &t->err);
    net *own = tern__module_new(sizeof(*own), "net", net_forward, &t->err);
    for (int i = 0; i < LAYERS && own; i++) {
        tern_module *layer = tern_linear_new(sizes[i], sizes[i + 1], NULL, rng, &t->err);
        own->where[i] = t->job->is_split && i == LAYERS - 1 ? t->cpu : t->device;
        tern_module_to(layer, own->where[i], &t->err);
        own->layers[i] = one->layers[i] = tern_module_add(&own->base, names[i], layer, &t->err);
    }
    if (own) own->where[LAYERS] = t->device;
    one->net = &own->base;
    tern_rng_free(rng);
}

static inline void open_twin(twins *t, twin *one, optim_fn optim)
{
    tern_amp_opts amp = tern_amp_defaults(TERN_O2);
    tern_scaler_opts scaler = tern_scaler_defaults();
    scaler.growth_interval = 3;
    scaler.init_scale = 1024;
    amp.half_type = TERN_F16;
    amp.loss_scale = TERN_LOSS_SCALE_DYNAMIC;
    make_net(t, one);
    if (t->job->scaling == LEVEL_2) one->amp = tern_amp_new(one->net, &amp, &t->err);
    if (t->job->scaling == SCALER) one->scaler = tern_scaler_new(&scaler, &t->err);
    one->ddp = tern_ddp_new(one->net, t->world, NULL, &t->err);
    if (optim) one->optim = optim(one->net, &t->err);
}

static inline void open_group(twins *t, const tern__bootstrap *boot, const job *j)
{
    char name[16];
    tern_group_opts opts = tern_group_defaults();
    *t = (twins){.job = j, .rank = boot->rank};
    opts.backend = j->backend;
    snprintf(name, sizeof(name), "cuda:%d", j->backend ? boot->rank : 0);
    t->world = tern__group_open_boot(boot, &opts, &t->err);
    t->device = tern_device_open(name, &t->err);
    t->cpu = tern_device_open("cpu", &t->err);
    t->scope = tern_scope_new(t->device, t->world, &t->err);
}

static inline void open_twins(twins *t, const tern__bootstrap *boot, const job *j)
{
    open_group(t, boot, j);
    open_twin(t, &t->a, j->optim);
    open_twin(t, &t->b, j->optim);
    if (j->optim) tern_optim_shard(t->a.optim, t->world, &t->err);
}

static inline void close_twin(twin *one)
{
    tern_optim_free(one->optim);
    tern_scaler_free(one->scaler);
    tern_ddp_free(one->ddp);
    tern_amp_free(one->amp);
    tern_module_free(one->net);
}

static inline int close_twins(twins *t)
{
    tern_scope_free(t->scope);
    close_twin(&t->a);
    close_twin(&t->b);
    tern_device_close(t->device);
    tern_device_close(t->cpu);
    tern_group_close(t->world);
    return 0;
}

/* ---- a step ---- */

/* Whether this rank's loss overflows: the gradients of all ranks are infinite then. */
static inline bool overflows(const twins *t, int step)
{
    return t->job->scaling != PLAIN && t->rank == 0 && (step == 1 || step == 3);
}

static inline void backward(twins *t, const twin *one, int step)
{
    tern_tensor *x = rows_of(t->scope, &t->job->batch, t->rank, t->job->world),
                *y = labels_of(t->scope, &t->job->batch, t->rank, t->job->world),
                *loss = tern_cross_entropy(t->scope, tern_forward(one->net, t->scope, x), y, NULL);
    loss = tern_mul(t->scope, loss, tern_full(t->scope, TERN_F32, 0, NULL, overflows(t, step) ? 1e38 : 1));
    if (one->amp)
        tern_amp_backward(one->amp, t->scope, loss, NULL);
    else
        tern_backward(t->scope, one->scaler ? tern_scaler_scale(one->scaler, t->scope, loss) : loss);
}

static inline void update(twins *t, const twin *one)
{
    if (one->scaler) tern_scaler_unscale(one->scaler, t->scope, one->optim);
    tern_clip_grad_norm(t->scope, one->net, 0.5, 2);
    if (one->scaler)
        tern_scaler_step(one->scaler, t->scope, one->optim);
    else
        tern_optim_step(one->optim, t->scope);
    if (one->scaler) tern_scaler_update(one->scaler, t->scope);
}

static inline void step(twins *t, const twin *one, int number)
{
    backward(t, one, number);
    update(t, one);
    tern_scope_end(t->scope, &t->err);
}

static inline bool are_equal(twins *t)
{
    static char x[MOST * sizeof(float)], y[MOST * sizeof(float)];
    bool equal = true;
    for (int i = 0; i < tern_state_count(t->a.net); i++) {
        tern_state_entry a = tern_state_get(t->a.net, i), b = tern_state_get(t->b.net, i);
        size_t bytes = tern__view_bytes(&a.tensor->view);
        tern_tensor_read(a.tensor, x, bytes, &t->err);
        tern_tensor_read(b.tensor, y, bytes, &t->err);
        equal &= bytes <= sizeof(x) && !t->err.code && !memcmp(x, y, bytes);
    }
    return equal;
}

#endif
