/* test_conv_unfold.c - compares the weight gradients of first layers by unfolded windows with the reference.
 * Sums of small integers are exact, so results must agree to the last bit. */
#include "kernels/conv_operands.h"

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/widths.h"

#include <math.h>

/* Depth, height and width. A depth of 0 means two dimensions. */
typedef struct sizes {
    int64_t images, in, out, size[3], kernel[3], padding[3], dilation[3], stride[3];
} sizes;

static uint32_t seed = 1;

static int64_t draw_of(int64_t least, int64_t most)
{
    seed = seed * 1664525u + 1013904223u;
    return least + (seed >> 8) % (uint64_t)(most - least + 1);
}

static tern__view drawn(tern__layout layout, int ndim, const int64_t *shape, bool whole)
{
    tern__view view = tern__view_make(TERN_F32, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    for (int64_t i = 0; i < tern__view_count(&view); i++)
        ((float *)view.data)[i] = whole ? (float)draw_of(-7, 7) : (float)draw_of(-999999, 999999) * 1e-6f;
    return view;
}

static operands make(const sizes *s, uint32_t from, bool whole)
{
    int first = s->size[0] ? 0 : 1, ndim = 5 - first;
    int64_t x[5] = {s->images, s->in}, y[5] = {s->images, s->out}, w[5] = {s->out, s->in};
    operands o = {.attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}};
    for (int axis = first, d = 2; axis < 3; axis++, d++) {
        o.attr.padding[axis] = s->padding[axis];
        o.attr.dilation[axis] = s->dilation[axis];
        o.attr.stride[axis] = s->stride[axis];
        x[d] = s->size[axis];
        w[d] = s->kernel[axis];
        y[d] = (s->size[axis] + 2 * s->padding[axis] - s->dilation[axis] * (s->kernel[axis] - 1) - 1) /
                   s->stride[axis] +
               1;
    }
    seed = from;
    o.x = drawn(TERN__PLAIN, ndim, x, whole);
    o.w = drawn(TERN__PLAIN, ndim, w, whole);
    o.b = drawn(TERN__PLAIN, 1, &s->out, whole);
    o.y = drawn(TERN__BLOCKED16, ndim, y, whole);
    return o;
}

static void need_narrow_registers(void)
{
    if (tern__is_wide()) skip_test("with vectors of 16 floats oneDNN computes these cases");
}

static sizes draw_sizes(void)
{
    sizes s = {.images = draw_of(1, 5), .in = draw_of(1, 4), .out = 16 * draw_of(1, 5)};
    bool has_depth = draw_of(0, 1);
    for (int d = has_depth ? 0 : 1; d < 3; d++) {
        s.kernel[d] = draw_of(1, has_depth ? 3 : 7);
        s.dilation[d] = draw_of(0, 3) ? 1 : 2;
        int64_t reach = s.dilation[d] * (s.kernel[d] - 1) + 1;
        s.padding[d] = draw_of(0, reach);
        s.size[d] = draw_of(TERN__MAX(1, reach - 2 * s.padding[d]), has_depth ? 9 : 40) + reach;
        s.stride[d] = d ? draw_of(1, 3) : 1;
    }
    return s;
}

/* Adds the second time, and finds dirty scratch buffers. */
static void random_shapes_agree_with_the_reference(void **state)
{
    (void)state;
    need_narrow_registers();
    tern_error err = {0};
    tern_device *plain = open_device("cpu:reference", 1);
    for (uint32_t i = 0; i < 40; i++) {
        tern_device *fast = open_device("cpu", 1 + (int)i % 3);
        seed = 7 * i;
        sizes s = draw_sizes();
        operands a = make(&s, i, true), b = make(&s, i, true);
        for (int add = 0; add < 2; add++) {
            tern__call ours = call_of(fast, TERN__CONV_WEIGHT_GRAD, &a, add, i % 2, &err);
            tern__call oracle = call_of(plain, TERN__CONV_WEIGHT_GRAD, &b, add, i % 2, &err);
            poison(fast);
            assert_int_equal(tern__conv_run(&ours, &tern__conv_unfold), TERN_OK);
            assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
            assert_ok(err);
            for (int out = 0; out < 2; out++)
                for (int64_t k = 0; ours.out[out] && k < tern__view_count(ours.out[out]); k++)
                    if (tern__view_get(ours.out[out], k) != tern__view_get(oracle.out[out], k))
                        fail_msg("case %u: element %lld of result %d is %g, expected %g", i, (long long)k,
                                 out, tern__view_get(ours.out[out], k), tern__view_get(oracle.out[out], k));
        }
        release(&a);
        release(&b);
        tern_device_close(fast);
    }
    tern_device_close(plain);
}

static const sizes demo = {5, 1, 48, {0, 28, 27}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}};

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    need_narrow_registers();
    operands one = make(&demo, 3, false);
    for (int threads = 1; threads <= 5; threads++) {
        tern_error err = {0};
        operands more = make(&demo, 3, false), *o = threads == 1 ? &one : &more;
        tern_device *device = open_device("cpu", threads);
        tern__call call = call_of(device, TERN__CONV_WEIGHT_GRAD, o, true, false, &err);
        assert_int_equal(tern__conv_run(&call, &tern__conv_unfold), TERN_OK);
        assert_memory_equal(one.w.data, o->w.data, tern__view_bytes(&one.w));
        tern_device_close(device);
        release(&more);
    }
    release(&one);
}

/* An infinity in a corner of dy, whose window reads padding: there a tap's gradient stays finite. */
static void padding_is_not_multiplied(void **state)
{
    (void)state;
    need_narrow_registers();
    tern_error err = {0};
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    operands a = make(&demo, 3, true), b = make(&demo, 3, true);
    tern__view_set(&a.y, 0, INFINITY);
    tern__view_set(&b.y, 0, INFINITY);
    tern__call ours = call_of(fast, TERN__CONV_WEIGHT_GRAD, &a, false, false, &err);
    tern__call oracle = call_of(plain, TERN__CONV_WEIGHT_GRAD, &b, false, false, &err);
    assert_int_equal(tern__conv_run(&ours, &tern__conv_unfold), TERN_OK);
    assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
    int finite = 0;
    for (int64_t i = 0; i < 9; i++) {
        double x = tern__view_get(&a.w, i), y = tern__view_get(&b.w, i);
        assert_true(x == y || (isnan(x) && isnan(y)));
        finite += isfinite(y) != 0;
    }
    assert_int_equal(finite, 5); /* the taps of the first row and column */
    release(&a);
    release(&b);
    tern_device_close(fast);
    tern_device_close(plain);
}

/* A call of another kernel, blocked channels, f64: not its cases. */
static void what_it_does_not_take(void **state)
{
    (void)state;
    need_narrow_registers();
    tern_error err = {0};
    tern_device *fast = open_device("cpu", 1);
    operands o = make(&demo, 3, true);
    tern__call call = call_of(fast, TERN__CONV, &o, false, false, &err);
    assert_int_equal(tern__conv_run(&call, &tern__conv_unfold), TERN_E_UNSUPPORTED);
    sizes wide = demo;
    wide.kernel[1] = wide.kernel[2] = 17; /* 289 elements of a window */
    wide.padding[1] = wide.padding[2] = 8;
    operands large = make(&wide, 3, true);
    call = call_of(fast, TERN__CONV_WEIGHT_GRAD, &large, false, false, &err);
    assert_int_equal(tern__conv_run(&call, &tern__conv_unfold), TERN_E_UNSUPPORTED);
    release(&o);
    release(&large);
    tern_device_close(fast);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes_agree_with_the_reference),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(padding_is_not_multiplied),
        cmocka_unit_test(what_it_does_not_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
