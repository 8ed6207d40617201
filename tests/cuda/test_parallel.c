/* test_parallel.c - several ranks with models on devices with memory of their own: gradients and buffers
 * go through the host, and the losses match those of the CPU. */
#include "nets.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "nn/nn.h"

#include <math.h>

enum { STEPS = 3, ROWS = 8 };

/* The last two ranks share a GPU. */
static const char *gpu_of(int rank)
{
    return rank ? "cuda:0" : other_gpu();
}

/* ---- ranks ---- */

typedef struct job {
    make_fn make;
    int world;
    tern_dtype reduce_dtype;
    bool sync_batch_norm, static_graph;
    bool skips;  /* every second step only adds to this rank's gradients */
    bool uneven; /* rank r has r steps fewer */
    bool scaled; /* with a scaler, and rank 1's loss overflows in step 1 */
    double predivide, tolerance;
    batch batch;
} job;

/* A trunk and three heads; the last is never used and each rank chooses one of the others. */
typedef struct branches {
    tern_module base;
    tern_module *trunk, *heads[3];
} branches;

static int picked;

static tern_tensor *pick(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const branches *b = (branches *)module;
    return tern_forward(b->heads[picked % 2], scope, tern_relu(scope, tern_forward(b->trunk, scope, x)));
}

static tern_module *make_branches(tern_rng *rng, tern_error *err)
{
    static const char *const heads[] = {"one", "other", "none"};
    branches *b = tern__module_new(sizeof(*b), "branches", pick, err);
    if (!b) return NULL;
    b->trunk = tern_module_add(&b->base, "trunk", tern_linear_new(24, 40, NULL, rng, err), err);
    for (int i = 0; i < 3; i++)
        b->heads[i] = tern_module_add(&b->base, heads[i], tern_linear_new(40, 5, NULL, rng, err), err);
    return &b->base;
}

static tern_tensor *loss_of(tern_scope *scope, tern_module *net, const job *j, int rank)
{
    tern_tensor *x = rows_of(scope, &j->batch, rank, j->world);
    tern_tensor *y = labels_of(scope, &j->batch, rank, j->world);
    return tern_cross_entropy(scope, tern_forward(net, scope, x), y, NULL);
}

/* Makes a step; returns the scale after it. */
static double scaled_step(tern_scaler *scaler, tern_scope *scope, tern_optim *optim, tern_tensor *loss,
                          double boost)
{
    loss = tern_mul(scope, loss, tern_full(scope, TERN_F32, 0, NULL, boost));
    tern_backward(scope, tern_scaler_scale(scaler, scope, loss));
    tern_scaler_step(scaler, scope, optim);
    tern_scaler_update(scaler, scope);
    return tern_scaler_scale_get(scaler);
}

/* Runs steps on the group; records the mean losses, or scales. */
static void run_steps(tern_ddp *ddp, tern_module *net, tern_device *device, tern_group *group, const job *j,
                      double *loss, tern_error *err)
{
    int rank = tern_group_rank(group), count = j->uneven ? STEPS - rank : STEPS;
    tern_optim *optim = err->code ? NULL : make_sgd(net, err);
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    tern_scaler *scaler = j->scaled ? tern_scaler_new(NULL, err) : NULL;
    for (int i = 0; i < count && !err->code; i++) {
        bool skips = j->skips && i % 2;
        picked = i + rank;
        tern_ddp_sync_set(ddp, !skips);
        tern_tensor *own = loss_of(scope, net, j, rank);
        if (scaler) loss[i] = scaled_step(scaler, scope, optim, own, i == 1 && rank == 1 ? 1e38 : 1);
        if (!scaler) tern_backward(scope, own);
        if (!scaler && !skips) tern_optim_step(optim, scope);
        tern_scope_end(scope, err);
        if (!scaler) loss[i] = tern_ddp_loss_mean(ddp);
    }
    tern_scaler_free(scaler);
    if (j->uneven && !err->code) tern_ddp_join(ddp, NULL, err);
    tern_scope_free(scope);
    tern_optim_free(optim);
}

static void train(tern_group *group, const job *j, const char *name, double *loss, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.reduce_dtype = j->reduce_dtype;
    opts.static_graph = j->static_graph;
    if (j->predivide > 0) opts.gradient_predivide_factor = j->predivide;
    opts.checksum_every = 1;
    opts.first_bucket_bytes = opts.bucket_bytes = 2000;
    tern_device *device = tern_device_open(name, err);
    tern_rng *rng = tern_rng_new(3 + (uint64_t)tern_group_rank(group), err);
    tern_module *net = j->make(rng, err);
    tern_module_to(net, device, err);
    if (j->sync_batch_norm) tern_sync_batch_norm_convert(net, group, err);
    tern_ddp *ddp = tern_ddp_new(net, group, &opts, err);
    run_steps(ddp, net, device, group, j, loss, err);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

static int body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    double away[STEPS] = {0}, here[STEPS] = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    train(group, j, gpu_of(rank), away, &err);
    RANK_CHECK_OK(rank, err);
    train(group, j, "cpu", here, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(away[i] - here[i]) <= j->tolerance))
            fprintf(stderr, "step %d: %.9g on cuda, %.9g on cpu\n", i, away[i], here[i]);
        RANK_CHECK(rank, fabs(away[i] - here[i]) <= j->tolerance);
    }
    RANK_CHECK(rank, !j->scaled || (away[0] == 65536 && away[STEPS - 1] == 32768));
    tern_group_close(group);
    return 0;
}

static void expect_the_cpus_losses(job *j)
{
    bool is_flat = j->make != make_resnet;
    if (is_flat)
        draw_batch(&j->batch, 5, 2, (int64_t[]){ROWS, 24});
    else
        draw_batch(&j->batch, 5, 4, (int64_t[]){ROWS, 3, 12, 12});
    for (j->world = j->scaled ? 2 : 1; j->world <= (is_flat ? 3 : 2); j->world++)
        assert_ranks_ok(ranks_run(j->world, body, j));
}

static void ranks_train(void **state)
{
    (void)state;
    static job j = {.make = make_resnet, .tolerance = 1e-4};
    expect_the_cpus_losses(&j);
}

static void ranks_train_with_gradients_in_16_bits(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .reduce_dtype = TERN_BF16, .tolerance = 1e-3};
    expect_the_cpus_losses(&j);
}

static void ranks_share_their_batch_norms(void **state)
{
    (void)state;
    static job j = {.make = make_resnet, .sync_batch_norm = true, .tolerance = 1e-4};
    expect_the_cpus_losses(&j);
}

static void gradients_in_f16(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .reduce_dtype = TERN_F16, .tolerance = 1e-3};
    expect_the_cpus_losses(&j);
}

static void unused_parameters(void **state)
{
    (void)state;
    static job j = {.make = make_branches, .tolerance = 1e-5};
    expect_the_cpus_losses(&j);
}

static void steps_without_synchronisation(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .skips = true, .static_graph = true, .tolerance = 1e-5};
    expect_the_cpus_losses(&j);
}

static void ranks_skip_a_step_together(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .scaled = true};
    expect_the_cpus_losses(&j);
}

static void gradients_are_divided_before(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .predivide = 3, .tolerance = 1e-5};
    expect_the_cpus_losses(&j);
}

static void ranks_run_out_of_inputs(void **state)
{
    (void)state;
    static job j = {.make = make_mlp, .uneven = true, .tolerance = 1e-5};
    expect_the_cpus_losses(&j);
}

/* ---- a scale and a rank that runs out ---- */

typedef struct runs_out {
    int after; /* rank 1 runs out after so many steps; the others go on */
    bool amp;  /* with amp, or a scaler */
    batch batch;
} runs_out;

static void step_by_scale(const runs_out *how, tern_amp *amp, tern_scaler *scaler, tern_scope *scope,
                          tern_module *net, tern_optim *optim)
{
    tern_tensor *x = rows_of(scope, &how->batch, 0, 2), *y = labels_of(scope, &how->batch, 0, 2);
    tern_tensor *loss = tern_cross_entropy(scope, tern_forward(net, scope, x), y, NULL);
    if (how->amp) {
        tern_amp_backward(amp, scope, loss, NULL);
        tern_optim_step(optim, scope);
    } else {
        tern_backward(scope, tern_scaler_scale(scaler, scope, loss));
        tern_scaler_step(scaler, scope, optim);
        tern_scaler_update(scaler, scope);
    }
}

/* Steps that it does not make would leave it with another scale: its join is refused, and the others are
 * told. */
static int runs_out_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const runs_out *how = arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open(gpu_of(rank), &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = make_mlp(rng, &err);
    tern_module_to(net, device, &err);
    tern_amp *amp = how->amp ? tern_amp_new(net, NULL, &err) : NULL;
    tern_ddp *ddp = tern_ddp_new(net, group, NULL, &err);
    tern_optim *optim = make_sgd(net, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    tern_scope *scope = tern_scope_new(device, group, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < (rank == 1 ? how->after : STEPS) && !err.code; i++) {
        step_by_scale(how, amp, scaler, scope, net, optim);
        tern_scope_end(scope, &err);
    }
    if (!err.code) tern_ddp_join(ddp, NULL, &err);
    RANK_CHECK(rank, err.code == (rank == 1 ? TERN_E_STATE : TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, "is stepped by a scaler: pass an after_backward that steps it"));
    tern_scope_free(scope);
    tern_scaler_free(scaler);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_amp_free(amp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void a_rank_without_steps_has_no_scale(void **state)
{
    (void)state;
    static runs_out how;
    draw_batch(&how.batch, 5, 2, (int64_t[]){ROWS, 24});
    for (int i = 0; i < 4; i++) {
        how.after = i / 2;
        how.amp = i % 2;
        assert_ranks_ok(ranks_run(2, runs_out_body, &how));
    }
}

/* ---- a rank alone ---- */

static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open("cuda:0", &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = j->make(rng, &err);
    tern_module_to(net, device, &err);
    tern_ddp *ddp = tern_ddp_new(net, group, NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_optim *optim = make_sgd(net, &err);
    tern_scope *scope = tern_scope_new(device, group, &err);
    const long *waits = emulated_symbol("emulated_waits");
    long before = 0;
    for (int i = 0; i < STEPS; i++) {
        if (i == 1) before = *waits;
        tern_backward(scope, loss_of(scope, net, j, rank));
        tern_optim_step(optim, scope);
        tern_scope_end(scope, &err);
        RANK_CHECK_OK(rank, err);
    }
    RANK_CHECK(rank, *waits == before);
    RANK_CHECK(rank, tern_ddp_loss_mean(ddp) > 0.5 && *waits > before);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

/* Its gradients stay on the device. */
static void a_rank_alone_waits_for_no_device(void **state)
{
    (void)state;
    static job j = {.make = make_resnet, .world = 1};
    if (!is_emulated()) skip_test("needs the emulation");
    draw_batch(&j.batch, 5, 4, (int64_t[]){ROWS, 3, 12, 12});
    assert_ranks_ok(ranks_run(1, alone_body, &j));
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_train),
        cmocka_unit_test(ranks_train_with_gradients_in_16_bits),
        cmocka_unit_test(gradients_in_f16),
        cmocka_unit_test(ranks_share_their_batch_norms),
        cmocka_unit_test(unused_parameters),
        cmocka_unit_test(steps_without_synchronisation),
        cmocka_unit_test(ranks_skip_a_step_together),
        cmocka_unit_test(gradients_are_divided_before),
        cmocka_unit_test(ranks_run_out_of_inputs),
        cmocka_unit_test(a_rank_without_steps_has_no_scale),
        cmocka_unit_test(a_rank_alone_waits_for_no_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
