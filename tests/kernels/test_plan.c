/* test_plan.c - plans of element-wise kernels: which dimensions of their operands are merged. */
#include "check.h"

#include "kernels/plan.h"

#include <stdio.h>
#include <string.h>

static tern__view view_of(tern__layout layout, int64_t channels)
{
    return tern__view_make(TERN_F32, layout, 5, (int64_t[]){2, channels, 3, 4, 5});
}

/* `expected` has the sizes and strides as text, the innermost dimension first. */
static void expect_plan(const tern__view *a, const tern__view *b, const tern__view *c, const char *expected)
{
    const tern__view *views[] = {a, b, c};
    tern__plan plan = tern__plan_of(views, 3);
    char text[256] = "";
    for (int d = 0; d < plan.ndim; d++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d:", (int)plan.shape[d]);
        for (int o = 0; o < 3; o++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), " %d", (int)plan.stride[o][d]);
        if (d + 1 < plan.ndim) strcat(text, ", ");
    }
    assert_string_equal(text, expected);
}

static void equal_layouts_are_one_run(void **state)
{
    (void)state;
    const tern__layout layouts[] = {TERN__PLAIN, TERN__BLOCKED16, TERN__CHANNELS_LAST};
    for (int i = 0; i < 3; i++) {
        tern__view view = view_of(layouts[i], 32);
        expect_plan(&view, NULL, &view, "3840: 1 0 1");
    }
}

static void channels_last_are_walked_first(void **state)
{
    (void)state;
    tern__view x = view_of(TERN__CHANNELS_LAST, 6), plain = view_of(TERN__PLAIN, 6), bias = plain, part = x;
    for (int d = 0; d < 5; d++) bias.stride[d] = d == 1;
    expect_plan(&x, &bias, &x, "6: 1 1 1, 120: 6 0 6");
    expect_plan(&x, NULL, &plain, "6: 1 0 60, 60: 6 0 1, 2: 360 0 360");
    part.layout = TERN__PLAIN; /* of 10 channels */
    for (int d = 0; d < 5; d++) part.stride[d] = d == 1 ? 1 : part.stride[d] / 6 * 10;
    expect_plan(&part, NULL, &x, "6: 1 0 1, 120: 10 0 6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_layouts_are_one_run),
        cmocka_unit_test(channels_last_are_walked_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
