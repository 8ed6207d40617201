/* test_winograd_volume.c - compares Winograd's convolutions of volumes with those of images, whose error
 * bound test_winograd.c checks.
 *
 * By definition a sheet of a convolved volume is a convolved image whose channels are those of all sheets
 * that the kernel sees, with zeros beyond the volume. Both sum the channels in the same order, so they must
 * agree to the last bit. A weight gradient is a sum over tiles, which volumes sum in another order. Its error
 * against the definition, computed in double, may be twice that of the images. */
#include "kernels/conv_operands.h"

#include "kernels/cpu/conv/winograd/conv.h"

#include <math.h>
#include <string.h>

/* Arrays hold depth, height and width. */
typedef struct sizes {
    int64_t images, in, out, taps, size[3], padding[3], dilation[3];
} sizes;

static uint32_t seed = 1;

static int64_t draw_of(int64_t least, int64_t most)
{
    seed = seed * 1664525u + 1013904223u;
    return least + (seed >> 8) % (uint32_t)(most - least + 1);
}

static tern__view filled(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    for (int64_t i = 0; i < tern__view_count(&view); i++)
        tern__view_set(&view, i, (double)draw_of(0, 1 << 20) * 0x1p-19 - 1);
    return view;
}

static int64_t outputs_of(const sizes *s, int axis)
{
    int64_t reach = s->dilation[axis] * ((axis ? 3 : s->taps) - 1);
    return s->size[axis] + 2 * s->padding[axis] - reach;
}

static operands make_volumes(const sizes *s, tern_dtype dtype)
{
    operands o = {.attr = {{1, 1, 1}, {0}, {0}, 1}};
    memcpy(o.attr.padding, s->padding, sizeof(s->padding));
    memcpy(o.attr.dilation, s->dilation, sizeof(s->dilation));
    int64_t x[] = {s->images, s->in, s->size[0], s->size[1], s->size[2]};
    int64_t y[] = {s->images, s->out, outputs_of(s, 0), outputs_of(s, 1), outputs_of(s, 2)};
    o.x = filled(dtype, TERN__BLOCKED16, 5, x);
    o.w = filled(dtype, TERN__PLAIN, 5, (int64_t[]){s->out, s->in, s->taps, 3, 3});
    o.b = filled(dtype, TERN__PLAIN, 1, &s->out);
    o.y = filled(dtype, TERN__BLOCKED16, 5, y);
    return o;
}

/* ---- the same convolution of images ---- */

static int64_t sheets_of(const tern__view *view)
{
    return view->ndim == 5 ? view->shape[2] : 1;
}

static int64_t area_of(const tern__view *view)
{
    return view->shape[view->ndim - 2] * view->shape[view->ndim - 1];
}

/* Returns the index of the plane's first element. */
static int64_t plane_of(const tern__view *view, int64_t n, int64_t c, int64_t sheet)
{
    return ((n * view->shape[1] + c) * sheets_of(view) + sheet) * area_of(view);
}

/* A sheet that does not exist gives zeros. */
static void copy_plane(tern__view *to, int64_t n, int64_t c, const tern__view *from, int64_t from_n,
                       int64_t from_c, int64_t sheet)
{
    bool is_there = sheet >= 0 && sheet < sheets_of(from);
    for (int64_t i = 0; i < area_of(to); i++) {
        double v = is_there ? tern__view_get(from, plane_of(from, from_n, from_c, sheet) + i) : 0;
        tern__view_set(to, plane_of(to, n, c, 0) + i, v);
    }
}

/* Returns an image for each of `count` sheets. Its channels are those of the sheets sheet + shift + k * step,
 * for every k. */
static tern__view images_of(const tern__view *volumes, int64_t count, int64_t taps, int64_t shift,
                            int64_t step)
{
    int64_t channels = volumes->shape[1];
    int64_t shape[] = {volumes->shape[0] * count, taps * channels, volumes->shape[3], volumes->shape[4]};
    tern__view images = filled(volumes->dtype, TERN__BLOCKED16, 4, shape);
    for (int64_t n = 0; n < shape[0]; n++)
        for (int64_t c = 0; c < shape[1]; c++)
            copy_plane(&images, n, c, volumes, n / count, c % channels,
                       n % count + shift + c / channels * step);
    return images;
}

/* Returns the weight for images: the taps along the depth become further channels, of the inputs or, if
 * turned, of the outputs. */
static tern__view weights_of(const tern__view *w, bool turned)
{
    int64_t outs = w->shape[0], ins = w->shape[1], taps = w->shape[2];
    int64_t shape[] = {turned ? taps * outs : outs, turned ? ins : taps * ins, 3, 3};
    tern__view flat = filled(w->dtype, TERN__PLAIN, 4, shape);
    for (int64_t o = 0; o < shape[0]; o++)
        for (int64_t c = 0; c < shape[1]; c++)
            copy_plane(&flat, o, c, w, o % outs, c % ins, turned ? o / outs : c / ins);
    return flat;
}

static operands make_images(const operands *volumes, tern__kernel kernel)
{
    const tern__view *x = &volumes->x, *y = &volumes->y;
    int64_t taps = volumes->w.shape[2], padding = volumes->attr.padding[0], step = volumes->attr.dilation[0];
    bool turned = kernel == TERN__CONV_DATA_GRAD;
    operands o = {.attr = volumes->attr};
    o.x = turned ? images_of(x, x->shape[2], 1, 0, 1) : images_of(x, y->shape[2], taps, -padding, step);
    o.y = turned ? images_of(y, x->shape[2], taps, padding, -step) : images_of(y, y->shape[2], 1, 0, 1);
    o.w = weights_of(&volumes->w, turned);
    o.b = filled(y->dtype, TERN__PLAIN, 1, volumes->b.shape);
    memcpy(o.b.data, volumes->b.data, tern__view_bytes(&o.b));
    return o;
}

/* ---- comparing ---- */

static void run(operands *o, tern__kernel kernel, int threads, bool add)
{
    tern_error err = {0};
    tern_device *device = open_device("cpu", threads);
    tern__call call = call_of(device, kernel, o, add, kernel == TERN__CONV, &err);
    assert_true(tern__winograd_takes(&call, &o->x, &o->w, &o->y));
    if (kernel == TERN__CONV_WEIGHT_GRAD)
        assert_int_equal(tern__winograd_weight_grad(&call, &o->x, &o->y, &o->w), TERN_OK);
    else
        assert_int_equal(tern__winograd(&call, &o->x, &o->w, &o->y, call.in[2]), TERN_OK);
    assert_ok(err);
    tern_device_close(device);
}

static void expect_plane(const tern__view *volumes, int64_t n, int64_t c, int64_t sheet,
                         const tern__view *images, int64_t image, int64_t channel)
{
    for (int64_t i = 0; i < area_of(images); i++) {
        double got = tern__view_get(volumes, plane_of(volumes, n, c, sheet) + i);
        double want = tern__view_get(images, plane_of(images, image, channel, 0) + i);
        if (got != want)
            fail_msg("%lld, %lld, sheet %lld, element %lld is %.9g, expected %.9g", (long long)n,
                     (long long)c, (long long)sheet, (long long)i, got, want);
    }
}

/* Compares every sheet of the volumes with its image. */
static void expect_same(const tern__view *volumes, const tern__view *images)
{
    const int64_t *shape = volumes->shape;
    for (int64_t n = 0; n < shape[0]; n++)
        for (int64_t c = 0; c < shape[1]; c++)
            for (int64_t sheet = 0; sheet < shape[2]; sheet++)
                expect_plane(volumes, n, c, sheet, images, n * shape[2] + sheet, c);
}

/* ---- weight gradients ---- */

static double *values_of(const tern__view *view)
{
    double *values = tern__alloc((size_t)tern__view_count(view) * sizeof(double), __func__, NULL);
    assert_non_null(values);
    for (int64_t i = 0; i < tern__view_count(view); i++) values[i] = tern__view_get(view, i);
    return values;
}

/* Returns the sum of x dy over the rows and columns of a sheet of each that tap (row, column) connects. */
static double sheet_sum(const operands *o, const double *x, const double *dy, int64_t row, int64_t column)
{
    const int64_t *in = o->x.shape + 3, *out = o->y.shape + 3;
    int64_t down = row * o->attr.dilation[1] - o->attr.padding[1];
    int64_t on = column * o->attr.dilation[2] - o->attr.padding[2];
    double sum = 0;
    for (int64_t i = TERN__MAX(0, -down); i < TERN__MIN(out[0], in[0] - down); i++)
        for (int64_t j = TERN__MAX(0, -on); j < TERN__MIN(out[1], in[1] - on); j++)
            sum += x[(i + down) * in[1] + j + on] * dy[i * out[1] + j];
    return sum;
}

/* Computes element i of dw by its definition. */
static double element(const operands *o, const double *x, const double *dy, int64_t i)
{
    const int64_t *w = o->w.shape;
    int64_t tap = i / 9 % w[2], in = i / 9 / w[2] % w[1], out = i / 9 / w[2] / w[1];
    double sum = 0;
    for (int64_t n = 0; n < o->x.shape[0]; n++)
        for (int64_t z = 0; z < o->y.shape[2]; z++) {
            int64_t from = z + tap * o->attr.dilation[0] - o->attr.padding[0];
            if (from < 0 || from >= o->x.shape[2]) continue;
            sum += sheet_sum(o, x + plane_of(&o->x, n, in, from), dy + plane_of(&o->y, n, out, z), i / 3 % 3,
                             i % 3);
        }
    return sum;
}

/* Returns the sum of the squared errors of dw, which was stored or, with `add`, added to `old`. */
static double squares_off(const operands *volumes, const tern__view *images, const double *old, bool add)
{
    double *x = values_of(&volumes->x), *dy = values_of(&volumes->y), sum = 0;
    const int64_t *w = volumes->w.shape;
    for (int64_t i = 0; i < tern__view_count(&volumes->w); i++) {
        int64_t tap = i / 9 % w[2], in = i / 9 / w[2] % w[1], out = i / 9 / w[2] / w[1];
        double got = images ? tern__view_get(images, plane_of(images, out, tap * w[1] + in, 0) + i % 9)
                            : tern__view_get(&volumes->w, i);
        sum += pow(got - element(volumes, x, dy, i) - (add ? old[i] : 0), 2);
    }
    tern__free(x);
    tern__free(dy);
    return sum;
}

static void compare_weights(const sizes *s, tern_dtype dtype, int threads, bool add)
{
    operands volumes = make_volumes(s, dtype), images = make_images(&volumes, TERN__CONV_WEIGHT_GRAD);
    double *old = values_of(&volumes.w);
    run(&images, TERN__CONV_WEIGHT_GRAD, 1, add);
    run(&volumes, TERN__CONV_WEIGHT_GRAD, threads, add);
    double *got = values_of(&volumes.w);
    double off = squares_off(&volumes, NULL, old, add), most = 4 * squares_off(&volumes, &images.w, old, add);
    if (!(off <= most)) fail_msg("the sum of squares is off by %g, at most %g", off, most);
    for (int64_t i = 0; i < tern__view_count(&volumes.w); i++) tern__view_set(&volumes.w, i, old[i]);
    run(&volumes, TERN__CONV_WEIGHT_GRAD, 1, add);
    for (int64_t i = 0; i < tern__view_count(&volumes.w); i++)
        assert_true(tern__view_get(&volumes.w, i) == got[i]);
    tern__free(old);
    tern__free(got);
    release(&volumes);
    release(&images);
}

static void compare(const sizes *s, tern_dtype dtype, int threads, bool add)
{
    for (int k = TERN__CONV; k <= TERN__CONV_DATA_GRAD; k++) {
        tern__kernel kernel = (tern__kernel)k;
        operands volumes = make_volumes(s, dtype), images = make_images(&volumes, kernel);
        run(&volumes, kernel, threads, add);
        run(&images, kernel, 1, add);
        expect_same(result_of(&volumes, kernel), result_of(&images, kernel));
        release(&volumes);
        release(&images);
    }
    compare_weights(s, dtype, threads, add);
}

/* Draws one to five sheets with weights of one to four, also with paddings so large that some outputs see
 * only zeros. */
static sizes draw_sizes(void)
{
    sizes s = {draw_of(1, 2), 16 * draw_of(1, 3), 16 * draw_of(1, 3), draw_of(1, 4), {0}, {0}, {0}};
    for (int axis = 0; axis < 3; axis++) {
        s.dilation[axis] = draw_of(1, 2);
        s.padding[axis] = draw_of(0, 2 * s.dilation[axis]);
        s.size[axis] = draw_of(1, axis ? 9 : 5);
        while (outputs_of(&s, axis) < 1) s.size[axis]++;
    }
    return s;
}

static void volumes_are_images_of_more_channels(void **state)
{
    (void)state;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
    for (int i = 0; i < 36; i++) {
        sizes s = draw_sizes();
        compare(&s, dtypes[i % 3], 1 + i % 4, i & 1);
    }
}

/* Weights that are transformed on the way, some inputs at a time, with a limit in the middle of a sheet's
 * inputs; several slices of tiles and of sheets, some of them shorter. */
static void large_volumes(void **state)
{
    (void)state;
    static const sizes deep = {1, 64, 48, 3, {6, 9, 10}, {1, 1, 1}, {1, 1, 1}},
                       wide = {1, 176, 16, 2, {3, 5, 6}, {1, 1, 1}, {1, 1, 1}},
                       flat = {3, 16, 16, 3, {9, 17, 18}, {1, 1, 1}, {1, 1, 1}},
                       tall = {1, 16, 16, 3, {37, 9, 8}, {2, 1, 1}, {2, 1, 1}};
    compare(&deep, TERN_F32, 2, false);
    compare(&wide, TERN_F32, 2, false);
    compare(&flat, TERN_F32, 3, true);
    compare(&tall, TERN_F32, 4, false);
    compare(&tall, TERN_BF16, 1, true);
}

static void a_step_along_the_depth_is_not_taken(void **state)
{
    (void)state;
    static const sizes s = {1, 16, 16, 3, {5, 5, 5}, {1, 1, 1}, {1, 1, 1}};
    operands o = make_volumes(&s, TERN_F32);
    const tern__call call = {.kernel = TERN__CONV, .attr = &o.attr};
    assert_true(tern__winograd_takes(&call, &o.x, &o.w, &o.y));
    o.attr.stride[0] = 2;
    assert_false(tern__winograd_takes(&call, &o.x, &o.w, &o.y));
    release(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(volumes_are_images_of_more_channels),
        cmocka_unit_test(large_volumes),
        cmocka_unit_test(a_step_along_the_depth_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
