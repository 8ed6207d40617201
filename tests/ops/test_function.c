/* test_function.c - custom ops: values and gradients compared with tern's own ops, use within modules,
 * errors, and the gradients of inputs. */
#include "autograd/autograd.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <tern/amp.h>
#include <tern/data_parallel.h>
#include <tern/function.h>

#include <math.h>
#include <string.h>

/* ---- y = a x^3, elementwise ---- */

static tern_tensor *cube_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                 tern_error *err)
{
    double a = *(double *)tern_function_attr(call);
    tern_tensor *in = tern_contiguous(s, x[0]);
    if (!in || tern_tensor_dtype(in) != TERN_F64) {
        tern_error_set(err, "cube", TERN_E_DTYPE, "cube: expected f64");
        return NULL;
    }
    tern_tensor *y = tern_tensor_from(s, NULL, TERN_F64, tern_tensor_ndim(in), tern_tensor_shape(in));
    const double *from = tern_tensor_data(in);
    double *to = tern_tensor_data(y);
    for (int64_t i = 0; to && i < tern_tensor_count(in); i++) to[i] = a * from[i] * from[i] * from[i];
    tern_function_save(call, 0, in);
    return y;
}

static int cube_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                         tern_error *err)
{
    (void)err;
    tern_tensor *x = tern_function_saved(call, 0), *three = tern_full(s, TERN_F64, 0, NULL, 3);
    tern_tensor *a = tern_tensor_from(s, tern_function_attr(call), TERN_F64, 0, NULL);
    dx[0] = tern_mul(s, tern_mul(s, tern_mul(s, a, three), tern_mul(s, x, x)), dy);
    return TERN_OK;
}

static const tern_function cube = {.name = "cube", .forward = cube_forward, .backward = cube_backward};

static tern_tensor *own_cube(tern_scope *s, tern_tensor *x, double a)
{
    return tern_function_apply(s, &cube, 1, &x, &a, sizeof(a));
}

static tern_tensor *ops_cube(tern_scope *s, tern_tensor *x, double a)
{
    return tern_mul(s, tern_full(s, TERN_F64, 0, NULL, a), tern_mul(s, x, tern_mul(s, x, x)));
}

/* ---- y = x w^T; its gradients are products of saved tensors ---- */

static tern_tensor *product_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                    tern_error *err)
{
    (void)err;
    for (int i = 0; i < 2; i++) tern_function_save(call, i, x[i]);
    return tern_linear(s, x[0], x[1], NULL);
}

static int product_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                            tern_error *err)
{
    (void)err;
    tern_tensor *x = tern_function_saved(call, 0), *w = tern_function_saved(call, 1);
    if (tern_function_wants(call, 0)) dx[0] = tern_matmul(s, dy, w);
    if (tern_function_wants(call, 1)) dx[1] = tern_matmul(s, tern_transpose(s, dy, 0, 1), x);
    return TERN_OK;
}

static const tern_function product = {
    .name = "product", .forward = product_forward, .backward = product_backward};

/* A layer without bias that computes its product by the custom op or by tern_linear. */
typedef struct layer {
    tern_module base;
    tern_tensor *weight;
    bool own;
} layer;

static tern_tensor *layer_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    layer *self = (layer *)module;
    tern_tensor *const in[] = {x, self->weight};
    return self->own ? tern_function_apply(s, &product, 2, in, NULL, 0)
                     : tern_linear(s, x, self->weight, NULL);
}

enum { ROWS = 6, WIDTH = 5 };

static void open_layer(layer *l, bool own, world *w)
{
    float values[WIDTH * WIDTH];
    *l = (layer){.own = own};
    tern_module_init(&l->base, "layer", layer_forward, &w->err);
    l->weight = tern_parameter_add(&l->base, "weight", TERN_F32, 2, (int64_t[]){WIDTH, WIDTH}, &w->err);
    for (int i = 0; i < WIDTH * WIDTH; i++) values[i] = sinf((float)i);
    tern_tensor_write(l->weight, values, sizeof(values), &w->err);
    assert_ok(w->err);
}

/* ---- helpers ---- */

static tern_tensor *ramp(tern_scope *s, tern_dtype dtype, int64_t rows, int64_t columns)
{
    tern_tensor *x = tern_tensor_from(s, NULL, dtype, 2, (int64_t[]){rows, columns});
    for (int64_t i = 0; x && i < rows * columns; i++) tern__view_set(&x->view, i, cos(0.7 * (double)i) + 0.1);
    return x;
}

static tern_tensor *input(world *w, tern_dtype dtype, int64_t rows, int64_t columns)
{
    tern_tensor *x = ramp(w->scope, dtype, rows, columns);
    assert_int_equal(tern_requires_grad_set(x, true, &w->err), TERN_OK);
    return x;
}

/* Within `tolerance` of the larger one. */
static void expect_near(const tern_tensor *a, const tern_tensor *b, double tolerance)
{
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(tern_tensor_count(a), tern_tensor_count(b));
    for (int64_t i = 0; i < tern_tensor_count(a); i++) {
        double got = tern__view_get(&a->view, i), wanted = tern__view_get(&b->view, i);
        assert_true(fabs(got - wanted) <= tolerance * fmax(1, fabs(wanted)));
    }
}

static void end_well(world *w)
{
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
}

/* ---- values and gradients ---- */

typedef tern_tensor *(*cube_fn)(tern_scope *s, tern_tensor *x, double a);

/* The loss uses x twice, and the function's result twice. */
static tern_tensor *loss_of(tern_scope *s, tern_tensor *x, cube_fn fn)
{
    tern_tensor *y = fn(s, x, 0.5), *z = tern_mul(s, y, tern_add(s, y, x));
    return tern_sum(s, fn(s, tern_transpose(s, z, 0, 1), -2));
}

static void as_the_same_ops(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F64, 7, 3), *same = input(&w, TERN_F64, 7, 3);
    tern_tensor *loss = loss_of(w.scope, x, own_cube), *other = loss_of(w.scope, same, ops_cube);
    expect_near(loss, other, 1e-14);
    tern_backward(w.scope, loss);
    tern_backward(w.scope, other);
    expect_near(tern_grad_get(x), tern_grad_get(same), 1e-13);
    end_well(&w);
    close_world(&w);
}

static double slope(world *w, int64_t at)
{
    const double h = 1e-6;
    double loss[2];
    for (int k = 0; k < 2; k++) {
        tern_tensor *x = ramp(w->scope, TERN_F64, 4, 5);
        tern__view_set(&x->view, at, tern__view_get(&x->view, at) + (k ? h : -h));
        loss[k] = tern_item(loss_of(w->scope, x, own_cube));
    }
    return (loss[1] - loss[0]) / (2 * h);
}

static void against_finite_differences(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F64, 4, 5);
    tern_backward(w.scope, loss_of(w.scope, x, own_cube));
    const tern_tensor *dx = tern_grad_get(x);
    double steepest = 0;
    for (int64_t i = 0; i < tern_tensor_count(dx); i++) {
        double got = tern__view_get(&dx->view, i), wanted = slope(&w, i);
        assert_true(fabs(got - wanted) < 1e-7 * fmax(1, fabs(wanted)));
        steepest = fmax(steepest, fabs(wanted));
    }
    assert_true(steepest > 0.1);
    end_well(&w);
    close_world(&w);
}

/* ---- in modules ---- */

typedef tern_tensor *(*call_fn)(tern_module *module, tern_scope *scope, tern_tensor *x);

static tern_tensor *step(world *w, layer *l, call_fn call, tern_dtype region, tern_tensor **dx)
{
    tern_tensor *x = input(w, TERN_F32, ROWS, WIDTH);
    tern_autocast_set(w->scope, region);
    tern_tensor *y = call(&l->base, w->scope, x);
    tern_autocast_set(w->scope, TERN_F32);
    y = tern_cast(w->scope, y, TERN_F32);
    assert_int_equal(tern_backward(w->scope, tern_sum(w->scope, tern_mul(w->scope, y, y))), TERN_OK);
    *dx = tern_grad_get(x);
    return tern_grad_get(l->weight);
}

static void expect_same_step(call_fn call, tern_dtype region, double tolerance)
{
    world w = open_world();
    layer own, ops;
    tern_tensor *dx[2];
    open_layer(&own, true, &w);
    open_layer(&ops, false, &w);
    const tern_tensor *dw = step(&w, &own, call, region, &dx[0]);
    expect_near(dw, step(&w, &ops, tern_forward, region, &dx[1]), tolerance);
    expect_near(dx[0], dx[1], tolerance);
    end_well(&w);
    tern_module_release(&own.base);
    tern_module_release(&ops.base);
    close_world(&w);
}

static void in_a_module(void **state)
{
    (void)state;
    expect_same_step(tern_forward, TERN_F32, 1e-6);
}

static void computed_again(void **state)
{
    (void)state;
    expect_same_step(tern_checkpoint, TERN_F32, 1e-6);
}

/* Its backward also multiplies in bf16: equal within rounding. */
static void in_an_autocast_region(void **state)
{
    (void)state;
    expect_same_step(tern_forward, TERN_BF16, 0.02);
    expect_same_step(tern_checkpoint, TERN_BF16, 0.02);
}

static tern_data_parallel *replicas;

static tern_tensor *call_replicas(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return tern_data_parallel_forward(replicas, s, x);
}

static void in_replicas(void **state)
{
    (void)state;
    world w = open_world();
    layer own, ops;
    tern_tensor *dx[2];
    tern_device *devices[] = {tern_device_open("cpu:0", &w.err), tern_device_open("cpu:0", &w.err)};
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.devices = devices;
    opts.device_count = 2;
    open_layer(&own, true, &w);
    open_layer(&ops, false, &w);
    replicas = tern_data_parallel_new(&own.base, &opts, &w.err);
    assert_ok(w.err);
    const tern_tensor *dw = step(&w, &own, call_replicas, TERN_F32, &dx[0]);
    expect_near(dw, step(&w, &ops, tern_forward, TERN_F32, &dx[1]), 1e-6);
    expect_near(dx[0], dx[1], 1e-6);
    end_well(&w);
    tern_data_parallel_free(replicas);
    tern_module_release(&own.base);
    tern_module_release(&ops.base);
    for (int i = 0; i < 2; i++) tern_device_close(devices[i]);
    close_world(&w);
}

/* ---- valid and invalid gradients ---- */

/* The attribute chooses dx. */
typedef enum answer { NOTHING, DY, SAVED, A_VIEW, HALF, WIDER, FLAT, STALE, SILENT, LOUD, AGAIN } answer;

static tern_tensor *same_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                 tern_error *err)
{
    (void)s, (void)err;
    tern_function_save(call, 0, x[0]);
    return x[0];
}

static int same_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                         tern_error *err)
{
    static tern_tensor *inner;
    switch (*(answer *)tern_function_attr(call)) {
    case NOTHING: return TERN_OK;
    case DY: dx[0] = dy; return TERN_OK;
    case SAVED: dx[0] = tern_function_saved(call, 0); return TERN_OK;
    case A_VIEW: dx[0] = tern_transpose(s, tern_contiguous(s, tern_transpose(s, dy, 0, 1)), 0, 1); break;
    case HALF: dx[0] = tern_cast(s, dy, TERN_F16); break;
    case WIDER: dx[0] = tern_cast(s, dy, TERN_F64); break;
    case FLAT: dx[0] = tern_flatten(s, dy, 0); break;
    case STALE: dx[0] = inner; break;
    case SILENT: return TERN_E_IO;
    case LOUD: return tern_error_set(err, "same", TERN_E_IO, "the disk is full");
    case AGAIN: return tern_backward(s, tern_sum(s, dy));
    }
    inner = dx[0];
    return TERN_OK;
}

static const tern_function same = {.name = "same", .forward = same_forward, .backward = same_backward};

static tern_tensor *own_same(tern_scope *s, tern_tensor *x, answer what)
{
    return tern_function_apply(s, &same, 1, &x, &what, sizeof(what));
}

/* The loss is the sum of the squares of same(x), so dy is 2 x; with `other`, x gets another 2 x. */
static tern_tensor *grad_by(world *w, answer what, bool other)
{
    tern_tensor *x = input(w, TERN_F32, 3, 4), *y = own_same(w->scope, x, what);
    assert_true(y != x);
    tern_tensor *loss = tern_sum(w->scope, tern_mul(w->scope, y, y));
    if (other) loss = tern_add(w->scope, loss, tern_sum(w->scope, tern_mul(w->scope, x, x)));
    assert_int_equal(tern_backward(w->scope, loss), TERN_OK);
    return tern_grad_get(x);
}

static void expect_grads(answer what, double times, double tolerance)
{
    world w = open_world();
    for (int other = 0; other < 2; other++) {
        const tern_tensor *x = ramp(w.scope, TERN_F32, 3, 4), *dx = grad_by(&w, what, other);
        for (int64_t i = 0; i < 12; i++) {
            double wanted = (times + 2 * other) * tern__view_get(&x->view, i);
            assert_true(fabs(tern__view_get(&dx->view, i) - wanted) <= tolerance * fmax(1, fabs(wanted)));
        }
        end_well(&w);
    }
    close_world(&w);
}

static void gradients_of_all_kinds(void **state)
{
    (void)state;
    expect_grads(NOTHING, 0, 0);
    expect_grads(DY, 2, 1e-7);
    expect_grads(SAVED, 1, 1e-7);
    expect_grads(A_VIEW, 2, 1e-7);
    expect_grads(HALF, 2, 1e-3);
    expect_grads(WIDER, 2, 1e-7);
}

/* If the function returns no gradient for a parameter, its gradient is zeros, which a ddp reduces like any
 * other. */
static void a_parameter_gets_zeros(void **state)
{
    (void)state;
    world w = open_world();
    layer l;
    open_layer(&l, true, &w);
    tern_tensor *y = own_same(w.scope, l.weight, NOTHING);
    assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, y)), TERN_OK);
    expect_near(tern_grad_get(l.weight), tern_full(w.scope, TERN_F32, 2, (int64_t[]){WIDTH, WIDTH}, 0), 0);
    y = own_same(w.scope, l.weight, DY);
    assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, y)), TERN_OK);
    expect_near(tern_grad_get(l.weight), tern_full(w.scope, TERN_F32, 2, (int64_t[]){WIDTH, WIDTH}, 1), 0);
    end_well(&w);
    tern_module_release(&l.base);
    close_world(&w);
}

/* A function between an input and a loss sees the gradient pass. */
static int doubled_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                            tern_error *err)
{
    (void)err;
    *(double *)tern_function_attr(call) += 1;
    dx[0] = tern_add(s, dy, dy);
    return TERN_OK;
}

static void gradients_are_seen_on_their_way(void **state)
{
    static const tern_function doubled = {
        .name = "doubled", .forward = same_forward, .backward = doubled_backward};
    (void)state;
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F64, 2, 3), *y = tern_function_apply(w.scope, &doubled, 1, &x, NULL, 8);
    tern_backward(w.scope, tern_sum(w.scope, tern_relu(w.scope, y)));
    const tern_tensor *dx = tern_grad_get(x);
    for (int64_t i = 0; i < 6; i++)
        assert_true(tern__view_get(&dx->view, i) == (tern__view_get(&x->view, i) > 0 ? 2 : 0));
    end_well(&w);
    close_world(&w);
}

/* The gradient of the first input is the second input, whatever dy is. */
static tern_tensor *other_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                  tern_error *err)
{
    (void)s, (void)err;
    tern_function_save(call, 0, x[1]);
    return x[0];
}

static int other_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                          tern_error *err)
{
    (void)s, (void)dy, (void)err;
    dx[0] = tern_function_saved(call, 0);
    return TERN_OK;
}

static const tern_function other_dx = {
    .name = "other_dx", .forward = other_forward, .backward = other_backward};

/* ---- gradients off, integers, and errors ---- */

static void nothing_is_recorded_without_gradients(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F32, 3, 4), *index = zeros1(&w, TERN_I64, 3);
    tern_grad_enabled_set(w.scope, false);
    assert_false(tern_requires_grad_get(own_same(w.scope, x, DY)));
    tern_grad_enabled_set(w.scope, true);
    assert_true(tern_requires_grad_get(own_same(w.scope, x, DY)));
    assert_false(tern_requires_grad_get(own_same(w.scope, tern_detach(w.scope, x), DY)));
    assert_int_equal(tern_tensor_dtype(own_same(w.scope, index, DY)), TERN_I64);
    end_well(&w);
    close_world(&w);
}

static void refused(answer what, const char *func, int code, const char *text)
{
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F32, 3, 4), *y = own_same(w.scope, x, what);
    tern_tensor *loss = tern_sum(w.scope, tern_mul(w.scope, y, y));
    assert_int_equal(tern_backward(w.scope, loss), code);
    expect_error(&w, tern_grad_get(x), func, code, text);
    assert_non_null(grad_by(&w, DY, false)); /* the next step succeeds */
    end_well(&w);
    close_world(&w);
}

static void wrong_gradients_are_refused(void **state)
{
    (void)state;
    refused(FLAT, "tern_function_apply", TERN_E_SHAPE,
            "same: input 0 is (3, 4) of f32, but its gradient (12) of f32");
    refused(SILENT, "tern_function_apply", TERN_E_INVALID,
            "same: its backward returned an error without setting *err");
    refused(LOUD, "same", TERN_E_IO, "the disk is full");
    refused(AGAIN, "tern_backward", TERN_E_STATE, "it was called inside a function's backward");
    world w = open_world();
    grad_by(&w, A_VIEW, false); /* its tensors are freed when it returns */
    tern_tensor *y = own_same(w.scope, input(&w, TERN_F32, 3, 4), STALE);
    assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, y)), TERN_E_LIFETIME);
    assert_int_equal(tern_scope_end(w.scope, NULL), TERN_E_LIFETIME);
    close_world(&w);
}

static tern_tensor *far_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                tern_error *err)
{
    (void)s, (void)err;
    tern_function_save(call, TERN_FUNCTION_SAVES, x[0]);
    return x[0];
}

static tern_tensor *empty_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                  tern_error *err)
{
    (void)call, (void)s, (void)x, (void)err;
    return NULL;
}

static void a_forward_that_fails(void **state)
{
    static const tern_function empty = {.name = "empty", .forward = empty_forward, .backward = same_backward};
    (void)state;
    world w = open_world();
    tern_tensor *x = ramp(w.scope, TERN_F32, 3, 4);
    expect_error(&w, tern_function_apply(w.scope, &empty, 1, &x, NULL, 0), "tern_function_apply",
                 TERN_E_INVALID, "empty: its forward returned an error without setting *err");
    x = ramp(w.scope, TERN_F32, 3, 4);
    expect_error(&w, own_cube(w.scope, x, 1), "cube", TERN_E_DTYPE, "cube: expected f64");
    x = ramp(w.scope, TERN_F32, 3, 4);
    tern_tensor *const missing[] = {x, NULL};
    expect_error(&w, tern_function_apply(w.scope, &empty, 2, missing, NULL, 0), "tern_function_apply",
                 TERN_E_INVALID, "function_apply: input 1 is NULL, and no earlier op has failed");
    const tern_function far = {.name = "far", .forward = far_forward, .backward = same_backward};
    x = ramp(w.scope, TERN_F32, 3, 4);
    expect_error(&w, tern_function_apply(w.scope, &far, 1, &x, NULL, 0), "tern_function_save", TERN_E_RANGE,
                 "far: slot 6 is not in [0, 6)");
    const tern_function half = {.name = "half", .forward = same_forward, .backward = NULL};
    x = ramp(w.scope, TERN_F32, 3, 4);
    expect_error(&w, tern_function_apply(w.scope, &half, 1, &x, NULL, 0), "tern_function_apply",
                 TERN_E_INVALID,
                 "function_apply: expected a function with forward and backward, and its inputs");
    close_world(&w);
}

/* ---- inputs ---- */

static void an_inputs_gradients_add_up_until_the_step_ends(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *x = input(&w, TERN_F64, 2, 3);
    assert_null(tern_grad_get(x));
    for (int i = 0; i < 2; i++) tern_backward(w.scope, tern_sum(w.scope, tern_mul(w.scope, x, x)));
    const tern_tensor *dx = tern_grad_get(x);
    for (int64_t i = 0; i < 6; i++)
        assert_true(tern__view_get(&dx->view, i) == 4 * tern__view_get(&x->view, i));
    assert_int_equal(tern_requires_grad_set(x, false, &w.err), TERN_OK);
    assert_null(tern_mul(w.scope, x, x)->node);
    end_well(&w);
    assert_null(tern_grad_get(x));
    close_world(&w);
}

/* A program may overwrite it; this changes neither z, which gets the same gradient, nor the initial 1 of
 * later losses. */
static void an_inputs_gradient_has_memory_of_its_own(void **state)
{
    (void)state;
    world w = open_world();
    for (int step = 0; step < 2; step++) {
        tern_tensor *x = input(&w, TERN_F32, 2, 3), *z = input(&w, TERN_F32, 2, 3);
        tern_tensor *one = tern_full(w.scope, TERN_F32, 0, NULL, 5), *saved = own_same(w.scope, x, SAVED);
        tern_requires_grad_set(one, true, &w.err);
        tern_backward(w.scope, tern_sum(w.scope, tern_add(w.scope, tern_add(w.scope, saved, x), z)));
        tern_backward(w.scope, own_same(w.scope, one, DY));
        assert_true(tern_item(tern_grad_get(one)) == 1 && tern__view_get(&tern_grad_get(z)->view, 0) == 1);
        memset(tern_tensor_data(tern_grad_get(x)), 0, 6 * sizeof(float));
        memset(tern_tensor_data(tern_grad_get(one)), 0, sizeof(float));
        assert_true(tern__view_get(&x->view, 0) == tern__view_get(&ramp(w.scope, TERN_F32, 2, 3)->view, 0));
        assert_true(tern__view_get(&tern_grad_get(z)->view, 0) == 1);
        tern_tensor *wide = tern_full(w.scope, TERN_F64, 0, NULL, 2);
        tern_requires_grad_set(wide, true, &w.err);
        tern_backward(w.scope, own_same(w.scope, wide, DY)); /* a loss of another dtype */
        assert_true(tern_item(tern_grad_get(wide)) == 1);
        end_well(&w);
    }
    close_world(&w);
}

/* dx may be in the program's memory, which only the program writes. */
static void wrapped_memory_is_read_only(void **state)
{
    (void)state;
    world w = open_world();
    float values[] = {10, 11, 12, 13};
    tern_tensor *wrapped = tern_tensor_wrap(values, TERN_F32, 1, (int64_t[]){4}, NULL, NULL, &w.err);
    tern_tensor *x = tern_full(w.scope, TERN_F32, 1, (int64_t[]){4}, 3);
    tern_requires_grad_set(x, true, &w.err);
    tern_tensor *y = tern_function_apply(w.scope, &other_dx, 2,
                                         (tern_tensor *[]){tern_relu(w.scope, x), wrapped}, NULL, 0);
    y = tern_sum(w.scope, tern_add(w.scope, y, y));
    tern_tensor_free(wrapped);
    assert_int_equal(tern_backward(w.scope, y), TERN_OK);
    assert_true(tern__view_get(&tern_grad_get(x)->view, 3) == 13);
    end_well(&w);
    assert_true(values[0] == 10 && values[3] == 13);
    close_world(&w);
}

/* ---- leftovers of a module ---- */

typedef struct leaky {
    tern_module base;
    tern_tensor *inner;
} leaky;

static tern_tensor *leaky_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    leaky *self = (leaky *)module;
    self->inner = tern_add(s, x, x);
    tern_tensor *wanted = tern_detach(s, x);
    tern_requires_grad_set(wanted, true, NULL);
    return tern_mul(s, self->inner, wanted);
}

static leaky inside = {.base = {.forward = NULL}};

static tern_tensor *saving_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                   tern_error *err)
{
    (void)err;
    tern_tensor *y = tern_forward(&inside.base, s, x[0]);
    tern_function_save(call, 0, inside.inner);
    return y;
}

static void inner_results_of_modules_are_not_saved(void **state)
{
    static const tern_function saving = {
        .name = "saving", .forward = saving_forward, .backward = same_backward};
    (void)state;
    world w = open_world();
    tern_module_init(&inside.base, "leaky", leaky_forward, &w.err);
    tern_tensor *x = input(&w, TERN_F32, 2, 2);
    expect_error(&w, tern_function_apply(w.scope, &saving, 1, &x, NULL, 0), "tern_function_save",
                 TERN_E_LIFETIME,
                 "tensor (2, 2) is an inner result of a module that has returned; return it or tern_keep it");
    tern_module_release(&inside.base);
    close_world(&w);
}

/* ---- memory ---- */

static tern_module *make_leaky(world *w)
{
    tern_module *holder = tern_sequential_new(&w->err);
    tern_module_init(&inside.base, "leaky", leaky_forward, &w->err);
    tern_sequential_add(holder, tern_linear_new(WIDTH, WIDTH, NULL, w->rng, &w->err), &w->err);
    return tern_sequential_add(holder, &inside.base, &w->err), holder;
}

static int run_leaky(world *w, tern_module *net)
{
    tern_tensor *y = tern_forward(net, w->scope, ramp(w->scope, TERN_F32, ROWS, WIDTH));
    tern_backward(w->scope, tern_sum(w->scope, y));
    return tern_scope_end(w->scope, NULL);
}

static void what_only_a_module_knew_is_freed(void **state)
{
    (void)state;
    expect_warm_steps_to_allocate_nothing(make_leaky, run_leaky);
}

static tern_tensor *weight;

static tern_module *make(world *w)
{
    tern_module *net = tern_linear_new(WIDTH, WIDTH, NULL, w->rng, &w->err);
    weight = tern_state_find(net, "weight");
    return net;
}

static int run_step(world *w, tern_module *net)
{
    (void)net;
    tern_tensor *x = ramp(w->scope, TERN_F32, ROWS, WIDTH);
    if (x) tern_requires_grad_set(x, true, NULL);
    tern_tensor *y = tern_function_apply(w->scope, &product, 2, (tern_tensor *[]){x, weight}, NULL, 0);
    y = own_same(w->scope, y, DY);
    if (!tern_backward(w->scope, tern_sum(w->scope, tern_mul(w->scope, y, y)))) tern_grad_get(x);
    return tern_scope_end(w->scope, NULL);
}

static whole_step whole = {make, run_step, 10};

/* ---- attention in blocks of queries: releases each block's scores, and computes them again ---- */

enum { QUERIES = 64, KEYS = 1024, FEATURES = 4, BLOCKS_MAX = 8 };

static tern_tensor *block_weights(tern_scope *s, tern_tensor *q, tern_tensor *k, int64_t block)
{
    q = tern_slice(s, q, 0, block * QUERIES, (block + 1) * QUERIES, 1);
    return tern_softmax(s, tern_matmul(s, q, tern_transpose(s, k, 0, 1)), 1);
}

static tern_tensor *blocked_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
                                    tern_error *err)
{
    (void)err;
    int count = (int)(tern_tensor_shape(x[0])[0] / QUERIES);
    tern_tensor *part[BLOCKS_MAX];
    for (int i = 0; i < 3; i++) tern_function_save(call, i, x[i]);
    for (int i = 0; i < count; i++) {
        int64_t mark = tern_scope_mark(s);
        tern_tensor *p = block_weights(s, x[0], x[1], i);
        part[i] = tern_matmul(s, p, x[2]);
        if (i == 0) tern_function_save(call, 3, tern_amax(s, p, 0, NULL, false)); /* saved, then released */
        tern_scope_release(s, mark, 1, &part[i]);
    }
    return tern_cat(s, count, part, 0);
}

static int blocked_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
                            tern_error *err)
{
    (void)err;
    tern_tensor *q = tern_function_saved(call, 0), *k = tern_function_saved(call, 1);
    tern_tensor *v = tern_function_saved(call, 2), *part[BLOCKS_MAX];
    int count = (int)(tern_tensor_shape(q)[0] / QUERIES);
    for (int i = 0; i < count; i++) {
        int64_t mark = tern_scope_mark(s);
        tern_tensor *p = block_weights(s, q, k, i), *turned = tern_transpose(s, p, 0, 1);
        tern_tensor *dz = tern_slice(s, dy, 0, i * QUERIES, (i + 1) * QUERIES, 1);
        tern_tensor *dv = tern_matmul(s, turned, dz), *dp = tern_matmul(s, dz, tern_transpose(s, v, 0, 1));
        tern_tensor *mean = tern_sum_dims(s, tern_mul(s, p, dp), 1, (int[]){1}, true);
        tern_tensor *ds = tern_mul(s, p, tern_sub(s, dp, mean));
        part[i] = tern_matmul(s, ds, k);
        tern_tensor *dk = tern_matmul(s, tern_transpose(s, ds, 0, 1),
                                      tern_slice(s, q, 0, i * QUERIES, (i + 1) * QUERIES, 1));
        dx[1] = i ? tern_add(s, dx[1], dk) : dk;
        dx[2] = i ? tern_add(s, dx[2], dv) : dv;
        tern_scope_release(s, mark, 3, (tern_tensor *[]){part[i], dx[1], dx[2]});
    }
    dx[0] = tern_cat(s, count, part, 0);
    return tern_item(tern_function_saved(call, 3)) <= 1 ? TERN_OK : TERN_E_INVALID;
}

static const tern_function blocked = {
    .name = "blocked", .forward = blocked_forward, .backward = blocked_backward};

static tern_tensor *blocked_attention(tern_scope *s, tern_tensor *const *x)
{
    return tern_function_apply(s, &blocked, 3, x, NULL, 0);
}

static tern_tensor *whole_attention(tern_scope *s, tern_tensor *const *x)
{
    return tern_matmul(s, tern_softmax(s, tern_matmul(s, x[0], tern_transpose(s, x[1], 0, 1)), 1), x[2]);
}

typedef tern_tensor *(*attention_fn)(tern_scope *s, tern_tensor *const *x);

/* Returns the device's bytes after a step of attention; the gradients of q, k and v are in dx. */
static size_t attend(world *w, attention_fn attention, int blocks, tern_tensor **dx)
{
    tern_tensor *x[3];
    for (int i = 0; i < 3; i++) x[i] = input(w, TERN_F64, i ? KEYS : blocks * QUERIES, FEATURES);
    tern_tensor *y = attention(w->scope, x);
    y = tern_mul(w->scope, y, tern_tanh(w->scope, y));
    assert_int_equal(tern_backward(w->scope, tern_sum(w->scope, y)), TERN_OK);
    for (int i = 0; i < 3; i++) dx[i] = tern_grad_get(x[i]);
    return tern__device_bytes(w->device);
}

static size_t bytes_of(attention_fn attention, int blocks)
{
    tern_tensor *dx[3];
    world w = open_world();
    size_t bytes = attend(&w, attention, blocks, dx);
    end_well(&w);
    close_world(&w);
    return bytes;
}

static void a_loop_inside_releases_its_blocks(void **state)
{
    (void)state;
    const size_t block = sizeof(double[QUERIES][KEYS]);
    tern_tensor *dx[3], *whole_dx[3];
    world w = open_world();
    attend(&w, blocked_attention, BLOCKS_MAX, dx);
    attend(&w, whole_attention, BLOCKS_MAX, whole_dx);
    for (int i = 0; i < 3; i++) expect_near(dx[i], whole_dx[i], 1e-12);
    end_well(&w);
    close_world(&w);
    assert_true(bytes_of(blocked_attention, BLOCKS_MAX) < bytes_of(blocked_attention, 2) + block);
    assert_true(bytes_of(whole_attention, BLOCKS_MAX) > bytes_of(whole_attention, 2) + 12 * block);
}

static int run_blocked(world *w, tern_module *net)
{
    (void)net;
    tern_tensor *x = ramp(w->scope, TERN_F64, 2 * QUERIES, FEATURES);
    if (x) tern_requires_grad_set(x, true, NULL);
    return backward_and_end(w, tern_sum(w->scope, blocked_attention(w->scope, (tern_tensor *[]){x, x, x})));
}

static whole_step blocked_step = {make, run_blocked, 20};

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_same_ops),
        cmocka_unit_test(against_finite_differences),
        cmocka_unit_test(in_a_module),
        cmocka_unit_test(computed_again),
        cmocka_unit_test(in_an_autocast_region),
        cmocka_unit_test(in_replicas),
        cmocka_unit_test(gradients_of_all_kinds),
        cmocka_unit_test(a_parameter_gets_zeros),
        cmocka_unit_test(gradients_are_seen_on_their_way),
        cmocka_unit_test(nothing_is_recorded_without_gradients),
        cmocka_unit_test(wrong_gradients_are_refused),
        cmocka_unit_test(a_forward_that_fails),
        cmocka_unit_test(an_inputs_gradients_add_up_until_the_step_ends),
        cmocka_unit_test(an_inputs_gradient_has_memory_of_its_own),
        cmocka_unit_test(wrapped_memory_is_read_only),
        cmocka_unit_test(inner_results_of_modules_are_not_saved),
        cmocka_unit_test(what_only_a_module_knew_is_freed),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(a_loop_inside_releases_its_blocks),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &blocked_step),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &blocked_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
