/* test_winograd_even.c - what Winograd's algorithm makes of infinities, NaN and values of very different
 * sizes, against sums in double by the definition: a result must be infinite or NaN where the definition's
 * is, and a finite one may be off by 1e-5 of the sum of its products' magnitudes, besides the rounding to 16
 * bits (docs/conv.md). */
#include "check.h"

#include "kernels/cpu/conv/winograd/conv.h"

#include <math.h>
#include <string.h>

#define BOUND  1e-5
#define ROUNDS 24

typedef struct operands {
    tern__view x, w, y; /* in a backward y is its gradient, and one of the others is the result */
    tern__conv_attr attr;
} operands;

/* The sum of a result's products, and the sum of their magnitudes. */
typedef struct sums {
    double *value, *size;
} sums;

static double uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) * 0x1p-24;
}

static int64_t below(uint32_t *state, int64_t count)
{
    return (int64_t)(uniform(state) * (double)count);
}

static double normal(uint32_t *state)
{
    double size = sqrt(-2 * log(uniform(state) + 0x1p-25));
    return size * cos(6.283185307179586 * uniform(state));
}

static tern__view filled(uint32_t *state, tern_dtype dtype, tern__layout layout, int ndim,
                         const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    for (int64_t i = 0; i < tern__view_count(&view); i++) tern__view_set(&view, i, normal(state));
    return view;
}

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

static void release(operands *o)
{
    tern__free(o->x.data);
    tern__free(o->w.data);
    tern__free(o->y.data);
}

/* The view's last three sizes; an image has one sheet. */
static void sizes_of(const tern__view *v, int64_t size[3])
{
    size[0] = v->ndim == 5 ? v->shape[2] : 1;
    size[1] = v->shape[v->ndim - 2];
    size[2] = v->shape[v->ndim - 1];
}

static double *values_of(const tern__view *v)
{
    double *values = tern__alloc((size_t)tern__view_count(v) * sizeof(double), __func__, NULL);
    for (int64_t i = 0; i < tern__view_count(v); i++) values[i] = tern__view_get(v, i);
    return values;
}

static void add_product(sums *s, int64_t at, double a, double b)
{
    s->value[at] += a * b;
    s->size[at] += fabs(a * b);
}

/* The definition: every output is a sum over the taps that see the image. All three kernels sum the same
 * products of x, w and y. */
static sums define(const operands *o, tern__kernel kernel)
{
    const tern__view *result = kernel == TERN__CONV ? &o->y : kernel == TERN__CONV_DATA_GRAD ? &o->x : &o->w;
    size_t bytes = (size_t)tern__view_count(result) * sizeof(double);
    sums s = {tern__alloc(bytes, __func__, NULL), tern__alloc(bytes, __func__, NULL)};
    memset(s.value, 0, bytes);
    memset(s.size, 0, bytes);
    double *x = values_of(&o->x), *w = values_of(&o->w), *y = values_of(&o->y);
    int64_t in[3], taps[3], out[3], ins = o->x.shape[1], outs = o->y.shape[1];
    sizes_of(&o->x, in);
    sizes_of(&o->w, taps);
    sizes_of(&o->y, out);
    const int64_t sheet = in[1] * in[2], all = in[0] * sheet, square = taps[1] * taps[2],
                  each = taps[0] * square;
    const int64_t out_all = out[0] * out[1] * out[2];
    for (int64_t p = 0; p < o->x.shape[0] * out_all; p++)
        for (int64_t k = 0; k < each; k++) {
            int64_t n = p / out_all,
                    at[3] = {p % out_all / (out[1] * out[2]), p / out[2] % out[1], p % out[2]};
            int64_t tap[3] = {k / square, k / 3 % 3, k % 3};
            bool inside = true;
            for (int d = 0; d < 3; d++) {
                at[d] += tap[d] * o->attr.dilation[d] - o->attr.padding[d];
                inside = inside && at[d] >= 0 && at[d] < in[d];
            }
            for (int64_t c = 0; inside && c < ins; c++)
                for (int64_t q = 0; q < outs; q++) {
                    int64_t x_at = (n * ins + c) * all + at[0] * sheet + at[1] * in[2] + at[2];
                    int64_t w_at = (q * ins + c) * each + k, y_at = (n * outs + q) * out_all + p % out_all;
                    if (kernel == TERN__CONV)
                        add_product(&s, y_at, x[x_at], w[w_at]);
                    else if (kernel == TERN__CONV_DATA_GRAD)
                        add_product(&s, x_at, y[y_at], w[w_at]);
                    else
                        add_product(&s, w_at, y[y_at], x[x_at]);
                }
        }
    tern__free(x);
    tern__free(w);
    tern__free(y);
    return s;
}

static const tern__view *result_of(const operands *o, tern__kernel kernel)
{
    return kernel == TERN__CONV ? &o->y : kernel == TERN__CONV_DATA_GRAD ? &o->x : &o->w;
}

/* Half a unit in the last place of a 16-bit number, relative to it, and of the least ones. */
static double rounding(tern_dtype dtype, double value)
{
    if (dtype == TERN_F32) return 0;
    return dtype == TERN_BF16 ? fabs(value) * 0x1p-8 : fmax(fabs(value) * 0x1p-11, 0x1p-25);
}

static void expect_by_definition(const tern__view *result, const sums *s)
{
    double most = result->dtype == TERN_F16 ? 65504 : 0x1.fep127;
    for (int64_t i = 0; i < tern__view_count(result); i++) {
        double got = tern__view_get(result, i), want = s->value[i];
        if (fabs(want) > 0.99 * most && fabs(want) < 1.01 * most) continue; /* may round to either side */
        if (isnan(want))
            assert_true(isnan(got));
        else if (fabs(want) > most)
            assert_true(got == copysign(INFINITY, want));
        else
            assert_true(fabs(got - want) <= BOUND * s->size[i] + rounding(result->dtype, want));
    }
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
    expect_by_definition(&result, &s);
    tern__free(result.data);
    tern__free(s.value);
    tern__free(s.size);
}

/* One of the kernel's two operands. */
static tern__view *operand_of(operands *o, tern__kernel kernel, int64_t number)
{
    tern__view *all[][2] = {{&o->x, &o->w}, {&o->y, &o->w}, {&o->y, &o->x}};
    return all[(int)kernel - TERN__CONV][number];
}

/* Changes an operand's values in some way, or some of them. */
typedef void (*change)(uint32_t *state, tern__view *v);

static void change_some(uint32_t *state, tern__view *v)
{
    static const double special[] = {INFINITY, -INFINITY, NAN, 1e2, 1e3, 1e4, 6e4, 1e6, 1e15, 1e30, 3e38};
    for (int64_t count = 1 + below(state, 3); count > 0; count--) {
        double value = special[below(state, TERN__COUNT(special))];
        tern__view_set(v, below(state, tern__view_count(v)), below(state, 2) ? value : -value);
    }
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
