/* test_reorder.c - copies of tensors between layouts. */
#include "check.h"

#include "kernels/kernel.h"

static tern__view numbered(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape,
                           double first)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    int64_t count = tern__view_count(&view);
    for (int64_t i = 0; i < count; i++) tern__view_set(&view, i, first + (double)i);
    return view;
}

static void once(tern_device *device, tern_dtype dtype, int ndim, const int64_t *shape, int bits)
{
    tern_error err = {0};
    tern__view x = numbered(dtype, bits & 1 ? TERN__BLOCKED16 : TERN__PLAIN, ndim, shape, 1);
    tern__view y = numbered(dtype, bits & 2 ? TERN__BLOCKED16 : TERN__PLAIN, ndim, shape, 1000);
    tern__view was = numbered(dtype, TERN__PLAIN, ndim, shape, 1000); /* y's expected values */
    bool add = bits & 4;
    tern__call call = {
        .device = device, .kernel = TERN__REORDER, .in = {&x}, .out = {&y}, .add = {add}, .err = &err};
    for (int run = 1; run <= 2; run++) {
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
        assert_ok(err);
        int64_t count = tern__view_count(&x);
        for (int64_t i = 0; i < count; i++) {
            tern__view_set(&was, i,
                           add ? tern__view_get(&was, i) + tern__view_get(&x, i) : tern__view_get(&x, i));
            assert_true(tern__view_get(&y, i) == tern__view_get(&was, i));
        }
    }
    tern__free(x.data);
    tern__free(y.data);
    tern__free(was.data);
}

static void any_layout_to_any(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{2, 16, 3, 5}, {1, 48, 1, 1}, {3, 32, 7}, {2, 32}, {1, 16, 2, 3, 4}};
    static const int ndims[] = {4, 4, 3, 2, 5};
    for (int reference = 0; reference < 2; reference++) {
        tern_error err = {0};
        tern_device *device = tern_device_open(reference ? "cpu:reference" : "cpu", &err);
        assert_ok(err);
        for (size_t i = 0; i < TERN__COUNT(ndims); i++)
            for (int bits = 0; bits < 8; bits++) {
                static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
                for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
                    once(device, dtypes[d], ndims[i], shapes[i], bits);
            }
        tern_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_layout_to_any)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
