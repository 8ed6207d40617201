/* test_meet.c - meetings that fail, and strangers that try to join one. Every rank returns soon, with an
 * error that names the rank that is missing, duplicate or incompatible. */
#include "comm/ranks.h"

#include "comm/meet/control/inner.h"
#include "comm/move/backend.h"
#include "comm/store/hello.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

typedef struct outcome {
    int code, pid;
    double seconds;
    char text[TERN_ERROR_TEXT];
} outcome;

/* Shared by the ranks and the parent. Indexed by process, not by rank, since two may claim the same rank. */
typedef struct board {
    double timeout_s;
    int mode;
    atomic_int places, published, done;
    outcome outcomes[RANKS_MAX];
} board;

static board *board_new(double timeout_s)
{
    board *b = share_memory(sizeof(*b));
    b->timeout_s = timeout_s;
    return b;
}

static void board_free(board *b)
{
    assert_return_code(munmap(b, sizeof(*b)), errno);
}

/* Every second rank is on another host. */
static bool apart;

static int together(void **state)
{
    (void)state;
    apart = false;
    return 0;
}

static int on_two_hosts(void **state)
{
    (void)state;
    apart = true;
    return 0;
}

static tern__bootstrap host_of(const tern__bootstrap *boot)
{
    tern__bootstrap own = *boot;
    if (apart) own.host_id = boot->rank % 2 ? "attic" : "cellar";
    return own;
}

/* Meets and records the result. Rank 0 serves the store until all are done. */
static int meet(const tern__bootstrap *boot, board *b, outcome *o, int all)
{
    tern_error err = {0};
    const tern__bootstrap own = host_of(boot);
    int64_t start = tern__now_ns();
    o->pid = getpid();
    tern_store *store = tern__store_open(boot, b->timeout_s, &err);
    tern__control *control = tern__control_open(&own, store, b->timeout_s, 15, &err);
    o->seconds = (double)(tern__now_ns() - start) * 1e-9;
    o->code = err.code;
    snprintf(o->text, sizeof(o->text), "%s", err.text);
    RANK_CHECK(boot->rank, (control == NULL) == (err.code != TERN_OK));
    atomic_fetch_add(&b->done, 1);
    RANK_CHECK(boot->rank, await_count(&b->done, all));
    tern__control_close(control);
    tern_store_close(store);
    return 0;
}

static bool says(const outcome *o, const char *part)
{
    if (strstr(o->text, part)) return true;
    print_message("\"%s\" does not say \"%s\"\n", o->text, part);
    return false;
}

/* ---- missing ranks ---- */

/* Bit r of mode: rank r does not join. */
static int meet_with_gaps(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    if (b->mode >> rank & 1) return 0;
    return meet(boot, b, &b->outcomes[rank], boot->world - __builtin_popcount((unsigned)b->mode));
}

static bool names_missing(int world, int missing, const char *text, double timeout_s)
{
    board *b = board_new(timeout_s);
    bool all_say = true;
    b->mode = missing;
    assert_ranks_ok(ranks_run(world, meet_with_gaps, b));
    for (int rank = 0; rank < world; rank++) {
        if (missing >> rank & 1) continue;
        assert_int_equal(b->outcomes[rank].code, TERN_E_TIMEOUT);
        assert_true(b->outcomes[rank].seconds >= 0.99 * timeout_s);
        assert_true(b->outcomes[rank].seconds < timeout_s + RANKS_SOON_S);
        all_say &= says(&b->outcomes[rank], text);
    }
    board_free(b);
    return all_say;
}

static void missing_ranks_are_named_at_the_deadline(void **state)
{
    (void)state;
    const struct {
        int world, missing;
        const char *text;
    } rows[] = {{4, 1 << 2, "3 of 4 ranks joined; missing: rank 2"},
                {4, 1 << 1 | 1 << 3, "2 of 4 ranks joined; missing: ranks 1, 3"},
                {2, 1 << 1, "1 of 2 ranks joined; missing: rank 1"}};
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        double timeout_s = 0.3; /* on a busy machine others may be late, too */
        while (!names_missing(rows[i].world, rows[i].missing, rows[i].text, timeout_s)) {
            timeout_s *= 3;
            assert_true(timeout_s < 10);
        }
    }
}

/* Rank 1 has no time left to wait for rank 0's info, which is there. */
static int meet_without_time(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern__rank_info info;
    if (rank == 0) return meet(boot, b, &b->outcomes[0], 2);
    tern_store *store = tern__store_open(boot, 10, &err);
    tern__rank_info_get(&info, "control/", 0, store, 10, &err);
    RANK_CHECK_OK(rank, err);
    tern__control *control = tern__control_open(boot, store, 1e-9, 15, &err);
    snprintf(b->outcomes[1].text, sizeof(err.text), "%s", err.text);
    tern__control_close(control);
    tern_store_close(store);
    atomic_fetch_add(&b->done, 1);
    return 0;
}

/* If the answer still comes first, there is no error. */
static void nobody_is_missing_where_all_have_come(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        board *b = board_new(10);
        assert_ranks_ok(ranks_run(2, meet_without_time, b));
        if (strstr(b->outcomes[1].text, "missing")) fail_msg("\"%s\"", b->outcomes[1].text);
        board_free(b);
    }
}

/* ---- a lost answer ---- */

static bool loses_claim;    /* the connection breaks when the store has answered this rank's claim */
static int claimed_at = -1; /* the descriptor of that connection                                   */

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    if (loses_claim && memmem(data, bytes, "join/", 5)) claimed_at = fd;
    return sendto(fd, data, bytes, flags, NULL, 0);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    if (fd != claimed_at) return recvfrom(fd, data, bytes, flags, NULL, NULL);
    loses_claim = false;
    claimed_at = -1;
    errno = ECONNRESET;
    return -1;
}

static int meet_over_a_bad_line(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    loses_claim = rank == 1;
    int status = meet(boot, b, &b->outcomes[rank], boot->world);
    RANK_CHECK(rank, !loses_claim);
    return status;
}

static void a_rank_whose_claim_got_no_answer_claims_again(void **state)
{
    (void)state;
    board *b = board_new(10);
    assert_ranks_ok(ranks_run(3, meet_over_a_bad_line, b));
    for (int rank = 0; rank < 3; rank++)
        if (b->outcomes[rank].code) fail_msg("\"%s\"", b->outcomes[rank].text);
    board_free(b);
}

/* ---- duplicate ranks ---- */

static int meet_somewhere(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)rank;
    board *b = arg;
    return meet(boot, b, &b->outcomes[atomic_fetch_add(&b->places, 1)], boot->world);
}

static void two_processes_with_one_rank_are_both_named(void **state)
{
    (void)state;
    board *b = board_new(10);
    ranks r = {.world = 3};
    tern__bootstrap zero = ranks_boot(3);
    static const int claimed[] = {0, 1, 1}; /* so rank 2 is missing */
    for (int i = 0; i < 3; i++) r.pids[i] = ranks_fork(&zero, claimed[i], meet_somewhere, b);
    char first[32], second[32];
    snprintf(first, sizeof(first), "pid %d)", (int)r.pids[1]);
    snprintf(second, sizeof(second), "pid %d)", (int)r.pids[2]);
    close(zero.listen_fd);
    ranks_wait(&r);
    assert_ranks_ok(r);
    int env = 0;
    for (int i = 0; i < 3; i++) {
        const outcome *o = &b->outcomes[i];
        env += o->code == TERN_E_ENV;
        assert_true(o->code == TERN_E_ENV || o->code == TERN_E_PEER);
        assert_true(says(o, "RANK=1 is taken twice") && says(o, first) && says(o, second));
        assert_true(o->seconds < RANKS_SOON_S); /* no rank waits the 10 s for rank 2 */
    }
    assert_int_equal(env, 1);
    board_free(b);
}

/* ---- incompatible ranks ---- */

enum { OTHER_WORLD, TOO_LONG_ID };

static int meet_as_a_misfit(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern__bootstrap own = *boot;
    char id[200];
    memset(id, 'i', sizeof(id) - 1);
    id[sizeof(id) - 1] = '\0';
    if (rank == 1 && b->mode == TOO_LONG_ID) setenv("TERN_HOST_ID", id, 1);
    if (rank == 1 && b->mode == OTHER_WORLD) own.world = 4;
    return meet(&own, b, &b->outcomes[rank], boot->world);
}

static void different_world_sizes_are_named(void **state)
{
    (void)state;
    board *b = board_new(10);
    b->mode = OTHER_WORLD;
    assert_ranks_ok(ranks_run(3, meet_as_a_misfit, b));
    for (int rank = 0; rank < 3; rank++) {
        const outcome *o = &b->outcomes[rank];
        assert_true(o->code == TERN_E_ENV || o->code == TERN_E_PEER); /* noticed, or told by a peer */
        assert_true(says(o, "WORLD_SIZE=") && says(o, "rank 1 ("));
        assert_true(o->seconds < RANKS_SOON_S);
    }
    board_free(b);
}

/* The rank fails without the others and stays alive; they get the reason. */
static void a_rank_that_fails_alone_is_named_by_all(void **state)
{
    (void)state;
    board *b = board_new(10);
    b->mode = TOO_LONG_ID;
    assert_ranks_ok(ranks_run(3, meet_as_a_misfit, b));
    assert_int_equal(b->outcomes[1].code, TERN_E_ENV);
    for (int rank = 0; rank < 3; rank += 2) {
        assert_int_equal(b->outcomes[rank].code, TERN_E_PEER);
        assert_true(says(&b->outcomes[rank], "rank 1 (") && says(&b->outcomes[rank], "failed: TERN_HOST_ID"));
        assert_true(b->outcomes[rank].seconds < RANKS_SOON_S);
    }
    board_free(b);
}

/* ---- no descriptors, no memory ---- */

/* Rank 0's store uses rank 0's descriptors for its clients. Waits until all are connected, before the
 * descriptors run out. */
static void await_clients(tern_store *store, int rank, int world)
{
    char key[32];
    for (int other = 0; other < world; other++) {
        snprintf(key, sizeof(key), "join/%d", other);
        while (other != rank && tern__store_has(store, key, NULL) == 0) usleep(1000);
    }
}

/* The rank `mode` has its store, and may open one more descriptor. */
static int meet_without_descriptors(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    if (rank != b->mode) return meet(boot, b, &b->outcomes[rank], boot->world);
    tern_error err = {0};
    const tern__bootstrap own = host_of(boot);
    tern_store *store = tern__store_open(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    await_clients(store, rank, boot->world);
    int top = dup(0);
    close(top);
    const struct rlimit limit = {(rlim_t)top + 2, (rlim_t)top + 2};
    RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &limit));
    RANK_CHECK(rank, !tern__control_open(&own, store, 10, 15, &err));
    b->outcomes[rank].code = err.code;
    snprintf(b->outcomes[rank].text, sizeof(err.text), "%s", err.text);
    atomic_fetch_add(&b->done, 1);
    RANK_CHECK(rank, await_count(&b->done, boot->world));
    tern_store_close(store);
    return 0;
}

static void a_rank_without_descriptors_says_so(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        board *b = board_new(10);
        b->mode = victim;
        assert_ranks_ok(ranks_run(3, meet_without_descriptors, b));
        assert_int_equal(b->outcomes[victim].code, TERN_E_SYSTEM);
        assert_true(says(&b->outcomes[victim], "Too many open files"));
        for (int rank = 0; rank < 3; rank++) {
            if (rank == victim) continue;
            char who[32];
            snprintf(who, sizeof(who), "rank %d (", victim);
            assert_int_equal(b->outcomes[rank].code, TERN_E_PEER);
            assert_true(says(&b->outcomes[rank], who) && says(&b->outcomes[rank], "Too many open files"));
            assert_true(b->outcomes[rank].seconds < RANKS_SOON_S);
        }
        board_free(b);
    }
}

/* Rank `places` of four may open `mode` more descriptors. It notices itself that they are too few. */
static int open_with_few_descriptors(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    if (rank != atomic_load(&b->places)) return 0;
    int top = dup(0);
    close(top);
    struct rlimit before;
    RANK_CHECK(rank, !getrlimit(RLIMIT_NOFILE, &before));
    const struct rlimit few = {(rlim_t)(top + b->mode), before.rlim_max};
    opts.connect_timeout_s = b->timeout_s;
    RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &few));
    int64_t start = tern__now_ns();
    RANK_CHECK(rank, !tern__group_open_boot(boot, &opts, &err));
    RANK_CHECK(rank, tern__now_ns() - start < RANKS_SOON_S * INT64_C(1000000000));
    RANK_CHECK(rank, err.code == TERN_E_SYSTEM && strstr(err.text, "ulimit -n"));
    RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &before));
    return 0;
}

static void too_few_descriptors_are_named_at_once(void **state)
{
    (void)state;
    board *b = board_new(RANKS_TIMEOUT_S);
    for (int rank = 0; rank < 2; rank++)
        for (int free = 0; free < (rank ? 8 : 15); free++) {
            b->mode = free;
            atomic_store(&b->places, rank);
            assert_ranks_ok(ranks_run(4, open_with_few_descriptors, b));
        }
    board_free(b);
}

static void *fail_one(size_t bytes, size_t align, void *ctx)
{
    if (atomic_fetch_sub((atomic_int *)ctx, 1) == 0) return NULL;
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void free_one(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

/* The rank `mode` fails in its `places`-th allocation. */
static int meet_without_memory(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    const tern_allocator failing = {fail_one, free_one, &b->places};
    if (rank == b->mode) tern__allocator_replace(&failing);
    return meet(boot, b, &b->outcomes[rank], 2);
}

static void out_of_memory_anywhere_is_an_error(void **state)
{
    (void)state;
    int named = 0;
    for (int victim = 0; victim < 2; victim++)
        for (int n = 0; n < (victim ? 6 : 9); n++) {
            board *b = board_new(0.3);
            b->mode = victim;
            atomic_store(&b->places, n);
            assert_ranks_ok(ranks_run(2, meet_without_memory, b));
            const outcome *o = &b->outcomes[victim];
            if (o->code == TERN_E_MEMORY) named += says(o, "out of memory");
            for (int rank = 0; rank < 2; rank++) assert_true(b->outcomes[rank].seconds < RANKS_SOON_S);
            board_free(b);
        }
    assert_true(named >=
                6 + 4); /* store, control, peers and two poll lists; rank 0's server, table and clients too */
}

/* ---- a death during the meeting ---- */

/* Rank 1 publishes its info and is killed. Rank 2 comes only after that. */
static int meet_around_a_death(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    if (rank == 2) RANK_CHECK(rank, await_count(&b->published, 2));
    if (rank != 1) return meet(boot, b, &b->outcomes[rank], 2);
    tern_error err = {0};
    tern_store *store = tern__store_open(boot, 10, &err);
    tern__rank_info info;
    tern__rank_info_make(&info, boot, &err);
    tern__rank_info_publish(&info, "control/", rank, store, &err);
    tern__store_has(store, "x", &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->published, 1);
    for (;;) pause();
}

static void a_death_during_the_meeting_ends_it(void **state)
{
    (void)state;
    board *b = board_new(10);
    ranks r = ranks_start(3, meet_around_a_death, b);
    assert_true(await_count(&b->published, 1));
    assert_return_code(kill(r.pids[1], SIGKILL), errno);
    siginfo_t info;
    assert_return_code(waitid(P_PID, (id_t)r.pids[1], &info, WEXITED | WNOWAIT), errno);
    int64_t killed = tern__now_ns();
    atomic_fetch_add(&b->published, 1);
    ranks_wait(&r);
    assert_true(tern__now_ns() - killed < RANKS_SOON_S * INT64_C(1000000000));
    for (int rank = 0; rank < 3; rank += 2) {
        assert_int_equal(r.status[rank], 0);
        assert_int_equal(b->outcomes[rank].code, TERN_E_PEER);
        assert_true(says(&b->outcomes[rank], "rank 1 (") && says(&b->outcomes[rank], "was lost"));
    }
    board_free(b);
}

/* ---- strangers at the control socket ---- */

static int call(const tern__rank_info *info)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path + 1, info->name, info->name_bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + info->name_bytes);
    return connect(fd, (struct sockaddr *)&addr, size) ? -1 : fd;
}

static bool is_shown_the_door(int fd, const void *packet, size_t bytes)
{
    char byte;
    if (send(fd, packet, bytes, MSG_NOSIGNAL) < 0) return errno == EPIPE;
    bool closed = tern__recv_all(fd, &byte, 1, tern__deadline(4)) == -ECONNRESET;
    close(fd);
    return closed;
}

/* Rank 1 tries wrong connections before it makes the right one. */
static int knock_and_meet(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    if (rank == 0) return meet(boot, b, &b->outcomes[0], 2);
    tern_error err = {0};
    tern__rank_info info;
    tern_store *store = tern__store_open(boot, 10, &err);
    tern__rank_info_make(&info, boot, &err);
    /* Rank 0 opens its port once every rank's info is there. */
    tern__rank_info_publish(&info, "control/", 1, store, &err);
    tern__rank_info_get(&info, "control/", 0, store, 10, &err);
    RANK_CHECK_OK(rank, err);
    int silent = call(&info);
    tern__hello good, bad[5];
    tern__hello_make(&good, TERN__PURPOSE_CONTROL, 1, 0, 2);
    for (int i = 0; i < 5; i++) bad[i] = good;
    bad[0].purpose = TERN__PURPOSE_STORE;
    bad[1].from = 0;
    bad[2].to = 1;
    bad[3].world = 3;
    bad[4].magic[0] = 'X';
    for (int i = 0; i < 5; i++) RANK_CHECK(rank, is_shown_the_door(call(&info), &bad[i], sizeof(bad[i])));
    RANK_CHECK(rank, is_shown_the_door(call(&info), "GET /", 5));
    char huge[4096] = "TernHi\r\n";
    RANK_CHECK(rank, is_shown_the_door(call(&info), huge, sizeof(huge)));
    tern__challenge challenge;
    int fd = call(&info);
    RANK_CHECK(rank, send(fd, &good, sizeof(good), 0) == sizeof(good));
    RANK_CHECK(rank, tern__recv_all(fd, &challenge, sizeof(challenge), tern__deadline(4)) == 0);
    RANK_CHECK(rank, is_shown_the_door(fd, challenge.mac, sizeof(challenge.mac)));
    tern_store_close(store);
    int status = meet(boot, b, &b->outcomes[1], 2);
    close(silent);
    return status;
}

static void strangers_at_the_control_socket_are_turned_away(void **state)
{
    (void)state;
    board *b = board_new(10);
    assert_ranks_ok(ranks_run(2, knock_and_meet, b));
    for (int rank = 0; rank < 2; rank++) assert_string_equal(b->outcomes[rank].text, "");
    board_free(b);
}

/* On the same machine, with the same secret, as another user. */
static int meet_as_another_user(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    if (rank == 1 && seteuid(65534)) return 1;
    int status = meet(boot, b, &b->outcomes[rank], 2);
    return seteuid(0) ? 1 : status;
}

static void another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) skip_test("needs root to change the user");
    board *b = board_new(1);
    assert_ranks_ok(ranks_run(2, meet_as_another_user, b));
    for (int rank = 0; rank < 2; rank++) assert_int_not_equal(b->outcomes[rank].code, TERN_OK);
    assert_true(says(&b->outcomes[1], "another user"));
    board_free(b);
}

/* Rank 1 can reach rank 0's store, but has another secret for the control plane. */
static int meet_with_another_secret(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern__bootstrap other = *boot;
    if (rank == 0) return meet(boot, b, &b->outcomes[0], 2);
    tern_store *store = tern__store_open(boot, 5, &err);
    other.secret[0] ^= 1;
    RANK_CHECK(rank, !tern__control_open(&other, store, 5, 15, &err));
    RANK_CHECK(rank, strstr(err.text, "does not know this job's secret"));
    tern_store_close(store);
    atomic_fetch_add(&b->done, 1);
    return 0;
}

static void another_secret_is_refused(void **state)
{
    (void)state;
    board *b = board_new(5);
    assert_ranks_ok(ranks_run(2, meet_with_another_secret, b));
    assert_int_equal(b->outcomes[0].code, TERN_E_PEER);
    board_free(b);
}

/* Runs a test with all ranks on one host, and on two. */
#define ANYWHERE(test) cmocka_unit_test_setup(test, together), cmocka_unit_test_setup(test, on_two_hosts)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ANYWHERE(missing_ranks_are_named_at_the_deadline),
        cmocka_unit_test_setup(nobody_is_missing_where_all_have_come, together),
        ANYWHERE(a_rank_whose_claim_got_no_answer_claims_again),
        ANYWHERE(two_processes_with_one_rank_are_both_named),
        ANYWHERE(different_world_sizes_are_named),
        cmocka_unit_test_setup(a_rank_that_fails_alone_is_named_by_all, together),
        ANYWHERE(a_rank_without_descriptors_says_so),
        cmocka_unit_test_setup(too_few_descriptors_are_named_at_once, together),
        ANYWHERE(out_of_memory_anywhere_is_an_error),
        cmocka_unit_test_setup(a_death_during_the_meeting_ends_it, together),
        cmocka_unit_test_setup(strangers_at_the_control_socket_are_turned_away, together),
        cmocka_unit_test_setup(another_user_is_refused, together),
        cmocka_unit_test_setup(another_secret_is_refused, together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
