/* Autocast regions: which dtypes ops run in, when a parameter is cast, and where its gradients go. What each
 * op does is compared with PyTorch in tests/torch. */
#include "ledger.h"

#include "amp/autocast.h"
#include "nn/nn.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 6, ROWS = 4 };

/* Counts the casts that the device does. */
typedef struct counter {
    tern__kernel_observer base;
    int casts;
} counter;

static void count_casts(tern__kernel_observer *self, const tern__call *call)
{
    if (call->kernel == TERN__COPY && call->in[0]->dtype != call->out[0]->dtype) ((counter *)self)->casts++;
}

/* A linear layer without bias, and a scope to use it in. */
typedef struct fixture {
    counter counter; /* of what the scope's device does */
    tern_device *dev;
    tern_rng *rng;
    tern_module *layer;
    tern_tensor *weight;
    tern_scope *scope;
} fixture;

static int open_fixture(void **state)
{
    static fixture f;
    tern_error err = {0};
    f = (fixture){.counter.base.ran = count_casts, .dev = tern_device_open("cpu", &err)};
    tern_linear_opts opts = tern_linear_defaults();
    opts.bias = false;
    f.rng = tern_rng_new(1, &err);
    f.layer = tern_linear_new(WIDTH, WIDTH, &opts, f.rng, &err);
    f.weight = tern_state_find(f.layer, "weight");
    f.scope = tern_scope_new(f.dev, NULL, &err);
    f.dev->observer = &f.counter.base;
    *state = &f;
    return err.code;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    tern_scope_free(f->scope);
    tern_module_free(f->layer);
    tern_rng_free(f->rng);
    tern_device_close(f->dev);
    return 0;
}

static tern_tensor *draw(fixture *f)
{
    return tern_randn(f->scope, f->rng, 2, (int64_t[]){ROWS, WIDTH});
}

/* In the region's dtype already, so that only weights are cast. */
static tern_tensor *draw_half(fixture *f)
{
    tern_tensor *x = tern_cast(f->scope, draw(f), TERN_BF16);
    f->counter.casts = 0;
    return x;
}

static void end(fixture *f)
{
    tern_error err = {0};
    tern_scope_end(f->scope, &err);
    assert_ok(err);
}

static void read_grad(const fixture *f, float out[WIDTH * WIDTH])
{
    tern_error err = {0};
    const tern_tensor *grad = tern_grad_get(f->weight);
    assert_non_null(grad);
    assert_int_equal(tern_tensor_dtype(grad), TERN_F32);
    tern_tensor_read(grad, out, WIDTH * WIDTH * sizeof(*out), &err);
    assert_ok(err);
}

/* ---- regions ---- */

static void regions_nest_and_return_what_was(void **state)
{
    fixture *f = *state;
    const tern_dtype sets[] = {TERN_BF16, TERN_F16, TERN_F16, TERN_BF16, TERN_F32, TERN_F32};
    tern_dtype was = TERN_F32;
    for (int i = 0; i < (int)TERN__COUNT(sets); i++) {
        assert_int_equal(tern_autocast_set(f->scope, sets[i]), was);
        was = sets[i];
        assert_int_equal(tern_tensor_dtype(tern_forward(f->layer, f->scope, draw(f))), was);
    }
    end(f);
}

static void a_region_outlives_its_step(void **state)
{
    fixture *f = *state;
    tern_autocast_set(f->scope, TERN_BF16);
    end(f);
    assert_int_equal(tern_tensor_dtype(tern_forward(f->layer, f->scope, draw(f))), TERN_BF16);
    end(f);
}

/* tern_scope_new has failed, and whoever asked looks at its error later. */
static void without_a_scope(void **state)
{
    (void)state;
    assert_int_equal(tern_autocast_set(NULL, TERN_BF16), TERN_F32);
    assert_int_equal(tern_autocast_set(NULL, TERN_I32), TERN_F32);
    assert_null(tern_relu(NULL, NULL));
}

static void another_dtype_is_refused(void **state)
{
    fixture *f = *state;
    const tern_dtype wrong[] = {TERN_F64, TERN_I64, TERN_BOOL, (tern_dtype)99};
    tern_autocast_set(f->scope, TERN_BF16);
    for (int i = 0; i < (int)TERN__COUNT(wrong); i++) {
        tern_error err = {0};
        assert_int_equal(tern_autocast_set(f->scope, wrong[i]), TERN_BF16);
        assert_int_equal(tern_scope_end(f->scope, &err), TERN_E_DTYPE);
        assert_string_equal(err.func, "tern_autocast_set");
        assert_non_null(strstr(err.text, tern_dtype_name(wrong[i])));
        assert_int_equal(tern_tensor_dtype(tern_forward(f->layer, f->scope, draw(f))), TERN_BF16);
    }
    end(f);
}

/* As in PyTorch: f64 is nobody's to cast, and does not fit f32 weights. */
static void f64_stays(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = tern_cast(f->scope, draw(f), TERN_F64);
    assert_int_equal(tern_tensor_dtype(tern_matmul(f->scope, x, tern_transpose(f->scope, x, 0, 1))),
                     TERN_F64);
    assert_int_equal(tern_tensor_dtype(tern_mse_loss(f->scope, x, x, TERN_LOSS_MEAN)), TERN_F64);
    assert_null(tern_forward(f->layer, f->scope, x));
    assert_int_equal(tern_scope_end(f->scope, &err), TERN_E_DTYPE);
}

/* A scalar does not widen what has dimensions; among themselves the widest counts, and of bf16 and f16 that
 * is f32. */
static void the_widest_type(void **state)
{
    fixture *f = *state;
    tern_scope *s = f->scope;
    tern_autocast_set(s, TERN_BF16);
    tern_tensor *half = draw_half(f), *other = tern_cast(s, half, TERN_F16);
    tern_tensor *scalar = tern_full(s, TERN_F32, 0, NULL, 2),
                *one = tern_full(s, TERN_F32, 1, (int64_t[]){1}, 2);
    tern_tensor *small = tern_full(s, TERN_BF16, 0, NULL, 2), *wide = tern_full(s, TERN_F64, 0, NULL, 2);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, half, scalar)), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, scalar, half)), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, half, wide)), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, half, one)), TERN_F32);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, small, scalar)), TERN_F32);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, small, wide)), TERN_F64);
    assert_int_equal(tern_tensor_dtype(tern_add(s, half, other)), TERN_F32);
    tern_tensor *condition = draw(f);
    assert_int_equal(tern_tensor_dtype(tern_where(s, condition, half, half)), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_where(s, condition, half, condition)), TERN_F32);
    end(f);
}

/* Integers are no part of this: they fit or not as outside. */
static void integers_stay(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *n = tern_full(f->scope, TERN_I64, 1, (int64_t[]){WIDTH}, 2);
    assert_int_equal(tern_tensor_dtype(tern_add(f->scope, n, n)), TERN_I64);
    assert_null(tern_add(f->scope, n, draw(f)));
    assert_int_equal(tern_scope_end(f->scope, &err), TERN_E_DTYPE);
}

/* Batch norm's parameters and statistics stay f32; a residual of another type is added as in a sum. */
static void batch_norm_and_its_residual(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_module *norm = tern_batch_norm1d_new(WIDTH, NULL, &err);
    assert_ok(err);
    tern_autocast_set(f->scope, TERN_BF16);
    for (int mixed = 0; mixed < 2; mixed++) {
        tern_tensor *x = draw_half(f), *residual = mixed ? draw(f) : draw_half(f);
        tern_tensor *y = tern_batch_norm_act_forward(norm, f->scope, x, residual, true);
        assert_int_equal(tern_tensor_dtype(y), mixed ? TERN_F32 : TERN_BF16);
        assert_int_equal(f->counter.casts, mixed);
        y = tern_batch_norm_act_forward(norm, f->scope, residual, x, true);
        assert_int_equal(tern_tensor_dtype(y), mixed ? TERN_F32 : TERN_BF16);
    }
    end(f);
    tern_module_free(norm);
}

/* ---- casts of parameters ---- */

static void a_parameter_is_cast_once(void **state)
{
    fixture *f = *state;
    for (int step = 0; step < 2; step++) {
        tern_autocast_set(f->scope, TERN_BF16);
        tern_tensor *x = draw_half(f);
        for (int use = 0; use < 3; use++) x = tern_forward(f->layer, f->scope, x); /* through module calls */
        assert_int_equal(f->counter.casts, 1);
        tern_autocast_set(f->scope, TERN_BF16); /* the same region */
        x = tern_forward(f->layer, f->scope, x);
        assert_int_equal(f->counter.casts, 1);
        tern_autocast_set(f->scope, TERN_F16); /* one within: the outer one's casts wait */
        tern_forward(f->layer, f->scope, tern_cast(f->scope, x, TERN_F16));
        assert_int_equal(f->counter.casts, 3); /* x and the weight */
        tern_autocast_set(f->scope, TERN_BF16);
        x = tern_forward(f->layer, f->scope, x);
        assert_int_equal(f->counter.casts, 3);
        tern_autocast_set(f->scope, TERN_F32);
        tern_autocast_set(f->scope, TERN_BF16); /* another region */
        x = tern_forward(f->layer, f->scope, x);
        assert_int_equal(f->counter.casts, 4);
        end(f); /* casts end with the step, too */
    }
}

/* Its memory is nobody else's when the call that made it has returned. */
static void a_cast_outlives_its_module_call(void **state)
{
    fixture *f = *state;
    tern_grad_enabled_set(f->scope, false); /* so that no tape holds it */
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = draw_half(f), *first = tern_forward(f->layer, f->scope, x);
    for (int i = 0; i < 8; i++) tern_full(f->scope, TERN_BF16, 2, (int64_t[]){WIDTH, WIDTH}, 7);
    tern_tensor *second = tern_forward(f->layer, f->scope, x);
    assert_int_equal(f->counter.casts, 1);
    assert_memory_equal(second->view.data, first->view.data, tern__view_bytes(&first->view));
    end(f);
}

/* Also under its other name. */
static void a_shared_parameter_is_cast_once(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_linear_opts opts = tern_linear_defaults();
    opts.bias = false;
    tern_module *both = tern_sequential_new(&err);
    tern_module *first = tern_sequential_add(both, tern_linear_new(WIDTH, WIDTH, &opts, f->rng, &err), &err);
    tern_module *second = tern_sequential_add(both, tern_linear_new(WIDTH, WIDTH, &opts, f->rng, &err), &err);
    tern_parameter_share(second, "weight", tern_state_find(first, "weight"), &err);
    assert_ok(err);
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = draw_half(f);
    x = tern_forward(second, f->scope, tern_forward(first, f->scope, x));
    assert_int_equal(f->counter.casts, 1);
    tern_autocast_set(f->scope, TERN_F32);
    tern_backward(f->scope, tern_sum(f->scope, x));
    assert_non_null(tern_grad_get(tern_state_find(first, "weight")));
    end(f);
    tern_module_free(both);
}

static double first_of(tern_tensor *x)
{
    return tern__view_get(&x->view, 0);
}

static void a_changed_parameter_is_cast_anew(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    float twos[WIDTH * WIDTH];
    for (int i = 0; i < WIDTH * WIDTH; i++) twos[i] = 2;
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *ones = tern_full(f->scope, TERN_BF16, 2, (int64_t[]){ROWS, WIDTH}, 1);
    tern_forward(f->layer, f->scope, ones);
    tern_tensor_write(f->weight, twos, sizeof(twos), &err);
    assert_true(first_of(tern_forward(f->layer, f->scope, ones)) == 2 * WIDTH);
    tern_optim *sgd = tern_sgd_new(f->layer, NULL, &err);
    tern_backward(f->scope, tern_sum(f->scope, tern_forward(f->layer, f->scope, ones)));
    tern_optim_step(sgd, f->scope);
    assert_true(first_of(tern_forward(f->layer, f->scope, ones)) < 2 * WIDTH);
    end(f);
    assert_ok(err);
    tern_optim_free(sgd);
}

/* A cast made while gradients were off has none; one that has its gradient serves without as well. */
static void casts_with_gradients_off_and_on(void **state)
{
    fixture *f = *state;
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = draw_half(f);
    tern_grad_enabled_set(f->scope, false);
    assert_false(tern_requires_grad_get(tern_forward(f->layer, f->scope, x)));
    tern_grad_enabled_set(f->scope, true);
    tern_tensor *y = tern_forward(f->layer, f->scope, x);
    assert_true(tern_requires_grad_get(y));
    assert_int_equal(f->counter.casts, 2);
    tern_grad_enabled_set(f->scope, false);
    assert_false(tern_requires_grad_get(tern_forward(f->layer, f->scope, x)));
    assert_int_equal(f->counter.casts, 2);
    tern_grad_enabled_set(f->scope, true);
    tern_requires_grad_set(f->weight, false, NULL); /* frozen from here on */
    assert_false(tern_requires_grad_get(tern_forward(f->layer, f->scope, x)));
    tern_requires_grad_set(f->weight, true, NULL);
    tern_autocast_set(f->scope, TERN_F32);
    tern_backward(f->scope, tern_sum(f->scope, y));
    assert_non_null(tern_grad_get(f->weight));
    end(f);
}

/* Two losses that share a cast, by two backwards or by one; in the region or outside. */
static void two_losses_through_one_cast(void **state)
{
    fixture *f = *state;
    float each[WIDTH * WIDTH], again[WIDTH * WIDTH], want[WIDTH * WIDTH];
    float values[2][ROWS * WIDTH];
    tern_rng_normal(f->rng, values[0], 2 * ROWS * WIDTH, 0, 1);
    for (int mode = 0; mode < 3; mode++) { /* a region for each loss; one for both; backward inside of it */
        tern_tensor *loss[2];
        tern_zero_grad(f->layer);
        f->counter.casts = 0;
        for (int i = 0; i < 2; i++) {
            tern_autocast_set(f->scope, TERN_BF16);
            tern_tensor *x = tern_tensor_from(f->scope, values[i], TERN_F32, 2, (int64_t[]){ROWS, WIDTH});
            loss[i] = tern_mse_loss(f->scope, tern_forward(f->layer, f->scope, x), x, TERN_LOSS_SUM);
            if (mode == 0) tern_autocast_set(f->scope, TERN_F32);
        }
        if (mode < 2) tern_autocast_set(f->scope, TERN_F32);
        for (int i = 0; i < 2; i++) assert_int_equal(tern_backward(f->scope, loss[i]), TERN_OK);
        tern_autocast_set(f->scope, TERN_F32);
        read_grad(f, mode == 0 ? want : mode == 1 ? each : again);
        end(f);
    }
    assert_memory_equal(each, want, sizeof(want));
    assert_memory_equal(again, want, sizeof(want));
}

/* A second backward through anything else is still refused, and says of what. */
static void what_is_recycled_is_refused(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *loss = tern_sum(f->scope, tern_forward(f->layer, f->scope, draw_half(f)));
    assert_int_equal(tern_backward(f->scope, loss), TERN_OK);
    assert_int_equal(tern_backward(f->scope, loss), TERN_E_STATE);
    assert_int_equal(tern_scope_end(f->scope, &err), TERN_E_STATE);
    assert_non_null(strstr(err.text, "has already gone through this sum"));
}

/* A weight that is nowhere in particular is cast where the op runs. */
static void casts_are_made_where_the_op_runs(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    tern_device *there = tern_device_open("cpu:0", &err);
    assert_ok(err);
    counter other = {.base.ran = count_casts};
    there->observer = &other.base;
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = draw_half(f), *moved = tern_to(f->scope, x, there);
    tern_tensor *y = tern_forward(f->layer, f->scope, moved);
    assert_ptr_equal(tern_tensor_device(y), there);
    assert_int_equal(other.casts, 1);
    assert_int_equal(f->counter.casts, 0);
    assert_ptr_equal(tern_tensor_device(tern_forward(f->layer, f->scope, x)), f->dev);
    tern_forward(f->layer, f->scope, moved);
    assert_int_equal(other.casts, 1);
    assert_int_equal(f->counter.casts, 1);
    end(f);
    tern_device_close(there);
}

/* ---- opt level O1's list ---- */

typedef tern_tensor *(*unary_fn)(tern_scope *scope, tern_tensor *x);
typedef tern_tensor *(*binary_fn)(tern_scope *scope, tern_tensor *a, tern_tensor *b);

static tern_tensor *softmax_of(tern_scope *scope, tern_tensor *x)
{
    return tern_softmax(scope, x, 1);
}

static tern_tensor *log_softmax_of(tern_scope *scope, tern_tensor *x)
{
    return tern_log_softmax(scope, x, 1);
}

static tern_tensor *gelu_of(tern_scope *scope, tern_tensor *x)
{
    return tern_gelu(scope, x, false);
}

static tern_tensor *layer_norm_of(tern_scope *scope, tern_tensor *x)
{
    return tern_layer_norm(scope, x, NULL, NULL, NULL);
}

static tern_tensor *group_norm_of(tern_scope *scope, tern_tensor *x)
{
    return tern_group_norm(scope, x, 2, NULL, NULL, 1e-5);
}

static tern_tensor *square_of(tern_scope *scope, tern_tensor *x)
{
    return tern_pow(scope, x, tern_full(scope, x->view.dtype, 0, NULL, 2));
}

static tern_tensor *l1_of(tern_scope *scope, tern_tensor *x)
{
    return tern_l1_loss(scope, x, x, TERN_LOSS_SUM);
}

static tern_tensor *mse_of(tern_scope *scope, tern_tensor *x)
{
    return tern_mse_loss(scope, x, x, TERN_LOSS_NONE);
}

static tern_tensor *smooth_l1_of(tern_scope *scope, tern_tensor *x)
{
    return tern_smooth_l1_loss(scope, x, x, 1, TERN_LOSS_MEAN);
}

static tern_tensor *logits_of(tern_scope *scope, tern_tensor *x)
{
    return tern_bce_with_logits_loss(scope, x, tern_sigmoid(scope, x), NULL, TERN_LOSS_MEAN);
}

static tern_tensor *cross_entropy_of(tern_scope *scope, tern_tensor *x)
{
    return tern_cross_entropy(scope, x, tern_full(scope, TERN_I64, 1, (int64_t[]){ROWS}, 2), NULL);
}

static tern_tensor *nll_of(tern_scope *scope, tern_tensor *x)
{
    return tern_nll_loss(scope, x, tern_full(scope, TERN_I64, 1, (int64_t[]){ROWS}, 2), NULL);
}

static tern_tensor *cat_of(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern_cat(scope, 2, (tern_tensor *[]){a, b}, 0);
}

static tern_tensor *stack_of(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern_stack(scope, 2, (tern_tensor *[]){a, b}, 0);
}

static void apex_s_list(void **state)
{
    fixture *f = *state;
    static const unary_fn full[] = {softmax_of, log_softmax_of, gelu_of,  layer_norm_of,    group_norm_of,
                                    square_of,  l1_of,          mse_of,   smooth_l1_of,     logits_of,
                                    nll_of,     tern_exp,       tern_log, cross_entropy_of, tern_sum};
    static const unary_fn as_it_is[] = {tern_relu, tern_tanh, tern_sigmoid, tern_silu,
                                        tern_sqrt, tern_neg,  tern_mean,    tern_clone};
    static const binary_fn promoted[] = {tern_add, tern_sub, tern_mul, tern_div, cat_of, stack_of};
    tern_scope *s = f->scope;
    tern__policy_set(s, tern__autocast_policy(TERN__AUTOCAST_APEX, TERN_F16));
    tern_tensor *x = draw(f), *half = tern_cast(s, x, TERN_F16);
    tern_tensor *scalar = tern_full(s, TERN_F32, 0, NULL, 2);
    for (int i = 0; i < (int)TERN__COUNT(full); i++)
        assert_int_equal(tern_tensor_dtype(full[i](s, half)), TERN_F32);
    for (int i = 0; i < (int)TERN__COUNT(as_it_is); i++) {
        assert_int_equal(tern_tensor_dtype(as_it_is[i](s, half)), TERN_F16);
        assert_int_equal(tern_tensor_dtype(as_it_is[i](s, x)), TERN_F32);
    }
    for (int i = 0; i < (int)TERN__COUNT(promoted); i++)
        assert_int_equal(tern_tensor_dtype(promoted[i](s, half, x)), TERN_F32);
    assert_int_equal(tern_tensor_dtype(tern_mul(s, half, scalar)), TERN_F32); /* scalars count */
    assert_int_equal(tern_tensor_dtype(tern_lt(s, half, x)), TERN_BOOL);
    assert_int_equal(tern_tensor_dtype(tern_forward(f->layer, s, x)), TERN_F16);
    assert_int_equal(tern_tensor_dtype(tern_matmul(s, x, f->weight)), TERN_F16);
    end(f);
}

/* A region within goes by the same list, and so does what follows one in which nothing is cast. */
static void regions_within_apex_s(void **state)
{
    fixture *f = *state;
    const tern__policy *apex = tern__autocast_policy(TERN__AUTOCAST_APEX, TERN_F16);
    tern__policy_set(f->scope, apex);
    tern_tensor *x = tern_cast(f->scope, draw(f), TERN_F16);
    tern_dtype was = tern_autocast_set(f->scope, TERN_F32);
    assert_int_equal(was, TERN_F16);
    assert_int_equal(tern_tensor_dtype(tern_exp(f->scope, x)), TERN_F16);
    assert_int_equal(tern_autocast_set(f->scope, TERN_BF16), TERN_F32);
    assert_int_equal(tern_tensor_dtype(tern_exp(f->scope, x)), TERN_F32);
    assert_int_equal(tern_autocast_set(f->scope, was), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_exp(f->scope, x)), TERN_F32);
    assert_ptr_equal(tern__policy_set(f->scope, NULL), apex);
    end(f);
}

/* ---- the note ---- */

static int notes;
static char note[256];

static void collect(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != TERN_LOG_WARN) return;
    notes++;
    snprintf(note, sizeof(note), "%s", text);
}

/* Once a process, so this is the first test. */
static void what_the_machine_lacks_is_said_once(void **state)
{
    fixture *f = *state;
    tern_log_set(collect, NULL);
    for (tern_dtype dtype = TERN_BF16; dtype <= TERN_F16; dtype++) {
        const char *lacks = tern__kernel_lacks(dtype);
        notes = 0;
        for (int i = 0; i < 3; i++) {
            tern_autocast_set(f->scope, dtype);
            tern_autocast_set(f->scope, TERN_F32);
        }
        assert_int_equal(notes, lacks ? 1 : 0);
        if (lacks) assert_non_null(strstr(note, lacks));
        if (lacks) assert_non_null(strstr(note, tern_dtype_name(dtype)));
    }
    tern_log_set(NULL, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_the_machine_lacks_is_said_once),
        TEST(regions_nest_and_return_what_was),
        TEST(a_region_outlives_its_step),
        TEST(without_a_scope),
        TEST(another_dtype_is_refused),
        TEST(f64_stays),
        TEST(the_widest_type),
        TEST(integers_stay),
        TEST(batch_norm_and_its_residual),
        TEST(a_parameter_is_cast_once),
        TEST(a_cast_outlives_its_module_call),
        TEST(a_shared_parameter_is_cast_once),
        TEST(a_changed_parameter_is_cast_anew),
        TEST(casts_with_gradients_off_and_on),
        TEST(two_losses_through_one_cast),
        TEST(what_is_recycled_is_refused),
        TEST(casts_are_made_where_the_op_runs),
        TEST(apex_s_list),
        TEST(regions_within_apex_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
