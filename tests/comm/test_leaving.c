/* test_leaving.c - ranks on hosts of a real network, one of which has a slow line. Those that have done their
 * part close their groups, while others still wait for what comes over that line. */
#include "comm/board.h"
#include "comm/group_fixture.h"
#include "comm/network.h"

#include <tern/collectives.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_has_done_its_part_may_leave)};
    const char slow[] = "tc qdisc add dev eth2 root tbf rate 8mbit burst 32k latency 400ms",
               also[] = "tc qdisc add dev eth0 root tbf rate 8mbit burst 32k latency 400ms";
#ifdef __SANITIZE_THREAD__
    return puts("skipped: ThreadSanitizer sees nothing of what libgloo locks"), 77;
#endif
    if (!board_plugin("tern_gloo.so")) return puts("skipped: the gloo plug-in was not built"), 77;
    if (!network_open(&net) || !network_run(&net, 0, slow) || !network_run(&net, 2, also))
        return puts("skipped: network namespaces with a slow line need root, ip and tc"), 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
