/* test_planes.c - compares the plug-in's kernels on images, and those that go row by row or element by
 * element (norms, poolings, resizings and optimizers of any dtype and layout), with the reference. None may
 * decline. */
#include "check.h"
#include "gpus.h"
#include "mismatches.h"

#include "device/backend.h"
#include "kernels/batch_norm.h"
#include "kernels/group_norm.h"
#include "kernels/interpolate.h"
#include "kernels/norm_factors.h"
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "kernels/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tern_device *cuda, *oracle;
static unsigned seed = 1;

static int64_t drawn_between(int64_t low, int64_t high)
{
    return low + rand_r(&seed) % (high - low + 1);
}

/* ---- operands ---- */

#define MOST 16
static tern__view made[MOST];
static int made_count;

static const tern__view *drawn(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view *view = &made[made_count++];
    *view = tern__view_make(dtype, layout, ndim, shape);
    view->data = tern__alloc(tern__view_bytes(view) + 1, __func__, NULL);
    assert_non_null(view->data);
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) tern__view_set(view, i, (double)drawn_between(-700, 1300) * 1e-3);
    return view;
}

/* Positive numbers, for squares and variances. */
static const tern__view *drawn_positive(tern_dtype dtype, int64_t count)
{
    const tern__view *view = drawn(dtype, TERN__PLAIN, 1, &count);
    for (int64_t i = 0; i < count; i++) tern__view_set(view, i, (double)drawn_between(100, 1300) * 1e-3);
    return view;
}

static const tern__view *vector(tern_dtype dtype, int64_t count)
{
    return drawn(dtype, TERN__PLAIN, 1, &count);
}

static void free_all(void)
{
    while (made_count) tern__free(made[--made_count].data);
}

/* Frees what a failed test has left. */
static int forget(void **state)
{
    free_all();
    return no_mismatch(state);
}

static tern_dtype statistics_of(tern_dtype dtype)
{
    return dtype == TERN_F64 ? TERN_F64 : TERN_F32;
}

/* ---- comparing ---- */

static double tolerance_of(tern_dtype dtype)
{
    return dtype == TERN_F64 ? 1e-12 : dtype == TERN_F32 ? 2e-5 : dtype == TERN_F16 ? 4e-3 : 3e-2;
}

/* Reports the first element that is off. */
static void compare_out(const tern__call *call, int out, const tern__view *want)
{
    const tern__view *got = call->out[out];
    bool widened = call->kernel == TERN__LAMB_MOMENTS; /* f64 sums of values computed in p's dtype */
    double tolerance = tolerance_of(widened ? call->out[0]->dtype : got->dtype);
    int64_t count = tern__view_count(want);
    char text[TERN__SHAPE_TEXT];
    for (int64_t i = 0; i < count; i++) {
        double a = tern__view_get(got, i), b = tern__view_get(want, i);
        if (a == b || fabs(a - b) <= tolerance * (1 + fabs(b))) continue;
        mismatch("%s of %s %s, output %d, element %lld: %g, expected %g", tern__kernel_name(call->kernel),
                 tern_dtype_name(call->in[0]->dtype), tern__shape_text(call->in[0], text), out, (long long)i,
                 a, b);
        return;
    }
}

typedef struct memory {
    void *before, *want;
} memory;

static void keep(void **to, const tern__view *view)
{
    *to = tern__alloc(tern__view_bytes(view) + 1, __func__, NULL);
    memcpy(*to, view->data, tern__view_bytes(view));
}

/* Outputs may overwrite inputs, so all are restored before the second call. */
static void compare(tern__call call)
{
    tern_error err = {0};
    char text[TERN__SHAPE_TEXT];
    memory outs[TERN__KERNEL_OUTS] = {{0}};
    call.err = &err;
    call.device = oracle;
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call.out[i]) keep(&outs[i].before, call.out[i]);
    assert_int_equal(tern__reference_kernels[call.kernel](&call), TERN_OK);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call.out[i]) keep(&outs[i].want, call.out[i]);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call.out[i]) memcpy(call.out[i]->data, outs[i].before, tern__view_bytes(call.out[i]));
    call.device = cuda;
    assert_non_null(cuda->backend->kernels[call.kernel]);
    bool is_done = is_carried(&call, cuda->backend->kernels[call.kernel], tern__shape_text(call.in[0], text),
                              call.in[0]->dtype);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++) {
        if (!call.out[i]) continue;
        tern__view want = *call.out[i];
        want.data = outs[i].want;
        if (is_done) compare_out(&call, i, &want);
        tern__free(outs[i].before);
        tern__free(outs[i].want);
    }
}

/* ---- batch norm ---- */

/* bits: 1 the ReLU, 2 a residual, 4 outputs are added to, 8 in place of dy and x, 16 without weight and
 * bias. */
enum { RELU = 1, RESIDUAL = 2, ADD = 4, IN_PLACE = 8, BARE = 16, ALL_BITS = 31 };

static void batch_norm(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape, int bits)
{
    const tern__view *x = drawn(dtype, layout, ndim, shape), *y = drawn(dtype, layout, ndim, shape);
    const tern__view *residual = bits & RESIDUAL ? drawn(dtype, layout, ndim, shape) : NULL;
    const tern__view *mean = drawn_positive(statistics_of(dtype), shape[1]);
    const tern__view *var = drawn_positive(statistics_of(dtype), shape[1]);
    const tern__view *running_mean = vector(TERN_F32, shape[1]), *running_var = vector(TERN_F32, shape[1]);
    const tern__view *w = bits & BARE ? NULL : vector(dtype, shape[1]),
                     *b = w ? vector(dtype, shape[1]) : NULL;
    tern__batch_norm_attr attr = {.eps = 1e-5, .momentum = 0.2, .relu = bits & RELU};
    compare((tern__call){.kernel = TERN__BATCH_NORM_STATS,
                         .in = {x},
                         .out = {mean, var, running_mean, running_var},
                         .attr = &attr});
    compare((tern__call){
        .kernel = TERN__BATCH_NORM_APPLY, .in = {x, mean, var, w, b, residual}, .out = {y}, .attr = &attr});
    compare((tern__call){.kernel = TERN__BATCH_NORM,
                         .in = {x, w, b, residual},
                         .out = {y, mean, var, running_mean, running_var},
                         .attr = &attr});
    free_all();
}

static void batch_norm_grad(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape, int bits)
{
    const tern__view *x = drawn(dtype, layout, ndim, shape), *dy = drawn(dtype, layout, ndim, shape);
    const tern__view *y = bits & RELU ? drawn(dtype, layout, ndim, shape) : NULL;
    const tern__view *dx = bits & IN_PLACE ? x : drawn(dtype, layout, ndim, shape);
    const tern__view *mean = drawn_positive(statistics_of(dtype), shape[1]);
    const tern__view *var = drawn_positive(statistics_of(dtype), shape[1]);
    const tern__view *w = bits & BARE ? NULL : vector(dtype, shape[1]),
                     *b = w ? vector(dtype, shape[1]) : NULL;
    const tern__view *s = vector(statistics_of(dtype), shape[1]), *p = vector(statistics_of(dtype), shape[1]);
    const tern__view *db = vector(statistics_of(dtype), shape[1]),
                     *dw = vector(statistics_of(dtype), shape[1]);
    const tern__view *dresidual = !(bits & RESIDUAL) ? NULL
                                  : bits & IN_PLACE  ? dy
                                                     : drawn(dtype, layout, ndim, shape);
    bool add = (bits & ADD) && !(bits & IN_PLACE);
    tern__batch_norm_attr attr = {.eps = 1e-5, .relu = bits & RELU};
    compare((tern__call){.kernel = TERN__BATCH_NORM_SUMS,
                         .in = {dy, x, y, mean, var},
                         .out = {s, p, db, dw},
                         .add = {false, false, add, add},
                         .attr = &attr});
    compare((tern__call){.kernel = TERN__BATCH_NORM_DATA_GRAD,
                         .in = {dy, x, y, mean, var, w, s, p},
                         .out = {dx, dresidual},
                         .add = {add, add},
                         .attr = &attr});
    compare((tern__call){.kernel = TERN__BATCH_NORM_GRAD,
                         .in = {dy, x, bits & RESIDUAL ? y : NULL, mean, var, w, b},
                         .out = {bits & IN_PLACE && !dresidual ? dy : dx, dresidual, db, dw},
                         .add = {add, add, add, add},
                         .attr = &attr});
    free_all();
}

static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};

static void batch_norms(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{3, 32, 8, 9}, {2, 16, 2, 5, 7}, {3, 5, 7, 3},  {9, 21},
                                        {700, 8},      {2, 3, 16, 33},   {2, 36, 3, 7}, {2, 18, 5, 6},
                                        {50, 20},      {2, 16, 37, 19}};
    static const int ndims[] = {4, 5, 4, 2, 2, 4, 4, 4, 2, 4};
    int bits = 0;
    for (size_t i = 0; i < TERN__COUNT(ndims); i++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
            for (int last = 0; last < 2 && (!last || ndims[i] > 2);
                 last++, bits = (bits + 5) % (ALL_BITS + 1)) {
                tern__layout layout = last ? TERN__CHANNELS_LAST : TERN__PLAIN;
                batch_norm(dtypes[d], layout, ndims[i], shapes[i], bits);
                batch_norm_grad(dtypes[d], layout, ndims[i], shapes[i], bits);
            }
}

/* The blocks of a pass over images of 2048 positions. */
static int64_t blocks_of(int64_t channels)
{
    int64_t shape[] = {1, channels, 32, 64};
    const tern__view *x = drawn(TERN_BF16, TERN__CHANNELS_LAST, 4, shape);
    const tern__view *y = drawn(TERN_BF16, TERN__CHANNELS_LAST, 4, shape);
    const tern__view *mean = vector(TERN_F32, channels), *var = drawn_positive(TERN_F32, channels);
    tern__batch_norm_attr attr = {.eps = 1e-5};
    largest_grid();
    compare((tern__call){.kernel = TERN__BATCH_NORM_APPLY, .in = {x, mean, var}, .out = {y}, .attr = &attr});
    free_all();
    return largest_grid();
}

/* 36 and 18 channels by four and by two: no multiples of eight, but not one by one either. */
static void channels_are_taken_as_many_at_a_time_as_divide_them(void **state)
{
    (void)state;
    int64_t by_eight = blocks_of(40);
    assert_true(blocks_of(36) / 2 <= by_eight);
    assert_true(blocks_of(18) / 2 <= by_eight);
}

/* A mean of a thousand deviations. */
static void moments_far_from_zero(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++) {
        const int64_t shape[] = {24, 8, 16, 16};
        const tern__view *x = drawn(TERN_F32, last ? TERN__CHANNELS_LAST : TERN__PLAIN, 4, shape);
        int64_t count = tern__view_count(x);
        for (int64_t i = 0; i < count; i++) tern__view_set(x, i, 600 + tern__view_get(x, i));
        tern__batch_norm_attr attr = {.eps = 1e-5};
        compare((tern__call){.kernel = TERN__BATCH_NORM_STATS,
                             .in = {x},
                             .out = {vector(TERN_F32, 8), vector(TERN_F32, 8)},
                             .attr = &attr});
        free_all();
    }
}

/* A channel of so many parts that a thread merges some, with means that differ, in more than one turn. */
static void moments_of_many_parts(void **state)
{
    (void)state;
    const int64_t count = 1065001;
    const tern__view *x = drawn(TERN_F32, TERN__PLAIN, 3, (int64_t[]){1, 1, count});
    for (int64_t i = 0; i < count; i++)
        tern__view_set(x, i, tern__view_get(x, i) + 5 * (double)i / (double)count);
    compare((tern__call){.kernel = TERN__BATCH_NORM_STATS,
                         .in = {x},
                         .out = {vector(TERN_F32, 1), vector(TERN_F32, 1)},
                         .attr = &(tern__batch_norm_attr){.eps = 1e-5}});
    free_all();
}

/* Moments of batches some of which are empty, or all values but one. */
static void merged_moments(void **state)
{
    (void)state;
    static const double counts[][4] = {{9, 0, 5, 1}, {0, 0, 0, 0}, {0, 1, 0, 0}, {700, 2, 3, 4}};
    tern__batch_norm_attr attr = {.eps = 1e-5, .momentum = 0.2};
    for (size_t i = 0; i < TERN__COUNT(counts); i++) {
        int64_t channels = i % 2 ? 700 : 5, length = tern__batch_norm_row(channels);
        const tern__view *rows = drawn(TERN_F64, TERN__PLAIN, 2, (int64_t[]){4, length});
        for (int64_t k = 0; k < 4 * length; k++) {
            double count = counts[i][k / length], number = tern__view_get(rows, k);
            tern__view_set(rows, k, !count ? 0 : k % length ? fabs(number) : count);
        }
        compare((tern__call){.kernel = TERN__BATCH_NORM_MERGE,
                             .in = {rows},
                             .out = {vector(TERN_F32, channels), vector(TERN_F64, channels),
                                     vector(TERN_F32, channels), vector(TERN_F32, channels),
                                     i ? drawn(TERN_F64, TERN__PLAIN, 0, NULL) : NULL},
                             .attr = &attr});
        free_all();
    }
}

/* ---- group norm ---- */

/* A table of two dimensions if possible, like layer norm's weights. */
static const tern__view *table(tern_dtype dtype, int64_t count)
{
    int64_t shape[] = {count % 2 ? count : count / 2, count % 2 ? 1 : 2};
    return drawn(dtype, TERN__PLAIN, 2, shape);
}

static void group_norm(tern_dtype dtype, const int64_t shape[4], bool bare, bool in_place)
{
    int64_t rows = shape[0] * shape[1], channels = shape[1] * shape[2];
    const tern__view *x = drawn(dtype, TERN__PLAIN, 4, shape), *y = drawn(dtype, TERN__PLAIN, 4, shape);
    const tern__view *dy = drawn(dtype, TERN__PLAIN, 4, shape);
    const tern__view *mean = vector(statistics_of(dtype), rows),
                     *inverse = vector(statistics_of(dtype), rows);
    const tern__view *w = bare ? NULL : table(dtype, channels), *b = bare ? NULL : table(TERN_F32, channels);
    const tern__view *dw = table(statistics_of(dtype), channels), *db = table(statistics_of(dtype), channels);
    tern__group_norm_attr attr = {.eps = 1e-5};
    compare(
        (tern__call){.kernel = TERN__GROUP_NORM, .in = {x, w, b}, .out = {y, mean, inverse}, .attr = &attr});
    compare((tern__call){.kernel = TERN__GROUP_NORM_GRAD,
                         .in = {dy, x, mean, inverse, w},
                         .out = {in_place ? dy : y, dw, db},
                         .add = {!in_place, !bare, false},
                         .attr = &attr});
    free_all();
}

static void group_norms(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{37, 1, 48, 1}, {5, 1, 7, 1}, {6, 1, 20, 1},
                                        {2, 3, 4, 16},  {3, 2, 5, 9}, {1, 2, 8, 640}};
    for (size_t i = 0; i < TERN__COUNT(shapes); i++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
            for (int bits = 0; bits < 4; bits++) group_norm(dtypes[d], shapes[i], bits & 1, bits & 2);
}

/* y and dx are added to, or dx overwrites dy; the largest kernel of both calls has at least `blocks`
 * blocks. */
static void long_rows(tern_dtype dtype, const int64_t shape[4], bool add, int64_t blocks)
{
    int64_t rows = shape[0] * shape[1], channels = shape[1] * shape[2];
    const tern__view *x = drawn(dtype, TERN__PLAIN, 4, shape), *y = drawn(dtype, TERN__PLAIN, 4, shape);
    const tern__view *dy = drawn(dtype, TERN__PLAIN, 4, shape);
    const tern__view *mean = vector(statistics_of(dtype), rows),
                     *inverse = vector(statistics_of(dtype), rows);
    const tern__view *w = table(dtype, channels), *b = table(dtype, channels);
    tern__group_norm_attr attr = {.eps = 1e-5};
    largest_grid();
    compare((tern__call){
        .kernel = TERN__GROUP_NORM, .in = {x, w, b}, .out = {y, mean, inverse}, .add = {add}, .attr = &attr});
    assert_true(largest_grid() >= blocks);
    compare((tern__call){.kernel = TERN__GROUP_NORM_GRAD,
                         .in = {dy, x, mean, inverse, w},
                         .out = {add ? y : dy},
                         .add = {add},
                         .attr = &attr});
    assert_true(largest_grid() >= blocks);
    free_all();
}

static void few_long_rows_fill_a_gpu(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 2, 4, 17000}, {2, 1, 3, 22001}, {1, 2, 70000, 1}};
    static const int64_t large[] = {1, 8, 2, 90000};
    for (size_t i = 0; i < TERN__COUNT(shapes); i++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) long_rows(dtypes[d], shapes[i], d % 2, 1);
    long_rows(TERN_F32, large, false, ENOUGH);
}

/* ---- pooling ---- */

static int64_t pooled(const tern__pool_attr *p, int axis, int64_t size)
{
    return (size + 2 * p->padding[axis] - p->dilation[axis] * (p->kernel[axis] - 1) - 1) / p->stride[axis] +
           1;
}

static tern__pool_attr drawn_pool(bool max, bool deep)
{
    tern__pool_attr p = {.count_pad = drawn_between(0, 1)};
    for (int axis = 0; axis < TERN__SPACE; axis++) {
        bool flat = axis == 0 && !deep;
        p.kernel[axis] = flat ? 1 : drawn_between(1, 5);
        p.stride[axis] = flat ? 1 : drawn_between(1, 3);
        p.padding[axis] = flat ? 0 : drawn_between(0, p.kernel[axis] / 2);
        p.dilation[axis] = flat || !max || p.kernel[axis] > 3 ? 1 : drawn_between(1, 2);
    }
    return p;
}

static void pool_by(const tern__pool_attr *p, bool max, tern_dtype dtype, tern__layout layout,
                    int64_t channels, bool deep)
{
    int ndim = deep ? 5 : 4;
    int64_t in[5] = {2, channels}, out[5] = {2, channels};
    for (int d = 2; d < ndim; d++) {
        in[d] = drawn_between(6, 9);
        out[d] = pooled(p, TERN__SPACE - ndim + d, in[d]);
    }
    const tern__view *x = drawn(dtype, layout, ndim, in), *y = drawn(dtype, layout, ndim, out);
    tern_dtype narrow = drawn_between(0, 1) ? TERN_U8 : TERN_I32;
    const tern__view *place = max ? drawn(narrow, layout, ndim, out) : NULL;
    bool add = drawn_between(0, 1);
    compare((tern__call){.kernel = max ? TERN__MAX_POOL : TERN__AVG_POOL,
                         .in = {x},
                         .out = {y, place},
                         .add = {add},
                         .attr = p});
    compare((tern__call){.kernel = max ? TERN__MAX_POOL_GRAD : TERN__AVG_POOL_GRAD,
                         .in = {y, place},
                         .out = {x},
                         .add = {add},
                         .attr = p});
    free_all();
}

static void pool(tern_dtype dtype, tern__layout layout, int64_t channels, bool deep)
{
    for (int max = 0; max < 2; max++) {
        tern__pool_attr p = drawn_pool(max, deep);
        pool_by(&p, max, dtype, layout, channels, deep);
    }
}

static void pools(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
            pool(dtypes[d], TERN__CHANNELS_LAST, round % 2 ? 16 : 5, round == 2);
            pool(dtypes[d], TERN__PLAIN, 3, round == 3);
        }
}

/* The distance at which a second window would read an element does not fit into 32 bits. */
static void pools_of_one_window(void **state)
{
    (void)state;
    tern__pool_attr p = {.kernel = {3, 3, 3}, .dilation = {1, 1, 1}};
    for (int axis = 0; axis < TERN__SPACE; axis++) p.stride[axis] = INT32_MAX;
    for (int max = 0; max < 2; max++) {
        pool_by(&p, max, TERN_F32, TERN__CHANNELS_LAST, 4, true);
        pool_by(&p, max, TERN_BF16, TERN__PLAIN, 3, true);
    }
}

static void global_avg_pools(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{2, 16, 7, 7}, {3, 5, 3, 4}, {2, 40, 1, 1}, {1, 3, 16, 24}};
    for (size_t i = 0; i < TERN__COUNT(shapes); i++)
        for (int d = 0; d < 8; d++) {
            tern__layout layout = d / 4 ? TERN__CHANNELS_LAST : TERN__PLAIN;
            const tern__view *x = drawn(dtypes[d % 4], layout, 4, shapes[i]);
            const tern__view *y = drawn(dtypes[d % 4], TERN__PLAIN, 2, shapes[i]);
            compare((tern__call){.kernel = TERN__GLOBAL_AVG_POOL, .in = {x}, .out = {y}, .add = {d % 2}});
            compare(
                (tern__call){.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {y}, .out = {x}, .add = {d % 2}});
            free_all();
        }
}

/* ---- resizing ---- */

static void resize(tern_dtype dtype, tern__layout layout, int ndim, tern__interpolation mode)
{
    int64_t in[5] = {2, layout == TERN__PLAIN ? 3 : 8}, out[5] = {2, in[1]};
    for (int d = 2; d < ndim; d++) {
        in[d] = drawn_between(1, 9);
        out[d] = drawn_between(1, 12);
    }
    tern__interpolate_attr attr = {.mode = mode,
                                   .align_corners = mode == TERN__LINEAR && drawn_between(0, 1)};
    const tern__view *x = drawn(dtype, layout, ndim, in), *y = drawn(dtype, layout, ndim, out);
    bool add = drawn_between(0, 1);
    compare((tern__call){.kernel = TERN__INTERPOLATE, .in = {x}, .out = {y}, .add = {add}, .attr = &attr});
    compare(
        (tern__call){.kernel = TERN__INTERPOLATE_GRAD, .in = {y}, .out = {x}, .add = {add}, .attr = &attr});
    free_all();
}

static void resizings(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
            for (int mode = TERN__NEAREST; mode <= TERN__MEAN; mode++) {
                resize(dtypes[d], round % 2 ? TERN__CHANNELS_LAST : TERN__PLAIN, 3 + round % 3,
                       (tern__interpolation)mode);
            }
}

/* ---- optimizers ---- */

static const tern__view *number(double value)
{
    const tern__view *view = drawn(TERN_F64, TERN__PLAIN, 0, NULL);
    tern__view_set(view, 0, value);
    return view;
}

/* Inputs that only the device knows: bit 1 factors, 2 skipped steps, 4 that this one is skipped. */
static void give_numbers(tern__call *call, int given)
{
    if (given & 1) call->in[TERN__OPTIM_FACTORS] = drawn_positive(TERN_F64, 3);
    if (given & 2) call->in[TERN__OPTIM_SKIPPED] = number(2);
    if (given & 2) call->in[TERN__OPTIM_SKIP] = number(given & 4 ? 1 : 0);
}

enum { SECTIONS = 4, SPAN = 701 };

/* Sections of SPAN elements of a larger buffer, with a gap; of parameters 2, 0, 1 and `last`. */
static const tern__view *sections(int last)
{
    const tern__section table[SECTIONS] = {{64, 16, 2}, {80, 256, 0}, {352, 256, 1}, {608, 157, last}};
    static const int64_t shape[] = {SECTIONS, 3};
    const tern__view *view = drawn(TERN_I64, TERN__PLAIN, 2, shape);
    memcpy(view->data, table, sizeof(table));
    return view;
}

/* Runs a step; states that are squares are positive. */
static void step(tern__kernel kernel, tern_dtype gradient, tern_dtype dtype, int64_t count, const void *attr,
                 const char *states, bool copy)
{
    static const int64_t rows[] = {3, 3};
    tern__call call = {.kernel = kernel, .in = {vector(gradient, count)}, .attr = attr};
    give_numbers(&call, drawn_between(0, 7));
    if (count == SPAN) call.in[TERN__OPTIM_SECTIONS] = sections(2);
    if (count == SPAN) call.in[TERN__OPTIM_FACTORS] = drawn(TERN_F64, TERN__PLAIN, 2, rows);
    call.out[0] = vector(dtype, count);
    for (int i = 0; states[i]; i++)
        call.out[i + 1] = states[i] == '+'   ? drawn_positive(dtype, count)
                          : states[i] == '.' ? vector(dtype, count)
                                             : NULL;
    if (copy) call.out[TERN__OPTIM_COPY] = vector(TERN_BF16, count);
    compare(call);
    free_all();
}

static void steps(tern_dtype gradient, tern_dtype dtype, int64_t count, bool copy)
{
    tern__step_attr common = {.lr = 0.1, .scale = 0.5, .decay = 0.01, .count = 3}, one = common;
    one.count = 1;
    tern__sgd_attr sgd = {common, .momentum = 0.9, .dampening = 0.1};
    tern__sgd_attr nesterov = {one, .momentum = 0.9, .nesterov = 1};
    tern__adam_attr adam = {common, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .keep = 0.98};
    tern__rmsprop_attr rmsprop = {common, .alpha = 0.9, .eps = 1e-2, .momentum = 0.8};
    tern__adagrad_attr adagrad = {common, .eps = 1e-3, .lr_decay = 0.5},
                       first = {one, .eps = 1e-3, .start = 0.2};
    tern__lamb_attr lamb = {common,      .beta1 = 0.9, .take = 0.1, .beta2 = 0.99,
                            .unbias = 1, .eps = 1e-3,  .pull = 0.1};
    step(TERN__SGD, gradient, dtype, count, &sgd, "", copy);
    step(TERN__SGD, gradient, dtype, count, &sgd, ".", copy);
    step(TERN__SGD, gradient, dtype, count, &nesterov, ".", copy);
    step(TERN__ADAM, gradient, dtype, count, &adam, ".+", copy);
    step(TERN__ADAM, gradient, dtype, count, &adam, ".++", copy);
    step(TERN__RMSPROP, gradient, dtype, count, &rmsprop, "+", copy);
    step(TERN__RMSPROP, gradient, dtype, count, &rmsprop, "+.", copy);
    step(TERN__ADAGRAD, gradient, dtype, count, &adagrad, "+", copy);
    step(TERN__ADAGRAD, gradient, dtype, count, &first, "+", copy);
    step(TERN__LAMB, gradient, dtype, count, &lamb, ".+", copy);
}

static void optimizers(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, SPAN, 1027}; /* SPAN: in sections */
    for (size_t i = 0; i < TERN__COUNT(counts); i++) {
        steps(TERN_F32, TERN_F32, counts[i], false);
        steps(TERN_BF16, TERN_F32, counts[i], true);
        steps(TERN_F16, TERN_F16, counts[i], false);
        steps(TERN_F64, TERN_F64, counts[i], false);
    }
}

static const tern__view *drawn_positive_pairs(int64_t rows)
{
    const tern__view *view = drawn(TERN_F64, TERN__PLAIN, 2, (int64_t[]){rows, 2});
    for (int64_t i = 0; i < 2 * rows; i++) tern__view_set(view, i, 0.1 + fabs(tern__view_get(view, i)));
    return view;
}

static void norms_of_sections(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        tern_dtype dtype = i % 3 ? TERN_F32 : TERN_F64, gradient = i % 3 == 1 ? TERN_BF16 : dtype;
        tern__lamb_attr attr = {{.scale = 0.5, .decay = 0.01, .count = 3},
                                .beta1 = 0.9,
                                .take = 0.1,
                                .beta2 = 0.99,
                                .unbias = 1,
                                .eps = 1e-3,
                                .pull = 0.1};
        int64_t count = SPAN, sums[] = {SECTIONS, 2};
        tern__call call = {.kernel = TERN__LAMB_MOMENTS,
                           .in = {vector(gradient, count), [TERN__OPTIM_SECTIONS] = sections(2)},
                           .out = {vector(dtype, count), vector(dtype, count), drawn_positive(dtype, count),
                                   drawn(TERN_F64, TERN__PLAIN, 2, sums)},
                           .attr = &attr};
        give_numbers(&call, i);
        compare(call);
        call = (tern__call){.kernel = TERN__POWER_SUM,
                            .in = {vector(gradient, count), sections(2)},
                            .out = {drawn(TERN_F64, TERN__PLAIN, 1, sums)},
                            .attr = &(tern__power_attr){i % 2 ? 2 : INFINITY}};
        compare(call);
        call = (tern__call){.kernel = TERN__NORM_FACTORS,
                            .in = {drawn_positive_pairs(count), sections(3)}, /* a row is written once */
                            .out = {drawn(TERN_F64, TERN__PLAIN, 2, (int64_t[]){SECTIONS, 3})},
                            .attr = &(tern__norm_attr){.use = TERN__NORM_TRUST, .p = i % 2 ? 2 : INFINITY}};
        compare(call);
        free_all();
    }
}

static int open_devices(void **state)
{
    (void)state;
    tern_error err = {0};
    cuda = tern_device_open("cuda:0", &err);
    oracle = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    tern_device_close(cuda);
    tern_device_close(oracle);
    return 0;
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(batch_norms, forget),
        cmocka_unit_test_teardown(channels_are_taken_as_many_at_a_time_as_divide_them, forget),
        cmocka_unit_test_teardown(moments_far_from_zero, forget),
        cmocka_unit_test_teardown(moments_of_many_parts, forget),
        cmocka_unit_test_teardown(merged_moments, forget),
        cmocka_unit_test_teardown(group_norms, forget),
        cmocka_unit_test_teardown(few_long_rows_fill_a_gpu, forget),
        cmocka_unit_test_teardown(pools, forget),
        cmocka_unit_test_teardown(pools_of_one_window, forget),
        cmocka_unit_test_teardown(global_avg_pools, forget),
        cmocka_unit_test_teardown(resizings, forget),
        cmocka_unit_test_teardown(optimizers, forget),
        cmocka_unit_test_teardown(norms_of_sections, forget),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
