/* test_products.c - matrix products by cuBLASLt, of integers, so every sum is exact, compared with plain
 * loops. The emulated cuBLASLt (emulated/cublasLt.h) lacks some epilogues, has a first algorithm that
 * fails, in some cases no other, and later ones that are faster, and ends the program for invalid calls. */
#include "check.h"
#include "gpus.h"

#include "device/backend.h"
#include "device/choices.h"
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
    unsigned odd, late;  /* the operands that begin one element, or 16 bytes, after an aligned address */
    bool is_a_t, is_b_t; /* stored by columns */
} product;

enum { A, B, BIAS, Y, SUMS, OPERANDS };

/* ---- operands ---- */

typedef struct operand {
    tern__view here, there; /* in host memory, and in device memory */
    void *memory;
} operand;

/* The view with rows and columns of its matrices swapped. */
static tern__view by_columns(const tern__view *v)
{
    tern__view view = *v;
    int row = v->ndim - 2, column = v->ndim - 1;
    view.stride[row] = 1;
    view.stride[column] = v->shape[row];
    return view;
}

static operand new_operand(tern_device *device, tern_dtype dtype, int ndim, const int64_t *shape,
                           bool transposed, size_t late)
{
    tern_error err = {0};
    operand o = {.here = tern__view_make(dtype, TERN__PLAIN, ndim, shape)};
    if (transposed) o.here = by_columns(&o.here);
    size_t bytes = tern__view_bytes(&o.here);
    o.here.data = tern__alloc(bytes, __func__, NULL);
    o.memory = tern__memory_new(device, bytes + 64, __func__, &err);
    assert_ok(err);
    o.there = o.here;
    o.there.data = (char *)o.memory + late;
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

/* The bytes between an aligned address and the operand. */
static size_t lateness(const product *p, int i, tern_dtype dtype)
{
    return (p->odd >> i & 1) * tern_dtype_bytes(dtype) + (p->late >> i & 1) * 16;
}

static void open_operands(tern_device *device, const product *p, operand all[OPERANDS])
{
    const int64_t a[] = {p->count, p->m, p->k}, b[] = {p->count, p->k, p->n}, y[] = {p->count, p->m, p->n};
    int flat = p->count == 1;
    all[A] = new_operand(device, p->dtype, 3 - flat, a + flat, p->is_a_t, lateness(p, A, p->dtype));
    all[B] = new_operand(device, p->dtype, 3 - flat, b + flat, p->is_b_t, lateness(p, B, p->dtype));
    all[Y] = new_operand(device, p->made, 3 - flat, y + flat, false, lateness(p, Y, p->made));
    all[BIAS] = new_operand(device, p->made, 1, &p->n, false, lateness(p, BIAS, p->made));
    all[SUMS] = new_operand(device, p->made, 1, &p->m, false, lateness(p, SUMS, p->made));
}

/* ---- comparing with plain loops ---- */

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

/* Calls the plug-in's kernel directly: a fallback to the host would hide a failure. */
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

/* Opens a device that may measure, unlike the environment of the tests here. */
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

/* With epilogues, and, if there is none or none that runs, a kernel after the product: there is no ReLU in
 * f64, no bias for batches of f16, no row sums in a wider dtype. */
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

/* The heuristics return algorithms for the bias's address, too. In f64, which no other kernel multiplies. */
static void a_bias_may_be_anywhere(void **state)
{
    product p = {.count = 1, .m = 8, .k = 8, .n = 16, .dtype = TERN_F64, .made = TERN_F64, .has_bias = true};
    (void)state;
    tern_device *device = open_device(false);
    check(device, &p);
    p.late = 1U << BIAS;
    check(device, &p);
    tern_device_close(device);
}

/* A batch longer than cuBLASLt takes at once. */
static void a_long_batch_goes_in_parts(void **state)
{
    (void)state;
    tern_device *device = open_device(true);
    check(device, &(product){.count = 2 * 65535 + 9, .m = 1, .k = 2, .n = 1, .has_bias = true});
    tern_device_close(device);
}

/* In f64, which no other kernel multiplies. */
static const product squares = {.count = 1, .m = 8, .k = 8, .n = 8, .dtype = TERN_F64, .made = TERN_F64};

/* The bytes of an algorithm in the first line of choices, 16 digits per word. */
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

/* ---- recorded steps ---- */

static int multiply(tern_device *device, const operand all[OPERANDS], tern_error *err)
{
    tern__call call = {.device = device,
                       .kernel = TERN__MATMUL,
                       .in = {&all[A].there, &all[B].there},
                       .out = {&all[Y].there},
                       .err = err};
    return device->backend->kernels[TERN__MATMUL](&call);
}

/* Milliseconds, by the device's clock, of a step that repeats one product, which becomes a graph. */
static double time_of_step(tern_device *device, const operand all[OPERANDS])
{
    const tern__device_backend *backend = device->backend;
    tern_error err = {0};
    tern__device_event *begin = backend->timer_new(device, &err), *end = backend->timer_new(device, &err);
    backend->event_record(device, TERN__STREAM_STEP, begin, &err);
    for (int i = 0; i < 6; i++) assert_int_equal(multiply(device, all, &err), TERN_OK);
    backend->event_record(device, TERN__STREAM_STEP, end, &err);
    double ms = backend->timer_ms(device, begin, end);
    backend->event_free(device, begin);
    backend->event_free(device, end);
    assert_ok(err);
    return ms;
}

/* The first emulated algorithm that runs is half as fast as the one that is measured and told. */
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

/* A deterministic device takes nothing that is told, neither before a product's first use nor after it. */
static void without_clocks_nothing_told_is_taken(void **state)
{
    char text[ROOM];
    tern_device *devices[2] = {open_device(true), open_device(true)}, *first = open_device(false);
    double ms[2] = {0, 0};
    operand all[OPERANDS];
    (void)state;
    check(first, &squares);
    size_t bytes = tern__choices_write(first, text, sizeof(text));
    for (int told = 0; told < 2; told++) {
        open_operands(devices[told], &squares, all);
        if (!told) time_of_step(devices[told], all);
        tern__choices_read(devices[told], text, bytes);
        ms[told] = time_of_step(devices[told], all);
        for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
        tern_device_close(devices[told]);
    }
    open_operands(first, &squares, all);
    double least = time_of_step(first, all);
    for (int told = 0; told < 2 && is_emulated(); told++) assert_true(least < 0.75 * ms[told]);
    for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
    tern_device_close(first);
}

/* What fails when it is launched, with nobody to tell, is told to the next caller, and to that one only. */
static void a_late_error_is_told_once(void **state)
{
    operand all[OPERANDS];
    tern_error err = {0};
    (void)state;
    if (!is_emulated()) skip_test("needs the emulation");
    tern_device *device = open_device(true);
    tern_device_graphs_set(device, true, &err);
    open_operands(device, &squares, all);
    for (int i = 0; i < 3; i++) time_of_step(device, all);
    for (int i = 0; i < 2; i++) assert_int_equal(multiply(device, all, &err), TERN_OK);
    setenv("TERN_EMULATED_REFUSES", "products", 1);
    device->backend->flush(device, NULL);
    unsetenv("TERN_EMULATED_REFUSES");
    assert_int_equal(multiply(device, all, &err), TERN_E_SYSTEM);
    err = (tern_error){0};
    assert_int_equal(multiply(device, all, &err), TERN_OK);
    assert_int_equal(device->backend->wait(device, &err), TERN_OK);
    assert_ok(err);
    for (int i = 0; i < OPERANDS; i++) drop_operand(&all[i]);
    tern_device_close(device);
}

/* ---- candidates ---- */

static int linear_grad(tern_device *device, const operand all[OPERANDS], tern_error *err)
{
    operand dw = new_operand(device, TERN_F32, 2, all[B].here.shape, false, 0);
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
        cmocka_unit_test(a_bias_may_be_anywhere),
        cmocka_unit_test(a_long_batch_goes_in_parts),
        cmocka_unit_test(the_fastest_is_kept_and_told),
        cmocka_unit_test(an_algorithm_that_is_no_more_is_measured_anew),
        cmocka_unit_test(without_clocks_nothing_is_measured),
        cmocka_unit_test(a_recorded_step_takes_what_is_told),
        cmocka_unit_test(without_clocks_nothing_told_is_taken),
        cmocka_unit_test(a_late_error_is_told_once),
        cmocka_unit_test(a_way_that_fails_is_nobodys_error),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
