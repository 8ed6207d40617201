/* Collectives of 1, 2, 3, 4, 7 and 8 ranks against exact arithmetic, through windows and ordinary memory, and
 * the back end's channels with few slots. Ranks are processes, and threads of one process that share one
 * mapping, so that a race detector sees what they do to each other. */
#include "ranks.h"

#include "comm/group.h"
#include "comm/native/native.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>

#ifdef __SANITIZE_THREAD__
#define THOUSANDS(n) ((n)*100)
static const int worlds[] = {1, 2, 3};
#else
#define THOUSANDS(n) ((n)*1000)
static const int worlds[] = {1, 2, 3, 4, 7, 8};
#endif

/* A rank whose check has failed leaves without a word: where ranks are threads, the others notice by time. */
static tern_group *open_group(const tern__bootstrap *boot, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = 10;
    return tern__group_open_boot(boot, &opts, err);
}

/* ---- elements ---- */

static void put(void *buf, tern_dtype dtype, size_t i, int64_t value)
{
    switch (dtype) {
    case TERN_F32: memcpy((char *)buf + i * 4, &(float){(float)value}, 4); break;
    case TERN_F64: memcpy((char *)buf + i * 8, &(double){(double)value}, 8); break;
    case TERN_I64: memcpy((char *)buf + i * 8, &value, 8); break;
    case TERN_I32: memcpy((char *)buf + i * 4, &(int32_t){(int32_t)value}, 4); break;
    default: ((uint8_t *)buf)[i] = (uint8_t)value;
    }
}

enum { period = 62 };

/* What rank `rank` has at place i: exact in every dtype, also in sums. 64-bit integers use more than a
 * double. It repeats itself after `period` places. */
static int64_t value_of(tern_dtype dtype, int rank, size_t i)
{
    int64_t small = (int64_t)((i * 7 + (size_t)rank * 13) % 31);
    if (dtype == TERN_I64) return small + (INT64_C(1) << 58);
    return dtype == TERN_U8 || !(i & 1) ? small : -small;
}

static void put_reduced(void *buf, tern_dtype dtype, tern_reduce_op op, size_t i, int world)
{
    int64_t sum = 0, low = INT64_MAX, high = INT64_MIN;
    for (int rank = 0; rank < world; rank++) {
        int64_t value = value_of(dtype, rank, i);
        sum = (int64_t)((uint64_t)sum + (uint64_t)value);
        low = TERN__MIN(low, value);
        high = TERN__MAX(high, value);
    }
    if (op == TERN_AVG && dtype == TERN_F32)
        memcpy((char *)buf + i * 4, &(float){(float)sum / (float)world}, 4);
    else if (op == TERN_AVG)
        memcpy((char *)buf + i * 8, &(double){(double)sum / (double)world}, 8);
    else
        put(buf, dtype, i, op == TERN_SUM ? sum : op == TERN_MIN ? low : high);
}

/* The first period is written: the rest. */
static void repeat(void *buf, tern_dtype dtype, size_t count)
{
    size_t size = tern_dtype_bytes(dtype);
    for (size_t i = period; i < count; i += period)
        memcpy((char *)buf + i * size, buf, TERN__MIN((size_t)period, count - i) * size);
}

static void put_values(void *buf, tern_dtype dtype, int rank, size_t count)
{
    for (size_t i = 0; i < TERN__MIN((size_t)period, count); i++)
        put(buf, dtype, i, value_of(dtype, rank, i));
    repeat(buf, dtype, count);
}

/* ---- every dtype, operation and size ---- */

enum { most = 70000 };
static const size_t counts[] = {0, 1, 2, 3, 63, 64, 65, 1023, 4097, 32767, 32769, most};

typedef struct bench {
    tern_group *group;
    int rank, world;
    char *window, *plain, *expected;
    tern_error err;
} bench;

static bool is_as_expected(const bench *b, const char *buf, tern_dtype dtype, size_t count)
{
    return !memcmp(buf, b->expected, count * tern_dtype_bytes(dtype));
}

static int check_reduce(bench *b, char *buf, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    put_values(buf, dtype, b->rank, count);
    for (size_t i = 0; i < TERN__MIN((size_t)period, count); i++)
        put_reduced(b->expected, dtype, op, i, b->world);
    repeat(b->expected, dtype, count);
    tern_all_reduce(b->group, buf, count, dtype, op, &b->err);
    RANK_CHECK_OK(b->rank, b->err);
    RANK_CHECK(b->rank, is_as_expected(b, buf, dtype, count));
    return 0;
}

static int check_broadcast(bench *b, char *buf, tern_dtype dtype, int root, size_t count)
{
    put_values(buf, dtype, b->rank, count);
    put_values(b->expected, dtype, root, count);
    tern_broadcast(b->group, buf, count, dtype, root, &b->err);
    RANK_CHECK_OK(b->rank, b->err);
    RANK_CHECK(b->rank, is_as_expected(b, buf, dtype, count));
    return 0;
}

/* `count` elements of all ranks together; every other time in place. */
static int check_gather(bench *b, char *buf, tern_dtype dtype, size_t count)
{
    size_t each = count / (size_t)b->world, bytes = each * tern_dtype_bytes(dtype);
    char *in = each & 1 ? buf + (size_t)b->rank * bytes : b->expected;
    memset(buf, 0x55, bytes * (size_t)b->world);
    put_values(in, dtype, b->rank, each);
    tern_all_gather(b->group, in, buf, each, dtype, &b->err);
    RANK_CHECK_OK(b->rank, b->err);
    for (int rank = 0; rank < b->world; rank++)
        put_values(b->expected + (size_t)rank * bytes, dtype, rank, each);
    RANK_CHECK(b->rank, is_as_expected(b, buf, dtype, each * (size_t)b->world));
    return 0;
}

static int check_dtype(bench *b, char *buf, tern_dtype dtype, size_t count)
{
    for (tern_reduce_op op = TERN_SUM; op <= TERN_MAX; op++) {
        if (op == TERN_AVG && dtype != TERN_F32 && dtype != TERN_F64) continue;
        if (check_reduce(b, buf, dtype, op, count)) return 1;
    }
    int root = (int)(count % (size_t)b->world);
    return check_broadcast(b, buf, dtype, root, count) || check_gather(b, buf, dtype, count);
}

static int open_bench(bench *b, int rank, const tern__bootstrap *boot)
{
    const size_t bytes = (size_t)most * 8 + 64;
    *b = (bench){.rank = rank, .world = boot->world};
    b->group = open_group(boot, &b->err);
    RANK_CHECK_OK(rank, b->err);
    b->window = tern_group_mem_alloc(b->group, bytes, &b->err);
    RANK_CHECK_OK(rank, b->err);
    b->plain = malloc(bytes);
    b->expected = malloc(bytes);
    return 0;
}

static int close_bench(bench *b)
{
    tern_group_close(b->group);
    free(b->plain);
    free(b->expected);
    return 0;
}

/* Buffers begin at every byte of a word in turn. */
static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    if (open_bench(&b, rank, boot)) return 1;
    for (size_t c = 0; c < TERN__COUNT(counts); c++)
        for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++)
            if (check_dtype(&b, b.window + (c + dtype) % 8, dtype, counts[c]) ||
                check_dtype(&b, b.plain + (c + dtype) % 8, dtype, counts[c]))
                return 1;
    tern_barrier(b.group, &b.err);
    RANK_CHECK_OK(rank, b.err);
    return close_bench(&b);
}

static void test_exact_in_processes(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], exact_body, NULL));
}

static int roots_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    if (open_bench(&b, rank, boot)) return 1;
    for (int root = 0; root < boot->world; root++)
        if (check_broadcast(&b, b.window, TERN_I32, root, 40001) ||
            check_broadcast(&b, b.plain, TERN_I32, root, 40001))
            return 1;
    return close_bench(&b);
}

static void test_broadcast_from_each_root(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], roots_body, NULL));
}

/* ---- floats: the sum in rank order, the same bits everywhere ---- */

static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static float random_float(uint64_t *state)
{
    int exponent = (int)(random_next(state) % 40) - 20;
    return ldexpf((float)random_next(state) / 1e9f - 1.0f, exponent);
}

static int bits_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    if (open_bench(&b, rank, boot)) return 1;
    float *own = (float *)b.window, *plain = (float *)b.plain, *expected = (float *)b.expected;
    for (int other = 0; other < b.world; other++) {
        uint64_t seed = (uint64_t)other + 1;
        for (size_t i = 0; i < most; i++) {
            float value = random_float(&seed);
            expected[i] = other ? expected[i] + value : value;
            if (other == rank) own[i] = plain[i] = value;
        }
    }
    for (size_t i = 0; i < most; i++) expected[i] /= (float)b.world;
    tern_all_reduce(b.group, own, most, TERN_F32, TERN_AVG, &b.err);
    tern_all_reduce(b.group, plain, most, TERN_F32, TERN_AVG, &b.err);
    RANK_CHECK_OK(rank, b.err);
    RANK_CHECK(rank, !memcmp(own, expected, most * 4) && !memcmp(plain, expected, most * 4));
    return close_bench(&b);
}

static void test_bits_are_those_of_the_sum_in_rank_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], bits_body, NULL));
}

static int nan_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    if (open_bench(&b, rank, boot)) return 1;
    for (int holder = 0; holder < b.world; holder++)
        for (tern_reduce_op op = TERN_SUM; op <= TERN_MAX; op++) {
            float x[3] = {1, rank == holder ? NAN : 2, 3};
            tern_all_reduce(b.group, x, 3, TERN_F32, op, &b.err);
            RANK_CHECK_OK(rank, b.err);
            RANK_CHECK(rank, !isnan(x[0]) && isnan(x[1]) && !isnan(x[2]));
        }
    return close_bench(&b);
}

static void test_nan_reaches_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, nan_body, NULL));
    assert_ranks_ok(ranks_run(2, nan_body, NULL));
}

/* ---- works in flight ---- */

enum { works = 24 };

/* Rounds of works of all kinds, finished in another order than started, on ranks that start at random times.
 */
static int async_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    uint64_t seed = 7, own_seed = (uint64_t)rank * 77 + 5;
    if (open_bench(&b, rank, boot)) return 1;
    for (int round = 0; round < 6; round++) {
        tern_work *work[works];
        float *at[works];
        size_t used = 0, count[works];
        for (int k = 0; k < works; k++) {
            count[k] = random_next(&seed) % (k % 5 == 0 ? 9000 : 300);
            at[k] = (float *)(k % 3 ? b.plain : b.window) + used;
            used += count[k] + 1;
            for (size_t i = 0; i < count[k]; i++) at[k][i] = (float)(rank + k);
            if (random_next(&own_seed) % 4 == 0) usleep((useconds_t)(random_next(&own_seed) % 200));
            work[k] = k % 4 == 3
                          ? tern_broadcast_post(b.group, at[k], count[k], TERN_F32, k % b.world, &b.err)
                          : tern_all_reduce_post(b.group, at[k], count[k], TERN_F32, TERN_SUM, &b.err);
            RANK_CHECK_OK(rank, b.err);
            if (k % 7 == 0) RANK_CHECK(rank, tern_work_test(work[k], &b.err) >= 0);
        }
        float one = 1;
        tern_all_reduce(b.group, &one, 1, TERN_F32, TERN_SUM, &b.err); /* a blocking call among them */
        RANK_CHECK(rank, one == (float)b.world);
        for (int j = 0; j < works; j++) {
            int k = (j * 5 + rank) % works;
            tern_work_wait(work[k], &b.err);
            RANK_CHECK_OK(rank, b.err);
            float sum = (float)(b.world * k + b.world * (b.world - 1) / 2);
            float expected = k % 4 == 3 ? (float)(k % b.world + k) : sum;
            for (size_t i = 0; i < count[k]; i++) RANK_CHECK(rank, at[k][i] == expected);
        }
    }
    return close_bench(&b);
}

static void test_works_in_flight(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], async_body, NULL));
}

/* ---- the back end itself: few slots, several extents to a work ---- */

enum { areas = 6, area_floats = 9000, posts = 120, extents_max = 5 };

typedef struct pending {
    uint64_t seq, total;
    tern__extent extents[extents_max];
} pending;

static void make_extents(pending *p, tern__post *post, uint32_t window, int area, uint64_t *seed)
{
    uint64_t at = 0;
    post->extents = p->extents;
    post->extent_count = 1 + (int)(random_next(seed) % extents_max);
    for (int i = 0; i < post->extent_count; i++) {
        uint64_t count = random_next(seed) % (area_floats / extents_max);
        p->extents[i] = (tern__extent){window, ((uint64_t)area * area_floats + at) * 4, count};
        at += count + random_next(seed) % 3;
    }
}

static void fill(float *base, const tern__post *post, float value)
{
    for (int i = 0; i < post->extent_count; i++)
        for (uint64_t k = 0; k < post->extents[i].count; k++) base[post->extents[i].offset / 4 + k] = value;
}

static int check_filled(int rank, const float *base, const tern__post *post, float value)
{
    for (int i = 0; i < post->extent_count; i++)
        for (uint64_t k = 0; k < post->extents[i].count; k++)
            RANK_CHECK(rank, base[post->extents[i].offset / 4 + k] == value);
    return 0;
}

/* Slots for fewer works than areas, so posts wait for slots; an area is used again as soon as its work is
 * done. */
static int slots_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    uint64_t seed = 3, own_seed = (uint64_t)rank + 1;
    uint32_t window;
    float world = (float)boot->world;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    const tern__comm_backend *backend = group->backend;
    void *channel = backend->channel_open(group->state, *(int *)arg, &err);
    backend->window_open(group->state, NULL, (size_t)areas * area_floats * 4, &window, &err);
    RANK_CHECK_OK(rank, err);
    float *base = backend->window_base(group->state, window);
    pending all[areas] = {0};
    tern__post said[areas] = {0};
    for (int n = 0; n < posts + areas; n++) {
        int area = n % areas;
        if (n >= areas) {
            RANK_CHECK(rank, backend->wait(channel, all[area].seq, &err) == TERN_OK);
            float last = (float)(n - areas);
            if (check_filled(rank, base, &said[area], last * world + world * (world - 1) / 2)) return 1;
        }
        if (n >= posts) continue;
        said[area] = (tern__post){.kind = TERN__ALL_REDUCE, .dtype = TERN_F32, .op = TERN_SUM};
        make_extents(&all[area], &said[area], window, area, &seed);
        fill(base, &said[area], (float)(n + rank));
        if (random_next(&own_seed) % 16 == 0) usleep((useconds_t)(random_next(&own_seed) % 300));
        RANK_CHECK(rank, backend->post(channel, &said[area], &all[area].seq, &err) == TERN_OK);
        RANK_CHECK(rank, backend->progress(channel, &err) == TERN_OK);
    }
    backend->channel_close(channel);
    backend->window_close(group->state, window);
    tern_group_close(group);
    return 0;
}

static void test_posts_wait_for_slots(void **state)
{
    (void)state;
    for (int slots = 2; slots <= 4; slots += 2)
        for (size_t i = 1; i < TERN__COUNT(worlds); i++)
            assert_ranks_ok(ranks_run(worlds[i], slots_body, &slots));
}

/* Memory of the caller's keeps its address and contents, when it becomes a window and when it is none any
 * more. */
static int base_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    enum { bytes = 1 << 16 };
    uint32_t window;
    uint64_t seq;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    int32_t *base = aligned_alloc(1 << 16, bytes);
    for (int i = 0; i < bytes / 4; i++) base[i] = i + rank;
    group->backend->window_open(group->state, base, bytes, &window, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, group->backend->window_base(group->state, window) == base);
    for (int i = 0; i < bytes / 4; i++) RANK_CHECK(rank, base[i] == i + rank);
    tern__extent half = {window, bytes / 2, bytes / 8};
    tern__post post = {
        .kind = TERN__BROADCAST, .dtype = TERN_I32, .root = 1, .extents = &half, .extent_count = 1};
    group->backend->post(group->channel, &post, &seq, &err);
    group->backend->wait(group->channel, seq, &err);
    RANK_CHECK_OK(rank, err);
    group->backend->window_close(group->state, window);
    for (int i = 0; i < bytes / 4; i++) RANK_CHECK(rank, base[i] == i + (i < bytes / 8 ? rank : 1));
    base[0] = -1 - rank;
    tern_barrier(group, &err);
    RANK_CHECK(rank, base[0] == -1 - rank);
    free(base);
    tern_group_close(group);
    return 0;
}

static void test_window_over_own_memory(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, base_body, NULL));
}

/* What a peer passes is looked at before it is mapped. */
static int attach(int fd, size_t bytes, tern_error *err)
{
    char *base = NULL;
    bool borrowed;
    const tern__native nobody = {.world = 2};
    *err = (tern_error){0};
    return tern__segment_attach(&nobody, 1, fd, bytes, &base, &borrowed, err);
}

static void test_false_windows_are_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    void *base = NULL;
    int pipes[2], fd, file = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_return_code(pipe(pipes), errno);
    assert_int_equal(attach(pipes[0], 4096, &err), TERN_E_PEER);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* empty, not sealed */
    assert_return_code(ftruncate(file, 8192), errno);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* could still be cut */
    assert_return_code(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), errno);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* no note behind the data */
    err = (tern_error){0};
    assert_int_equal(tern__segment_create(&base, 5000, &fd, &err), TERN_OK);
    assert_int_equal(attach(fd, 4096, &err), TERN_E_MISMATCH);
    assert_int_equal(ftruncate(fd, 4096), -1); /* no peer can cut it: no access can fail */
    munmap(base, 8192);
    close(fd);
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- many ---- */

static int many_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    bench b;
    if (open_bench(&b, rank, boot)) return 1;
    float *x = (float *)b.window;
    for (int n = 0; n < THOUSANDS(100); n++) {
        x[0] = (float)(n + rank);
        RANK_CHECK(rank, tern_all_reduce(b.group, x, 1, TERN_F32, TERN_SUM, NULL) == TERN_OK);
        RANK_CHECK(rank, x[0] == (float)(2 * n + 1));
    }
    return close_bench(&b);
}

static void test_many_small_works(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, many_body, NULL));
}

/* ---- asleep ---- */

/* Rank 1 comes to a barrier 10 ms late, and then says when that was: rank 0 sleeps by then, and would look up
 * by itself only every 50 ms. A few rounds may be late: the machine may be busy. */
static int sleep_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { rounds = 20 };
    bench b;
    int prompt = 0;
    if (open_bench(&b, rank, boot)) return 1;
    for (int round = 0; round < rounds; round++) {
        if (rank == 1) usleep(10000);
        double called_ns = rank == 1 ? (double)tern__now_ns() : 0;
        tern_barrier(b.group, &b.err);
        double returned_ns = (double)tern__now_ns();
        tern_all_reduce(b.group, &called_ns, 1, TERN_F64, TERN_SUM, &b.err);
        RANK_CHECK_OK(rank, b.err);
        prompt += returned_ns - called_ns < 10e6;
    }
    RANK_CHECK(rank, prompt >= rounds * 3 / 4);
    return close_bench(&b);
}

static void test_sleeping_rank_is_woken(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, sleep_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, sleep_body, NULL));
}

/* ---- as threads ---- */

static void test_ranks_as_threads(void **state)
{
    (void)state;
    int slots = 2;
    for (int world = 2; world <= 7; world += world == 2 ? 2 : 3) {
        assert_ranks_ok(ranks_run_threads(world, async_body, NULL));
        assert_ranks_ok(ranks_run_threads(world, slots_body, &slots));
        assert_ranks_ok(ranks_run_threads(world, roots_body, NULL));
    }
    assert_ranks_ok(ranks_run_threads(4, bits_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, base_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_in_processes),
        cmocka_unit_test(test_broadcast_from_each_root),
        cmocka_unit_test(test_bits_are_those_of_the_sum_in_rank_order),
        cmocka_unit_test(test_nan_reaches_all),
        cmocka_unit_test(test_works_in_flight),
        cmocka_unit_test(test_posts_wait_for_slots),
        cmocka_unit_test(test_window_over_own_memory),
        cmocka_unit_test(test_false_windows_are_refused),
        cmocka_unit_test(test_many_small_works),
        cmocka_unit_test(test_sleeping_rank_is_woken),
        cmocka_unit_test(test_ranks_as_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
