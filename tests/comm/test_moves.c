/* test_moves.c - gather, scatter and all_to_all with equal and unequal parts, every dtype, on 1, 2, 3, 4, 7
 * and 8 ranks. Data are in windows and in ordinary memory at any alignment, from no element to many pieces;
 * memory around the results must not change. */
#include "elements.h"
#include "group_fixture.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { guard = 16 };
static const size_t counts[] = {0, 1, 3, 64, 1023, 20011};

/* ---- the expected result: element i of the data from rank `from` for rank `to` ---- */

static int pair_of(const fixture *f, int from, int to)
{
    return from * f->world + to;
}

static void put(const fixture *f, tern_dtype dtype, void *buf, int from, int to, size_t count)
{
    elements_put(dtype, buf, pair_of(f, from, to), 0, count);
}

/* Clears f->expected[0..bytes) and `out`, and puts the same guards around both. */
static void clear(const fixture *f, char *out, size_t bytes)
{
    memset(out - guard, 0x55, bytes + 2 * guard);
    memset(f->expected, 0x55, bytes + 2 * guard);
}

static int check_out(const fixture *f, const char *out, size_t bytes)
{
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, !memcmp(out - guard, f->expected, bytes + 2 * guard));
    return 0;
}

/* ---- equal parts ---- */

static int check_gather(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype), all = part * (size_t)f->world;
    int root = (int)((count + dtype) % (size_t)f->world);
    clear(f, out, all);
    put(f, dtype, in, f->rank, root, count);
    for (int rank = 0; rank < f->world && f->rank == root; rank++)
        put(f, dtype, f->expected + guard + (size_t)rank * part, rank, root, count);
    tern_gather(f->group, in, f->rank == root ? out : NULL, count, dtype, root, &f->err);
    return check_out(f, out, all);
}

static int check_scatter(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype);
    int root = (int)((count + dtype + 1) % (size_t)f->world);
    clear(f, out, part);
    put(f, dtype, f->expected + guard, root, f->rank, count);
    for (int rank = 0; rank < f->world && f->rank == root; rank++)
        put(f, dtype, in + (size_t)rank * part, root, rank, count);
    tern_scatter(f->group, f->rank == root ? in : NULL, out, count, dtype, root, &f->err);
    return check_out(f, out, part);
}

static int check_all_to_all(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype), all = part * (size_t)f->world;
    clear(f, out, all);
    for (int rank = 0; rank < f->world; rank++) {
        put(f, dtype, in + (size_t)rank * part, f->rank, rank, count);
        put(f, dtype, f->expected + guard + (size_t)rank * part, rank, f->rank, count);
    }
    tern_all_to_all(f->group, in, out, count, dtype, &f->err);
    return check_out(f, out, all);
}

/* ---- unequal parts ---- */

/* Returns 0 to `count`, different for each pair. */
static size_t split(const fixture *f, int from, int to, size_t count)
{
    size_t share = elements_random(TERN_U8, pair_of(f, from, to), count) % 4;
    return share == 3 ? count : count * share / 3;
}

static int check_all_to_all_v(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    size_t size = tern_dtype_bytes(dtype), given = 0, taken = 0, in_counts[RANKS_MAX], out_counts[RANKS_MAX];
    for (int rank = 0; rank < f->world; rank++) taken += split(f, rank, f->rank, count);
    clear(f, out, taken * size);
    taken = 0;
    for (int rank = 0; rank < f->world; rank++) {
        in_counts[rank] = split(f, f->rank, rank, count);
        out_counts[rank] = split(f, rank, f->rank, count);
        put(f, dtype, in + given * size, f->rank, rank, in_counts[rank]);
        put(f, dtype, f->expected + guard + taken * size, rank, f->rank, out_counts[rank]);
        given += in_counts[rank];
        taken += out_counts[rank];
    }
    tern_all_to_all_v(f->group, in, in_counts, out, out_counts, dtype, &f->err);
    return check_out(f, out, taken * size);
}

/* The lists are in reverse order, with a gap between. */
static int check_all_gather_v(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    size_t size = tern_dtype_bytes(dtype), bytes = 0;
    tern_span outs[RANKS_MAX];
    for (int rank = f->world; rank-- > 0;) {
        outs[rank] = (tern_span){out + bytes, split(f, rank, 0, count)};
        bytes += outs[rank].count * size + 3;
    }
    clear(f, out, bytes);
    for (int rank = 0; rank < f->world; rank++)
        put(f, dtype, f->expected + guard + ((char *)outs[rank].data - out), rank, 0, outs[rank].count);
    put(f, dtype, in, f->rank, 0, outs[f->rank].count);
    tern_all_gather_v(f->group, in, outs[f->rank].count, outs, dtype, &f->err);
    return check_out(f, out, bytes);
}

/* ---- all moves ---- */

static int check_moves(fixture *f, char *in, char *out, tern_dtype dtype, size_t count)
{
    if (!check_gather(f, in, out, dtype, count) && !check_scatter(f, in, out, dtype, count) &&
        !check_all_to_all(f, in, out, dtype, count) && !check_all_to_all_v(f, in, out, dtype, count) &&
        !check_all_gather_v(f, in, out, dtype, count))
        return 0;
    fprintf(stderr, "rank %d of %d: %zu %s\n", f->rank, f->world, count, tern_dtype_name(dtype));
    return 1;
}

/* In turns each count and dtype runs with one of the three ways to place its buffers, another one in each
 * world. */
static bool way_has_turn(const fixture *f, size_t way, size_t which)
{
    return !takes_turns() || (which + way + (size_t)f->world) % 3 == 0;
}

static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    size_t bytes = (size_t)8 * (20011 * 8 + 64) + 64;
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    char *plain = malloc(bytes), *own = (char *)plain + guard;
    for (size_t c = 0; c < TERN__COUNT(counts); c++)
        for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) {
            size_t shift = (c + dtype + (size_t)rank) % 8;
            if (way_has_turn(&f, 0, c + dtype) && check_moves(&f, f.plain + shift, own, dtype, counts[c]))
                return 1;
        }
    if (fixture_map(&f)) return 1;
    for (size_t c = 0; c < TERN__COUNT(counts); c++)
        for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) {
            size_t shift = (c + dtype) % 8;
            char *out = f.window + guard + (shift + (size_t)rank) % 8;
            if (way_has_turn(&f, 1, c + dtype) &&
                check_moves(&f, f.window + shift, own + shift, dtype, counts[c]))
                return 1;
            if (way_has_turn(&f, 2, c + dtype) && check_moves(&f, f.plain, out, dtype, counts[c])) return 1;
        }
    free(plain);
    return fixture_close(&f);
}

static void test_exact_in_processes(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], exact_body, NULL));
}

static void test_exact_in_threads(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run_threads(3, exact_body, NULL));
}

/* ---- in place: a rank's own part of one buffer is the other buffer ---- */

static int in_place_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { count = 50021 };
    fixture f;
    size_t part = count * 4, all = part * (size_t)boot->world;
    if (fixture_open(&f, rank, boot, all + 64)) return 1;
    char *own = f.plain + (size_t)rank * part;
    for (int root = 0; root < f.world; root++) {
        for (int from = 0; from < f.world; from++)
            put(&f, TERN_I32, f.expected + (size_t)from * part, from, root, count);
        put(&f, TERN_I32, own, rank, root, count);
        tern_gather(f.group, own, f.plain, count, TERN_I32, root, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, !memcmp(rank == root ? f.plain : own, rank == root ? f.expected : own, part));
        RANK_CHECK(rank, rank != root || !memcmp(f.plain, f.expected, all));
        tern_scatter(f.group, f.plain, own, count, TERN_I32, root, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, !memcmp(own, f.expected + (size_t)rank * part, part));
        RANK_CHECK(rank, rank != root || !memcmp(f.plain, f.expected, all));
    }
    tern_span outs[RANKS_MAX];
    for (int from = 0; from < f.world; from++) {
        outs[from] = (tern_span){f.plain + (size_t)from * part, from % 2 ? 7 : count};
        memset(f.plain + (size_t)from * part, 0x55, part);
        memset(f.expected + (size_t)from * part, 0x55, part);
        put(&f, TERN_I32, f.expected + (size_t)from * part, from, 0, outs[from].count);
    }
    put(&f, TERN_I32, own, rank, 0, outs[rank].count);
    tern_all_gather_v(f.group, own, outs[rank].count, outs, TERN_I32, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, !memcmp(f.plain, f.expected, all));
    return fixture_close(&f);
}

static void test_in_place(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, in_place_body, NULL));
}

/* ---- many works in flight at once ---- */

enum { works = 24, apart = 4096 * 8 }; /* bytes between the buffers of two works, for four ranks */

/* Each work has another kind, dtype and size. Some are larger than the ring. */
static tern_work *post_one(fixture *f, int i, char *in, char *out, size_t each[2][RANKS_MAX])
{
    size_t count = i % 5 ? (size_t)(i * 37 % 500) : 4096;
    tern_dtype dtype = (tern_dtype)(i % TERN_DTYPE_COUNT);
    size_t part = count * tern_dtype_bytes(dtype);
    int root = i % f->world;
    for (int rank = 0; rank < f->world; rank++) {
        put(f, dtype, in + (size_t)rank * part, f->rank, rank, count);
        each[0][rank] = each[1][rank] = count;
    }
    switch (i % 4) {
    case 0: return tern_gather_post(f->group, in, out, count, dtype, root, &f->err);
    case 1: return tern_scatter_post(f->group, in, out, count, dtype, root, &f->err);
    case 2: return tern_all_to_all_post(f->group, in, out, count, dtype, &f->err);
    default: return tern_all_to_all_v_post(f->group, in, each[0], out, each[1], dtype, &f->err);
    }
}

static int check_one(fixture *f, int i, const char *out)
{
    size_t count = i % 5 ? (size_t)(i * 37 % 500) : 4096;
    tern_dtype dtype = (tern_dtype)(i % TERN_DTYPE_COUNT);
    size_t part = count * tern_dtype_bytes(dtype);
    int root = i % f->world;
    if (i % 4 == 0 && f->rank != root) return 0;
    for (int from = 0; from < f->world; from++) {
        char *expected = f->expected + (size_t)from * part;
        put(f, dtype, expected, from, i % 4 == 0 ? 0 : f->rank, count);
        if (i % 4 == 1 && from == root) {
            RANK_CHECK(f->rank, !memcmp(out, expected, part));
            return 0;
        }
    }
    RANK_CHECK(f->rank, i % 4 == 1 || !memcmp(out, f->expected, part * (size_t)f->world));
    return 0;
}

/* Waits in another order on each rank; the lists of counts have been overwritten by then. */
static int posted_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    tern_work *posted[works];
    int order[works];
    if (fixture_open(&f, rank, boot, (size_t)works * apart * 4)) return 1;
    char *out = malloc((size_t)works * apart * 4);
    for (int i = 0; i < works; i++) {
        size_t counts_of[2][RANKS_MAX];
        posted[i] = post_one(&f, i, f.plain + (size_t)i * apart * 4, out + (size_t)i * apart * 4, counts_of);
        RANK_CHECK_OK(rank, f.err);
        memset(counts_of, 0xff, sizeof(counts_of));
        order[i] = i;
    }
    for (int i = works - 1; i > 0; i--) {
        int other = (int)(elements_random(TERN_U8, rank, (size_t)i) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < works; i++) {
        while (i % 3 == 0 && tern_work_test(posted[order[i]], &f.err) == TERN_PENDING) continue;
        tern_work_wait(posted[order[i]], &f.err);
        RANK_CHECK_OK(rank, f.err);
        if (check_one(&f, order[i], out + (size_t)order[i] * apart * 4)) return 1;
    }
    free(out);
    return fixture_close(&f);
}

static void test_many_at_once(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, posted_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, posted_body, NULL));
}

/* ---- ranks on which a work depends ---- */

/* Ranks that receive nothing in a gather or a scatter do not delay it: they post, and come back only when
 * the others are done. */
static int idle_body(int rank, const tern__bootstrap *boot, void *arg)
{
    atomic_int *done = arg;
    fixture f;
    int64_t own = rank, all[RANKS_MAX] = {0};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_work *work = tern_gather_post(f.group, &own, all, 1, TERN_I64, 1, &f.err);
    while (rank != 1 && atomic_load(done) < 1) usleep(100);
    tern_work_wait(work, &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int from = 0; from < f.world && rank == 1; from++) RANK_CHECK(rank, all[from] == from);
    if (rank == 1) atomic_store(done, 1);
    work = tern_scatter_post(f.group, all, &own, 1, TERN_I64, 1, &f.err);
    while (rank == 1 && atomic_load(done) < f.world) usleep(100);
    tern_work_wait(work, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, own == rank);
    atomic_fetch_add(done, 1);
    return fixture_close(&f);
}

/* Between hosts all ranks have to come back, since messages advance only during calls. */
static void test_who_gets_nothing_holds_nothing_up(void **state)
{
    (void)state;
    if (getenv("TERN_TEST_HOSTS")) skip_test("ranks of several hosts wait for each other");
    atomic_int *done = share_memory(sizeof(*done));
    for (int world = 2; world <= 4; world++) {
        atomic_store(done, 0);
        assert_ranks_ok(ranks_run(world, idle_body, done));
    }
    munmap(done, sizeof(*done));
}

/* A rank that has posted an all_to_all and then computes still has to give its part. The others' errors say
 * so. */
static int owing_body(int rank, const tern__bootstrap *boot, void *arg)
{
    atomic_int *told = arg;
    tern_group_opts opts = tern_group_defaults();
    tern_error err = {0};
    int64_t in[3] = {0}, out[3] = {0};
    opts.timeout_s = 20;
    tern_group *group = tern__group_open_boot(boot, &opts, &err);
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    group->opts.timeout_s = 0.5; /* set once all ranks have come */
    tern_work *work = tern_all_to_all_post(group, in, out, 1, TERN_I64, &err);
    RANK_CHECK_OK(rank, err);
    while (rank == 2 && atomic_load(told) < 2) usleep(100);
    RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(err.text, "in all_to_all of 3 i64 (work 2)") && strstr(err.text, "rank 2 (") &&
                         strstr(err.text, "has not come back to do its part"));
    atomic_fetch_add(told, 1);
    tern_group_close(group);
    return 0;
}

static void test_who_owes_its_part_is_named(void **state)
{
    (void)state;
    if (getenv("TERN_TEST_HOSTS")) skip_test("ranks of several hosts wait for each other");
    atomic_int *told = share_memory(sizeof(*told));
    assert_ranks_ok(ranks_run(3, owing_body, told));
    munmap(told, sizeof(*told));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_in_processes),
        cmocka_unit_test(test_exact_in_threads),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_who_gets_nothing_holds_nothing_up),
        cmocka_unit_test(test_who_owes_its_part_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
