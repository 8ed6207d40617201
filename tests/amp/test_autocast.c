#include "ledger.h"

#include <string.h>

#include "nn/nn.h"

static tern_device *dev;
static tern_rng *rng;
static tern_scope *scope;

static int open_world(void **state)
{
    (void)state;
    tern_error err = {0};
    dev = tern_device_open("cpu", &err);
    rng = tern_rng_new(1, &err);
    scope = tern_scope_new(dev, NULL, &err);
    return err.code;
}

static int close_world(void **state)
{
    (void)state;
    tern_scope_free(scope);
    tern_rng_free(rng);
    tern_device_close(dev);
    return 0;
}

static tern_tensor *draw(int64_t rows, int64_t columns)
{
    return tern_randn(scope, rng, 2, (int64_t[]){rows, columns});
}

static void regions_nest_and_return_what_was(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(tern_autocast_set(scope, TERN_BF16), TERN_F32);
    assert_int_equal(tern_tensor_dtype(tern_matmul(scope, draw(2, 3), draw(3, 4))), TERN_BF16);
    assert_int_equal(tern_autocast_set(scope, TERN_F16), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_matmul(scope, draw(2, 3), draw(3, 4))), TERN_F16);
    assert_int_equal(tern_autocast_set(scope, TERN_BF16), TERN_F16);
    assert_int_equal(tern_tensor_dtype(tern_matmul(scope, draw(2, 3), draw(3, 4))), TERN_BF16);
    assert_int_equal(tern_autocast_set(scope, TERN_F32), TERN_BF16);
    assert_int_equal(tern_tensor_dtype(tern_matmul(scope, draw(2, 3), draw(3, 4))), TERN_F32);
    tern_scope_end(scope, &err);
    assert_ok(err);
}

static void another_dtype_is_refused(void **state)
{
    (void)state;
    const tern_dtype wrong[] = {TERN_F64, TERN_I64, TERN_BOOL, (tern_dtype)99};
    for (int i = 0; i < (int)TERN__COUNT(wrong); i++) {
        tern_error err = {0};
        tern_autocast_set(scope, TERN_BF16);
        assert_int_equal(tern_autocast_set(scope, wrong[i]), TERN_BF16);
        assert_int_equal(tern_scope_end(scope, &err), TERN_E_DTYPE);
        assert_string_equal(err.func, "tern_autocast_set");
        assert_non_null(strstr(err.text, tern_dtype_name(wrong[i])));
        assert_int_equal(tern_autocast_set(scope, TERN_F32), TERN_BF16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_nest_and_return_what_was),
        cmocka_unit_test(another_dtype_is_refused),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
