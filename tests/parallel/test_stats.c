/* test_stats.c - tern_ddp_stats_get: counts compared with the model, and times with the clock around them. */
#include "parallel/net.h"
#include "printing.h"

#define LAYER_BYTES ((size_t)(NET_WIDTH + 1) * NET_WIDTH * sizeof(float))

static tern_ddp_stats stats_of(const net *n)
{
    tern_ddp_stats stats = {.size = sizeof(stats)};
    tern_error err = {0};
    if (tern_ddp_stats_get(n->ddp, &stats, &err)) tern_error_print(&err);
    return stats;
}

/* ---- counts ---- */

static int counts_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 1024, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_stats s = stats_of(&n);
    RANK_CHECK(rank, s.rank == rank && s.world == boot->world);
    RANK_CHECK(rank, s.parameters == 6 && s.parameter_bytes == 3 * LAYER_BYTES);
    RANK_CHECK(rank, s.first_bucket_bytes == 1024 && s.bucket_bytes == 1024 && s.broadcast_buffers);
    RANK_CHECK(rank, !s.has_rebuilt && s.iterations == 0 && s.ready == 0 && s.mean.forward == 0);
    RANK_CHECK(rank, s.initial_buckets == s.buckets && s.buckets == 3);
    for (int b = 0; b < 3; b++) {
        RANK_CHECK(rank, tern_ddp_initial_bucket_bytes(n.ddp, b) == tern_ddp_bucket_bytes(n.ddp, b));
        RANK_CHECK(rank, tern_ddp_initial_bucket_bytes(n.ddp, b) == LAYER_BYTES);
    }
    RANK_CHECK(rank, tern_ddp_initial_bucket_bytes(n.ddp, 3) == 0);
    RANK_CHECK(rank, tern_ddp_initial_bucket_bytes(n.ddp, -1) == 0);
    for (int step = 0; step < 3; step++) {
        tern_ddp_sync_set(n.ddp, step != 1);
        net_step(&n, tern_forward(&n.base, n.scope, net_input(&n)), &err);
        RANK_CHECK_OK(rank, err);
        s = stats_of(&n);
        RANK_CHECK(rank, s.iterations == (step < 2 ? 1u : 2u) && s.has_rebuilt && s.unused == 0);
    }
    net_close(&n);
    return 0;
}

static void counts_are_the_models(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, counts_body, NULL));
}

/* ---- ready order and unused parameters ---- */

/* Layers become ready from last to first; within a layer, the order is that of its op's gradients. */
static bool order_is(const net *n, int count, const char *const *layers)
{
    for (int i = 0; i < 2 * count; i++) {
        const char *name = tern_ddp_ready_name(n->ddp, i), *layer = layers[i / 2];
        if (!name || strncmp(name, layer, strlen(layer))) return false;
    }
    return !tern_ddp_ready_name(n->ddp, 2 * count) && !tern_ddp_ready_name(n->ddp, -1);
}

static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 0, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, order_is(&n, 0, NULL));
    for (int step = 0; step < 2; step++) {
        net_step(&n, tern_forward(&n.base, n.scope, net_input(&n)), &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, order_is(&n, 3, (const char *[]){"third", "second", "first"}));
    }
    tern_tensor *y = tern_forward(n.layers[2], n.scope, net_input(&n));
    net_step(&n, tern_forward(n.layers[0], n.scope, y), &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_stats s = stats_of(&n);
    RANK_CHECK(rank, order_is(&n, 2, (const char *[]){"first", "third"}) && s.ready == 4);
    RANK_CHECK(rank, s.unused == 2 && s.unused_bytes == LAYER_BYTES);
    tern_ddp_sync_set(n.ddp, false); /* the accumulated gradients were used */
    tern_backward(n.scope, tern_sum(n.scope, tern_forward(n.layers[1], n.scope, net_input(&n))));
    tern_ddp_sync_set(n.ddp, true);
    net_step(&n, tern_forward(n.layers[0], n.scope, net_input(&n)), &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, order_is(&n, 1, (const char *[]){"first"}) && stats_of(&n).unused == 2);
    net_close(&n);
    return 0;
}

static void the_ready_order_is_that_of_the_last_backward(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, order_body, NULL));
}

/* ---- times ---- */

static void add_times(tern_ddp_times *sum, const tern_ddp_times *times)
{
    sum->forward += times->forward;
    sum->backward += times->backward;
    sum->communication += times->communication;
    sum->overlap += times->overlap;
}

/* Rank r takes (r + 1) times as long as rank 0. Every reported time is between the least that the op takes
 * and the most that the clock around it shows, and no rank is done before the slowest one. */
static int times_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 1024, &err);
    RANK_CHECK_OK(rank, err);
    int64_t slow_ended = 0;
    spins each = {(rank + 1) * 300000, (rank + 1) * 500000, &slow_ended};
    tern_ddp_times sum = {0};
    for (int step = 0; step < 4; step++) {
        int64_t began = tern__now_ns(), all[RANKS_MAX];
        tern_tensor *y = slow(n.scope, tern_forward(&n.base, n.scope, net_input(&n)), each);
        int64_t forward_ended = tern__now_ns();
        tern_backward(n.scope, tern_sum(n.scope, y));
        int64_t ended = tern__now_ns();
        tern_ddp_times last = stats_of(&n).last;
        RANK_CHECK(rank, last.forward >= each.forward && last.backward >= each.backward);
        RANK_CHECK(rank, last.forward + last.backward + last.communication - last.overlap <= ended - began);
        RANK_CHECK(rank, last.backward <= ended - forward_ended);
        RANK_CHECK(rank, last.overlap >= 0 && last.overlap <= last.backward - each.backward);
        tern_all_gather(n.world, &slow_ended, all, 1, TERN_I64, &err);
        for (int r = 0; r < boot->world; r++)
            RANK_CHECK(rank, last.communication - last.overlap >= all[r] - n.scope->backward_ended);
        add_times(&sum, &last);
        tern_scope_end(n.scope, &err);
        RANK_CHECK_OK(rank, err);
    }
    tern_ddp_times mean = stats_of(&n).mean;
    RANK_CHECK(rank, mean.forward == sum.forward / 4 && mean.backward == sum.backward / 4);
    RANK_CHECK(rank, mean.communication == sum.communication / 4 && mean.overlap == sum.overlap / 4);
    net_close(&n);
    return 0;
}

static void times_lie_between_what_is_known(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, times_body, NULL));
}

/* The third layer's bucket is posted; then the op below it takes its time. */
static int overlap_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 1024, &err);
    for (int step = 0; step < 2; step++) {
        tern_tensor *y =
            tern_forward(n.layers[1], n.scope, tern_forward(n.layers[0], n.scope, net_input(&n)));
        y = tern_forward(n.layers[2], n.scope, slow(n.scope, y, (spins){.backward = 1000000}));
        net_step(&n, y, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, stats_of(&n).last.overlap >= 1000000);
    }
    net_close(&n);
    return 0;
}

static void communication_beside_backward_is_overlap(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, overlap_body, NULL));
}

/* Time after a backward in the same scope belongs to the next one; time between scopes belongs to none. */
static int forward_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 0, &err);
    tern_backward(n.scope, tern_sum(n.scope, tern_forward(&n.base, n.scope, net_input(&n))));
    int64_t between = tern__now_ns();
    tern_tensor *y = slow(n.scope, tern_forward(&n.base, n.scope, net_input(&n)), (spins){.forward = 500000});
    net_step(&n, y, &err);
    int64_t forward = stats_of(&n).last.forward;
    RANK_CHECK(rank, forward >= 500000 && forward <= tern__now_ns() - between);
    tern_forward(&n.base, n.scope, net_input(&n)); /* an evaluation */
    tern_scope_end(n.scope, &err);
    spin(3000000);
    int64_t began = tern__now_ns();
    net_step(&n, tern_forward(&n.base, n.scope, net_input(&n)), &err);
    RANK_CHECK(rank, stats_of(&n).last.forward <= tern__now_ns() - began);
    RANK_CHECK_OK(rank, err);
    net_close(&n);
    return 0;
}

static void forward_begins_with_the_first_op(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) assert_ranks_ok(ranks_run(world, forward_body, NULL));
}

/* ---- the struct, the table, memory ---- */

static int struct_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 0, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_stats s = {.size = sizeof(s)};
    RANK_CHECK(rank, tern_ddp_stats_get(NULL, &s, &err) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(err.text, "NULL") != NULL);
    RANK_CHECK(rank, tern_ddp_stats_get(n.ddp, NULL, NULL) == TERN_E_INVALID);
    s.size = 0;
    RANK_CHECK(rank, tern_ddp_stats_get(n.ddp, &s, NULL) == TERN_E_INVALID);
    s.size = sizeof(s) + 1;
    RANK_CHECK(rank, tern_ddp_stats_get(n.ddp, &s, NULL) == TERN_E_UNSUPPORTED);
    s = (tern_ddp_stats){.size = offsetof(tern_ddp_stats, iterations), .iterations = 77};
    RANK_CHECK(rank, tern_ddp_stats_get(n.ddp, &s, NULL) == TERN_OK);
    RANK_CHECK(rank, s.world == boot->world && s.iterations == 77 && s.parameters == 0);
    RANK_CHECK(rank, s.size == offsetof(tern_ddp_stats, iterations));
    net_close(&n);
    return 0;
}

static void an_older_callers_struct_is_filled_as_far_as_it_reaches(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, struct_body, NULL));
}

static int print_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    char text[4096] = "";
    net_open(&n, boot, NULL, 1024, &err);
    net_step(&n, tern_forward(&n.base, n.scope, net_input(&n)), &err);
    RANK_CHECK_OK(rank, err);
    printing p = printing_begin();
    tern_ddp_stats_print(n.ddp);
    printing_end(p, text, sizeof(text));
    RANK_CHECK(rank, strstr(text, "ddp on rank 0 of 1 after 1 synchronised backwards\n") == text);
    RANK_CHECK(rank, strstr(text, "  6 parameters, 0.013 MB; 0 unused, 0.000 MB\n") != NULL);
    RANK_CHECK(rank, strstr(text, "  2                               0.004        0.004\n") != NULL);
    RANK_CHECK(rank, strstr(text, "\n  ready in this order: third.") != NULL);
    net_close(&n);
    return 0;
}

static void the_table_says_it_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, print_body, NULL));
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 1024, &err);
    long warm = 0;
    for (int step = 0; step < 120; step++) {
        if (step == 4) warm = requests;
        net_step(&n, tern_forward(&n.base, n.scope, net_input(&n)), &err);
        RANK_CHECK_OK(rank, err);
    }
    RANK_CHECK(rank, warm > 0 && requests == warm);
    net_close(&n);
    return 0;
}

static void warm_steps_allocate_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) assert_ranks_ok(ranks_run(world, warm_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_the_models),
        cmocka_unit_test(the_ready_order_is_that_of_the_last_backward),
        cmocka_unit_test(times_lie_between_what_is_known),
        cmocka_unit_test(communication_beside_backward_is_overlap),
        cmocka_unit_test(forward_begins_with_the_first_op),
        cmocka_unit_test(an_older_callers_struct_is_filled_as_far_as_it_reaches),
        cmocka_unit_test(the_table_says_it_all),
        cmocka_unit_test(warm_steps_allocate_nothing),
    };
    requests_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
