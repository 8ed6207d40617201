/* test_pack.c - copies of a parameter in another layout: when they are kept and when they are made again. */
#include "check.h"

#include "kernels/pack.h"

static void a_pack_is_kept_from_the_second_use_of_a_version_on(void **state)
{
    (void)state;
    tern__packs packs = {0};
    bool stale;
    for (int version = 0; version < 3; version++) { /* training: each version is used once */
        assert_null(tern__pack_get(&packs, NULL, "one", 4, 100, &stale));
        assert_true(stale);
        packs.version++;
    }
    assert_null(tern__pack_get(&packs, NULL, "one", 4, 100, &stale));
    void *kept = tern__pack_get(&packs, NULL, "one", 4, 100, &stale);
    assert_non_null(kept);
    assert_true(stale);
    assert_ptr_equal(tern__pack_get(&packs, NULL, "one", 4, 100, &stale), kept);
    assert_false(stale);
    packs.version++;
    assert_null(tern__pack_get(&packs, NULL, "one", 4, 100, &stale));
    assert_ptr_equal(tern__pack_get(&packs, NULL, "one", 4, 100, &stale), kept);
    assert_true(stale);
    tern__packs_free(&packs);
}

static void a_pack_is_found_by_its_format(void **state)
{
    (void)state;
    tern__packs packs = {0};
    bool stale;
    char same[] = "one"; /* at another address */
    for (int use = 0; use < 2; use++) {
        tern__pack_get(&packs, NULL, "one", 4, 100, &stale);
        tern__pack_get(&packs, NULL, "two", 4, 100, &stale);
        tern__pack_get(&packs, NULL, "one", 3, 100, &stale);
    }
    void *one = tern__pack_get(&packs, NULL, "one", 4, 100, &stale),
         *two = tern__pack_get(&packs, NULL, "two", 4, 100, &stale);
    assert_ptr_equal(tern__pack_get(&packs, NULL, same, 4, 100, &stale), one);
    assert_false(stale);
    assert_ptr_not_equal(one, two);
    assert_ptr_not_equal(one, tern__pack_get(&packs, NULL, "one", 3, 100, &stale));
    for (int use = 0; use < 2; use++) tern__pack_get(&packs, &packs, "one", 4, 100, &stale);
    assert_ptr_not_equal(one, tern__pack_get(&packs, &packs, "one", 4, 100, &stale));
    tern__packs_free(&packs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pack_is_kept_from_the_second_use_of_a_version_on),
        cmocka_unit_test(a_pack_is_found_by_its_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
