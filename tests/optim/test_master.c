/* f32 masters of parameters in bf16 under every optimizer: the bits that an f32 model has, and parameters
 * that are those rounded. tests/amp/test_levels.c has their exact arithmetic and their checkpoints. */
#include "ledger.h"
#include "ops/world.h"
#include "optim/optim.h"

#include <string.h>

enum { PARAMS = 3, STEPS = 6 };
static const int64_t sizes[PARAMS] = {5, 700, 33};

typedef struct net {
    tern_module *root;
    tern_tensor *p[PARAMS];
    tern_optim *optim;
} net;

typedef tern_optim *(*optim_fn)(tern_module *root, tern_error *err);

/* Of values that bf16 has. */
static net open_net(optim_fn make, tern_dtype dtype, tern_error *err)
{
    static const char *const names[PARAMS] = {"a", "b", "c"};
    net n = {.root = tern_sequential_new(err)};
    for (int i = 0; i < PARAMS; i++) {
        n.p[i] = tern_parameter_add(n.root, names[i], dtype, 1, &sizes[i], err);
        for (int64_t k = 0; k < sizes[i]; k++) tern__view_set(&n.p[i]->view, k, (double)(k % 5 - 2) / 4);
    }
    n.root->tree->precision.masters = dtype == TERN_BF16;
    n.optim = make(n.root, err);
    return n;
}

static void close_net(net *n)
{
    tern_optim_free(n->optim);
    tern_module_free(n->root);
}

/* Gradients of numbers that bf16 has, too: the step's own times 1, 2 and 3. */
static void step(world *w, net *n, int number)
{
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k <= i; k++)
            for (int times = 0; times <= number % 2; times++)
                assert_int_equal(tern_backward(w->scope, tern_sum(w->scope, n->p[i])), TERN_OK);
    tern_optim_step(n->optim, w->scope);
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
}

static const float *master_of(const net *n, int i)
{
    const tern_optim *optim = n->optim;
    int k = PARAMS - 1 - i, r = optim->seal->range_of[k];
    size_t at = tern__optim_scaled(optim, r, optim->seal->offset[k] - optim->own[r].begin);
    return (const float *)(optim->state[TERN__OPTIM_MASTER][r] + at);
}

static void compare(optim_fn make)
{
    world w = open_world();
    net half = open_net(make, TERN_BF16, &w.err), full = open_net(make, TERN_F32, &w.err);
    tern__view one = tern__view_make(TERN_BF16, TERN__PLAIN, 0, NULL);
    uint16_t bits;
    one.data = &bits;
    for (int number = 0; number < STEPS; number++) {
        step(&w, &half, number);
        step(&w, &full, number);
        for (int i = 0; i < PARAMS; i++) {
            const float *master = master_of(&half, i), *want = full.p[i]->view.data;
            assert_memory_equal(master, want, (size_t)sizes[i] * sizeof(*want));
            for (int64_t k = 0; k < sizes[i]; k++) {
                tern__view_set(&one, 0, master[k]);
                assert_int_equal(((uint16_t *)half.p[i]->view.data)[k], bits);
            }
        }
    }
    assert_true(*(float *)full.p[0]->view.data != -0.5f);
    close_net(&half);
    close_net(&full);
    close_world(&w);
}

static tern_optim *sgd(tern_module *root, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = 0.9;
    opts.weight_decay = 0.1;
    return tern_sgd_new(root, &opts, err);
}

static tern_optim *adam(tern_module *root, tern_error *err)
{
    return tern_adam_new(root, NULL, err);
}

static tern_optim *rmsprop(tern_module *root, tern_error *err)
{
    tern_rmsprop_opts opts = tern_rmsprop_defaults();
    opts.momentum = 0.9;
    opts.weight_decay = 0.1;
    return tern_rmsprop_new(root, &opts, err);
}

static tern_optim *adagrad(tern_module *root, tern_error *err)
{
    return tern_adagrad_new(root, NULL, err);
}

static tern_optim *lamb(tern_module *root, tern_error *err)
{
    return tern_lamb_new(root, NULL, err);
}

static void masters_are_an_f32_model(void **state)
{
    (void)state;
    const optim_fn makes[] = {sgd, adam, rmsprop, adagrad, lamb};
    for (size_t i = 0; i < TERN__COUNT(makes); i++) compare(makes[i]);
}

/* Those of a state without masters: a used optimizer makes them anew, as a fresh one does. */
static void a_state_without_masters_makes_them_anew(void **state)
{
    (void)state;
    world w = open_world();
    net used = open_net(sgd, TERN_BF16, &w.err), fresh = open_net(sgd, TERN_BF16, &w.err);
    step(&w, &used, 0);
    step(&w, &used, 1);
    for (int i = 0; i < PARAMS; i++) tern__view_copy(&fresh.p[i]->view, &used.p[i]->view, &w.err);
    tern_optim_state *saved = tern_optim_state_gather(used.optim, -1, &w.err);
    assert_ok(w.err);
    tern_optim_entry kept[16];
    int count = 0;
    for (int i = 0; i < tern_optim_state_count(saved); i++)
        if (strcmp(tern_optim_state_entries(saved)[i].name, "master") != 0)
            kept[count++] = tern_optim_state_entries(saved)[i];
    assert_int_equal(count, 2 * PARAMS);
    tern_optim_state_load(used.optim, kept, count, &w.err);
    tern_optim_state_load(fresh.optim, kept, count, &w.err);
    step(&w, &used, 2);
    step(&w, &fresh, 2);
    for (int i = 0; i < PARAMS; i++)
        assert_memory_equal(master_of(&used, i), master_of(&fresh, i), (size_t)sizes[i] * sizeof(float));
    assert_ok(w.err);
    tern_optim_state_free(saved);
    close_net(&used);
    close_net(&fresh);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_are_an_f32_model),
        cmocka_unit_test(a_state_without_masters_makes_them_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
