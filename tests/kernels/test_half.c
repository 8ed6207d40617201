/* test_half.c - compares kernels on 16-bit activations with the reference in f64 on the same numbers. A
 * result may be off by half a unit in the last place and by the rounding of f32 in between. Both layouts, odd
 * shapes, stored and added results. */
#include "ledger.h"

#include "kernels/batch_norm.h"
#include "kernels/conv.h"
#include "kernels/dropout.h"
#include "kernels/kernel.h"
#include "kernels/pointwise.h"
#include "kernels/interpolate.h"
#include "kernels/pool.h"
#include "kernels/reduce.h"

#include <math.h>

static tern_device *fast, *plain;
static uint32_t state = 1;

static double draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) / (1 << 23) - 1;
}

static tern__view make(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    view.data = tern__alloc(tern__view_bytes(&view) + 1, __func__, NULL);
    assert_non_null(view.data);
    int64_t count = tern__view_count(&view);
    for (int64_t i = 0; i < count && tern__dtype_is_float(dtype); i++) tern__view_set(&view, i, draw());
    return view;
}

/* Returns the numbers in f64. Views of integers and bools are shared. */
static tern__view widened(const tern__view *view)
{
    tern__view wide = *view;
    if (!tern__dtype_is_float(view->dtype)) return wide;
    wide.dtype = TERN_F64;
    wide.data = tern__alloc(tern__view_bytes(&wide) + 1, __func__, NULL);
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) tern__view_set(&wide, i, tern__view_get(view, i));
    return wide;
}

static double unit_of(tern_dtype dtype)
{
    return dtype == TERN_BF16 ? 0x1p-8 : dtype == TERN_F16 ? 0x1p-11 : 0x1p-22;
}

static void expect_rounded(const tern__view *got, const tern__view *want, const char *what)
{
    int64_t count = tern__view_count(got);
    for (int64_t i = 0; i < count; i++) {
        double g = tern__view_get(got, i), w = tern__view_get(want, i);
        double bound = 1.001 * unit_of(got->dtype) * fabs(w) + 2e-5 * fmax(1, fabs(w));
        if (!(fabs(g - w) <= bound))
            fail_msg("%s of %s: element %lld is %.9g, expected %.9g", what, tern_dtype_name(got->dtype),
                     (long long)i, g, w);
    }
}

/* Runs the call on the fast device, and the same call in f64 on the reference. */
static void compare(tern__call call)
{
    tern__call twin = call;
    tern__view wide[TERN__KERNEL_INS + TERN__KERNEL_OUTS] = {{0}};
    tern_error err = {0};
    for (int i = 0; i < TERN__KERNEL_INS + TERN__KERNEL_OUTS; i++) {
        const tern__view **operand = i < TERN__KERNEL_INS ? &twin.in[i] : &twin.out[i - TERN__KERNEL_INS];
        if (!*operand) continue;
        wide[i] = widened(*operand);
        *operand = &wide[i];
    }
    call.device = fast;
    twin.device = plain;
    call.err = twin.err = &err;
    assert_int_equal(tern__kernel_run(&twin), TERN_OK);
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_ok(err);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call.out[i] && tern__dtype_is_float(call.out[i]->dtype))
            expect_rounded(call.out[i], twin.out[i], tern__kernel_name(call.kernel));
    for (int i = 0; i < TERN__KERNEL_INS + TERN__KERNEL_OUTS; i++)
        if (wide[i].data && wide[i].dtype == TERN_F64) tern__free(wide[i].data);
}

/* A shape, and its possible layouts. */
typedef struct form {
    int ndim;
    int64_t shape[4];
} form;

static const form forms[] = {{4, {2, 16, 5, 7}}, {4, {1, 48, 9, 2}}, {4, {2, 5, 6, 7}},   {4, {2, 3, 33, 17}},
                             {2, {7, 19}},       {2, {33, 16}},      {4, {1, 16, 52, 41}}};

typedef void (*case_fn)(tern_dtype dtype, tern__layout layout, const form *f);

static void each(case_fn run)
{
    static const tern_dtype dtypes[] = {TERN_BF16, TERN_F16};
    tern_error err = {0};
    fast = tern_device_open("cpu", &err);
    plain = tern_device_open("cpu:reference", &err);
    tern_device_threads_set(fast, 2, &err);
    assert_ok(err);
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
        for (size_t i = 0; i < TERN__COUNT(forms); i++) {
            run(dtypes[d], TERN__PLAIN, &forms[i]);
            if (forms[i].ndim == 4 && forms[i].shape[1] % 16 == 0) run(dtypes[d], TERN__BLOCKED16, &forms[i]);
        }
    tern_device_close(fast);
    tern_device_close(plain);
}

static void release(tern__view *views, int count)
{
    for (int i = 0; i < count; i++) tern__free(views[i].data);
}

/* ---- batch norm ---- */

static void positive(tern__view *vector)
{
    for (int64_t c = 0; c < vector->shape[0]; c++)
        tern__view_set(vector, c, 0.5 + fabs(tern__view_get(vector, c)));
}

/* `small`: the dtype of the operands with one number per channel. The statistics are f32. */
static void batch_norm(tern_dtype dtype, tern_dtype small, tern__layout layout, const form *f)
{
    enum { ACTS = 5, VECTORS = 8 };
    int64_t channels = f->shape[1];
    tern__view a[ACTS], v[VECTORS];
    for (int i = 0; i < ACTS; i++) a[i] = make(dtype, layout, f->ndim, f->shape);
    for (int i = 0; i < VECTORS; i++) v[i] = make(i < 2 ? TERN_F32 : small, TERN__PLAIN, 1, &channels);
    positive(&v[1]);
    tern__view *x = &a[0], *y = &a[1], *dy = &a[2], *dx = &a[3], *z = &a[4];
    tern__batch_norm_attr attr = {1e-5, 0.1, 0};
    for (int bits = 0; bits < 4; bits++) {
        bool with = bits & 1, add = bits & 2;
        attr.relu = with;
        tern__call stats = {.kernel = TERN__BATCH_NORM_STATS, .in = {x}, .attr = &attr};
        stats.out[0] = &v[0];
        stats.out[1] = &v[1];
        stats.out[2] = with ? &v[2] : NULL;
        stats.out[3] = with ? &v[3] : NULL;
        compare(stats);
        compare((tern__call){.kernel = TERN__BATCH_NORM_APPLY,
                             .in = {x, &v[0], &v[1], with ? &v[2] : NULL, &v[3], with ? z : NULL},
                             .out = {y},
                             .attr = &attr});
        compare((tern__call){.kernel = TERN__BATCH_NORM_SUMS,
                             .in = {dy, x, with ? y : NULL, &v[0], &v[1]},
                             .out = {&v[4], &v[5], with ? &v[6] : NULL, with ? &v[7] : NULL},
                             .add = {false, false, add, add},
                             .attr = &attr});
        compare((tern__call){.kernel = TERN__BATCH_NORM_DATA_GRAD,
                             .in = {dy, x, with ? y : NULL, &v[0], &v[1], &v[2], &v[4], &v[5]},
                             .out = {dx, with ? z : NULL},
                             .add = {add, add},
                             .attr = &attr});
    }
    release(a, ACTS);
    release(v, VECTORS);
}

static void batch_norm_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    batch_norm(dtype, TERN_F32, layout, f);
    batch_norm(dtype, dtype, layout, f);
}

static void batch_norms(void **unused)
{
    (void)unused;
    each(batch_norm_of);
}

/* ---- pooling ---- */

static void pool(tern_dtype dtype, tern__layout layout, const form *f, const tern__pool_attr *attr)
{
    int64_t out[4] = {f->shape[0], f->shape[1]};
    for (int d = 1; d < 3; d++)
        out[1 + d] =
            (f->shape[1 + d] + 2 * attr->padding[d] - attr->dilation[d] * (attr->kernel[d] - 1) - 1) /
                attr->stride[d] +
            1;
    tern__view v[] = {make(dtype, layout, 4, f->shape), make(dtype, layout, 4, out),
                      make(TERN_U8, layout, 4, out)};
    for (int kernel = TERN__MAX_POOL; kernel <= TERN__AVG_POOL_GRAD; kernel++) {
        bool max = kernel <= TERN__MAX_POOL_GRAD, forward = (kernel - TERN__MAX_POOL) % 2 == 0;
        for (int add = 0; add <= !forward; add++) {
            tern__call call = {.kernel = (tern__kernel)kernel, .in = {&v[!forward]}, .out = {&v[forward]}};
            call.attr = attr;
            call.add[0] = add;
            if (max && forward) call.out[1] = &v[2];
            if (max && !forward) call.in[1] = &v[2];
            compare(call);
        }
    }
    release(v, 3);
}

static void pools_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    static const tern__pool_attr all[] = {{{1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, 1},
                                          {{1, 2, 2}, {1, 2, 1}, {0, 0, 1}, {1, 1, 1}, 0},
                                          {{1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, 0},
                                          {{1, 4, 5}, {1, 1, 2}, {0, 2, 2}, {1, 1, 1}, 1}};
    if (f->ndim != 4 || f->shape[2] < 4) return;
    for (size_t i = 0; i < TERN__COUNT(all); i++) pool(dtype, layout, f, &all[i]);
    tern__view x = make(dtype, layout, 4, f->shape), y = make(dtype, TERN__PLAIN, 2, f->shape);
    compare((tern__call){.kernel = TERN__GLOBAL_AVG_POOL, .in = {&x}, .out = {&y}});
    for (int add = 0; add < 2; add++)
        compare((tern__call){.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {&y}, .out = {&x}, .add = {add}});
    tern__free(x.data);
    tern__free(y.data);
}

static void pools(void **unused)
{
    (void)unused;
    each(pools_of);
}

/* ---- interpolation ---- */

static void interpolations_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    int64_t up[] = {f->shape[0], f->shape[1], 2 * f->shape[2], f->shape[3] + 5};
    if (f->ndim != 4) return;
    for (int mode = TERN__NEAREST; mode <= TERN__MEAN; mode++) {
        tern__view x = make(dtype, layout, 4, f->shape), y = make(dtype, layout, 4, up);
        tern__interpolate_attr attr = {.mode = mode};
        for (int add = 0; add < 2; add++) {
            tern__call forth = {.kernel = TERN__INTERPOLATE, .in = {&x}, .out = {&y}, .attr = &attr};
            tern__call back = {.kernel = TERN__INTERPOLATE_GRAD, .in = {&y}, .out = {&x}, .attr = &attr};
            forth.add[0] = back.add[0] = add;
            compare(forth);
            compare(back);
        }
        release((tern__view[]){x, y}, 2);
    }
}

static void interpolations(void **unused)
{
    (void)unused;
    each(interpolations_of);
}

/* ---- element by element, and sums ---- */

static void elements_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    static const struct {
        int kernel, inputs;
    } all[] = {{TERN__COPY, 1}, {TERN__RELU, 1}, {TERN__RELU_GRAD, 2}, {TERN__ADD, 2},
               {TERN__MUL, 2},  {TERN__GELU, 1}, {TERN__SCALE, 1},     {TERN__SIGMOID, 1}};
    static const tern__pointwise_attr attr = {{0.3, 0}};
    tern__view a = make(dtype, layout, f->ndim, f->shape), b = make(dtype, layout, f->ndim, f->shape);
    tern__view y = make(dtype, layout, f->ndim, f->shape), wide = make(TERN_F32, layout, f->ndim, f->shape);
    for (size_t i = 0; i < TERN__COUNT(all); i++)
        for (int add = 0; add < 2; add++)
            compare((tern__call){.kernel = (tern__kernel)all[i].kernel,
                                 .in = {&a, all[i].inputs > 1 ? &b : NULL},
                                 .out = {&y},
                                 .add = {add},
                                 .attr = &attr});
    for (int add = 0; add < 2; add++) { /* casts, within a layout and between layouts */
        tern__layout other =
            f->ndim == 4 && f->shape[1] % 16 == 0 && layout == TERN__PLAIN ? TERN__BLOCKED16 : TERN__PLAIN;
        tern__view across = make(TERN_F32, other, f->ndim, f->shape);
        compare((tern__call){.kernel = TERN__COPY, .in = {&wide}, .out = {&y}, .add = {add}});
        compare((tern__call){.kernel = TERN__COPY, .in = {&across}, .out = {&y}, .add = {add}});
        compare((tern__call){.kernel = TERN__COPY, .in = {&y}, .out = {&across}, .add = {add}});
        compare((tern__call){.kernel = TERN__COPY, .in = {&y}, .out = {&wide}, .add = {add}});
        tern__free(across.data);
        tern__dropout_attr dropout = {.threshold = 1u << 30, .scale = 4. / 3, .key = 7};
        compare(
            (tern__call){.kernel = TERN__DROPOUT, .in = {&a}, .out = {&b}, .add = {add}, .attr = &dropout});
        compare((tern__call){
            .kernel = TERN__DROPOUT_CHANNELS, .in = {&a}, .out = {&b}, .add = {add}, .attr = &dropout});
    }
    release((tern__view[]){a, b, y, wide}, 4);
}

/* Casts of transposed views, from any of the three dtypes to any other. */
static void turned_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
    if (layout != TERN__PLAIN) return;
    for (size_t i = 0; i < TERN__COUNT(dtypes); i++) {
        tern__view x = make(dtype, layout, f->ndim, f->shape), y = make(dtypes[i], layout, f->ndim, f->shape);
        int64_t stride = 1; /* y's dimensions are stored in reverse order */
        for (int d = 0; d < f->ndim; d++) {
            y.stride[d] = stride;
            stride *= y.shape[d];
        }
        compare((tern__call){.kernel = TERN__COPY, .in = {&x}, .out = {&y}});
        compare((tern__call){.kernel = TERN__COPY, .in = {&y}, .out = {&x}});
        tern__free(x.data);
        tern__free(y.data);
    }
}

static void turned(void **unused)
{
    (void)unused;
    each(turned_of);
}

static void elements(void **unused)
{
    (void)unused;
    each(elements_of);
}

/* Sums along rows, along columns and over all elements, with results in f32 and in the dtype itself. */
static void sums_of(tern_dtype dtype, tern__layout layout, const form *f)
{
    static const tern__factor_attr factor = {0.01};
    tern__view x = make(dtype, layout, f->ndim, f->shape);
    for (int way = 0; way < 6; way++) {
        tern__view y = make(way < 3 ? TERN_F32 : dtype, TERN__PLAIN, f->ndim, f->shape);
        int64_t stride = 1;
        for (int d = f->ndim - 1; d >= 0; d--) {
            bool summed = way % 3 == 2 || (way % 3 == 1) == (d == 1);
            y.stride[d] = summed ? 0 : stride;
            if (!summed) stride *= y.shape[d];
        }
        compare((tern__call){.kernel = TERN__SUM, .in = {&x}, .out = {&y}, .attr = &factor});
        tern__free(y.data);
    }
    tern__free(x.data);
}

static void sums(void **unused)
{
    (void)unused;
    each(sums_of);
}

/* ---- special values ---- */

/* Every bf16 and f16 survives the conversion to f32 and back, in vectors and one by one. An f32 halfway
 * between two of them is rounded to the even one. */
static void every_number_survives(void **unused)
{
    (void)unused;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    int64_t count = 1 << 16, shape[] = {16, 16, 16, 16};
    for (int d = 0; d < 2; d++) {
        tern_dtype dtype = d ? TERN_F16 : TERN_BF16;
        tern__view all = tern__view_make(dtype, TERN__BLOCKED16, 4, shape), same = all;
        uint16_t *bits = tern__alloc((size_t)count * 2, __func__, NULL),
                 *back = tern__alloc((size_t)count * 2, __func__, NULL);
        float *zero = tern__alloc(16 * sizeof(float), __func__, NULL);
        float one[16];
        for (int i = 0; i < 16; i++) one[i] = 1;
        for (int64_t i = 0; i < count; i++) bits[i] = (uint16_t)i;
        all.data = bits;
        same.data = back;
        tern__view mean = tern__view_make(TERN_F32, TERN__PLAIN, 1, (int64_t[]){16}), var = mean;
        mean.data = zero;
        var.data = one;
        tern__batch_norm_attr attr = {0};
        tern__call call = {.device = device,
                           .kernel = TERN__BATCH_NORM_APPLY,
                           .in = {&all, &mean, &var},
                           .out = {&same},
                           .attr = &attr,
                           .err = &err};
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
        for (int64_t i = 0; i < count; i++) {
            double was = tern__view_get(&all, i), is = tern__view_get(&same, i);
            assert_true(was == is || (isnan(was) && isnan(is)));
        }
        tern__free(bits);
        tern__free(back);
        tern__free(zero);
    }
    tern_device_close(device);
    assert_ok(err);
}

/* ---- memory ---- */

/* Runs a layer of each kind in bf16, forward and backward. */
static int layers(tern_device *device, tern__view v[6], tern_error *err)
{
    static const tern__conv_attr attr = {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1};
    tern__view *x = &v[0], *w = &v[1], *y = &v[2], *a = &v[3], *b = &v[4], *c = &v[5];
    tern__call all[] = {
        {.kernel = TERN__CONV, .in = {x, w}, .out = {y}, .attr = &attr},
        {.kernel = TERN__CONV_DATA_GRAD, .in = {y, w}, .out = {x}, .attr = &attr},
        {.kernel = TERN__CONV_WEIGHT_GRAD, .in = {y, x}, .out = {w}, .attr = &attr},
        {.kernel = TERN__MATMUL, .in = {a, b}, .out = {c}},
        {.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {c}, .out = {x}},
    };
    int status = TERN_OK;
    for (size_t i = 0; i < TERN__COUNT(all) && !status; i++) {
        all[i].device = device;
        all[i].err = err;
        status = tern__kernel_run(&all[i]);
    }
    return status;
}

/* If any one request for memory is refused, the result is E_MEMORY. Warm calls make no request. oneDNN's own
 * requests do not go through the allocator. */
static void memory(void **unused)
{
    (void)unused;
    static const int64_t shapes[6][4] = {{2, 16, 5, 6}, {32, 16, 3, 3}, {2, 32, 5, 6},
                                         {2, 40},       {40, 16},       {2, 16}};
    tern__view v[6];
    for (int i = 0; i < 6; i++)
        v[i] = make(TERN_BF16, i == 0 || i == 2 ? TERN__BLOCKED16 : TERN__PLAIN, i < 3 ? 4 : 2, shapes[i]);
    int status = TERN_E_MEMORY;
    for (int n = 1; status; n++) {
        ledger books = {.refuse_at = n};
        tern_error err = {0};
        ledger_open(&books);
        tern_device *device = tern_device_open("cpu", &err);
        status = device ? layers(device, v, &err) : TERN_E_MEMORY;
        if (status) assert_int_equal(err.code, TERN_E_MEMORY);
        int before = atomic_load(&books.requests);
        if (!status) assert_int_equal(layers(device, v, &err), TERN_OK);
        if (!status) assert_int_equal(atomic_load(&books.requests), before);
        tern_device_close(device);
        ledger_close(&books);
        assert_true(n < 200);
    }
    release(v, 6);
}

static void what_is_lacking_has_a_name(void **unused)
{
    (void)unused;
    assert_null(tern__kernel_lacks(TERN_F32));
    assert_non_null(tern__kernel_lacks(TERN_F16));
}

/* ---- fill ---- */

/* Its input tells the shape alone: it is mostly the output, whose memory may hold no values yet. */
static void a_fill_reads_nothing(void **unused)
{
    (void)unused;
    const int64_t shape[] = {3, 40};
    void *sealed = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const tern__pointwise_attr five = {{5, 0}};
    tern_device *devices[] = {tern_device_open("cpu", NULL), tern_device_open("cpu:reference", NULL)};
    for (int dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) {
        if (dtype == TERN_BOOL) continue; /* filled as u8 */
        for (int i = 0; i < 2; i++) {
            tern__view out = make((tern_dtype)dtype, TERN__PLAIN, 2, shape), in = out;
            out.shape[1] = in.shape[1] = 20;
            out.stride[1] = in.stride[1] = 2;
            in.data = sealed;
            tern_error err = {0};
            tern__call call = {.kernel = TERN__FILL,
                               .in = {&in},
                               .out = {&out},
                               .attr = &five,
                               .device = devices[i],
                               .err = &err};
            assert_int_equal(tern__kernel_run(&call), TERN_OK);
            for (int64_t e = 0; e < tern__view_count(&out); e++) assert_true(tern__view_get(&out, e) == 5);
            tern__free(out.data);
        }
    }
    for (int i = 0; i < 2; i++) tern_device_close(devices[i]);
    munmap(sealed, 1 << 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norms),
        cmocka_unit_test(pools),
        cmocka_unit_test(interpolations),
        cmocka_unit_test(elements),
        cmocka_unit_test(turned),
        cmocka_unit_test(sums),
        cmocka_unit_test(every_number_survives),
        cmocka_unit_test(memory),
        cmocka_unit_test(what_is_lacking_has_a_name),
        cmocka_unit_test(a_fill_reads_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
