/* test_winograd_dilated.c - Winograd's convolutions with dilations above 1. A phase of an image, that is
 * every d-th row and column, is convolved like an image of its own. The bits are equal if the tiles are
 * multiplied in the same order. The error against the reference is at most twice that of undilated
 * convolutions with as many channels (docs/conv.md). */
#include "kernels/conv_operands.h"

#include "kernels/cpu/conv/winograd/conv.h"

#include <math.h>

#define ERROR 2e-6 /* root mean square, relative to that of the result */

typedef struct sizes {
    int64_t images, in, out, size[2], padding[2], dilation[2];
} sizes;

static tern__view filled(int seed, tern__layout layout, const int64_t shape[4])
{
    tern__view view = tern__view_make(TERN_F32, layout, 4, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    uint32_t state = (uint32_t)seed * 2654435761u + 1;
    for (int64_t i = 0; i < tern__view_count(&view); i++) {
        state = state * 1664525u + 1013904223u;
        tern__view_set(&view, i, (double)(state >> 8) * 0x1p-23 - 1);
    }
    return view;
}

static operands make(const sizes *s)
{
    const int64_t *p = s->padding, *d = s->dilation;
    int64_t x[] = {s->images, s->in, s->size[0], s->size[1]}, w[] = {s->out, s->in, 3, 3};
    int64_t y[] = {s->images, s->out, s->size[0] + 2 * (p[0] - d[0]), s->size[1] + 2 * (p[1] - d[1])};
    return (operands){filled(1, TERN__BLOCKED16, x),
                      filled(2, TERN__PLAIN, w),
                      {0},
                      filled(3, TERN__BLOCKED16, y),
                      {{1, 1, 1}, {0, p[0], p[1]}, {1, d[0], d[1]}, 1}};
}

static const tern__view *run(tern_device *device, tern__kernel kernel, operands *o, bool add)
{
    tern_error err = {0};
    tern__call call = call_of(device, kernel, o, add, false, &err);
    assert_true(tern__winograd_takes(&call, &o->x, &o->w, &o->y));
    int status = kernel == TERN__CONV_WEIGHT_GRAD ? tern__winograd_weight_grad(&call, &o->x, &o->y, &o->w)
                                                  : tern__winograd(&call, &o->x, &o->w, &o->y, NULL);
    assert_int_equal(status, TERN_OK);
    return call.out[0];
}

/* Draws dilations up to beyond the image, and any possible padding. */
static sizes random_sizes(uint32_t *state)
{
    sizes s = {1 + draw_below(state, 3),
               16 * (1 + draw_below(state, 4)),
               16 * (1 + draw_below(state, 4)),
               {0},
               {0},
               {0}};
    for (int i = 0; i < 2; i++) {
        s.dilation[i] = 1 + draw_below(state, 14);
        s.padding[i] = draw_below(state, (uint32_t)(2 * s.dilation[i] + 1));
        int64_t least = 2 * (s.dilation[i] - s.padding[i]) + 1;
        s.size[i] = 1 + draw_below(state, 20);
        if (s.size[i] < least) s.size[i] = least;
    }
    return s;
}

static void expect_near(const tern__view *ours, const tern__view *plain)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < tern__view_count(plain); i++) {
        double want = tern__view_get(plain, i);
        error += pow(tern__view_get(ours, i) - want, 2);
        size += want * want;
    }
    if (!(sqrt(error) <= ERROR * sqrt(size))) fail_msg("off by %g of %g", sqrt(error), sqrt(size));
}

static void random_shapes(void **state)
{
    (void)state;
    uint32_t seed = 9;
    tern_device *fast = open_device("cpu", 2), *plain = open_device("cpu:reference", 1);
    for (int i = 0; i < 60; i++) {
        sizes s = random_sizes(&seed);
        tern__kernel kernel = (tern__kernel)(TERN__CONV + i % 3);
        operands a = make(&s), b = make(&s);
        tern_error err = {0};
        tern__call oracle = call_of(plain, kernel, &b, i & 1, false, &err);
        assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
        expect_near(run(fast, kernel, &a, i & 1), oracle.out[0]);
        release(&a);
        release(&b);
    }
    tern_device_close(fast);
    tern_device_close(plain);
}

/* The dilation cuts `whole` into phases of equal size, which `phase` has as images. */
static const sizes whole = {2, 32, 48, {12, 24}, {2, 6}, {2, 3}};
static const sizes phase = {12, 32, 48, {6, 8}, {1, 2}, {1, 1}};

/* Element (n, c, row, column) of the whole is element (n', c, row / 2, column / 3) of the phases' images. */
static int64_t place_in_phases(const tern__view *of, const tern__view *phases, int64_t i)
{
    int64_t width = of->shape[3], height = of->shape[2], column = i % width, row = i / width % height;
    int64_t c = i / width / height % of->shape[1], n = i / width / height / of->shape[1];
    int64_t image = (n * 2 + row % 2) * 3 + column % 3;
    return ((image * of->shape[1] + c) * phases->shape[2] + row / 2) * phases->shape[3] + column / 3;
}

static void copy_into_phases(const tern__view *phases, const tern__view *of)
{
    for (int64_t i = 0; i < tern__view_count(of); i++)
        tern__view_set(phases, place_in_phases(of, phases, i), tern__view_get(of, i));
}

static void a_phase_is_an_image(void **state)
{
    (void)state;
    tern_device *device = open_device("cpu", 1);
    for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
        operands a = make(&whole), b = make(&phase);
        copy_into_phases(&b.x, &a.x);
        copy_into_phases(&b.y, &a.y);
        const tern__view *one = run(device, (tern__kernel)k, &a, false);
        const tern__view *many = run(device, (tern__kernel)k, &b, false);
        if (k == TERN__CONV_WEIGHT_GRAD) {
            expect_near(one, many); /* the tiles are summed in another order */
        } else {
            for (int64_t i = 0; i < tern__view_count(one); i++)
                assert_true(tern__view_get(one, i) == tern__view_get(many, place_in_phases(one, many, i)));
        }
        release(&a);
        release(&b);
    }
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(a_phase_is_an_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
