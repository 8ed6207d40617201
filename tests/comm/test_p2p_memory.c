/* test_p2p_memory.c - messages of more than 2^31 bytes, messages sent before they are received, allocations
 * by messages, and failing allocations. */
#include "ledger.h"
#include "message.h"

#include <tern.h>

#include <sys/mman.h>

/* ---- messages of more than 2^31 bytes ---- */

#ifdef __SANITIZE_THREAD__ /* which uses four times as much memory */
enum { tile = 64 << 20, tiles = 3 };
#else
enum { tile = 64 << 20, tiles = 33 };
#endif

/* Maps the same 64 MiB many times. */
static char *tiled(void)
{
    int fd = memfd_create("tiles", MFD_CLOEXEC);
    char *base = mmap(NULL, (size_t)tiles * tile, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || base == MAP_FAILED || ftruncate(fd, tile)) return NULL;
    for (size_t i = 0; i < tiles; i++)
        if (mmap(base + i * tile, tile, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            return NULL;
    close(fd);
    return base;
}

static int huge_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    char *memory = tiled();
    RANK_CHECK(rank, memory);
    if (fixture_open(&f, rank, boot, 64)) return 1;
    if (rank == 0) {
        message_put(memory, tile, 1);
        tern_send(f.group, memory, (size_t)tiles * tile, TERN_BOOL, 1, INT32_MAX, &f.err);
    } else
        tern_recv(f.group, memory, (size_t)tiles * tile, TERN_BOOL, 0, INT32_MAX, NULL, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, message_is(memory, tile, 1));
    munmap(memory, (size_t)tiles * tile);
    return fixture_close(&f);
}

static void test_two_gigabytes(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, huge_body, NULL));
}

/* ---- buffered messages on one host: short ones are sent before they are received ---- */

/* If several ranks have sent to a receive from any rank, none waits until another has nothing left. */
static int fair_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { messages = 30 };
    (void)arg;
    fixture f;
    int counts[RANKS_MAX] = {0}, fewest = messages, most = 0;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    if (rank != 0) tern_send(f.group, f.plain, 1, TERN_U8, 0, 0, &f.err);
    for (int r = 1; r < f.world && rank == 0; r++) /* after this all paths to rank 0 are set up */
        tern_recv(f.group, f.plain, 1, TERN_U8, r, 0, NULL, &f.err);
    for (int i = 0; i < messages && rank != 0; i++) tern_send(f.group, f.plain, 1, TERN_U8, 0, 0, &f.err);
    tern_barrier(f.group, &f.err);
    for (int i = 0; i < messages && rank == 0; i++) {
        int source;
        tern_recv(f.group, f.plain, 1, TERN_U8, TERN_ANY_SOURCE, 0, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        counts[source]++;
    }
    for (int r = 1; r < f.world && rank == 0; r++) {
        fewest = TERN__MIN(fewest, counts[r]);
        most = TERN__MAX(most, counts[r]);
    }
    RANK_CHECK(rank, rank != 0 || most - fewest <= 1);
    for (int i = 0; i < messages * (f.world - 2) && rank == 0; i++)
        tern_recv(f.group, f.plain, 1, TERN_U8, TERN_ANY_SOURCE, 0, NULL, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_any_source_is_fair(void **state)
{
    (void)state;
    for (int world = 3; world <= 5; world++) assert_ranks_ok(ranks_run(world, fair_body, NULL));
}

/* A message whose sender has closed the group since still arrives. */
static int leaver_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 8192)) return 1;
    message_put(f.expected, 8192, (uint64_t)rank);
    if (rank != 0) tern_send(f.group, f.expected, 8192, TERN_U8, 0, 0, &f.err);
    while (rank == 0 && !tern__group_has_left(f.group, 1)) usleep(100);
    for (int i = 1; i < f.world && rank == 0; i++) {
        int source;
        tern_recv(f.group, f.plain, 8192, TERN_U8, TERN_ANY_SOURCE, 0, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, message_is(f.plain, 8192, (uint64_t)source));
    }
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_messages_of_those_who_have_left(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, leaver_body, NULL));
    assert_ranks_ok(ranks_run(4, leaver_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, leaver_body, NULL));
}

/* ---- memory ---- */

static int step_of(fixture *f, int rank)
{
    tern_work *works[4];
    int peer = 1 - rank;
    works[0] = tern_isend(f->group, f->plain, 100, TERN_F32, peer, 0, &f->err);
    works[1] = tern_irecv(f->group, f->expected, 100, TERN_F32, TERN_ANY_SOURCE, 0, &f->err);
    works[2] = tern_isend(f->group, f->plain, 100000, TERN_F32, peer, 1, &f->err);
    works[3] = tern_irecv(f->group, f->expected, 100000, TERN_F32, peer, 1, &f->err);
    for (int i = 0; i < 4; i++) tern_work_wait(works[i], &f->err);
    if (rank == 0) tern_send(f->group, f->plain, 3, TERN_F32, 1, 0, &f->err);
    if (rank == 1) tern_recv(f->group, f->plain, 3, TERN_F32, 0, 0, NULL, &f->err);
    RANK_CHECK_OK(rank, f->err);
    return 0;
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    ledger *books = arg;
    fixture f;
    ledger_open(books);
    if (fixture_open(&f, rank, boot, 400000)) return 1;
    for (int i = 0; i < 3; i++)
        if (step_of(&f, rank)) return 1;
    int before = atomic_load(&books->requests);
    for (int i = 0; i < 50; i++)
        if (step_of(&f, rank)) return 1;
    RANK_CHECK(rank, atomic_load(&books->requests) == before);
    fixture_close(&f);
    RANK_CHECK(rank, atomic_load(&books->live) == 0);
    return 0;
}

static void test_warm_messages_allocate_nothing(void **state)
{
    (void)state;
    ledger books = {0};
    assert_ranks_ok(ranks_run(2, warm_body, &books));
}

/* Rank 1 buffers messages that it does not receive, up to the cap, and frees them. */
static int kept_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { messages = 100, bytes = 8000 };
    ledger *books = arg;
    fixture f;
    ledger_open(books);
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    for (int i = 0; i <= messages && rank == 0; i++)
        tern_send(f.group, f.plain, bytes, TERN_U8, 1, i, &f.err);
    int before = atomic_load(&books->requests);
    if (rank == 1) tern_recv(f.group, f.plain, bytes, TERN_U8, 0, messages, NULL, &f.err);
    int kept = atomic_load(&books->requests) - before;
    for (int i = 0; i < messages / 2 && rank == 1; i++)
        tern_recv(f.group, f.plain, bytes, TERN_U8, 0, i, NULL, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, rank == 0 || kept >= messages);
    fixture_close(&f);
    RANK_CHECK(rank, atomic_load(&books->live) == 0);
    return 0;
}

static void test_kept_messages_are_freed(void **state)
{
    (void)state;
    ledger books = {0};
    assert_ranks_ok(ranks_run(2, kept_body, &books));
}

/* Each allocation of rank 0's first messages fails once: E_MEMORY there, and rank 1 is told. Returns 3 in
 * that case. */
static int refuse_body(int rank, const tern__bootstrap *boot, void *arg)
{
    ledger books = {0};
    const int *number = arg;
    fixture f;
    if (rank == 0) ledger_open(&books);
    if (fixture_open(&f, rank, boot, 8192)) return 1;
    books.refuse_at = atomic_load(&books.requests) + *number;
    tern_bytes string;
    tern_work *work = tern_irecv(f.group, f.plain, 1, TERN_U8, 1 - rank, 0, &f.err);
    if (rank == 1) tern_send(f.group, f.plain, 8192, TERN_U8, 0, 1, &f.err); /* rank 0 buffers it */
    tern_send(f.group, f.plain, 1, TERN_U8, 1 - rank, 0, &f.err);
    if (work) tern_work_wait(work, &f.err);
    if (rank == 0) tern_recv_bytes(f.group, &string, 1, 2, NULL, &f.err);
    if (rank == 1) tern_send_bytes(f.group, "four", 4, 0, 2, &f.err);
    bool refused = rank == 0 && books.refuse_at && atomic_load(&books.requests) >= books.refuse_at;
    if (rank == 0 && !f.err.code) tern_bytes_free(string.data);
    tern_barrier(f.group, &f.err);
    if (!refused && !f.err.code) return fixture_close(&f);
    RANK_CHECK(rank, rank == 0 ? refused : !refused);
    bool in_thread = strstr(f.err.text, "the control thread: no memory for a descriptor that a peer sent");
    RANK_CHECK(rank, f.err.code == (rank == 0 || in_thread ? TERN_E_MEMORY : TERN_E_PEER));
    fixture_close(&f);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 3;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    int number = 0, status;
    do {
        number++;
        ranks r = ranks_run(2, refuse_body, &number);
        status = r.status[0];
        assert_true(status == r.status[1] && (status == 0 || status == 3));
    } while (status);
    assert_true(number > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_gigabytes),
        cmocka_unit_test(test_any_source_is_fair),
        cmocka_unit_test(test_messages_of_those_who_have_left),
        cmocka_unit_test(test_warm_messages_allocate_nothing),
        cmocka_unit_test(test_kept_messages_are_freed),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
