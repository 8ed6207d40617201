/* train.c - a strict C99 program against the installed library. It trains an MLP on its own arrays, without a
 * copy, and prints the version and a loss per step. With an argument it also saves an image to that path,
 * which takes a plug-in. */
#include <stdio.h>

#include <tern.h>

enum { N = 32, IN = 4, STEPS = 8 };

static int released;

static void count_release(void *ctx)
{
    (void)ctx;
    released++;
}

static void fill(tern_group *world, float *x, float *y, tern_error *err)
{
    int i;
    tern_rng *rng = tern_rng_new((uint64_t)tern_group_rank(world), err);
    if (err->code) return;
    tern_rng_normal(rng, x, N * IN, 0, 1);
    tern_rng_free(rng);
    for (i = 0; i < N; i++) y[i] = x[i * IN] - 2 * x[i * IN + 1] * x[i * IN + 2];
}

static void save_picture(const char *path, tern_error *err)
{
    static const uint8_t pixels[4] = {0, 255, 128, 64};
    tern_picture picture = {pixels, 2, 2, 1, "two by two", false};
    tern_picture_grid_save(path, "a grid", &picture, 1, 1, err);
}

int main(int argc, char **argv)
{
    static float x[N * IN], y[N];
    const int64_t x_shape[] = {N, IN}, y_shape[] = {N, 1}, sizes[] = {IN, 16, 1};
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *device = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_mlp_new(sizes, 3, rng, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_adam_opts adam = tern_adam_defaults();
    tern_optim *optim;
    tern_scope *scope;
    tern_tensor *input, *target;
    int step;
    adam.lr = 0.02;
    optim = tern_adam_new(net, &adam, &err);
    scope = tern_scope_new(device, world, &err);
    if (!err.code) fill(world, x, y, &err);
    input = tern_tensor_wrap(x, TERN_F32, 2, x_shape, count_release, NULL, &err);
    target = tern_tensor_wrap(y, TERN_F32, 2, y_shape, count_release, NULL, &err);

    if (!err.code && tern_group_rank(world) == 0) printf("tern %s\n", tern_version());
    for (step = 0; step < STEPS && !err.code; step++) {
        tern_tensor *guess = tern_forward(net, scope, input);
        tern_backward(scope, tern_mse_loss(scope, guess, target, TERN_LOSS_MEAN));
        tern_optim_step(optim, scope);
        if (tern_group_rank(world) == 0) printf("loss %.6f\n", tern_ddp_loss_mean(ddp));
        tern_scope_end(scope, &err);
    }
    if (!err.code && argc > 1 && tern_group_rank(world) == 0) save_picture(argv[1], &err);

    tern_tensor_free(target);
    tern_tensor_free(input);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(world);
    return tern_error_print(&err) || released != 2;
}
