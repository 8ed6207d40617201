/* test_warm.c - a collective that has run before allocates no memory, blocking or posted; and a group frees
 * all its memory. */
#include "group_fixture.h"
#include "ledger.h"

enum { calls = 24, count = 50000 };

static int settle(tern_work *work, tern_error *err)
{
    return work ? tern_work_wait(work, err) : err->code;
}

/* Every collective except the byte strings, whose results are allocated. */
static int run(fixture *f, int which)
{
    tern_group *g = f->group;
    tern_error *err = &f->err;
    char *x = f->plain, *y = f->expected, *w = f->window ? f->window : f->plain;
    size_t each[RANKS_MAX];
    tern_span outs[RANKS_MAX], list[3] = {{x, 1000}, {x + 5000, 0}, {x + 8000, count}};
    const void *ins[] = {y, y + 80000, y + 100000};
    void *to[] = {y, y + 80000, y + 100000};
    for (int rank = 0; rank < f->world; rank++) {
        each[rank] = 40;
        outs[rank] = (tern_span){y + rank * 100, 20};
    }
    switch (which) {
    case 0: return tern_all_reduce(g, x, count, TERN_F32, TERN_SUM, err);
    case 1: return tern_reduce(g, x, count, TERN_F32, TERN_MAX, 1, err);
    case 2: return tern_reduce_scatter(g, x, y, count, TERN_U8, TERN_BXOR, err);
    case 3: return tern_broadcast(g, x, count, TERN_F32, 0, err);
    case 4: return tern_all_gather(g, x, y, count, TERN_U8, err);
    case 5: return tern_gather(g, w, y, count, TERN_U8, 0, err);
    case 6: return tern_scatter(g, x, y, count, TERN_U8, 0, err);
    case 7: return tern_all_to_all(g, x, y, count, TERN_U8, err);
    case 8: return tern_all_gather_v(g, x, 20, outs, TERN_F32, err);
    case 9: return tern_all_to_all_v(g, x, each, y, each, TERN_F64, err);
    case 10: return tern_all_reduce_coalesced(g, list, 3, TERN_F32, TERN_MIN, err);
    case 11: return tern_broadcast_coalesced(g, list, 3, TERN_F32, 1, err);
    case 12: return tern_all_gather_coalesced(g, list, to, 2, TERN_U8, err);
    case 13: return tern_reduce_scatter_coalesced(g, ins, list, 2, TERN_U8, TERN_SUM, err);
    case 14: return tern_all_reduce_premul(g, x, count, TERN_BF16, 0.5, err);
    case 15: return tern_monitored_barrier(g, 10, true, err);
    case 16: return settle(tern_all_to_all_v_post(g, x, each, y, each, TERN_F64, err), err);
    case 17: return settle(tern_all_gather_v_post(g, x, 20, outs, TERN_F32, err), err);
    case 18: return settle(tern_all_reduce_coalesced_post(g, list, 3, TERN_F32, TERN_MIN, err), err);
    case 19: return settle(tern_gather_post(g, x, y, count, TERN_U8, 0, err), err);
    case 20: return settle(tern_reduce_post(g, x, count, TERN_F32, TERN_SUM, 0, err), err);
    case 21: return settle(tern_scatter_post(g, x, y, count, TERN_U8, 1, err), err);
    case 22: return settle(tern_barrier_post(g, err), err);
    default: return settle(tern_all_to_all_post(g, w, y, count, TERN_U8, err), err);
    }
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *has_window = arg;
    ledger books = {0};
    fixture f;
    int requests = 0;
    ledger_open(&books);
    if (fixture_open(&f, rank, boot, (size_t)1 << 20) || (*has_window && fixture_map(&f))) return 1;
    for (int round = 0; round < 3; round++) {
        if (round == 1) requests = books.requests;
        for (int i = 0; i < calls; i++) {
            run(&f, i);
            if (f.err.code) fprintf(stderr, "call %d\n", i);
            RANK_CHECK_OK(rank, f.err);
            if (round && books.requests != requests) fprintf(stderr, "call %d asks for memory\n", i);
            RANK_CHECK(rank, !round || books.requests == requests);
        }
    }
    fixture_close(&f);
    RANK_CHECK(rank, books.live == 0);
    tern__allocator_replace(NULL);
    return 0;
}

static void test_warm_calls_ask_for_no_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) assert_ranks_ok(ranks_run(2 + i / 2, warm_body, &(bool){i % 2}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_calls_ask_for_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
