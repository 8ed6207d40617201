/* test_scope.c - the life of a scope: the lifetime of its tensors, the errors it returns, and its use of
 * memory. */
#include "autograd/autograd.h"
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"
#include "printing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tern_tensor *vector(world *w, int64_t n, const float *values)
{
    return tern_tensor_from(w->scope, values, TERN_F32, 1, &n);
}

static void end_well(world *w)
{
    tern_scope_end(w->scope, &w->err);
    assert_ok(w->err);
}

/* ---- lifetime ---- */

static void a_tensor_after_its_scope(void **state)
{
    (void)state;
    world w = open_world();
    float out[3];
    tern_tensor *x = vector(&w, 3, (float[]){1, 2, 3});
    end_well(&w);
    tern_error err = {0};
    assert_int_equal(tern_tensor_read(x, out, sizeof(out), &err), TERN_E_LIFETIME);
    assert_string_equal(err.text,
                        "tensor (3) is used after its scope has ended; tern_keep gives a copy that lasts");
    assert_string_equal(err.func, "tern_tensor_read");
    assert_int_equal(tern_tensor_write(x, out, sizeof(out), NULL), TERN_E_LIFETIME);
    err = (tern_error){0};
    assert_null(tern_keep(x, &err));
    assert_int_equal(err.code, TERN_E_LIFETIME);
    assert_true(isnan(tern_item(x)));
    expect_error(&w, tern_relu(w.scope, x), "tern_relu", TERN_E_LIFETIME,
                 "tensor (3) is used after its scope has ended; tern_keep gives a copy that lasts");
    close_world(&w);
}

typedef struct leaky {
    tern_module base;
    tern_tensor *inner;
} leaky;

static tern_tensor *leaky_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    leaky *self = (leaky *)module;
    self->inner = tern_add(s, x, x);
    return tern_relu(s, self->inner);
}

static void an_inner_result_after_its_module(void **state)
{
    (void)state;
    world w = open_world();
    leaky net;
    tern_module_init(&net.base, "leaky", leaky_forward, &w.err);
    tern_tensor *y = tern_forward(&net.base, w.scope, vector(&w, 2, (float[]){-1, 4}));
    float out[2];
    assert_int_equal(tern_tensor_read(y, out, sizeof(out), &w.err), TERN_OK);
    assert_true(out[0] == 0 && out[1] == 8);
    expect_error(&w, tern_relu(w.scope, net.inner), "tern_relu", TERN_E_LIFETIME,
                 "tensor (2) is an inner result of a module that has returned; return it or tern_keep it");
    tern_module_release(&net.base);
    close_world(&w);
}

static tern_tensor *identity(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    (void)s;
    return x;
}

/* A module may return its input: it does not own that, so the input stays alive. */
static void a_module_that_returns_its_input(void **state)
{
    (void)state;
    world w = open_world();
    tern_module net;
    tern_module_init(&net, "identity", identity, &w.err);
    tern_tensor *x = vector(&w, 1, (float[]){7});
    assert_ptr_equal(tern_forward(&net, w.scope, x), x);
    assert_true(tern_item(tern_add(w.scope, x, x)) == 14);
    end_well(&w);
    tern_module_release(&net);
    close_world(&w);
}

static void what_is_kept_lasts(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *kept = tern_keep(vector(&w, 3, (float[]){1, 2, 3}), &w.err);
    for (int step = 0; step < 3; step++) {
        vector(&w, 3, (float[]){9, 9, 9});
        end_well(&w);
    }
    float out[3];
    assert_int_equal(tern_tensor_read(kept, out, sizeof(out), &w.err), TERN_OK);
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 3);
    assert_true(tern_item(tern_sum(w.scope, kept)) == 6);
    close_world(&w);
    tern_tensor_free(kept);
    tern_tensor_free(NULL);
}

/* ---- errors ---- */

static void the_first_error_is_told_and_the_scope_is_good_again(void **state)
{
    (void)state;
    world w = open_world();
    int64_t negative = -1;
    tern_tensor *x = vector(&w, 2, NULL);
    assert_null(tern_add(w.scope, x, vector(&w, 3, NULL)));
    assert_null(tern_relu(w.scope, NULL));
    assert_null(tern_relu(w.scope, x));
    assert_null(tern_tensor_from(w.scope, NULL, TERN_F32, 1, &negative));
    assert_int_equal(tern_backward(w.scope, NULL), TERN_E_SHAPE);
    assert_int_equal(tern_scope_error(w.scope)->code, TERN_E_SHAPE);
    tern_error err = {0};
    assert_int_equal(tern_scope_end(w.scope, &err), TERN_E_SHAPE);
    assert_string_equal(err.func, "tern_add");
    assert_string_equal(err.text, "add: (2) and (3) cannot be broadcast together");
    assert_int_equal(tern_scope_error(w.scope)->code, TERN_OK);
    assert_true(tern_item(tern_sum(w.scope, vector(&w, 2, (float[]){1, 2}))) == 3);
    end_well(&w);
    close_world(&w);
}

static void null_without_an_earlier_failure_names_the_op(void **state)
{
    (void)state;
    world w = open_world();
    expect_error(&w, tern_relu(w.scope, NULL), "tern_relu", TERN_E_INVALID,
                 "relu: input 0 is NULL, and no earlier op has failed");
    assert_int_equal(tern_backward(w.scope, NULL), TERN_E_INVALID);
    assert_string_equal(tern_scope_error(w.scope)->text,
                        "backward: input 0 is NULL, and no earlier op has failed");
    close_world(&w);
}

/* An error that the caller already has is kept; only the code tells of the scope's error. */
static void an_error_that_is_set_stays(void **state)
{
    (void)state;
    world w = open_world();
    tern_error err = {.code = TERN_E_IO, .text = "the disk"};
    assert_null(tern_relu(w.scope, NULL));
    assert_int_equal(tern_scope_end(w.scope, &err), TERN_E_INVALID);
    assert_int_equal(err.code, TERN_E_IO);
    assert_null(tern_scope_new(w.device, NULL, &err));
    assert_null(tern_keep(NULL, &err));
    assert_string_equal(err.text, "the disk");
    close_world(&w);
}

/* Its ops do nothing, nothing crashes, and the end of the scope returns the error. */
static void a_step_of_a_scope_that_could_not_be_made(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_linear_new(2, 1, NULL, rng, &err);
    tern_optim *sgd = tern_sgd_new(net, NULL, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    assert_ok(err);
    tern_scope *scope = tern_scope_new(NULL, NULL, &err);
    assert_null(scope);
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the device is NULL");
    err = (tern_error){0};
    tern_scope_seed(scope, 1, 2);
    assert_false(tern_grad_enabled_set(scope, true));
    assert_int_equal(tern_autocast_set(scope, TERN_BF16), TERN_F32);
    tern_tensor *x = tern_tensor_from(scope, (float[]){1, 2}, TERN_F32, 2, (int64_t[]){1, 2});
    tern_tensor *loss = tern_scaler_scale(scaler, scope, tern_mean(scope, tern_forward(net, scope, x)));
    assert_int_equal(tern_backward(scope, loss), TERN_E_INVALID);
    tern_scaler_unscale(scaler, scope, sgd);
    assert_null(tern_clip_grad_norm(scope, net, 1, 2));
    tern_clip_grad_value(scope, net, 1);
    assert_false(tern_scaler_step(scaler, scope, sgd));
    tern_scaler_update(scaler, scope);
    tern_optim_step(sgd, scope);
    assert_int_equal(tern_scope_error(scope)->code, TERN_E_INVALID);
    assert_int_equal(tern_scope_end(scope, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "the scope is NULL");
    assert_int_equal(tern_scope_end(scope, NULL), TERN_E_INVALID);
    tern_scaler_free(scaler);
    tern_optim_free(sgd);
    tern_module_free(net);
    tern_rng_free(rng);
}

static void shapes_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    const int64_t shape[7] = {1, 1, 1, 1, 1, 1, 1}, huge[2] = {(int64_t)1 << 31, (int64_t)1 << 31};
    expect_error(&w, tern_tensor_from(w.scope, NULL, TERN_F32, 7, shape), "tern_tensor_from", TERN_E_RANGE,
                 "ndim 7 is not in [0, 6]");
    expect_error(&w, tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){3, -1}), "tern_tensor_from",
                 TERN_E_SHAPE, "dimension 1 is -1");
    /* 2^62 elements of 4 bytes are 0 bytes modulo 2^64. */
    expect_error(&w, tern_tensor_from(w.scope, NULL, TERN_F32, 2, huge), "tern_tensor_from", TERN_E_SHAPE,
                 "(2147483648, 2147483648) has too many elements");
    expect_error(&w, tern_tensor_from(w.scope, NULL, TERN_DTYPE_COUNT, 1, shape), "tern_tensor_from",
                 TERN_E_DTYPE, "dtype 10 does not exist");
    close_world(&w);
}

/* ---- data in and out ---- */

static void buffers_of_another_size(void **state)
{
    (void)state;
    world w = open_world();
    float out[6];
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){2, 3});
    tern_error err = {0};
    assert_int_equal(tern_tensor_read(x, out, 20, &err), TERN_E_SHAPE);
    assert_string_equal(err.text, "tensor (2, 3) of f32 has 24 bytes, but the buffer has 20");
    err = (tern_error){0};
    assert_int_equal(tern_tensor_write(x, out, 28, &err), TERN_E_SHAPE);
    assert_string_equal(err.text, "tensor (2, 3) of f32 has 24 bytes, but the buffer has 28");
    assert_int_equal(tern_tensor_read(NULL, out, 4, NULL), TERN_E_INVALID);
    for (int i = 0; i < 6; i++) out[i] = (float)i;
    assert_int_equal(tern_tensor_write(x, out, sizeof(out), NULL), TERN_OK);
    memset(out, 0, sizeof(out));
    assert_int_equal(tern_tensor_read(x, out, sizeof(out), NULL), TERN_OK);
    for (int i = 0; i < 6; i++) assert_true(out[i] == (float)i);
    assert_int_equal(tern_tensor_count(x), 6);
    assert_int_equal(tern_tensor_dtype(x), TERN_F32);
    close_world(&w);
}

/* A forward reads shapes without checks, and the step's end says what has failed. */
static void a_failed_ops_shape_can_be_read(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){2, 3});
    const int64_t *shape = tern_tensor_shape(tern_matmul(w.scope, x, x));
    assert_non_null(shape);
    for (int d = 0; d < TERN_NDIM_MAX; d++) assert_int_equal(shape[d], 0);
    assert_null(tern_reshape(w.scope, NULL, 2, (int64_t[]){shape[0], -1}));
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_E_SHAPE);
    assert_non_null(strstr(w.err.text, "matmul: expected"));
    w.err = (tern_error){0};
    close_world(&w);
}

static void item_wants_one_element(void **state)
{
    (void)state;
    world w = open_world();
    int64_t one[2] = {1, 1}, number = (int64_t)1 << 40;
    assert_true(tern_item(tern_tensor_from(w.scope, &number, TERN_I64, 2, one)) == 0x1p40);
    assert_true(tern_item(tern_tensor_from(w.scope, (double[]){0.1}, TERN_F64, 0, NULL)) == 0.1);
    assert_true(tern_item(tern_tensor_from(w.scope, (int8_t[]){-3}, TERN_I8, 0, NULL)) == -3);
    assert_true(tern_item(tern_tensor_from(w.scope, (int16_t[]){-300}, TERN_I16, 0, NULL)) == -300);
    assert_true(isnan(tern_item(vector(&w, 2, NULL))));
    assert_true(isnan(tern_item(vector(&w, 0, NULL))));
    assert_true(isnan(tern_item(NULL)));
    close_world(&w);
}

/* Returns what tern_print writes to stdout. */
static const char *printed(const tern_tensor *tensor, char *text, size_t size)
{
    printing p = printing_begin();
    tern_print(tensor);
    return printing_end(p, text, size);
}

static void print_shows_the_edges(void **state)
{
    (void)state;
    world w = open_world();
    char text[512];
    int64_t count[8] = {0, 1, 2, 3, 4, 5, 6, 7}, eight = 8, seven = 7;
    tern_tensor *square =
        tern_tensor_from(w.scope, (float[]){1, -2, 0.5f, 1e3f}, TERN_F32, 2, (int64_t[]){2, 2});
    assert_string_equal(printed(square, text, sizeof(text)),
                        "tensor (2, 2) f32\n[[   1.0000,   -2.0000],\n [   0.5000, 1000.0000]]\n");
    assert_string_equal(printed(tern_tensor_from(w.scope, count, TERN_I64, 1, &eight), text, sizeof(text)),
                        "tensor (8) i64\n[0, 1, 2, ..., 5, 6, 7]\n");
    assert_string_equal(printed(tern_tensor_from(w.scope, count, TERN_I64, 1, &seven), text, sizeof(text)),
                        "tensor (7) i64\n[0, 1, 2, ..., 4, 5, 6]\n");
    assert_string_equal(
        printed(tern_tensor_from(w.scope, (uint8_t[]){255}, TERN_U8, 0, NULL), text, sizeof(text)),
        "tensor () u8\n255\n");
    assert_string_equal(printed(tern_tensor_from(w.scope, (int8_t[]){-128, 127}, TERN_I8, 1, (int64_t[]){2}),
                                text, sizeof(text)),
                        "tensor (2) i8\n[-128, 127]\n");
    assert_string_equal(
        printed(tern_tensor_from(w.scope, (int16_t[]){INT16_MIN, INT16_MAX}, TERN_I16, 1, (int64_t[]){2}),
                text, sizeof(text)),
        "tensor (2) i16\n[-32768, 32767]\n");
    assert_string_equal(printed(vector(&w, 0, NULL), text, sizeof(text)), "tensor (0) f32\n\n");
    end_well(&w);
    assert_string_equal(
        printed(square, text, sizeof(text)),
        "tensor: tensor (2, 2) is used after its scope has ended; tern_keep gives a copy that lasts\n");
    close_world(&w);
}

/* ---- memory ---- */

enum { BATCH = 64, HIDDEN = 4096 };

/* Returns the number of large blocks that `forwards` calls allocate in one step: the hidden layer has 1 MiB,
 * the result a few bytes. */
static int big_blocks(int forwards, bool grad)
{
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    tern_module *net = tern_mlp_new((int64_t[]){8, HIDDEN, 1}, 3, w.rng, &w.err);
    assert_ok(w.err);
    int before = atomic_load(&books.big);
    assert_true(tern_grad_enabled_set(w.scope, grad));
    for (int i = 0; i < forwards; i++) {
        tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){BATCH, 8});
        tern_tensor *y = tern_forward(net, w.scope, x);
        assert_non_null(y);
        assert_true(((y->node != NULL)) == grad);
    }
    assert_true((w.scope->tape != NULL) == grad);
    int big = atomic_load(&books.big) - before;
    assert_int_equal(tern_grad_enabled_set(w.scope, true), grad);
    end_well(&w);
    tern_module_free(net);
    close_world(&w);
    ledger_close(&books);
    return big;
}

static void keep_text(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_ERROR) snprintf(ctx, 128, "%s", text);
}

static void what_a_scope_or_a_module_owns_is_not_freed(void **state)
{
    (void)state;
    world w = open_world();
    char text[128] = "";
    tern_module *net = tern_batch_norm1d_new(3, NULL, &w.err);
    tern_log_set(keep_text, text);
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){2, 3});
    tern_tensor_free(x);
    assert_string_equal(text, "tern_tensor_free: tensor (2, 3) belongs to its scope, which frees it");
    tern_backward(w.scope, tern_sum(w.scope, tern_forward(net, w.scope, x)));
    end_well(&w);
    for (int i = 0; i < tern_state_count(net); i++) {
        *text = '\0';
        tern_tensor_free(tern_state_get(net, i).tensor);
        assert_non_null(strstr(text, "belongs to its module, which frees it"));
    }
    *text = '\0';
    tern_tensor_free(tern_keep(tern_state_get(net, 0).tensor, &w.err));
    assert_string_equal(text, "");
    tern_log_set(NULL, NULL);
    tern_module_free(net);
    close_world(&w);
}

static void count_endless(tern_log_level level, const char *text, void *ctx)
{
    bool is_it = strstr(text, "1000 backwards on a scope without tern_scope_end, which recycles") != NULL;
    *(int *)ctx += level == TERN_LOG_WARN && is_it;
}

static void who_never_ends_a_step_is_told_once(void **state)
{
    (void)state;
    world w = open_world();
    int told = 0;
    tern_log_set(count_endless, &told);
    tern_module *net = tern_linear_new(3, 1, NULL, w.rng, &w.err);
    for (int ends = 0; ends < 2; ends++) {
        for (int i = 0; i < 1500; i++) {
            tern_tensor *x = vector(&w, 3, (float[]){1, 2, 3});
            assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, tern_forward(net, w.scope, x))), 0);
            assert_int_equal(told, ends || i >= 999);
            if (ends) end_well(&w);
        }
        end_well(&w);
    }
    tern_log_set(NULL, NULL);
    tern_module_free(net);
    close_world(&w);
}

static void without_gradients_inner_results_go_back_at_once(void **state)
{
    (void)state;
    int two = big_blocks(2, false);
    assert_true(two > 0);
    assert_int_equal(big_blocks(100, false), two);
    assert_true(big_blocks(10, true) >= two + 8); /* the tape keeps them */
}

static void many_tensors_grow_the_arena_once(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static tern_tensor *made[MANY];
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    int warm = 0;
    for (int step = 0; step < 5; step++) {
        if (step == 2) warm = atomic_load(&books.requests); /* both arenas have grown */
        memset(tern__scope_alloc(w.scope, 3 * LEDGER_BIG), 0xff, 3 * LEDGER_BIG);
        for (int i = 0; i < MANY; i++) made[i] = vector(&w, 1, (float[]){(float)(step * MANY + i)});
        for (int i = 0; i < MANY; i++) assert_true(tern_item(made[i]) == step * MANY + i);
        end_well(&w);
    }
    assert_int_equal(atomic_load(&books.requests), warm);
    close_world(&w);
    ledger_close(&books);
}

/* A step is abandoned in the middle: with a tape, before or after an error, and without tern_scope_end. */
static void a_step_may_be_left_anywhere(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        ledger books = {0};
        ledger_open(&books);
        world w = open_world();
        tern_module *net = tern_mlp_new((int64_t[]){3, 5, 2}, 3, w.rng, &w.err);
        tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){4, 3});
        tern_tensor *loss = tern_sum(w.scope, tern_forward(net, w.scope, x));
        if (at == 1) tern_forward(net, w.scope, loss);
        if (at == 2) assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
        if (at == 3) tern_scope_end(w.scope, NULL);
        tern_module_free(net);
        close_world(&w);
        ledger_close(&books);
    }
}

static void count_down(void *ctx)
{
    --*(int *)ctx;
}

static void what_is_borrowed_goes_back_with_the_step(void **state)
{
    (void)state;
    world w = open_world();
    int held = 3;
    for (int i = 0; i < 2; i++) assert_int_equal(tern__scope_borrow(w.scope, count_down, &held), TERN_OK);
    end_well(&w);
    assert_int_equal(held, 1);
    assert_int_equal(tern__scope_borrow(w.scope, count_down, &held), TERN_OK);
    close_world(&w);
    assert_int_equal(held, 0);
}

/* ---- marks ---- */

static void what_is_made_after_a_mark_is_released(void **state)
{
    (void)state;
    world w = open_world();
    static const char text[] =
        "tensor (2) was made after a mark and is released; tern_scope_release keeps what it is given";
    tern_tensor *older = vector(&w, 2, (float[]){1, 2});
    int64_t mark = tern_scope_mark(w.scope);
    tern_tensor *inner = tern_add(w.scope, older, older), *kept = tern_mul(w.scope, inner, inner);
    tern_tensor *shown = tern_slice(w.scope, tern_sub(w.scope, kept, older), 0, 1, 2, 1);
    tern_scope_release(w.scope, mark, 4, (tern_tensor *[]){NULL, kept, older, shown});
    assert_true(tern_item(tern_sum(w.scope, kept)) == 20 && tern_item(tern_sum(w.scope, older)) == 3);
    assert_true(tern_item(shown) == 14);
    assert_int_equal(tern_tensor_shape(inner)[0], 2);
    assert_true(isnan(tern_item(inner)));
    tern_error err = {0};
    assert_null(tern_keep(inner, &err));
    assert_int_equal(err.code, TERN_E_LIFETIME);
    expect_error(&w, tern_relu(w.scope, inner), "tern_relu", TERN_E_LIFETIME, text);
    close_world(&w);
}

/* What the inner mark has kept is the outer one's to release; one that is released twice, or after the outer
 * one, releases what has been made since. */
static void marks_may_be_nested(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = vector(&w, 1, (float[]){3});
    int64_t outer = tern_scope_mark(w.scope);
    tern_tensor *a = tern_add(w.scope, x, x);
    int64_t inner = tern_scope_mark(w.scope);
    tern_tensor *b = tern_add(w.scope, a, x), *c = tern_add(w.scope, b, x);
    tern_scope_release(w.scope, inner, 1, &c);
    assert_true(isnan(tern_item(b)) && tern_item(a) == 6 && tern_item(c) == 12);
    tern_scope_release(w.scope, outer, 1, &a);
    assert_true(isnan(tern_item(c)) && tern_item(a) == 6 && tern_item(x) == 3);
    tern_tensor *d = tern_add(w.scope, a, x);
    tern_scope_release(w.scope, inner, 0, NULL);
    tern_scope_release(w.scope, inner, 0, NULL);
    assert_true(isnan(tern_item(d)) && tern_item(a) == 6);
    tern_scope_release(w.scope, outer, 0, NULL);
    assert_true(tern_item(a) == 6); /* as old as the mark */
    outer = tern_scope_mark(w.scope);
    inner = tern_scope_mark(w.scope); /* nothing between the two */
    tern_tensor *e = tern_add(w.scope, x, x);
    tern_scope_release(w.scope, inner, 1, &e);
    assert_true(tern_item(e) == 6);
    tern_scope_release(w.scope, outer, 0, NULL);
    assert_true(isnan(tern_item(e)));
    end_well(&w);
    close_world(&w);
}

static void marks_that_are_none(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = vector(&w, 1, (float[]){3});
    int64_t mark = tern_scope_mark(w.scope);
    tern_scope_release(w.scope, mark, -1, NULL);
    expect_error(&w, NULL, "tern_scope_release", TERN_E_INVALID,
                 "expected the tensors to keep, got a count of -1 without tensors");
    tern_scope_release(w.scope, mark, 0, NULL);
    expect_error(&w, NULL, "tern_scope_release", TERN_E_LIFETIME,
                 "the mark is not of this step of the scope");
    assert_true(isnan(tern_item(x)));
    tern_scope_release(w.scope, tern_scope_mark(w.scope) + 1, 0, NULL);
    expect_error(&w, NULL, "tern_scope_release", TERN_E_LIFETIME,
                 "the mark is not of this step of the scope");
    assert_int_equal(tern_scope_mark(NULL), 0);
    tern_scope_release(NULL, 0, 0, NULL);
    close_world(&w);
}

enum { PARTS = 24, PART = 1 << 16 };

/* The sum of tanh(x + i)^2 over i, part by part; with gradients on, the tape keeps what backward needs. */
static double sum_of_parts(world *w, bool marks, bool grad, double *dx)
{
    tern_tensor *x = tern_full(w->scope, TERN_F32, 1, (int64_t[]){PART}, 0.25), *sum = NULL;
    if (grad) tern_requires_grad_set(x, true, &w->err);
    for (int i = 0; i < PARTS; i++) {
        int64_t mark = tern_scope_mark(w->scope);
        tern_tensor *y =
            tern_tanh(w->scope, tern_add(w->scope, x, tern_full(w->scope, TERN_F32, 0, NULL, i)));
        y = tern_sum(w->scope, tern_mul(w->scope, y, y));
        sum = sum ? tern_add(w->scope, sum, y) : y;
        if (marks) tern_scope_release(w->scope, mark, 1, &sum);
    }
    if (grad) tern_backward(w->scope, sum);
    *dx = grad ? tern_item(tern_sum(w->scope, tern_grad_get(x))) : 0;
    double value = tern_item(sum);
    end_well(w);
    return value;
}

static size_t bytes_of_parts(bool marks, bool grad)
{
    world w = open_world();
    double dx[2], plain = sum_of_parts(&w, false, grad, &dx[0]);
    close_world(&w);
    w = open_world();
    assert_true(sum_of_parts(&w, marks, grad, &dx[1]) == plain);
    assert_true(dx[0] == dx[1]);
    size_t bytes = tern__device_bytes(w.device);
    close_world(&w);
    return bytes;
}

/* A loop of 4 large tensors a round needs as much as one round. With gradients on it needs what is saved: the
 * result of tanh, which is both operands of the product. */
static void a_loop_needs_the_memory_of_one_round(void **state)
{
    (void)state;
    const size_t part = PART * sizeof(float);
    assert_true(bytes_of_parts(false, false) > 3 * PARTS * part);
    assert_true(bytes_of_parts(true, false) < 6 * part);
    size_t plain = bytes_of_parts(false, true), less = bytes_of_parts(true, true);
    assert_true(less < (PARTS + 8) * part && plain > (2 * PARTS + 8) * part);
}

static tern_module *make_none(world *w)
{
    return tern_sequential_new(&w->err);
}

static int run_parts(world *w, tern_module *net)
{
    double dx;
    (void)net;
    sum_of_parts(w, true, true, &dx);
    return TERN_OK;
}

static void a_warm_loop_allocates_nothing(void **state)
{
    (void)state;
    expect_warm_steps_to_allocate_nothing(make_none, run_parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_after_its_scope),
        cmocka_unit_test(an_inner_result_after_its_module),
        cmocka_unit_test(a_module_that_returns_its_input),
        cmocka_unit_test(what_is_kept_lasts),
        cmocka_unit_test(the_first_error_is_told_and_the_scope_is_good_again),
        cmocka_unit_test(null_without_an_earlier_failure_names_the_op),
        cmocka_unit_test(an_error_that_is_set_stays),
        cmocka_unit_test(a_step_of_a_scope_that_could_not_be_made),
        cmocka_unit_test(shapes_that_cannot_be),
        cmocka_unit_test(buffers_of_another_size),
        cmocka_unit_test(a_failed_ops_shape_can_be_read),
        cmocka_unit_test(item_wants_one_element),
        cmocka_unit_test(print_shows_the_edges),
        cmocka_unit_test(what_a_scope_or_a_module_owns_is_not_freed),
        cmocka_unit_test(who_never_ends_a_step_is_told_once),
        cmocka_unit_test(without_gradients_inner_results_go_back_at_once),
        cmocka_unit_test(many_tensors_grow_the_arena_once),
        cmocka_unit_test(a_step_may_be_left_anywhere),
        cmocka_unit_test(what_is_borrowed_goes_back_with_the_step),
        cmocka_unit_test(what_is_made_after_a_mark_is_released),
        cmocka_unit_test(marks_may_be_nested),
        cmocka_unit_test(marks_that_are_none),
        cmocka_unit_test(a_loop_needs_the_memory_of_one_round),
        cmocka_unit_test(a_warm_loop_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
