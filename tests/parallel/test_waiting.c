/* test_waiting.c - gradients that wait for their optimizer step while another model of the group makes a
 * backward: they are the mean already and do not change, are not reduced again, and cause no error for their
 * model. */
#include "parallel/bag.h"

#include <tern/function.h>

typedef enum mode { PLAIN, STATIC, LOSS, IGNORED, NARROW, MODES } mode;

typedef struct pair {
    bag a, b; /* a's gradients wait while b makes a backward */
    mode mode;
    int rank, world;
} pair;

static const tern_dtype dtypes[] = {TERN_F32, TERN_F32};

static void open_pair(pair *p, const tern__bootstrap *boot, mode m, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    *p = (pair){.mode = m, .rank = boot->rank, .world = boot->world};
    opts.static_graph = m == STATIC;
    opts.normaliser = m == LOSS || m == IGNORED ? TERN_NORMALISER_LOSS : TERN_NORMALISER_RANK;
    opts.reduce_dtype = m == NARROW ? TERN_BF16 : opts.reduce_dtype;
    bag_open(&p->a, boot, dtypes, 2, &opts, err);
    bag_init(&p->b, dtypes, 2, err);
    p->b.ddp = tern_ddp_new(&p->b.base, p->a.world, NULL, err);
}

static void close_pair(pair *p)
{
    tern_ddp_free(p->b.ddp);
    tern_module_release(&p->b.base);
    bag_close(&p->a);
}

/* A sum does not record what it was divided by. */
static int back(pair *p, tern_tensor *loss, double count)
{
    if (p->a.ddp->opts.normaliser == TERN_NORMALISER_LOSS && !isnan(count))
        tern_ddp_normaliser_set(p->a.ddp, count, NULL);
    return tern_backward(p->a.s, loss);
}

static tern_tensor *loss_of(pair *p, bag *which, int step)
{
    return bag_loss(which, p->a.s, step, p->rank, 3);
}

/* Returns the mean over all ranks, where only the first `count` have gradients and the others zeros. */
static double mean_of(const pair *p, int step, int count, int k, int64_t i)
{
    double sum = 0;
    for (int rank = 0; rank < count; rank++) sum += bag_number(step, rank, k, i);
    return sum / p->world;
}

static bool has_mean(const pair *p, const bag *which, int step)
{
    bool has = true;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tern_tensor_count(which->p[k]); i++)
            has &= bag_holds(which, k, i, mean_of(p, step, p->world, k, i));
    return has;
}

/* Sets rank r's gradients to r + 1e-5, which a reduction would mix and 16-bit types cannot represent. */
static void mark(const pair *p)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tern_tensor_count(p->a.p[k]); i++)
            tern__view_set(&tern_grad_get(p->a.p[k])->view, i, p->rank + 1e-5);
}

static bool is_marked(const pair *p)
{
    bool is = true;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tern_tensor_count(p->a.p[k]); i++)
            is &= bag_holds(&p->a, k, i, p->rank + 1e-5);
    return is;
}

static int wait_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    pair p;
    open_pair(&p, boot, *(mode *)arg, &err);
    RANK_CHECK_OK(rank, err);
    back(&p, loss_of(&p, &p.a, 0), 1);
    double loss_mean = tern_ddp_loss_mean(p.a.ddp);
    RANK_CHECK(rank, p.mode == NARROW || has_mean(&p, &p.a, 0));
    mark(&p);
    for (int step = 1; step < 4; step++) {
        tern_zero_grad(&p.b.base);
        back(&p, loss_of(&p, &p.b, step), p.mode == IGNORED ? 0 : NAN);
        RANK_CHECK(rank, tern_scope_error(p.a.s)->code == TERN_OK);
        RANK_CHECK(rank, tern_grad_get(p.a.p[0]) && is_marked(&p));
        RANK_CHECK(rank, tern_ddp_loss_mean(p.a.ddp) == loss_mean);
        RANK_CHECK(rank, has_mean(&p, &p.b, step));
    }
    tern_scope_end(p.a.s, &err);
    RANK_CHECK_OK(rank, err);
    close_pair(&p);
    return 0;
}

static void they_stay_as_they_are(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2)
        for (mode m = 0; m < MODES; m++) assert_ranks_ok(ranks_run(world, wait_body, &m));
}

/* A backward of rank 0 that reaches them adds to the mean that all other ranks have. */
static int some_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    pair p;
    open_pair(&p, boot, *(mode *)arg, &err);
    RANK_CHECK_OK(rank, err);
    back(&p, loss_of(&p, &p.a, 0), 1);
    tern_tensor *loss = loss_of(&p, &p.b, 1);
    if (rank == 0) loss = tern_add(p.a.s, loss, loss_of(&p, &p.a, 1));
    back(&p, loss, 1);
    RANK_CHECK(rank, tern_scope_error(p.a.s)->code == TERN_OK);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tern_tensor_count(p.a.p[k]); i++)
            RANK_CHECK(rank, bag_holds(&p.a, k, i, mean_of(&p, 0, p.world, k, i) + mean_of(&p, 1, 1, k, i)));
    close_pair(&p);
    return 0;
}

static void what_waits_is_given_to_who_goes_back(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2) {
        assert_ranks_ok(ranks_run(world, some_body, &(mode){PLAIN}));
        assert_ranks_ok(ranks_run(world, some_body, &(mode){LOSS}));
    }
}

/* Gradients that were not synchronised are reduced in the next backward, whichever model it reaches. */
static int later_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    pair p;
    open_pair(&p, boot, PLAIN, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_sync_set(p.a.ddp, false);
    back(&p, loss_of(&p, &p.a, 0), NAN);
    tern_ddp_sync_set(p.a.ddp, true);
    back(&p, loss_of(&p, &p.b, 1), NAN);
    RANK_CHECK(rank, has_mean(&p, &p.a, 0) && has_mean(&p, &p.b, 1));
    close_pair(&p);
    return 0;
}

static void what_was_not_synchronised_goes_over(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2) assert_ranks_ok(ranks_run(world, later_body, NULL));
}

/* A loss over 1 + 2 rank samples, which says so: the counts of 1, 2 or 4 ranks add up to a power of 2. */
static tern_tensor *counted_loss(tern_scope *s, tern_tensor *parameter, int rank)
{
    tern_tensor *x = tern_full(s, TERN_F32, 1, (int64_t[]){1 + 2 * rank}, 1);
    x = tern_mul(s, x, tern_sum(s, parameter));
    return tern_mse_loss(s, x, x, TERN_LOSS_MEAN);
}

typedef struct past {
    bool is_past;    /* a scope without a group on every rank; else a backward before the ddp, on rank 0 */
    bool is_loss;    /* TERN_NORMALISER_LOSS                                                             */
    bool is_counted; /* the other model's loss says what it was divided by                               */
} past;

static double count_of(const past *how, int rank)
{
    if (!how->is_loss) return 1;
    return how->is_counted ? 1 + 2 * rank : how->is_past || rank == 0;
}

/* The mean of the gradients that the ddp did not see being made. */
static double past_mean(const pair *p, const past *how, int k, int64_t i)
{
    double sum = 0, counts = 0;
    for (int rank = 0; rank < p->world; rank++) {
        sum += how->is_past || rank == 0 ? count_of(how, rank) * bag_number(0, rank, k, i) : 0;
        counts += count_of(how, rank);
    }
    return sum / counts;
}

/* Gradients made before there was a ddp, or past it on a scope without a group, are synchronised as well. */
static int before_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const past *how = arg;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = how->is_loss ? TERN_NORMALISER_LOSS : TERN_NORMALISER_RANK;
    tern_error err = {0};
    pair p = {.rank = rank, .world = boot->world};
    bag_open(&p.b, boot, dtypes, 2, NULL, &err);
    bag_init(&p.a, dtypes, 2, &err);
    p.a.s = tern_scope_new(p.b.dev, NULL, &err);
    if (how->is_past) p.a.ddp = tern_ddp_new(&p.a.base, p.b.world, &opts, &err);
    if (how->is_past) tern_ddp_sync_set(p.a.ddp, false);
    if (rank == 0 || how->is_past) tern_backward(p.a.s, loss_of(&p, &p.a, 0));
    tern_scope_end(p.a.s, &err);
    if (!how->is_past) p.a.ddp = tern_ddp_new(&p.a.base, p.b.world, &opts, &err);
    tern_ddp_sync_set(p.a.ddp, true);
    RANK_CHECK_OK(rank, err);
    tern_tensor *loss = how->is_counted ? counted_loss(p.b.s, p.b.p[0], rank) : loss_of(&p, &p.b, 1);
    tern_backward(p.b.s, loss);
    for (int k = 0; k < 2; k++) {
        RANK_CHECK(rank, tern_grad_get(p.a.p[k]));
        for (int64_t i = 0; i < tern_tensor_count(p.a.p[k]); i++)
            RANK_CHECK(rank, bag_holds(&p.a, k, i, past_mean(&p, how, k, i)));
    }
    tern_scope_end(p.b.s, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_free(p.a.ddp);
    tern_scope_free(p.a.s);
    tern_module_release(&p.a.base);
    bag_close(&p.b);
    return 0;
}

static void what_came_past_the_ddp_goes_over(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2)
        for (int how = 0; how < 8; how++)
            assert_ranks_ok(ranks_run(world, before_body, &(past){how & 1, how & 2, how & 4}));
}

/* While the ranks accumulate, samples of another model's loss do not count for a. */
static int count_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    pair p;
    open_pair(&p, boot, LOSS, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_sync_set(p.a.ddp, false);
    back(&p, loss_of(&p, &p.a, 0), 1);
    back(&p, counted_loss(p.a.s, p.b.p[0], rank), NAN);
    tern_ddp_sync_set(p.a.ddp, true);
    back(&p, loss_of(&p, &p.a, 1), 1);
    RANK_CHECK(rank, tern_scope_error(p.a.s)->code == TERN_OK);
    for (int64_t i = 0; i < tern_tensor_count(p.a.p[0]); i++)
        RANK_CHECK(rank,
                   bag_holds(&p.a, 0, i, mean_of(&p, 0, p.world, 0, i) + mean_of(&p, 1, p.world, 0, i)));
    close_pair(&p);
    return 0;
}

static void another_models_samples_do_not_count(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world *= 2) assert_ranks_ok(ranks_run(world, count_body, NULL));
}

/* ---- a backward inside another one ---- */

static tern_scope *inner_scope; /* the scope of the function's own backward */

static tern_tensor *same_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                 tern_error *err)
{
    (void)call, (void)s, (void)err;
    return x[0];
}

static int solving_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                            tern_error *err)
{
    (void)call, (void)s, (void)err;
    tern_tensor *x = tern_full(inner_scope, TERN_F32, 0, NULL, 3);
    tern_requires_grad_set(x, true, NULL);
    int status = tern_backward(inner_scope, tern_mul(inner_scope, x, x));
    dx[0] = dy;
    return status ? tern_error_set(err, "solving", status, "%s", tern_scope_error(inner_scope)->text)
                  : TERN_OK;
}

static int inside_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const tern_function solving = {"solving", same_forward, solving_backward};
    bool is_of_group = *(bool *)arg;
    tern_error err = {0};
    pair p;
    open_pair(&p, boot, PLAIN, &err);
    inner_scope = tern_scope_new(p.a.dev, is_of_group ? p.a.world : NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_barrier(p.a.world, NULL); /* rank 0 fails at once, which must not reach a rank that still opens */
    tern_tensor *loss = loss_of(&p, &p.a, 0);
    int status = back(&p, tern_function_apply(p.a.s, &solving, 1, &loss, NULL, 0), NAN);
    tern_scope_end(p.a.s, &err);
    RANK_CHECK(rank, is_of_group == (status != TERN_OK)); /* the second rank gets the first one's error */
    RANK_CHECK(rank, is_of_group == (strstr(err.text, "inside another backward") != NULL));
    RANK_CHECK(rank, is_of_group || has_mean(&p, &p.a, 0));
    tern_scope_free(inner_scope);
    close_pair(&p);
    return 0;
}

static void a_backward_inside_of_another_has_no_part_in_it(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        assert_ranks_ok(ranks_run(world, inside_body, &(bool){false}));
        assert_ranks_ok(ranks_run(world, inside_body, &(bool){true}));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_stay_as_they_are),
        cmocka_unit_test(what_waits_is_given_to_who_goes_back),
        cmocka_unit_test(what_was_not_synchronised_goes_over),
        cmocka_unit_test(what_came_past_the_ddp_goes_over),
        cmocka_unit_test(another_models_samples_do_not_count),
        cmocka_unit_test(a_backward_inside_of_another_has_no_part_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
