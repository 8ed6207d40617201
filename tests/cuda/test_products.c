/* Products of matrices in cuBLASLt's hands: whole numbers, so every sum is exact, against plain loops. The
 * emulated one (emulated/cublasLt.h) lacks epilogues here and there, has a first algorithm that fails, in
 * some cases no other, and a faster one than the next, and ends the program where it is asked for what cannot
 * be. */
#include "check.h"
#include "gpus.h"

#include "device/backend.h"
#include "kernels/choices.h"
#include "kernels/kernel.h"
#include "kernels/matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM ((size_t)16 << 10)

typedef struct product {
    int64_t count, m, k, n;
    tern_dtype dtype, made;
    bool has_bias, has_sums, relu, add;
    unsigned odd;        /* the operands that begin one element behind an aligned address */
    bool is_a_t, is_b_t; /* by columns */
} product;

enum { A, B, BIAS, Y, SUMS, OPERANDS };

/* ---- operands ---- */

typedef struct operand {
    tern__view here, there; /* on the host, and on the device */
    void *memory;
} operand;

/* With the columns of its matrices in the place of their rows. */
static tern__view by_columns(const tern__view *v)
{
    tern__view view = *v;
    int row = v->ndim - 2, column = v->ndim - 1;
    view.stride[row] = 1;
    view.stride[column] = v->shape[row];
    return view;
}

static operand new_operand(tern_device *device, tern_dtype dtype, int ndim, const int64_t *shape,
                           bool transposed, bool odd)
{
    tern_error err = {0};
    operand o = {.here = tern__view_make(dtype, TERN__PLAIN, ndim, shape)};
    if (transposed) o.here = by_columns(&o.here);
    size_t bytes = tern__view_bytes(&o.here);
    o.here.data = tern__alloc(bytes, __func__, NULL);
    o.memory = tern__memory_new(device, bytes + 64, __func__, &err);
    assert_ok(err);
    o.there = o.here;
    o.there.data = (char *)o.memory + (odd ? tern_dtype_bytes(dtype) : 0);
    for (int64_t i = 0; i < tern__view_count(&o.here); i++)
        tern__view_set(&o.here, i, (double)((i * 5 + i / 7 + ndim) % 5 - 2));
    tern__memory_copy(o.there.data, o.here.data, bytes, &err);
    assert_ok(err);
    return o;
}

static void drop_operand(operand *o)
{
    tern__free(o->here.data);
    tern__memory_free(o->memory);
}

static void open_operands(tern_device *device, const product *p, operand all[OPERANDS])
{
    const int64_t a[] = {p->count, p->m, p->k}, b[] = {p->count, p->k, p->n}, y[] = {p->count, p->m, p->n};
    int flat = p->count == 1;
    all[A] = new_operand(device, p->dtype, 3 - flat, a + flat, p->is_a_t, p->odd >> A & 1);
    all[B] = new_operand(device, p->dtype, 3 - flat, b + flat, p->is_b_t, p->odd >> B & 1);
    all[Y] = new_operand(device, p->made, 3 - flat, y + flat, false, p->odd >> Y & 1);
    all[BIAS] = new_operand(device, p->made, 1, &p->n, false, p->odd >> BIAS & 1);
    all[SUMS] = new_operand(device, p->made, 1, &p->m, false, p->odd >> SUMS & 1);
}

/* ---- against plain loops ---- */

static void expect(const tern__view *got, int64_t at, double before, double sum, const product *p)
{
    double want = sum + (p->add ? before : 0);
    if (p->relu) want = fmax(want, 0);
    if (tern__view_get(got, at) != want)
        fail_msg("element %lld is %g, expected %g", (long long)at, tern__view_get(got, at), want);
}

static void check_product(const product *p, const operand all[OPERANDS], const tern__view *y)
{
    for (int64_t i = 0; i < p->count * p->m * p->n; i++) {
        int64_t row = i / p->n, column = i % p->n, batch = row / p->m;
        double sum = p->has_bias ? tern__view_get(&all[BIAS].here, column) : 0;
        for (int64_t l = 0; l < p->k; l++)
            sum += tern__view_get(&all[A].here, row * p->k + l) *
                   tern__view_get(&all[B].here, (batch * p->k + l) * p->n + column);
        expect(y, i, tern__view_get(&all[Y].here, i), sum, p);
    }
}

static void check_sums(const product *p, const operand all[OPERANDS], const tern__view *sums)
{
    for (int64_t i = 0; i < p->m && p->has_sums; i++) {
        double sum = 0;
        for (int64_t l = 0; l < p->k; l++) sum += tern__view_get(&all[A].here, i * p->k + l);
        expect(sums, i, tern__view_get(&all[SUMS].here, i), sum, p);
    }
}

static tern__view read_back(const operand *o)
{
    tern_error err = {0};
    tern__view view = o->here;
    size_t bytes = tern__view_bytes(&view);
    view.data = tern__alloc(bytes, __func__, NULL);
    tern__memory_copy(view.data, o->there.data, bytes, &err);
    assert_ok(err);
    return view;
}

/* The plug-in's own kernel, which the host's would hide otherwise. */
static void check(tern_device *device, const product *p)
{
    const tern__matmul_attr attr = {.relu = p->relu};
    operand all[OPERANDS];
    tern_error err = {0};
    open_operands(device, p, all);
    tern__call call = {.device = device,
                       .kernel = TERN__MATMUL,
                       .in = {&all[A].there, &all[B].there, p->has_bias ? &all[BIAS].there : NULL},
                       .out = {&all[Y].there, p->has_sums ? &all[SUMS].there : NULL},
                       .add = {p->add, p->add},
                       .attr = &attr,
                       .err = &err};
    assert_int_equal(device->backend->kernels[TERN__MATMUL](&call), TERN_OK);
    assert_ok(err);
    tern__view y = read_back(&all[Y]), sums = read_back(&all[SUMS]);
    check_product(p, all, &y);
    check_sums(p, all, &sums);
    tern__free(y.data);
    tern__free(sums.data);
    for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
}

/* ---- tests ---- */

/* No clocks are excluded by the environment of the tests here. */
static tern_device *open_device(bool deterministic)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cuda:0", &err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.deterministic = deterministic;
    assert_ok(err);
    tern_device_conv_set(device, &rules, &err);
    assert_ok(err);
    return device;
}

/* With epilogues and, where there is none or none that runs, a kernel after the product: f64 has no ReLU,
 * batches of f16 no bias, sums that are wider than what is summed none. */
static void whatever_comes_with_it(void **state)
{
    static const tern_dtype dtypes[][2] = {{TERN_F32, TERN_F32},
                                           {TERN_F64, TERN_F64},
                                           {TERN_F16, TERN_F16},
                                           {TERN_BF16, TERN_BF16},
                                           {TERN_BF16, TERN_F32}};
    (void)state;
    unsigned turn = 0;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        tern_device *device = open_device(deterministic);
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
            for (int with = 0; with < 256; with++) {
                product p = {.count = with & 1 ? 3 : 1, .m = 8, .k = with & 2 ? 5 : 8, .n = 16};
                p.is_a_t = with & 64;
                p.is_b_t = with & 128;
                p.dtype = dtypes[d][0];
                p.made = dtypes[d][1];
                p.has_bias = with & 4;
                p.add = with & 8;
                p.odd = with & 16 ? 1U << turn++ % OPERANDS : 0;
                p.has_sums = with & 32 && !p.has_bias && p.count == 1;
                p.relu = with & 32 && !p.has_sums;
                check(device, &p);
            }
        tern_device_close(device);
    }
}

/* More than cuBLASLt takes at once. */
static void a_long_batch_goes_in_parts(void **state)
{
    (void)state;
    tern_device *device = open_device(true);
    check(device, &(product){.count = 2 * 65535 + 9, .m = 1, .k = 2, .n = 1, .has_bias = true});
    tern_device_close(device);
}

/* Of f64, which nobody else multiplies. */
static const product squares = {.count = 1, .m = 8, .k = 8, .n = 8, .dtype = TERN_F64, .made = TERN_F64};

/* The bytes of an algorithm in the first line of choices, 16 digits a word. */
static char *algorithm_in(char *text)
{
    static const char key[] = "\"choice\":\"";
    char *at = strstr(text, key);
    assert_non_null(at);
    return at + strlen(key);
}

static void the_fastest_is_kept_and_told(void **state)
{
    char text[ROOM];
    (void)state;
    tern_device *first = open_device(false), *other = open_device(false);
    check(first, &squares);
    assert_int_equal(tern__choices_serial(first), 1);
    check(first, &squares);
    assert_int_equal(tern__choices_serial(first), 1);
    size_t bytes = tern__choices_write(first, text, sizeof(text));
    if (is_emulated()) assert_memory_equal(algorithm_in(text), "0000000000000002", 16);
    tern__choices_read(other, text, bytes);
    uint64_t told = tern__choices_serial(other);
    check(other, &squares);
    assert_true(tern__choices_serial(other) == told);
    tern_device_close(first);
    tern_device_close(other);
}

static void an_algorithm_that_is_no_more_is_measured_anew(void **state)
{
    char text[ROOM];
    (void)state;
    tern_device *first = open_device(false), *other = open_device(false);
    check(first, &squares);
    size_t bytes = tern__choices_write(first, text, sizeof(text));
    memset(algorithm_in(text), 'f', 8 * 16);
    tern__choices_read(other, text, bytes);
    uint64_t told = tern__choices_serial(other);
    check(other, &squares);
    assert_true(tern__choices_serial(other) == told + 1);
    tern_device_close(first);
    tern_device_close(other);
}

static void without_clocks_nothing_is_measured(void **state)
{
    (void)state;
    tern_device *device = open_device(true);
    check(device, &squares);
    assert_int_equal(tern__choices_serial(device), 0);
    tern_device_close(device);
}

/* ---- what was recorded ---- */

/* Milliseconds, by the device's clock, of a step of the same product again and again, which becomes a graph.
 */
static double time_of_step(tern_device *device, const operand all[OPERANDS])
{
    const tern__device_backend *backend = device->backend;
    tern_error err = {0};
    tern__device_event *begin = backend->timer_new(device, &err), *end = backend->timer_new(device, &err);
    backend->event_record(device, TERN__STREAM_STEP, begin, &err);
    for (int i = 0; i < 6; i++) {
        tern__call call = {.device = device,
                           .kernel = TERN__MATMUL,
                           .in = {&all[A].there, &all[B].there},
                           .out = {&all[Y].there},
                           .err = &err};
        assert_int_equal(backend->kernels[TERN__MATMUL](&call), TERN_OK);
    }
    backend->event_record(device, TERN__STREAM_STEP, end, &err);
    double ms = backend->timer_ms(device, begin, end);
    backend->event_free(device, begin);
    backend->event_free(device, end);
    assert_ok(err);
    return ms;
}

/* The emulated first one that runs is half as fast as that which is measured and told. */
static void a_recorded_step_takes_what_is_told(void **state)
{
    char text[ROOM];
    double before = 0, after = 0;
    operand all[OPERANDS];
    tern_error err = {0};
    (void)state;
    tern_device *first = open_device(false), *other = open_device(false);
    tern_device_graphs_set(other, true, &err);
    other->follows = true;
    open_operands(other, &squares, all);
    for (int i = 0; i < 3; i++) before = time_of_step(other, all);
    check(first, &squares);
    tern__choices_read(other, text, tern__choices_write(first, text, sizeof(text)));
    for (int i = 0; i < 3; i++) after = time_of_step(other, all);
    if (is_emulated() && !(after < 0.75 * before)) fail_msg("%g ms, and %g ms before", after, before);
    for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
    tern_device_close(first);
    tern_device_close(other);
}

/* ---- what is only tried ---- */

static int linear_grad(tern_device *device, const operand all[OPERANDS], tern_error *err)
{
    operand dw = new_operand(device, TERN_F32, 2, all[B].here.shape, false, false);
    tern__call call = {.device = device,
                       .kernel = TERN__LINEAR_GRAD,
                       .in = {&all[A].there, &all[B].there, &all[B].there},
                       .out = {&all[Y].there, &dw.there},
                       .err = err};
    int status = device->backend->kernels[TERN__LINEAR_GRAD](&call);
    drop_operand(&dw);
    return status;
}

/* The emulated cuBLASLt has chosen an algorithm for one product, and fails when it is tried for two. */
static void a_way_that_fails_is_nobodys_error(void **state)
{
    const product p = {.count = 1, .m = 8, .k = 8, .n = 8, .dtype = TERN_F32, .made = TERN_F32};
    operand all[OPERANDS];
    tern_error err = {0};
    (void)state;
    tern_device *device = open_device(false);
    open_operands(device, &p, all);
    time_of_step(device, all);
    setenv("TERN_EMULATED_REFUSES", "products", 1);
    int status = linear_grad(device, all, &err);
    unsetenv("TERN_EMULATED_REFUSES");
    assert_int_equal(status, TERN_OK);
    assert_ok(err);
    for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_comes_with_it),
        cmocka_unit_test(a_long_batch_goes_in_parts),
        cmocka_unit_test(the_fastest_is_kept_and_told),
        cmocka_unit_test(an_algorithm_that_is_no_more_is_measured_anew),
        cmocka_unit_test(without_clocks_nothing_is_measured),
        cmocka_unit_test(a_recorded_step_takes_what_is_told),
        cmocka_unit_test(a_way_that_fails_is_nobodys_error),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
