/* test_cross_entropy.c - softmax and the classification losses: errors, no allocation in a warm step, and
 * allocations that fail at every point. tests/torch compares the values. */
#include "world.h"

static tern_tensor *matrix(world *w, tern_dtype dtype, int64_t rows, int64_t columns)
{
    return tern_tensor_from(w->scope, NULL, dtype, 2, (int64_t[]){rows, columns});
}

/* ---- errors ---- */

static void operands_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    expect_error(
        &w, tern_cross_entropy(s, matrix(&w, TERN_F32, 4, 3), zeros1(&w, TERN_I64, 3), NULL),
        "tern_cross_entropy", TERN_E_SHAPE,
        "cross_entropy: expected input (N, C, ..) and label (N, ..), or (C) and (), got (4, 3) and (3)");
    expect_error(
        &w, tern_nll_loss(s, matrix(&w, TERN_F32, 4, 3), matrix(&w, TERN_I64, 4, 1), NULL), "tern_nll_loss",
        TERN_E_SHAPE,
        "nll_loss: expected input (N, C, ..) and label (N, ..), or (C) and (), got (4, 3) and (4, 1)");
    expect_error(
        &w, tern_cross_entropy(s, zeros1(&w, TERN_F32, 3), zeros1(&w, TERN_I64, 1), NULL),
        "tern_cross_entropy", TERN_E_SHAPE,
        "cross_entropy: expected input (N, C, ..) and label (N, ..), or (C) and (), got (3) and (1)");
    tern_tensor *scalar = tern_full(s, TERN_F32, 0, NULL, 1);
    expect_error(&w, tern_cross_entropy(s, scalar, tern_full(s, TERN_I64, 0, NULL, 0), NULL),
                 "tern_cross_entropy", TERN_E_SHAPE,
                 "cross_entropy: expected input (N, C, ..) and label (N, ..), or (C) and (), got () and ()");
    expect_error(&w, tern_cross_entropy(s, matrix(&w, TERN_I64, 4, 3), zeros1(&w, TERN_I64, 4), NULL),
                 "tern_cross_entropy", TERN_E_DTYPE,
                 "cross_entropy: expected input of floating point, got i64");
    expect_error(&w, tern_nll_loss(s, matrix(&w, TERN_F32, 4, 3), zeros1(&w, TERN_F32, 4), NULL),
                 "tern_nll_loss", TERN_E_DTYPE, "nll_loss: expected labels of i64, i32 or u8, got f32");
    expect_error(&w, tern_nll_loss(s, matrix(&w, TERN_F32, 4, 3), NULL, NULL), "tern_nll_loss",
                 TERN_E_INVALID, "nll_loss: input 1 is NULL, and no earlier op has failed");
    close_world(&w);
}

/* Calls cross_entropy on (4, 3) with these options. */
static tern_tensor *with(world *w, tern_cross_entropy_opts opts)
{
    return tern_cross_entropy(w->scope, matrix(w, TERN_F32, 4, 3), zeros1(w, TERN_I64, 4), &opts);
}

static void options_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    const char *func = "tern_cross_entropy";
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.label_smoothing = -0.5;
    expect_error(&w, with(&w, opts), func, TERN_E_RANGE,
                 "cross_entropy: expected a label_smoothing in [0, 1], got -0.5");
    opts.label_smoothing = 1.5;
    expect_error(&w, with(&w, opts), func, TERN_E_RANGE,
                 "cross_entropy: expected a label_smoothing in [0, 1], got 1.5");
    opts.label_smoothing = 0.25;
    expect_error(&w, tern_nll_loss(w.scope, matrix(&w, TERN_F32, 4, 3), zeros1(&w, TERN_I64, 4), &opts),
                 "tern_nll_loss", TERN_E_RANGE, "nll_loss: expected no label_smoothing, got 0.25");
    opts = tern_cross_entropy_defaults();
    opts.reduction = (tern_reduction)3;
    expect_error(&w, with(&w, opts), func, TERN_E_INVALID, "cross_entropy: reduction 3 does not exist");
    opts.size = 0;
    expect_error(&w, with(&w, opts), func, TERN_E_INVALID,
                 "options: size is 0; start from what the _defaults function returns");
    opts.size = sizeof(opts) + 8;
    expect_error(&w, with(&w, opts), func, TERN_E_UNSUPPORTED,
                 "options: size is 48, this version of the library knows 40 bytes");
    close_world(&w);
}

static void weights_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    const char *func = "tern_cross_entropy";
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.weight = zeros1(&w, TERN_F32, 4);
    expect_error(&w, with(&w, opts), func, TERN_E_SHAPE,
                 "cross_entropy: expected a weight for each of 3 classes, got (4)");
    opts.weight = matrix(&w, TERN_F32, 3, 1);
    expect_error(&w, with(&w, opts), func, TERN_E_SHAPE,
                 "cross_entropy: expected a weight for each of 3 classes, got (3, 1)");
    opts.weight = zeros1(&w, TERN_F64, 3);
    expect_error(&w, with(&w, opts), func, TERN_E_DTYPE, "cross_entropy: expected weights of f32, got f64");
    tern_module *owner = tern_batch_norm1d_new(3, NULL, &w.err);
    opts.weight = tern_state_find(owner, "weight");
    expect_error(&w, with(&w, opts), func, TERN_E_UNSUPPORTED,
                 "cross_entropy: the weight wants a gradient; tern_detach it");
    opts.weight = zeros1(&w, TERN_F32, 3);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    expect_error(&w, with(&w, opts), func, TERN_E_LIFETIME,
                 "tensor (3) is used after its scope has ended; tern_keep gives a copy that lasts");
    tern_module_free(owner);
    close_world(&w);
}

/* ---- memory ---- */

/* The mean loss over 2 x 3 positions with 16 classes in `dtype`, after a softmax along each dimension. */
static tern_tensor *loss_in(world *w, tern_tensor *x, tern_dtype dtype)
{
    tern_scope *s = w->scope;
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.weight = tern_full(s, dtype, 1, (int64_t[]){16}, 0.5);
    opts.label_smoothing = 0.1;
    tern_tensor *y = tern_cast(s, x, dtype);
    for (int d = 0; d < 3; d++) y = tern_add(s, tern_softmax(s, y, d), tern_log_softmax(s, y, d));
    tern_tensor *label = tern_tensor_from(s, NULL, TERN_U8, 2, (int64_t[]){2, 3});
    tern_tensor *entropy = tern_cross_entropy(s, y, label, &opts);
    opts.label_smoothing = 0;
    opts.reduction = TERN_LOSS_NONE;
    tern_tensor *each = tern_nll_loss(s, y, label, &opts);
    return tern_cast(s, tern_add(s, entropy, tern_sum(s, each)), TERN_F32);
}

static int run_step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *weight = tern_state_find(net, "weight"); /* 96 */
    tern_tensor *x = tern_reshape(s, weight, 3, (int64_t[]){2, 16, 3});
    tern_tensor *loss = tern_add(s, loss_in(w, x, TERN_F32), loss_in(w, x, TERN_BF16));
    return backward_and_end(w, loss);
}

static tern_module *make(world *w)
{
    return named_batch_norm(w, 96);
}

static whole_step whole = {make, run_step, 30};

static void out_of_memory_in_constructors(void **state)
{
    (void)state;
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    for (int at = 1;; at++) {
        tern_error err = {0};
        count = (counter){.fail_from = at};
        tern_module *layer = at % 2 ? tern_softmax_new(1, &err) : tern_log_softmax_new(1, &err);
        bool reached = count.calls >= at;
        assert_int_equal(err.code, reached ? TERN_E_MEMORY : TERN_OK);
        tern_module_free(layer);
        if (!reached) break;
    }
    tern__allocator_replace(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_that_do_not_fit),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(weights_that_do_not_fit),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(out_of_memory_in_constructors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
