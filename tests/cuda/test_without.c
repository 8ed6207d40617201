/* test_without.c - features that TERN_CUDA_WITHOUT names are not used, and results are the same. */
#include "nets.h"

#include "device/backend.h"
#include "device/memory.h"
#include "device/choices.h"

#include <stdlib.h>
#include <string.h>

static const emulated_counts *counted;

/* ---- what a device uses ---- */

enum { M = 8, K = 512 };

/* Long sums of integers: the kernel for small products uses clusters for them. */
static double multiply(tern_device *device)
{
    static float ones[M * K];
    tern_error err = {0};
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    for (int i = 0; i < M * K; i++) ones[i] = 1;
    tern_tensor *a = tern_tensor_from(scope, ones, TERN_F32, 2, (int64_t[]){M, K});
    tern_tensor *b = tern_tensor_from(scope, ones, TERN_F32, 2, (int64_t[]){K, M});
    double sum = tern_item(tern_sum(scope, tern_matmul(scope, a, b)));
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    tern_scope_free(scope);
    return sum;
}

static void step(tern_device *device)
{
    tern_error err = {0};
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    tern_tensor *x = tern_full(scope, TERN_F32, 1, (int64_t[]){32}, 1);
    for (int i = 0; i < 6; i++) x = tern_add(scope, x, x);
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    tern_scope_free(scope);
}

static tern_device *open_without(const char *words, tern_error *err)
{
    setenv("TERN_CUDA_WITHOUT", words, 1);
    tern_device *device = tern_device_open("cuda:0", err);
    unsetenv("TERN_CUDA_WITHOUT");
    return device;
}

typedef struct done {
    bool overlaps, clusters, graphs, exports, small;
} done;

static done done_without(const char *words)
{
    tern_error err = {0};
    emulated_counts before = *counted;
    tern_device *device = open_without(words, &err);
    assert_ok(err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.deterministic = false;
    tern_device_conv_set(device, &rules, &err);
    tern_device_graphs_set(device, true, &err);
    assert_ok(err);
    assert_true(multiply(device) == M * M * K);
    for (int i = 0; i < 4; i++) step(device);
    done d = {.overlaps = counted->overlapping > before.overlapping,
              .clusters = counted->clusters > before.clusters,
              .graphs = counted->graphs > before.graphs,
              .exports = counted->exportable > before.exportable,
              .small = tern__choices_serial(device) > 1}; /* besides cuBLASLt's own */
    tern_device_close(device);
    return d;
}

static void expect(const char *words, done wanted)
{
    done d = done_without(words);
    assert_int_equal(d.overlaps, wanted.overlaps);
    assert_int_equal(d.clusters, wanted.clusters);
    assert_int_equal(d.graphs, wanted.graphs);
    assert_int_equal(d.exports, wanted.exports);
    assert_int_equal(d.small, wanted.small);
}

/* ---- tests ---- */

static void all_is_done_by_itself(void **state)
{
    (void)state;
    expect("", (done){true, true, true, true, true});
}

static void a_word_takes_one_away(void **state)
{
    (void)state;
    expect("overlap", (done){false, true, true, true, true});
    expect("clusters", (done){true, false, true, true, true});
    expect("graphs", (done){true, true, false, true, true});
    expect("export", (done){true, true, true, false, true});
    expect("small_products", (done){true, false, true, true, false}); /* only these use clusters */
}

static void so_do_several(void **state)
{
    (void)state;
    expect("graphs,overlap", (done){false, true, false, true, true});
    expect("overlap,clusters,graphs,export,small_products", (done){false});
}

static void a_word_that_is_none_is_named(void **state)
{
    static const struct {
        const char *words, *bad;
    } cases[] = {{"graph", "\"graph\""},
                 {"overlap,cluster", "\"cluster\""},
                 {"overlap clusters", "\"overlap clusters\""},
                 {"overlap,", "\"\""},
                 {",", "\"\""},
                 {"graphsoverlap", "\"graphsoverlap\""}};
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        tern_error err = {0};
        char text[TERN_ERROR_TEXT];
        snprintf(text, sizeof(text),
                 "TERN_CUDA_WITHOUT=\"%s\": there is no %s, only overlap, clusters, graphs, export and "
                 "small_products",
                 cases[i].words, cases[i].bad);
        assert_null(open_without(cases[i].words, &err));
        assert_int_equal(err.code, TERN_E_ENV);
        assert_string_equal(err.text, text);
    }
}

static int look_for_plug_in(void **state)
{
    (void)state;
    tern_device_close(tern_device_open("cuda:0", NULL));
    counted = emulated_symbol("emulated_counted");
    return counted ? 0 : -1;
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_done_by_itself),
        cmocka_unit_test(a_word_takes_one_away),
        cmocka_unit_test(so_do_several),
        cmocka_unit_test(a_word_that_is_none_is_named),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, look_for_plug_in, NULL);
}
