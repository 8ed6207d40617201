#include "check.h"

#include "kernels/pack.h"

static void a_pack_is_found_by_its_format(void **state)
{
    (void)state;
    tern__packs packs = {0};
    bool stale;
    void *first = tern__pack_get(&packs, "one", 4, 100, &stale);
    assert_non_null(first);
    assert_true(stale);
    void *other = tern__pack_get(&packs, "two", 4, 100, &stale);
    assert_true(stale);
    assert_ptr_not_equal(other, first);
    char same[] = "one"; /* at another address */
    assert_ptr_equal(tern__pack_get(&packs, same, 4, 100, &stale), first);
    assert_false(stale);
    assert_ptr_not_equal(tern__pack_get(&packs, "one", 3, 100, &stale), first);
    assert_true(stale);
    tern__packs_free(&packs);
}

static void each_pack_is_stale_once_per_version(void **state)
{
    (void)state;
    tern__packs packs = {0};
    bool stale;
    tern__pack_get(&packs, "one", 4, 100, &stale);
    tern__pack_get(&packs, "two", 4, 100, &stale);
    packs.version++;
    tern__pack_get(&packs, "one", 4, 100, &stale);
    assert_true(stale);
    tern__pack_get(&packs, "one", 4, 100, &stale);
    assert_false(stale);
    tern__pack_get(&packs, "two", 4, 100, &stale);
    assert_true(stale);
    tern__packs_free(&packs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pack_is_found_by_its_format),
        cmocka_unit_test(each_pack_is_stale_once_per_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
