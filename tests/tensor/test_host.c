/* test_host.c - copies between views of any dtypes and strides. */
#include "check.h"

#include "tensor/host.h"

enum { ROWS = 2, COLUMNS = 3 };

/* Returns the transpose of a row-major matrix of ROWS x COLUMNS over `data`. */
static tern__view turned(tern_dtype dtype, void *data)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 2, (int64_t[]){COLUMNS, ROWS});
    view.data = data;
    view.stride[0] = 1;
    view.stride[1] = COLUMNS;
    return view;
}

static tern__view rows(tern_dtype dtype, void *data)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 2, (int64_t[]){COLUMNS, ROWS});
    view.data = data;
    return view;
}

/* 0x7f800001 is a signaling NaN, which a conversion would make quiet. */
static void equal_dtypes_keep_all_bits(void **state)
{
    (void)state;
    const uint32_t expected[] = {0x3f800000, 0xff800002, 0x7f800001, 0x80000000, 0x7fc00003, 0x00000001};
    uint32_t from[] = {0x3f800000, 0x7f800001, 0x7fc00003, 0xff800002, 0x80000000, 0x00000001};
    uint32_t to[ROWS * COLUMNS] = {0};
    tern_error err = {0};
    tern__view source = turned(TERN_F32, from), target = rows(TERN_F32, to);
    assert_int_equal(tern__host_convert(&target, &source, &err), TERN_OK);
    assert_memory_equal(to, expected, sizeof(to));
}

static void other_dtypes_keep_values(void **state)
{
    (void)state;
    double from[] = {-1.5, 0, 2, 3.5, 4, -0.5};
    float to[ROWS * COLUMNS];
    tern_error err = {0};
    tern__view source = turned(TERN_F64, from), target = rows(TERN_F32, to);
    assert_int_equal(tern__host_convert(&target, &source, &err), TERN_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(to[i] == (float)from[i % ROWS * COLUMNS + i / ROWS]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_dtypes_keep_all_bits),
        cmocka_unit_test(other_dtypes_keep_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
