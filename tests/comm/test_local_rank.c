/* test_local_rank.c - tern_local_rank_take removes the arguments that torch.distributed.launch adds. */
#include "check.h"

#include <tern/spawn.h>

#include <stdio.h>
#include <string.h>

typedef struct words {
    char *argv[12];
    int argc;
} words;

static words split(char *text)
{
    words w = {.argc = 0};
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) w.argv[w.argc++] = word;
    return w;
}

static void join(const words *w, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; w->argv[i]; i++) {
        if (i) strncat(text, " ", size - strlen(text) - 1);
        strncat(text, w->argv[i], size - strlen(text) - 1);
    }
}

static void expect(const char *before, const char *after, int rank)
{
    char text[128], left[128];
    tern_error err = {0};
    int local_rank = -7;
    snprintf(text, sizeof(text), "%s", before);
    words w = split(text);
    assert_int_equal(tern_local_rank_take(&w.argc, w.argv, &local_rank, &err), TERN_OK);
    assert_int_equal(err.code, TERN_OK);
    join(&w, left, sizeof(left));
    assert_string_equal(left, after);
    assert_int_equal(local_rank, rank);
    assert_null(w.argv[w.argc]);
}

static void takes_every_spelling(void **state)
{
    (void)state;
    expect("train --local_rank=3 x", "train x", 3);
    expect("train --local-rank=12", "train", 12);
    expect("train --local_rank 1 --lr 2", "train --lr 2", 1);
    expect("train a --local-rank 0", "train a", 0);
}

static void leaves_what_is_none(void **state)
{
    (void)state;
    expect("train", "train", -7);
    expect("train --local_ranks=3 --local-ranking 4 -local_rank=5 local_rank=6",
           "train --local_ranks=3 --local-ranking 4 -local_rank=5 local_rank=6", -7);
    expect("train --lr 1 -- --local_rank=3", "train --lr 1 -- --local_rank=3", -7);
    expect("train --local_rank=1 -- --local_rank=3", "train -- --local_rank=3", 1);
}

static void the_last_one_counts(void **state)
{
    (void)state;
    expect("train --local_rank=3 b --local-rank 4 c --local_rank=5", "train b c", 5);
}

static void refuses(const char *before, const char *says)
{
    char text[128], left[128];
    tern_error err = {0};
    int local_rank = -7;
    snprintf(text, sizeof(text), "%s", before);
    words w = split(text);
    int argc = w.argc;
    assert_int_equal(tern_local_rank_take(&w.argc, w.argv, &local_rank, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, says));
    join(&w, left, sizeof(left));
    assert_string_equal(left, before);
    assert_int_equal(local_rank, -7);
    assert_int_equal(w.argc, argc);
}

static void a_mistake_leaves_all_as_it_was(void **state)
{
    (void)state;
    refuses("train --local_rank=1 --local_rank=x", "--local_rank: expected a whole number from 0, got \"x\"");
    refuses("train --local-rank=", "--local-rank: expected a whole number from 0, got \"\"");
    refuses("train --local-rank=-1", "got \"-1\"");
    refuses("train --local_rank=+1", "got \"+1\"");
    refuses("train --local_rank=1.5", "got \"1.5\"");
    refuses("train --local_rank=2147483648", "got \"2147483648\"");
    refuses("train --local_rank=99999999999999999999", "got \"99999999999999999999\"");
    refuses("train x --local_rank", "got nothing");
}

static void an_error_from_before_stays(void **state)
{
    (void)state;
    char name[] = "train", option[] = "--local_rank=1", *argv[] = {name, option, NULL};
    int argc = 2, local_rank = -7;
    tern_error err = {.code = TERN_E_MEMORY};
    assert_int_equal(tern_local_rank_take(&argc, argv, &local_rank, &err), TERN_E_MEMORY);
    assert_int_equal(argc, 2);
    assert_int_equal(local_rank, -7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_every_spelling),       cmocka_unit_test(leaves_what_is_none),
        cmocka_unit_test(the_last_one_counts),        cmocka_unit_test(a_mistake_leaves_all_as_it_was),
        cmocka_unit_test(an_error_from_before_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
