/* test_method.c - init_method, rank and world in a group's options, valid and invalid. */
#include "check.h"

#include "comm/bootstrap/bootstrap.h"

#include <stdlib.h>
#include <string.h>

/* ---- valid options ---- */

static void clear_environment(void)
{
    static const char *const names[] = {"RANK",        "WORLD_SIZE",  "MASTER_ADDR",
                                        "MASTER_PORT", "LOCAL_RANK",  "LOCAL_WORLD_SIZE",
                                        "TERN_PORT",   "TERN_SECRET", "TERN_LISTEN_FD"};
    for (size_t i = 0; i < TERN__COUNT(names); i++) unsetenv(names[i]);
}

static tern_group_opts opts_of(const char *init_method, int rank, int world)
{
    tern_group_opts opts = tern_group_defaults();
    assert_int_equal(opts.rank, -1);
    assert_int_equal(opts.world, -1);
    assert_null(opts.init_method);
    opts.init_method = init_method;
    opts.rank = rank;
    opts.world = world;
    return opts;
}

typedef struct row {
    const char *init_method;
    int rank, world; /* in the options */
    const char *addr;
    int port, is_rank, is_world;
} row;

static void check(const row *r)
{
    tern_error err = {0};
    tern__bootstrap boot;
    tern_group_opts opts = opts_of(r->init_method, r->rank, r->world);
    tern__bootstrap_read(&boot, &opts, &err);
    if (err.code) fail_msg("%s: %s", r->init_method, err.text);
    if (strcmp(boot.addr, r->addr) || boot.port != r->port || boot.rank != r->is_rank ||
        boot.world != r->is_world)
        fail_msg("%s: got %s port %d, rank %d of %d", r->init_method, boot.addr, boot.port, boot.rank,
                 boot.world);
}

static void tcp_says_all(void **state)
{
    (void)state;
    const row rows[] = {
        {"tcp://10.1.1.20:23456?rank=1&world_size=4", -1, -1, "10.1.1.20", 23456, 1, 4},
        {"tcp://node-3.example:1/?world_size=2&rank=0", -1, -1, "node-3.example", 1, 0, 2},
        {"tcp://[::1]:65535?rank=0&world_size=1&use_libuv=0", -1, -1, "::1", 65535, 0, 1},
        {"tcp://localhost:29500", 2, 3, "localhost", 29500, 2, 3},
        {"tcp://localhost:29500?rank=2", -1, 3, "localhost", 29500, 2, 3},
        {"tcp://localhost:29500?world_size=3", 2, -1, "localhost", 29500, 2, 3},
    };
    clear_environment();
    setenv("MASTER_ADDR", "elsewhere", 1);
    setenv("TERN_PORT", "77", 1);
    for (size_t i = 0; i < TERN__COUNT(rows); i++) check(&rows[i]);
}

static void env_asks_the_environment_for_the_rest(void **state)
{
    (void)state;
    clear_environment();
    setenv("MASTER_ADDR", "here", 1);
    setenv("MASTER_PORT", "44", 1);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "5", 1);
    check(&(row){"env://", -1, -1, "here", 44, 1, 5});
    check(&(row){"env://?rank=3", -1, -1, "here", 44, 3, 5});
    check(&(row){"env://", 4, -1, "here", 44, 4, 5});
    check(&(row){NULL, -1, 6, "here", 44, 1, 6});
    unsetenv("WORLD_SIZE");
    check(&(row){NULL, -1, 6, "here", 44, 1, 6});
    unsetenv("RANK");
    check(&(row){"env://", 0, 2, "here", 44, 0, 2});
}

static void local_rank_and_secret_hold_for_every_method(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__bootstrap boot;
    tern_group_opts opts = opts_of("tcp://h:1?rank=5&world_size=8", -1, -1);
    clear_environment();
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    setenv("TERN_LISTEN_FD", "3", 1);
    setenv("TERN_SECRET", "0707070707070707070707070707070707070707070707070707070707070707", 1);
    assert_int_equal(tern__bootstrap_read(&boot, &opts, &err), TERN_OK);
    assert_ok(err);
    assert_int_equal(boot.local_rank, 1);
    assert_int_equal(boot.local_world, 4);
    assert_true(boot.has_secret && boot.secret[31] == 7);
    assert_int_equal(boot.listen_fd, -1);
    assert_null(getenv("TERN_SECRET"));
    assert_null(getenv("TERN_LISTEN_FD"));
    assert_string_equal(boot.source, "tcp://");
}

/* ---- invalid options ---- */

typedef struct bad {
    const char *init_method;
    int rank, world, code;
    const char *text;
} bad;

static void check_bad(const bad *b)
{
    tern_error err = {0};
    tern__bootstrap boot;
    tern_group_opts opts = opts_of(b->init_method, b->rank, b->world);
    int status = tern__bootstrap_read(&boot, &opts, &err);
    if (status != b->code || err.code != b->code || !strstr(err.text, b->text))
        fail_msg("%s: wanted %s \"%s\", got %s \"%s\"", b->init_method, tern_status_name(b->code), b->text,
                 tern_status_name(status), err.text);
}

static void malformed_methods_are_quoted(void **state)
{
    (void)state;
    char host[400] = "tcp://";
    memset(host + 6, 'h', 300);
    strcpy(host + 306, ":1?rank=0&world_size=1");
    const bad rows[] = {
        {"", -1, -1, TERN_E_INVALID, "init_method \"\": expected env://"},
        {"http://a:1", 0, 1, TERN_E_INVALID, "init_method \"http://a:1\": expected env://"},
        {"tcp:/a:1", 0, 1, TERN_E_INVALID, "expected env://"},
        {"env://here", 0, 1, TERN_E_INVALID, "env:// may only be followed by"},
        {"file://", 0, 1, TERN_E_INVALID, "path missing"},
        {"file://here", 0, 1, TERN_E_INVALID, "path missing: expected file:///path"},
        {"file:///x", -1, 2, TERN_E_INVALID, "rank parameter missing"},
        {"file:///x?rank=0", -1, -1, TERN_E_INVALID, "world_size parameter missing"},
        {"tcp://h", 0, 1, TERN_E_INVALID, "port number missing"},
        {"tcp://[::1]", 0, 1, TERN_E_INVALID, "port number missing"},
        {"tcp://h:", 0, 1, TERN_E_INVALID, "port= is not an integer from 1"},
        {"tcp://h:0", 0, 1, TERN_E_INVALID, "port=0 is not an integer from 1"},
        {"tcp://h:x1", 0, 1, TERN_E_INVALID, "port=x1 is not an integer"},
        {"tcp://h:65536", 0, 1, TERN_E_INVALID, "the port is above 65535"},
        {"tcp://:1", 0, 1, TERN_E_INVALID, "host name missing"},
        {"tcp://[]:1", 0, 1, TERN_E_INVALID, "host name missing"},
        {"tcp://h:1", -1, -1, TERN_E_INVALID, "rank parameter missing"},
        {"tcp://h:1", 0, -1, TERN_E_INVALID, "world_size parameter missing"},
        {"tcp://h:1?rank=0", -1, -1, TERN_E_INVALID, "world_size parameter missing"},
        {"tcp://h:1?world_size=2", -1, -1, TERN_E_INVALID, "rank parameter missing"},
        {"tcp://h:1?rank=0&world_size=2", 0, -1, TERN_E_INVALID, "and the options set the same one"},
        {"tcp://h:1?rank=0&world_size=2", -1, 2, TERN_E_INVALID, "and the options set the same one"},
        {"tcp://h:1?rank=two&world_size=2", -1, -1, TERN_E_INVALID, "rank=two is not an integer from 0"},
        {"tcp://h:1?rank=-1&world_size=2", -1, -1, TERN_E_INVALID, "rank=-1 is not an integer from 0"},
        {"tcp://h:1?rank=0&world_size=0", -1, -1, TERN_E_INVALID, "world_size=0 is not an integer from 1"},
        {"tcp://h:1?rank=0&world_size=4294967298", -1, -1, TERN_E_INVALID, "world_size=4294967298 is no"},
        {"tcp://h:1?rank=&world_size=2", -1, -1, TERN_E_INVALID, "rank= is not an integer"},
        {"tcp://h:1?rank=0&worldsize=2", -1, -1, TERN_E_INVALID, "\"worldsize=2\" is neither"},
        {"tcp://h:1?rank=00000000000000000000001&world_size=2", -1, -1, TERN_E_INVALID, "is not an integer"},
        {"tcp://h:1?rank=2&world_size=2", -1, -1, TERN_E_RANGE, "rank 2 is not below the world's size, 2"},
        {"tcp://h:1", 7, 2, TERN_E_RANGE, "rank 7 is not below the world's size, 2"},
        {"tcp://h:1", -2, 2, TERN_E_RANGE, "rank -2 of a world of 2"},
        {"tcp://h:1", 0, 0, TERN_E_RANGE, "rank 0 of a world of 0"},
        {NULL, 0, 0, TERN_E_RANGE, "rank 0 of a world of 0"},
        {"tcp://h:1?rank=0&world_size=1048577", -1, -1, TERN_E_RANGE,
         "a world of 1048577 ranks (tcp://), at most 1048576 fit"},
        {"file:///f", 0, 2147483647, TERN_E_RANGE, "a world of 2147483647 ranks (file://)"},
        {host, -1, -1, TERN_E_ENV, "has 300 characters, at most 255 fit"},
    };
    clear_environment();
    for (size_t i = 0; i < TERN__COUNT(rows); i++) check_bad(&rows[i]);
}

static void env_names_the_missing_variable(void **state)
{
    (void)state;
    clear_environment();
    check_bad(&(bad){"env://", -1, -1, TERN_E_ENV, "RANK is not set, but init_method env:// needs it"});
    setenv("RANK", "0", 1);
    check_bad(&(bad){"env://", -1, -1, TERN_E_ENV, "WORLD_SIZE is not set, but init_method env:// needs it"});
    setenv("WORLD_SIZE", "2", 1);
    check_bad(&(bad){"env://", -1, -1, TERN_E_ENV, "MASTER_ADDR is not set"});
    setenv("MASTER_ADDR", "h", 1);
    check_bad(&(bad){"env://", -1, -1, TERN_E_ENV, "MASTER_PORT is not set"});
    setenv("MASTER_PORT", "x", 1);
    check_bad(&(bad){"env://", -1, -1, TERN_E_ENV, "MASTER_PORT=\"x\""});
    setenv("MASTER_PORT", "1", 1);
    check_bad(&(bad){"env://?rank=2", -1, -1, TERN_E_ENV, "RANK=2 is not below WORLD_SIZE=2"});
}

static void back_ends_are_known_by_name(void **state)
{
    (void)state;
    clear_environment();
    const bad rows[] = {
        {"native", -1, -1, TERN_OK, ""},
        {"native+gloo", -1, -1, TERN_OK, ""},
        {"", -1, -1, TERN_E_INVALID, "back end \"\": expected native"},
        {"ncclx", -1, -1, TERN_E_INVALID, "back end \"ncclx\": expected native, mpi"},
    };
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        tern_error err = {0};
        tern_group_opts opts = tern_group_defaults();
        opts.backend = rows[i].init_method;
        tern_group_close(tern_group_open(&opts, &err));
        assert_int_equal(err.code, rows[i].code);
        assert_non_null(strstr(err.text, rows[i].text));
    }
    tern_error err = {0};
    setenv("TERN_BACKEND", "ncclx", 1);
    assert_null(tern_group_open(NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    unsetenv("TERN_BACKEND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_says_all),
        cmocka_unit_test(env_asks_the_environment_for_the_rest),
        cmocka_unit_test(local_rank_and_secret_hold_for_every_method),
        cmocka_unit_test(malformed_methods_are_quoted),
        cmocka_unit_test(env_names_the_missing_variable),
        cmocka_unit_test(back_ends_are_known_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
