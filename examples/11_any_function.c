/* 11_any_function.c - a ddp allows any function of the model to be called, not only forward.
 *
 *     build/examples/11_any_function 3                  starts 3 ranks with tern_spawn
 *     tern run -n 3 build/examples/11_any_function      tern run starts the 3 ranks
 *
 * Trains one model in four ways, ten steps each, and prints the first and the last loss. The losses are the
 * same for 1, 2, 3 and 4 ranks, which share the same twelve samples. Ranks may share cores. */
#include "demo.h"

#define SAMPLES  12
#define FEATURES 6
#define CODE     4

/* An autoencoder with two heads. Its forward function returns the code. */
typedef struct net {
    tern_module base;
    tern_module *encoder, *decoder, *left, *right;
} net;

static tern_tensor *net_forward(tern_module *module, tern_scope *s, tern_tensor *x) /* (N, 6) -> (N, 4) */
{
    return tern_tanh(s, tern_forward(((net *)module)->encoder, s, x));
}

static void net_init(net *self, tern_rng *rng, tern_error *err)
{
    tern_module_init(&self->base, "net", net_forward, err);
    self->encoder = tern_module_add(&self->base, "encoder", tern_linear_new(6, 4, NULL, rng, err), err);
    self->decoder = tern_module_add(&self->base, "decoder", tern_linear_new(4, 6, NULL, rng, err), err);
    self->left = tern_module_add(&self->base, "left", tern_linear_new(4, 1, NULL, rng, err), err);
    self->right = tern_module_add(&self->base, "right", tern_linear_new(4, 1, NULL, rng, err), err);
}

/* This rank's samples: `count` rows of x. */
typedef struct rows {
    const float *x;
    int count;
} rows;

static tern_tensor *tensor_of(tern_scope *s, const float *x, int64_t count)
{
    return tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){count, FEATURES});
}

/* 1. A second function: forward does not call it, and it trains all parameters that it uses. */
static tern_tensor *net_reconstruct(net *self, tern_scope *s, tern_tensor *x) /* (N, 6) -> (N, 6) */
{
    return tern_forward(self->decoder, s, tern_forward(&self->base, s, x));
}

static tern_tensor *second_function(net *model, tern_scope *s, rows own)
{
    tern_tensor *x = tensor_of(s, own.x, own.count);
    return tern_mse_loss(s, net_reconstruct(model, s, x), x, TERN_LOSS_MEAN);
}

/* 2. The model in parts: each part is a module, with ordinary code in between. */
static tern_tensor *in_parts(net *model, tern_scope *s, rows own)
{
    tern_tensor *x = tensor_of(s, own.x, own.count);
    tern_tensor *code = tern_linear_act_forward(model->encoder, s, x, true);
    tern_tensor *again = tern_forward(model->decoder, s, code);
    return tern_mse_loss(s, again, x, TERN_LOSS_MEAN);
}

/* 3. An evaluation without gradients on rank 0 alone: the other ranks do not wait for it. */
static void evaluate_alone(net *model, tern_device *dev, rows own, tern_error *err)
{
    tern_scope *alone = tern_scope_new(dev, NULL, err);
    if (!alone) return;
    tern_grad_enabled_set(alone, false);
    tern_eval(&model->base);
    second_function(model, alone, own);
    tern_train(&model->base);
    tern_scope_end(alone, err);
    tern_scope_free(alone);
}

/* 4. A branch on the input: every rank uses other parameters in every step. */
static tern_tensor *by_input(net *model, tern_scope *s, rows own)
{
    tern_tensor *loss = NULL, *count = tern_full(s, TERN_F32, 0, NULL, own.count);
    for (int i = 0; i < own.count; i++) {
        const float *x = own.x + (ptrdiff_t)i * FEATURES;
        tern_module *head = x[0] > 0 ? model->left : model->right;
        tern_tensor *y = tern_forward(head, s, tern_forward(&model->base, s, tensor_of(s, x, 1)));
        tern_tensor *want = tern_full(s, TERN_F32, 2, (int64_t[]){1, 1}, x[0] > 0 ? x[1] : -x[2]);
        tern_tensor *own_loss = tern_div(s, tern_mse_loss(s, y, want, TERN_LOSS_MEAN), count);
        loss = loss ? tern_add(s, loss, own_loss) : own_loss;
    }
    return loss;
}

typedef struct way {
    const char *name;
    tern_tensor *(*loss)(net *model, tern_scope *s, rows own);
    bool evaluates; /* between the steps, on rank 0 */
} way;

static const way ways[] = {
    {"1 a second function  ", second_function, false},
    {"2 in parts           ", in_parts, false},
    {"3 a view without grad", second_function, true},
    {"4 a branch by input  ", by_input, false},
};

/* Draws the twelve samples and returns this rank's share. The first feature is positive in the first half of
 * them, so with several ranks most ranks take only one branch. */
static rows share_of(float x[SAMPLES * FEATURES], tern_group *world, tern_rng *rng)
{
    int share = SAMPLES / tern_group_size(world);
    tern_rng_normal(rng, x, SAMPLES * FEATURES, 0, 1);
    for (int i = 0; i < SAMPLES; i++) x[i * FEATURES] = i < SAMPLES / 2 ? 1 : -1;
    return (rows){x + (ptrdiff_t)tern_group_rank(world) * share * FEATURES, share};
}

static int demo_any_function(int rank, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net model;
    float x[SAMPLES * FEATURES];
    tern_group *world = tern_group_open(NULL, &err);
    if (tern_group_size(world) > SAMPLES)
        tern_error_set(&err, __func__, TERN_E_RANGE, "%d ranks: expected at most %d, one for each sample",
                       tern_group_size(world), SAMPLES);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    net_init(&model, rng, &err);
    tern_ddp *ddp = tern_ddp_new(&model.base, world, NULL, &err);
    tern_optim *opt = tern_sgd_new(&model.base, NULL, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    rows own = err.code ? (rows){0} : share_of(x, world, rng);
    if (!err.code) tern_optim_lr_set(opt, 0, 0.2);
    for (int w = 0; w < 4 && !err.code; w++) {
        double first = 0;
        for (int step = 0; step < 10 && !err.code; step++) {
            tern_backward(s, ways[w].loss(&model, s, own));
            tern_optim_step(opt, s);
            if (step == 0) first = tern_ddp_loss_mean(ddp);
            tern_scope_end(s, &err);
            if (ways[w].evaluates && rank == 0) evaluate_alone(&model, dev, own, &err);
        }
        if (rank == 0) printf("%s  loss %.5f -> %.5f\n", ways[w].name, first, tern_ddp_loss_mean(ddp));
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_release(&model.base);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err);
}

int main(int argc, char **argv)
{
    return run_demo(demo_any_function, argc, argv,
                    "Trains one model in four ways, through any of its functions. Without a launcher it "
                    "starts the ranks\nitself (default 2).");
}
