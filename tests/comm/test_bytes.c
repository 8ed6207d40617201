/* test_bytes.c - byte strings of unequal lengths, some empty, from each root; and failing allocations. */
#include "group_fixture.h"
#include "ledger.h"

#include <stdlib.h>

static size_t length_of(int from, int to)
{
    return from == 1 ? 0 : (size_t)(from * 70001 + to * 13 + 1);
}

static char *string_of(int from, int to)
{
    char *string = malloc(length_of(from, to) + 1);
    for (size_t i = 0; i < length_of(from, to); i++) string[i] = (char)(i * 7 + (size_t)(from * 31 + to));
    return string;
}

/* Checks the string from `from` to `to` and the zero after it. Frees it. */
static bool take(tern_bytes *bytes, int from, int to)
{
    char *expected = string_of(from, to);
    bool is_same = bytes->count == length_of(from, to) && !memcmp(bytes->data, expected, bytes->count) &&
                   ((char *)bytes->data)[bytes->count] == '\0';
    free(expected);
    tern_bytes_free(bytes->data);
    *bytes = (tern_bytes){0};
    return is_same;
}

static int check_root(fixture *f, int root)
{
    tern_bytes all[RANKS_MAX], own = {0}, ins[RANKS_MAX];
    char *mine = string_of(f->rank, root);
    tern_gather_bytes(f->group, mine, length_of(f->rank, root), all, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world && f->rank == root; rank++)
        RANK_CHECK(f->rank, take(&all[rank], rank, root));
    free(mine);
    if (f->rank == root) own = (tern_bytes){mine = string_of(root, 5), length_of(root, 5)};
    tern_broadcast_bytes(f->group, &own, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, f->rank == root ? own.data == mine : take(&own, root, 5));
    if (f->rank == root) free(mine);
    for (int rank = 0; rank < f->world && f->rank == root; rank++)
        ins[rank] = (tern_bytes){string_of(root, rank), length_of(root, rank)};
    tern_scatter_bytes(f->group, f->rank == root ? ins : NULL, &own, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, take(&own, root, f->rank));
    for (int rank = 0; rank < f->world && f->rank == root; rank++) free(ins[rank].data);
    return 0;
}

static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    tern_bytes all[RANKS_MAX];
    if (fixture_open(&f, rank, boot, 64)) return 1;
    char *mine = string_of(rank, 0);
    tern_all_gather_bytes(f.group, mine, length_of(rank, 0), all, &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int from = 0; from < f.world; from++) RANK_CHECK(rank, take(&all[from], from, 0));
    free(mine);
    for (int root = 0; root < f.world; root++)
        if (check_root(&f, root)) return 1;
    return fixture_close(&f);
}

static void test_exact(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, exact_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, exact_body, NULL));
}

/* The `refused`th allocation of the last rank fails: all ranks get the error, and nothing leaks. Returns
 * whether there was such an allocation. */
static int poor_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const int *refused = arg;
    ledger books = {0};
    fixture f;
    tern_bytes all[RANKS_MAX];
    ledger_open(&books);
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_barrier(f.group, &f.err);
    if (rank == f.world - 1) books.refuse_at = books.requests + *refused;
    int status = tern_all_gather_bytes(f.group, "abc", 3, all, &f.err);
    bool is_last = books.requests < books.refuse_at;
    for (int i = 0; i < f.world && !status; i++) {
        RANK_CHECK(rank, all[i].count == 3 && !strcmp(all[i].data, "abc"));
        tern_bytes_free(all[i].data);
    }
    if (rank == f.world - 1) books.refuse_at = 0; /* the other ranks have threads that read it */
    if (rank == f.world - 1) RANK_CHECK(rank, status == (is_last ? TERN_OK : TERN_E_MEMORY));
    if (rank < f.world - 1 && status)
        RANK_CHECK(rank, status == TERN_E_PEER && strstr(f.err.text, "rank 1 ("));
    fixture_close(&f);
    RANK_CHECK(rank, books.live == 0);
    tern__allocator_replace(NULL);
    return rank == f.world - 1 && is_last ? 77 : 0;
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        int refused = 1;
        ranks result = ranks_run(world, poor_body, &refused);
        for (; result.status[world - 1] != 77; refused++) {
            assert_ranks_ok(result);
            result = ranks_run(world, poor_body, &refused);
        }
        assert_true(refused > world + 2); /* a list of counts, a list of spans, and each string */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
