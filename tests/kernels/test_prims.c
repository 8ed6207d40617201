/* test_prims.c - a device keeps a limited number of oneDNN's primitives, the most recently used ones. */
#include "ledger.h"

#include "kernels/conv.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/matrix.h"

#include <pthread.h>
#include <string.h>

/* ---- oneDNN's products, which f32 has on some CPUs only: product n has n rows, and a primitive ---- */

enum { DEPTH = 3, COLUMNS = 5, MANY = TERN__PRIMS_MAX + 100, MOST_ROWS = MANY };

typedef struct product {
    float a[MOST_ROWS * DEPTH], b[DEPTH * COLUMNS], y[MOST_ROWS * COLUMNS];
} product;

static product *product_new(void)
{
    product *p = malloc(sizeof(*p));
    assert_non_null(p);
    for (int i = 0; i < MOST_ROWS * DEPTH; i++) p->a[i] = (float)(i % 11 - 5);
    for (int i = 0; i < DEPTH * COLUMNS; i++) p->b[i] = (float)(i % 7 - 3);
    return p;
}

static tern__view matrix(float *data, int64_t rows, int64_t columns)
{
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){rows, columns});
    view.data = data;
    return view;
}

static int multiply(tern_device *device, product *p, int64_t n)
{
    tern__view a = matrix(p->a, n, DEPTH), b = matrix(p->b, DEPTH, COLUMNS), y = matrix(p->y, n, COLUMNS);
    tern__call call = {.device = device, .kernel = TERN__MATMUL, .in = {&a, &b}, .out = {&y}};
    tern__product seen = tern__product_of(&call);
    memset(p->y, 0xff, (size_t)(n * COLUMNS) * sizeof(*p->y));
    return tern__dnnl_multiply(&call, &seen, (char *[]){a.data, b.data, y.data}, false);
}

/* The elements are integers, so the sums are exact. */
static bool is_right(const product *p, int64_t n)
{
    for (int64_t i = 0; i < n * COLUMNS; i++) {
        float sum = 0;
        for (int k = 0; k < DEPTH; k++)
            sum += p->a[i / COLUMNS * DEPTH + k] * p->b[k * COLUMNS + i % COLUMNS];
        if (p->y[i] != sum) return false;
    }
    return true;
}

static tern_device *open_device(void)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.deterministic = true;
    tern_device_conv_set(device, &rules, &err);
    tern_device_threads_set(device, 1, &err);
    assert_ok(err);
    return device;
}

/* ---- convolutions ---- */

enum { BATCH = 2, CHANNELS = 3, OUT = 8, SIZE = 7, LARGEST = BATCH * OUT * SIZE * SIZE };

typedef struct convolved {
    float y[LARGEST], dx[LARGEST], dw[LARGEST];
} convolved;

static tern__view numbers(float *data, int64_t n, int64_t channels, int64_t size)
{
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, 4, (int64_t[]){n, channels, size, size});
    view.data = data;
    return view;
}

/* Runs a convolution and its two gradients, with copies of operands in oneDNN's formats. */
static convolved convolve(tern_device *device)
{
    static const tern__conv_attr attr = {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1};
    float x[LARGEST], w[LARGEST];
    convolved c = {{0}, {0}, {0}};
    for (int i = 0; i < LARGEST; i++) {
        x[i] = (float)(i % 13) / 7;
        w[i] = (float)(i % 5) / 3;
    }
    tern__view vx = numbers(x, BATCH, CHANNELS, SIZE), vw = numbers(w, OUT, CHANNELS, 3),
               vy = numbers(c.y, BATCH, OUT, SIZE), dx = numbers(c.dx, BATCH, CHANNELS, SIZE),
               dw = numbers(c.dw, OUT, CHANNELS, 3);
    const tern__call calls[] = {{.kernel = TERN__CONV, .in = {&vx, &vw}, .out = {&vy}},
                                {.kernel = TERN__CONV_DATA_GRAD, .in = {&vy, &vw}, .out = {&dx}},
                                {.kernel = TERN__CONV_WEIGHT_GRAD, .in = {&vy, &vx}, .out = {&dw}}};
    for (size_t i = 0; i < TERN__COUNT(calls); i++) {
        tern__call call = calls[i];
        call.device = device;
        call.attr = &attr;
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
    }
    return c;
}

/* ---- tests ---- */

static void as_many_as_there_is_room_for(void **state)
{
    (void)state;
    ledger books = {0};
    product *p = product_new();
    ledger_open(&books);
    tern_device *device = open_device();
    int full = 0;
    for (int64_t n = 1; n <= MANY; n++) {
        assert_int_equal(multiply(device, p, n), TERN_OK);
        assert_true(is_right(p, n));
        assert_in_range(tern__prims_count(device), 1, TERN__PRIMS_MAX);
        if (n == TERN__PRIMS_MAX) full = atomic_load(&books.live);
    }
    assert_int_equal(atomic_load(&books.live), full);
    tern_device_close(device);
    ledger_close(&books);
    free(p);
}

static int requests_for(tern_device *device, ledger *books, product *p, int64_t n)
{
    int before = atomic_load(&books->requests);
    assert_int_equal(multiply(device, p, n), TERN_OK);
    assert_true(is_right(p, n));
    return atomic_load(&books->requests) - before;
}

/* Products that are used repeatedly allocate nothing, however many others are used in between. */
static void what_is_used_stays(void **state)
{
    (void)state;
    ledger books = {0};
    product *p = product_new();
    ledger_open(&books);
    tern_device *device = open_device();
    for (int64_t n = 1; n <= MANY; n++) {
        multiply(device, p, n);
        if (n > 3) assert_int_equal(requests_for(device, &books, p, 1 + n % 3), 0);
    }
    for (int64_t n = MANY; n > MANY - 50; n--) assert_int_equal(requests_for(device, &books, p, n), 0);
    assert_true(requests_for(device, &books, p, 4) > 0); /* not used since, so it was dropped */
    assert_int_equal(requests_for(device, &books, p, 4), 0);
    tern_device_close(device);
    ledger_close(&books);
    free(p);
}

/* `gone` of the convolutions' primitives, the least recently used ones, have been dropped. Each one that is
 * made again drops the next. */
static void what_is_made_again_computes_the_same(void **state)
{
    (void)state;
    product *p = product_new();
    tern_device *device = open_device();
    const convolved first = convolve(device);
    const int made = tern__prims_count(device);
    int64_t others = TERN__PRIMS_MAX - made, next = others;
    for (int gone = 0; gone <= made; gone++) {
        for (int64_t n = others; n > 0; n--) assert_int_equal(multiply(device, p, n), TERN_OK);
        assert_int_equal(tern__prims_count(device), TERN__PRIMS_MAX);
        for (int i = 0; i < gone; i++) assert_int_equal(multiply(device, p, ++next), TERN_OK);
        const convolved again = convolve(device);
        assert_memory_equal(&again, &first, sizeof(first));
    }
    assert_in_range(next, 1, MANY);
    tern_device_close(device);
    free(p);
}

/* Runs on a device of its own in each thread. All devices share oneDNN's cache. */
static void *work(void *ctx)
{
    int *wrong = ctx;
    product *p = product_new();
    tern_device *device = open_device();
    for (int64_t n = 1; n <= MANY; n++) *wrong += multiply(device, p, n) != TERN_OK || !is_right(p, n);
    *wrong += tern__prims_count(device) != TERN__PRIMS_MAX;
    tern_device_close(device);
    free(p);
    return NULL;
}

static void threads_evict_beside_each_other(void **state)
{
    (void)state;
    pthread_t threads[2];
    int wrong[2] = {0};
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &wrong[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(wrong[0] + wrong[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_as_there_is_room_for),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(what_is_made_again_computes_the_same),
        cmocka_unit_test(threads_evict_beside_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
