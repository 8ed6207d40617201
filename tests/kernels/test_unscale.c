/* test_unscale.c - compares the fast unscale kernel with the reference: dtypes, odd sizes, numbers of
 * threads, in place, into other memory, or only counting. */
#include "check.h"

#include "kernels/kernel.h"
#include "kernels/loss_scale.h"

#include <math.h>

static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
static const int64_t sizes[] = {0, 1, 17, 2048, 2049, 100003};

static tern__view new_vector(tern_dtype dtype, int64_t count)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &count);
    view.data = tern__alloc(tern__view_bytes(&view) + 1, __func__, NULL);
    assert_non_null(view.data);
    return view;
}

/* Makes every 97th element an infinity or a NaN. Returns how many there are. */
static int fill(const tern__view *view)
{
    int bad = 0;
    uint32_t seed = 5;
    for (int64_t i = 0; i < tern__view_count(view); i++) {
        seed = seed * 1664525u + 1013904223u;
        double value = ((double)(seed >> 8) / 8388608 - 1) * 1000;
        if (i % 97 == 16) value = i % 3 ? INFINITY : i % 2 ? -INFINITY : NAN;
        bad += !isfinite(value);
        tern__view_set(view, i, value);
    }
    return bad;
}

static double run(const char *name, int threads, const tern__view *x, const tern__view *y, double factor)
{
    tern_error err = {0};
    double bad = -1;
    tern__unscale_attr attr = {factor};
    tern__view count = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    count.data = &bad;
    tern_device *device = tern_device_open(name, &err);
    tern_device_threads_set(device, threads, &err);
    tern__call call = {
        .device = device, .kernel = TERN__UNSCALE, .in = {x}, .out = {y, &count}, .attr = &attr, .err = &err};
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    tern_device_close(device);
    return bad;
}

static void expect_same(tern_dtype dtype, int64_t count, int threads)
{
    tern__view x = new_vector(dtype, count), fast = new_vector(dtype, count), want = new_vector(dtype, count);
    int bad = fill(&x);
    const double factor = 1 / 3.0;
    assert_true(run("cpu", threads, &x, NULL, 1) == bad);
    assert_true(run("cpu", threads, &x, &fast, factor) == bad);
    assert_true(run("cpu:reference", 1, &x, &want, factor) == bad);
    for (int64_t i = 0; i < count; i++) {
        double a = tern__view_get(&fast, i), b = tern__view_get(&want, i);
        if (isnan(b)) assert_true(isnan(a));
        if (!isnan(b) &&
            !(a == b || fabs(a - b) <= 1e-6 * fabs(b) || dtype == TERN_BF16 || dtype == TERN_F16))
            fail_msg("%s %lld: %g, expected %g", tern_dtype_name(dtype), (long long)i, a, b);
        if (isfinite(b) && fabs(a - b) > fabs(b) / 128) fail_msg("%g, expected %g", a, b);
    }
    assert_true(run("cpu", threads, &x, &x, factor) == bad); /* in place */
    for (int64_t i = 0; i < count; i++) {
        double a = tern__view_get(&x, i), b = tern__view_get(&fast, i);
        assert_true(a == b || (isnan(a) && isnan(b)));
    }
    tern__free(x.data);
    tern__free(fast.data);
    tern__free(want.data);
}

static void as_the_reference(void **state)
{
    (void)state;
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
        for (size_t s = 0; s < TERN__COUNT(sizes); s++) expect_same(dtypes[d], sizes[s], 1 + (int)(s % 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
