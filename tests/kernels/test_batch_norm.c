/* test_batch_norm.c - compares the fused kernels of batch norm and its gradient with the reference, with
 * every combination of masking dy, adding to outputs, and overwriting dy and x. */
#include "check.h"

#include "kernels/batch_norm.h"
#include "kernels/kernel.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

enum { X, RESIDUAL, Y, DY, DX, DRESIDUAL, ACTIVATIONS };
enum { WEIGHT, BIAS, MEAN, VAR, RUNNING_MEAN, RUNNING_VAR, DWEIGHT, DBIAS, VECTORS };

typedef struct norm {
    tern__view activation[ACTIVATIONS], vector[VECTORS];
} norm;

static tern__view drawn(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape, unsigned *seed)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    int64_t count = tern__view_count(&view);
    for (int64_t i = 0; i < count; i++) tern__view_set(&view, i, rand_r(seed) % 2000 * 1e-3 - 0.7);
    return view;
}

static norm drawn_norm(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    norm n;
    unsigned seed = 1;
    for (int i = 0; i < ACTIVATIONS; i++) n.activation[i] = drawn(dtype, layout, ndim, shape, &seed);
    tern_dtype wide = dtype == TERN_F64 ? TERN_F64 : TERN_F32;
    for (int i = 0; i < VECTORS; i++) n.vector[i] = drawn(wide, TERN__PLAIN, 1, &shape[1], &seed);
    return n;
}

static void norm_free(norm *n)
{
    for (int i = 0; i < ACTIVATIONS; i++) tern__free(n->activation[i].data);
    for (int i = 0; i < VECTORS; i++) tern__free(n->vector[i].data);
}

static double tolerance_of(tern_dtype dtype)
{
    return dtype == TERN_F64 ? 1e-12 : dtype == TERN_F32 ? 2e-5 : dtype == TERN_F16 ? 4e-3 : 3e-2;
}

/* Checks that the views agree up to rounding. Backward derives the ReLU's mask from a rounded y, but no y of
 * these tests is so close to 0 that rounding would change the mask. */
static void assert_alike(const tern__view *got, const tern__view *want, double tolerance)
{
    int64_t count = tern__view_count(want);
    for (int64_t i = 0; i < count; i++) {
        double a = tern__view_get(got, i), b = tern__view_get(want, i);
        if (fabs(a - b) > tolerance * (1 + fabs(b)))
            fail_msg("element %lld: %g, expected %g", (long long)i, a, b);
    }
}

static void run(tern_device *device, tern__call call)
{
    tern_error err = {0};
    call.device = device;
    call.err = &err;
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_ok(err);
}

/* bits: 1 ReLU, 2 residual, 4 adds to outputs, 8 overwrites dy and x, 16 without weight and bias. */
enum { RELU = 1, WITH_RESIDUAL = 2, ADD = 4, IN_PLACE = 8, BARE = 16, ALL_BITS = 31 };

static void forward(tern_device *device, norm *n, int bits)
{
    tern__view *a = n->activation, *v = n->vector;
    tern__batch_norm_attr attr = {.eps = 1e-5, .momentum = 0.2, .relu = bits & RELU};
    run(device, (tern__call){.kernel = TERN__BATCH_NORM,
                             .in = {&a[X], bits & BARE ? NULL : &v[WEIGHT], bits & BARE ? NULL : &v[BIAS],
                                    bits & WITH_RESIDUAL ? &a[RESIDUAL] : NULL},
                             .out = {&a[Y], &v[MEAN], &v[VAR], &v[RUNNING_MEAN], &v[RUNNING_VAR]},
                             .attr = &attr});
}

static void backward(tern_device *device, norm *n, int bits)
{
    tern__view *a = n->activation, *v = n->vector;
    bool add = bits & ADD, in_place = bits & IN_PLACE, residual = bits & WITH_RESIDUAL;
    tern__batch_norm_attr attr = {.eps = 1e-5, .relu = bits & RELU};
    const tern__view *dx = !in_place ? &a[DX] : residual ? &a[X] : &a[DY];
    const tern__view *dresidual = !residual ? NULL : in_place ? &a[DY] : &a[DRESIDUAL];
    run(device, (tern__call){.kernel = TERN__BATCH_NORM_GRAD,
                             .in = {&a[DY], &a[X], residual && bits & RELU ? &a[Y] : NULL, &v[MEAN], &v[VAR],
                                    bits & BARE ? NULL : &v[WEIGHT], bits & BARE ? NULL : &v[BIAS]},
                             .out = {dx, dresidual, &v[DBIAS], &v[DWEIGHT]},
                             .add = {add && !in_place, add && !in_place, add, add},
                             .attr = &attr});
}

static void copy_into(norm *to, const norm *from)
{
    for (int i = 0; i < ACTIVATIONS; i++) tern__view_copy(&to->activation[i], &from->activation[i], NULL);
    for (int i = 0; i < VECTORS; i++) tern__view_copy(&to->vector[i], &from->vector[i], NULL);
}

/* Both backward passes start from the reference's forward results, so that only backward is compared. */
static void once(tern_device *fast, tern_device *oracle, norm *got, norm *want, int bits)
{
    double tolerance = tolerance_of(want->activation[X].dtype);
    forward(fast, got, bits);
    forward(oracle, want, bits);
    assert_alike(&got->activation[Y], &want->activation[Y], tolerance);
    bool wide = want->activation[X].dtype == TERN_F64;
    for (int i = MEAN; i <= RUNNING_VAR; i++)
        assert_alike(&got->vector[i], &want->vector[i], wide ? tolerance : 2e-6);
    copy_into(got, want);
    backward(fast, got, bits);
    backward(oracle, want, bits);
    for (int i = 0; i < ACTIVATIONS; i++) assert_alike(&got->activation[i], &want->activation[i], tolerance);
    for (int i = 0; i < VECTORS; i++)
        assert_alike(&got->vector[i], &want->vector[i], wide ? tolerance : 5e-4);
}

/* Runs every combination of bits on the same numbers. */
static void every_way(tern_device *fast, tern_device *oracle, tern_dtype dtype, tern__layout layout, int ndim,
                      const int64_t *shape)
{
    norm start = drawn_norm(dtype, layout, ndim, shape);
    norm got = drawn_norm(dtype, layout, ndim, shape), want = drawn_norm(dtype, layout, ndim, shape);
    for (int bits = 0; bits <= ALL_BITS; bits += 5) {
        copy_into(&got, &start);
        copy_into(&want, &start);
        once(fast, oracle, &got, &want, bits);
    }
    norm_free(&start);
    norm_free(&got);
    norm_free(&want);
}

static void as_the_reference(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{3, 32, 8, 9}, {2, 16, 5, 1}, {2, 80, 9, 8}, {1, 16, 2, 25, 23},
                                        {3, 5, 7, 3},  {9, 21},       {4, 33, 5},    {2, 3, 16, 33}};
    static const int ndims[] = {4, 4, 4, 5, 4, 2, 3, 4};
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    tern_error err = {0};
    tern_device *fast = tern_device_open("cpu", &err), *oracle = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    for (size_t i = 0; i < TERN__COUNT(ndims); i++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
            every_way(fast, oracle, dtypes[d], TERN__PLAIN, ndims[i], shapes[i]);
            if (shapes[i][1] % 16 == 0)
                every_way(fast, oracle, dtypes[d], TERN__BLOCKED16, ndims[i], shapes[i]);
        }
    tern_device_close(fast);
    tern_device_close(oracle);
}

/* With as many groups of channels as threads each thread has its own group; with more, all share each group.
 */
static void groups_on_threads(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *fast = tern_device_open("cpu", &err), *oracle = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    tern_device_threads_set(fast, 3, &err);
    for (int64_t groups = 3; groups <= 4; groups++)
        every_way(fast, oracle, TERN_F32, TERN__BLOCKED16, 4, (int64_t[]){2, 16 * groups, 33, 31});
    tern_device_close(fast);
    tern_device_close(oracle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference),
                                       cmocka_unit_test(groups_on_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
