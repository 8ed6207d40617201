/* test_late.c - a rank that does not come. Whatever the others wait in, their timeout's error names it and
 * its last activity. */
#include "comm/control_fixture.h"

#include "comm/group.h"

enum { CALL_BARRIER, CALL_WAIT, CALL_MEMORY, CALL_SPLIT, CALL_NEW, CALL_CHANNEL, CALLS };

static tern_group *open_group(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = timeout_s;
    return tern__group_open_boot(boot, &opts, err);
}

static void call(int which, tern_group *group, tern_error *err)
{
    static float x[10];
    static const int both[] = {0, 1};
    switch (which) {
    case CALL_BARRIER: tern_barrier(group, err); break;
    case CALL_WAIT: tern_work_wait(tern_all_reduce_post(group, x, 10, TERN_F32, TERN_MAX, err), err); break;
    case CALL_MEMORY: tern_group_mem_alloc(group, 4096, err); break;
    case CALL_SPLIT: tern_group_split(group, 0, 0, NULL, err); break;
    case CALL_NEW: tern_group_new(group, both, 2, NULL, err); break;
    default:
        if (!group->backend->channel_open(group->state, 4, err)) tern__group_fail(group, err);
    }
}

static int wait_for_the_late(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_group *group = open_group(boot, 20, &err);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    group->opts.timeout_s = 0.3; /* set once all ranks have come */
    if (rank != b->victim) call(b->mode, group, &err);
    b->reports[rank].code = err.code;
    snprintf(b->reports[rank].text, sizeof(err.text), "%s", err.text);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    tern_group_close(group);
    return 0;
}

static void check_reports(const board *b, const char *expected)
{
    char who[32];
    int in_time = 0;
    snprintf(who, sizeof(who), "rank %d (", b->victim);
    for (int rank = 0; rank < 3; rank++) {
        const report *seen = &b->reports[rank];
        if (rank == b->victim) continue;
        in_time += seen->code == TERN_E_TIMEOUT;
        assert_true(seen->code == TERN_E_TIMEOUT ||
                    seen->code == TERN_E_PEER); /* noticed, or told by a peer */
        if (!strstr(seen->text, "waited 0.") || !strstr(seen->text, who) || !strstr(seen->text, expected))
            fail_msg("call %d, rank %d: \"%s\" does not name rank %d and \"%s\"", b->mode, rank, seen->text,
                     b->victim, expected);
    }
    assert_true(in_time >= 1);
}

static void every_call_names_who_is_late_and_what_it_did_last(void **state)
{
    (void)state;
    for (int which = 0; which < CALLS; which++)
        for (int victim = 0; victim < 3; victim++) {
            board *b = board_new();
            b->mode = which;
            b->victim = victim;
            assert_ranks_ok(ranks_run(3, wait_for_the_late, b));
            check_reports(b, "was all_reduce of 1 f32, sum (work 1)");
            board_free(b);
        }
}

/* The rank meets the others, and then does not open the group's memory. */
static int stop_at_the_door(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *group = NULL;
    seat s = {0};
    tern__bootstrap own = *boot;
    own.choice = tern__comm_choose(NULL, false); /* the same as the others' */
    if (rank == b->victim)
        s = sit_down(&own, 10, &err);
    else
        group = open_group(boot, 0.9, &err); /* the other ranks are never that late */
    b->reports[rank].code = err.code;
    snprintf(b->reports[rank].text, sizeof(err.text), "%s", err.text);
    RANK_CHECK(rank, !group && all_are_here(b, boot->world));
    get_up(&s);
    return 0;
}

static void so_does_the_opening(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        board *b = board_new();
        b->victim = victim;
        assert_ranks_ok(ranks_run(3, stop_at_the_door, b));
        check_reports(b, ", which has called no collective yet");
        board_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_names_who_is_late_and_what_it_did_last),
        cmocka_unit_test(so_does_the_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
