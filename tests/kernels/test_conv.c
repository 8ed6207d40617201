/* test_conv.c - compares the fast convolutions with the reference, for every layout of input and output, with
 * results that are stored and results that are added. */
#include "kernels/conv_operands.h"

#include "kernels/conv.h"
#include "kernels/kernel.h"

#include <dirent.h>
#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* A depth of 0 means two dimensions. */
typedef struct sizes {
    int64_t images, in, size[3], out, kernel[3];
    tern__conv_attr attr;
} sizes;

/* The dtype of the activations, and that of the parameters or their gradients. */
typedef struct dtypes {
    tern_dtype data, weight;
} dtypes;

/* Returns a view of small integers. Every sum of them is exact in f32, so results must agree to the last bit,
 * also if they are rounded to 16 bits at the end. */
static tern__view filled(tern_dtype dtype, int seed, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    uint32_t state = (uint32_t)seed * 2654435761u + 1;
    int64_t count = tern__view_count(&view);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        tern__view_set(&view, i, (double)(state >> 28) - 7);
    }
    return view;
}

static int64_t out_size(const sizes *s, int axis)
{
    const tern__conv_attr *a = &s->attr;
    int64_t reach = a->dilation[axis] * (s->kernel[axis] - 1) + 1;
    return (s->size[axis] + 2 * a->padding[axis] - reach) / a->stride[axis] + 1;
}

static operands make(const sizes *s, dtypes t, tern__layout x_layout, tern__layout y_layout)
{
    int ndim = s->size[0] ? 5 : 4;
    int64_t x[5] = {s->images, s->in}, w[5] = {s->out, s->in / s->attr.groups}, y[5] = {s->images, s->out};
    for (int d = 2, axis = 5 - ndim; axis < 3; d++, axis++) {
        x[d] = s->size[axis];
        w[d] = s->kernel[axis];
        y[d] = out_size(s, axis);
    }
    return (operands){filled(t.data, 1, x_layout, ndim, x), filled(t.weight, 2, TERN__PLAIN, ndim, w),
                      filled(t.weight, 3, TERN__PLAIN, 1, &s->out), filled(t.data, 4, y_layout, ndim, y),
                      s->attr};
}

/* Returns a unit in the last place of the largest element; 0 for f32 and f64, in which all integers are
 * exact. */
static double unit_of(const tern__view *result)
{
    double high = 0;
    int64_t count = tern__view_count(result);
    for (int64_t i = 0; i < count; i++) high = fmax(high, fabs(tern__view_get(result, i)));
    if (result->dtype == TERN_F32 || result->dtype == TERN_F64) return 0;
    return high * (result->dtype == TERN_BF16 ? 0x1p-7 : 0x1p-10);
}

/* Returns the error that a 16-bit result may have. The result is rounded, and so is the old value that it was
 * added to, by half a unit each. Winograd's sums of integers are not exact integers, so a tie may round
 * either way. */
static double rounding_of(const tern__view *result, bool added, const char *algorithm)
{
    bool is_near = algorithm && !strcmp(algorithm, "winograd");
    return unit_of(result) * ((added ? 1 : 0) + (is_near ? 1 : 0));
}

static void expect_equal(const tern__view *fast, const tern__view *plain, double bound, const char *what)
{
    int64_t count = tern__view_count(plain);
    for (int64_t i = 0; i < count; i++)
        if (fabs(tern__view_get(fast, i) - tern__view_get(plain, i)) > bound)
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, tern__view_get(fast, i),
                     tern__view_get(plain, i));
}

/* Runs the call twice: the second time it uses cached primitives and adds to a changed result. */
static void compare(tern_device *fast, tern_device *plain, tern__kernel kernel, const sizes *s, dtypes t,
                    tern__layout x_layout, tern__layout y_layout, bool add, bool bias)
{
    tern_error err = {0};
    operands a = make(s, t, x_layout, y_layout), b = make(s, t, x_layout, y_layout);
    tern__call ours = call_of(fast, kernel, &a, add, bias, &err);
    tern__call oracle = call_of(plain, kernel, &b, add, bias, &err);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tern__kernel_run(&ours), TERN_OK);
        assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
        assert_ok(err);
        for (int out = 0; out < 2; out++)
            if (ours.out[out])
                expect_equal(ours.out[out], oracle.out[out],
                             rounding_of(oracle.out[out], add && kernel != TERN__CONV_WEIGHT_GRAD,
                                         out ? NULL : fast->algorithm),
                             tern__kernel_name(kernel));
    }
    release(&a);
    release(&b);
}

/* If the weights' dtype differs from the data's, only the weight gradient is computed. */
static void layouts_and_adds_of(dtypes t)
{
    static const sizes all[] = {
        {1, 16, {0, 5, 4}, 32, {0, 3, 2}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}},
        {2, 32, {0, 5, 7}, 16, {0, 1, 1}, {{1, 2, 2}, {0, 0, 0}, {1, 1, 1}, 1}},
        {2, 3, {0, 5, 6}, 16, {0, 3, 2}, {{1, 2, 1}, {0, 1, 0}, {1, 1, 2}, 1}},
        {1, 16, {0, 5, 4}, 7, {0, 3, 3}, {{1, 1, 1}, {0, 2, 2}, {1, 2, 2}, 1}},
        {1, 5, {0, 6, 6}, 9, {0, 2, 3}, {{1, 1, 2}, {0, 0, 1}, {1, 1, 1}, 1}},
        {2, 32, {0, 5, 4}, 32, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 32}},
        {1, 32, {0, 3, 4}, 64, {0, 2, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 2}},
        {2, 6, {0, 5, 5}, 4, {0, 3, 1}, {{1, 1, 1}, {0, 1, 0}, {1, 1, 1}, 2}},
        {1, 16, {3, 2, 3}, 16, {3, 2, 3}, {{1, 1, 1}, {1, 0, 1}, {1, 1, 1}, 1}},
        {2, 16, {4, 2, 3}, 16, {2, 2, 2}, {{2, 2, 2}, {0, 0, 0}, {1, 1, 1}, 1}},
        {1, 1, {3, 3, 4}, 16, {3, 3, 3}, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1}},
        {1, 16, {4, 3, 3}, 3, {1, 3, 2}, {{2, 1, 3}, {0, 2, 1}, {1, 2, 1}, 1}},
        {1, 5, {3, 6, 4}, 9, {3, 1, 2}, {{1, 3, 1}, {2, 1, 0}, {2, 1, 3}, 1}},
        {1, 32, {3, 2, 2}, 32, {3, 2, 1}, {{1, 1, 2}, {1, 1, 0}, {1, 1, 1}, 2}},
        {2, 16, {5, 4, 6}, 32, {1, 1, 1}, {{2, 1, 3}, {0, 0, 0}, {1, 1, 1}, 1}}, /* points: thin.c */
        {2, 32, {0, 4, 5}, 32, {0, 1, 1}, {{1, 3, 1}, {0, 0, 0}, {1, 1, 1}, 2}},
        {1, 16, {0, 5, 6}, 16, {0, 3, 3}, {{1, 2, 3}, {0, 9, 9}, {1, 9, 9}, 1}}, /* one of 9 taps sees x */
    };
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    for (size_t i = 0; i < TERN__COUNT(all); i++)
        for (int k = t.data == t.weight ? TERN__CONV : TERN__CONV_WEIGHT_GRAD; k <= TERN__CONV_WEIGHT_GRAD;
             k++)
            for (int bits = 0; bits < 16; bits++) {
                tern__layout x = bits & 1 ? TERN__BLOCKED16 : TERN__PLAIN;
                tern__layout y = bits & 2 ? TERN__BLOCKED16 : TERN__PLAIN;
                bool quick = t.data != TERN_F32; /* only with both a bias and adding, or neither */
                if ((x && all[i].in % 16) || (y && all[i].out % 16)) continue;
                if ((x || y) && t.data == TERN_F64) continue;
                if (quick && !(bits & 4) != !(bits & 8)) continue;
                compare(fast, plain, (tern__kernel)k, &all[i], t, x, y, bits & 4, bits & 8);
            }
    tern_device_close(fast);
    tern_device_close(plain);
}

static const dtypes f32 = {TERN_F32, TERN_F32};

static void layouts_and_adds(void **state)
{
    (void)state;
    layouts_and_adds_of(f32);
}

static void layouts_and_adds_in_bf16(void **state)
{
    (void)state;
    layouts_and_adds_of((dtypes){TERN_BF16, TERN_BF16});
}

/* More images, channels, positions or sheets than are computed at a time; channels that do not fill a block;
 * images so small that several are computed together. */
static void large_ones_in_bf16(void **state)
{
    (void)state;
    static const struct {
        sizes s;
        tern__layout x, y;
    } all[] = {
        {{1, 80, {0, 5, 4}, 48, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__BLOCKED16},
        {{1, 80, {0, 5, 4}, 48, {0, 3, 3}, {{1, 2, 2}, {0, 1, 1}, {1, 1, 1}, 1}},
         TERN__PLAIN,
         TERN__BLOCKED16},
        {{3, 35, {0, 6, 9}, 37, {0, 2, 5}, {{1, 1, 2}, {0, 1, 3}, {1, 2, 1}, 1}}, TERN__PLAIN, TERN__PLAIN},
        {{2, 3, {0, 23, 21}, 16, {0, 7, 7}, {{1, 2, 2}, {0, 3, 3}, {1, 1, 1}, 1}},
         TERN__PLAIN,
         TERN__BLOCKED16},
        {{9, 16, {0, 64, 63}, 2, {0, 1, 1}, {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__PLAIN},
        {{9, 16, {0, 4, 3}, 32, {0, 3, 3}, {{1, 3, 3}, {0, 2, 2}, {1, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__BLOCKED16},
        {{1, 16, {23, 30, 32}, 1, {2, 1, 1}, {{1, 1, 1}, {2, 0, 0}, {3, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__PLAIN},
        {{1, 2, {40, 25, 30}, 16, {3, 2, 1}, {{3, 1, 2}, {2, 1, 0}, {1, 1, 1}, 1}},
         TERN__PLAIN,
         TERN__BLOCKED16},
        {{2, 33, {2, 3, 4}, 17, {3, 3, 3}, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1}}, TERN__PLAIN, TERN__PLAIN},
        {{19, 48, {0, 4, 4}, 32, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__BLOCKED16},
        {{7, 32, {3, 4, 4}, 16, {3, 3, 3}, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1}},
         TERN__BLOCKED16,
         TERN__BLOCKED16},
    };
    dtypes t = {TERN_BF16, TERN_BF16};
    for (int threads = 1; threads <= 2; threads++) {
        tern_device *fast = open_device("cpu", threads), *plain = open_device("cpu:reference", 1);
        for (size_t i = 0; i < TERN__COUNT(all); i++)
            for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
                compare(fast, plain, (tern__kernel)k, &all[i].s, t, all[i].x, all[i].y, threads == 2, true);
        tern_device_close(fast);
        tern_device_close(plain);
    }
}

static void gradients_in_f32_of_16_bits(void **state)
{
    (void)state;
    layouts_and_adds_of((dtypes){TERN_BF16, TERN_F32});
    layouts_and_adds_of((dtypes){TERN_F16, TERN_F32});
}

static void layouts_and_adds_in_f16(void **state)
{
    (void)state;
    layouts_and_adds_of((dtypes){TERN_F16, TERN_F16});
}

static void layouts_and_adds_in_f64(void **state)
{
    (void)state;
    layouts_and_adds_of((dtypes){TERN_F64, TERN_F64});
}

/* Images and volumes of several bands of rows; a row longer than a band; groups; an image smaller than the
 * kernel; positions that no tap sees; bands of several images and of parts of them. */
static void large_ones_in_f64(void **state)
{
    (void)state;
    static const sizes all[] = {
        {2, 35, {0, 30, 29}, 37, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}},
        {1, 3, {5, 23, 61}, 4, {3, 7, 7}, {{2, 1, 2}, {1, 3, 3}, {1, 1, 1}, 1}},
        {1, 60, {0, 3, 300}, 6, {0, 3, 5}, {{1, 1, 1}, {0, 2, 3}, {1, 1, 2}, 1}},
        {2, 24, {0, 19, 20}, 24, {0, 5, 5}, {{1, 3, 3}, {0, 1, 1}, {1, 2, 1}, 4}},
        {1, 2, {0, 2, 3}, 5, {0, 7, 7}, {{1, 1, 1}, {0, 3, 3}, {1, 1, 1}, 1}},
        {19, 60, {0, 4, 4}, 18, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}},
        {23, 120, {0, 7, 5}, 18, {0, 3, 3}, {{1, 1, 2}, {0, 1, 1}, {1, 1, 1}, 2}},
        {7, 30, {3, 5, 4}, 10, {3, 3, 3}, {{2, 1, 1}, {1, 1, 0}, {1, 1, 1}, 1}},
    };
    dtypes t = {TERN_F64, TERN_F64};
    for (int threads = 1; threads <= 3; threads++) {
        tern_device *fast = open_device("cpu", threads), *plain = open_device("cpu:reference", 1);
        for (size_t i = 0; i < TERN__COUNT(all); i++)
            for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
                compare(fast, plain, (tern__kernel)k, &all[i], t, TERN__PLAIN, TERN__PLAIN, threads == 2,
                        true);
        tern_device_close(fast);
        tern_device_close(plain);
    }
}

static const sizes threaded = {2, 16, {0, 6, 5}, 16, {0, 3, 3}, {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}};

static int running_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Even if OpenMP may use four threads; the caller's setting does not change. This test runs first, since
 * OpenMP keeps its threads. */
static void a_device_of_one_thread_starts_no_other(void **state)
{
    (void)state;
    int before = running_threads();
#ifdef _OPENMP
    omp_set_num_threads(4);
#endif
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
        compare(fast, plain, (tern__kernel)k, &threaded, f32, TERN__BLOCKED16, TERN__BLOCKED16, true, true);
    assert_int_equal(running_threads(), before);
#ifdef _OPENMP
    assert_int_equal(omp_get_max_threads(), 4);
#endif
    tern_device_close(fast);
    tern_device_close(plain);
}

static void one_thread_and_then_two(void **state)
{
    (void)state;
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    for (int threads = 1; threads <= 2; threads++) {
        tern_error err = {0};
        tern_device_threads_set(fast, threads, &err);
        assert_ok(err);
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
            compare(fast, plain, (tern__kernel)k, &threaded, f32, TERN__BLOCKED16, TERN__BLOCKED16, true,
                    true);
    }
    tern_device_close(fast);
    tern_device_close(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_of_one_thread_starts_no_other),
        cmocka_unit_test(layouts_and_adds),
        cmocka_unit_test(layouts_and_adds_in_bf16),
        cmocka_unit_test(layouts_and_adds_in_f16),
        cmocka_unit_test(layouts_and_adds_in_f64),
        cmocka_unit_test(large_ones_in_bf16),
        cmocka_unit_test(large_ones_in_f64),
        cmocka_unit_test(gradients_in_f32_of_16_bits),
        cmocka_unit_test(one_thread_and_then_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
