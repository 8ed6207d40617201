/* test_alloc.c - arrays that grow: they keep their items, new items are zeros, and memory may run out. */
#include "base/base.h"
#include "check.h"

#include <stdlib.h>

enum { ITEMS = 5000 };

static int requests, limit;

static void *counted_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    return requests++ < limit ? aligned_alloc(align, tern__align_up(bytes, align)) : NULL;
}

static void counted_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

static void start(int most)
{
    requests = 0;
    limit = most;
    tern__allocator_replace(&(tern_allocator){counted_alloc, counted_free, NULL});
}

static void items_are_kept_and_new_ones_are_zeros(void **state)
{
    (void)state;
    tern_error err = {0};
    size_t room = 0;
    int64_t *items = NULL;
    start(ITEMS);
    for (size_t i = 0; i < ITEMS; i++) {
        assert_int_equal(tern__array_reserve(&items, &room, i + 1, sizeof(*items), __func__, &err), TERN_OK);
        assert_true(room > i);
        assert_int_equal(items[i], 0);
        items[i] = (int64_t)i + 1;
    }
    for (size_t i = 0; i < ITEMS; i++) assert_int_equal(items[i], i + 1);
    assert_in_range(requests, 1, 12); /* doubles */
    tern__free(items);
    tern__allocator_replace(NULL);
}

static void what_is_there_stays_when_memory_runs_out(void **state)
{
    (void)state;
    tern_error err = {0};
    size_t room = 0, before;
    char *text = NULL;
    start(1);
    assert_int_equal(tern__array_reserve(&text, &room, 1, 1, __func__, &err), TERN_OK);
    text[0] = 'x';
    before = room;
    assert_int_equal(tern__array_reserve(&text, &room, room + 1, 1, __func__, &err), TERN_E_MEMORY);
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_int_equal(room, before);
    assert_int_equal(text[0], 'x');
    tern__free(text);
    tern__allocator_replace(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_kept_and_new_ones_are_zeros),
        cmocka_unit_test(what_is_there_stays_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
