/* test_control_last.c - a rank asks for a peer's last activity. It gets the answer at once, while the peer
 * computes, waits or updates the record; also tests peers that are stopped or have left. */
#include "comm/control_fixture.h"

#include "comm/move/window/window.h"

/* Writes "work 7", or that the words are from two works. */
static void work_text(const uint64_t *words, char *text, size_t size)
{
    for (int i = 1; i < TERN__LAST_WORDS; i++)
        if (words[i] != words[0]) {
            snprintf(text, size, "torn");
            return;
        }
    snprintf(text, size, "work %llu", (unsigned long long)words[0]);
}

static void set_work(tern__control *control, uint64_t number)
{
    uint64_t words[TERN__LAST_WORDS];
    for (int i = 0; i < TERN__LAST_WORDS; i++) words[i] = number;
    tern__control_last_set(control, work_text, words, TERN__LAST_WORDS);
}

/* Asks rank 1, and returns what an error would say of it behind its name; "" if it says nothing. */
static const char *ask(const seat *s, double timeout_s, char text[TERN_ERROR_TEXT])
{
    *text = '\0';
    tern__control_last_ask(s->control, 1);
    tern__control_others_text(s->control, "work 0", timeout_s, text, TERN_ERROR_TEXT);
    const char *name_end = strchr(text, ')');
    return name_end ? name_end + 1 : "";
}

/* Every other rank asks rank 1. */
static int expect(const seat *s, int rank, const char *expected)
{
    char text[TERN_ERROR_TEXT];
    const char *said = rank == 1 ? expected : ask(s, 20, text);
    if (strcmp(said, expected)) fprintf(stderr, "rank %d: \"%s\", not \"%s\"\n", rank, said, expected);
    return strcmp(said, expected) != 0;
}

/* Rank 1 computes and makes no call while the others ask. */
static void compute(board *b, int others)
{
    int64_t deadline = tern__deadline(10);
    while (atomic_load(&b->go) < others && tern__now_ns() < deadline) continue;
}

static int ask_while_it_computes(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !expect(&s, rank, " does not wait and has called no collective yet"));
    RANK_CHECK(rank, all_are_here(b, boot->world));
    if (rank == 1) set_work(s.control, 7);
    RANK_CHECK(rank, rank == 1 ? atomic_fetch_add(&b->events, 1) == 0 : await_count(&b->events, 1));
    if (rank == 1) compute(b, boot->world - 1);
    RANK_CHECK(rank, !expect(&s, rank, " does not wait, its last collective was work 7"));
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, boot->world));
    get_up(&s);
    return 0;
}

static void a_rank_that_computes_answers(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world += 2) {
        board *b = board_new();
        assert_ranks_ok(ranks_run(world, ask_while_it_computes, b));
        board_free(b);
    }
}

static int ask_while_it_waits(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) set_work(s.control, 3);
    if (rank == 1) tern__control_wait_set(s.control, "work 4, for rank 0", 0);
    if (rank == 1) tern__control_wait_end(s.control, tern__deadline(100));
    RANK_CHECK(rank, all_are_here(b, 2));
    RANK_CHECK(rank, !expect(&s, rank, " waits in work 4, for rank 0"));
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, 2));
    if (rank == 1) tern__control_wait_end(s.control, tern__now_ns());
    atomic_fetch_add(&b->events, 1);
    RANK_CHECK(rank, await_count(&b->events, 2));
    RANK_CHECK(rank, !expect(&s, rank, " does not wait, its last collective was work 3"));
    RANK_CHECK(rank, await_count(&b->ready, 2));
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, 4));
    get_up(&s);
    return 0;
}

static void a_rank_that_waits_says_in_what(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, ask_while_it_waits, b));
    board_free(b);
}

/* Rank 0 waits for rank 1, which waits for rank 2, and so on; the last one computes, and is named first. */
static int follow_the_waits(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char wait[TERN__LAST_TEXT], text[TERN_ERROR_TEXT] = "late", last[32], *at = text;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    snprintf(wait, sizeof(wait), "work 4, for rank %d", rank + 1);
    if (rank < boot->world - 1) tern__control_wait_set(s.control, wait, rank + 1);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    if (rank == 0) {
        tern__control_last_ask(s.control, 1);
        tern__control_others_text(s.control, "work 4", 20, text, sizeof(text));
        snprintf(last, sizeof(last), "late; rank %d (", boot->world - 1);
        RANK_CHECK(rank, !strncmp(text, last, strlen(last)));
        for (int waits = 0; (at = strstr(at, ") waits in it, too, for rank ")); at++, waits++)
            b->victim = waits + 1;
        int left = 0, told = b->victim + 1;
        if (strstr(text, "; and "))
            RANK_CHECK(rank, sscanf(strstr(text, "; and "), "; and %d more", &left) == 1);
        RANK_CHECK(rank, told + left == boot->world - 1 && (left > 0) == (boot->world > 8));
    }
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, boot->world));
    get_up(&s);
    return 0;
}

static void whom_a_rank_waits_for_is_asked_too(void **state)
{
    (void)state;
    for (int world = 3; world <= 15; world += 12) {
        board *b = board_new();
        assert_ranks_ok(ranks_run(world, follow_the_waits, b));
        board_free(b);
    }
}

/* Rank 1 writes without a pause. Every record that the others read is consistent, and never older than the
 * one before. */
static int ask_while_it_writes(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char text[TERN_ERROR_TEXT];
    unsigned long long seen = 0, now = 0;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) set_work(s.control, 1);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    int64_t deadline = tern__deadline(10);
    for (uint64_t i = 2; rank == 1 && atomic_load(&b->go) < boot->world - 1 && tern__now_ns() < deadline; i++)
        set_work(s.control, i);
    for (int i = 0; rank != 1 && (i < 300 || (seen <= 1 && tern__now_ns() < deadline)); i++, seen = now) {
        const char *said = ask(&s, 20, text);
        RANK_CHECK(rank, sscanf(said, " does not wait, its last collective was work %llu", &now) == 1 ||
                             strstr(said, "just posting"));
        RANK_CHECK(rank, now >= seen);
    }
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, boot->world));
    RANK_CHECK(rank, seen > 1 || rank == 1);
    get_up(&s);
    return 0;
}

static void what_is_read_is_whole(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run_threads(3, ask_while_it_writes, b));
    atomic_store(&b->go, 0);
    atomic_store(&b->ready, 0);
    assert_ranks_ok(ranks_run(3, ask_while_it_writes, b));
    board_free(b);
}

/* ---- works ---- */

static int ask_for_works(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    const tern__extent extent = {.count = 100};
    const tern__post post = {
        .kind = TERN__BROADCAST, .dtype = TERN_BF16, .root = 1, .extents = &extent, .extent_count = 1};
    tern__desc desc;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    tern__desc_write(&desc, &post);
    tern__desc_say(s.control, &desc, 5 + (uint64_t)rank, " in the group of ranks 0, 1");
    RANK_CHECK(rank, all_are_here(arg, 2));
    RANK_CHECK(rank, !expect(&s, rank,
                             " does not wait, its last collective was broadcast of 100 bf16 from rank 1 "
                             "(work 6) in the group of ranks 0, 1"));
    RANK_CHECK(rank, all_are_here(arg, 4));
    get_up(&s);
    return 0;
}

static void works_are_told_in_words(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, ask_for_works, b));
    board_free(b);
}

/* ---- no answer ---- */

static int ask_the_stopped(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char text[TERN_ERROR_TEXT];
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) set_work(s.control, 9);
    atomic_fetch_add(&b->ready, 1);
    RANK_CHECK(rank, await_count(&b->go, 1));
    if (rank == 0) {
        int64_t start = tern__now_ns();
        RANK_CHECK(rank, !strcmp(ask(&s, 0.2, text), hosts == 1 ? " is stopped (by SIGSTOP or a debugger)"
                                                                : " does not answer: is it stopped?"));
        RANK_CHECK(rank, hosts == 1 || tern__now_ns() - start >= 200000000);
        RANK_CHECK(rank, tern__control_is_healthy(s.control));
        atomic_fetch_add(&b->go, 1);
        int64_t deadline = tern__deadline(20);
        while (tern__control_is_stopped(s.control, 1) && tern__now_ns() < deadline)
            tern__poll(NULL, 0, tern__deadline(0.001));
        RANK_CHECK(rank, !expect(&s, rank, " does not wait, its last collective was work 9"));
    }
    atomic_fetch_add(&b->go, 1);
    RANK_CHECK(rank, await_count(&b->go, 4));
    get_up(&s);
    return 0;
}

static void a_stopped_rank_does_not_answer(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = ranks_start(2, ask_the_stopped, b);
    assert_true(await_count(&b->ready, 2));
    ranks_stop(&r, 1);
    atomic_store(&b->go, 1);
    assert_true(await_count(&b->go, 2));
    assert_return_code(kill(r.pids[1], SIGCONT), errno);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
}

/* Rank 1 is stopped, and rank 2 waits for rank 3, which answers although rank 1 has used up its time. */
static int ask_beside_the_stopped(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char text[TERN_ERROR_TEXT] = "";
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 2) tern__control_wait_set(s.control, "work 4, for rank 3", 3);
    atomic_fetch_add(&b->ready, 1);
    RANK_CHECK(rank, await_count(&b->go, 1));
    if (rank == 0) {
        for (int peer = 1; peer <= 2; peer++) tern__control_last_ask(s.control, peer);
        tern__control_others_text(s.control, "work 4", 0.5, text, sizeof(text));
        bool is_right = strstr(text, "; rank 1 (") && strstr(text, ") waits in it, too, for rank 3") &&
                        strstr(text, ") does not wait and has called no collective yet");
        if (!is_right) fprintf(stderr, "%s\n", text);
        atomic_fetch_add(&b->events, 1);
        RANK_CHECK(rank, is_right);
    }
    RANK_CHECK(rank, await_count(&b->go, 2));
    get_up(&s);
    return 0;
}

static void a_stopped_rank_takes_no_time_of_others(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = ranks_start(4, ask_beside_the_stopped, b);
    assert_true(await_count(&b->ready, 4));
    ranks_stop(&r, 1);
    atomic_fetch_add(&b->go, 1);
    bool is_told = await_count(&b->events, 1);
    assert_return_code(kill(r.pids[1], SIGCONT), errno);
    atomic_fetch_add(&b->go, 1);
    ranks_wait(&r);
    assert_true(is_told);
    assert_ranks_ok(r);
    board_free(b);
}

static int ask_one_who_leaves(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char text[TERN_ERROR_TEXT];
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(b, 2));
    if (rank == 0) {
        int64_t deadline = tern__deadline(10);
        while (!tern__control_has_left(s.control, 1) && tern__now_ns() < deadline)
            tern__poll(NULL, 0, tern__deadline(0.001));
        RANK_CHECK(rank, !strcmp(ask(&s, 20, text), " has left"));
    }
    get_up(&s);
    return 0;
}

static void who_has_left_says_nothing(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, ask_one_who_leaves, b));
    board_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EVERYWHERE(a_rank_that_computes_answers),
        EVERYWHERE(a_rank_that_waits_says_in_what),
        EVERYWHERE(whom_a_rank_waits_for_is_asked_too),
        EVERYWHERE(what_is_read_is_whole),
        EVERYWHERE(a_stopped_rank_does_not_answer),
        EVERYWHERE(who_has_left_says_nothing),
        EVERYWHERE(a_stopped_rank_takes_no_time_of_others),
        cmocka_unit_test_setup(works_are_told_in_words, two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
