/* test_matmul.c - compares the fast matrix product with the reference: random sizes, transposes, gaps,
 * batches that are broadcast in any operand and summed in the result, with a bias, adding to the result, a
 * ReLU. */
#include "check.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/matrix.h"
#include "kernels/matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM   (1 << 16)
#define ROUNDS 400

static uint32_t state = 1;

static int64_t draw(int64_t low, int64_t high)
{
    state = state * 1664525 + 1013904223;
    return low + (int64_t)((uint64_t)(state >> 8) * (uint64_t)(high - low + 1) >> 24);
}

/* Returns a view of its own memory with random strides: the last two dimensions in random order, sometimes
 * with gaps. `repeated` dimensions have stride 0. */
static tern__view random_view(tern_dtype dtype, int ndim, const int64_t *shape, const bool *repeated,
                              bool plain)
{
    tern__view v = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    int order[TERN_NDIM_MAX];
    for (int d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
    if (!plain && draw(0, 1)) {
        order[0] = ndim - 2;
        order[1] = ndim - 1;
    }
    if (!plain && ndim > 2 && draw(0, 3) == 0) { /* heads are interleaved with rows, as in attention */
        order[2] = order[1];
        order[1] = ndim - 3;
    }
    int64_t stride = 1;
    for (int i = 0; i < ndim; i++) {
        int d = order[i];
        v.stride[d] = repeated[d] ? 0 : stride;
        if (!repeated[d]) stride = stride * shape[d] + (!plain && i > 0 && draw(0, 4) == 0 ? draw(1, 3) : 0);
    }
    assert_true(stride <= ROOM);
    v.data = calloc(ROOM, tern_dtype_bytes(dtype));
    tern__view all = tern__view_make(dtype, TERN__PLAIN, 1, (int64_t[]){ROOM});
    all.data = v.data;
    for (int64_t i = 0; i < stride; i++) tern__view_set(&all, i, (double)draw(-8, 8) / 4);
    return v;
}

static void run_kernel(tern__kernel_fn kernel, const char *device, int threads, tern__call *call,
                       const tern__view *y)
{
    tern_error err = {0};
    tern_device *d = tern_device_open(device, &err);
    tern_device_threads_set(d, threads, &err);
    assert_ok(err);
    call->device = d;
    call->err = &err;
    call->out[0] = y;
    assert_int_equal(kernel(call), TERN_OK);
    assert_ok(err);
    tern_device_close(d);
}

static void run_on(const char *device, int threads, tern__call *call, const tern__view *y)
{
    run_kernel(tern__kernel_run, device, threads, call, y);
}

/* The elements are quarters of small integers, so every product and sum is exact in f32. 16-bit results are
 * rounded once at the end. */
static void compare(tern__call *call, const tern__view *y)
{
    tern__view want = *y;
    size_t bytes = ROOM * tern_dtype_bytes(y->dtype);
    want.data = memcpy(malloc(bytes), y->data, bytes);
    run_on("cpu", 1, call, y);
    run_on("cpu:reference", 1, call, &want);
    assert_memory_equal(y->data, want.data, bytes);
    free(want.data);
}

/* The same up to the bits of NaN. */
static void compare_numbers(tern__call *call, const tern__view *y)
{
    tern__view want = *y;
    size_t bytes = ROOM * tern_dtype_bytes(y->dtype);
    want.data = memcpy(malloc(bytes), y->data, bytes);
    run_on("cpu", 1, call, y);
    run_on("cpu:reference", 1, call, &want);
    for (int64_t i = 0; i < tern__view_count(y); i++) {
        double got = tern__view_get(y, i), right = tern__view_get(&want, i);
        if (got != right && !(isnan(got) && isnan(right)))
            fail_msg("element %lld is %g, expected %g", (long long)i, got, right);
    }
    free(want.data);
}

/* Puts up to two infinities or NaNs anywhere. */
static void make_special(tern__view *v)
{
    static const double special[] = {INFINITY, -INFINITY, NAN};
    for (int64_t n = draw(1, 2); n > 0; n--)
        tern__view_set(v, draw(0, tern__view_count(v) - 1), special[draw(0, 2)]);
}

static void round_of(tern_dtype dtype, tern_dtype y_dtype, bool special)
{
    int ndim = (int)draw(2, 5), batches = ndim - 2;
    int64_t large = draw(0, 3) ? 9 : 40;
    int64_t m = draw(1, large), k = draw(1, large), n = draw(1, large), shape[3][TERN_NDIM_MAX];
    bool repeated[3][TERN_NDIM_MAX] = {{false}}, summed = false;
    for (int d = 0; d < batches; d++) {
        int64_t size = draw(1, 3);
        for (int i = 0; i < 3; i++) shape[i][d] = size;
        int who = (int)draw(0, 4); /* 3, 4: none */
        if (who < 3) repeated[who][d] = true;
        summed = summed || who == 2;
    }
    int64_t sizes[3][2] = {{m, k}, {k, n}, {m, n}};
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 2; d++) shape[i][batches + d] = sizes[i][d];
    tern__view a = random_view(dtype, ndim, shape[0], repeated[0], false);
    tern__view b = random_view(dtype, ndim, shape[1], repeated[1], false);
    tern__view y = random_view(y_dtype, ndim, shape[2], repeated[2], true);
    tern__view bias = random_view(dtype, 1, &n, (bool[]){false}, true);
    tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b, summed || draw(0, 1) ? NULL : &bias}};
    static const tern__matmul_attr relu = {.relu = 1};
    call.add[0] = draw(0, 1);
    if (special) make_special(draw(0, 1) ? &a : &b);
    (special ? compare_numbers : compare)(&call, &y);
    call.attr = &relu;
    (special ? compare_numbers : compare)(&call, &y);
    free(a.data);
    free(b.data);
    free(y.data);
    free(bias.data);
}

static void one_round(tern_dtype dtype, tern_dtype y_dtype)
{
    round_of(dtype, y_dtype, false);
}

static void as_the_reference_in_f32(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) one_round(TERN_F32, TERN_F32);
}

static void as_the_reference_in_f64(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) one_round(TERN_F64, TERN_F64);
}

static void as_the_reference_in_bf16(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) one_round(TERN_BF16, TERN_BF16);
}

static void as_the_reference_in_f16(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) one_round(TERN_F16, TERN_F16);
}

/* As for gradients of 16-bit layers, which are accumulated in f32. */
static void of_16_bits_into_f32(void **unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) one_round(i % 2 ? TERN_BF16 : TERN_F16, TERN_F32);
}

/* In bf16 by the tile unit only: oneDNN's kernels turn some infinities into NaN. */
static void infinities_and_nan(void **unused)
{
    (void)unused;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F16, TERN_F64, TERN_BF16};
    int count = tern__amx_has() ? 4 : 3;
    for (int i = 0; i < ROUNDS / 4; i++) round_of(dtypes[i % count], dtypes[i % count], true);
}

static tern__view wave(int ndim, int64_t rows, int64_t columns)
{
    tern__view v =
        tern__view_make(TERN_F64, TERN__PLAIN, ndim, (int64_t[]){ndim == 1 ? columns : rows, columns});
    double *data = v.data = malloc((size_t)(rows * columns) * sizeof(*data));
    for (int64_t i = 0; i < rows * columns; i++) data[i] = sin((double)(i * i % 1009));
    return v;
}

/* Several blocks of rows, of the sum and of columns, each with a remainder; few rows; few columns; adding to
 * the result, with a bias and a ReLU. The results match the reference up to rounding, and have the same bits
 * with any number of threads. */
static void of_many_blocks_in_f64(void **unused)
{
    (void)unused;
    const int64_t sizes[][3] = {{361, 700, 83}, {5, 513, 67}, {700, 257, 3}, {121, 256, 8}};
    static const tern__matmul_attr relu = {.relu = 1};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2];
        size_t bytes = (size_t)(m * n) * sizeof(double);
        tern__view a = wave(2, m, k), b = wave(2, k, n), bias = wave(1, 1, n);
        tern__view y = wave(2, m, n), want = wave(2, m, n);
        double *start = memcpy(malloc(bytes), y.data, bytes), *first = malloc(bytes);
        tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b, &bias}, .add = {true}, .attr = &relu};
        run_on("cpu:reference", 1, &call, &want);
        for (int threads = 1; threads <= 5; threads++) {
            memcpy(y.data, start, bytes);
            run_on("cpu", threads, &call, &y);
            if (threads == 1) memcpy(first, y.data, bytes);
            assert_memory_equal(y.data, first, bytes);
        }
        for (int64_t e = 0; e < m * n; e++)
            assert_true(fabs(first[e] - ((double *)want.data)[e]) < 1e-15 * (double)k);
        void *made[] = {a.data, b.data, y.data, want.data, bias.data, start, first};
        for (size_t d = 0; d < sizeof(made) / sizeof(*made); d++) free(made[d]);
    }
}

/* Returns quarters of small integers in `dtype`, whose sums of products are exact in f32. */
static tern__view quarters(tern_dtype dtype, int ndim, int64_t rows, int64_t columns)
{
    tern__view v =
        tern__view_make(dtype, TERN__PLAIN, ndim, (int64_t[]){ndim == 1 ? columns : rows, columns});
    v.data = malloc((size_t)(rows * columns) * tern_dtype_bytes(dtype));
    for (int64_t i = 0; i < rows * columns; i++) tern__view_set(&v, i, (double)draw(-8, 8) / 4);
    return v;
}

/* One product of few rows, with b by rows or by columns and y of two types, adds or not, has a bias and a
 * ReLU or not: the reference's bits with any number of threads. */
static void few_rows_of(tern_dtype dtype, int64_t m, int64_t k, int64_t n, bool is_by_columns)
{
    static const tern__matmul_attr relu = {.relu = 1};
    tern_dtype y_dtype = draw(0, 2) ? dtype : TERN_F32;
    size_t bytes = (size_t)(m * n) * tern_dtype_bytes(y_dtype);
    tern__view a = quarters(dtype, 2, m, k), bias = quarters(dtype, 1, 1, n), y = quarters(y_dtype, 2, m, n);
    tern__view b = is_by_columns ? quarters(dtype, 2, n, k) : quarters(dtype, 2, k, n), want = y;
    if (is_by_columns) {
        b.shape[0] = k, b.shape[1] = n;
        b.stride[0] = 1, b.stride[1] = k;
    }
    void *start = memcpy(malloc(bytes), y.data, bytes);
    want.data = memcpy(malloc(bytes), y.data, bytes);
    tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b, draw(0, 1) ? &bias : NULL}};
    call.add[0] = draw(0, 1);
    if (draw(0, 1)) call.attr = &relu;
    run_on("cpu:reference", 1, &call, &want);
    for (int threads = 1; threads <= 3; threads++) {
        memcpy(y.data, start, bytes);
        run_on("cpu", threads, &call, &y);
        assert_memory_equal(y.data, want.data, bytes);
    }
    void *made[] = {a.data, b.data, y.data, want.data, bias.data, start};
    for (size_t d = 0; d < sizeof(made) / sizeof(*made); d++) free(made[d]);
}

static void of_few_rows(void **unused)
{
    (void)unused;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
    static const int64_t sizes[][2] = {{1, 1},     {1, 300},  {300, 1},   {7, 13},   {16, 16},
                                       {129, 767}, {767, 65}, {256, 512}, {40, 3001}};
    for (int i = 0; i < 3; i++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
            for (int64_t m = 1; m <= 4; m += 1 + (int64_t)(s % 2))
                for (int turned = 0; turned < 2; turned++)
                    few_rows_of(dtypes[i], m, sizes[s][0], sizes[s][1], turned);
}

/* Sums that are rounded: as near to the reference as f32 is, and the same bits with any number of threads. */
static void of_few_rows_that_round(void **unused)
{
    (void)unused;
    enum { M = 3, K = 1500, N = 333 };
    for (int turned = 0; turned < 2; turned++) {
        float *data[3] = {malloc(M * K * sizeof(float)), malloc(K * N * sizeof(float)), NULL};
        for (int i = 0; i < M * K; i++) data[0][i] = sinf((float)((int64_t)i * i % 1009));
        for (int i = 0; i < K * N; i++) data[1][i] = cosf((float)((int64_t)i * i % 2003));
        float y[M * N], first[M * N];
        tern__view a = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){M, K}),
                   b = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){K, N}),
                   to = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){M, N});
        a.data = data[0], b.data = data[1], to.data = y;
        if (turned) b.stride[0] = 1, b.stride[1] = K;
        tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b}};
        for (int threads = 1; threads <= 9; threads += 1 + threads / 2) {
            run_on("cpu", threads, &call, &to);
            if (threads == 1) memcpy(first, y, sizeof(y));
            assert_memory_equal(y, first, sizeof(y));
        }
        for (int i = 0; i < M * N; i++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum +=
                    (double)data[0][i / N * K + k] * (double)data[1][turned ? i % N * K + k : k * N + i % N];
            assert_true(fabs(sum - (double)y[i]) < 1e-5 * K / 30);
        }
        free(data[0]);
        free(data[1]);
    }
}

/* ---- f32 on CPUs without AVX-512, tested on any ---- */

static int f32_matmul(const tern__call *call)
{
    tern__product p = tern__product_of(call);
    char *at[] = {call->in[0]->data, call->in[1]->data, call->out[0]->data};
    assert_true(tern__product_stands(&p) && p.sums == 0);
    return tern__f32_matmul(call, &p, at, call->add[0]);
}

/* A batch of matrices whose rows or columns are contiguous, of numbers whose products are rounded. */
static tern__view rounding(int64_t batch, int64_t rows, int64_t columns, bool turned, int number)
{
    tern__view v = tern__view_make(TERN_F32, TERN__PLAIN, 3, (int64_t[]){batch, rows, columns});
    float *data = v.data = malloc((size_t)tern__view_count(&v) * sizeof(*data));
    for (int64_t i = 0; i < tern__view_count(&v); i++) data[i] = sinf((float)(i * i % (1009 + 2 * number)));
    if (turned) v.stride[1] = 1, v.stride[2] = rows;
    return v;
}

/* Each element as the sum in double, up to the rounding of a sum of k products in f32. */
static void assert_is_product(const tern__call *call, const float *before)
{
    const tern__view *a = call->in[0], *b = call->in[1], *y = call->out[0];
    const tern__matmul_attr *attr = call->attr;
    for (int64_t i = 0; i < tern__view_count(y); i++) {
        int64_t n = i / (y->shape[1] * y->shape[2]), r = i / y->shape[2] % y->shape[1], c = i % y->shape[2];
        double sum = call->add[0] ? (double)before[i] : 0, size = fabs(sum);
        if (call->in[2]) sum += (double)((float *)call->in[2]->data)[c];
        for (int64_t k = 0; k < a->shape[2]; k++) {
            double x = (double)((float *)a->data)[n * a->stride[0] + r * a->stride[1] + k * a->stride[2]] *
                       (double)((float *)b->data)[n * b->stride[0] + k * b->stride[1] + c * b->stride[2]];
            sum += x;
            size += fabs(x);
        }
        if (attr && attr->relu && sum < 0) sum = 0;
        double got = (double)((float *)y->data)[i];
        if (fabs(got - sum) > 1e-6 * (size + 1))
            fail_msg("element %lld is %g, not %g", (long long)i, got, sum);
    }
}

/* One product with any number of threads, whose bits are those of one thread. */
static void same_bits_of(int64_t batch, int64_t m, int64_t k, int64_t n, bool a_turned, bool b_turned)
{
    static const tern__matmul_attr relu = {.relu = 1};
    static const int threads[] = {1, 2, 3, 4, 7};
    tern__view a = rounding(batch, m, k, a_turned, 0), b = rounding(batch, k, n, b_turned, 1),
               y = rounding(batch, m, n, false, 2), bias = rounding(1, 1, n, false, 3);
    if (batch > 1 && draw(0, 1)) b.stride[0] = 0;
    bias.ndim = 1;
    bias.shape[0] = n;
    size_t bytes = tern__view_bytes(&y);
    float *start = memcpy(malloc(bytes), y.data, bytes), *first = malloc(bytes);
    tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b, draw(0, 1) ? &bias : NULL}};
    call.add[0] = draw(0, 1);
    if (draw(0, 1)) call.attr = &relu;
    for (size_t t = 0; t < TERN__COUNT(threads); t++) {
        memcpy(y.data, start, bytes);
        run_kernel(f32_matmul, "cpu", threads[t], &call, &y);
        if (t == 0) memcpy(first, y.data, bytes);
        assert_memory_equal(y.data, first, bytes);
    }
    assert_is_product(&call, start);
    void *made[] = {a.data, b.data, y.data, bias.data, start, first};
    for (size_t d = 0; d < TERN__COUNT(made); d++) free(made[d]);
}

static void same_bits_for_any_number_of_threads(void **unused)
{
    (void)unused;
    static const int64_t sizes[][4] = {
        {1, 30, 300, 500}, {1, 300, 30, 501}, {1, 201, 513, 67}, {1, 5, 1031, 203}, {3, 65, 257, 49},
        {5, 33, 40, 31},   {40, 17, 9, 25},   {1, 2, 4099, 1},   {1, 777, 1, 23},   {1, 500, 300, 40},
        {1, 30, 500, 40},  {1, 500, 30, 40},  {1, 95, 270, 399}, {2, 17, 37, 77}};
    for (size_t i = 0; i < TERN__COUNT(sizes); i++)
        for (int turned = 0; turned < 4; turned++)
            same_bits_of(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], turned & 1, turned & 2);
    for (int i = 0; i < 16; i++)
        same_bits_of(draw(1, 3), draw(1, 90), draw(1, 600), draw(1, 130), draw(0, 1), draw(0, 1));
}

/* A row of the result does not depend on the other rows. A result of few rows is computed turned. */
static void same_bits_for_any_number_of_rows(void **unused)
{
    (void)unused;
    enum { M = 197, K = 301, N = 397 };
    tern__view a = rounding(1, M, K, false, 0), b = rounding(1, K, N, true, 1),
               y = rounding(1, M, N, false, 2);
    float *all = y.data, some[M * N];
    tern__call call = {.kernel = TERN__MATMUL, .in = {&a, &b}};
    run_kernel(f32_matmul, "cpu", 2, &call, &y);
    y.data = some;
    for (int64_t rows = 1; rows < M; rows += 13) {
        a.shape[1] = y.shape[1] = rows;
        run_kernel(f32_matmul, "cpu", 3, &call, &y);
        assert_memory_equal(some, all, (size_t)(rows * N) * sizeof(float));
    }
    free(a.data);
    free(b.data);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* This one must be first: it decides oneDNN's instruction set. */
        cmocka_unit_test(as_the_reference_in_bf16),
        cmocka_unit_test(as_the_reference_in_f32),
        cmocka_unit_test(as_the_reference_in_f64),
        cmocka_unit_test(as_the_reference_in_f16),
        cmocka_unit_test(of_16_bits_into_f32),
        cmocka_unit_test(infinities_and_nan),
        cmocka_unit_test(of_many_blocks_in_f64),
        cmocka_unit_test(of_few_rows),
        cmocka_unit_test(of_few_rows_that_round),
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(same_bits_for_any_number_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
