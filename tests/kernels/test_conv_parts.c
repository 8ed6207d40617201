/* test_conv_parts.c - compares f32 convolutions that are computed from products of bf16 parts with f64: the
 * error of every element is within what the parts leave out, and the error of real layers is far below that
 * of Winograd in f32. */
#include "check.h"

#include "kernels/conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/kernel.h"

#include <math.h>
#include <stdio.h>

static tern_device *fast, *plain;
static uint32_t seed;

static uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static int64_t draw_of(int64_t least, int64_t most)
{
    return least + draw() % (most - least + 1);
}

/* Opens a device whose rules let the fixed table choose the tile unit: it may round f32. */
static void open_devices(int threads)
{
    tern_error err = {0};
    tern_device_conv_opts opts = tern_device_conv_defaults();
    opts.exact = false;
    opts.deterministic = true;
    fast = tern_device_open("cpu", &err);
    plain = tern_device_open("cpu:reference", &err);
    tern_device_threads_set(fast, threads, &err);
    tern_device_conv_set(fast, &opts, &err);
    assert_ok(err);
}

static void close_devices(void)
{
    tern_device_close(fast);
    tern_device_close(plain);
}

static tern__view filled(tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(TERN_F32, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    int64_t count = tern__view_count(&view);
    for (int64_t i = 0; i < count; i++) ((float *)view.data)[i] = (float)draw() / (1 << 23) - 1;
    return view;
}

/* Returns the numbers, or their absolute values, in f64. */
static tern__view widened(const tern__view *view, bool magnitudes)
{
    tern__view wide = *view;
    wide.dtype = TERN_F64;
    wide.data = tern__alloc(tern__view_bytes(&wide), __func__, NULL);
    assert_non_null(wide.data);
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) {
        double value = ((const float *)view->data)[i];
        ((double *)wide.data)[i] = magnitudes ? fabs(value) : value;
    }
    return wide;
}

/* ---- random cases ---- */

enum { X, W, B, Y, OPERANDS };

typedef struct sample {
    tern__kernel kernel;
    tern__conv_attr attr;
    tern__view view[OPERANDS];
    int64_t products; /* of an element, at most */
    bool add;
} sample;

static int64_t channels(tern__layout layout)
{
    return layout == TERN__BLOCKED16 ? 16 * draw_of(1, 6) : draw_of(1, 100);
}

/* Draws a case in which only some of the sizes are large. */
static sample draw_sample(void)
{
    sample s = {.kernel = draw() % 2 ? TERN__CONV : TERN__CONV_DATA_GRAD, .add = draw() % 2};
    int ndim = draw() % 3 ? 4 : 5;
    tern__layout layout[] = {draw() % 3 ? TERN__BLOCKED16 : TERN__PLAIN,
                             draw() % 3 ? TERN__BLOCKED16 : TERN__PLAIN};
    int64_t x[5] = {draw() % 2 ? 1 + draw() % 3 : 1 + draw() % 20, channels(layout[0])}, y[5] = {x[0]}, w[5];
    y[1] = w[0] = channels(layout[1]);
    w[1] = x[1];
    s.attr = (tern__conv_attr){{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    s.products = s.kernel == TERN__CONV ? x[1] : y[1];
    for (int d = 2, a = 5 - ndim; d < ndim; d++, a++) {
        int64_t most = ndim == 5 ? 3 : 7, size = draw_of(1, ndim == 5 ? 6 : 12);
        w[d] = draw_of(1, most);
        s.attr.stride[a] = draw_of(1, 3);
        s.attr.dilation[a] = draw_of(1, 2);
        int64_t reach = (w[d] - 1) * s.attr.dilation[a] + 1;
        s.attr.padding[a] = draw_of(0, reach / 2);
        x[d] = TERN__MAX(reach - 2 * s.attr.padding[a], size);
        y[d] = (x[d] + 2 * s.attr.padding[a] - reach) / s.attr.stride[a] + 1;
        s.products *= w[d];
    }
    s.view[X] = filled(layout[0], ndim, x);
    s.view[W] = filled(TERN__PLAIN, ndim, w);
    s.view[B] = filled(TERN__PLAIN, 1, y + 1);
    s.view[Y] = filled(layout[1], ndim, y);
    return s;
}

static const tern__view *run(tern_device *device, const sample *s, const tern__view view[OPERANDS])
{
    tern_error err = {0};
    bool forward = s->kernel == TERN__CONV;
    tern__call call = {.device = device, .kernel = s->kernel, .attr = &s->attr, .add = {s->add}, .err = &err};
    call.in[0] = &view[forward ? X : Y];
    call.in[1] = &view[W];
    if (forward) call.in[2] = &view[B];
    call.out[0] = &view[forward ? Y : X];
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_ok(err);
    return call.out[0];
}

/* Returns the largest possible error of an element. Each product has an error of 2^-16 (the lower parts'
 * product), twice 2^-17 (the bits below the parts), and products of these, below 2^-24. Each addition has an
 * error of 2^-24 of the sum so far: in three sums of half as many steps, for the bias, and for the old value.
 */
static double bound_of(const sample *s, double magnitude)
{
    return magnitude * (0x1p-15 + (1.5 * (double)s->products + 4) * 0x1p-24);
}

static void expect_close(const sample *s)
{
    tern__view wide[OPERANDS], size[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        wide[i] = widened(&s->view[i], false);
        size[i] = widened(&s->view[i], true);
    }
    const tern__view *got = run(fast, s, s->view), *want = run(plain, s, wide), *most = run(plain, s, size);
    int64_t count = tern__view_count(got);
    for (int64_t i = 0; i < count; i++) {
        double g = (double)((const float *)got->data)[i], w = ((const double *)want->data)[i];
        double bound = bound_of(s, ((const double *)most->data)[i]);
        char text[2][TERN__SHAPE_TEXT];
        if (!(fabs(g - w) <= bound))
            fail_msg("%s of x %s and w %s: element %lld is %.9g, expected %.9g within %g",
                     tern__kernel_name(s->kernel), tern__shape_text(&s->view[X], text[0]),
                     tern__shape_text(&s->view[W], text[1]), (long long)i, g, w, bound);
    }
    for (int i = 0; i < OPERANDS; i++) {
        tern__free(wide[i].data);
        tern__free(size[i].data);
        tern__free(s->view[i].data);
    }
}

static void random_cases_are_within_what_the_parts_leave_out(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        open_devices(threads);
        for (int i = 0; i < 60; i++) {
            sample s;
            do {
                s = draw_sample();
                int64_t work = s.products * tern__view_count(&s.view[s.kernel == TERN__CONV ? Y : X]);
                if (work < 3000000) break;
                for (int v = 0; v < OPERANDS; v++) tern__free(s.view[v].data);
            } while (true);
            expect_close(&s);
        }
        close_devices();
    }
}

/* ---- layers ---- */

typedef struct layer {
    const char *name;
    int64_t images, in, depth, size, out, kernel, stride;
} layer;

static double value_of(const tern__view *v, int64_t n, int64_t c, const int64_t at[3])
{
    int64_t i = n * v->shape[1] + c;
    for (int d = 2; d < v->ndim; d++) i = i * v->shape[d] + at[d - 2];
    return tern__view_get(v, i);
}

/* Computes one element of y, or of dx, in f64. */
static double element_of(const sample *s, int64_t n, int64_t channel, const int64_t at[3])
{
    bool forward = s->kernel == TERN__CONV;
    const tern__view *from = &s->view[forward ? X : Y], *w = &s->view[W];
    int axes = w->ndim - 2;
    int64_t taps = tern__view_count(w) / (w->shape[0] * w->shape[1]);
    double sum = forward ? tern__view_get(&s->view[B], channel) : 0;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t k[3], place[3];
        bool there = true;
        for (int64_t d = axes - 1, rest = tap; d >= 0; rest /= w->shape[2 + d--]) {
            int64_t stride = s->attr.stride[2], padding = s->attr.padding[2];
            k[d] = rest % w->shape[2 + d];
            place[d] = forward ? at[d] * stride + k[d] - padding : at[d] + padding - k[d];
            if (!forward) there = there && place[d] % stride == 0;
            if (!forward) place[d] /= stride;
            there = there && place[d] >= 0 && place[d] < from->shape[2 + d] &&
                    (forward || at[d] + padding >= k[d]);
        }
        for (int64_t c = 0; c < from->shape[1] && there; c++)
            sum += value_of(from, n, c, place) * value_of(w, forward ? channel : c, forward ? c : channel, k);
    }
    return sum;
}

/* Returns the root mean square of the error, relative to that of the result, over randomly chosen elements.
 */
static double error_of(const sample *s, const tern__view *result, int count)
{
    double squares = 0, error = 0;
    for (int i = 0; i < count; i++) {
        int64_t n = draw_of(0, result->shape[0] - 1), c = draw_of(0, result->shape[1] - 1), at[3];
        for (int d = 2; d < result->ndim; d++) at[d - 2] = draw_of(0, result->shape[d] - 1);
        double want = element_of(s, n, c, at), got = value_of(result, n, c, at);
        squares += want * want;
        error += (got - want) * (got - want);
    }
    return sqrt(error / squares);
}

static sample sample_of(const layer *l, tern__kernel kernel)
{
    int64_t padding = l->kernel / 2, stride = l->stride, k = l->kernel, i = l->size;
    int64_t o = (i + 2 * padding - k) / stride + 1;
    sample s = {.kernel = kernel,
                .attr = {{stride, stride, stride}, {padding, padding, padding}, {1, 1, 1}, 1}};
    int ndim = l->depth ? 5 : 4;
    int64_t x[5] = {l->images, l->in, i, i, i}, y[5] = {l->images, l->out, o, o, o};
    int64_t w[5] = {l->out, l->in, k, k, k};
    if (ndim == 4) {
        s.attr.stride[0] = s.attr.dilation[0] = 1;
        s.attr.padding[0] = 0;
    }
    s.view[X] = filled(l->in % 16 ? TERN__PLAIN : TERN__BLOCKED16, ndim, x);
    s.view[W] = filled(TERN__PLAIN, ndim, w);
    s.view[B] = filled(TERN__PLAIN, 1, &l->out);
    s.view[Y] = filled(TERN__BLOCKED16, ndim, y);
    return s;
}

/* Layers of ResNet-18 (32 x 32 and 224 x 224), ResNet-50 and a 3-D U-Net. Winograd F(4, 3) in f32 has 1e-5.
 */
static void errors_of_layers_are_below_those_of_winograd(void **state)
{
    (void)state;
    static const layer layers[] = {
        {"first", 4, 3, 0, 32, 64, 3, 1},
        {"first, 7x7", 1, 3, 0, 64, 64, 7, 2},
        {"64 at 32x32", 4, 64, 0, 32, 64, 3, 1},
        {"64 to 128, stride 2", 4, 64, 0, 32, 128, 3, 2},
        {"256 at 8x8", 8, 256, 0, 8, 256, 3, 1},
        {"512 at 4x4", 16, 512, 0, 4, 512, 3, 1},
        {"256 to 1024, 1x1", 2, 256, 0, 14, 1024, 1, 1},
        {"2048 to 512, 1x1", 2, 2048, 0, 7, 512, 1, 1},
        {"512 at 7x7", 2, 512, 0, 7, 512, 3, 1},
        {"32 at 24x24x24", 1, 32, 24, 24, 32, 3, 1},
        {"256 at 6x6x6", 1, 256, 6, 6, 256, 3, 1},
    };
    open_devices(1);
    for (size_t i = 0; i < TERN__COUNT(layers); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_DATA_GRAD; k++) {
            sample s = sample_of(&layers[i], (tern__kernel)k);
            double error = error_of(&s, run(fast, &s, s.view), 100);
            print_message("%-20s %-14s %.1e\n", layers[i].name, tern__kernel_name(s.kernel), error);
            if (!(error < 0x1p-17)) fail_msg("%s: error of %g", layers[i].name, error);
            for (int v = 0; v < OPERANDS; v++) tern__free(s.view[v].data);
        }
    close_devices();
}

/* ---- infinity and NaN ---- */

/* In a 1x1 convolution y is not finite exactly where x is not. A finite number that bf16 would round to
 * infinity keeps its value. */
static void only_what_is_not_finite_makes_such_results(void **state)
{
    (void)state;
    open_devices(1);
    layer l = {"", 1, 32, 0, 8, 16, 1, 1};
    sample s = sample_of(&l, TERN__CONV);
    float *x = s.view[X].data, *y = s.view[Y].data, *w = s.view[W].data;
    for (int64_t i = 0; i < 16 * 32; i++) w[i] = 1;
    x[3 * 16] = INFINITY;
    x[20 * 16 + 5] = NAN;
    x[41 * 16 + 15] = 0x1.ff8p127f;
    run(fast, &s, s.view);
    for (int64_t i = 0; i < 64; i++)
        for (int64_t c = 0; c < 16; c++) assert_int_equal(isfinite(y[i * 16 + c]), i != 3 && i != 20);
    assert_true(fabsf(y[41 * 16] / 0x1.ff8p127f - 1) < 0x1p-15f);
    for (int v = 0; v < OPERANDS; v++) tern__free(s.view[v].data);
    close_devices();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_cases_are_within_what_the_parts_leave_out),
        cmocka_unit_test(errors_of_layers_are_below_those_of_winograd),
        cmocka_unit_test(only_what_is_not_finite_makes_such_results),
    };
    if (!tern__amx_has()) return skip_program("this CPU has no tile unit");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
