/* test_weighted.c - weights and shares of a mean, compared with their definition one element at a time. */
#include "elements.h"
#include "place.h"

static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};

enum { extents_max = 4, elements_max = 70000, window_bytes = (elements_max + 64) * 8 };

static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* ---- any weights ---- */

/* The weights and shares of all ranks, which all ranks know. */
typedef struct saying {
    bool weighted[RANKS_MAX], shadow[RANKS_MAX];
    double weight[RANKS_MAX], share[RANKS_MAX], shares;
    int shadows;
} saying;

static saying say(int world, uint64_t *seed)
{
    static const double weights[] = {0, 1, 3, 0.3, 17.5, 1e4};
    saying s = {0};
    for (int r = 0; r < world; r++) {
        uint64_t random = random_next(seed);
        s.weighted[r] = random % 4 != 0;
        s.shadow[r] = random / 4 % 3 == 0;
        s.weight[r] = s.weighted[r] ? weights[random / 16 % TERN__COUNT(weights)] : 1;
        s.share[r] = random / 4096 % 2 ? s.weight[r] : (double)(random / 8192 % 3);
        if (!s.weighted[r]) s.share[r] = 1;
        s.shares += s.share[r];
        s.shadows += s.shadow[r];
    }
    return s;
}

static bool is_plain(const saying *s, int world)
{
    for (int r = 0; r < world; r++)
        if (s->weight[r] != 1) return false;
    return s->shares == world;
}

static bool is_moot(const saying *s, int world)
{
    double weights = 0;
    for (int r = 0; r < world; r++) weights += s->weight[r];
    return weights == 0 || s->shares == 0;
}

/* Memory that is not read is filled with NaN. */
static void put_own(tern_dtype dtype, char *at, const saying *s, int rank, size_t i)
{
    if (s->weight[rank] == 0 && s->weighted[rank])
        element_float_put(dtype, at, i % elements_period % 2 ? NAN : -INFINITY);
    else
        element_put(dtype, at, rank, i);
}

static double rounded(tern_dtype dtype, double value)
{
    return dtype == TERN_F64 ? value : (double)(float)value;
}

/* Computes every step in double and rounds it to the width of the computation; for floats that is rounding
 * once. */
static void put_expected(tern_dtype dtype, char *at, const saying *s, const place *p, size_t i)
{
    double terms[RANKS_MAX] = {0};
    char own[8];
    if (is_moot(s, p->world)) {
        put_own(dtype, at, s, p->rank, i);
        return;
    }
    for (int r = 0; r < p->world; r++) {
        if (s->weight[r] == 0) continue;
        put_own(dtype, own, s, r, i);
        volatile double product = rounded(dtype, rounded(dtype, s->weight[r]) * element_float(dtype, own));
        terms[r] = product;
    }
    double sum = pairwise_reduced(dtype, TERN_SUM, terms, p->world);
    element_float_put(dtype, at, rounded(dtype, sum / rounded(dtype, s->shares)));
}

static int cut(tern__extent *extents, uint32_t window, size_t count, size_t size, uint64_t *seed)
{
    int n = count ? 1 + (int)(random_next(seed) % extents_max) : 0;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t here = i == n - 1 ? count : random_next(seed) % (count + 1);
        extents[i] = (tern__extent){window, at * size, here};
        at += here + 1 + random_next(seed) % 5;
        count -= here;
    }
    return n;
}

/* One period of this rank's data, and of the result. */
typedef struct table {
    char own[elements_period * 8], expected[elements_period * 8];
} table;

static void fill(table *t, tern_dtype dtype, const saying *s, const place *p)
{
    size_t size = tern_dtype_bytes(dtype);
    for (size_t i = 0; i < elements_period; i++) {
        put_own(dtype, t->own + i * size, s, p->rank, i);
        put_expected(dtype, t->expected + i * size, s, p, i);
    }
}

/* The extent holds the work's elements from `first` on. */
static void put_extent(place *p, const table *t, size_t size, size_t first, const tern__extent *e)
{
    for (size_t i = 0; i < e->count; i++)
        memcpy(p->base + e->offset + i * size, t->own + (first + i) % elements_period * size, size);
}

static int check_extent(place *p, const table *t, tern_dtype dtype, size_t first, const tern__extent *e)
{
    size_t size = tern_dtype_bytes(dtype);
    const char *at = p->base + e->offset;
    for (size_t i = 0; i < e->count; i++)
        RANK_CHECK(p->rank, elements_match(dtype, at + i * size,
                                           t->expected + (first + i) % elements_period * size, 1));
    return 0;
}

/* Checks that all ranks have the same bits. */
static int check_bits(place *p, const tern__extent *e, size_t size)
{
    uint64_t hash = 77;
    for (size_t i = 0; i < e->count * size; i++) hash = hash * 31 + (unsigned char)p->base[e->offset + i];
    int64_t low = (int64_t)(hash >> 1), high = low;
    tern_all_reduce(p->group, &low, 1, TERN_I64, TERN_MIN, &p->err);
    tern_all_reduce(p->group, &high, 1, TERN_I64, TERN_MAX, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    RANK_CHECK(p->rank, low == high);
    return 0;
}

static int check_tally(const place *p, const saying *s, uint64_t seq)
{
    const tern__tally *tally = p->backend->tally(p->channel[0], seq);
    RANK_CHECK(p->rank, tally->shadows == s->shadows);
    RANK_CHECK(p->rank, tally->shares == s->shares);
    for (int r = 0; r < p->world; r++) RANK_CHECK(p->rank, tally->shadow[r] == s->shadow[r]);
    return 0;
}

static tern__post post_of(const place *p, const saying *s, tern_dtype dtype)
{
    return (tern__post){.kind = TERN__ALL_REDUCE,
                        .dtype = dtype,
                        .op = TERN_AVG,
                        .label = {.kind = &tern__ddp_label,
                                  .user = 1,
                                  .number = s->shadow[p->rank] ? 100 + (uint64_t)p->rank : 7,
                                  .detail = s->shadow[p->rank] ? 0 : 2},
                        .terms.weighted = s->weighted[p->rank],
                        .terms.weight = s->weight[p->rank],
                        .terms.share = s->share[p->rank],
                        .terms.shadow = s->shadow[p->rank]};
}

static int run_mean(place *p, tern_dtype dtype, size_t count, const saying *s, uint64_t *seed)
{
    tern__extent extents[extents_max];
    tern__post post = post_of(p, s, dtype);
    size_t size = tern_dtype_bytes(dtype), first = 0;
    table t;
    fill(&t, dtype, s, p);
    post.extents = extents;
    post.extent_count = cut(extents, p->window, count, size, seed);
    memset(p->base, 0x5a, (count + 64) * size);
    for (int k = 0; k < post.extent_count; first += extents[k++].count)
        put_extent(p, &t, size, first, &extents[k]);
    uint64_t seq = place_run(p, &post);
    RANK_CHECK_OK(p->rank, p->err);
    if (check_tally(p, s, seq)) return 1;
    first = 0;
    for (int k = 0; k < post.extent_count; first += extents[k++].count) {
        RANK_CHECK(p->rank, p->base[extents[k].offset + extents[k].count * size] == 0x5a);
        if (check_extent(p, &t, dtype, first, &extents[k])) return 1;
        if (s->shares > 0 && check_bits(p, &extents[k], size)) return 1;
    }
    return 0;
}

static int mean_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    uint64_t seed = 11 + (uint64_t)boot->world;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    for (int n = 0; n < 10; n++) {
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
            saying s = say(p.world, &seed);
            if (is_plain(&s, p.world)) continue;
            size_t count = n ? random_next(&seed) % 5000 : elements_max - 100;
            if (run_mean(&p, dtypes[d], count, &s, &seed)) return 1;
        }
    }
    place_close(&p);
    return 0;
}

static void test_weighted_means(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) {
        assert_ranks_ok(ranks_run(worlds[i], mean_body, NULL));
        assert_ranks_ok(ranks_run_threads(worlds[i], mean_body, NULL));
    }
}

/* All shares are 0: memory does not change. */
static int untouched_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    uint64_t seed = 5;
    place p;
    saying s = {0};
    for (int r = 0; r < boot->world; r++) {
        s.weighted[r] = true;
        s.weight[r] = r; /* without effect */
    }
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
        if (run_mean(&p, dtypes[d], 3001, &s, &seed)) return 1;
    place_close(&p);
    return 0;
}

static void test_no_shares_leave_the_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        assert_ranks_ok(ranks_run(worlds[i], untouched_body, NULL));
}

/* A mean; every seventh element is -0 on all ranks. */
static void put_mean(place *p, tern_dtype dtype, size_t count, double weight, tern__kind kind)
{
    tern__extent extent = {p->window, 0, count};
    tern__post post = {.kind = kind, .dtype = dtype, .op = TERN_AVG, .extents = &extent, .extent_count = 1};
    post.terms.weighted = weight != 0;
    post.terms.weight = post.terms.share = weight;
    elements_put(dtype, p->base, p->rank, 0, count);
    for (size_t i = 0; i < count; i += 7)
        element_float_put(dtype, p->base + i * tern_dtype_bytes(dtype), -0.0);
    place_run(p, &post);
}

/* Weights and shares of 1 give the plain mean bit by bit, including NaNs and signs of zeros. Doubling both
 * gives the same numbers. */
static int plain_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { count = 7 * 8 * 60 };
    static const tern__kind kinds[] = {TERN__ALL_REDUCE, TERN__REDUCE_SCATTER};
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    char *plain = malloc((size_t)count * 8);
    for (size_t k = 0; k < TERN__COUNT(kinds); k++) {
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
            size_t bytes = count * tern_dtype_bytes(dtypes[d]);
            size_t part = k ? bytes / (size_t)p.world : bytes, at = k ? part * (size_t)rank : 0;
            put_mean(&p, dtypes[d], count, 0, kinds[k]);
            memcpy(plain, p.base, bytes);
            put_mean(&p, dtypes[d], count, 1, kinds[k]);
            RANK_CHECK(rank, !memcmp(plain + at, p.base + at, part));
            put_mean(&p, dtypes[d], count, 2, kinds[k]);
            size_t elements = part / tern_dtype_bytes(dtypes[d]);
            RANK_CHECK(rank, elements_match(dtypes[d], p.base + at, plain + at, elements));
            RANK_CHECK_OK(rank, p.err);
        }
    }
    free(plain);
    place_close(&p);
    return 0;
}

static void test_weights_of_1_are_the_plain_mean(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) {
        if (worlds[i] == 1) continue; /* test_weighted_means covers a group of one */
        assert_ranks_ok(ranks_run(worlds[i], plain_body, NULL));
    }
}

/* The result goes to the rank's own memory: the mean of its part. The window does not change. */
static int scatter_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { each = 333 };
    float out[each], weights = 0;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    tern__extent extent = {p.window, 0, (uint64_t)each * (uint64_t)p.world};
    tern__post post = {.kind = TERN__REDUCE_SCATTER,
                       .dtype = TERN_F32,
                       .op = TERN_AVG,
                       .extents = &extent,
                       .extent_count = 1,
                       .out = out,
                       .terms.weighted = true,
                       .terms.weight = rank + 1,
                       .terms.share = rank + 1};
    for (uint64_t i = 0; i < extent.count; i++) ((float *)p.base)[i] = (float)i;
    for (int r = 0; r < p.world; r++) weights += (float)(r + 1);
    place_run(&p, &post);
    RANK_CHECK_OK(rank, p.err);
    RANK_CHECK(rank, p.backend->tally(p.channel[0], 1)->shares == weights);
    for (int i = 0; i < each; i++) RANK_CHECK(rank, out[i] == (float)(rank * each + i));
    for (uint64_t i = 0; i < extent.count; i++) RANK_CHECK(rank, ((float *)p.base)[i] == (float)i);
    place_close(&p);
    return 0;
}

static void test_weighted_parts_in_own_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        assert_ranks_ok(ranks_run(worlds[i], scatter_body, NULL));
}

/* ---- refused weights ---- */

static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    static const struct {
        tern__post post;
        int code;
    } cases[] = {
        {{.kind = TERN__ALL_REDUCE, .op = TERN_SUM, .terms.weight = 1, .terms.share = 1}, TERN_E_INVALID},
        {{.kind = TERN__BROADCAST, .op = TERN_AVG, .terms.weight = 1, .terms.share = 1}, TERN_E_INVALID},
        {{.kind = TERN__ALL_REDUCE, .op = TERN_AVG, .terms.weight = NAN, .terms.share = 1}, TERN_E_RANGE},
        {{.kind = TERN__ALL_REDUCE, .op = TERN_AVG, .terms.weight = INFINITY, .terms.share = 1},
         TERN_E_RANGE},
        {{.kind = TERN__ALL_REDUCE, .op = TERN_AVG, .terms.weight = 1, .terms.share = -1}, TERN_E_RANGE},
        {{.kind = TERN__REDUCE_SCATTER, .op = TERN_AVG, .terms.weight = 1, .terms.share = NAN}, TERN_E_RANGE},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        tern__post post = cases[i].post;
        tern_error err = {0};
        uint64_t seq;
        post.terms.weighted = true;
        RANK_CHECK(rank, p.backend->post(p.channel[0], &post, &seq, &err) == cases[i].code);
        RANK_CHECK(rank, err.code == cases[i].code);
    }
    place_close(&p);
    return 0;
}

static void test_false_weights_are_refused(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, refused_body, NULL));
    assert_ranks_ok(ranks_run(2, refused_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weighted_means),
        cmocka_unit_test(test_no_shares_leave_the_memory),
        cmocka_unit_test(test_weights_of_1_are_the_plain_mean),
        cmocka_unit_test(test_weighted_parts_in_own_memory),
        cmocka_unit_test(test_false_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
