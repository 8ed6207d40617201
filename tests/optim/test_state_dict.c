/* State dicts of sharded optimizers are those of whole ones, and go back into either; what runs out of memory
 * leaves nothing behind. What they mean is compared with PyTorch's in tests/torch/test_state_dict.py. */
#include "optim/twins.h"

#include "ledger.h"

#include <tern/state_dict.h>

/* ---- the same object ---- */

static bool same_object(const tern_object *x, const tern_object *y);

static bool same_tensor(const tern_tensor *x, const tern_tensor *y)
{
    return x->view.dtype == y->view.dtype && tern__view_same_shape(&x->view, &y->view) &&
           !memcmp(x->view.data, y->view.data, tern__view_bytes(&x->view));
}

static bool same_items(const tern_object *x, const tern_object *y)
{
    bool same = tern_object_count(x) == tern_object_count(y);
    for (int64_t i = 0; same && i < tern_object_count(x); i++)
        same = same_object(tern_object_at(x, i), tern_object_at(y, i)) &&
               (!tern_object_key(x, i) || same_object(tern_object_key(x, i), tern_object_key(y, i)));
    return same;
}

static bool same_object(const tern_object *x, const tern_object *y)
{
    double a = 0, b = 0;
    if (tern_object_kind_get(x) != tern_object_kind_get(y)) return false;
    if (tern_object_to_tensor(x)) return same_tensor(tern_object_to_tensor(x), tern_object_to_tensor(y));
    if (tern_object_to_string(x)) return !strcmp(tern_object_to_string(x), tern_object_to_string(y));
    tern_object_to_float(x, &a, NULL);
    tern_object_to_float(y, &b, NULL);
    return a == b && same_items(x, y);
}

/* ---- sharded ---- */

/* On `root`, or on all, what the twin without a shard has; elsewhere nothing. */
static bool writes_right(twins *t, int root)
{
    tern_object *a = tern_optim_state_dict(t->a.optim, root, &t->err);
    tern_object *b = tern_optim_state_dict(t->b.optim, root, &t->err);
    bool right = root < 0 || root == t->rank ? a && same_object(a, b) : !a && b;
    tern_object_free(a);
    tern_object_free(b);
    return right && !t->err.code;
}

/* The sharded twin takes the other's state of this moment, from every rank, and goes on with it. */
static void hand_over(twins *t)
{
    tern_object *state = tern_optim_state_dict(t->b.optim, -1, &t->err);
    tern_optim_state_dict_load(t->a.optim, state, &t->err);
    tern_object_free(state);
}

static int sharded_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    twins_open(&t, boot, *(twin_optim *)arg);
    for (int step = 0; step < 4; step++) {
        RANK_CHECK_OK(rank, t.err);
        for (int root = -1; root < t.size; root++) RANK_CHECK(rank, writes_right(&t, root));
        twins_step(&t, &t.a, step);
        twins_step(&t, &t.b, step);
    }
    hand_over(&t);
    for (int step = 4; step < 6; step++) {
        twins_step(&t, &t.a, step);
        twins_step(&t, &t.b, step);
        RANK_CHECK(rank, twins_are_equal(&t));
        RANK_CHECK(rank, writes_right(&t, 0));
    }
    RANK_CHECK_OK(rank, t.err);
    return twins_close(&t);
}

static void a_sharded_one_is_the_whole_one(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_sgd,     twin_grouped_sgd,  twin_grouped_adamw, twin_grouped_rmsprop,
                          twin_adagrad, twin_grouped_lamb, twin_larc};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(makes); i++)
            assert_ranks_ok(ranks_run(world, sharded_body, &makes[i]));
    assert_ranks_ok(ranks_run_threads(3, sharded_body, &makes[2]));
}

/* A fresh sharded one: there is no state yet. The tensors outlive the optimizer. */
static int fresh_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_grouped_adamw);
    for (int step = 0; step < 3; step++) twins_step(&t, &t.b, step);
    tern_schedule_free(t.a.schedule);
    t.a.schedule = NULL;
    tern_object *state = tern_optim_state_dict(t.b.optim, -1, &t.err);
    RANK_CHECK(rank, tern_optim_state_dict_load(t.a.optim, state, &t.err) == TERN_OK);
    /* Without schedules the rate is what it was; with them, what they multiply. */
    RANK_CHECK(rank, tern_optim_lr_get(t.a.optim, 0) == tern_optim_lr_get(t.b.optim, 0));
    tern_object *again = tern_optim_state_dict(t.a.optim, -1, &t.err);
    RANK_CHECK(rank, same_object(tern_object_get(state, "state"), tern_object_get(again, "state")));
    tern_object_free(state);
    RANK_CHECK_OK(rank, t.err);
    tern_optim_free(t.a.optim);
    t.a.optim = NULL;
    double first = tern__view_get(
        &tern_object_to_tensor(tern_object_at(tern_object_at(tern_object_get(again, "state"), 0), 0))->view,
        0);
    RANK_CHECK(rank, first >= 1);
    tern_object_free(again);
    return twins_close(&t);
}

static void a_fresh_one_takes_it(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, fresh_body, NULL));
}

static int root_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    RANK_CHECK(rank, !tern_optim_state_dict(t.a.optim, 7, &t.err) && strstr(t.err.text, "root is 7"));
    return twins_close(&t);
}

static int lamb_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_lamb);
    for (int step = 0; step < 3; step++) twins_step(&t, &t.b, step);
    tern_object *state = tern_optim_state_dict(t.b.optim, 0, &t.err);
    const tern_object *groups = tern_object_get(state, "param_groups");
    int64_t step = 0;
    tern_object_to_int(tern_object_get(tern_object_at(groups, 0), "step"), &step, &t.err);
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, step == 3);
    tern_object_free(state);
    return twins_close(&t);
}

static void lamb_says_its_step_as_apex_does(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, lamb_body, NULL));
}

static void a_root_that_is_not_there(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, root_body, NULL));
}

/* ---- memory ---- */

static tern_module *small_net(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){3, 4, 2}, 3, rng, err);
}

/* Each of the four with every allocation refused in turn. */
static void expect_no_leaks(tern_module *net, tern_optim *optim, int what)
{
    tern_object *states[2] = {tern_module_state_dict(net, NULL), tern_optim_state_dict(optim, 0, NULL)};
    for (int at = 1, done = 0; !done; at++) {
        tern_error err = {0};
        tern_object *made = NULL, *report = NULL;
        ledger books = {.refuse_at = at};
        ledger_open(&books);
        if (what == 0) made = tern_module_state_dict(net, &err);
        if (what == 1) made = tern_optim_state_dict(optim, 0, &err);
        if (what == 2) tern_module_state_dict_load(net, states[0], NULL, &report, &err);
        if (what == 3) tern_optim_state_dict_load(optim, states[1], &err);
        done = !err.code;
        if (!done) assert_int_equal(err.code, TERN_E_MEMORY);
        tern_object_free(made);
        tern_object_free(report);
        atomic_store(&books.refuse_at, 0);
        if (what != 3) ledger_close(&books);
        if (what == 3) tern__allocator_replace(NULL); /* the groups have changed hands */
        assert_in_range(at, 1, 500);
    }
    tern_object_free(states[0]);
    tern_object_free(states[1]);
}

static void out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(1, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    tern_module *net = small_net(rng, &err);
    tern_optim *optim = tern_adam_new(net, NULL, &err);
    tern_tensor *x = tern_tensor_from(scope, (float[]){1, 2, 3}, TERN_F32, 2, (int64_t[]){1, 3});
    tern_backward(scope, tern_sum(scope, tern_forward(net, scope, x)));
    tern_optim_step(optim, scope);
    tern_scope_end(scope, &err);
    assert_ok(err);
    for (int what = 0; what < 4; what++) expect_no_leaks(net, optim, what);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_scope_free(scope);
    tern_device_close(device);
    tern_rng_free(rng);
}

static void nothing_is_an_error(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_null(tern_optim_state_dict(NULL, 0, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_int_equal(tern_optim_state_dict_load(NULL, NULL, NULL), TERN_E_INVALID);
    assert_null(tern_module_state_dict(NULL, NULL));
    assert_int_equal(tern_module_state_dict_load(NULL, NULL, NULL, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_optim_state_dict_load(NULL, NULL, &err), TERN_E_INVALID);
    assert_null(tern_rng_state_dict(NULL, NULL));
    assert_int_equal(tern_rng_state_dict_load(NULL, NULL, NULL), TERN_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sharded_one_is_the_whole_one), cmocka_unit_test(a_fresh_one_takes_it),
        cmocka_unit_test(a_root_that_is_not_there),       cmocka_unit_test(lamb_says_its_step_as_apex_does),
        cmocka_unit_test(out_of_memory_leaves_nothing),   cmocka_unit_test(nothing_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
