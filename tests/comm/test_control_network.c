/* test_control_network.c - the control plane over real networks: ranks in network namespaces, unplugged
 * cables, hosts that drop packets. All times are measured from the event. */
#include "comm/control_fixture.h"
#include "comm/network.h"
#include "comm/store/hello.h"

#include <dlfcn.h>
#include <math.h>
#include <netdb.h>

static network net;

/* Ranks are assigned to the hosts in turn. */
static bool go_to_host(int rank)
{
    return network_enter(&net, rank % NETWORK_HOSTS);
}

static seat take_seat(int rank, const tern__bootstrap *boot, tern_error *err)
{
    seat none = {0};
    if (!go_to_host(rank)) tern__error_set(err, __func__, TERN_E_SYSTEM, "no such host");
    return err->code ? none : sit_down(boot, 20, err);
}

/* ---- meeting, leaving, aborting ---- */

static int meet_and_leave(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char address[64];
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern__control_hosts(s.control) == TERN__MIN(boot->world, NETWORK_HOSTS));
    for (int peer = 0; peer < boot->world; peer++)
        RANK_CHECK(rank, tern__control_host(s.control, peer) == peer % NETWORK_HOSTS);
    tern__control_address(s.control, address, sizeof(address));
    RANK_CHECK(rank, !strcmp(address, network_addresses[rank % NETWORK_HOSTS]));
    int64_t deadline = tern__deadline(10);
    bool leaves = rank == boot->world - 1;
    while (!leaves && !tern__control_has_left(s.control, boot->world - 1) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    RANK_CHECK(rank, leaves || tern__control_has_left(s.control, boot->world - 1));
    RANK_CHECK(rank, tern__control_is_healthy(s.control));
    if (!leaves) RANK_CHECK(rank, all_are_here(b, boot->world - 1));
    get_up(&s);
    return 0;
}

static void ranks_of_several_hosts_meet_and_leave(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        board *b = board_new();
        ranks r = network_start(&net, world, meet_and_leave, b);
        ranks_wait(&r);
        assert_ranks_ok(r);
        board_free(b);
    }
}

static int abort_over_hosts(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    if (rank == 1) tern__control_abort(s.control, TERN_E_IO, "disk full");
    if (await_failure(s.control, rank, b)) return 1;
    get_up(&s);
    return 0;
}

static void an_abort_carries_its_text_over_hosts(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 4, abort_over_hosts, b);
    char expected[64];
    snprintf(expected, sizeof(expected), "pid %d) failed: disk full", (int)r.pids[1]);
    ranks_wait(&r);
    assert_ranks_ok(r);
    for (int rank = 0; rank < 4; rank++)
        if (rank != 1) assert_non_null(strstr(b->reports[rank].text, expected));
    board_free(b);
}

/* ---- hellos that are lost ---- */

static int hellos_to_lose;

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    const tern__hello *hello = data;
    bool is_hello = bytes == sizeof(*hello) && hello->purpose == TERN__PURPOSE_CONTROL;
    if (is_hello && hellos_to_lose-- > 0) return (ssize_t)bytes;
    return sendto(fd, data, bytes, flags, NULL, 0);
}

static int lose_a_hello(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    hellos_to_lose = rank == 2;
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    get_up(&s);
    return 0;
}

/* On a line that loses packets a hello may come too late: its peer has dropped the stranger by then. */
static void a_rank_whose_hello_is_lost_comes_again(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 3, lose_a_hello, b);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
}

/* ---- deaths and lost hosts ---- */

static int wait_for_an_end(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    tern__control_wake_set(s.control, on_event, &b->reports[rank].seen_at);
    atomic_fetch_add(&b->ready, 1);
    int status = await_failure(s.control, rank, b);
    get_up(&s);
    return status;
}

static void a_killed_rank_of_another_host_is_named_within_a_second(void **state)
{
    (void)state;
    double slowest = 0,
           quickest = RANKS_SOON_S; /* in case the machine is busy, the fastest of several tries counts */
    for (int victim = 0; victim < 4; victim++) {
        board *b = board_new();
        char expected[128];
        ranks r = network_start(&net, 4, wait_for_an_end, b);
        assert_true(await_count(&b->ready, 4));
        snprintf(expected, sizeof(expected), "pid %d) was lost: killed or exited", (int)r.pids[victim]);
        int64_t start = tern__now_ns();
        assert_return_code(kill(r.pids[victim], SIGKILL), errno);
        ranks_wait(&r);
        for (int rank = 0; rank < 4; rank++) {
            if (rank == victim) continue;
            assert_int_equal(r.status[rank], 0);
            assert_non_null(strstr(b->reports[rank].text, expected));
            double seconds = (double)(b->reports[rank].seen_at - start) * 1e-9;
            slowest = TERN__MAX(slowest, seconds);
            quickest = TERN__MIN(quickest, seconds);
        }
        board_free(b);
    }
    assert_true(quickest < 1.0 && slowest < RANKS_SOON_S);
    print_message("slowest: %.1f ms after the kill\n", slowest * 1e3);
}

/* Rank 1's cable is pulled, and rank 2 is stopped: rank 0 says which is which. */
static int ask_over_hosts(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    char text[TERN_ERROR_TEXT] = "", who[2][128], expected[TERN_ERROR_TEXT];
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->ready, 1);
    RANK_CHECK(rank, await_count(&b->go, 1));
    if (rank == 0) {
        for (int peer = 1; peer <= 2; peer++) {
            tern__control_last_ask(s.control, peer);
            tern__control_describe(s.control, peer, who[peer - 1], sizeof(who[0]));
        }
        tern__control_others_text(s.control, "", 0.5, text, sizeof(text));
        snprintf(expected, sizeof(expected),
                 "; %s: its host does not answer; %s does not answer: is it stopped?", who[0], who[1]);
        if (strcmp(text, expected)) fprintf(stderr, "%s\n", text);
        RANK_CHECK(rank, !strcmp(text, expected));
    }
    atomic_fetch_add(&b->events, 1);
    RANK_CHECK(rank, rank == 0 || await_count(&b->go, 2));
    get_up(&s);
    return 0;
}

static void a_host_that_is_cut_off_is_not_called_stopped(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 3, ask_over_hosts, b);
    assert_true(await_count(&b->ready, 3));
    ranks_stop(&r, 2);
    assert_true(network_run(&net, 1, "ip link set eth0 down"));
    atomic_store(&b->go, 1);
    bool is_asked = await_count(&b->events, 2); /* ranks 0 and 1 */
    assert_true(network_run(&net, 1, "ip link set eth0 up; ip route add default via 10.99.1.1"));
    assert_return_code(kill(r.pids[2], SIGCONT), errno);
    atomic_fetch_add(&b->go, 1);
    ranks_wait(&r);
    assert_true(is_asked);
    assert_ranks_ok(r);
    board_free(b);
}

/* The interface has no neighbour with that address: packets from host 1 are dropped. */
static const char *const cut = "ip neigh replace 10.99.1.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent";
static const char *const mend = "ip neigh del 10.99.1.1 dev eth0";

/* Host 1 has only rank 1. It and the others lose each other. If it can still receive, it may learn first
 * that they have given it up. */
static void check_vanished(bool hears, const char *pull, const char *repair)
{
    board *b = board_new();
    host_timeout_s = 2;
    ranks r = network_start(&net, 3, wait_for_an_end, b);
    assert_true(await_count(&b->ready, 3));
    int64_t start = tern__now_ns();
    assert_true(network_run(&net, 1, pull));
    ranks_wait(&r);
    assert_true(network_run(&net, 1, repair));
    assert_ranks_ok(r);
    for (int rank = 0; rank < 3; rank++) {
        const report *seen = &b->reports[rank];
        double seconds = (double)(seen->seen_at - start) * 1e-9;
        print_message("%.1f s: %s\n", seconds, seen->text);
        assert_int_equal(seen->code, TERN_E_PEER);
        assert_true(strstr(seen->text, " got no answer from ") || (hears && rank == 1));
        assert_true(strstr(seen->text, " for 2 s") || (hears && rank == 1));
        assert_int_equal(strncmp(seen->text, "rank 1 (", 8) == 0, rank != 1);
        assert_true(seconds > 0.5 && seconds < 2 + RANKS_SOON_S);
    }
    board_free(b);
    host_timeout_s = 15;
}

static void a_cable_that_is_pulled_is_noticed_by_both_ends(void **state)
{
    (void)state;
    check_vanished(false, "ip link set eth0 down", "ip link set eth0 up; ip route add default via 10.99.1.1");
}

static void a_host_that_only_hears_is_noticed_by_both_ends(void **state)
{
    (void)state;
    check_vanished(true, cut, mend);
}

static int outlast_a_silence(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->ready, 1);
    RANK_CHECK(rank, await_count(&b->go, 1));
    RANK_CHECK(rank, tern__control_is_healthy(s.control));
    RANK_CHECK(rank, all_are_here(b, 2 * boot->world));
    get_up(&s);
    return 0;
}

/* The kernel of the stopped rank's host still acknowledges packets. */
static void a_stopped_rank_of_another_host_is_not_lost(void **state)
{
    (void)state;
    board *b = board_new();
    host_timeout_s = 1;
    ranks r = network_start(&net, 2, outlast_a_silence, b);
    assert_true(await_count(&b->ready, 2));
    ranks_stop(&r, 1);
    tern__poll(NULL, 0, tern__deadline(3.5 * host_timeout_s));
    assert_return_code(kill(r.pids[1], SIGCONT), errno);
    atomic_store(&b->go, 1);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
    host_timeout_s = 15;
}

/* The outage begins when the ranks have met and their last messages are acknowledged. Returns the longest
 * time that it may have taken. */
static double run_outage(ranks *r, board *b)
{
    *r = network_start(&net, 3, outlast_a_silence, b);
    assert_true(await_count(&b->ready, 3));
    tern__poll(NULL, 0, tern__deadline(0.3));
    int64_t start = tern__now_ns();
    assert_true(network_run(&net, 1, cut));
    tern__poll(NULL, 0, start + INT64_C(4000000000));
    assert_true(network_run(&net, 1, mend));
    double seconds = (double)(tern__now_ns() - start) * 1e-9;
    tern__poll(NULL, 0, tern__deadline(3));
    atomic_store(&b->go, 1);
    ranks_wait(r);
    return seconds;
}

/* A quarter of the time is left at its end. On a busy machine it may take longer, and then it does not count.
 */
static void a_short_outage_is_survived(void **state)
{
    (void)state;
    const int tries = 5;
    const double enough_s = 4.5;
    double seconds = INFINITY;
    host_timeout_s = 6;
    for (int i = 0; i < tries && seconds > enough_s; i++) {
        ranks r;
        board *b = board_new();
        seconds = run_outage(&r, b);
        if (seconds <= enough_s) assert_ranks_ok(r);
        board_free(b);
    }
    host_timeout_s = 15;
    if (seconds > enough_s) skip_test("the machine is too busy to end an outage in time");
}

/* ---- hosts that cannot reach each other ---- */

/* A rank that has met all others is told of the failure later. */
static int fail_to_meet(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    report *seen = &b->reports[rank];
    int64_t start = tern__now_ns();
    seat s = take_seat(rank, boot, &err);
    seen->code = err.code;
    snprintf(seen->text, sizeof(seen->text), "%s", err.text);
    int status = s.control ? await_failure(s.control, rank, b) : 0;
    seen->seen_at = tern__now_ns() - start;
    RANK_CHECK(rank, all_are_here(b, boot->world));
    get_up(&s);
    return status;
}

/* Hosts 1 and 2 reach host 0, but not each other. */
static void two_that_cannot_reach_each_other_are_named(void **state)
{
    (void)state;
    board *b = board_new();
    host_timeout_s = 1;
    assert_true(network_forward(&net, false));
    ranks r = network_start(&net, 3, fail_to_meet, b);
    ranks_wait(&r);
    assert_true(network_forward(&net, true));
    assert_ranks_ok(r);
    for (int rank = 0; rank < 3; rank++) {
        const report *seen = &b->reports[rank];
        assert_int_equal(seen->code, TERN_E_PEER);
        assert_non_null(strstr(seen->text, "no control connection to rank 1 ("));
        assert_non_null(strstr(seen->text, ": rank 2 ("));
        assert_non_null(strstr(seen->text, "cannot reach it at 10.99.1.2 port "));
        assert_true(seen->seen_at < RANKS_SOON_S * INT64_C(1000000000));
    }
    board_free(b);
    host_timeout_s = 15;
}

/* ---- the interface ---- */

static int meet_at_an_interface(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    char address[64];
    setenv("TERN_SOCKET_IFNAME", rank == 0 ? "eth2" : "eth0", 1);
    seat s = take_seat(rank, boot, &err);
    RANK_CHECK_OK(rank, err);
    tern__control_address(s.control, address, sizeof(address));
    RANK_CHECK(rank, !strcmp(address, rank == 0 ? "10.99.2.1" : network_addresses[1]));
    RANK_CHECK(rank, all_are_here(arg, 2));
    get_up(&s);
    return 0;
}

static void the_interface_can_be_chosen(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 2, meet_at_an_interface, b);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
}

static const char *node0; /* its address in this process */

/* In place of the C library's: knows the name node0, as if it stood in /etc/hosts. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
    typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    resolver *resolve = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    return resolve(host && node0 && !strcmp(host, "node0") ? node0 : host, port, hints, list);
}

/* No launcher has started them, and rank 0's host has the /etc/hosts of Debian's installer. */
static int meet_by_name(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    tern__bootstrap own = *boot;
    tern__close(&own.listen_fd);
    own.port = 29500;
    snprintf(own.addr, sizeof(own.addr), "node0");
    node0 = rank ? network_addresses[0] : "127.0.1.1";
    seat s = take_seat(rank, &own, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    get_up(&s);
    return 0;
}

static void a_name_that_is_rank_0s_loopback_to_itself(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 4, meet_by_name, b);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
}

static int meet_at_no_interface(int rank, const tern__bootstrap *boot, void *arg)
{
    if (rank == 1) setenv("TERN_SOCKET_IFNAME", "carrier-pigeon", 1);
    return fail_to_meet(rank, boot, arg);
}

static void an_interface_that_is_none_is_an_error_of_its_rank(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = network_start(&net, 2, meet_at_no_interface, b);
    ranks_wait(&r);
    assert_ranks_ok(r);
    assert_int_equal(b->reports[1].code, TERN_E_ENV);
    assert_int_equal(b->reports[0].code, TERN_E_PEER);
    for (int rank = 0; rank < 2; rank++)
        assert_non_null(
            strstr(b->reports[rank].text, "TERN_SOCKET_IFNAME=\"carrier-pigeon\" is not an interface"));
    board_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_several_hosts_meet_and_leave),
        cmocka_unit_test(a_rank_whose_hello_is_lost_comes_again),
        cmocka_unit_test(an_abort_carries_its_text_over_hosts),
        cmocka_unit_test(a_killed_rank_of_another_host_is_named_within_a_second),
        cmocka_unit_test(a_cable_that_is_pulled_is_noticed_by_both_ends),
        cmocka_unit_test(a_host_that_only_hears_is_noticed_by_both_ends),
        cmocka_unit_test(a_stopped_rank_of_another_host_is_not_lost),
        cmocka_unit_test(a_short_outage_is_survived),
        cmocka_unit_test(a_host_that_is_cut_off_is_not_called_stopped),
        cmocka_unit_test(two_that_cannot_reach_each_other_are_named),
        cmocka_unit_test(a_name_that_is_rank_0s_loopback_to_itself),
        cmocka_unit_test(the_interface_can_be_chosen),
        cmocka_unit_test(an_interface_that_is_none_is_an_error_of_its_rank),
    };
    const char *missing = network_open(&net);
    if (missing) return skip_program(missing);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
