/* test_winograd_even.c - what Winograd's algorithm makes of infinities, NaN and values of very different
 * sizes, against sums in double by the definition: a result must be infinite or NaN where the definition's
 * is, and a finite one may be off by 1e-5 of the sum of its products' magnitudes, besides the rounding to 16
 * bits (docs/conv.md). */
#include "kernels/conv_definition.h"

#include "kernels/cpu/conv/winograd/conv.h"

#define BOUND  1e-5
#define ROUNDS 24

/* An image, or a volume, of random sizes, padding and dilation. */
static operands make(uint32_t *state, tern_dtype dtype, bool volume)
{
    int ndim = volume ? 5 : 4, near = ndim - 2;
    int64_t x[5] = {1 + below(state, 2), 16 * (1 + below(state, 3))},
            w[5] = {16 * (1 + below(state, 3)), x[1]};
    int64_t y[5] = {x[0], w[0]};
    operands o = {.attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}};
    if (volume) {
        o.attr.dilation[0] = 1 + below(state, 2);
        o.attr.padding[0] = below(state, 3);
        x[2] = 1 + below(state, 3);
        w[2] = 1 + below(state, 1 + (x[2] + 2 * o.attr.padding[0] - 1) / o.attr.dilation[0]);
        w[2] = TERN__MIN(w[2], 3);
        y[2] = x[2] + 2 * o.attr.padding[0] - o.attr.dilation[0] * (w[2] - 1);
    }
    for (int d = near, axis = 1; d < ndim; d++, axis++) {
        int64_t step = below(state, 4) ? 1 : 2, padding = below(state, 2) ? step : below(state, 2 * step + 1);
        o.attr.dilation[axis] = step;
        o.attr.padding[axis] = padding;
        y[d] = 4 + below(state, 9);
        x[d] = y[d] - 2 * (padding - step);
        while (x[d] < 1) {
            x[d]++;
            y[d]++;
        }
        w[d] = 3;
    }
    o.x = filled(state, dtype, TERN__BLOCKED16, ndim, x);
    o.w = filled(state, dtype, TERN__PLAIN, ndim, w);
    o.y = filled(state, dtype, TERN__BLOCKED16, ndim, y);
    return o;
}

/* Computes one of the three kernels. */
static void run(tern_device *device, tern__kernel kernel, operands *o, tern__view *result)
{
    tern_error err = {0};
    tern__call call = {.device = device, .kernel = kernel, .attr = &o->attr, .err = &err};
    operands at = *o;
    *(kernel == TERN__CONV ? &at.y : kernel == TERN__CONV_DATA_GRAD ? &at.x : &at.w) = *result;
    call.in[0] = kernel == TERN__CONV ? &at.x : &at.y;
    call.in[1] = kernel == TERN__CONV_WEIGHT_GRAD ? &at.x : &at.w;
    call.out[0] = result;
    assert_true(tern__winograd_takes(&call, &at.x, &at.w, &at.y));
    int status = kernel == TERN__CONV_WEIGHT_GRAD ? tern__winograd_weight_grad(&call, &at.x, &at.y, &at.w)
                                                  : tern__winograd(&call, &at.x, &at.w, &at.y, NULL);
    assert_int_equal(status, TERN_OK);
}

static void check(tern_device *device, tern__kernel kernel, operands *o)
{
    sums s = define(o, kernel);
    tern__view result = *result_of(o, kernel);
    result.data = tern__alloc(tern__view_bytes(&result), __func__, NULL);
    run(device, kernel, o, &result);
    expect_by_definition(&result, &s, BOUND);
    tern__free(result.data);
    tern__free(s.value);
    tern__free(s.size);
}

static void change_some(uint32_t *state, tern__view *v)
{
    static const double special[] = {INFINITY, -INFINITY, NAN, 1e2, 1e3, 1e4, 6e4, 1e6, 1e15, 1e30, 3e38};
    set_a_few(state, v, special, TERN__COUNT(special));
}

static void scale(uint32_t *state, tern__view *v)
{
    double factor = pow(10, 60 * uniform(state) - 30);
    for (int64_t i = 0; i < tern__view_count(v); i++) tern__view_set(v, i, factor * tern__view_get(v, i));
}

/* Columns on the right become small. */
static void scale_columns(uint32_t *state, tern__view *v)
{
    double factor = pow(10, -12 * uniform(state));
    int64_t width = v->shape[v->ndim - 1], first = below(state, width + 1);
    for (int64_t i = 0; i < tern__view_count(v); i++)
        if (i % width >= first) tern__view_set(v, i, factor * tern__view_get(v, i));
}

static void keep_one(uint32_t *state, tern__view *v)
{
    int64_t one = below(state, tern__view_count(v));
    for (int64_t i = 0; i < tern__view_count(v); i++) tern__view_set(v, i, i == one);
}

/* As after a ReLU, with zeros in whole rows of all channels as well. */
static void zero(uint32_t *state, tern__view *v)
{
    int64_t width = v->shape[v->ndim - 1], height = v->shape[v->ndim - 2], row = below(state, 2 * height);
    for (int64_t i = 0; i < tern__view_count(v); i++)
        if (tern__view_get(v, i) < 0 || i / width % height == row) tern__view_set(v, i, 0);
}

/* Over random shapes and dtypes, for images and volumes, and for each operand of the given kernels. */
static void check_changed(change how, tern__kernel last)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    assert_ok(err);
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (int k = TERN__CONV; k <= (int)last; k++) {
            static const tern_dtype dtypes[] = {TERN_F32, TERN_F32, TERN_BF16, TERN_F16};
            uint32_t state = round * 2654435761u + (uint32_t)k;
            operands o = make(&state, dtypes[round % 4], round / 4 % 2);
            how(&state, operand_of(&o, (tern__kernel)k, below(&state, 2)));
            check(device, (tern__kernel)k, &o);
            release(&o);
        }
    tern_device_close(device);
}

static void special_values(void **state)
{
    (void)state;
    check_changed(change_some, TERN__CONV_WEIGHT_GRAD);
}

static void values_of_one_small_or_large_size(void **state)
{
    (void)state;
    check_changed(scale, TERN__CONV_WEIGHT_GRAD);
}

static void all_zeros_but_one(void **state)
{
    (void)state;
    check_changed(keep_one, TERN__CONV_WEIGHT_GRAD);
}

static void zeros(void **state)
{
    (void)state;
    check_changed(zero, TERN__CONV_DATA_GRAD);
}

static void small_columns_beside_large_ones(void **state)
{
    (void)state;
    check_changed(scale_columns, TERN__CONV_DATA_GRAD);
}

/* Slices depend on the number of threads; which tiles are computed by the definition does not. */
static void any_number_of_threads_gives_the_same_bits(void **unused)
{
    (void)unused;
    tern_error err = {0};
    tern_device *one = tern_device_open("cpu", &err), *more = tern_device_open("cpu", &err);
    tern_device_threads_set(one, 1, &err);
    tern_device_threads_set(more, 3, &err);
    assert_ok(err);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t state = round + 77;
        operands o = make(&state, TERN_F32, round % 2);
        tern__kernel kernel = (tern__kernel)(TERN__CONV + round % 3);
        change_some(&state, operand_of(&o, kernel, below(&state, 2)));
        tern__view a = *result_of(&o, kernel), b = a;
        a.data = tern__alloc(tern__view_bytes(&a), __func__, NULL);
        b.data = tern__alloc(tern__view_bytes(&b), __func__, NULL);
        run(one, kernel, &o, &a);
        run(more, kernel, &o, &b);
        for (int64_t i = 0; i < tern__view_count(&a); i++) {
            double v = tern__view_get(&a, i), w = tern__view_get(&b, i);
            assert_true(v == w || (isnan(v) && isnan(w)));
        }
        tern__free(a.data);
        tern__free(b.data);
        release(&o);
    }
    tern_device_close(one);
    tern_device_close(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_values),
        cmocka_unit_test(values_of_one_small_or_large_size),
        cmocka_unit_test(all_zeros_but_one),
        cmocka_unit_test(zeros),
        cmocka_unit_test(small_columns_beside_large_ones),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
