/* test_premul.c - premul_sum with a factor per rank, f16 and bf16 in f32, compared with a sum computed one
 * element at a time in the precision of the result. */
#include "elements.h"
#include "group_fixture.h"

enum { most = 70001 };
static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
static const double factors[] = {0.5, -3, 1.0 / 3, 0, 1e-3, 7, 2, 1};

static double term(tern_dtype dtype, int rank, size_t i, double factor)
{
    char own[8];
    element_put(dtype, own, rank, i);
    double x = element_float(dtype, own);
    return dtype == TERN_F64 ? factor * x : (double)(float)((float)factor * (float)x);
}

/* Computes pairwise, rounding each product and each sum. An input with factor 0 counts as 0, even if it is
 * NaN. */
static void expect(const fixture *f, tern_dtype dtype, void *buf, size_t first, size_t count)
{
    size_t size = tern_dtype_bytes(dtype);
    for (size_t i = 0; i < TERN__MIN((size_t)elements_period, count); i++) {
        double terms[RANKS_MAX] = {0};
        for (int rank = 0; rank < f->world; rank++)
            if (factors[rank] != 0) terms[rank] = term(dtype, rank, first + i, factors[rank]);
        element_float_put(dtype, (char *)buf + i * size, pairwise_reduced(dtype, TERN_SUM, terms, f->world));
    }
    for (size_t i = elements_period; i < count; i += elements_period)
        memcpy((char *)buf + i * size, buf, TERN__MIN((size_t)elements_period, count - i) * size);
}

static int check_memory(fixture *f, char *buf, tern_dtype dtype, size_t count)
{
    size_t size = tern_dtype_bytes(dtype), part = count / (size_t)f->world;
    double factor = factors[f->rank];
    int root = (int)(count % (size_t)f->world);
    expect(f, dtype, f->expected, 0, count);
    elements_put(dtype, buf, f->rank, 0, count);
    tern_all_reduce_premul(f->group, buf, count, dtype, factor, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, elements_match(dtype, buf, f->expected, count));
    elements_put(dtype, buf, f->rank, 0, count);
    tern_reduce_premul(f->group, buf, count, dtype, factor, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    if (f->rank != root) elements_put(dtype, f->expected, f->rank, 0, count);
    RANK_CHECK(f->rank, elements_match(dtype, buf, f->expected, count));
    elements_put(dtype, buf, f->rank, 0, part * (size_t)f->world);
    expect(f, dtype, f->expected, (size_t)f->rank * part, part);
    char *out = f->expected + part * size;
    tern_reduce_scatter_premul(f->group, buf, out, part, dtype, factor, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, elements_match(dtype, out, f->expected, part));
    return 0;
}

static int check_all_memory(fixture *f, char *buf, size_t shift)
{
    static const size_t counts[] = {0, 1, 1000, most};
    for (size_t c = 0; c < TERN__COUNT(counts); c++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
            if (!check_memory(f, buf + shift, dtypes[d], counts[c])) continue;
            fprintf(stderr, "rank %d of %d: %zu %s\n", f->rank, f->world, counts[c],
                    tern_dtype_name(dtypes[d]));
            return 1;
        }
    return 0;
}

static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, (size_t)2 * (most + 8) * 8)) return 1;
    if (check_all_memory(&f, f.plain, (size_t)rank % 3) || fixture_map(&f) ||
        check_all_memory(&f, f.window, 1))
        return 1;
    return fixture_close(&f);
}

static void test_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], exact_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, exact_body, NULL));
}

/* A mean over no ranks leaves the buffers unchanged; a sum over none is 0. */
static int zeros_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    float x[3] = {NAN, INFINITY, 5}, y[3] = {1, 2, 3};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_all_reduce_premul(f.group, x, 3, TERN_F32, 0, &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int i = 0; i < 3; i++) RANK_CHECK(rank, x[i] == 0);
    tern_work *work = tern_all_reduce_premul_post(f.group, y, 3, TERN_F32, 1, &f.err);
    tern_work_wait(work, &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int i = 0; i < 3; i++) RANK_CHECK(rank, y[i] == (float)((i + 1) * f.world));
    return fixture_close(&f);
}

static void test_factors_of_0_and_1(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, zeros_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_factors_of_0_and_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
