/* test_taps.c - compares convolutions that are computed tap by tap with the reference. Sums of small integers
 * are exact, so the results must agree to the last bit. For other numbers the largest possible error follows
 * from the longest chain of additions. */
#include "kernels/conv_operands.h"
#include "ledger.h"

#include "kernels/cpu/conv/choice.h"
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/widths.h"
#include "kernels/pack.h"

#include <math.h>
#include <string.h>

/* Depth, height and width. A depth of 0 means two dimensions. */
typedef struct sizes {
    int64_t images, in, out, size[3], kernel[3], padding[3], dilation[3], stride[3];
} sizes;

static uint32_t seed = 1;

static uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static int64_t draw_of(int64_t least, int64_t most)
{
    return least + draw() % (most - least + 1);
}

/* ---- a case ---- */

static tern__view filled(tern__layout layout, int ndim, const int64_t *shape, bool whole)
{
    tern__view view = tern__view_make(TERN_F32, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    float *data = view.data;
    for (int64_t i = 0; i < tern__view_count(&view); i++)
        data[i] = whole ? (float)(draw() % 15) - 7 : (float)draw() * 0x1p-23f - 1;
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
        int64_t way = s->size[axis] + 2 * s->padding[axis] - s->dilation[axis] * (s->kernel[axis] - 1) - 1;
        assert_true(way >= 0);
        y[d] = way / o.attr.stride[axis] + 1;
    }
    seed = from;
    o.x = filled(TERN__BLOCKED16, ndim, x, whole);
    o.w = filled(TERN__PLAIN, ndim, w, whole);
    o.b = filled(TERN__PLAIN, 1, &s->out, whole);
    o.y = filled(TERN__BLOCKED16, ndim, y, whole);
    return o;
}

/* Runs the algorithm without the choice, which would take it only for weight gradients and if more than one
 * dilated tap sees x. Called directly it computes no bias gradient and does not set the device's algorithm.
 */
static int run(const tern__call *call, const operands *o)
{
    int status = tern__conv_run(call, &tern__conv_taps);
    if (status != TERN_E_UNSUPPORTED) return status;
    assert_true(tern__taps_takes(call, &o->x, &o->w, &o->y));
    if (call->kernel == TERN__CONV_WEIGHT_GRAD) return tern__taps_weight_grad(call, &o->x, &o->y, &o->w, 0);
    return tern__taps(call, &o->x, &o->w, 0, &o->y, call->in[2]);
}

/* ---- exact sums ---- */

#define THREE   "%lldx%lldx%lld"
#define EACH(a) (long long)(a)[0], (long long)(a)[1], (long long)(a)[2]

static void expect_same(const tern__view *fast, const tern__view *plain, const sizes *s, tern__kernel kernel)
{
    int64_t count = tern__view_count(plain);
    for (int64_t i = 0; i < count; i++)
        if (tern__view_get(fast, i) != tern__view_get(plain, i))
            fail_msg("%s of %lldx%lldx" THREE ", kernel " THREE ", padding " THREE ", dilation " THREE
                     ", stride " THREE ": element %lld is %g, expected %g",
                     tern__kernel_name(kernel), (long long)s->images, (long long)s->in, EACH(s->size),
                     EACH(s->kernel), EACH(s->padding), EACH(s->dilation), EACH(s->stride), (long long)i,
                     tern__view_get(fast, i), tern__view_get(plain, i));
}

/* Runs the call twice: the second time it adds to a changed result and finds dirty scratch buffers. */
static void compare(tern_device *fast, tern_device *plain, tern__kernel kernel, const sizes *s, bool add,
                    bool bias)
{
    tern_error err = {0};
    operands a = make(s, 1, true), b = make(s, 1, true);
    tern__call ours = call_of(fast, kernel, &a, add, bias, &err);
    tern__call oracle = call_of(plain, kernel, &b, add, bias, &err);
    for (int i = 0; i < 2; i++) {
        poison(fast);
        fast->algorithm = NULL;
        assert_int_equal(run(&ours, &a), TERN_OK);
        assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
        assert_ok(err);
        for (int out = 0; out < (fast->algorithm ? 2 : 1); out++)
            if (ours.out[out]) expect_same(ours.out[out], oracle.out[out], s, kernel);
    }
    release(&a);
    release(&b);
}

/* Draws dilations from 1 to beyond the image, and paddings from none to more than the kernel's reach. */
static sizes draw_sizes(void)
{
    sizes s = {.images = draw_of(1, 3), .in = 16 * draw_of(1, 3), .out = 16 * draw_of(1, 3)};
    bool has_depth = draw() % 2;
    for (int d = has_depth ? 0 : 1; d < 3; d++) {
        s.size[d] = draw_of(1, has_depth ? 7 : 16);
        s.kernel[d] = draw_of(1, has_depth ? 3 : 4);
        s.dilation[d] = draw() % 4 ? draw_of(1, s.size[d] + 2) : 1;
        int64_t reach = s.dilation[d] * (s.kernel[d] - 1);
        int64_t least = TERN__MAX(0, (reach - s.size[d] + 2) / 2);
        s.stride[d] = draw() % 2 ? draw_of(1, 3) : 1;
        s.padding[d] = draw() % 2 ? TERN__MAX(least, reach / 2) : least + draw_of(0, 2);
    }
    return s;
}

static void random_shapes(void **state)
{
    (void)state;
    tern_device *plain = open_device("cpu:reference", 1);
    for (int threads = 1; threads <= 3; threads++) {
        tern_device *fast = open_device("cpu", threads);
        uint32_t place = 100u * (uint32_t)threads;
        for (int i = 0; i < 30; i++) {
            seed = place;
            sizes s = draw_sizes();
            bool add = draw() % 2, bias = draw() % 2;
            place = seed;
            for (int k = s.stride[2] > 2 ? TERN__CONV_DATA_GRAD : TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD;
                 k++)
                compare(fast, plain, (tern__kernel)k, &s, add, bias);
        }
        tern_device_close(fast);
    }
    tern_device_close(plain);
}

/* More inputs than are multiplied at once, not a multiple of that; groups of 16 outputs; an image of one
 * group in bands; rows longer than a band; DeepLab's shapes; volumes with so few channels that threads share
 * taps, and with so many that the inputs are cut; the strides of a ResNet and of a U-Net; panels that go on
 * over images; inputs that no tap sees. */
static const sizes large[] = {
    {1, 272, 48, {0, 5, 6}, {0, 3, 3}, {0, 3, 3}, {0, 3, 3}, {1, 1, 1}},
    {1, 16, 16, {0, 31, 9}, {0, 3, 3}, {0, 7, 4}, {0, 7, 4}, {1, 1, 1}},
    {1, 16, 32, {0, 3, 140}, {0, 2, 3}, {0, 1, 40}, {0, 2, 40}, {1, 1, 1}},
    {1, 16, 48, {0, 33, 33}, {0, 3, 3}, {0, 24, 24}, {0, 24, 24}, {1, 1, 1}},
    {2, 16, 144, {0, 9, 9}, {0, 3, 3}, {0, 12, 12}, {0, 12, 12}, {1, 1, 1}},
    {1, 16, 16, {6, 11, 12}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {2, 96, 48, {3, 5, 4}, {3, 3, 3}, {2, 1, 1}, {2, 1, 1}, {1, 1, 1}},
    {2, 144, 32, {0, 17, 20}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 2, 2}},
    {1, 48, 16, {4, 10, 15}, {2, 2, 2}, {0, 0, 0}, {1, 1, 1}, {2, 2, 2}},
    {5, 272, 48, {0, 8, 9}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 2, 2}},
    {7, 32, 80, {0, 9, 6}, {0, 1, 1}, {0, 0, 0}, {0, 1, 1}, {0, 2, 2}},
    {2, 400, 48, {0, 21, 23}, {0, 1, 1}, {0, 0, 0}, {0, 1, 1}, {0, 1, 1}}, /* in bands */
    {1, 48, 272, {3, 25, 50}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}},
    {1, 16, 32, {0, 7, 5}, {0, 1, 1}, {0, 1, 2}, {0, 1, 1}, {0, 1, 1}},
};

static void large_shapes(void **state)
{
    (void)state;
    tern_device *fast = open_device("cpu", 2), *plain = open_device("cpu:reference", 1);
    for (size_t i = 0; i < TERN__COUNT(large); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++)
            compare(fast, plain, (tern__kernel)k, &large[i], k == TERN__CONV_DATA_GRAD, true);
    tern_device_close(fast);
    tern_device_close(plain);
}

/* ---- other numbers ---- */

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(large); i++)
        for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
            operands one = make(&large[i], 3, false);
            for (int threads = 1; threads <= 5; threads++) {
                tern_error err = {0};
                operands more = make(&large[i], 3, false), *o = threads == 1 ? &one : &more;
                tern_device *device = open_device("cpu", threads);
                tern__call call = call_of(device, (tern__kernel)k, o, true, k == TERN__CONV, &err);
                assert_int_equal(run(&call, o), TERN_OK);
                const tern__view *a = result_of(&one, (tern__kernel)k), *b = call.out[0];
                assert_memory_equal(a->data, b->data, tern__view_bytes(a));
                tern_device_close(device);
                release(&more);
            }
            release(&one);
        }
}

/* Returns the operands, or their absolute values, in f64. */
static operands widened(const operands *o, bool magnitudes)
{
    operands wide = *o;
    tern__view *views[] = {&wide.x, &wide.w, &wide.b, &wide.y};
    for (size_t i = 0; i < TERN__COUNT(views); i++) {
        tern__view from = *views[i];
        views[i]->dtype = TERN_F64;
        views[i]->data = tern__alloc(tern__view_bytes(views[i]), __func__, NULL);
        assert_non_null(views[i]->data);
        for (int64_t k = 0; k < tern__view_count(&from); k++) {
            double value = tern__view_get(&from, k);
            tern__view_set(views[i], k, magnitudes ? fabs(value) : value);
        }
    }
    return wide;
}

/* A product in a sum of n others, a bias and an old value goes through at most n + 2 additions. If `most`
 * products are summed separately, and then `sums` such sums, it goes through `most` + `sums` + 2. Each
 * addition has an error of 2^-24 of the sum so far, which is at most the sum of all absolute values. */
static void expect_near(tern__kernel kernel, const sizes *s, int64_t most, int64_t sums)
{
    tern_error err = {0};
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    operands o = make(s, 5, false), exact = widened(&o, false), size = widened(&o, true);
    tern__call ours = call_of(fast, kernel, &o, false, kernel == TERN__CONV, &err);
    tern__call oracle = call_of(plain, kernel, &exact, false, kernel == TERN__CONV, &err);
    tern__call bound = call_of(plain, kernel, &size, false, kernel == TERN__CONV, &err);
    assert_int_equal(run(&ours, &o), TERN_OK);
    assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
    assert_int_equal(tern__kernel_run(&bound), TERN_OK);
    for (int64_t i = 0; i < tern__view_count(oracle.out[0]); i++) {
        double off = fabs(tern__view_get(ours.out[0], i) - tern__view_get(oracle.out[0], i));
        double may = (double)(most + sums + 2) * 0x1p-24 * tern__view_get(bound.out[0], i);
        if (!(off <= may))
            fail_msg("%s: element %lld is off by %g, at most %g expected", tern__kernel_name(kernel),
                     (long long)i, off, may);
    }
    release(&o);
    release(&exact);
    release(&size);
    tern_device_close(fast);
    tern_device_close(plain);
}

static void long_sums_are_added_up_in_parts(void **state)
{
    (void)state;
    static const sizes wide = {1, 2048, 16, {0, 5, 5}, {0, 3, 3}, {0, 2, 2}, {0, 2, 2}, {1, 1, 1}};
    static const sizes back = {1, 16, 2048, {0, 5, 5}, {0, 3, 3}, {0, 2, 2}, {0, 2, 2}, {1, 1, 1}};
    static const sizes many = {1, 16, 16, {0, 33, 33}, {0, 3, 3}, {0, 12, 12}, {0, 12, 12}, {1, 1, 1}};
    static const sizes halved = {1, 2048, 16, {0, 5, 5}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 2, 2}};
    static const sizes doubled = {1, 16, 2048, {0, 5, 5}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 2, 2}};
    expect_near(TERN__CONV, &halved, 256, 9 * 2048 / 256);
    expect_near(TERN__CONV_DATA_GRAD, &doubled, 256, 9 * 2048 / 256);
    expect_near(TERN__CONV, &wide, 128, 9 * 2048 / 128);
    expect_near(TERN__CONV_DATA_GRAD, &back, 128, 9 * 2048 / 128);
    expect_near(TERN__CONV_WEIGHT_GRAD, &many, 3 * 33, 33 / 3);
}

/* ---- memory ---- */

/* They are kept over microbatches, and made again when the weight has changed. */
static void weights_are_kept_with_their_parameter(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *fast = open_device("cpu", 1), *plain = open_device("cpu:reference", 1);
    const sizes square = {1, 32, 32, {0, 5, 6}, {0, 3, 3}, {0, 3, 3}, {0, 3, 3}, {1, 1, 1}};
    operands a = make(&square, 5, true), b = make(&square, 5, true);
    tern__packs packs = {0};
    a.w.packs = &packs;
    for (int use = 0; use < 6; use++)
        for (int k = TERN__CONV; k <= TERN__CONV_DATA_GRAD; k++) {
            tern__call ours = call_of(fast, (tern__kernel)k, &a, false, false, &err);
            tern__call oracle = call_of(plain, (tern__kernel)k, &b, false, false, &err);
            if (use == 3 && k == TERN__CONV) {
                packs.version++;
                tern__view_set(&a.w, 100, 9);
                tern__view_set(&b.w, 100, 9);
            }
            assert_int_equal(run(&ours, &a), TERN_OK);
            assert_int_equal(tern__kernel_run(&oracle), TERN_OK);
            expect_same(ours.out[0], oracle.out[0], &square, (tern__kernel)k);
            operands again = make(&square, 6 + (uint32_t)use, true);
            const tern__view *from = k == TERN__CONV ? &again.y : &again.x;
            memcpy(ours.out[0]->data, from->data, tern__view_bytes(from));
            memcpy(oracle.out[0]->data, from->data, tern__view_bytes(from));
            release(&again);
        }
    assert_non_null(packs.first);
    tern__packs_free(&packs);
    release(&a);
    release(&b);
    tern_device_close(fast);
    tern_device_close(plain);
}

static size_t scratch_of(const tern__call *call, const operands *o)
{
    bool weight = call->kernel == TERN__CONV_WEIGHT_GRAD;
    return (weight ? tern__taps_weight_scratch : tern__taps_scratch)(call, &o->x, &o->w, &o->y);
}

/* The first call requests as many bytes as announced, the second none; a refusal is an error. */
static void scratch_is_asked_for_once(void **state)
{
    (void)state;
    for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
        tern_error err = {0};
        ledger books = {.refuse_all = true};
        ledger_open(&books);
        operands o = make(&large[0], 1, true);
        tern_device *device = open_device("cpu", 2);
        tern__call call = call_of(device, (tern__kernel)k, &o, false, k == TERN__CONV, &err);
        books.refuse_at = atomic_load(&books.requests) + 1;
        assert_int_equal(run(&call, &o), TERN_E_MEMORY);
        assert_int_equal(err.code, TERN_E_MEMORY);
        books.refuse_at = 0;
        err = (tern_error){0};
        assert_int_equal(run(&call, &o), TERN_OK);
        size_t bytes = 0;
        for (int i = 0; i < TERN__SCRATCH_COUNT; i++) bytes += device->scratch[i].bytes;
        assert_int_equal(bytes, scratch_of(&call, &o));
        int asked = atomic_load(&books.requests);
        assert_int_equal(run(&call, &o), TERN_OK);
        assert_int_equal(atomic_load(&books.requests), asked);
        tern_device_close(device);
        release(&o);
        ledger_close(&books);
    }
}

/* ---- when it is chosen ---- */

static const char *chosen_for(tern__kernel kernel, const sizes *s, bool exact)
{
    tern_error err = {0};
    tern_device *device = open_device("cpu", 1);
    device->conv.exact = exact;
    operands o = make(s, 1, true);
    tern__call call = call_of(device, kernel, &o, false, false, &err);
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    const char *name = device->algorithm;
    release(&o);
    tern_device_close(device);
    return name;
}

/* The fixed table chooses taps if much of what the taps see is padding. */
static void much_padding_is_left_out(void **state)
{
    (void)state;
    static const sizes near = {1, 16, 16, {0, 33, 33}, {0, 3, 3}, {0, 2, 2}, {0, 2, 2}, {1, 1, 1}},
                       far = {1, 16, 16, {0, 33, 33}, {0, 3, 3}, {0, 12, 12}, {0, 12, 12}, {1, 1, 1}},
                       beyond = {1, 16, 16, {0, 33, 33}, {0, 3, 3}, {0, 36, 36}, {0, 36, 36}, {1, 1, 1}};
    bool others = tern__dnnl_has_convolutions();
    assert_string_not_equal(chosen_for(TERN__CONV, &near, false), others ? "taps" : "direct");
    assert_string_equal(chosen_for(TERN__CONV, &far, false), "taps");
    assert_int_equal(strcmp(chosen_for(TERN__CONV, &beyond, false), "taps") != 0,
                     others && tern__is_wide()); /* only one tap is left: a 1x1 convolution */
}

/* The same table chooses taps if Winograd's rounding is not allowed. CPUs with wide registers use oneDNN's
 * loops. */
static void registers_need_not_be_wide(void **state)
{
    (void)state;
    static const sizes tall = {1, 16, 16, {4, 16, 16}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
                       small = {1, 16, 16, {4, 8, 8}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
                       points = {1, 16, 16, {4, 16, 16}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}},
                       halved = {1, 16, 32, {8, 32, 32}, {2, 2, 2}, {0, 0, 0}, {1, 1, 1}, {2, 2, 2}};
    const char *expected = tern__dnnl_has_convolutions() ? "direct" : "taps";
    const char *wide = tern__is_wide() ? "direct" : "taps";
    assert_string_equal(chosen_for(TERN__CONV_WEIGHT_GRAD, &tall, true), wide);
    assert_string_equal(chosen_for(TERN__CONV_WEIGHT_GRAD, &small, true), expected);
    assert_string_equal(chosen_for(TERN__CONV_WEIGHT_GRAD, &points, true), expected);
    assert_string_equal(chosen_for(TERN__CONV_WEIGHT_GRAD, &halved, true), wide);
    assert_string_equal(chosen_for(TERN__CONV, &points, true), wide);
    assert_string_equal(chosen_for(TERN__CONV_DATA_GRAD, &points, true), wide);
    assert_string_equal(chosen_for(TERN__CONV_DATA_GRAD, &halved, true), wide);
    assert_string_equal(chosen_for(TERN__CONV, &halved, true), wide);
    assert_string_equal(chosen_for(TERN__CONV, &tall, true), expected);
    assert_string_equal(chosen_for(TERN__CONV_WEIGHT_GRAD, &tall, false), "winograd");
}

static void what_it_does_not_take(void **state)
{
    (void)state;
    tern_error err = {0};
    operands o = make(&large[0], 1, true);
    tern__call call = call_of(NULL, TERN__CONV, &o, false, false, &err);
    const tern__conv_attr right = o.attr;
    assert_true(tern__taps_takes(&call, &o.x, &o.w, &o.y));
    o.attr.stride[2] = 3;
    assert_false(tern__taps_takes(&call, &o.x, &o.w, &o.y));
    call.kernel = TERN__CONV_DATA_GRAD;
    assert_true(tern__taps_takes(&call, &o.x, &o.w, &o.y));
    call.kernel = TERN__CONV;
    o.attr = right;
    o.attr.groups = 16;
    assert_false(tern__taps_takes(&call, &o.x, &o.w, &o.y));
    o.attr = right;
    tern__view x = o.x;
    x.layout = TERN__PLAIN;
    assert_false(tern__taps_takes(&call, &x, &o.w, &o.y));
    x = o.x;
    x.dtype = TERN_BF16;
    assert_false(tern__taps_takes(&call, &x, &o.w, &o.y));
    release(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(large_shapes),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(long_sums_are_added_up_in_parts),
        cmocka_unit_test(weights_are_kept_with_their_parameter),
        cmocka_unit_test(scratch_is_asked_for_once),
        cmocka_unit_test(much_padding_is_left_out),
        cmocka_unit_test(registers_need_not_be_wide),
        cmocka_unit_test(what_it_does_not_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
