/* test_leaving.c - ranks on hosts of a real network, one of which has a slow line. Those that have done their
 * part close their groups, while others still wait for what comes over that line. Then the line drops large
 * packets. */
#include "comm/board.h"
#include "comm/group_fixture.h"
#include "comm/network.h"
#include "comm/sys.h"

#include <tern/collectives.h>

#include <stdatomic.h>
#include <sys/mman.h>

enum { WORLD = 3, COUNT = 700000 };

static network net;

typedef void call_fn(tern_group *group, float *in, float *out, tern_error *err);

static void broadcast(tern_group *group, float *in, float *out, tern_error *err)
{
    if (tern_group_rank(group) == 0) memcpy(out, in, COUNT * sizeof(float));
    tern_broadcast(group, out, COUNT, TERN_F32, 0, err);
}

static void reduce(tern_group *group, float *in, float *out, tern_error *err)
{
    memcpy(out, in, COUNT * sizeof(float));
    tern_reduce(group, out, COUNT, TERN_F32, TERN_MAX, 0, err);
}

static int leave_body(int rank, const tern__bootstrap *boot, void *arg)
{
    call_fn *const *call = arg;
    fixture f;
    RANK_CHECK(rank, network_enter(&net, rank));
    if (fixture_open(&f, rank, boot, COUNT * sizeof(float))) return 1;
    float *in = (float *)f.plain, *out = (float *)f.expected;
    for (int i = 0; i < COUNT; i++) in[i] = (float)i;
    (*call)(f.group, in, out, &f.err);
    RANK_CHECK_OK(rank, f.err);
    if (rank == 0 || *call == broadcast) RANK_CHECK(rank, !memcmp(in, out, COUNT * sizeof(float)));
    return fixture_close(&f);
}

/* At 8 megabits a second rank 2's 2.8 MB take almost three seconds longer than those of rank 1. */
static void who_has_done_its_part_may_leave(void **state)
{
    (void)state;
    static call_fn *const calls[] = {broadcast, reduce};
    for (size_t i = 0; i < TERN__COUNT(calls); i++) {
        call_fn *call = calls[i];
        ranks r = network_start(&net, WORLD, leave_body, &call);
        ranks_wait(&r);
        assert_ranks_ok(r);
    }
}

/* ---- a line that drops large packets ---- */

typedef struct hole {
    atomic_int ready, go;
} hole;

enum { HOST_TIMEOUT_S = 2 };

/* gloo gives up after 1.25 times that time, and later on a busy machine. */
static bool is_told(const char *text)
{
    double seconds = 0;
    const char *of = strstr(text, "10.99.2.2 has acknowledged no packet for ");
    if (!of || sscanf(of, "10.99.2.2 has acknowledged no packet for %lf s", &seconds) != 1) return false;
    return seconds >= 1.25 * HOST_TIMEOUT_S && strstr(text, "does the network drop large packets?");
}

/* Small packets still pass, so the control plane sees that the hosts live. */
static int lose_large_packets(int rank, const tern__bootstrap *boot, void *arg)
{
    hole *h = *(hole **)arg;
    fixture f = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.connect_timeout_s = 20;
    opts.host_timeout_s = HOST_TIMEOUT_S;
    RANK_CHECK(rank, network_enter(&net, rank));
    f.group = tern__group_open_boot(boot, &opts, &f.err);
    if (fixture_fill(&f, rank, COUNT * sizeof(float))) return 1;
    memset(f.plain, 0, COUNT * sizeof(float));
    tern_all_reduce(f.group, f.plain, COUNT, TERN_F32, TERN_SUM, &f.err);
    RANK_CHECK_OK(rank, f.err);
    atomic_fetch_add(&h->ready, 1);
    while (!atomic_load(&h->go)) usleep(1000);
    int64_t start = tern__now_ns();
    tern_all_reduce(f.group, f.plain, COUNT, TERN_F32, TERN_SUM, &f.err);
    bool is_said = f.err.code == TERN_E_PEER && is_told(f.err.text);
    if (!is_said) fprintf(stderr, "rank %d: %s\n", rank, f.err.text);
    RANK_CHECK(rank, is_said);
    RANK_CHECK(rank, tern__now_ns() - start < RANKS_SOON_S * INT64_C(1000000000));
    return fixture_close(&f);
}

static void lost_large_packets_are_noticed(void **state)
{
    (void)state;
    hole *h = share_memory(sizeof(*h));
    ranks r = network_start(&net, WORLD, lose_large_packets, &h);
    assert_true(await_count(&h->ready, WORLD));
    assert_true(network_run(&net, 2, "ip link set eth0 mtu 600"));
    atomic_store(&h->go, 1);
    ranks_wait(&r);
    assert_true(network_run(&net, 2, "ip link set eth0 mtu 1500"));
    assert_ranks_ok(r);
    munmap(h, sizeof(*h));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_has_done_its_part_may_leave),
                                       cmocka_unit_test(lost_large_packets_are_noticed)};
    const char slow[] = "tc qdisc add dev eth2 root tbf rate 8mbit burst 32k latency 400ms",
               also[] = "tc qdisc add dev eth0 root tbf rate 8mbit burst 32k latency 400ms";
#ifdef __SANITIZE_THREAD__
    return skip_program("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (!has_part("gloo")) return skip_program("this build has no gloo");
    if (!board_plugin("tern_gloo.so")) return 1;
    const char *missing = network_open(&net);
    if (missing) return skip_program(missing);
    if (!network_run(&net, 0, slow) || !network_run(&net, 2, also))
        return skip_program("no namespaces with a slow line here: tc cannot make one");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
