/* test_memory.c - the pool of a device that is nearly full leaves room for CUDA and its libraries, and
 * gives up cached blocks for them. */
#include "nets.h"

#include "device/backend.h"
#include "device/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, MANY = 1024 };

static const size_t total = (size_t)2 << 30; /* of an emulated GPU */

static const emulated_counts *counted;

/* ---- a full device ---- */

typedef struct full {
    tern_device *device;
    void *blocks[MANY];
    int count;
} full;

static size_t left(const full *f)
{
    return total - tern__device_bytes(f->device);
}

static bool take(full *f, size_t bytes)
{
    f->blocks[f->count] = tern__device_alloc(f->device, bytes);
    return f->blocks[f->count] && ++f->count < MANY;
}

static int open_device(void **state)
{
    full *f = calloc(1, sizeof(*f));
    tern_error err = {0};
    f->device = tern_device_open("cuda:0", &err);
    assert_ok(err);
    counted = emulated_symbol("emulated_counted");
    *state = f;
    return counted ? 0 : -1;
}

static int close_device(void **state)
{
    full *f = *state;
    for (int i = 0; i < f->count; i++) tern__device_free(f->device, f->blocks[i]);
    tern_device_close(f->device);
    free(f);
    return 0;
}

/* ---- room for others ---- */

/* Blocks of so many sizes that they do not all fit, one after the other. */
static void what_is_cached_leaves_room_for_others(void **state)
{
    full *f = *state;
    for (size_t size = 4; size <= 500; size += 2) {
        void *block = tern__device_alloc(f->device, size * MIB);
        assert_non_null(block);
        tern__device_free(f->device, block);
        if (left(f) < total / 16)
            fail_msg("only %zu MiB are free after a block of %zu MiB", left(f) / MIB, size);
    }
}

/* The host does not wait for the device if there is nothing to give up. */
static void what_is_used_may_be_all(void **state)
{
    full *f = *state;
    const long *waits = emulated_symbol("emulated_waits");
    long before = *waits;
    while (take(f, 64 * MIB)) continue;
    assert_int_equal(f->count, 32);
    assert_int_equal(*waits, before);
}

static void step(full *f)
{
    tern_error err = {0};
    tern_scope *scope = tern_scope_new(f->device, NULL, &err);
    tern_tensor *x = tern_full(scope, TERN_F32, 1, (int64_t[]){32}, 1);
    for (int i = 0; i < 6; i++) x = tern_add(scope, x, x);
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    tern_scope_free(scope);
}

static void a_warm_step_asks_for_nothing(void **state)
{
    full *f = *state;
    step(f);
    int64_t cold = counted->looks;
    assert_true(cold > 0);
    for (int i = 0; i < 4; i++) step(f);
    assert_int_equal(counted->looks, cold);
}

/* ---- classes ---- */

static void a_large_block_takes_little_more_than_was_asked(void **state)
{
    full *f = *state;
    for (size_t size = 3 * MIB; size < total / 4; size += size / 7) {
        size_t before = tern__device_bytes(f->device), most = before + size + size / 16 + 2 * MIB;
        void *block = tern__device_alloc(f->device, size);
        assert_true(tern__device_bytes(f->device) <= most);
        tern__device_free(f->device, block);
    }
}

/* The addresses of blocks of one size are never reused for another. */
static void a_device_is_filled_with_blocks_of_many_sizes(void **state)
{
    full *f = *state;
    for (size_t size = 100; size < 340; size += 20) {
        while (f->count < (int)(1700 / size))
            if (!take(f, size * MIB)) fail_msg("the device has no room for %zu MiB", size);
        while (f->count) tern__device_free(f->device, f->blocks[--f->count]);
    }
}

static int open_device_with_few_addresses(void **state)
{
    setenv("TERN_EMULATED_REFUSES", "addresses", 1);
    int status = open_device(state);
    unsetenv("TERN_EMULATED_REFUSES");
    return status;
}

/* All addresses belong to larger blocks when the last block is requested. */
static void few_addresses_are_enough(void **state)
{
    full *f = *state;
    static const size_t sizes[] = {500, 400, 300, 200};
    assert_int_equal(f->device->memory.bytes, 2 * total);
    for (size_t i = 0; i < TERN__COUNT(sizes); i++) {
        while (f->count < (int)(1600 / sizes[i]) && f->count < 4) assert_true(take(f, sizes[i] * MIB));
        while (f->count) tern__device_free(f->device, f->blocks[--f->count]);
    }
}

/* ---- graphs ---- */

/* Fills the device until so much is left; then 64 MiB are freed again. */
static void fill(full *f, size_t rest)
{
    while (left(f) >= 64 * MIB + rest && take(f, 64 * MIB)) continue;
    while (left(f) > rest && take(f, 2 * MIB)) continue;
    assert_int_equal(left(f), rest);
    tern__device_free(f->device, f->blocks[0]);
    f->blocks[0] = f->blocks[--f->count];
}

static emulated_counts steps(full *f, int count)
{
    emulated_counts before = *counted;
    for (int i = 0; i < count; i++) step(f);
    return (emulated_counts){.kernels = counted->kernels - before.kernels,
                             .graphs = counted->graphs - before.graphs,
                             .overlapping = counted->overlapping - before.overlapping};
}

/* A graph that finds no memory is made when there is some, and its kernels overlap as before. */
static void expect_graphs(full *f, size_t rest)
{
    tern_error err = {0};
    assert_int_equal(tern_device_graphs_set(f->device, true, &err), TERN_OK);
    step(f);
    fill(f, rest);
    steps(f, 4);
    assert_int_equal(steps(f, 3).graphs, 3);
    assert_int_equal(tern_device_graphs_set(f->device, false, &err), TERN_OK);
    emulated_counts plain = steps(f, 1);
    assert_true(plain.kernels > 0);
    assert_int_equal(plain.overlapping, plain.kernels);
}

static void a_graph_finds_what_was_cached(void **state)
{
    expect_graphs(*state, 0);
}

static void a_graph_that_finds_too_little_is_no_reason_not_to_overlap(void **state)
{
    expect_graphs(*state, 2 * MIB);
}

/* It is tried once more, but not forever, if each step needs again what was given up. */
static void a_graph_that_finds_none_is_given_up(void **state)
{
    full *f = *state;
    const long *waits = emulated_symbol("emulated_waits");
    tern_error err = {0};
    long before = 0;
    assert_int_equal(tern_device_graphs_set(f->device, true, &err), TERN_OK);
    step(f);
    fill(f, 0);
    for (int i = 0; i < 12; i++) {
        if (i == 6) before = *waits;
        void *block = tern__device_alloc(f->device, 64 * MIB);
        assert_non_null(block);
        tern__device_free(f->device, block);
        assert_int_equal(steps(f, 1).graphs, 0);
    }
    assert_int_equal(*waits, before);
}

static void zero_some(full *f, void *const blocks[], int count)
{
    tern_error err = {0};
    for (int i = 0; i < count; i++) f->device->backend->zero(f->device, blocks[i], 256, &err);
    assert_ok(err);
}

/* What is held back for a graph may use blocks that are freed already. It is launched before their memory is
 * given up. */
static void what_is_held_back_still_has_its_memory(void **state)
{
    full *f = *state;
    tern_error err = {0};
    void *blocks[5];
    for (int i = 0; i < 5; i++) blocks[i] = tern__device_alloc(f->device, i ? 256 : 4 * MIB);
    assert_int_equal(tern_device_graphs_set(f->device, true, &err), TERN_OK);
    int64_t before = counted->graphs;
    for (int i = 0; i < 4; i++) {
        zero_some(f, blocks, 5);
        assert_int_equal(f->device->backend->flush(f->device, &err), TERN_OK);
    }
    assert_true(counted->graphs > before);
    zero_some(f, blocks, 2);
    tern__device_free(f->device, blocks[0]);
    while (take(f, 64 * MIB)) continue;
    assert_int_equal(f->device->backend->wait(f->device, &err), TERN_OK);
    for (int i = 1; i < 5; i++) tern__device_free(f->device, blocks[i]);
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_device, close_device)
    const struct CMUnitTest tests[] = {
        TEST(what_is_cached_leaves_room_for_others),
        TEST(what_is_used_may_be_all),
        TEST(a_warm_step_asks_for_nothing),
        TEST(a_large_block_takes_little_more_than_was_asked),
        TEST(a_device_is_filled_with_blocks_of_many_sizes),
        cmocka_unit_test_setup_teardown(few_addresses_are_enough, open_device_with_few_addresses,
                                        close_device),
        TEST(a_graph_finds_what_was_cached),
        TEST(a_graph_that_finds_too_little_is_no_reason_not_to_overlap),
        TEST(a_graph_that_finds_none_is_given_up),
        TEST(what_is_held_back_still_has_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
