/* test_ddp.c - tern_ddp on 1 to 4 forked ranks: equal bits, the mean of one big batch, unused parameters,
 * accumulation, wrong use, and a rank that dies in the middle of a step. */
#include "ddp_fixture.h"

#include <sys/mman.h>

#define ROWS  8 /* per rank */
#define STEPS 6

/* ---- setup ---- */

/* `cap`: bytes per bucket, 0 for the defaults. */
static void setup(fixture *f, const tern__bootstrap *boot, size_t cap, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    if (cap) opts.first_bucket_bytes = opts.bucket_bytes = cap;
    fixture_open(f, boot, NULL, &opts, err);
}

/* ---- equal bits ---- */

static int equal_bits_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    setup(&f, boot, *(size_t *)arg, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    for (int step = 0; step < STEPS; step++) {
        fixture_backward(&f, step, rank * ROWS, ROWS);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    }
    if (*(size_t *)arg == 64) RANK_CHECK(rank, tern_ddp_bucket_count(f.ddp) >= 3);
    fixture_close(&f);
    return 0;
}

static void bits_are_equal_after_every_step(void **state)
{
    (void)state;
    size_t caps[] = {0, 4096, 64};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(caps); i++)
            assert_ranks_ok(ranks_run(world, equal_bits_body, &caps[i]));
}

/* ---- N ranks equal one rank with N times the batch ---- */

static void train_alone(tern_module *net, int rows, tern_error *err)
{
    fixture f = {.dev = tern_device_open("cpu", err), .net = net, .s = NULL};
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.125;
    sgd.momentum = 0.5;
    f.opt = tern_sgd_new(net, &sgd, err);
    f.s = tern_scope_new(f.dev, NULL, err);
    for (int step = 0; step < STEPS && !err->code; step++) {
        fixture_backward(&f, step, 0, rows);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, err);
    }
    tern_scope_free(f.s);
    tern_optim_free(f.opt);
    tern_device_close(f.dev);
}

static int one_batch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    setup(&f, boot, *(size_t *)arg, &err);
    for (int step = 0; step < STEPS && !err.code; step++) {
        fixture_backward(&f, step, rank * ROWS, ROWS);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    RANK_CHECK_OK(rank, err);
    tern_rng_seed(f.rng, 7); /* rank 0's seed */
    tern_module *alone = fixture_mlp(f.rng, &err);
    train_alone(alone, ROWS * boot->world, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, fixture_difference(f.net, alone) < 1e-5);
    tern_module_free(alone);
    fixture_close(&f);
    return 0;
}

static void ranks_equal_one_rank_with_the_whole_batch(void **state)
{
    (void)state;
    size_t caps[] = {0, 4096};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(caps); i++)
            assert_ranks_ok(ranks_run(world, one_batch_body, &caps[i]));
}

/* Integer data and weights and a power-of-two batch: every sum is exact, so the bits must be equal. */
static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 64, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *w = tern_state_find(f.net, "0.weight");
    for (int64_t i = 0; i < tern_tensor_count(w); i++) tern__view_set(&w->view, i, (double)(i % 5) - 2);
    float x[4 * ROWS * FEATURES], target[4 * ROWS * 32] = {0};
    for (int i = 0; i < 4 * ROWS * FEATURES; i++) x[i] = (float)(i * 7 % 9 - 4);
    for (int whole = 0; whole < 2; whole++) {
        int rows = whole ? ROWS * boot->world : ROWS, first = whole ? 0 : rank * ROWS;
        tern_tensor *in =
            tern_tensor_from(f.s, x + first * FEATURES, TERN_F32, 2, (int64_t[]){rows, FEATURES});
        tern_tensor *t = tern_tensor_from(f.s, target, TERN_F32, 2, (int64_t[]){rows, 32});
        tern_tensor *bias = tern_state_find(f.net, "0.bias");
        if (!whole)
            for (int64_t i = 0; i < tern_tensor_count(bias); i++)
                tern__view_set(&bias->view, i, (double)(i % 3));
        tern_backward(f.s, tern_mse_loss(f.s, tern_linear(f.s, in, w, bias), t, TERN_LOSS_MEAN));
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        tern_tensor *g = tern_grad_get(w);
        RANK_CHECK(rank, g);
        static float kept[32 * FEATURES], now[32 * FEATURES];
        RANK_CHECK(rank, tern_tensor_read(g, whole ? now : kept, sizeof(kept), &err) == TERN_OK);
        if (whole) RANK_CHECK(rank, memcmp(kept, now, sizeof(kept)) == 0);
        tern_zero_grad(f.net);
    }
    fixture_close(&f);
    return 0;
}

static void exact_sums_give_equal_bits(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2) assert_ranks_ok(ranks_run(world, exact_body, NULL));
}

/* ---- repeated runs ---- */

static int hash_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 4096, &err);
    for (int step = 0; step < STEPS && !err.code; step++) {
        fixture_backward(&f, step, rank * ROWS, ROWS);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    RANK_CHECK_OK(rank, err);
    uint64_t hash = fixture_hash(f.net);
    if (rank == 0) RANK_CHECK(rank, write(*(int *)arg, &hash, sizeof(hash)) == sizeof(hash));
    fixture_close(&f);
    return 0;
}

static void bits_are_equal_from_run_to_run(void **state)
{
    (void)state;
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        int ends[2];
        assert_return_code(pipe(ends), errno);
        assert_ranks_ok(ranks_run(3, hash_body, &ends[1]));
        assert_int_equal(read(ends[0], &hashes[i], sizeof(hashes[i])), sizeof(hashes[i]));
        close(ends[0]);
        close(ends[1]);
    }
    assert_true(hashes[0] == hashes[1] && hashes[1] == hashes[2]);
}

/* ---- buckets are rebuilt in rank 0's ready order ---- */

/* Two layers, registered as a, b. Rank 0 calls b first, so its a is ready first; the others call a first. */
static int rebuild_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f = {.world = tern__group_open_boot(boot, NULL, &err), .dev = tern_device_open("cpu", &err)};
    f.rng = tern_rng_new(3, &err);
    tern_module net;
    tern_module_init(&net, "pair", NULL, &err);
    tern_module *a = tern_module_add(&net, "a", tern_linear_new(FEATURES, FEATURES, NULL, f.rng, &err), &err);
    tern_module *b = tern_module_add(&net, "b", tern_linear_new(FEATURES, FEATURES, NULL, f.rng, &err), &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 1;
    f.ddp = tern_ddp_new(&net, f.world, &opts, &err);
    f.s = tern_scope_new(f.dev, f.world, &err);
    RANK_CHECK_OK(rank, err);
    static const char *const registered[] = {"b.bias", "b.weight", "a.bias", "a.weight"};
    static const char *const ready[] = {"a.bias", "a.weight", "b.bias", "b.weight"};
    for (int step = 0; step < 3; step++) {
        for (int place = 0; place < 4; place++)
            RANK_CHECK(rank, !strcmp(f.ddp->seal->leaves[f.ddp->order[place]]->name,
                                     (step ? ready : registered)[place]));
        float target[ROWS * FEATURES] = {0};
        tern_tensor *in = fixture_rows(&f, step, rank * ROWS, ROWS);
        tern_tensor *t = tern_tensor_from(f.s, target, TERN_F32, 2, (int64_t[]){ROWS, FEATURES});
        tern_module *first = rank == 0 ? b : a, *second = rank == 0 ? a : b;
        tern_backward(f.s, tern_mse_loss(f.s, tern_forward(second, f.s, tern_forward(first, f.s, in)), t,
                                         TERN_LOSS_MEAN));
        uint64_t hash = 0;
        for (int k = 0; k < 4 && !f.s->error.code; k++) {
            const tern__view *g = &f.ddp->seal->leaves[k]->grad->view;
            for (size_t i = 0; i < tern__view_bytes(g); i++) hash = hash * 31 + ((const uint8_t *)g->data)[i];
        }
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_same(f.world, hash, &err));
        tern_zero_grad(&net);
    }
    RANK_CHECK(rank, tern_ddp_bucket_count(f.ddp) == 4);
    tern_scope_free(f.s);
    tern_ddp_free(f.ddp);
    tern_module_release(&net);
    tern_rng_free(f.rng);
    tern_device_close(f.dev);
    tern_group_close(f.world);
    return 0;
}

static void buckets_follow_rank_0_ready_order(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, rebuild_body, NULL));
}

/* ---- all ranks get rank 0's buffers ---- */

static int buffers_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool broadcast = *(bool *)arg;
    tern_error err = {0};
    fixture f = {.world = tern__group_open_boot(boot, NULL, &err), .dev = tern_device_open("cpu", &err)};
    f.rng = tern_rng_new((uint64_t)rank, &err);
    tern_resnet_opts shape = tern_resnet_defaults();
    shape.in_channels = 1;
    shape.classes = CLASSES;
    shape.stages = shape.blocks[0] = 1;
    shape.channels[0] = 16;
    shape.small_stem = true;
    f.net = tern_resnet_new(&shape, f.rng, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.broadcast_buffers = broadcast;
    f.ddp = tern_ddp_new(f.net, f.world, &opts, &err);
    f.opt = tern_sgd_new(f.net, NULL, &err);
    f.s = tern_scope_new(f.dev, f.world, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 3; step++) {
        float x[ROWS * 36];
        int64_t y[ROWS];
        tern_rng_normal(f.rng, x, ROWS * 36, rank, 1);
        for (int i = 0; i < ROWS; i++) y[i] = i % CLASSES;
        tern_tensor *in = tern_tensor_from(f.s, x, TERN_F32, 4, (int64_t[]){ROWS, 1, 6, 6});
        tern_tensor *label = tern_tensor_from(f.s, y, TERN_I64, 1, (int64_t[]){ROWS});
        tern_backward(f.s, tern_cross_entropy(f.s, tern_forward(f.net, f.s, in), label, NULL));
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err) == broadcast);
    }
    RANK_CHECK(rank, tern_item(tern_state_find(f.net, "bn1.num_batches_tracked")) == 3);
    fixture_close(&f);
    return 0;
}

static void buffers_are_those_of_rank_0(void **state)
{
    (void)state;
    for (int broadcast = 0; broadcast < 2; broadcast++) {
        bool on = broadcast;
        for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, buffers_body, &on));
    }
}

/* ---- unused parameters, without a flag ---- */

static int unused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 64, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *w0 = tern_state_find(f.net, "0.weight"), *b0 = tern_state_find(f.net, "0.bias");
    tern_tensor *w2 = tern_state_find(f.net, "2.weight"), *b2 = tern_state_find(f.net, "2.bias");
    float target[ROWS * 32] = {0};
    for (int step = 0; step < 4; step++) {
        tern_tensor *in = fixture_rows(&f, step, rank * ROWS, ROWS);
        tern_tensor *h = tern_linear(f.s, in, w0, b0);
        /* Only rank 0 uses layer 2, in odd steps; no rank uses layer 4. */
        bool second = rank == 0 && step % 2;
        if (second) h = tern_linear(f.s, tern_relu(f.s, h), w2, b2);
        tern_tensor *t = tern_tensor_from(f.s, target, TERN_F32, 2, (int64_t[]){ROWS, second ? 16 : 32});
        tern_backward(f.s, tern_mse_loss(f.s, h, t, TERN_LOSS_MEAN));
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, tern_grad_get(w0) && tern_grad_get(b0));
        RANK_CHECK(rank, (tern_grad_get(w2) != NULL) == (step % 2 != 0));
        RANK_CHECK(rank, !tern_grad_get(tern_state_find(f.net, "4.weight")));
        if (step % 2) {
            double sum = 0;
            for (int64_t i = 0; i < tern_tensor_count(w2); i++)
                sum += fabs(tern__view_get(&tern_grad_get(w2)->view, i));
            RANK_CHECK(rank, sum > 0);
        }
        tern_optim_step(f.opt, f.s);
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    }
    fixture_close(&f);
    return 0;
}

static void unused_parameters_need_no_flag(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, unused_body, NULL));
}

/* ---- gradient accumulation ---- */

static int accumulate_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 4096, &err);
    tern_tensor *w = tern_state_find(f.net, "2.weight");
    static float sum[16 * 32], parts[2][16 * 32];
    for (int part = 0; part < 2; part++) { /* each separately */
        fixture_backward(&f, part, rank * ROWS, ROWS);
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank,
                   tern_tensor_read(tern_grad_get(w), parts[part], sizeof(parts[part]), &err) == TERN_OK);
        tern_zero_grad(f.net);
    }
    RANK_CHECK(rank, tern_ddp_sync_set(f.ddp, false)); /* and both, synchronised once */
    fixture_backward(&f, 0, rank * ROWS, ROWS);
    tern_scope_end(f.s, &err);
    RANK_CHECK(rank, !tern_ddp_sync_set(f.ddp, true));
    fixture_backward(&f, 1, rank * ROWS, ROWS);
    tern_scope_end(f.s, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern_tensor_read(tern_grad_get(w), sum, sizeof(sum), &err) == TERN_OK);
    for (int i = 0; i < 16 * 32; i++) RANK_CHECK(rank, fabsf(sum[i] - parts[0][i] - parts[1][i]) < 1e-6f);
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    return 0;
}

static void accumulation_is_synchronised_once(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, accumulate_body, NULL));
}

/* Rank 1 forgets to synchronise: no rank hangs, and both get an error. */
static int diverge_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 0, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) tern_ddp_sync_set(f.ddp, false);
    for (int step = 0; step < 2 && !err.code; step++) {
        fixture_backward(&f, step, 0, ROWS);
        tern_scope_end(f.s, &err);
        tern_ddp_sync_set(f.ddp, true);
    }
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    fixture_close(&f);
    return 0;
}

static void divergence_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, diverge_body, NULL));
}

/* ---- the mean loss ---- */

static int loss_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 64, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, isnan(tern_ddp_loss_mean(f.ddp)));
    tern_tensor *in = fixture_rows(&f, 0, rank * ROWS, ROWS), *label = fixture_labels(&f, rank * ROWS, ROWS);
    tern_tensor *loss = tern_cross_entropy(f.s, tern_forward(f.net, f.s, in), label, NULL);
    double mean = tern_item(loss);
    tern_backward(f.s, loss);
    RANK_CHECK(rank, tern_all_reduce(f.world, &mean, 1, TERN_F64, TERN_AVG, &err) == TERN_OK);
    RANK_CHECK(rank, fabs(tern_ddp_loss_mean(f.ddp) - mean) < 1e-6);
    tern_scope_end(f.s, &err);
    fixture_close(&f);
    return 0;
}

static void mean_loss_comes_with_the_last_bucket(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, loss_body, NULL));
}

/* ---- wrong use ---- */

static int other_model_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_mlp_new((int64_t[]){FEATURES, rank == 2 ? 33 : 32, CLASSES}, 3, rng, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !tern_ddp_new(net, world, NULL, &err));
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "rank 0 has parameter \"0.weight\" (32, 12) f32"));
    RANK_CHECK(rank, strstr(err.text, "rank 2 has parameter \"0.weight\" (33, 12) f32"));
    tern_module_free(net);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void different_models_are_refused_by_name(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, other_model_body, NULL));
}

/* A rank whose data file is missing continues its calls with err set: the others do not hang. */
static void what_is_missing_is_told(void **state)
{
    (void)state;
    tern_error err = {0}, of_module = {0};
    tern_group *alone = tern_group_open(NULL, &err);
    tern_module *norm = tern_batch_norm1d_new(3, NULL, &err);
    assert_ok(err);
    assert_null(tern_ddp_new(norm, NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the group is NULL");
    assert_null(tern_ddp_new(NULL, alone, NULL, &of_module));
    assert_int_equal(of_module.code, TERN_E_INVALID);
    assert_string_equal(of_module.text, "the module is NULL");
    tern_module_free(norm);
    tern_group_close(alone);
}

static int set_error_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = fixture_mlp(rng, &err);
    if (rank == 1) tern_idx_open("/nowhere/images.gz", "/nowhere/labels.gz", NULL, &err);
    RANK_CHECK(rank, !tern_ddp_new(net, world, NULL, &err));
    RANK_CHECK(rank, strstr(err.text, "/nowhere/images.gz"));
    RANK_CHECK(rank, rank == 1 || strstr(err.text, "rank 1"));
    tern_module_free(net);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void an_error_before_ddp_reaches_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, set_error_body, NULL));
}

/* A failing op on one rank (label 9 of 4 classes) ends the other's step with the same error text. */
static int bad_label_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 0, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 3 && !err.code; step++) {
        tern_tensor *in = fixture_rows(&f, step, 0, ROWS), *label = fixture_labels(&f, 0, ROWS);
        if (rank == 1 && step == 1) tern__view_set_int(&label->view, 3, 9);
        tern_backward(f.s, tern_cross_entropy(f.s, tern_forward(f.net, f.s, in), label, NULL));
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    RANK_CHECK(rank, err.code == (rank == 1 ? TERN_E_RANGE : TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, "label 9 of sample 3"));
    fixture_close(&f);
    return 0;
}

static void a_failing_op_ends_the_step_of_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, bad_label_body, NULL));
}

/* ---- a rank dies in the middle of a step ---- */

static int64_t *killed_at; /* shared with the ranks */

static int killed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 64, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 1000000 && !err.code; step++) {
        if (rank == 1 && step == 20) {
            tern_forward(f.net, f.s, fixture_rows(&f, step, 0, ROWS));
            *killed_at = tern__now_ns();
            kill(getpid(), SIGKILL);
        }
        fixture_backward(&f, step, rank * ROWS, ROWS);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    double seconds = (double)(tern__now_ns() - *killed_at) * 1e-9;
    if (!strstr(err.text, "rank 1")) fprintf(stderr, "%s\n", err.text);
    RANK_CHECK(rank, err.code == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "rank 1"));
    RANK_CHECK(rank, seconds < RANKS_SOON_S);
    fixture_close(&f);
    return 0;
}

static void a_killed_rank_is_named_soon(void **state)
{
    (void)state;
    killed_at = share_memory(4096);
    for (int world = 2; world <= 3; world++) {
        ranks r = ranks_run(world, killed_body, NULL);
        assert_int_equal(r.status[1], 128 + SIGKILL);
        for (int rank = 0; rank < world; rank++)
            if (rank != 1) assert_int_equal(r.status[rank], 0);
    }
    munmap(killed_at, 4096);
}

/* ---- no allocation in a warm step ---- */

/* Counts this thread's allocations: another thread of rank 0 may still serve its store. */
static _Thread_local long allocations;

static void *counting_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    allocations++;
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void counting_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

static int no_alloc_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern__allocator_replace(&(tern_allocator){counting_alloc, counting_free, NULL});
    tern_error err = {0};
    fixture f;
    setup(&f, boot, 4096, &err);
    long warm = 0;
    for (int step = 0; step < 6 && !err.code; step++) {
        if (step == 3) warm = allocations; /* the buckets have been rebuilt, and both arenas have grown */
        fixture_backward(&f, step, rank * ROWS, ROWS);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, warm > 0 && allocations == warm);
    fixture_close(&f);
    return 0;
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, no_alloc_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_equal_after_every_step),
        cmocka_unit_test(ranks_equal_one_rank_with_the_whole_batch),
        cmocka_unit_test(exact_sums_give_equal_bits),
        cmocka_unit_test(bits_are_equal_from_run_to_run),
        cmocka_unit_test(buckets_follow_rank_0_ready_order),
        cmocka_unit_test(buffers_are_those_of_rank_0),
        cmocka_unit_test(unused_parameters_need_no_flag),
        cmocka_unit_test(accumulation_is_synchronised_once),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(mean_loss_comes_with_the_last_bucket),
        cmocka_unit_test(different_models_are_refused_by_name),
        cmocka_unit_test(what_is_missing_is_told),
        cmocka_unit_test(an_error_before_ddp_reaches_all),
        cmocka_unit_test(a_failing_op_ends_the_step_of_all),
        cmocka_unit_test(a_killed_rank_is_named_soon),
        cmocka_unit_test(a_warm_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
