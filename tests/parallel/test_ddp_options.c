/* test_ddp_options.c - each field of tern_ddp_opts on 1 to 4 ranks; and without an option: dtypes, unused
 * parameters, several models at once. */
#include "parallel/bag.h"

#include "ledger.h"

#include <float.h>

#define ROWS 8

static const tern_dtype f32s[BAG_MAX] = {TERN_F32, TERN_F32, TERN_F32, TERN_F32,
                                         TERN_F32, TERN_F32, TERN_F32, TERN_F32};

static void run_worlds(ranks_body body, void *arg)
{
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, body, arg));
}

/* ---- dtypes: gradients are summed in f32 or wider and rounded once ---- */

typedef struct content {
    int count;
    tern_dtype dtypes[BAG_MAX];
    size_t cap;
} content;

static double exact_mean(int step, int world, int k, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < world; r++) sum += bag_number(step, r, k, i);
    return sum / world;
}

static int dtype_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const content *kinds = arg;
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    if (kinds->cap) opts.first_bucket_bytes = opts.bucket_bytes = kinds->cap;
    bag_open(&b, boot, kinds->dtypes, kinds->count, &opts, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 3; step++) {
        unsigned all = (1u << kinds->count) - 1,
                 mask = step == 1 ? all & ~1u : all; /* step 1 is without p0 */
        /* A mean loss that bf16 cannot represent: 256 + 1 / 4 + the mean of 0 .. world - 1. */
        tern_tensor *base = tern_full(b.s, TERN_F32, 0, NULL, 256.25 + rank);
        tern_backward(b.s, tern_add(b.s, base, bag_loss(&b, b.s, step, rank, mask)));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, tern_ddp_loss_mean(b.ddp) == 256.25 + (boot->world - 1) / 2.0);
        for (int k = 0; k < kinds->count; k++) {
            RANK_CHECK(rank, (tern_grad_get(b.p[k]) != NULL) == (mask >> k & 1));
            for (int64_t i = 0; mask >> k & 1 && i < tern_tensor_count(b.p[k]); i++)
                RANK_CHECK(rank, bag_holds(&b, k, i, exact_mean(step, boot->world, k, i)));
        }
        tern_zero_grad(&b.base);
    }
    bag_close(&b);
    return 0;
}

static void sums_are_wide_and_rounded_once(void **state)
{
    (void)state;
    content all[] = {
        {3, {TERN_BF16, TERN_BF16, TERN_BF16}, 0},
        {3, {TERN_F16, TERN_F16, TERN_F16}, 1},
        {2, {TERN_F64, TERN_F64}, 0},
        {6, {TERN_F16, TERN_BF16, TERN_F32, TERN_F64, TERN_BF16, TERN_F32}, 0},
        {5, {TERN_F64, TERN_F16, TERN_BF16, TERN_F32, TERN_F64}, 1},
    };
    for (size_t i = 0; i < TERN__COUNT(all); i++) run_worlds(dtype_body, &all[i]);
}

/* Two ranges are reduced in bf16, each in a window of its own, where p0 begins right behind the end that p1
 * has in the other window. */
static int windows_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const tern_dtype dtypes[] = {TERN_BF16, TERN_F32, TERN_BF16};
    (void)arg;
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.reduce_dtype = TERN_BF16;
    bag_open(&b, boot, dtypes, 3, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_backward(b.s, bag_loss(&b, b.s, 0, rank, 7));
    tern_scope_end(b.s, &err);
    RANK_CHECK_OK(rank, err);
    for (int k = 0; k < 3; k += 2)
        for (int64_t i = 0; i < tern_tensor_count(b.p[k]); i++)
            RANK_CHECK(rank, bag_holds(&b, k, i, exact_mean(0, boot->world, k, i)));
    bag_close(&b);
    return 0;
}

static void windows_are_told_apart(void **state)
{
    (void)state;
    run_worlds(windows_body, NULL);
}

/* ---- unused parameters: other random ones on each rank in each step ---- */

static unsigned mask_of(int step, int rank)
{
    return (uint32_t)(step * 31 + rank * 7 + 1) * 2654435761u >> 27; /* 5 bits */
}

static int unused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = *(size_t *)arg;
    bag_open(&b, boot, f32s, 5, &opts, &err);
    RANK_CHECK_OK(rank, err);
    double want[5][40] = {{0}};
    bool fresh[5] = {0};
    for (int step = 0; step < 24; step++) {
        if (step % 6 == 5) { /* otherwise gradients are accumulated */
            tern_zero_grad(&b.base);
            memset(want, 0, sizeof(want));
            memset(fresh, 0, sizeof(fresh));
        }
        tern_tensor *none = tern_sum(b.s, tern_mul(b.s, b.p[0], tern_full(b.s, TERN_F32, 0, NULL, 0)));
        tern_tensor *loss = bag_loss(&b, b.s, step, rank, mask_of(step, rank));
        tern_backward(b.s, loss ? loss : none);
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
        for (int k = 0; k < 5; k++) {
            for (int r = 0; r < boot->world; r++) {
                bool used = mask_of(step, r) >> k & 1;
                fresh[k] |= used || (k == 0 && !mask_of(step, r));
                for (int64_t i = 0; used && i < 5 + 7 * k; i++)
                    want[k][i] += bag_number(step, r, k, i) / boot->world;
            }
            const tern_tensor *grad = tern_grad_get(b.p[k]);
            RANK_CHECK(rank, (grad != NULL) == fresh[k]);
            for (int64_t i = 0; grad && i < 5 + 7 * k; i++)
                RANK_CHECK(rank, fabs(tern__view_get(&grad->view, i) - want[k][i]) < 1e-4);
        }
    }
    bag_close(&b);
    return 0;
}

static void any_parameters_may_be_left_out(void **state)
{
    (void)state;
    size_t caps[] = {1, 200, 1 << 20};
    for (size_t i = 0; i < TERN__COUNT(caps); i++) {
        run_worlds(unused_body, &caps[i]);
        assert_ranks_ok(ranks_run_threads(3, unused_body, &caps[i]));
    }
}

/* ---- scopes without a group, or of another family ---- */

static int backward_on(bag *b, tern_scope *scope)
{
    tern_error err = {0};
    tern_backward(scope, bag_loss(b, scope, 0, 0, 7));
    tern_zero_grad(&b->base);
    return tern_scope_end(scope, &err);
}

static int stranger_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool has_group = *(bool *)arg;
    const tern__bootstrap one = {.world = 1, .local_world = 1, .listen_fd = -1};
    tern_error err = {0};
    bag b;
    bag_open(&b, boot, f32s, 3, NULL, &err);
    tern_group *own = has_group ? tern__group_open_boot(&one, NULL, &err) : NULL;
    tern_scope *scope = tern_scope_new(b.dev, own, &err);
    tern_grad_enabled_set(scope, false);
    bag_loss(&b, scope, 0, rank, 7);
    RANK_CHECK(rank, tern_scope_end(scope, &err) == TERN_OK);
    tern_grad_enabled_set(scope, true);
    tern_ddp_sync_set(b.ddp, false);
    RANK_CHECK(rank, backward_on(&b, scope) == TERN_OK);
    tern_ddp_sync_set(b.ddp, true);
    RANK_CHECK_OK(rank, err);
    tern_barrier(b.world, NULL); /* after this a rank may have failed already */
    tern_backward(scope, bag_loss(&b, scope, 0, rank, 7));
    bool is_refused = tern_scope_error(scope)->code == TERN_E_STATE &&
                      strstr(tern_scope_error(scope)->text, "give tern_scope_new that group");
    RANK_CHECK(rank, is_refused == (boot->world > 1));
    tern_scope_end(scope, NULL);
    tern_scope_free(scope);
    tern_group_close(own);
    bag_close(&b);
    return 0;
}

/* Otherwise each rank would silently use its own gradients. */
static void backward_needs_the_ddps_group(void **state)
{
    (void)state;
    for (int has_group = 0; has_group < 2; has_group++) run_worlds(stranger_body, &(bool){has_group});
}

/* ---- a parameter used twice, and in several microbatches ---- */

static int twice_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    bag b;
    bag_open(&b, boot, f32s, 3, NULL, &err);
    tern_scope *other = tern_scope_new(b.dev, b.world, &err);
    RANK_CHECK_OK(rank, err);
    for (int micro = 0; micro < 3; micro++) {
        tern_ddp_sync_set(b.ddp, micro == 2);
        tern_scope *s = micro == 1 ? other : b.s;
        tern_tensor *loss = bag_loss(&b, s, micro, rank, 7);
        loss = tern_add(s, loss, bag_loss(&b, s, micro + 10, rank, 5)); /* p0 and p2 again */
        tern_backward(s, loss);
        tern_scope_end(s, &err);
        RANK_CHECK_OK(rank, err);
    }
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < 5 + 7 * k; i++) {
            double want = 0;
            for (int micro = 0; micro < 3; micro++)
                want += exact_mean(micro, boot->world, k, i) * boot->world +
                        (k == 1 ? 0 : exact_mean(micro + 10, boot->world, k, i) * boot->world);
            RANK_CHECK(rank, bag_holds(&b, k, i, want / boot->world));
        }
    tern_scope_free(other);
    bag_close(&b);
    return 0;
}

static void a_parameter_may_be_used_many_times(void **state)
{
    (void)state;
    run_worlds(twice_body, NULL);
}

/* ---- ignore ---- */

static int ignore_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    bag b;
    bag_init(&b, f32s, 4, &err);
    tern_tensor *mean = tern_buffer_add(&b.base, "mean", TERN_F32, 1, (int64_t[]){3}, &err);
    tern_tensor *own = tern_buffer_add(&b.base, "own", TERN_F32, 1, (int64_t[]){3}, &err);
    tern_tensor *count = tern_buffer_add(&b.base, "count", TERN_I64, 0, NULL, &err);
    tern_tensor *all[] = {b.p[0], b.p[1], b.p[2], b.p[3], mean, own, count};
    static const bool is_own[] = {false, true, false, true, false, true, false};
    for (int i = 0; i < 7; i++) tern__view_set(&all[i]->view, 0, rank + 1);
    b.world = tern__group_open_boot(boot, NULL, &err);
    b.dev = tern_device_open("cpu", &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.ignore = (const char *const[]){"p1", "own", "p3"};
    opts.ignore_count = 3;
    b.ddp = tern_ddp_new(&b.base, b.world, &opts, &err);
    b.s = tern_scope_new(b.dev, b.world, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 7; i++)
        RANK_CHECK(rank, tern__view_get(&all[i]->view, 0) == (is_own[i] ? rank : 0) + 1);
    for (int step = 0; step < 3; step++) {
        for (int i = 4; i < 7; i++) tern__view_set(&all[i]->view, 0, 10 * rank + step);
        tern_backward(b.s, bag_loss(&b, b.s, step, rank, 15));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
        for (int i = 4; i < 7; i++)
            RANK_CHECK(rank, tern__view_get(&all[i]->view, 0) == (is_own[i] ? 10 * rank : 0) + step);
        for (int k = 0; k < 4; k++)
            for (int64_t i = 0; i < 5 + 7 * k; i++)
                RANK_CHECK(rank, bag_holds(&b, k, i,
                                           is_own[k] ? bag_number(step, rank, k, i)
                                                     : exact_mean(step, boot->world, k, i)));
        tern_zero_grad(&b.base);
    }
    bag_close(&b);
    return 0;
}

static void what_is_ignored_stays_each_ranks_own(void **state)
{
    (void)state;
    run_worlds(ignore_body, NULL);
}

/* ---- delay_all_reduce ---- */

/* Runs a few steps of a new net in the fixture's group. */
static int delay_steps(fixture f, bool delay, uint64_t *hash, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 64;
    opts.delay_all_reduce = delay;
    tern_rng_seed(f.rng, 7);
    f.net = fixture_mlp(f.rng, err);
    f.ddp = tern_ddp_new(f.net, f.world, &opts, err);
    f.opt = fixture_sgd(f.net, err);
    for (int step = 0; step < 4; step++) fixture_step(&f, step, f.rank * ROWS, ROWS, err);
    RANK_CHECK_OK(f.rank, *err);
    *hash = fixture_hash(f.net);
    tern_ddp_stats stats = {.size = sizeof(stats)};
    RANK_CHECK(f.rank, tern_ddp_stats_get(f.ddp, &stats, err) == TERN_OK);
    RANK_CHECK(f.rank, delay ? stats.mean.overlap == 0 : stats.mean.overlap > 0);
    tern_optim_free(f.opt);
    tern_ddp_free(f.ddp);
    tern_module_free(f.net);
    return 0;
}

static int delay_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    uint64_t hash[2];
    fixture_open(&f, boot, NULL, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int delay = 0; delay < 2; delay++)
        if (delay_steps(f, delay, &hash[delay], &err)) return 1;
    RANK_CHECK(rank, hash[0] == hash[1]);
    fixture_close(&f);
    return 0;
}

static void a_delayed_reduction_begins_after_backward(void **state)
{
    (void)state;
    run_worlds(delay_body, NULL);
}

/* ---- static_graph ---- */

static int static_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool before = *(bool *)arg; /* true: the last rank stops using p1 in backward 4; false: it starts */
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.static_graph = true;
    bag_open(&b, boot, f32s, 4, &opts, &err);
    RANK_CHECK_OK(rank, err);
    unsigned first = before ? 3 : 5, other = before ? 5 : 7; /* p0, p1 -> p0, p2; p0, p2 -> p0, p1, p2 */
    int odd = boot->world - 1, step = 0;
    for (; step < 6 && !err.code; step++) {
        tern_backward(b.s, bag_loss(&b, b.s, step, rank, rank == odd && step == 3 ? other : first));
        tern_scope_end(b.s, &err);
        tern_zero_grad(&b.base);
    }
    RANK_CHECK(rank, rank != odd || step == 4);
    RANK_CHECK(rank, err.code == (rank == odd ? TERN_E_STATE : TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, before ? "parameter \"p1\" was used in the first backward, and is not "
                                               "used in backward 4"
                                             : "parameter \"p1\" was not used in the first backward, and is "
                                               "used in backward 4"));
    bag_close(&b);
    return 0;
}

static void a_static_graph_that_changes_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool before = i;
        run_worlds(static_body, &before);
    }
}

/* ---- gradient_predivide_factor ---- */

/* The sum over all ranks would overflow, so it is divided before. */
static int predivide_body(int rank, const tern__bootstrap *boot, void *arg)
{
    double factor = *(double *)arg;
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.gradient_predivide_factor = factor;
    bag_open(&b, boot, f32s, 1, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *large = tern_full(b.s, TERN_F32, 0, NULL, FLT_MAX / 2);
    tern_backward(b.s, tern_sum(b.s, tern_mul(b.s, b.p[0], large)));
    tern_scope_end(b.s, &err);
    RANK_CHECK_OK(rank, err);
    double got = tern__view_get(&tern_grad_get(b.p[0])->view, 0), want = FLT_MAX / 2;
    bool overflows = boot->world * want / factor > FLT_MAX;
    RANK_CHECK(rank, overflows ? isinf(got) : fabs(got / want - 1) < 1e-6);
    RANK_CHECK(rank, tern_ddp_loss_mean(b.ddp) == 0);
    bag_close(&b);
    return 0;
}

static void a_predivided_sum_does_not_overflow(void **state)
{
    (void)state;
    double factors[] = {1, 4, 0.75, 3};
    for (size_t i = 0; i < TERN__COUNT(factors); i++) run_worlds(predivide_body, &factors[i]);
}

/* ---- several models ---- */

static bool is_filled(const tern_tensor *tensor, unsigned char byte)
{
    const unsigned char *data = tensor->view.data;
    for (size_t i = 0; i < tern__view_bytes(&tensor->view); i++)
        if (data[i] != byte) return false;
    return true;
}

static int models_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    bag a, b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 64;
    bag_open(&a, boot, f32s, 3, &opts, &err);
    bag_init(&b, f32s, 4, &err);
    b.ddp = tern_ddp_new(&b.base, a.world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 9; step++) {
        bool with_a = step % 3 != 1, with_b = step % 3 != 0; /* a alone, b alone, one backward through both */
        for (int k = 0; k < 4; k++)
            if (!with_b) memset(b.p[k]->leaf->grad->view.data, 0x30 + rank, tern__view_bytes(&b.p[k]->view));
        double before = tern_ddp_loss_mean(b.ddp);
        tern_tensor *loss = with_a ? bag_loss(&a, a.s, step, rank, 7) : NULL;
        tern_tensor *other = with_b ? bag_loss(&b, a.s, step, rank, 15) : NULL;
        tern_backward(a.s, loss && other ? tern_add(a.s, loss, other) : loss ? loss : other);
        tern_scope_end(a.s, &err);
        RANK_CHECK_OK(rank, err);
        for (int k = 0; k < 3; k++) {
            RANK_CHECK(rank, (tern_grad_get(a.p[k]) != NULL) == with_a);
            for (int64_t i = 0; with_a && i < 5 + 7 * k; i++)
                RANK_CHECK(rank, bag_holds(&a, k, i, exact_mean(step, boot->world, k, i)));
        }
        for (int k = 0; k < 4; k++) { /* b is not reduced if no rank used it */
            RANK_CHECK(rank, (tern_grad_get(b.p[k]) != NULL) == with_b);
            RANK_CHECK(rank, with_b || is_filled(b.p[k]->leaf->grad, (unsigned char)(0x30 + rank)));
            for (int64_t i = 0; with_b && i < 5 + 7 * k; i++)
                RANK_CHECK(rank, bag_holds(&b, k, i, exact_mean(step, boot->world, k, i)));
        }
        RANK_CHECK(rank, a.ddp->rebuilt &&
                             b.ddp->rebuilt == (step > 0)); /* rebuilt by the first one that used it */
        double now = tern_ddp_loss_mean(b.ddp);
        RANK_CHECK(rank, with_b || now == before || (isnan(now) && isnan(before)));
        tern_zero_grad(&a.base);
        tern_zero_grad(&b.base);
    }
    tern_ddp_free(b.ddp);
    tern_module_release(&b.base);
    bag_close(&a);
    return 0;
}

static void models_learn_in_turns_and_together(void **state)
{
    (void)state;
    run_worlds(models_body, NULL);
}

/* ---- a group of some ranks ---- */

/* Even and odd ranks have one model each; all ranks share a third one. */
static int subgroup_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    bag all, own;
    bag_open(&all, boot, f32s, 2, NULL, &err);
    bag_init(&own, f32s, 3, &err);
    tern_group *half = tern_group_split(all.world, rank % 2, 0, NULL, &err);
    own.ddp = tern_ddp_new(&own.base, half, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 4; step++) {
        tern_tensor *loss =
            tern_add(all.s, bag_loss(&all, all.s, step, rank, 3), bag_loss(&own, all.s, step, rank, 7));
        tern_backward(all.s, loss);
        tern_scope_end(all.s, &err);
        RANK_CHECK_OK(rank, err);
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; i < 5 + 7 * k; i++) {
                double sum = 0;
                for (int r = rank % 2; r < boot->world; r += 2) sum += bag_number(step, r, k, i);
                RANK_CHECK(rank, bag_holds(&own, k, i, sum / tern_group_size(half)));
                RANK_CHECK(rank, k == 2 || bag_holds(&all, k, i, exact_mean(step, boot->world, k, i)));
            }
        tern_zero_grad(&all.base);
        tern_zero_grad(&own.base);
    }
    tern_ddp_free(own.ddp);
    tern_module_release(&own.base);
    tern_group_close(half);
    bag_close(&all);
    return 0;
}

static void a_model_may_be_of_some_ranks_only(void **state)
{
    (void)state;
    run_worlds(subgroup_body, NULL);
}

/* ---- wrong options ---- */

typedef struct refusal {
    int code;
    const char *text;
    double factor;
    size_t bucket;
    int normaliser, ignore_count;
    const char *ignore[3];
} refusal;

static const refusal refusals[] = {
    {TERN_E_RANGE, "gradient_predivide_factor > 0, got 0", 0, 1, 0, 0, {0}},
    {TERN_E_RANGE, "gradient_predivide_factor > 0, got -2", -2, 1, 0, 0, {0}},
    {TERN_E_RANGE, "gradient_predivide_factor > 0, got nan", NAN, 1, 0, 0, {0}},
    {TERN_E_RANGE, "gradient_predivide_factor > 0, got inf", INFINITY, 1, 0, 0, {0}},
    {TERN_E_INVALID, "normaliser 2 does not exist", 1, 1, 2, 0, {0}},
    {TERN_E_INVALID, "normaliser -1 does not exist", 1, 1, -1, 0, {0}},
    {TERN_E_INVALID, "no parameter or buffer \"p2\"", 1, 1, 0, 2, {"p0", "p2"}},
    {TERN_E_INVALID, "no parameter or buffer \"(NULL)\"", 1, 1, 0, 1, {NULL}},
    {TERN_E_INVALID, "bag has no parameters left", 1, 1, 0, 2, {"p1", "p0"}},
    {TERN_E_INVALID, "ignore has -1 names", 1, 1, 0, -1, {0}},
};

static void wrong_options_are_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    for (size_t i = 0; i < TERN__COUNT(refusals); i++) {
        const refusal *r = &refusals[i];
        bag b;
        bag_init(&b, f32s, 2, &err);
        tern_group *world = tern_group_open(NULL, &err);
        assert_ok(err);
        tern_ddp_opts opts = tern_ddp_defaults();
        opts.gradient_predivide_factor = r->factor;
        opts.bucket_bytes = r->bucket;
        opts.normaliser = (tern_normaliser)r->normaliser;
        opts.ignore = r->ignore;
        opts.ignore_count = r->ignore_count;
        assert_null(tern_ddp_new(&b.base, world, &opts, &err));
        assert_int_equal(err.code, r->code);
        if (!strstr(err.text, r->text)) fail_msg("%s: %s", r->text, err.text);
        err = (tern_error){0};
        tern_module_release(&b.base);
        tern_group_close(world);
    }
}

/* A refusal fails the group. */
static void expect_refusal(tern_module *module, const tern_ddp_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    assert_null(tern_ddp_new(module, world, opts, &err));
    if (!strstr(err.text, text)) fail_msg("%s: %s", text, err.text);
    assert_int_equal(err.code, code);
    tern_group_close(world);
}

static void wrong_modules_are_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = tern_sequential_new(&err), *empty = tern_sequential_new(&err);
    tern_module *inner = tern_sequential_add(net, tern_linear_new(3, 2, NULL, rng, &err), &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    assert_ok(err);
    opts.first_bucket_bytes = 0;
    expect_refusal(net, &opts, TERN_E_RANGE, "expected a first bucket of at least 1 byte");
    expect_refusal(inner, NULL, TERN_E_STATE, "linear is part of another module: attach to the whole");
    expect_refusal(empty, NULL, TERN_E_INVALID, "sequential has no parameters to synchronise");
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    assert_ok(err);
    expect_refusal(net, NULL, TERN_E_STATE, "sequential already has a ddp");
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_module_free(empty);
    tern_rng_free(rng);
    tern_group_close(world);
}

/* Each allocation of tern_ddp_new fails once: an error, and nothing leaks. */
static void memory_may_run_out(void **state)
{
    (void)state;
    tern_error err = {0};
    ledger books = {0};
    tern__allocator_replace(&(tern_allocator){ledger_alloc, ledger_free, &books});
    tern_group *world = tern_group_open(NULL, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.ignore = (const char *const[]){"p1"};
    opts.ignore_count = 1;
    assert_ok(err);
    bool made = false;
    for (int n = 1; !made; n++) {
        bag b;
        bag_init(&b, f32s, 3, &err);
        tern_buffer_add(&b.base, "seen", TERN_F32, 1, (int64_t[]){3}, &err);
        assert_ok(err);
        int live = atomic_load(&books.live);
        assert_true(tern__module_seal(&b.base, &err)); /* the memory it needs stays with the module */
        int sealed = atomic_load(&books.live);
        assert_true(sealed > live);
        books.refuse_at = atomic_load(&books.requests) + n;
        tern_ddp *ddp = tern_ddp_new(&b.base, world, &opts, &err);
        books.refuse_at = 0;
        made = ddp;
        if (made) tern_ddp_free(ddp);
        assert_int_equal(err.code, made ? TERN_OK : TERN_E_MEMORY);
        tern_module_release(&b.base);
        tern_group_close(world); /* a group cannot be used after an error */
        err = (tern_error){0};
        assert_int_equal(atomic_load(&books.live), 0);
        world = tern_group_open(NULL, &err);
        assert_ok(err);
    }
    assert_true(atomic_load(&books.requests) > 20);
    tern_group_close(world);
    tern__allocator_replace(NULL);
}

/* Rank 1 ignores another parameter. */
static int differ_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.ignore = (const char *const[]){rank == 1 ? "p1" : "p0"};
    opts.ignore_count = 1;
    bag_open(&b, boot, f32s, 3, &opts, &err);
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "rank 0 has ignored parameter \"p0\""));
    RANK_CHECK(rank, strstr(err.text, "rank 1 has parameter \"p0\""));
    bag_close(&b);
    return 0;
}

static void different_ignores_are_named(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, differ_body, NULL));
}

/* The last rank has another value of an option, for each option in turn. */
static int other_option_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    tern_ddp_opts others[] = {opts, opts, opts, opts, opts, opts, opts};
    others[0].first_bucket_bytes++;
    others[1].bucket_bytes++;
    others[2].broadcast_buffers = false;
    others[3].delay_all_reduce = true;
    others[4].gradient_predivide_factor = 2;
    others[5].divide_by_initial_world_size = false;
    others[6].normaliser = TERN_NORMALISER_LOSS;
    bool odd = rank == boot->world - 1;
    bag_open(&b, boot, f32s, 1, odd ? &others[*(size_t *)arg] : &opts, &err);
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    char who[32];
    snprintf(who, sizeof(who), "rank %d has", boot->world - 1);
    RANK_CHECK(rank, strstr(err.text, who) && strstr(err.text, "buckets of 1048576 and 2097152 bytes"));
    bag_close(&b);
    return 0;
}

static void different_options_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < 7; i++) assert_ranks_ok(ranks_run(2 + (int)i % 2, other_option_body, &i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_told_apart),
        cmocka_unit_test(sums_are_wide_and_rounded_once),
        cmocka_unit_test(any_parameters_may_be_left_out),
        cmocka_unit_test(backward_needs_the_ddps_group),
        cmocka_unit_test(a_parameter_may_be_used_many_times),
        cmocka_unit_test(what_is_ignored_stays_each_ranks_own),
        cmocka_unit_test(a_delayed_reduction_begins_after_backward),
        cmocka_unit_test(a_static_graph_that_changes_is_named),
        cmocka_unit_test(a_predivided_sum_does_not_overflow),
        cmocka_unit_test(models_learn_in_turns_and_together),
        cmocka_unit_test(a_model_may_be_of_some_ranks_only),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(wrong_modules_are_refused),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(different_ignores_are_named),
        cmocka_unit_test(different_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
