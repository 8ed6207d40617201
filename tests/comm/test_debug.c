/* test_debug.c - the debug back end: its trace, and the errors it finds. Rank 0 makes the mistake, and the
 * others are told of it. */
#include "board.h"
#include "group_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

static char trace[64];

static int use_trace(void **state)
{
    (void)state;
    snprintf(trace, sizeof(trace), "/tmp/tern-debug-XXXXXX");
    int fd = mkstemp(trace);
    close(fd);
    setenv("TERN_DEBUG_FILE", trace, 1);
    setenv("TERN_BACKEND", "debug", 1);
    return fd < 0;
}

static int drop_trace(void **state)
{
    (void)state;
    unsetenv("TERN_DEBUG_FILE");
    unsetenv("TERN_BACKEND");
    return unlink(trace);
}

/* Returns how many lines of the trace contain both texts. */
static int count_lines(const char *first, const char *second)
{
    char line[1200];
    int count = 0;
    FILE *file = fopen(trace, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) count += strstr(line, first) && strstr(line, second);
    fclose(file);
    return count;
}

/* ---- the errors it finds ---- */

/* Rank 0 ends with this error, and the others are told of it. */
static int expect(fixture *f, int code, const char *one, const char *other)
{
    if (f->rank) RANK_CHECK(f->rank, f->err.code == TERN_E_PEER);
    if (!f->rank && f->err.code != code) fprintf(stderr, "%s\n", f->err.text);
    if (!f->rank) RANK_CHECK(f->rank, f->err.code == code);
    if (!strstr(f->err.text, one) || !strstr(f->err.text, other)) fprintf(stderr, "%s\n", f->err.text);
    RANK_CHECK(f->rank, strstr(f->err.text, one) && strstr(f->err.text, other));
    return fixture_close(f);
}

/* Runs a barrier, which fails, if the error has not been reported yet. */
static void hear_of_it(fixture *f)
{
    while (!f->err.code) tern_barrier(f->group, &f->err);
}

static int changed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool in_window = arg != NULL;
    fixture f;
    if (fixture_open(&f, rank, boot, 4096) || (in_window && fixture_map(&f))) return 1;
    float *x = (float *)(in_window ? f.window : f.plain);
    tern_work *work = tern_all_reduce_post(f.group, x, 100, TERN_F32, TERN_SUM, &f.err);
    if (rank == 0) x[99] += 1;
    if (work) tern_work_wait(work, &f.err);
    hear_of_it(&f);
    return expect(&f, TERN_E_STATE, "the memory of ", "all_reduce of 100 f32, sum (work 1)");
}

static void buffers_that_are_changed(void **state)
{
    (void)state;
    for (int in_window = 0; in_window < 2; in_window++)
        for (int world = 2; world <= 3; world++)
            assert_ranks_ok(ranks_run(world, changed_body, in_window ? trace : NULL));
    assert_true(count_lines("rank 0: ",
                            "E_STATE: the memory of all_reduce of 100 f32, sum (work 1) was changed "
                            "while it was pending: 400 bytes at ") >= 2);
    assert_true(count_lines("E_STATE: the memory of channel 0, place 1: all_reduce", "of window 1") >= 2);
}

static int read_only_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 1 << 20)) return 1;
    float *in = (float *)f.plain;
    tern_work *work = tern_reduce_scatter_post(f.group, in, in + 150000, 50000, TERN_F32, TERN_SUM, &f.err);
    if (rank == 0) in[99999] += 1;
    if (work) tern_work_wait(work, &f.err);
    hear_of_it(&f);
    return expect(&f, TERN_E_STATE, "the memory of reduce_scatter of ", "(work 1) was changed while");
}

static void buffers_that_are_only_read(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, read_only_body, NULL));
}

static int sent_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 1 << 20)) return 1;
    float *x = (float *)f.plain;
    tern_work *work = rank ? NULL : tern_isend(f.group, x, 200000, TERN_F32, 1, 5, &f.err);
    if (!rank) x[199999] = 3;
    tern_barrier(f.group, &f.err); /* a message that is done may be changed: it is received later */
    if (!rank) tern_work_wait(work, &f.err);
    if (rank) tern_recv(f.group, x, 200000, TERN_F32, 0, 5, NULL, &f.err);
    hear_of_it(&f);
    return expect(&f, TERN_E_STATE, "the memory of send of 200000 f32 to rank 1, tag 5 was changed", "");
}

static void messages_that_are_changed(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, sent_body, NULL));
}

/* Two pending calls share an element, and one of them writes it. */
static int twice_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 4096)) return 1;
    float *x = (float *)f.plain;
    tern_barrier(f.group, &f.err); /* else rank 1 may be told while it opens the group */
    tern_work *first = tern_broadcast_post(f.group, x, 100, TERN_F32, 1, &f.err);
    tern_work *second = tern_all_reduce_post(f.group, x + (rank ? 100 : 99), 100, TERN_F32, TERN_MAX, &f.err);
    RANK_CHECK(rank, rank || (first && !second)); /* the other rank may have been told of it */
    tern_error ignored = {0};
    if (first) tern_work_wait(first, rank ? &f.err : &ignored);
    if (second) tern_work_wait(second, &f.err);
    hear_of_it(&f);
    return expect(&f, TERN_E_INVALID, "all_reduce of 100 f32, max (work 3) uses 400 bytes at ",
                  ", which is still in use by broadcast of 100 f32 from rank 1 (work 2)");
}

static int both_read_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 4096)) return 1;
    float *x = (float *)f.plain;
    tern_work *first = tern_reduce_scatter_post(f.group, x, x + 500, 50, TERN_F32, TERN_SUM, &f.err);
    tern_work *second = tern_reduce_scatter_post(f.group, x, x + 600, 50, TERN_F32, TERN_SUM, &f.err);
    tern_work_wait(second, &f.err);
    tern_work_wait(first, &f.err);
    return fixture_close(&f);
}

static void buffers_that_are_used_twice(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, twice_body, NULL));
    assert_ranks_ok(ranks_run(2, both_read_body, NULL));
}

/* ---- the contract of a back end ---- */

/* The extents belong to the work until it is done. */
static int post_at(fixture *f, void *channel, tern__extent extent)
{
    static tern__extent extents[16];
    static int used;
    uint64_t seq;
    tern__extent *own = &extents[used++ % 16];
    *own = extent;
    tern__post post = {.kind = TERN__ALL_REDUCE, .dtype = TERN_F32, .extents = own, .extent_count = 1};
    f->err.code = 0;
    return f->group->backend->post(channel, &post, &seq, &f->err);
}

static int contract_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    uint32_t window;
    if (fixture_open(&f, rank, boot, 4096) || fixture_map(&f)) return 1;
    const tern__comm_backend *backend = f.group->backend;
    void *state = f.group->state,
         *channel = backend->channel_open(state, &(tern__channel_opts){.slots = 4}, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, !backend->window_open(state, &(tern__window_opts){.bytes = 4096}, &window, &f.err));
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, 4000, 25}) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(f.err.text, "uses 25 f32 from byte 4000 of window 2, which has 4096 bytes"));
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, UINT64_MAX - 3, 1}) == TERN_E_INVALID);
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, 4, UINT64_MAX / 4}) == TERN_E_INVALID);
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){77, 0, 1}) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(f.err.text, "uses window 77, which is not open"));
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, 0, 100}) == TERN_OK);
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, 396, 2}) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(f.err.text, "place 2: all_reduce of 2 f32, sum (work 2) uses bytes 396 to 404 of "
                                        "window 2, which is still in use by channel 1, place 1: all_reduce"));
    RANK_CHECK(rank, post_at(&f, channel, (tern__extent){window, 400, 2}) == TERN_OK);
    RANK_CHECK(rank, backend->wait(channel, 1, &f.err) == TERN_OK);
    RANK_CHECK(rank, tern_barrier(f.group, &f.err) ==
                         TERN_OK); /* a rank that leaves would fail a peer's next post */
    backend->channel_close(channel);
    backend->window_close(state, window);
    return fixture_close(&f);
}

static void works_that_break_the_contract(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, contract_body, NULL));
    assert_int_equal(count_lines("E_STATE: nobody waited for channel 1, place 2: all_reduce of 2 f32", ""),
                     2);
    assert_int_equal(count_lines("nobody waited", ""), 2);
}

/* ---- the trace ---- */

static int talk_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 4096) || fixture_map(&f)) return 1;
    RANK_CHECK(rank, strstr(tern_group_backend(f.group), "debug") == tern_group_backend(f.group));
    float *x = (float *)f.plain;
    x[0] = 1;
    RANK_CHECK(rank, tern_all_reduce(f.group, x, 1, TERN_F32, TERN_SUM, &f.err) == TERN_OK && x[0] == 2);
    if (rank) tern_send(f.group, x, 7, TERN_F32, 0, 3, &f.err);
    if (!rank) tern_recv(f.group, x, 7, TERN_F32, TERN_ANY_SOURCE, 3, NULL, &f.err);
    return fixture_close(&f);
}

static void a_trace(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, talk_body, NULL));
    assert_int_equal(count_lines("tern debug: rank ", " us: group 0: "), count_lines("", ""));
    assert_int_equal(count_lines("rank 1: ", "open: 2 ranks, native behind"), 1);
    assert_int_equal(count_lines("rank 1: ", "channel 0 open: 8 slots"), 1);
    assert_int_equal(count_lines("rank 0: ", "window 1 open: "), 1);
    assert_int_equal(count_lines("rank 0: ", "window 1: 4096 bytes at 0 allocated"), 1);
    assert_int_equal(count_lines("rank 0: ", "post channel 0, place 1: all_reduce of 1 f32, sum (work 1)"),
                     1);
    assert_int_equal(count_lines(" us: channel 0, place 1: all_reduce of 1 f32, sum (work 1)", "done after "),
                     2);
    assert_int_equal(count_lines("rank 1: ", ": send of 7 f32 to rank 0, tag 3"), 2);
    assert_int_equal(count_lines("rank 0: ", ": recv of 7 f32 from any rank, tag 3: done"), 1);
    assert_int_equal(count_lines("rank 0: ", "closed"), 4);
}

/* The debug back end on top of a transport. */
static void before_gloo(void **state)
{
    (void)state;
    need_part("gloo");
    assert_non_null(board_plugin("tern_gloo.so"));
    setenv("TERN_BACKEND", "debug+gloo", 1);
    assert_ranks_ok(ranks_run(2, talk_body, NULL));
    assert_int_equal(count_lines("rank 1: ", "open: 2 ranks, gloo behind"), 1);
    assert_int_equal(count_lines(" us: channel 0, place 1: all_reduce of 1 f32, sum (work 1)", "done after "),
                     2);
}

/* ---- how to enable it ---- */

static int open_code(const char *backend, char *text, size_t size)
{
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.backend = backend;
    tern_group *group = tern_group_open(&opts, &err);
    tern_group_close(group);
    snprintf(text, size, "%s", err.text);
    return err.code;
}

static void names(void **state)
{
    (void)state;
    char text[TERN_ERROR_TEXT];
    assert_int_equal(open_code("debug", text, sizeof(text)), TERN_OK);
    assert_int_equal(open_code("debug+native", text, sizeof(text)), TERN_OK);
    assert_int_equal(open_code("debug+nothing", text, sizeof(text)), TERN_E_INVALID);
    assert_non_null(strstr(text, "back end \"nothing\": expected native, "));
    assert_int_equal(open_code("debugger", text, sizeof(text)), TERN_E_INVALID);
    assert_int_equal(open_code("debug+", text, sizeof(text)), TERN_E_INVALID);
    setenv("TERN_DEBUG_FILE", "/nowhere/at/all", 1);
    assert_int_equal(open_code("debug", text, sizeof(text)), TERN_E_IO);
    assert_non_null(strstr(text, "cannot open /nowhere/at/all for the debug back end: "));
    unlink(trace);
    assert_int_equal(mkfifo(trace, 0600), 0);
    setenv("TERN_DEBUG_FILE", trace, 1);
    assert_int_equal(open_code("debug", text, sizeof(text)), TERN_E_IO);
    assert_non_null(strstr(text, " for the debug back end: No such device or address"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(buffers_that_are_changed, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(buffers_that_are_only_read, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(messages_that_are_changed, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(buffers_that_are_used_twice, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(works_that_break_the_contract, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(a_trace, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(before_gloo, use_trace, drop_trace),
        cmocka_unit_test_setup_teardown(names, use_trace, drop_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
