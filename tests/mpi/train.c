/* train.c - trains with a ddp on the device that TERN_DEVICE names; the tests start it with mpirun. Each rank
 * prints its loss and a hash of its parameters. */
#include <tern.h>

#include <stdio.h>

enum { STEPS = 5, ROWS = 6, WIDTH = 24, CLASSES = 5 };

/* Draws a batch that differs between ranks and steps. */
static void draw(float *x, int64_t *label, int rank, int step)
{
    uint32_t state = 12345u + 97u * (uint32_t)rank + 1009u * (uint32_t)step;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    for (int i = 0; i < ROWS; i++) label[i] = (rank + step + i) % CLASSES;
}

static double train_step(tern_module *net, tern_optim *sgd, tern_scope *s, int rank, int step,
                         tern_error *err)
{
    float x[ROWS * WIDTH];
    int64_t label[ROWS];
    draw(x, label, rank, step);
    tern_tensor *xs = tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){ROWS, WIDTH});
    tern_tensor *labels = tern_tensor_from(s, label, TERN_I64, 1, (int64_t[]){ROWS});
    tern_tensor *loss = tern_cross_entropy(s, tern_forward(net, s, xs), labels, NULL);
    tern_backward(s, loss);
    tern_optim_step(sgd, s);
    double value = tern_item(loss);
    tern_scope_end(s, err);
    return value;
}

static uint64_t hash_of(const tern_module *net, tern_error *err)
{
    static float values[WIDTH * 64];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < tern_state_count(net); i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(tensor) * sizeof(float);
        tern_tensor_read(tensor, values, bytes, err);
        for (size_t b = 0; b < bytes; b++)
            hash = (hash ^ ((const unsigned char *)values)[b]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

int main(void)
{
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *device = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_mlp_new((int64_t[]){WIDTH, 40, CLASSES}, 3, rng, &err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = 0.9;
    tern_module_to(net, device, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_optim *sgd = tern_sgd_new(net, &opts, &err);
    tern_scope *s = tern_scope_new(device, world, &err);
    double loss = 0;
    if (err.code) return tern_error_print(&err);
    tern_optim_lr_set(sgd, 0, 0.1);
    for (int step = 0; step < STEPS && !err.code; step++)
        loss = train_step(net, sgd, s, tern_group_rank(world), step, &err);
    printf("rank %d on %s, %s: loss %.9g, hash %016llx\n", tern_group_rank(world), tern_device_name(device),
           tern_group_backend(world), loss, (unsigned long long)hash_of(net, &err));
    tern_scope_free(s);
    tern_optim_free(sgd);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(world);
    return tern_error_print(&err);
}
