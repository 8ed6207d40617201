/* test_normaliser.c - TERN_NORMALISER_LOSS: whatever share of the samples each rank has, and however few of
 * them count, the gradient and the mean loss are those of one process on all samples. */
#include "parallel/bag.h"

#define FACTS    6
#define KINDS    5 /* classes */
#define ROWS_MAX 9
#define IGNORED  3
#define STEPS    6

/* scores = x w, in f32 or f64. */
typedef struct scorer {
    tern_module base;
    tern_tensor *w;
    tern_scope *s;
    tern_dtype dtype;
} scorer;

static void scorer_open(scorer *m, tern_dtype dtype, tern_device *dev, tern_group *group, tern_error *err)
{
    *m = (scorer){.dtype = dtype};
    tern_module_init(&m->base, "scorer", NULL, err);
    m->w = tern_parameter_add(&m->base, "w", dtype, 2, (int64_t[]){FACTS, KINDS}, err);
    for (int64_t i = 0; m->w && i < FACTS * KINDS; i++) tern__view_set(&m->w->view, i, sin((double)i * 3));
    m->s = tern_scope_new(dev, group, err);
}

static void scorer_close(scorer *m)
{
    tern_scope_free(m->s);
    tern_module_release(&m->base);
}

/* ---- samples ---- */

typedef enum loss_kind { CROSS_ENTROPY, WEIGHTED, SMOOTH, NLL, SQUARES, LOSS_KINDS } loss_kind;

static int rows_of(int step, int rank)
{
    return 1 + (step * 5 + rank * 7) % ROWS_MAX;
}

/* Rank 1's labels are ignored in step 2, and all ranks' labels in step 4. */
static bool is_ignored(int step, int rank, int row)
{
    return step == 4 || (step == 2 && rank == 1) || (step + rank + row) % 4 == 0;
}

typedef struct samples {
    int count;
    double x[4 * ROWS_MAX * FACTS], target[4 * ROWS_MAX * KINDS];
    int64_t label[4 * ROWS_MAX];
} samples;

static void add_rows(samples *all, int step, int rank)
{
    for (int row = 0; row < rows_of(step, rank); row++, all->count++) {
        int n = step * 1000 + rank * 100 + row;
        for (int i = 0; i < FACTS; i++) all->x[all->count * FACTS + i] = sin(n * 7 + i * 1.7);
        for (int i = 0; i < KINDS; i++) all->target[all->count * KINDS + i] = cos(n * 3 + i);
        int64_t label = n * 13 % KINDS;
        all->label[all->count] = is_ignored(step, rank, row) ? IGNORED : label;
    }
}

static tern_tensor *table(scorer *m, const double *from, int count, int width)
{
    tern_tensor *t = tern_tensor_from(m->s, from, TERN_F64, 2, (int64_t[]){count, width});
    return tern_cast(m->s, t, m->dtype);
}

static tern_tensor *class_weights(scorer *m)
{
    tern_tensor *t = tern_tensor_from(m->s, (double[]){0.5, 2, 1, 8, 0.25}, TERN_F64, 1, (int64_t[]){KINDS});
    return tern_cast(m->s, t, m->dtype);
}

static tern_tensor *loss_of(scorer *m, const samples *rows, loss_kind kind)
{
    tern_tensor *y = tern_matmul(m->s, table(m, rows->x, rows->count, FACTS), m->w);
    if (kind == SQUARES)
        return tern_mse_loss(m->s, y, table(m, rows->target, rows->count, KINDS), TERN_LOSS_MEAN);
    tern_tensor *label = tern_tensor_from(m->s, rows->label, TERN_I64, 1, (int64_t[]){rows->count});
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.ignore_index = IGNORED;
    if (kind == WEIGHTED) opts.weight = class_weights(m);
    if (kind == SMOOTH) opts.label_smoothing = 0.25;
    return kind == NLL ? tern_nll_loss(m->s, tern_log_softmax(m->s, y, 1), label, &opts)
                       : tern_cross_entropy(m->s, y, label, &opts);
}

/* ---- one process on the joined batch ---- */

static double difference(const scorer *a, const scorer *b)
{
    double most = 0;
    for (int64_t i = 0; i < FACTS * KINDS; i++)
        most = fmax(most, fabs(tern__view_get(&tern_grad_get(a->w)->view, i) -
                               tern__view_get(&tern_grad_get(b->w)->view, i)));
    return most;
}

typedef struct problem {
    loss_kind kind;
    tern_dtype dtype;
    bool join; /* higher ranks have fewer steps */
} problem;

static int steps_of(const problem *p, int rank)
{
    return p->join ? STEPS - rank : STEPS;
}

/* Compares after the same step on all ranks. */
static int compare_step(const problem *p, scorer *m, const tern_ddp *ddp, scorer *alone, int step, int rank,
                        int world)
{
    tern_error err = {0};
    double tolerance = p->dtype == TERN_F64 ? 1e-14 : 1e-6;
    samples all = {0};
    for (int r = 0; r < world; r++)
        if (step < steps_of(p, r)) add_rows(&all, step, r);
    tern_tensor *loss = loss_of(alone, &all, p->kind);
    tern_backward(alone->s, loss);
    double mean = tern_item(loss), count = tern_loss_normaliser(loss);
    tern_scope_end(alone->s, &err);
    RANK_CHECK_OK(rank, err);
    if (count == 0) {
        RANK_CHECK(rank, isnan(mean) && !tern_grad_get(m->w));
    } else {
        RANK_CHECK(rank, fabs(tern_ddp_loss_mean(ddp) - mean) < tolerance);
        RANK_CHECK(rank, difference(m, alone) < tolerance);
    }
    tern_zero_grad(&alone->base);
    return 0;
}

typedef struct progress {
    const problem *p;
    scorer *m, *alone;
    tern_ddp *ddp;
    int step, rank, world;
} progress;

/* In a join: the other ranks have made another step. */
static int compare_round(void *arg, tern_error *err)
{
    progress *r = arg;
    int failed = compare_step(r->p, r->m, r->ddp, r->alone, r->step++, r->rank, r->world);
    return failed ? tern__error_set(err, __func__, TERN_E_STATE, "step %d differs", r->step - 1) : TERN_OK;
}

static int joined_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const problem *p = arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *dev = tern_device_open("cpu", &err);
    scorer m, alone;
    scorer_open(&m, p->dtype, dev, world, &err);
    scorer_open(&alone, p->dtype, dev, NULL, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    tern_ddp *ddp = tern_ddp_new(&m.base, world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    progress r = {p, &m, &alone, ddp, 0, rank, boot->world};
    for (; r.step < steps_of(p, rank); r.step++) {
        samples own = {0};
        add_rows(&own, r.step, rank);
        tern_backward(m.s, loss_of(&m, &own, p->kind));
        tern_scope_end(m.s, &err);
        RANK_CHECK_OK(rank, err);
        if (compare_step(p, &m, ddp, &alone, r.step, rank, boot->world)) return 1;
        tern_zero_grad(&m.base);
    }
    tern_join_opts join = tern_join_defaults();
    join.after_backward = compare_round;
    join.arg = &r;
    RANK_CHECK(rank, !p->join || tern_ddp_join(ddp, &join, &err) == TERN_OK);
    RANK_CHECK(rank, r.step == STEPS);
    tern_ddp_free(ddp);
    scorer_close(&alone);
    scorer_close(&m);
    tern_device_close(dev);
    tern_group_close(world);
    return 0;
}

static void the_mean_is_that_over_all_samples(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        for (int kind = 0; kind < LOSS_KINDS; kind++)
            for (int i = 0; i < 4; i++) {
                problem p = {(loss_kind)kind, i & 1 ? TERN_F64 : TERN_F32, i & 2};
                assert_ranks_ok(ranks_run(world, joined_body, &p));
            }
}

/* ---- counts that the user sets ---- */

static double count_of(int micro, int rank)
{
    return rank == 1 ? 0 : micro ? rank * rank + 2 : rank + 1;
}

/* Two losses with different counts in one: the user sets the count; microbatches add up. */
static int set_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static const tern_dtype f32[] = {TERN_F32};
    tern_error err = {0};
    bag b;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    bag_open(&b, boot, f32, 1, &opts, &err);
    RANK_CHECK_OK(rank, err);
    double want[5] = {0}, counts = 0;
    for (int r = 0; r < boot->world; r++) { /* rank 1 has none */
        double count = count_of(0, r) + count_of(1, r);
        counts += count;
        for (int i = 0; i < 5; i++) want[i] += count * (bag_number(0, r, 0, i) + bag_number(1, r, 0, i)) / 2;
    }
    for (int micro = 0; micro < 2; micro++) {
        tern_ddp_sync_set(b.ddp, micro == 1);
        RANK_CHECK(rank, tern_ddp_normaliser_set(b.ddp, count_of(micro, rank), &err) == TERN_OK);
        tern_tensor *two = tern_full(b.s, TERN_F32, 0, NULL, rank == 1 ? 0 : 2); /* x / 0 does not count */
        tern_backward(b.s, tern_div(b.s, bag_loss(&b, b.s, micro, rank, 1), two));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
    }
    for (int i = 0; i < 5; i++)
        RANK_CHECK(rank, fabs(tern__view_get(&tern_grad_get(b.p[0])->view, i) - want[i] / counts) < 1e-5);
    bag_close(&b);
    return 0;
}

static void a_loss_of_several_says_its_count(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, set_body, NULL));
}

/* What is set holds for one backward: the next loss says its own count again. */
static int once_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const problem p = {CROSS_ENTROPY, TERN_F32, false};
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *dev = tern_device_open("cpu", &err);
    scorer m, alone;
    scorer_open(&m, p.dtype, dev, world, &err);
    scorer_open(&alone, p.dtype, dev, NULL, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    tern_ddp *ddp = tern_ddp_new(&m.base, world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 2; step++) {
        samples own = {0};
        add_rows(&own, step, rank);
        if (step == 0) tern_ddp_normaliser_set(ddp, 1000 * rank + 1, &err);
        tern_backward(m.s, loss_of(&m, &own, p.kind));
        tern_scope_end(m.s, &err);
        RANK_CHECK_OK(rank, err);
        if (step == 1 && compare_step(&p, &m, ddp, &alone, step, rank, boot->world)) return 1;
        tern_zero_grad(&m.base);
    }
    tern_ddp_free(ddp);
    scorer_close(&alone);
    scorer_close(&m);
    tern_device_close(dev);
    tern_group_close(world);
    return 0;
}

static void a_count_is_set_for_one_backward(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, once_body, NULL));
}

/* ---- a rank has no sample for the model ---- */

/* The last rank's loss does not use the model. It may have a count, or none. */
static int idle_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool known = *(bool *)arg;
    static const tern_dtype f32[] = {TERN_F32};
    tern_error err = {0};
    bag a, b;
    tern_ddp_opts opts = tern_ddp_defaults();
    bag_open(&a, boot, f32, 1, &opts, &err);
    bag_init(&b, f32, 1, &err);
    opts.normaliser = TERN_NORMALISER_LOSS;
    b.ddp = tern_ddp_new(&b.base, a.world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    bool idle = rank == boot->world - 1;
    for (int step = 0; step < 2; step++) {
        if (!idle || known) RANK_CHECK(rank, tern_ddp_normaliser_set(b.ddp, rank + 2, &err) == TERN_OK);
        tern_tensor *loss = bag_loss(&a, a.s, step, rank, 1);
        tern_backward(a.s, idle ? loss : tern_add(a.s, loss, bag_loss(&b, a.s, step, rank, 1)));
        tern_scope_end(a.s, &err);
        RANK_CHECK_OK(rank, err);
        double counts = 0, want[5] = {0};
        for (int r = 0; r < boot->world; r++) {
            bool takes_part = r < boot->world - 1;
            if (takes_part || known) counts += r + 2;
            for (int i = 0; i < 5 && takes_part; i++) want[i] += (r + 2) * bag_number(step, r, 0, i);
        }
        RANK_CHECK(rank, (tern_grad_get(b.p[0]) != NULL) == (boot->world > 1));
        for (int i = 0; i < 5 && boot->world > 1; i++)
            RANK_CHECK(rank, fabs(tern__view_get(&tern_grad_get(b.p[0])->view, i) - want[i] / counts) < 1e-5);
        tern_zero_grad(&a.base);
        tern_zero_grad(&b.base);
    }
    tern_ddp_free(b.ddp);
    tern_module_release(&b.base);
    bag_close(&a);
    return 0;
}

static void a_rank_without_the_model_may_count(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int world = 1; world <= 4; world++) {
            bool known = i;
            assert_ranks_ok(ranks_run(world, idle_body, &known));
        }
}

/* ---- the count of a loss ---- */

static void a_mean_knows_what_it_was_divided_by(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *dev = tern_device_open("cpu", &err);
    scorer m;
    scorer_open(&m, TERN_F32, dev, NULL, &err);
    assert_ok(err);
    samples all = {0};
    add_rows(&all, 1, 2);
    double counted = 0, weight = 0;
    for (int i = 0; i < all.count; i++) {
        if (all.label[i] == IGNORED) continue;
        counted++;
        weight += (double[]){0.5, 2, 1, 8, 0.25}[all.label[i]];
    }
    assert_true(counted > 0 && counted < all.count && weight != counted);
    assert_true(tern_loss_normaliser(loss_of(&m, &all, CROSS_ENTROPY)) == counted);
    assert_true(tern_loss_normaliser(loss_of(&m, &all, SMOOTH)) == counted);
    assert_true(tern_loss_normaliser(loss_of(&m, &all, NLL)) == counted);
    assert_true(tern_loss_normaliser(loss_of(&m, &all, WEIGHTED)) == weight);
    assert_true(tern_loss_normaliser(loss_of(&m, &all, SQUARES)) == all.count * KINDS);
    assert_true(isnan(tern_loss_normaliser(NULL)));
    assert_true(isnan(tern_loss_normaliser(m.w)));
    assert_true(isnan(tern_loss_normaliser(tern_sum(m.s, m.w))));
    tern_tensor *zeros = tern_full(m.s, TERN_F32, 2, (int64_t[]){FACTS, KINDS}, 0);
    assert_true(isnan(tern_loss_normaliser(tern_mse_loss(m.s, m.w, zeros, TERN_LOSS_SUM))));
    tern_grad_enabled_set(m.s, false);
    assert_true(isnan(tern_loss_normaliser(loss_of(&m, &all, SQUARES))));
    tern_scope_end(m.s, &err);
    assert_ok(err);
    scorer_close(&m);
    tern_device_close(dev);
}

static void counts_that_are_wrong_or_missing_are_refused(void **state)
{
    (void)state;
    static const tern_dtype f32[] = {TERN_F32};
    for (int i = 0; i < 2; i++) {
        tern_error err = {0};
        bag b;
        bag_init(&b, f32, 1, &err);
        b.world = tern_group_open(NULL, &err);
        tern_ddp_opts opts = tern_ddp_defaults();
        opts.normaliser = i ? TERN_NORMALISER_LOSS : TERN_NORMALISER_RANK;
        b.ddp = tern_ddp_new(&b.base, b.world, &opts, &err);
        assert_ok(err);
        double counts[] = {-1, NAN, INFINITY};
        for (size_t k = 0; k < TERN__COUNT(counts); k++) {
            assert_int_equal(tern_ddp_normaliser_set(b.ddp, counts[k], &err),
                             i ? TERN_E_RANGE : TERN_E_STATE);
            err = (tern_error){0};
        }
        assert_int_equal(tern_ddp_normaliser_set(NULL, 1, &err), TERN_E_INVALID);
        err = (tern_error){0};
        b.dev = tern_device_open("cpu", &err);
        b.s = tern_scope_new(b.dev, b.world, &err);
        int status = tern_backward(b.s, bag_loss(&b, b.s, 0, 0, 1)); /* a sum has no known count */
        tern_scope_end(b.s, &err);
        assert_int_equal(status, i ? TERN_E_STATE : TERN_OK);
        if (i) assert_non_null(strstr(err.text, "the loss comes from sum, which does not say what it was"));
        bag_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_is_that_over_all_samples),
        cmocka_unit_test(a_count_is_set_for_one_backward),
        cmocka_unit_test(a_loss_of_several_says_its_count),
        cmocka_unit_test(a_rank_without_the_model_may_count),
        cmocka_unit_test(a_mean_knows_what_it_was_divided_by),
        cmocka_unit_test(counts_that_are_wrong_or_missing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
