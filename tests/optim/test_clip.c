/* Clipping of a part of a tree, on two ranks, and what cannot be. tests/torch/test_clip.py compares it with
 * PyTorch's. */
#include "comm/ranks.h"
#include "ops/world.h"
#include "parallel/ddp.h"

#include <math.h>

enum { WIDTH = 3 };

/* Two linear layers in a row: weight and bias of each. */
typedef struct net {
    tern_module *all, *inner;
} net;

static net new_net(tern_rng *rng, tern_error *err)
{
    net n = {.all = tern_sequential_new(err)};
    n.inner = tern_sequential_add(n.all, tern_linear_new(WIDTH, WIDTH, NULL, rng, err), err);
    tern_sequential_add(n.all, tern_linear_new(WIDTH, 1, NULL, rng, err), err);
    return n;
}

static void use(tern_scope *scope, const tern_module *module, const char *name, float slope)
{
    const float c[WIDTH * WIDTH] = {slope};
    tern_tensor *p = tern_state_find(module, name);
    tern_tensor *x = tern_tensor_from(scope, c, TERN_F32, tern_tensor_ndim(p), tern_tensor_shape(p));
    tern_backward(scope, tern_sum(scope, tern_mul(scope, p, x)));
}

static double first_grad(const tern_module *module, const char *name)
{
    return tern__view_get(&tern_grad_get(tern_state_find(module, name))->view, 0);
}

/* ---- a part of the tree ---- */

static void only_the_part_counts(void **state)
{
    (void)state;
    world w = open_world();
    net n = new_net(w.rng, &w.err);
    assert_ok(w.err);
    assert_true(tern_item(tern_clip_grad_norm(w.scope, n.all, 1, 2)) == 0); /* before the tree is sealed */
    use(w.scope, n.all, "0.weight", 3);
    use(w.scope, n.all, "0.bias", -4);
    use(w.scope, n.all, "1.weight", 12);
    assert_true(tern_item(tern_clip_grad_norm(w.scope, n.all, 100, 2)) == 13);
    assert_true(tern_item(tern_clip_grad_norm(w.scope, n.inner, 2.5, 2)) == 5);
    assert_true(fabs(first_grad(n.all, "0.weight") - 1.5) < 1e-6 &&
                fabs(first_grad(n.all, "0.bias") + 2) < 1e-6);
    assert_true(first_grad(n.all, "1.weight") == 12);
    assert_null(tern_grad_get(tern_state_find(n.all, "1.bias")));
    tern_clip_grad_value(w.scope, n.inner, 1);
    assert_true(first_grad(n.all, "0.weight") == 1 && first_grad(n.all, "0.bias") == -1);
    assert_true(first_grad(n.all, "1.weight") == 12);
    tern_module_free(n.all);
    close_world(&w);
}

/* A norm that is NaN makes the gradients NaN, but not the padding, which nothing would make zero again. */
static void padding_stays_zero(void **state)
{
    (void)state;
    world w = open_world();
    net n = new_net(w.rng, &w.err);
    assert_ok(w.err);
    use(w.scope, n.all, "0.weight", NAN);
    use(w.scope, n.all, "0.bias", 1);
    assert_true(isnan(tern_item(tern_clip_grad_norm(w.scope, n.all, 1, 2))));
    const float *bias = tern_grad_get(tern_state_find(n.all, "0.bias"))->view.data;
    assert_true(isnan(bias[0]));
    for (size_t i = WIDTH; i < TERN__LINE / sizeof(*bias); i++) assert_true(bias[i] == 0);
    tern_module_free(n.all);
    close_world(&w);
}

/* ---- two ranks ---- */

static int same_norm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_rng *rng = tern_rng_new(1, &err);
    net n = new_net(rng, &err);
    tern_ddp *ddp = tern_ddp_new(n.all, group, NULL, &err);
    tern_scope *scope = tern_scope_new(device, group, &err);
    RANK_CHECK_OK(rank, err);
    use(scope, n.all, "0.weight", rank ? 2 : 10); /* the mean is 6 */
    use(scope, n.all, "1.weight", rank ? -16 : 0);
    double norm = tern_item(tern_clip_grad_norm(scope, n.all, 5, 2));
    RANK_CHECK(rank, norm == 10);
    RANK_CHECK(rank, fabs(first_grad(n.all, "0.weight") - 3) < 1e-6);
    RANK_CHECK(rank, fabs(first_grad(n.all, "1.weight") + 4) < 1e-6);
    tern_scope_end(scope, &err);
    RANK_CHECK_OK(rank, err);
    tern_scope_free(scope);
    tern_ddp_free(ddp);
    tern_module_free(n.all);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void ranks_clip_the_mean(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, same_norm_body, NULL));
}

/* ---- what cannot be ---- */

static void numbers_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    net n = new_net(w.rng, &w.err);
    const char *func = "tern_clip_grad_norm";
    expect_error(&w, tern_clip_grad_norm(w.scope, NULL, 1, 2), func, TERN_E_INVALID, "the module is NULL");
    expect_error(&w, tern_clip_grad_norm(w.scope, n.all, -1, 2), func, TERN_E_RANGE,
                 "expected max_norm >= 0, got -1");
    expect_error(&w, tern_clip_grad_norm(w.scope, n.all, NAN, 2), func, TERN_E_RANGE,
                 "expected max_norm >= 0, got nan");
    expect_error(&w, tern_clip_grad_norm(w.scope, n.all, 1, 0), func, TERN_E_RANGE,
                 "expected norm_type > 0, got 0");
    tern_clip_grad_value(w.scope, NULL, 1);
    expect_error(&w, NULL, "tern_clip_grad_value", TERN_E_INVALID, "the module is NULL");
    tern_clip_grad_value(w.scope, n.all, -0.5);
    expect_error(&w, NULL, "tern_clip_grad_value", TERN_E_RANGE, "expected limit >= 0, got -0.5");
    use(w.scope, n.all, "0.weight", 3);
    tern_relu(w.scope, NULL);
    assert_null(tern_clip_grad_norm(w.scope, n.all, 1, 2)); /* after an error nothing is clipped */
    tern_clip_grad_value(w.scope, n.all, 1);
    assert_true(first_grad(n.all, "0.weight") == 3);
    tern_module_free(n.all);
    close_world(&w);
}

/* On a device and in a scope that have no memory yet: scratch, handles and the result's block are refused in
 * turn. */
static void out_of_memory(void **state)
{
    (void)state;
    world w = open_world();
    net n = new_net(w.rng, &w.err);
    use(w.scope, n.all, "0.weight", 3);
    int at = 1;
    for (bool refused = true; refused; at++) {
        counter c = {0};
        tern_allocator_set(&(tern_allocator){count_alloc, count_free, &c});
        world other = open_world();
        c.fail_from = c.calls + at;
        const tern_tensor *norm = tern_clip_grad_norm(other.scope, n.all, 4, 2);
        refused = c.calls >= c.fail_from;
        c.fail_from = 0;
        assert_true((norm == NULL) == refused);
        assert_int_equal(tern_scope_end(other.scope, NULL), refused ? TERN_E_MEMORY : TERN_OK);
        close_world(&other);
        tern_allocator_set(NULL);
    }
    assert_true(at > 3);
    assert_true(first_grad(n.all, "0.weight") == 3);
    tern_module_free(n.all);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_part_counts), cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(ranks_clip_the_mean),  cmocka_unit_test(numbers_that_cannot_be),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
