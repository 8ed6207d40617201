/* test_mirror.c - a device's copies of another device's memory: of what was wanted last, with neighbours in
 * one, and as new as the last fill. */
#include "gpus.h"

#include "device/memory.h"
#include "device/mirror.h"

#include <string.h>

enum { FAR = 64 << 10, BYTES = 2 * FAR };

typedef struct pair {
    tern_device *device, *other;
    char *block; /* on the other device; byte i is i + `version` */
    char bytes[BYTES];
    tern__mirrors mirrors;
    tern_error err;
} pair;

static void write_version(pair *p, int version)
{
    for (int i = 0; i < BYTES; i++) p->bytes[i] = (char)(i + version);
    assert_int_equal(tern__memory_copy(p->block, p->bytes, BYTES, &p->err), TERN_OK);
}

static void want(pair *p, int begin, int end)
{
    int status = tern__mirrors_want(&p->mirrors, p->block + begin, (size_t)(end - begin), &p->err);
    assert_int_equal(status, TERN_OK);
}

static void fill(pair *p)
{
    assert_int_equal(tern__mirrors_fill(&p->mirrors, &p->err), TERN_OK);
}

static bool has(const pair *p, int begin, int end)
{
    return tern__mirror_of(p->device, p->block + begin, p->block + end);
}

static void expect_copy(pair *p, int begin, int end)
{
    char seen[BYTES];
    size_t bytes = (size_t)(end - begin);
    const char *copy = tern__mirror_of(p->device, p->block + begin, p->block + end);
    assert_non_null(copy);
    assert_ptr_equal(tern__memory_device(copy), p->device);
    assert_int_equal(tern__memory_copy(seen, copy, bytes, &p->err), TERN_OK);
    assert_memory_equal(seen, p->bytes + begin, bytes);
}

static int open_pair(void **state)
{
    static pair p;
    p = (pair){.device = tern_device_open("cuda:0", &p.err), .other = tern_device_open("cuda:1", &p.err)};
    assert_ok(p.err);
    p.block = tern__memory_new(p.other, BYTES, __func__, &p.err);
    p.mirrors.device = p.device;
    tern__mirrors_lend(p.device, &p.mirrors);
    write_version(&p, 0);
    *state = &p;
    return 0;
}

static int close_pair(void **state)
{
    pair *p = *state;
    tern__mirrors_lend(p->device, NULL);
    tern__mirrors_free(&p->mirrors);
    tern__memory_free(p->block);
    tern_device_close(p->device);
    tern_device_close(p->other);
    return 0;
}

static void neighbours_are_in_one_copy(void **state)
{
    pair *p = *state;
    want(p, 700, 800);
    want(p, FAR, FAR + 50);
    want(p, 100, 400);
    want(p, 720, 730);
    fill(p);
    assert_int_equal(p->mirrors.count, 2);
    expect_copy(p, 100, 800);
    expect_copy(p, FAR + 10, FAR + 50);
    assert_false(has(p, 99, 400));
    assert_false(has(p, 100, 801));
    assert_false(has(p, FAR, FAR + 51));
}

static void what_was_wanted_last_is_there(void **state)
{
    pair *p = *state;
    want(p, 0, 100);
    fill(p);
    expect_copy(p, 0, 100);
    want(p, 0, 200);
    fill(p);
    expect_copy(p, 0, 200);
    want(p, 0, 200);
    want(p, FAR, FAR + 1);
    fill(p);
    expect_copy(p, 0, 200);
    expect_copy(p, FAR, FAR + 1);
    fill(p);
    assert_false(has(p, 0, 1));
}

static void the_same_places_are_copied_anew(void **state)
{
    pair *p = *state;
    for (int version = 0; version < 3; version++) {
        write_version(p, version);
        want(p, 10, 20);
        fill(p);
        expect_copy(p, 10, 20);
    }
}

static void a_devices_own_memory_and_the_hosts_are_not_copied(void **state)
{
    pair *p = *state;
    char *own = tern__memory_new(p->device, 64, __func__, &p->err);
    assert_int_equal(tern__mirrors_want(&p->mirrors, own, 64, &p->err), TERN_OK);
    assert_int_equal(tern__mirrors_want(&p->mirrors, p->bytes, 64, &p->err), TERN_OK);
    fill(p);
    assert_int_equal(p->mirrors.count, 0);
    tern__memory_free(own);
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)
    const struct CMUnitTest tests[] = {
        TEST(neighbours_are_in_one_copy),
        TEST(what_was_wanted_last_is_there),
        TEST(the_same_places_are_copied_anew),
        TEST(a_devices_own_memory_and_the_hosts_are_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
