/* conv_definition.h - convolutions and their gradients by the definition, in double, and what an algorithm
 * may differ from it: a result is infinite or NaN where the definition's is, and a finite one is off by at
 * most a share of the sum of its products' magnitudes (docs/conv.md). */
#ifndef TERN_TESTS_KERNELS_CONV_DEFINITION_H
#define TERN_TESTS_KERNELS_CONV_DEFINITION_H

#include "kernels/conv_operands.h"

#include <math.h>
#include <string.h>

/* The sum of a result's products, and the sum of their magnitudes. */
typedef struct sums {
    double *value, *size;
} sums;

static inline double uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) * 0x1p-24;
}

static inline int64_t below(uint32_t *state, int64_t count)
{
    return (int64_t)(uniform(state) * (double)count);
}

static inline double normal(uint32_t *state)
{
    double size = sqrt(-2 * log(uniform(state) + 0x1p-25));
    return size * cos(6.283185307179586 * uniform(state));
}

static inline tern__view filled(uint32_t *state, tern_dtype dtype, tern__layout layout, int ndim,
                                const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    for (int64_t i = 0; i < tern__view_count(&view); i++) tern__view_set(&view, i, normal(state));
    return view;
}

/* The view's last three sizes; an image has one sheet. */
static inline void sizes_of(const tern__view *v, int64_t size[3])
{
    size[0] = v->ndim == 5 ? v->shape[2] : 1;
    size[1] = v->shape[v->ndim - 2];
    size[2] = v->shape[v->ndim - 1];
}

static inline double *values_of(const tern__view *v)
{
    double *values = tern__alloc((size_t)tern__view_count(v) * sizeof(double), __func__, NULL);
    for (int64_t i = 0; i < tern__view_count(v); i++) values[i] = tern__view_get(v, i);
    return values;
}

static inline void add_product(sums *s, int64_t at, double a, double b)
{
    s->value[at] += a * b;
    s->size[at] += fabs(a * b);
}

/* The definition: every output is a sum over the taps that see the image. All three kernels sum the same
 * products of x, w and y. */
static inline sums define(const operands *o, tern__kernel kernel)
{
    const tern__view *result = result_of(o, kernel);
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
            int64_t tap[3] = {k / square, k / taps[2] % taps[1], k % taps[2]};
            bool inside = true;
            for (int d = 0; d < 3; d++) {
                at[d] = at[d] * o->attr.stride[d] + tap[d] * o->attr.dilation[d] - o->attr.padding[d];
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

/* Half a unit in the last place of a 16-bit number, relative to it, and of the least ones. */
static inline double rounding(tern_dtype dtype, double value)
{
    if (dtype == TERN_F32) return 0;
    return dtype == TERN_BF16 ? fabs(value) * 0x1p-8 : fmax(fabs(value) * 0x1p-11, 0x1p-25);
}

static inline void expect_by_definition(const tern__view *result, const sums *s, double bound)
{
    double most = result->dtype == TERN_F16 ? 65504 : 0x1.fep127;
    for (int64_t i = 0; i < tern__view_count(result); i++) {
        double got = tern__view_get(result, i), want = s->value[i];
        if (fabs(want) > 0.99 * most && fabs(want) < 1.01 * most) continue; /* may round to either side */
        bool right = isnan(want) ? isnan(got)
                     : fabs(want) > most
                         ? got == copysign(INFINITY, want)
                         : fabs(got - want) <= bound * s->size[i] + rounding(result->dtype, want);
        if (!right)
            fail_msg("element %lld is %.9g, expected %.9g, with products of %g in all", (long long)i, got,
                     want, s->size[i]);
    }
}

/* One of the kernel's two operands. */
static inline tern__view *operand_of(operands *o, tern__kernel kernel, int64_t number)
{
    tern__view *all[][2] = {{&o->x, &o->w}, {&o->y, &o->w}, {&o->y, &o->x}};
    return all[(int)kernel - TERN__CONV][number];
}

/* Changes an operand's values in some way, or some of them. */
typedef void (*change)(uint32_t *state, tern__view *v);

/* Sets up to three values to any of these, of either sign. */
static inline void set_a_few(uint32_t *state, tern__view *v, const double *special, int64_t count)
{
    for (int64_t left = 1 + below(state, 3); left > 0; left--) {
        double value = special[below(state, count)];
        tern__view_set(v, below(state, tern__view_count(v)), below(state, 2) ? value : -value);
    }
}

#endif
