/* test_p2p_deadlock.c - messages whose ranks wait for each other: all get an error within a second. Ranks
 * that wait for one that computes do not. */
#include "message.h"

#include "comm/move/window/window.h"

#include <tern.h>

#include <stdatomic.h>
#include <sys/mman.h>

enum { long_bytes = 2 << 20 };

/* When each rank made its last call. */
typedef struct board {
    _Atomic(int64_t) called[RANKS_MAX];
} board;

/* The calls of rank 0, and those of the others. */
typedef struct deadlock {
    const char *name;
    int world;
    void (*zero)(fixture *f), (*others)(fixture *f);
    const char *zero_text, *others_text;
} deadlock;

static void recv_from(fixture *f, int src, int tag)
{
    tern_recv(f->group, f->plain, 4, TERN_F32, src, tag, NULL, &f->err);
}

static void recv_last(fixture *f)
{
    recv_from(f, f->world - 1, 0);
}

static void recv_before(fixture *f)
{
    recv_from(f, f->rank - 1, 0);
}

static void recv_any(fixture *f)
{
    recv_from(f, TERN_ANY_SOURCE, 9);
}

static void send_long_next(fixture *f)
{
    tern_send(f->group, f->plain, long_bytes, TERN_U8, (f->rank + 1) % f->world, 2, &f->err);
}

static void wait_barrier(fixture *f)
{
    tern_barrier(f->group, &f->err);
}

/* The message that rank 0 waits for is there, but with another tag. */
static void send_short_recv(fixture *f)
{
    tern_send(f->group, f->plain, 4, TERN_F32, 0, 5, &f->err);
    recv_from(f, 0, 1);
}

static void wait_irecv(fixture *f)
{
    tern_work *works[2] = {tern_irecv(f->group, f->expected, 1, TERN_U8, TERN_ANY_SOURCE, 8, &f->err),
                           tern_irecv(f->group, f->plain, 4, TERN_F32, 1, 0, &f->err)};
    for (int i = 1; i >= 0; i--)
        if (works[i]) tern_work_wait(works[i], &f->err);
}

/* Sends short messages until nothing more is buffered; the receiver asks for one after them. */
static void send_many(fixture *f)
{
    for (int i = 0; i < 400 && !f->err.code; i++) tern_send(f->group, f->plain, 8192, TERN_U8, 0, 1, &f->err);
    if (!f->err.code) tern_send(f->group, f->plain, 4, TERN_F32, 0, 0, &f->err);
}

static void open_memory(fixture *f)
{
    tern_group_mem_alloc(f->group, 4096, &f->err);
}

static const deadlock deadlocks[] = {
    {"two receives", 2, recv_last, recv_before, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in recv of 4 f32 from rank 0, tag 0"},
    {"a ring of receives", 4, recv_last, recv_before, "waits in recv of 4 f32 from rank",
     "waits in recv of 4 f32 from rank"},
    {"a receive and a barrier", 2, recv_last, wait_barrier, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in barrier (work 1)"},
    {"a barrier and receives", 3, wait_barrier, recv_before, "waits in", "waits in recv of 4 f32 from rank"},
    {"two long sends", 2, send_long_next, send_long_next, "waits in send of 2097152 u8 to rank 1, tag 2",
     "waits in send of 2097152 u8 to rank 0, tag 2"},
    {"a long send and a barrier", 3, send_long_next, wait_barrier,
     "waits in send of 2097152 u8 to rank 1, tag 2", "waits in barrier (work 1)"},
    {"everybody from anybody", 3, recv_any, recv_any, "waits in recv of 4 f32 from any rank, tag 9",
     "waits in recv of 4 f32 from any rank, tag 9"},
    {"anybody, and a barrier", 3, recv_any, wait_barrier, "waits in recv of 4 f32 from any rank, tag 9",
     "waits in barrier (work 1)"},
    {"another tag", 2, recv_last, send_short_recv, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in recv of 4 f32 from rank 0, tag 1"},
    {"a wait", 2, wait_irecv, wait_barrier, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in barrier (work 1)"},
    {"more than is kept", 2, recv_last, send_many, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in send of 8192 u8 to rank 0, tag 1"},
    {"a window", 2, recv_last, open_memory, "waits in recv of 4 f32 from rank 1, tag 0",
     "waits in the opening of a window"},
};

typedef struct trial {
    const deadlock *what;
    board *board;
} trial;

static int deadlock_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const trial *t = arg;
    fixture f;
    if (fixture_open(&f, rank, boot, long_bytes)) return 1;
    atomic_store(&t->board->called[rank], tern__now_ns());
    if (rank == 0)
        t->what->zero(&f);
    else
        t->what->others(&f);
    int64_t last = 0, now = tern__now_ns();
    for (int r = 0; r < f.world; r++) last = TERN__MAX(last, atomic_load(&t->board->called[r]));
    if (f.err.code != TERN_E_MISMATCH) fprintf(stderr, "%s: %d: %s\n", t->what->name, f.err.code, f.err.text);
    RANK_CHECK(rank, f.err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(f.err.text, " while rank "));
    RANK_CHECK(rank, strstr(f.err.text, t->what->zero_text) && strstr(f.err.text, t->what->others_text));
    RANK_CHECK(rank, now - last < RANKS_SOON_S * INT64_C(1000000000));
    return fixture_close(&f);
}

static void test_deadlocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(deadlocks); i++) {
        trial t = {&deadlocks[i], share_memory(sizeof(board))};
        ranks r = i % 4 == 3 ? ranks_run_threads(t.what->world, deadlock_body, &t)
                             : ranks_run(t.what->world, deadlock_body, &t);
        for (int rank = 0; rank < r.world; rank++)
            if (r.status[rank]) fail_msg("%s: rank %d", t.what->name, rank);
        munmap(t.board, sizeof(board));
    }
}

/* Computes until every other rank has checked three times for a deadlock. */
static int compute(const fixture *f)
{
    uint64_t start[RANKS_MAX];
    const tern__shm *shm = f->group->root->shm;
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    for (int rank = 0; rank < f->world; rank++) start[rank] = tern__deadlock_turn(shm, rank);
    for (int rank = 0; rank < f->world; rank++)
        while (rank != f->rank && tern__deadlock_turn(shm, rank) < start[rank] + 6) {
            RANK_CHECK(f->rank, tern__now_ns() < deadline);
            usleep(100);
        }
    return 0;
}

/* Rank 2 computes. The others wait for it, for each other and for any rank; there is no deadlock. */
static int busy_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, long_bytes)) return 1;
    for (int round = 0; round < 2; round++) {
        size_t bytes = round ? long_bytes : 8;
        int last = f.world - 1;
        if (rank == last && compute(&f)) return 1;
        if (rank == last) tern_send(f.group, f.plain, bytes, TERN_U8, 0, 0, &f.err);
        if (rank == 0) tern_recv(f.group, f.plain, bytes, TERN_U8, TERN_ANY_SOURCE, 0, NULL, &f.err);
        for (int peer = 1; peer < last && rank == 0; peer++)
            tern_send(f.group, f.plain, bytes, TERN_U8, peer, 1, &f.err);
        if (rank > 0 && rank < last) tern_recv(f.group, f.plain, bytes, TERN_U8, 0, 1, NULL, &f.err);
        if (rank > 0 && rank < last) tern_send(f.group, f.plain, bytes, TERN_U8, last, 2, &f.err);
        if (rank == last && compute(&f)) return 1;
        for (int peer = 1; peer < last && rank == last; peer++)
            tern_recv(f.group, f.plain, bytes, TERN_U8, peer, 2, NULL, &f.err);
        tern_barrier(f.group, &f.err);
        RANK_CHECK_OK(rank, f.err);
    }
    return fixture_close(&f);
}

static void test_whoever_computes_is_waited_for(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, busy_body, NULL));
    assert_ranks_ok(ranks_run(4, busy_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, busy_body, NULL));
}

/* The timeline shows what a rank waited for. */
static int trace_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f = {.rank = rank, .world = boot->world};
    tern_group_opts opts = tern_group_defaults();
    float x = 0;
    opts.trace = arg;
    f.group = tern__group_open_boot(boot, &opts, &f.err);
    RANK_CHECK_OK(rank, f.err);
    if (rank == 1 && compute(&f)) return 1;
    if (rank == 1) tern_send(f.group, &x, 1, TERN_F32, 0, 77, &f.err);
    if (rank == 0) tern_recv(f.group, &x, 1, TERN_F32, 1, 77, NULL, &f.err);
    RANK_CHECK_OK(rank, f.err);
    tern_group_close(f.group);
    return 0;
}

static void test_waits_are_in_the_timeline(void **state)
{
    char path[] = "/tmp/tern-p2p-XXXXXX", text[8192] = "";
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ranks_ok(ranks_run(2, trace_body, path));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    unlink(path);
    text[length] = '\0';
    assert_non_null(strstr(text, "\"wait for recv\""));
    assert_non_null(strstr(text, "\"tag\":77"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlocks),
        cmocka_unit_test(test_whoever_computes_is_waited_for),
        cmocka_unit_test(test_waits_are_in_the_timeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
