/* test_many_elements.c - more than 2^31 elements. Memory that is only read is sparse; where only the end of
 * the result is checked, the same few pages are mapped repeatedly. */
#include "group_fixture.h"

#include <sys/mman.h>

#define COUNT ((UINT64_C(1) << 31) + 5)

#ifdef __SANITIZE_THREAD__
enum { is_slow = 1 };
#else
enum { is_slow = 0 };
#endif
enum { tile = 16 << 20, marks = 4 };

/* The positions of the nonzero elements in rank 0's data: at the ends, and on both sides of 2^31. */
static const uint64_t places[marks] = {0, (UINT64_C(1) << 31) - 1, UINT64_C(1) << 31, COUNT - 1};

static uint8_t *map_sparse(void)
{
    void *at = mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    madvise(at, COUNT, MADV_HUGEPAGE); /* reading it takes 512 times fewer page faults */
    return at;
}

static uint8_t *map_tiles(void)
{
    int fd = memfd_create("tiles", MFD_CLOEXEC);
    uint8_t *at = map_sparse();
    bool is_mapped = at && fd >= 0 && !ftruncate(fd, tile);
    for (uint64_t from = 0; is_mapped && from < COUNT; from += tile)
        is_mapped = mmap(at + from, TERN__MIN((uint64_t)tile, COUNT - from), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) != MAP_FAILED;
    close(fd);
    return is_mapped ? at : NULL;
}

static void mark(uint8_t *x)
{
    for (int i = 0; i < marks; i++) x[places[i]] = (uint8_t)(i + 1);
}

/* True if x holds the marks of the last tile, but not that of the first one. */
static bool is_end(const uint8_t *x)
{
    uint64_t from = (COUNT - 1) / tile * tile, others = 0;
    for (uint64_t i = from; i < COUNT; i++) others += x[i];
    return others == 3 + 4 && x[places[2]] == 3 && x[places[3]] == 4;
}

static int moves_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    const size_t gives[] = {0, rank == 0 ? COUNT : 0}, takes[] = {rank == 1 ? COUNT : 0, 0};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    uint8_t *x = rank == 0 ? map_sparse() : map_tiles();
    RANK_CHECK(rank, x);
    if (rank == 0) mark(x);
    tern_all_to_all_v(f.group, x, gives, x, takes, TERN_U8, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, rank == 0 || is_end(x));
    munmap(x, COUNT);
    return fixture_close(&f);
}

static void test_moves(void **state)
{
    (void)state;
    if (is_slow) skip_test("ThreadSanitizer checks each element");
    assert_ranks_ok(ranks_run(2, moves_body, NULL));
}

/* The root's few pages receive all tiles, or-ed together. */
static int reduce_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    uint64_t sum = 0;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    uint8_t *x = rank == 0 ? map_sparse() : map_tiles();
    RANK_CHECK(rank, x);
    if (rank == 0) mark(x);
    tern_reduce(f.group, x, COUNT, TERN_U8, TERN_BOR, 1, &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int i = 0; i < marks && rank == 0; i++) RANK_CHECK(rank, x[places[i]] == i + 1);
    for (int i = 0; i < tile; i++) sum += x[i];
    if (rank == 1) RANK_CHECK(rank, x[0] == (1 | 3) && x[tile - 1] == 2 && x[4] == 4 && sum == 3 + 2 + 4);
    munmap(x, COUNT);
    return fixture_close(&f);
}

static void test_reduce(void **state)
{
    (void)state;
    if (is_slow) skip_test("ThreadSanitizer checks each element");
    assert_ranks_ok(ranks_run(2, reduce_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_reduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
