/* test_nesting.c - nested parallelism: ranks with tern_ddp, each with two replicas, each of which
 * checkpoints half of its model. The results equal those of one device and one tape with the whole batch. */
#include "ddp_fixture.h"
#include "nn/scored.h"

enum { features = 12, hidden = 16, classes = 4, rows = 6, steps = 5 }; /* rows per rank */

/* Two halves; the second one may be checkpointed. */
typedef struct halves {
    tern_module base;
    tern_module *first, *second;
    bool checkpoints;
} halves;

static tern_tensor *halves_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const halves *net = (halves *)module;
    x = tern_relu(scope, tern_forward(net->first, scope, x));
    return net->checkpoints ? tern_checkpoint(net->second, scope, x) : tern_forward(net->second, scope, x);
}

static void make_net(halves *net, uint64_t seed, bool checkpoints, tern_error *err)
{
    tern_rng *rng = tern_rng_new(seed, err);
    *net = (halves){.checkpoints = checkpoints};
    tern_module_init(&net->base, "halves", halves_forward, err);
    net->first = tern_module_add(&net->base, "first", tern_linear_new(features, hidden, NULL, rng, err), err);
    net->second = tern_module_add(&net->base, "second",
                                  tern_mlp_new((int64_t[]){hidden, hidden, classes}, 3, rng, err), err);
    tern_rng_free(rng);
}

/* Returns rows [first, first + count) of one long batch. */
static tern_tensor *batch(tern_scope *scope, int step, int first, int count, tern_tensor **label)
{
    float x[4 * rows * features];
    int64_t y[4 * rows];
    for (int i = 0; i < count * features; i++) x[i] = (float)sin(1.7 * (first * features + i) + step);
    for (int i = 0; i < count; i++) y[i] = (first + i) % classes;
    *label = tern_tensor_from(scope, y, TERN_I64, 1, (int64_t[]){count});
    return tern_tensor_from(scope, x, TERN_F32, 2, (int64_t[]){count, features});
}

static void step(halves *net, tern_data_parallel *parallel, tern_optim *sgd, tern_scope *scope, int number,
                 int first, int count)
{
    tern_tensor *label, *x = batch(scope, number, first, count, &label);
    tern_tensor *y =
        parallel ? tern_data_parallel_forward(parallel, scope, x) : tern_forward(&net->base, scope, x);
    if (parallel) label = tern_to(scope, label, tern_tensor_device(y));
    tern_backward(scope, tern_cross_entropy(scope, y, label, NULL));
    tern_optim_step(sgd, scope);
}

static int train(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *home = tern_device_open("cpu", &err), *devices[2];
    for (int i = 0; i < 2; i++) devices[i] = tern_device_open("cpu:0", &err);
    halves net, alone;
    make_net(&net, 3 + (uint64_t)rank, true, &err);
    make_net(&alone, 3, false, &err); /* the same as rank 0's */
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.devices = devices;
    opts.device_count = 2;
    tern_data_parallel *parallel = tern_data_parallel_new(&net.base, &opts, &err);
    tern_ddp *ddp = tern_ddp_new(&net.base, world, NULL, &err);
    tern_optim *sgd = tern_sgd_new(&net.base, NULL, &err), *own = tern_sgd_new(&alone.base, NULL, &err);
    tern_scope *scope = tern_scope_new(home, world, &err), *local = tern_scope_new(home, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < steps; i++) {
        step(&net, parallel, sgd, scope, i, rank * rows, rows);
        step(&alone, NULL, own, local, i, 0, boot->world * rows);
        tern_scope_end(scope, &err);
        tern_scope_end(local, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_difference(&net.base, &alone.base) < 1e-6);
    }
    tern_scope_free(local);
    tern_scope_free(scope);
    tern_optim_free(own);
    tern_optim_free(sgd);
    tern_ddp_free(ddp);
    tern_data_parallel_free(parallel);
    tern_module_release(&alone.base);
    tern_module_release(&net.base);
    for (int i = 0; i < 2; i++) tern_device_close(devices[i]);
    tern_device_close(home);
    tern_group_close(world);
    return 0;
}

static void ranks_of_replicas_of_checkpoints(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, train, NULL));
}

/* Each rank's x is rank + 1: the gradient of scale is the mean over the ranks. */
static int score(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *home = tern_device_open("cpu", &err);
    tern_scope *scope = tern_scope_new(home, world, &err);
    scored net;
    scored_init(&net, false, &err);
    tern_ddp *ddp = tern_ddp_new(&net.base, world, NULL, &err);
    RANK_CHECK_OK(rank, err);
    double mean = 0; /* of y y, of the score, and x 2 y scale, of the result */
    for (int r = 1; r <= boot->world; r++) mean += (9 * r * r + r * 18 * r) / (double)boot->world;
    tern_tensor *x = tern_full(scope, TERN_F32, 4, (int64_t[]){1, 1, 2, 2}, 0);
    tern_tensor_write(x, (float[]){(float)rank + 1, 0, 0, 0}, 4 * sizeof(float), &err);
    tern_backward(scope, tern_sum(scope, tern_checkpoint(&net.base, scope, x)));
    RANK_CHECK(rank, tern_grad_get(net.scale) && tern_item(tern_grad_get(net.scale)) == mean);
    tern_scope_end(scope, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_free(ddp);
    tern_scope_free(scope);
    tern_module_release(&net.base);
    tern_device_close(home);
    tern_group_close(world);
    return 0;
}

static void ranks_of_checkpoints_that_go_back_inside(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) assert_ranks_ok(ranks_run(world, score, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_replicas_of_checkpoints),
        cmocka_unit_test(ranks_of_checkpoints_that_go_back_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
