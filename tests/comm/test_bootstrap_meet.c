/* test_bootstrap_meet.c - ranks exchange their address through a store: the caller's, a file, or the store
 * of torchrun's agent. */
#include "custom_store.h"
#include "ranks.h"

#include "comm/meet/control/control.h"
#include "comm/sys.h"

#include <tern/comm.h>
#include <tern/store.h>

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- a store that all ranks reach, served by the test ---- */

enum { ANY_ERROR = 1 };

typedef struct board {
    tern_store *store; /* a store whose server is a process of its own, as an agent's is */
    pid_t server;
    int port;
    double timeout_s;    /* for all to meet */
    const char *method;  /* init_method; NULL: the store  */
    bool is_custom;      /* the ranks reach the store by functions of their own */
    int local_world;     /* option */
    int rank_of[4];      /* each one's `rank` option */
    int code_of[4];      /* the code of each one's error */
    const char *says[4]; /* part of each one's error */
} board;

static const char *const said[] = {"RANK",
                                   "WORLD_SIZE",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "TERN_PORT",
                                   "TERN_SECRET",
                                   "TERN_HOST_ID",
                                   "TERN_SOCKET_IFNAME",
                                   "LOCAL_RANK",
                                   "LOCAL_WORLD_SIZE",
                                   "TORCHELASTIC_RUN_ID",
                                   "TORCHELASTIC_RESTART_COUNT",
                                   "TORCHELASTIC_USE_AGENT_STORE"};

/* Serves a store until it is killed. The server has threads, and a process that forks ranks must have none:
 * what a thread locks is locked in the child for ever. */
static void serve(int port_fd)
{
    tern_error err = {0};
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.is_server = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int port = tern_store_port(tern_store_tcp_open("127.0.0.1", 0, &opts, &err));
    if (err.code || write(port_fd, &port, sizeof(port)) != sizeof(port)) _exit(1);
    for (;;) pause();
}

static board board_new(void)
{
    tern_error err = {0};
    board b = {.timeout_s = 20, .local_world = -1, .rank_of = {0, 1, 2, 3}};
    int port[2];
    for (size_t i = 0; i < TERN__COUNT(said); i++) unsetenv(said[i]);
    assert_return_code(pipe(port), errno);
    b.server = fork();
    assert_return_code(b.store, errno);
    if (!b.server) serve(port[1]);
    assert_int_equal(TEMP_FAILURE_RETRY(read(port[0], &b.port, sizeof(b.port))), sizeof(b.port));
    for (int i = 0; i < 2; i++) close(port[i]);
    b.store = tern_store_tcp_open("127.0.0.1", b.port, NULL, &err);
    assert_ok(err);
    return b;
}

static void board_close(const board *b)
{
    tern_store_close(b->store);
    kill(b->server, SIGKILL);
    assert_int_equal(TEMP_FAILURE_RETRY(waitpid(b->server, NULL, 0)), b->server);
}

/* Opens this rank's own handle on the store; NULL for an init_method. */
static tern_store *board_open(const board *b, tern_error *err)
{
    return b->method ? NULL : tern_store_tcp_open("127.0.0.1", b->port, NULL, err);
}

static int meet(int rank, const tern__bootstrap *boot, void *arg)
{
    const board *b = arg;
    tern_error err = {0};
    tern_store *store = board_open(b, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_opts opts = tern_group_defaults();
    opts.init_method = b->method;
    relay relayed = {.to = store, .lock = PTHREAD_MUTEX_INITIALIZER};
    tern_store *custom =
        b->is_custom ? tern_store_custom_new("a custom store", &relay_methods, &relayed, &err) : NULL;
    opts.store = custom ? custom : store;
    opts.rank = b->rank_of[rank];
    opts.world = boot->world;
    opts.local_world = b->local_world;
    opts.connect_timeout_s = b->timeout_s;
    int64_t sum = b->rank_of[rank] + 1;
    tern_group *group = tern_group_open(&opts, &err);
    tern_store_close(custom);
    tern_store_close(store);
    RANK_CHECK(rank, err.code || tern_group_local_rank(group) == b->rank_of[rank]);
    tern_all_reduce(group, &sum, 1, TERN_I64, TERN_SUM, &err);
    tern_group_close(group);
    const char *text = b->says[rank] ? b->says[rank] : "";
    bool is_code = b->code_of[rank] == ANY_ERROR ? err.code < 0 : err.code == b->code_of[rank];
    if (!is_code || !strstr(err.text, text)) {
        fprintf(stderr, "rank %d: wanted \"%s\", got %s: %s\n", rank, text, tern_status_name(err.code),
                err.text);
        return 1;
    }
    RANK_CHECK(rank, err.code || sum == boot->world * (boot->world + 1) / 2);
    return 0;
}

/* Ranks are processes, but threads under ThreadSanitizer, which then sees the races between them. */
#ifdef __SANITIZE_THREAD__
#define run_meeting ranks_run_threads
#else
#define run_meeting ranks_run
#endif

/* Checks that a meeting leaves the store's keys as they were. */
static void check_meeting(board *b, int world)
{
    tern_error err = {0};
    int64_t keys = tern_store_num_keys(b->store, &err);
    assert_ranks_ok(run_meeting(world, meet, b));
    assert_int_equal(tern_store_num_keys(b->store, &err), keys);
    assert_ok(err);
}

/* ---- meetings ---- */

/* A meeting leaves nothing in the store, so the next one can use it. */
static void ranks_meet_in_a_store_of_the_caller(void **state)
{
    (void)state;
    board b = board_new();
    for (int world = 1; world <= 4; world++) check_meeting(&b, world);
    check_meeting(&b, 2);
    board_close(&b);
}

static void ranks_meet_in_a_store_of_functions(void **state)
{
    (void)state;
    board b = board_new();
    b.is_custom = true;
    for (int world = 1; world <= 4; world++) check_meeting(&b, world);
    board_close(&b);
}

/* A group of some of a launcher's processes, whose variables describe all of them. */
static void local_numbers_may_be_given_or_counted(void **state)
{
    (void)state;
    board b = board_new();
    setenv("LOCAL_RANK", "5", 1);
    setenv("LOCAL_WORLD_SIZE", "8", 1);
    b.local_world = 0;
    for (int world = 1; world <= 3; world++) check_meeting(&b, world);
    b.local_world = 3; /* local_rank -1 */
    for (int rank = 0; rank < 2; rank++) {
        b.code_of[rank] = TERN_E_RANGE;
        b.says[rank] = "local_rank -1 of a local_world of 3, in a world of 2 ranks";
    }
    check_meeting(&b, 2);
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    board_close(&b);
}

static void ranks_meet_in_a_file(void **state)
{
    (void)state;
    char path[64], method[96];
    board b = board_new();
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    snprintf(method, sizeof(method), "file://%s", path);
    b.method = method;
    for (int world = 1; world <= 4; world++) {
        check_meeting(&b, world);
        assert_int_equal(access(path, F_OK), -1);
    }
    board_close(&b);
}

/* ---- ranks that are late ---- */

/* Shared by the ranks and the test. */
typedef struct lateness {
    board b;
    int late; /* a set of ranks, by bits, that come after the warning */
    atomic_int count;
    char text[TERN_ERROR_TEXT];
} lateness;

static void keep_warning(tern_log_level level, const char *text, void *arg)
{
    lateness *l = arg;
    if (level != TERN_LOG_WARN) return;
    snprintf(l->text, sizeof(l->text), "%s", text);
    atomic_fetch_add(&l->count, 1);
}

static int meet_late(int rank, const tern__bootstrap *boot, void *arg)
{
    lateness *l = arg;
    int64_t deadline = tern__deadline(RANKS_SOON_S);
    while (l->late >> rank & 1 && !atomic_load(&l->count) && tern__now_ns() < deadline) usleep(1000);
    return meet(rank, boot, &l->b);
}

static void the_first_rank_that_waits_warns_of_those_who_have_not_come(void **state)
{
    (void)state;
    static const struct {
        int late;
        const char *text;
    } cases[] = {{0x2, "rank 0 still waits in tern_group_open: 2 of 3 ranks joined; missing: rank 1"},
                 {0x1, "rank 1 still waits in tern_group_open: 2 of 3 ranks joined; missing: rank 0"},
                 {0x3, "rank 2 still waits in tern_group_open: 1 of 3 ranks joined; missing: ranks 0, 1"}};
    char path[64], method[96];
    lateness *l = share_memory(sizeof(*l));
    l->b = board_new();
    l->b.timeout_s = 2; /* the warning comes after half of it */
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    snprintf(method, sizeof(method), "file://%s", path);
    tern_log_set(keep_warning, l); /* all ranks' */
    for (size_t i = 0; i < 2 * TERN__COUNT(cases); i++) {
        l->b.method = i % 2 ? method : NULL;
        l->late = cases[i / 2].late;
        atomic_store(&l->count, 0);
        assert_ranks_ok(run_meeting(3, meet_late, l));
        assert_string_equal(l->text, cases[i / 2].text);
        assert_int_equal(atomic_load(&l->count), 1);
    }
    tern_log_set(NULL, NULL);
    board_close(&l->b);
    assert_return_code(munmap(l, sizeof(*l)), errno);
}

/* In a process without stdin, stdout and stderr: messages must not end up in a socket that got their number.
 */
static int meet_closed(int rank, const tern__bootstrap *boot, void *arg)
{
    struct stat about;
    for (int fd = 0; fd <= 2; fd++) close(fd);
    int status = meet(rank, boot, arg);
    for (int fd = 0; fd <= 2; fd++)
        if (fstat(fd, &about) || !S_ISCHR(about.st_mode)) return 2;
    return status;
}

static void closed_descriptors_are_held(void **state)
{
    (void)state;
    char method[96];
    board b = board_new();
    snprintf(method, sizeof(method), "file:///tmp/tern-meet-%d", (int)getpid());
    b.method = method;
    board_close(&b);
    assert_ranks_ok(ranks_run(2, meet_closed, &b));
}

static void be_under_an_agent(const board *b, const char *attempt)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", b->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RUN_ID", "run/of mine", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", attempt, 1);
}

/* Rank 0 must not try to listen there itself: it would find the port taken. */
static void ranks_meet_in_the_store_of_an_agent(void **state)
{
    (void)state;
    char method[64];
    board b = board_new();
    b.method = "env://";
    be_under_an_agent(&b, "0");
    check_meeting(&b, 3);
    snprintf(method, sizeof(method), "tcp://127.0.0.1:%d", b.port);
    b.method = method;
    check_meeting(&b, 2);
    board_close(&b);
}

/* The leftovers of a failed attempt are not read by the next one. */
static void an_attempt_does_not_read_what_the_last_one_left(void **state)
{
    (void)state;
    tern_error err = {0};
    board b = board_new();
    b.method = "env://";
    tern_store_set(b.store, "tern/run/of mine/0/word", "nonsense", 8, &err);
    tern_store_set(b.store, "tern/run/of mine/0/claim/0", "7", 1, &err);
    assert_ok(err);
    be_under_an_agent(&b, "1");
    check_meeting(&b, 2);
    board_close(&b);
}

/* ---- the ranks of a meeting ---- */

static int compare(int rank, const tern__bootstrap *boot, void *arg)
{
    const board *b = arg;
    tern_error err = {0};
    tern__bootstrap own;
    uint8_t zero[TERN__SECRET_BYTES] = {0};
    tern_store *store = board_open(b, &err);
    tern_group_opts opts = tern_group_defaults();
    opts.store = store;
    opts.rank = rank;
    opts.world = boot->world;
    tern__bootstrap_read(&own, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !own.store && !own.file && !strcmp(own.addr, "127.0.0.1") && own.port > 0);
    RANK_CHECK(rank, (own.listen_fd >= 0) == (rank == 0));
    RANK_CHECK(rank, memcmp(own.secret, zero, sizeof(zero)));
    char key[32];
    size_t bytes;
    snprintf(key, sizeof(key), "secret/%d", rank);
    tern_store_set(store, key, own.secret, sizeof(own.secret), &err);
    const void *first = tern_store_get(store, "secret/0", &bytes, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, bytes == sizeof(own.secret) && !memcmp(first, own.secret, bytes));
    tern_store_close(store);
    return 0;
}

static void a_secret_comes_with_the_word(void **state)
{
    (void)state;
    board b = board_new();
    assert_ranks_ok(ranks_run(3, compare, &b));
    board_close(&b);
}

/* ---- errors ---- */

static int read_alone(tern_group_opts *opts, double timeout_s, tern_error *err)
{
    tern__bootstrap boot;
    opts->connect_timeout_s = timeout_s;
    return tern__bootstrap_read(&boot, opts, err);
}

static tern_group_opts opts_of(tern_store *store, int rank, int world)
{
    tern_group_opts opts = tern_group_defaults();
    opts.store = store;
    opts.rank = rank;
    opts.world = world;
    return opts;
}

static void two_processes_of_one_rank_are_both_named(void **state)
{
    (void)state;
    static const char *const key = "tern/none/0/rank/1";
    tern_error err = {0};
    char other[64], own[64];
    board b = board_new();
    b.timeout_s = 0.5;
    b.rank_of[1] = 1;
    b.code_of[1] = TERN_E_TIMEOUT;
    b.says[1] = "1 of 2 ranks joined; missing: rank 0";
    tern__bootstrap two = ranks_boot(2);
    ranks r = {.world = 1, .pids = {ranks_fork(&two, 1, meet, &b)}};
    snprintf(other, sizeof(other), "pid %d) and by rank 1 (", (int)r.pids[0]);
    snprintf(own, sizeof(own), "pid %d);", (int)getpid());
    close(two.listen_fd);
    assert_int_equal(tern_store_wait(b.store, &key, 1, 10, &err), TERN_OK);
    tern_group_opts opts = opts_of(b.store, 1, 2);
    assert_int_equal(read_alone(&opts, 5, &err), TERN_E_ENV);
    assert_non_null(strstr(err.text, "rank 1 is taken twice: by rank 1 ("));
    if (!strstr(err.text, other) || !strstr(err.text, own)) fail_msg("%s", err.text);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_close(&b);
}

static void what_is_no_rank_is_said(void **state)
{
    (void)state;
    tern_error err = {0};
    board b = board_new();
    tern_group_opts zero = opts_of(b.store, 0, 2), one = opts_of(b.store, 1, 2);
    tern_store_set(b.store, "tern/none/0/rank/1", "nonsense", 8, &err);
    assert_int_equal(read_alone(&zero, 5, &err), TERN_E_PEER);
    assert_non_null(strstr(err.text, "rank 1 published a malformed info of 8 bytes, expected "));
    err = (tern_error){0};
    tern_store_set(b.store, "tern/none/0/claim/1", "1", 1, &err);
    assert_int_equal(read_alone(&one, 5, &err), TERN_E_ENV);
    assert_non_null(strstr(
        err.text, "rank 1 is taken twice: by something that is not one of tern's ranks and by rank 1 ("));
    board_close(&b);
}

static void ranks_that_do_not_come_are_named(void **state)
{
    (void)state;
    board b = board_new();
    b.timeout_s = 1.5; /* rank 2 comes sooner than this */
    b.rank_of[1] = 2;
    b.code_of[0] = TERN_E_TIMEOUT;
    b.code_of[1] = ANY_ERROR; /* rank 2's timeout ends at the same time as rank 0's, whose error it may get */
    b.says[0] = b.says[1] = "2 of 4 ranks joined; missing: ranks 1, 3";
    ranks r = {.world = 2};
    tern__bootstrap four = ranks_boot(4);
    for (int rank = 0; rank < 2; rank++) r.pids[rank] = ranks_fork(&four, rank, meet, &b);
    close(four.listen_fd);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_close(&b);
}

static void a_rank_0_that_says_nothing_is_named(void **state)
{
    (void)state;
    tern_error err = {0};
    board b = board_new();
    tern_group_opts opts = opts_of(b.store, 1, 2);
    tern_store_set(b.store, "tern/none/0/rank/0", "me", 2, &err);
    assert_int_equal(read_alone(&opts, 0.1, &err), TERN_E_TIMEOUT);
    assert_string_equal(err.text, "rank 0 did not publish its address in time");
    board_close(&b);
}

/* The hosts' ids differ, but they meet on the loopback. */
static int be_in_the_attic(int rank, const tern__bootstrap *boot, void *arg)
{
    setenv("TERN_HOST_ID", rank ? "attic" : "cellar", 1);
    return compare(rank, boot, arg);
}

static void hosts_of_one_machine_meet_inside_of_it(void **state)
{
    (void)state;
    board b = board_new();
    assert_ranks_ok(ranks_run(2, be_in_the_attic, &b));
    board_close(&b);
}

static void check_word(board *b, const void *word, size_t bytes, int code, const char *text)
{
    tern_error err = {0};
    tern_group_opts opts = opts_of(b->store, 1, 2);
    tern_store_set(b->store, "tern/none/0/word", word, bytes, &err);
    assert_ok(err);
    int status = read_alone(&opts, 1, &err);
    if (status != code || !strstr(err.text, text)) fail_msg("wanted \"%s\", got \"%s\"", text, err.text);
    err = (tern_error){0};
    assert_int_equal(tern_store_delete(b->store, "tern/none/0/claim/1", &err), 1);
}

/* The layout is that of comm/bootstrap/meet.c: magic, port, address, secret, failure. */
static void a_malformed_word_is_refused(void **state)
{
    (void)state;
    board b = board_new();
    struct {
        char magic[8];
        int32_t port;
        char addr[64];
        uint8_t secret[TERN__SECRET_BYTES];
        char failure[TERN_ERROR_TEXT];
    } word = {"ternwor", 1, "h", {0}, ""}, good;
    word.magic[7] = 'd';
    good = word;
    check_word(&b, "", 0, TERN_E_PEER, "malformed invitation of 0 bytes");
    check_word(&b, &word, sizeof(word) - 1, TERN_E_PEER, "malformed invitation");
    word.magic[0] = 'T';
    check_word(&b, &word, sizeof(word), TERN_E_PEER, "malformed invitation");
    word = good;
    memset(word.addr, 'h', sizeof(word.addr));
    check_word(&b, &word, sizeof(word), TERN_E_PEER, "malformed invitation");
    word = good;
    memset(word.failure, 'f', sizeof(word.failure));
    check_word(&b, &word, sizeof(word), TERN_E_PEER, "malformed invitation");
    for (int i = 0; i < 3; i++) {
        word = good;
        word.port = (int[]){0, -1, 65536}[i];
        check_word(&b, &word, sizeof(word), TERN_E_PEER, "malformed invitation");
    }
    word = good;
    snprintf(word.failure, sizeof(word.failure), "no way");
    check_word(&b, &word, sizeof(word), TERN_E_PEER,
               "rank 0: no way; or an earlier job that failed has left its keys in the store at 127.0.0.1");
    check_word(&b, &good, sizeof(good), TERN_E_PEER, "an earlier job has left its keys in the store at 127.");
    board_close(&b);
}

static void a_store_excludes_an_init_method_and_needs_rank_and_world(void **state)
{
    (void)state;
    static const struct {
        int rank, world;
        const char *method, *text;
    } rows[] = {{0, 2, "env://", "init_method \"env://\" and a store are both given"},
                {-1, 2, NULL, "got rank -1 of 2"},
                {0, -1, NULL, "got rank 0 of -1"},
                {2, 2, NULL, "got rank 2 of 2"}};
    board b = board_new();
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        tern_error err = {0};
        tern_group_opts opts = opts_of(b.store, rows[i].rank, rows[i].world);
        opts.init_method = rows[i].method;
        assert_int_equal(read_alone(&opts, 1, &err), TERN_E_INVALID);
        if (!strstr(err.text, rows[i].text)) fail_msg("%s", err.text);
    }
    board_close(&b);
}

/* The environment names an agent: one that is gone, or another one. */
static void an_agent_that_is_not_there_is_said_soon(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__bootstrap boot;
    board b = board_new();
    board_close(&b);
    be_under_an_agent(&b, "0");
    tern_group_opts opts = opts_of(NULL, 0, 2);
    assert_int_equal(read_alone(&opts, 0.3, &err), TERN_E_TIMEOUT);
    assert_non_null(
        strstr(err.text,
               "TORCHELASTIC_USE_AGENT_STORE=True, but torchrun's agent serves no store at 127.0.0.1 port "));
    for (int i = 2; i < 4; i++) {
        char method[64];
        snprintf(method, sizeof(method), "tcp://127.0.0.%d:%d", i, b.port);
        opts.init_method = method;
        assert_int_equal(tern__bootstrap_read(&boot, &opts, NULL), TERN_OK);
        assert_int_equal(boot.port, b.port);
        assert_false(boot.by_agent);
    }
}

static void check_file(const char *path, int code, const char *text)
{
    char method[96];
    tern_error err = {0};
    tern_group_opts opts = opts_of(NULL, 0, 2);
    snprintf(method, sizeof(method), "file://%s", path);
    opts.init_method = method;
    int status = read_alone(&opts, 0.3, &err);
    if (status != code || !strstr(err.text, path) || !strstr(err.text, text))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", path, text, tern_status_name(status), err.text);
}

/* With a link another user could choose which file this user creates, or writes to. */
static void a_symbolic_link_is_not_followed(const char *path)
{
    char target[80];
    snprintf(target, sizeof(target), "%s-target", path);
    assert_return_code(symlink(target, path), errno);
    check_file(path, TERN_E_IO, "it is a symbolic link");
    assert_int_equal(access(target, F_OK), -1);
    int fd = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    close(fd);
    check_file(path, TERN_E_IO, "it is a symbolic link");
    unlink(target);
    unlink(path);
}

static void a_file_that_cannot_be_used_is_named(void **state)
{
    (void)state;
    char path[64], text[6000] = "file:///";
    tern_error err = {0};
    board b = board_new();
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    check_file("/no/such/folder/meet", TERN_E_IO, "No such file or directory");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "\1\0\0\0", 4), 4);
    close(fd);
    check_file(path, TERN_E_FORMAT, "");
    for (size_t i = 0; i < 6; i++) {
        assert_return_code(chmod(path, 0600 | 1 << i), errno);
        check_file(path, TERN_E_IO, "other users may open it");
    }
    assert_return_code(chmod(path, 0600), errno);
    if (!geteuid()) {
        assert_return_code(chown(path, 65534, 65534), errno);
        check_file(path, TERN_E_IO, "belongs to another user");
    }
    unlink(path);
    assert_return_code(mkfifo(path, 0600), errno);
    check_file(path, TERN_E_IO, "is a pipe, expected a regular file");
    unlink(path);
    a_symbolic_link_is_not_followed(path);
    memset(text + 8, 'x', 5000);
    tern_group_opts opts = opts_of(NULL, 0, 2);
    opts.init_method = text;
    assert_int_equal(read_alone(&opts, 0.3, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "init_method's path has 5001 characters, at most 4095 fit");
    board_close(&b);
}

/* Opens a group of `world` ranks in a file from a process of its own, and returns the process; with
 * timeout_s, waits for its error. */
static pid_t meet_in_a_file(const char *path, int rank, int world, double timeout_s, const char *text)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    char method[96];
    tern_error err = {0};
    tern_group_opts opts = opts_of(NULL, rank, world);
    snprintf(method, sizeof(method), "file://%s", path);
    opts.init_method = method;
    read_alone(&opts, timeout_s, &err);
    if (strstr(err.text, text)) _exit(0);
    fprintf(stderr, "rank %d: wanted \"%s\", got \"%s\"\n", rank, text, err.text);
    _exit(1);
}

static void await_exit(pid_t pid)
{
    int status;
    assert_int_equal(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)), pid);
    assert_int_equal(status, 0);
}

static bool await_file(const char *path, struct stat *info, off_t bytes)
{
    int64_t deadline = tern__deadline(10);
    while ((stat(path, info) || info->st_size < bytes) && tern__now_ns() < deadline) usleep(1000);
    return info->st_size >= bytes;
}

/* Whoever creates it, also if it was removed since the last look at it. The last rank of a meeting that fails
 * removes it. */
static void the_file_is_for_its_users_eyes_only(void **state)
{
    (void)state;
    char path[64];
    struct stat info = {0};
    mode_t mask = umask(0);
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    unlink(path);
    pid_t pid = meet_in_a_file(path, 0, 2, 0.5, "1 of 2 ranks joined; missing: rank 1");
    assert_true(await_file(path, &info, 200));
    umask(mask);
    assert_int_equal(info.st_mode & 0777, 0600);
    await_exit(pid);
    assert_int_equal(access(path, F_OK), -1);
}

/* Only the last rank that is there removes it: here rank 1 still waits, and gets rank 0's error. */
static void a_failed_meeting_leaves_no_file(void **state)
{
    (void)state;
    char path[64];
    struct stat info = {0};
    static const char missing[] = "2 of 3 ranks joined; missing: rank 2";
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    pid_t one = meet_in_a_file(path, 1, 3, 20, missing);
    assert_true(await_file(path, &info, 200));
    await_exit(meet_in_a_file(path, 0, 3, 0.3, missing));
    await_exit(one);
    assert_int_equal(access(path, F_OK), -1);
}

/* Killed ranks leave their keys behind. The next job's ranks name the dead one and the file at once, whether
 * they have a namesake in it or not. */
static void a_file_of_a_killed_job_is_named(void **state)
{
    (void)state;
    char path[64], text[200];
    struct stat info = {0};
    int status;
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    for (int dead = 0; dead < 2; dead++) {
        pid_t pid = meet_in_a_file(path, dead, 3, 20, "");
        assert_true(await_file(path, &info, 600)); /* its info is in it */
        kill(pid, SIGKILL);
        assert_int_equal(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)), pid);
        snprintf(text, sizeof(text),
                 "pid %d) is gone and has left its keys in the store in \"%s\": if it belongs to an earlier "
                 "job, remove this file",
                 (int)pid, path);
        int64_t start = tern__now_ns();
        pid_t two = meet_in_a_file(path, 2, 3, 20, text);
        pid_t other = meet_in_a_file(path, !dead, 3, 20, text);
        await_exit(meet_in_a_file(path, dead, 3, 20, text));
        await_exit(two);
        await_exit(other);
        assert_true(tern__now_ns() - start < INT64_C(10000000000));
        unlink(path);
    }
}

/* A world set by mistake, of the largest size: asking for each rank in turn must not extend the timeout. It
 * would take a quarter of an hour with a millisecond each, and the tables of so many ranks take a second. */
static void a_million_ranks_that_do_not_come(void **state)
{
    (void)state;
    char path[64], method[96];
    tern_error err = {0};
    tern_group_opts opts = opts_of(NULL, 0, TERN__WORLD_MAX);
    snprintf(path, sizeof(path), "/tmp/tern-meet-%d", (int)getpid());
    snprintf(method, sizeof(method), "file://%s", path);
    opts.init_method = method;
    int64_t start = tern__now_ns();
    assert_int_equal(read_alone(&opts, 0.1, &err), TERN_E_TIMEOUT);
    assert_true(tern__now_ns() - start < 3 * RANKS_SOON_S * INT64_C(1000000000));
    assert_non_null(strstr(err.text, "1 of 1048576 ranks joined; missing: ranks 1, 2, 3, 4, "));
    assert_string_equal(err.text + strlen(err.text) - strlen(", .."), ", ..");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_in_a_store_of_the_caller),
        cmocka_unit_test(ranks_meet_in_a_store_of_functions),
        cmocka_unit_test(local_numbers_may_be_given_or_counted),
        cmocka_unit_test(ranks_meet_in_a_file),
        cmocka_unit_test(closed_descriptors_are_held),
        cmocka_unit_test(ranks_meet_in_the_store_of_an_agent),
        cmocka_unit_test(an_attempt_does_not_read_what_the_last_one_left),
        cmocka_unit_test(a_secret_comes_with_the_word),
        cmocka_unit_test(two_processes_of_one_rank_are_both_named),
        cmocka_unit_test(what_is_no_rank_is_said),
        cmocka_unit_test(ranks_that_do_not_come_are_named),
        cmocka_unit_test(the_first_rank_that_waits_warns_of_those_who_have_not_come),
        cmocka_unit_test(a_rank_0_that_says_nothing_is_named),
        cmocka_unit_test(hosts_of_one_machine_meet_inside_of_it),
        cmocka_unit_test(a_malformed_word_is_refused),
        cmocka_unit_test(a_store_excludes_an_init_method_and_needs_rank_and_world),
        cmocka_unit_test(an_agent_that_is_not_there_is_said_soon),
        cmocka_unit_test(a_file_that_cannot_be_used_is_named),
        cmocka_unit_test(the_file_is_for_its_users_eyes_only),
        cmocka_unit_test(a_failed_meeting_leaves_no_file),
        cmocka_unit_test(a_file_of_a_killed_job_is_named),
        cmocka_unit_test(a_million_ranks_that_do_not_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
