/* test_wrap.c - tensors over the caller's memory: no copy, no gradient, and one call of `release`, after the
 * last use. Runs on TERN_DEVICE, so that valgrind can check the reference kernels as well. */
#include "ledger.h"

#include <stdio.h>
#include <string.h>

enum { N = 3, IN = 5, OUT = 4 };

typedef struct world {
    tern_error err;
    tern_device *device;
    tern_scope *scope;
    tern_rng *rng;
    tern_module *net; /* linear IN -> OUT */
} world;

static world open_world(void)
{
    world w = {0};
    w.device = tern_device_open(NULL, &w.err);
    tern_device_threads_set(w.device, 1, &w.err);
    w.scope = tern_scope_new(w.device, NULL, &w.err);
    w.rng = tern_rng_new(3, &w.err);
    w.net = tern_linear_new(IN, OUT, NULL, w.rng, &w.err);
    assert_ok(w.err);
    return w;
}

static void close_world(world *w)
{
    tern_module_free(w->net);
    tern_rng_free(w->rng);
    tern_scope_free(w->scope);
    tern_device_close(w->device);
}

static void end_well(world *w)
{
    tern_scope_end(w->scope, &w->err);
    assert_ok(w->err);
}

/* ---- memory that records its release ---- */

typedef struct buffer {
    int released;
    float *values; /* [N * IN], freed by release, so that valgrind sees later reads */
} buffer;

static void release(void *ctx)
{
    buffer *b = ctx;
    b->released++;
    free(b->values);
}

static tern_tensor *wrap(world *w, buffer *b)
{
    *b = (buffer){.values = malloc(N * IN * sizeof(float))};
    tern_rng_normal(w->rng, b->values, N * IN, 0, 1);
    tern_tensor *tensor = tern_tensor_wrap(b->values, TERN_F32, 2, (int64_t[]){N, IN}, release, b, &w->err);
    assert_ok(w->err);
    return tensor;
}

static void no_copy_is_made(void **state)
{
    (void)state;
    world w = open_world();
    int64_t values[4] = {1, 2, 3, 4}, out[4];
    tern_tensor *x = tern_tensor_wrap(values, TERN_I64, 2, (int64_t[]){2, 2}, NULL, NULL, &w.err);
    assert_ok(w.err);
    assert_ptr_equal(tern_tensor_data(x), values);
    assert_int_equal(tern_tensor_ndim(x), 2);
    assert_int_equal(tern_tensor_dtype(x), TERN_I64);
    values[2] = -7;
    assert_int_equal(tern_tensor_read(x, out, sizeof(out), &w.err), TERN_OK);
    assert_memory_equal(out, values, sizeof(out));
    assert_true(tern_item(tern_sum(w.scope, x)) == 0);
    assert_int_equal(tern_tensor_write(x, (int64_t[]){5, 6, 7, 8}, sizeof(out), &w.err), TERN_OK);
    assert_int_equal(values[3], 8);
    end_well(&w);
    values[0] = 100;
    assert_true(tern_item(tern_sum(w.scope, x)) == 121);
    tern_tensor_free(x);
    close_world(&w);
}

/* ---- when `release` is called ---- */

static void unused_it_goes_with_its_handle(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_tensor *x = wrap(&w, &b);
    tern_tensor *copy = tern_keep(x, &w.err);
    assert_ok(w.err);
    tern_tensor_free(x);
    assert_int_equal(b.released, 1);
    tern_tensor_free(copy);
    tern_tensor_free(NULL);
    close_world(&w);
}

static void a_gradient_keeps_it_until_backward(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_tensor *x = wrap(&w, &b);
    tern_tensor *loss = tern_mean(w.scope, tern_forward(w.net, w.scope, x));
    tern_tensor_free(x);
    assert_int_equal(b.released, 0);
    assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
    assert_int_equal(b.released, 1);
    end_well(&w);
    assert_int_equal(b.released, 1);
    close_world(&w);
}

static void without_backward_until_the_scope_ends(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    for (int freed = 0; freed < 2; freed++) {
        tern_tensor *x = wrap(&w, &b);
        tern_forward(w.net, w.scope, x);
        tern_tensor_free(x);
        assert_int_equal(b.released, 0);
        if (freed) {
            tern_scope_free(w.scope);
            w.scope = tern_scope_new(w.device, NULL, &w.err);
        }
        end_well(&w);
        assert_int_equal(b.released, 1);
    }
    close_world(&w);
}

static void without_gradients_nothing_keeps_it(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_grad_enabled_set(w.scope, false);
    tern_tensor *x = wrap(&w, &b), *y = tern_forward(w.net, w.scope, x);
    float out[N * OUT];
    tern_tensor_free(x);
    assert_int_equal(b.released, 1);
    assert_int_equal(tern_tensor_read(y, out, sizeof(out), &w.err), TERN_OK);
    end_well(&w);
    close_world(&w);
}

static void a_view_keeps_it(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_tensor *x = wrap(&w, &b), *view = tern_transpose(w.scope, x, 0, 1);
    float first = b.values[0], out[N * IN];
    tern_tensor_free(x);
    assert_int_equal(b.released, 0);
    assert_int_equal(tern_tensor_read(view, out, sizeof(out), &w.err), TERN_OK);
    assert_true(out[0] == first);
    end_well(&w);
    assert_int_equal(b.released, 1);
    close_world(&w);
}

typedef struct freeing {
    tern_module base;
    tern_tensor *x;
    buffer b;
} freeing;

/* Frees the handle while a view of it is in use: the module's return is the last use. */
static tern_tensor *freeing_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    freeing *self = (freeing *)module;
    tern_tensor *y = tern_add(s, x, tern_reshape(s, self->x, 1, (int64_t[]){N * IN}));
    tern_tensor_free(self->x);
    assert_int_equal(self->b.released, 0);
    return y;
}

static void a_view_in_a_module_until_it_returns(void **state)
{
    (void)state;
    world w = open_world();
    freeing net;
    tern_module_init(&net.base, "freeing", freeing_forward, &w.err);
    net.x = wrap(&w, &net.b);
    tern_tensor *zeros = tern_tensor_from(w.scope, NULL, TERN_F32, 1, (int64_t[]){N * IN});
    assert_non_null(tern_forward(&net.base, w.scope, zeros));
    assert_int_equal(net.b.released, 1);
    end_well(&w);
    tern_module_release(&net.base);
    close_world(&w);
}

/* Saved by two ops and seen by two views: still one call. */
static void many_uses_one_release(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_tensor *x = wrap(&w, &b);
    tern_tensor *back = tern_transpose(w.scope, tern_transpose(w.scope, x, 0, 1), 0, 1);
    tern_tensor *y = tern_add(w.scope, tern_forward(w.net, w.scope, x), tern_forward(w.net, w.scope, back));
    tern_tensor_free(x);
    assert_int_equal(tern_backward(w.scope, tern_mean(w.scope, y)), TERN_OK);
    assert_int_equal(b.released, 0);
    end_well(&w);
    assert_int_equal(b.released, 1);
    close_world(&w);
}

static void a_failed_step_releases(void **state)
{
    (void)state;
    world w = open_world();
    buffer b;
    tern_tensor *x = wrap(&w, &b), *y = tern_forward(w.net, w.scope, x);
    tern_tensor_free(x);
    assert_null(tern_forward(w.net, w.scope, y)); /* OUT is not IN */
    assert_int_equal(b.released, 0);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_E_SHAPE);
    assert_int_equal(b.released, 1);
    close_world(&w);
}

/* A kept copy has no `release` but the same lifetime: every block is given back. */
static void a_kept_tensor_may_go_before_backward(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    tern_tensor *zeros = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){N, IN});
    int before = atomic_load(&books.live);
    tern_tensor *x = tern_keep(zeros, &w.err);
    assert_int_equal(atomic_load(&books.live), before + 2);
    tern_tensor *loss = tern_mean(w.scope, tern_forward(w.net, w.scope, x));
    tern_tensor_free(x);
    assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
    end_well(&w);
    close_world(&w);
    ledger_close(&books);
}

/* ---- gradients ---- */

static void no_gradient_goes_there(void **state)
{
    (void)state;
    world w = open_world();
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 1;
    tern_optim *optim = tern_sgd_new(w.net, &sgd, &w.err);
    buffer b;
    float before[N * IN], weight[2];
    tern_tensor *x = wrap(&w, &b);
    memcpy(before, b.values, sizeof(before));
    assert_false(tern_requires_grad_get(x));
    assert_int_equal(tern_requires_grad_set(x, true, NULL), TERN_E_INVALID);
    weight[0] = *(float *)tern_tensor_data(tern_state_find(w.net, "weight"));
    tern_tensor *squares = tern_mul(w.scope, x, x);
    assert_false(tern_requires_grad_get(squares));
    assert_int_equal(tern_backward(w.scope, tern_mean(w.scope, tern_forward(w.net, w.scope, squares))),
                     TERN_OK);
    assert_null(tern_grad_get(x));
    tern_optim_step(optim, w.scope);
    end_well(&w);
    weight[1] = *(float *)tern_tensor_data(tern_state_find(w.net, "weight"));
    assert_true(weight[0] != weight[1]);
    assert_memory_equal(b.values, before, sizeof(before));
    tern_tensor_free(x);
    tern_optim_free(optim);
    close_world(&w);
}

/* ---- ops: the same bits as on a copy, even if memory is aligned to the element only ---- */

enum { C = 16, SIDE = 6, COUNT = 2 * C * SIDE * SIDE };

typedef tern_tensor *(*op_fn)(tern_scope *s, tern_tensor *x, tern_tensor *weight);

static tern_tensor *conv(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    return tern_conv2d(s, x, tern_reshape(s, weight, 4, (int64_t[]){C, C, 2, 1}), NULL, NULL);
}
static tern_tensor *linear(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    x = tern_reshape(s, x, 2, (int64_t[]){COUNT / 32, 32});
    return tern_linear(s, x, tern_reshape(s, weight, 2, (int64_t[]){C, 32}), NULL);
}
static tern_tensor *norm(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    weight = tern_slice(s, tern_reshape(s, weight, 1, (int64_t[]){-1}), 0, 1, C + 1, 1);
    return tern_batch_norm_act(s, x, NULL, NULL, weight, weight, x, NULL);
}
static tern_tensor *max_pool(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    (void)weight;
    return tern_max_pool2d(s, x, 2, 3, NULL);
}
static tern_tensor *avg_pool(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    (void)weight;
    return tern_avg_pool2d(s, x, 3, 2, NULL);
}
static tern_tensor *global_pool(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    (void)weight;
    return tern_global_avg_pool(s, x);
}
static tern_tensor *entropy(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    (void)weight;
    x = tern_reshape(s, x, 2, (int64_t[]){COUNT / 6, 6});
    return tern_cross_entropy(s, x, tern_argmax(s, tern_mul(s, x, x), 1, false), NULL);
}
static tern_tensor *pointwise(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    return tern_gelu(s, tern_sub(s, x, tern_mean(s, weight)), false);
}
static tern_tensor *sums(tern_scope *s, tern_tensor *x, tern_tensor *weight)
{
    (void)weight;
    return tern_add(s, tern_sum_dims(s, x, 2, (int[]){1, 3}, true), tern_amax(s, x, 1, (int[]){2}, true));
}

static const op_fn ops[] = {conv, linear, norm, max_pool, avg_pool, global_pool, entropy, pointwise, sums};

/* Gets the result's elements and returns their number. */
static size_t values_of(world *w, tern_tensor *y, float out[COUNT])
{
    if (!y) fail_msg("%s", tern_scope_error(w->scope)->text);
    size_t count = (size_t)tern_tensor_count(y);
    assert_in_range(count, 1, COUNT);
    assert_int_equal(tern_tensor_read(y, out, count * sizeof(*out), NULL), TERN_OK);
    return count;
}

static void every_kind_of_op(void **state)
{
    (void)state;
    const int64_t shape[] = {2, C, SIDE, SIDE}, weight_shape[] = {C, C * 2};
    static _Alignas(64) float x[COUNT + 1], weight[C * C * 2 + 1], got[COUNT], want[COUNT];
    world w = open_world();
    tern_rng_normal(w.rng, x, COUNT + 1, 0, 1);
    tern_rng_normal(w.rng, weight, C * C * 2 + 1, 0, 1);
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        tern_tensor *wx = tern_tensor_wrap(x + 1, TERN_F32, 4, shape, NULL, NULL, &w.err);
        tern_tensor *ww = tern_tensor_wrap(weight + 1, TERN_F32, 2, weight_shape, NULL, NULL, &w.err);
        assert_ok(w.err);
        size_t count = values_of(&w, ops[i](w.scope, wx, ww), got);
        tern_tensor *cx = tern_tensor_from(w.scope, x + 1, TERN_F32, 4, shape);
        tern_tensor *cw = tern_tensor_from(w.scope, weight + 1, TERN_F32, 2, weight_shape);
        assert_int_equal(values_of(&w, ops[i](w.scope, cx, cw), want), count);
        assert_memory_equal(got, want, count * sizeof(*got));
        tern_tensor_free(wx);
        tern_tensor_free(ww);
        end_well(&w);
    }
    close_world(&w);
}

/* Each op's gradient needs the values: the handle is freed, then backward reads them, then they are released.
 */
static void every_kind_of_gradient(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *weight = tern_parameter_add(w.net, "other", TERN_F32, 2, (int64_t[]){C, C * 2}, &w.err);
    assert_ok(w.err);
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        buffer b = {.values = malloc(COUNT * sizeof(float))};
        tern_rng_normal(w.rng, b.values, COUNT, 0, 1);
        tern_tensor *x =
            tern_tensor_wrap(b.values, TERN_F32, 4, (int64_t[]){2, C, SIDE, SIDE}, release, &b, &w.err);
        tern_tensor *y = ops[i](w.scope, x, weight);
        tern_tensor_free(x);
        if (tern_requires_grad_get(y))
            assert_int_equal(tern_backward(w.scope, tern_mean(w.scope, tern_mul(w.scope, y, y))), TERN_OK);
        end_well(&w);
        assert_int_equal(b.released, 1);
    }
    close_world(&w);
}

/* ---- tern_tensor_data ---- */

static void data_of_what_has_gaps_or_is_gone(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){N, IN});
    assert_non_null(tern_tensor_data(x));
    assert_null(tern_tensor_data(tern_transpose(w.scope, x, 0, 1)));
    assert_non_null(tern_tensor_data(tern_slice(w.scope, x, 0, 1, 3, 1)));
    assert_null(tern_tensor_data(NULL));
    end_well(&w);
    assert_null(tern_tensor_data(x));
    close_world(&w);
}

/* Runs twice with the same weights, so that the kernel keeps a copy; then writes them in place. */
static void a_parameter_written_in_place(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = tern_conv2d_new(16, 16, 3, 3, NULL, w.rng, &w.err);
    tern_tensor *weight = tern_state_find(net, "weight"), *bias = tern_state_find(net, "bias");
    tern_eval(net);
    tern_grad_enabled_set(w.scope, false);
    memset(tern_tensor_data(bias), 0, 16 * sizeof(float));
    float ones[16 * 9];
    for (int i = 0; i < 16 * 9; i++) ones[i] = 1;
    for (int round = 0; round < 6; round++) {
        float *p = tern_tensor_data(weight), expected = (float)(round / 3 + 1);
        for (int64_t i = 0; round % 3 == 0 && i < tern_tensor_count(weight); i++) p[i] = expected;
        tern_tensor *x = tern_tensor_from(w.scope, ones, TERN_F32, 4, (int64_t[]){1, 16, 3, 3});
        tern_tensor *y = tern_forward(net, w.scope, x);
        assert_true(tern_item(tern_amax(w.scope, y, 0, NULL, false)) == 144 * expected);
        assert_true(tern_item(tern_amin(w.scope, y, 0, NULL, false)) == 144 * expected);
        end_well(&w);
    }
    tern_module_free(net);
    close_world(&w);
}

/* ---- errors ---- */

static void expect_none(int code, const char *text, void *data, tern_dtype dtype, int ndim,
                        const int64_t *shape)
{
    buffer b = {0};
    tern_error err = {0};
    assert_null(tern_tensor_wrap(data, dtype, ndim, shape, release, &b, &err));
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_tensor_wrap");
    if (text) assert_string_equal(err.text, text);
    assert_int_equal(b.released, 0);
}

/* A rank with an empty share may have no memory for it. */
static void nothing_is_wrapped(void **state)
{
    (void)state;
    world w = open_world();
    buffer b = {0};
    tern_tensor *x = tern_tensor_wrap(NULL, TERN_F32, 2, (int64_t[]){0, IN}, release, &b, &w.err);
    assert_ok(w.err);
    tern_tensor *loss = tern_sum(w.scope, tern_forward(w.net, w.scope, x));
    assert_true(tern_item(loss) == 0);
    assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
    const float *grad = tern_tensor_data(tern_grad_get(tern_state_find(w.net, "weight")));
    for (int i = 0; i < OUT * IN; i++) assert_true(grad[i] == 0);
    end_well(&w);
    tern_tensor_free(x);
    assert_int_equal(b.released, 1);
    close_world(&w);
}

static void what_cannot_be_wrapped(void **state)
{
    (void)state;
    static double values[TERN_NDIM_MAX + 1];
    const int64_t shape[TERN_NDIM_MAX + 1] = {1, 1, 1, 1, 1, 1, 1};
    expect_none(TERN_E_INVALID, "data is NULL", NULL, TERN_F32, 1, shape);
    expect_none(TERN_E_DTYPE, "dtype 99 does not exist", values, (tern_dtype)99, 1, shape);
    expect_none(TERN_E_RANGE, "ndim 7 is not in [0, 6]", values, TERN_F32, TERN_NDIM_MAX + 1, shape);
    expect_none(TERN_E_SHAPE, "dimension 0 is -1", values, TERN_F32, 1, (int64_t[]){-1});
    expect_none(TERN_E_INVALID, "the shape of 2 dimensions is NULL", values, TERN_F32, 2, NULL);
    char *odd = (char *)values + 4, text[96];
    snprintf(text, sizeof(text), "data at %p is not aligned to the 8 bytes of f64", (void *)odd);
    expect_none(TERN_E_INVALID, text, odd, TERN_F64, 1, shape);
    tern_error set = {.code = TERN_E_IO};
    assert_null(tern_tensor_wrap(values, TERN_F64, 1, shape, release, NULL, &set));
}

static void no_memory_for_a_handle(void **state)
{
    (void)state;
    static float values[2];
    for (int at = 1; at <= 2; at++) {
        ledger books = {.refuse_at = at};
        ledger_open(&books);
        expect_none(TERN_E_MEMORY, NULL, values, TERN_F32, 1, (int64_t[]){2});
        ledger_close(&books);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_copy_is_made),
        cmocka_unit_test(unused_it_goes_with_its_handle),
        cmocka_unit_test(a_gradient_keeps_it_until_backward),
        cmocka_unit_test(without_backward_until_the_scope_ends),
        cmocka_unit_test(without_gradients_nothing_keeps_it),
        cmocka_unit_test(a_view_keeps_it),
        cmocka_unit_test(a_view_in_a_module_until_it_returns),
        cmocka_unit_test(many_uses_one_release),
        cmocka_unit_test(a_failed_step_releases),
        cmocka_unit_test(a_kept_tensor_may_go_before_backward),
        cmocka_unit_test(no_gradient_goes_there),
        cmocka_unit_test(every_kind_of_op),
        cmocka_unit_test(every_kind_of_gradient),
        cmocka_unit_test(data_of_what_has_gaps_or_is_gone),
        cmocka_unit_test(a_parameter_written_in_place),
        cmocka_unit_test(nothing_is_wrapped),
        cmocka_unit_test(what_cannot_be_wrapped),
        cmocka_unit_test(no_memory_for_a_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
