/* test_amx_conv_weight.c - compares weight gradients of the CPU's tile unit (AMX) with the reference kernel:
 * exactly in bf16; for f32 within the error of the split into two bf16 parts. */
#include "ledger.h"

#include "kernels/conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/conv.h"
#include "kernels/kernel.h"

#include <math.h>
#include <string.h>

/* A depth of 0 means two dimensions. `gap`: columns of the kernel that the gradient must not touch. */
typedef struct sizes {
    int64_t images, in, size[3], out, kernel[3];
    tern__conv_attr attr;
    bool x_blocked, y_blocked, add;
    int64_t gap;
} sizes;

typedef struct operands {
    tern__view x, y, w;
} operands;

static uint32_t state;

static int64_t random_to(int64_t least, int64_t most)
{
    state = state * 1664525u + 1013904223u;
    return least + (int64_t)(state >> 8) % (most - least + 1);
}

static int64_t out_size(const sizes *s, int axis)
{
    const tern__conv_attr *a = &s->attr;
    int64_t room = s->size[axis] + 2 * a->padding[axis] - a->dilation[axis] * (s->kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / a->stride[axis] + 1;
}

/* ---- operands ---- */

static tern__view room_of(tern_dtype dtype, bool blocked, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, blocked ? TERN__BLOCKED16 : TERN__PLAIN, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    return view;
}

/* Sums of small integers are exact in f32. */
static void fill(tern__view *view, bool integers)
{
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++)
        tern__view_set(
            view, i, integers ? (double)random_to(-7, 7) : (double)random_to(-(1 << 23), 1 << 23) * 0x1p-23);
}

static void shapes_of(const sizes *s, int *ndim, int64_t x[5], int64_t y[5], int64_t w[5])
{
    *ndim = s->size[0] ? 5 : 4;
    x[0] = y[0] = s->images;
    x[1] = w[1] = s->in;
    y[1] = w[0] = s->out;
    for (int d = 2, axis = 5 - *ndim; axis < 3; d++, axis++) {
        x[d] = s->size[axis];
        y[d] = out_size(s, axis);
        w[d] = s->kernel[axis];
    }
}

static operands make(const sizes *s, tern_dtype dtype, tern_dtype w_dtype, bool integers)
{
    int ndim;
    int64_t x[5], y[5], w[5];
    shapes_of(s, &ndim, x, y, w);
    w[ndim - 1] += s->gap;
    operands o = {room_of(dtype, s->x_blocked, ndim, x), room_of(dtype, s->y_blocked, ndim, y),
                  room_of(w_dtype, false, ndim, w)};
    fill(&o.x, integers);
    fill(&o.y, integers);
    fill(&o.w, true);
    o.w.shape[ndim - 1] -= s->gap;
    return o;
}

static void release(operands *o)
{
    tern__free(o->x.data);
    tern__free(o->y.data);
    tern__free(o->w.data);
}

/* ---- the expected and the computed gradient ---- */

/* Returns the expected gradient in f32, without gaps. */
static tern__view expected(const operands *o, const sizes *s)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    tern__view w = room_of(TERN_F32, false, o->w.ndim, o->w.shape);
    int64_t count = tern__view_count(&w);
    for (int64_t i = 0; i < count; i++) tern__view_set(&w, i, tern__view_get(&o->w, i));
    tern__call call = {.device = device,
                       .kernel = TERN__CONV_WEIGHT_GRAD,
                       .in = {&o->y, &o->x},
                       .out = {&w},
                       .add = {s->add},
                       .attr = &s->attr,
                       .err = &err};
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    tern_device_close(device);
    return w;
}

static void compute(operands *o, const sizes *s, int threads)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, threads, &err);
    assert_ok(err);
    tern__call call = {.device = device,
                       .kernel = TERN__CONV_WEIGHT_GRAD,
                       .out = {&o->w},
                       .add = {s->add},
                       .attr = &s->attr,
                       .err = &err};
    assert_int_equal(tern__amx_conv_weight(&call, &o->x, &o->y, &o->w), TERN_OK);
    tern_device_close(device);
}

/* Replaces every element by its absolute value. */
static void drop_signs(tern__view *view)
{
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) tern__view_set(view, i, fabs(tern__view_get(view, i)));
}

static void expect_close(const tern__view *found, const tern__view *right, const tern__view *sizes_of,
                         double bound, const sizes *s)
{
    int64_t count = tern__view_count(right);
    for (int64_t i = 0; i < count; i++) {
        double v = tern__view_get(found, i), r = tern__view_get(right, i);
        double most = bound * (sizes_of ? tern__view_get(sizes_of, i) : fabs(r));
        if (!(fabs(v - r) <= most))
            fail_msg("%lldx%lldx%lldx%lldx%lld > %lld: element %lld is %.9g, expected %.9g, at most %g apart",
                     (long long)s->images, (long long)s->in, (long long)s->size[0], (long long)s->size[1],
                     (long long)s->size[2], (long long)s->out, (long long)i, v, r, most);
    }
}

/* Checks that the columns in the gap have not changed. */
static void expect_gap(const operands *before, const operands *after, int64_t gap)
{
    tern__view a = before->w, b = after->w;
    int last = a.ndim - 1;
    size_t skip = (size_t)a.shape[last] * tern_dtype_bytes(a.dtype);
    a.shape[last] = b.shape[last] = gap;
    a.data = (char *)a.data + skip;
    b.data = (char *)b.data + skip;
    for (int64_t i = 0; gap && i < tern__view_count(&a); i++)
        assert_true(tern__view_get(&a, i) == tern__view_get(&b, i));
}

/* Sums of integers are exact. A bf16 gradient is rounded once, by at most 2^-8 of it. */
static void expect_integers_exact(const sizes *s, tern_dtype dtype, tern_dtype w_dtype, int threads)
{
    uint32_t seed = state;
    operands o = make(s, dtype, w_dtype, true);
    state = seed;
    operands before = make(s, dtype, w_dtype, true);
    tern__view right = expected(&o, s);
    compute(&o, s, threads);
    expect_close(&o.w, &right, NULL, w_dtype == TERN_BF16 ? 0x1p-8 : 0, s);
    expect_gap(&before, &o, s->gap);
    tern__free(right.data);
    release(&before);
    release(&o);
}

/* Each operand's two parts leave out at most 2^-17 of it, and the product of the lower parts, at most 2^-16
 * of a product, is not computed. Three products for each of n positions are summed in f32. */
static void expect_parts(const sizes *s, int threads)
{
    operands o = make(s, TERN_F32, TERN_F32, false);
    double n = 3.0 * (double)tern__view_count(&o.y) / (double)s->out + 1;
    tern__view right = expected(&o, s);
    compute(&o, s, threads);
    operands all = o;
    all.w = room_of(TERN_F32, false, o.w.ndim, o.w.shape);
    drop_signs(&o.x);
    drop_signs(&o.y);
    fill(&all.w, true);
    drop_signs(&all.w);
    for (int64_t i = 0; s->add && i < tern__view_count(&all.w); i++) tern__view_set(&all.w, i, 8);
    tern__view sum = expected(&all, s);
    expect_close(&o.w, &right, &sum, 0x1p-15 + n * 0x1p-24, s);
    tern__free(sum.data);
    tern__free(all.w.data);
    tern__free(right.data);
    release(&o);
}

/* ---- cases ---- */

static void random_axis(sizes *s, int axis, int64_t most)
{
    do {
        s->kernel[axis] = random_to(1, 4);
        s->attr.stride[axis] = random_to(1, 3);
        s->attr.dilation[axis] = random_to(1, 2);
        s->attr.padding[axis] = random_to(0, 3);
        s->size[axis] = random_to(1, most);
    } while (out_size(s, axis) < 1);
}

static int64_t random_channels(void)
{
    return random_to(0, 1) ? random_to(1, random_to(0, 3) ? 20 : 100) : 16 * random_to(1, 3);
}

static sizes random_sizes(void)
{
    sizes s = {.images = random_to(1, 4), .kernel = {1}, .attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}};
    bool volume = random_to(0, 2) == 0;
    if (volume) random_axis(&s, 0, 4);
    random_axis(&s, 1, volume ? 4 : 8);
    random_axis(&s, 2, random_to(0, 4) ? 6 : 40);
    s.in = random_to(0, 4) ? random_channels() : random_to(1, 4);
    s.out = random_channels();
    s.x_blocked = s.in % 16 == 0 && random_to(0, 3);
    s.y_blocked = s.out % 16 == 0 && random_to(0, 3);
    s.add = random_to(0, 1);
    s.gap = random_to(0, 3) ? 0 : 1;
    return s;
}

static void need_tiles(void)
{
    if (!tern__amx_has()) skip_test("this CPU has no tile unit");
}

static void any_shape_in_bf16(void **unused)
{
    (void)unused;
    need_tiles();
    for (uint32_t seed = 0; seed < 60; seed++) {
        state = seed * 2654435761u;
        sizes s = random_sizes();
        expect_integers_exact(&s, TERN_BF16, seed % 2 ? TERN_F32 : TERN_BF16, 1 + (int)seed % 3);
    }
}

static void any_shape_of_floats(void **unused)
{
    (void)unused;
    need_tiles();
    for (uint32_t seed = 100; seed < 130; seed++) {
        state = seed * 2654435761u;
        sizes s = random_sizes();
        expect_integers_exact(&s, TERN_F32, TERN_F32, 1 + (int)seed % 3);
        s.gap = 0;
        expect_parts(&s, 1 + (int)seed % 3);
    }
}

/* Images that are cut into slabs of sheets and of rows; several groups; more channels of dy than are computed
 * at a time. */
static const sizes large[] = {
    {.images = 1,
     .in = 16,
     .size = {0, 150, 70},
     .out = 2,
     .kernel = {1, 3, 3},
     .attr = {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1},
     .x_blocked = true},
    {.images = 2,
     .in = 1,
     .size = {0, 160, 151},
     .out = 16,
     .kernel = {1, 3, 3},
     .attr = {{1, 2, 2}, {0, 1, 1}, {1, 1, 1}, 1},
     .y_blocked = true,
     .add = true},
    {.images = 1,
     .in = 2,
     .size = {13, 40, 33},
     .out = 3,
     .kernel = {3, 2, 3},
     .attr = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1}},
    {.images = 30,
     .in = 1,
     .size = {0, 5, 7},
     .out = 560,
     .kernel = {1, 1, 1},
     .attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1},
     .y_blocked = true},
    {.images = 90,
     .in = 5,
     .size = {0, 6, 6},
     .out = 320,
     .kernel = {1, 2, 1},
     .attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1},
     .y_blocked = true,
     .add = true},
};

static void larger_than_the_cache(void **unused)
{
    (void)unused;
    need_tiles();
    for (size_t i = 0; i < TERN__COUNT(large); i++) {
        expect_integers_exact(&large[i], TERN_BF16, TERN_F32, 1 + (int)i % 2);
        expect_parts(&large[i], 1 + (int)i % 2);
    }
}

static void the_same_bits_for_every_number_of_threads(void **unused)
{
    (void)unused;
    need_tiles();
    for (size_t i = 0; i < TERN__COUNT(large); i++) {
        operands o[3];
        for (int t = 0; t < 3; t++) {
            state = (uint32_t)i;
            o[t] = make(&large[i], TERN_F32, TERN_F32, false);
            compute(&o[t], &large[i], t + 1);
            assert_memory_equal(o[t].w.data, o[0].w.data, tern__view_bytes(&o[0].w));
        }
        for (int t = 0; t < 3; t++) release(&o[t]);
    }
}

/* Refuses each of the four buffers in turn: the copies of dy and of x, the sums, the steps. */
static void each_buffer_is_refused(void **unused)
{
    (void)unused;
    need_tiles();
    for (int number = 1; number <= 4; number++) {
        ledger books = {.refuse_all = true};
        tern_error err = {0};
        ledger_open(&books);
        operands o = make(&large[0], TERN_F32, TERN_F32, false);
        tern__call call = {.kernel = TERN__CONV_WEIGHT_GRAD, .attr = &large[0].attr, .err = &err};
        call.device = tern_device_open("cpu", &err);
        assert_ok(err);
        books.refuse_at =
            atomic_load(&books.requests) + number; /* and all later ones, since a device tries twice */
        assert_int_equal(tern__amx_conv_weight(&call, &o.x, &o.y, &o.w), TERN_E_MEMORY);
        assert_int_equal(err.code, TERN_E_MEMORY);
        assert_non_null(strstr(err.text, "conv_weight_grad: out of memory"));
        tern_device_close(call.device);
        release(&o);
        ledger_close(&books);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shape_in_bf16),      cmocka_unit_test(any_shape_of_floats),
        cmocka_unit_test(larger_than_the_cache),  cmocka_unit_test(the_same_bits_for_every_number_of_threads),
        cmocka_unit_test(each_buffer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
