#include "comm/ranks.h"

#include "comm/control.h"

static int meet_and_leave(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern__store *store = tern__store_open(boot, 10, &err);
    tern__control *control = tern__control_open(boot, store, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern__control_is_healthy(control));
    tern__control_close(control);
    tern__store_close(store);
    return 0;
}

static void ranks_meet(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) {
        assert_ranks_ok(ranks_run(worlds[i], meet_and_leave, NULL));
        assert_ranks_ok(ranks_run_threads(worlds[i], meet_and_leave, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
