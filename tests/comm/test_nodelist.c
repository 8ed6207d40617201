/* test_nodelist.c - Slurm's node lists, valid and invalid. */
#include "check.h"

#include "base/nodelist.h"

#include <string.h>

static void the_first_node_is_expanded(void **state)
{
    (void)state;
    static const struct {
        const char *list, *first;
    } rows[] = {
        {"vm", "vm"},
        {"login,n[1-3]", "login"},
        {"n1,n2", "n1"},
        {"n[001-003,10]", "n001"},
        {"n[10,001-003]", "n10"},
        {"n[7]", "n7"},
        {"n[7]-ib", "n7-ib"},
        {"rack[1-2]n[07-09]-ib.site,n1", "rack1n07-ib.site"},
        {"[1-3]", "1"},
        {"n[0-18446744073709551616]", "n0"},
        {"node-3.example", "node-3.example"},
    };
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        char name[64];
        assert_true(tern__nodelist_first(rows[i].list, name, sizeof(name)));
        assert_string_equal(name, rows[i].first);
    }
}

static void what_is_no_list_of_nodes_is_refused(void **state)
{
    (void)state;
    static const char *const lists[] = {
        "",      ",",    ",n1",   "n[",     "n[]",     "n[1",     "n[1-",     "n[1-]",   "n[-1]",
        "n[1-2", "n[1,", "n[1,]", "n[,1]",  "n[a]",    "n[1-b]",  "n[1-2-3]", "n[1;2]",  "n]",
        "n[1]]", "n]1[", "n[1 ]", "n[[1]]", "n[1],m[", "n[1-2]]", "n1]2,n",   "n[1][2-", "n[1]x[y]"};
    for (size_t i = 0; i < TERN__COUNT(lists); i++) {
        char name[64];
        bool taken = tern__nodelist_first(lists[i], name, sizeof(name));
        if (taken != (strcmp(lists[i], "n[1],m[") == 0)) fail_msg("\"%s\" gave \"%s\"", lists[i], name);
    }
}

static void a_name_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    char name[6];
    assert_true(tern__nodelist_first("n[0001-2]", name, sizeof(name)));
    assert_string_equal(name, "n0001");
    assert_false(tern__nodelist_first("n[00001-2]", name, sizeof(name)));
    assert_false(tern__nodelist_first("n[001]bc", name, sizeof(name)));
    assert_false(tern__nodelist_first("abcdef", name, sizeof(name)));
}

static void tasks_are_counted_by_node(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        int tasks[5]; /* -1: no such node */
    } rows[] = {
        {"2", {2, -1, -1, -1, -1}},
        {"4(x2),1", {4, 4, 1, -1, -1}},
        {"1,2,3", {1, 2, 3, -1, -1}},
        {"1(x1),16(x3)", {1, 16, 16, 16, -1}},
        {"2147483647", {2147483647, -1, -1, -1, -1}},
        {"1(x2147483647)", {1, 1, 1, 1, 1}},
    };
    for (size_t i = 0; i < TERN__COUNT(rows); i++)
        for (int node = 0; node < 5; node++)
            assert_int_equal(tern__nodelist_tasks(rows[i].list, node), rows[i].tasks[node]);
}

static void what_is_no_list_of_tasks_has_none(void **state)
{
    (void)state;
    static const char *const lists[] = {"",
                                        ",",
                                        "x",
                                        "0",
                                        "0(x2)",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1(",
                                        "1(x",
                                        "1(x2",
                                        "1(2)",
                                        "1(x0)",
                                        "1()",
                                        "1x2",
                                        "1(x-2)",
                                        "1(x2),",
                                        "1(x2)3",
                                        "2147483648",
                                        "1(x2147483648)",
                                        "99999999999999999999"};
    for (size_t i = 0; i < TERN__COUNT(lists); i++)
        for (int node = 2; node < 4; node++)
            if (tern__nodelist_tasks(lists[i], node) != -1) fail_msg("\"%s\"", lists[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_node_is_expanded),
        cmocka_unit_test(what_is_no_list_of_nodes_is_refused),
        cmocka_unit_test(a_name_that_does_not_fit_is_refused),
        cmocka_unit_test(tasks_are_counted_by_node),
        cmocka_unit_test(what_is_no_list_of_tasks_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
