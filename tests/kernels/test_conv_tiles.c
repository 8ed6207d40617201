/* test_conv_tiles.c - convolutions by the CPU's tile unit (AMX), against sums in double by the definition:
 * random shapes in bf16 and f32, then with infinities, NaN and very large values (docs/conv.md). */
#include "kernels/conv_definition.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/conv.h"

#include <stdio.h>

#define ROUNDS 40
#define PARTS  3.1e-5 /* of each product in f32: what two parts of bf16 leave out */
#define BOUND  1e-5   /* of the sum, where it has many products of a size */
#define MANY   24     /* products */

static tern_dtype dtype_of(uint32_t round)
{
    return round % 2 ? TERN_F32 : TERN_BF16;
}

/* A few channels, whole blocks of 16, or any number in the plain layout. */
static int64_t channels(uint32_t *state)
{
    int64_t kind = below(state, 5);
    return kind == 0 ? 1 + below(state, 4) : kind == 1 ? 5 + below(state, 40) : 16 * (1 + below(state, 4));
}

static tern__layout layout(uint32_t *state, int64_t width)
{
    return width % 16 == 0 && below(state, 3) ? TERN__BLOCKED16 : TERN__PLAIN;
}

static operands make(uint32_t *state, tern_dtype dtype)
{
    int ndim = below(state, 3) ? 4 : 5;
    operands o = {.attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}};
    int64_t x[5] = {1 + below(state, 3), channels(state)}, y[5] = {x[0], channels(state)},
            w[5] = {y[1], x[1]};
    for (int d = 2, axis = 5 - ndim; d < ndim; d++, axis++) {
        w[d] = 1 + below(state, below(state, 4) ? 3 : 5);
        o.attr.stride[axis] = below(state, 2) ? 1 : 1 + below(state, 3);
        o.attr.dilation[axis] = below(state, 2) ? 1 : 1 + below(state, 3);
        int64_t reach = (w[d] - 1) * o.attr.dilation[axis] + 1;
        o.attr.padding[axis] = below(state, reach + 1);
        x[d] = 1 + below(state, ndim == 5 ? 5 : 11);
        x[d] = TERN__MAX(x[d], reach - 2 * o.attr.padding[axis]);
        y[d] = (x[d] + 2 * o.attr.padding[axis] - reach) / o.attr.stride[axis] + 1;
    }
    o.x = filled(state, dtype, layout(state, x[1]), ndim, x);
    o.w = filled(state, dtype, TERN__PLAIN, ndim, w);
    o.y = filled(state, dtype, layout(state, y[1]), ndim, y);
    return o;
}

/* ---- a kernel by tiles, beside the definition ---- */

/* Replaces the result by that of the tiles, or adds it. */
static void compute(tern_device *device, tern__kernel kernel, const operands *o, const tern__view *bias,
                    const tern__view *result, bool add)
{
    tern_error err = {0};
    operands at = *o;
    *(kernel == TERN__CONV ? &at.y : kernel == TERN__CONV_DATA_GRAD ? &at.x : &at.w) = *result;
    tern__call call = {.device = device, .kernel = kernel, .attr = &o->attr, .add = {add}, .err = &err};
    call.in[0] = kernel == TERN__CONV ? &at.x : &at.y;
    call.in[1] = kernel == TERN__CONV_WEIGHT_GRAD ? &at.x : &at.w;
    call.in[2] = kernel == TERN__CONV ? bias : NULL;
    call.out[0] = kernel == TERN__CONV ? &at.y : kernel == TERN__CONV_DATA_GRAD ? &at.x : &at.w;
    assert_int_equal(tern__conv_run(&call, &tern__conv_tiles), TERN_OK);
    assert_ok(err);
}

static tern__view copy_of(const tern__view *view)
{
    tern__view copy = *view;
    copy.data = tern__alloc(tern__view_bytes(view), __func__, NULL);
    assert_non_null(copy.data);
    memcpy(copy.data, view->data, tern__view_bytes(view));
    return copy;
}

/* Adds a value to each of the sums, that of a channel or of an element. */
static void add_values(sums *s, const tern__view *result, const tern__view *bias)
{
    int64_t count = tern__view_count(result), each = count / (result->shape[0] * result->shape[1]);
    for (int64_t i = 0; i < count; i++) {
        double value = bias ? tern__view_get(bias, i / each % result->shape[1]) : tern__view_get(result, i);
        s->value[i] += value;
        s->size[i] += fabs(value);
    }
}

/* The least number of products of a result that has any. */
static double least_products(const operands *o, tern__kernel kernel)
{
    operands ones = *o;
    tern__view *all[] = {&ones.x, &ones.w, &ones.y};
    for (int v = 0; v < 3; v++) {
        *all[v] = copy_of(all[v]);
        for (int64_t i = 0; i < tern__view_count(all[v]); i++) tern__view_set(all[v], i, 1);
    }
    sums s = define(&ones, kernel);
    double least = INFINITY;
    for (int64_t i = 0; i < tern__view_count(result_of(o, kernel)); i++)
        if (s.value[i] > 0) least = fmin(least, s.value[i]);
    tern__free(s.value);
    tern__free(s.size);
    release(&ones);
    return least;
}

static void check(tern_device *device, tern__kernel kernel, const operands *o, uint32_t round, double bound)
{
    const tern__view *like = result_of(o, kernel);
    uint32_t state = round;
    sums s = define(o, kernel);
    tern__view result = copy_of(like),
               bias = filled(&state, like->dtype, TERN__PLAIN, 1, (int64_t[]){o->w.shape[0]});
    const int64_t *stride = o->attr.stride;
    bool may_round_twice = like->dtype == TERN_BF16 && stride[0] * stride[1] * stride[2] > 1; /* thin.c */
    bool add = round / 4 % 2 && !may_round_twice;
    bool has_bias = kernel == TERN__CONV && round / 8 % 2;
    if (add) add_values(&s, &result, NULL);
    if (has_bias) add_values(&s, &result, &bias);
    compute(device, kernel, o, has_bias ? &bias : NULL, &result, add);
    expect_by_definition(&result, &s, bound);
    tern__free(bias.data);
    tern__free(result.data);
    tern__free(s.value);
    tern__free(s.size);
}

/* Over random shapes, for each kernel, with a change of one of its operands; `least`: the bound for results
 * of many products. */
static void check_changed(change how, double least)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    assert_ok(err);
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
            uint32_t state = round * 2654435761u + (uint32_t)k;
            tern_device_threads_set(device, 1 + (int)round % 3, &err);
            operands o = make(&state, dtype_of(round));
            if (how) how(&state, operand_of(&o, (tern__kernel)k, below(&state, 2)));
            bool many = least_products(&o, (tern__kernel)k) >= MANY;
            check(device, (tern__kernel)k, &o, round, many ? least : PARTS);
            release(&o);
        }
    assert_ok(err);
    tern_device_close(device);
}

static void random_shapes(void **state)
{
    (void)state;
    check_changed(NULL, BOUND);
}

/* One value that is not finite, or the largest, or far above the others. */
static void change_one(uint32_t *state, tern__view *v)
{
    static const double special[] = {INFINITY, NAN, 0x1.fffffep127, 1e30};
    double value = special[below(state, TERN__COUNT(special))];
    tern__view_set(v, below(state, tern__view_count(v)), below(state, 2) ? value : -value);
}

static void one_special_value(void **state)
{
    (void)state;
    check_changed(change_one, BOUND);
}

/* Some values, of which no two make f32 overflow. */
static void change_a_few(uint32_t *state, tern__view *v)
{
    static const double special[] = {INFINITY, -INFINITY, NAN, 1e2, 1e3, 1e4, 6e4, 1e6, 1e15, 1e16, 1e30};
    set_a_few(state, v, special, TERN__COUNT(special));
}

static void some_special_values(void **state)
{
    (void)state;
    check_changed(change_a_few, PARTS);
}

/* Every bit pattern of NaN must be seen, also those that rounding to bf16 would carry over. */
static void change_bits(uint32_t *state, tern__view *v)
{
    static const uint32_t nans[] = {0x7fffffff, 0xffffffff, 0x7fff8000, 0x7f800001, 0xff80ffff, 0x7fc00000};
    int64_t at = below(state, tern__view_count(v));
    uint32_t bits = nans[below(state, TERN__COUNT(nans))];
    if (v->dtype == TERN_F32)
        memcpy((uint32_t *)v->data + at, &bits, sizeof(bits));
    else
        ((uint16_t *)v->data)[at] = (uint16_t)(bits >> 16 | 1);
}

static void any_nan(void **state)
{
    (void)state;
    check_changed(change_bits, BOUND);
}

static void change_all(uint32_t *state, tern__view *v)
{
    double value = below(state, 2) ? NAN : INFINITY;
    for (int64_t i = 0; i < tern__view_count(v); i++) tern__view_set(v, i, value);
}

static void nothing_finite(void **state)
{
    (void)state;
    check_changed(change_all, BOUND);
}

static void scale(uint32_t *state, tern__view *v)
{
    double factor = pow(10, 66 * uniform(state) - 31);
    for (int64_t i = 0; i < tern__view_count(v); i++) tern__view_set(v, i, factor * tern__view_get(v, i));
}

static void values_of_any_one_size(void **state)
{
    (void)state;
    check_changed(scale, BOUND);
}

/* The tiles of a parameter that does not change are kept, and whether its weights are large. */
static void a_kept_weight_gives_the_same(void **unused)
{
    (void)unused;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    assert_ok(err);
    for (uint32_t round = 0; round < ROUNDS / 2; round++) {
        uint32_t state = round + 177;
        tern__packs packs = {0};
        operands o = make(&state, dtype_of(round));
        change_one(&state, &o.w);
        o.w.packs = &packs;
        for (int use = 0; use < 4; use++) {
            if (use == 3) tern__view_set(&o.w, below(&state, tern__view_count(&o.w)), NAN);
            packs.version += use == 3;
            check(device, round / 2 % 2 ? TERN__CONV : TERN__CONV_DATA_GRAD, &o, round, PARTS);
        }
        tern__packs_free(&packs);
        release(&o);
    }
    tern_device_close(device);
}

/* How work is divided depends on the threads; which results are computed by the definition does not. */
static void any_number_of_threads_gives_the_same_bits(void **unused)
{
    (void)unused;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    assert_ok(err);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t state = round + 77;
        tern__kernel kernel = (tern__kernel)(TERN__CONV + round % 3);
        operands o = make(&state, dtype_of(round / 3));
        change_one(&state, operand_of(&o, kernel, below(&state, 2)));
        tern__view first = copy_of(result_of(&o, kernel)), other = copy_of(&first);
        tern_device_threads_set(device, 1, &err);
        compute(device, kernel, &o, NULL, &first, false);
        tern_device_threads_set(device, 2 + (int)round % 2, &err);
        compute(device, kernel, &o, NULL, &other, false);
        for (int64_t i = 0; i < tern__view_count(&first); i++) {
            double v = tern__view_get(&first, i), w = tern__view_get(&other, i);
            if (v != w && !(isnan(v) && isnan(w))) fail_msg("element %lld is %a and %a", (long long)i, v, w);
        }
        tern__free(first.data);
        tern__free(other.data);
        release(&o);
    }
    assert_ok(err);
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(one_special_value),
        cmocka_unit_test(some_special_values),
        cmocka_unit_test(any_nan),
        cmocka_unit_test(nothing_finite),
        cmocka_unit_test(values_of_any_one_size),
        cmocka_unit_test(a_kept_weight_gives_the_same),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
    };
    if (!tern__amx_has())
        return skip_program("this CPU has no tile unit, and for the one in software no AVX-512");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
