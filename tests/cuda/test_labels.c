/* test_labels.c - labels that are no class: the kernel that finds one continues, and the next call that
 * reads or asks something reports it. */
#include "check.h"
#include "gpus.h"

#include "base/half.h"
#include "device/backend.h"
#include "device/memory.h"
#include "kernels/dice_loss.h"
#include "kernels/embedding.h"
#include "kernels/nll_loss.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IGNORED = -100 };

/* The kernel continues; reading the value reports the error, once. */
static void names_labels(void **state)
{
    tern_device *device = *state;
    tern_error err = {0};
    float zeros[30] = {0}, loss = 0;
    double weights = 0;
    int64_t label[6] = {0, 1, 2, 3, 4, 7};
    tern__view x = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){6, 5});
    tern__view y = tern__view_make(TERN_I64, TERN__PLAIN, 1, (int64_t[]){6});
    tern__view out = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL);
    tern__view sum = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    x.data = zeros, y.data = label, out.data = &loss, sum.data = &weights;
    tern__call call = {.device = device,
                       .kernel = TERN__NLL_LOSS,
                       .in = {&x, &y},
                       .out = {&out, &sum},
                       .attr = &(tern__nll_attr){"f", "op", .ignored = IGNORED},
                       .err = &err};
    assert_int_equal(tern__kernel_run(&call), TERN_E_RANGE);
    assert_string_equal(err.text, "op: label 7 of sample 5 is not in [0, 5)");
    err = (tern_error){0};
    label[5] = IGNORED;
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_true(weights == 5);
}

/* Runs for measuring cannot report an error and leave it to the next call that can. That call has waited
 * for all kernels that may find the label, so it is reported once. */
static void leaves_labels_to_who_can_name_them(void **state)
{
    tern_device *device = *state;
    const tern__device_backend *backend = device->backend;
    const long *waits = is_emulated() ? emulated_symbol("emulated_waits") : NULL;
    tern_error err = {0};
    int64_t label = 7;
    float *memory = tern__device_alloc(device, 1024);
    tern__view weight = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){5, 8});
    tern__view index = tern__view_make(TERN_I64, TERN__PLAIN, 1, (int64_t[]){1});
    tern__view y = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){1, 8});
    weight.data = memory, index.data = memory + 64, y.data = memory + 128;
    tern__memory_copy(index.data, &label, sizeof(label), &err);
    tern__call call = {
        .device = device, .kernel = TERN__EMBEDDING, .in = {&weight, &index}, .out = {&y}, .err = &err};
    assert_int_equal(backend->kernels[TERN__EMBEDDING](&call), TERN_OK);
    call.err = NULL;
    for (int i = 0; i < 3; i++) assert_int_equal(backend->kernels[TERN__EMBEDDING](&call), TERN_OK);
    assert_int_equal(backend->wait(device, NULL), TERN_OK);
    call.err = &err;
    long before = waits ? *waits : 0;
    assert_int_equal(backend->kernels[TERN__EMBEDDING](&call), TERN_E_RANGE);
    assert_true(!waits || *waits == before + 1);
    assert_non_null(strstr(err.text, "index 7 at (0) is not in [0, 5)"));
    err = (tern_error){0};
    assert_int_equal(backend->wait(device, &err), TERN_OK);
    tern__device_free(device, memory);
}

enum { SAMPLES = 2, CLASSES = 3, INNER = 2056 };

static int run_dice(tern_device *device, const tern__view *labels, float *loss, tern_error *err)
{
    static uint16_t scores[SAMPLES * CLASSES * INNER];
    double sums[SAMPLES * CLASSES * TERN__OVERLAP] = {0};
    for (int i = 0; i < SAMPLES * CLASSES * INNER; i++) scores[i] = tern__bf16_from_f32((float)(i % 7) - 3);
    tern__view x = tern__view_make(TERN_BF16, TERN__PLAIN, 3, (int64_t[]){SAMPLES, CLASSES, INNER});
    tern__view out = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL);
    tern__view sum = tern__view_make(TERN_F64, TERN__PLAIN, 3, (int64_t[]){SAMPLES, CLASSES, TERN__OVERLAP});
    x.data = scores, out.data = loss, sum.data = sums;
    tern__dice_attr attr = {
        .func = "f", .op = "op", .classes = 1, .ignored = IGNORED, .entropy = 1, .dice = 1};
    tern__call call = {.device = device,
                       .kernel = TERN__DICE_LOSS,
                       .in = {&x, labels},
                       .out = {&out, &sum},
                       .attr = &attr,
                       .err = err};
    return tern__kernel_run(&call);
}

/* A thread has eight neighbouring labels: the invalid one is found among them, in any sample. */
static void names_one_of_several(void **state)
{
    static uint8_t label[SAMPLES * INNER];
    tern__view labels = tern__view_make(TERN_U8, TERN__PLAIN, 2, (int64_t[]){SAMPLES, INNER});
    labels.data = label;
    for (int i = 0; i < 16; i++) {
        tern_error err = {0};
        float loss = 0;
        char text[64];
        snprintf(text, sizeof(text), "op: label 7 of sample 1 at position %d is not in [0, 3)", i);
        label[INNER + i] = 7;
        assert_int_equal(run_dice(*state, &labels, &loss, &err), TERN_E_RANGE);
        assert_string_equal(err.text, text);
        label[INNER + i] = 0;
    }
}

/* Labels of a slice begin anywhere; they are read 16 bytes at a time where possible. */
static void labels_begin_anywhere(void **state)
{
    static const tern_dtype dtypes[] = {TERN_I64, TERN_I32, TERN_U8};
    static int64_t some[SAMPLES * INNER];
    tern_error err = {0};
    char *memory = tern__device_alloc(*state, sizeof(some) + 16);
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        tern__view labels = tern__view_make(dtypes[d], TERN__PLAIN, 2, (int64_t[]){SAMPLES, INNER});
        size_t each = tern_dtype_bytes(dtypes[d]);
        float first = 0, loss = 0;
        labels.data = some;
        for (int i = 0; i < SAMPLES * INNER; i++) tern__view_set(&labels, i, i / 5 % CLASSES);
        for (size_t place = 0; place < 16; place += each) {
            labels.data = memory + place;
            tern__memory_copy(labels.data, some, each * SAMPLES * INNER, &err);
            assert_int_equal(run_dice(*state, &labels, &loss, &err), TERN_OK);
            if (place == 0) first = loss;
            assert_true(loss > 0 && loss == first);
        }
    }
    assert_ok(err);
    tern__device_free(*state, memory);
}

enum { REGIONS = 3, BITS = 5003 };

/* Runs Dice and cross entropy on masks in device memory, one region each: the loss and its gradient for x. */
static int run_masks(tern_device *device, const tern__view *x, const tern__view *target, float *loss,
                     const tern__view *dx, int64_t ignored, tern_error *err)
{
    double sums[REGIONS * TERN__OVERLAP] = {0};
    float sent = 1;
    tern__view out = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL), dloss = out;
    tern__view sum = tern__view_make(TERN_F64, TERN__PLAIN, 3, (int64_t[]){1, REGIONS, TERN__OVERLAP});
    out.data = loss, dloss.data = &sent, sum.data = sums;
    tern__dice_attr attr = {
        .func = "f", .op = "op", .ignored = ignored, .mean = 1, .smooth = 1, .entropy = 1, .dice = 1};
    tern__call call = {.device = device,
                       .kernel = TERN__DICE_LOSS,
                       .in = {x, target},
                       .out = {&out, &sum},
                       .attr = &attr,
                       .err = err};
    int status = tern__kernel_run(&call);
    if (status) return status;
    tern__call back = {.device = device,
                       .kernel = TERN__DICE_LOSS_GRAD,
                       .in = {&dloss, x, target, &sum},
                       .out = {dx},
                       .attr = &attr,
                       .err = err};
    return tern__kernel_run(&back);
}

/* Masks may begin at any element; with channels of odd size all but the first do. */
static void masks_begin_anywhere(void **state)
{
    static const tern_dtype dtypes[] = {TERN_U8, TERN_F32, TERN_I32, TERN_I8, TERN_I16};
    enum { COUNT = REGIONS * BITS };
    static float scores[COUNT], first[COUNT], slopes[COUNT];
    static int64_t some[COUNT];
    tern_error err = {0};
    char *memory = tern__device_alloc(*state, 3 * (sizeof(scores) + 16));
    tern__view x = tern__view_make(TERN_F32, TERN__PLAIN, 3, (int64_t[]){1, REGIONS, BITS}), dx = x;
    for (int i = 0; i < COUNT; i++) scores[i] = (float)(i % 7) - 3;
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        tern__view target = tern__view_make(dtypes[d], TERN__PLAIN, 3, x.shape);
        size_t each = tern_dtype_bytes(dtypes[d]);
        float whole = 0, loss = 0;
        target.data = some;
        for (int i = 0; i < COUNT; i++) tern__view_set(&target, i, i / 5 % 2);
        for (size_t place = 0; place < 4; place++) {
            x.data = memory + 4 * (place % 2), dx.data = memory + sizeof(scores) + 16 + 4 * (place / 2);
            target.data = memory + 2 * (sizeof(scores) + 16) + each * place;
            tern__memory_copy(x.data, scores, sizeof(scores), &err);
            tern__memory_copy(target.data, some, each * COUNT, &err);
            assert_int_equal(run_masks(*state, &x, &target, &loss, &dx, IGNORED, &err), TERN_OK);
            tern__memory_copy(slopes, dx.data, sizeof(slopes), &err);
            if (place == 0) whole = loss, memcpy(first, slopes, sizeof(first));
            assert_true(loss > 0 && fabsf(loss - whole) < 1e-6f * whole);
            assert_memory_equal(slopes, first, sizeof(first));
        }
    }
    assert_ok(err);
    tern__device_free(*state, memory);
}

/* What is ignored may be negative, also in a mask of bytes: the results are those of the same mask in i32. */
static void masks_have_signs(void **state)
{
    static const tern_dtype dtypes[] = {TERN_I32, TERN_I8, TERN_I16};
    enum { COUNT = REGIONS * BITS };
    static float scores[COUNT], slopes[TERN__COUNT(dtypes)][COUNT];
    static int32_t some[COUNT];
    float loss[TERN__COUNT(dtypes)] = {0};
    tern_error err = {0};
    tern__view x = tern__view_make(TERN_F32, TERN__PLAIN, 3, (int64_t[]){1, REGIONS, BITS}), dx = x;
    x.data = scores;
    for (int i = 0; i < COUNT; i++) scores[i] = i % 5 ? (float)(i % 7) - 3 : NAN;
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        tern__view target = tern__view_make(dtypes[d], TERN__PLAIN, 3, x.shape);
        target.data = some, dx.data = slopes[d];
        for (int i = 0; i < COUNT; i++) tern__view_set(&target, i, i % 5 ? i / 3 % 2 : -1);
        assert_int_equal(run_masks(*state, &x, &target, &loss[d], &dx, -1, &err), TERN_OK);
        assert_true(loss[d] > 0 && loss[d] == loss[0]);
        assert_memory_equal(slopes[d], slopes[0], sizeof(slopes[0]));
    }
    assert_ok(err);
}

/* x may be anything where labels are ignored, and an invalid label next to those is found. */
static void names_one_among_the_ignored(void **state)
{
    enum { COUNT = REGIONS * BITS };
    static float scores[COUNT], slopes[COUNT];
    static uint8_t bits[COUNT];
    tern__view x = tern__view_make(TERN_F32, TERN__PLAIN, 3, (int64_t[]){1, REGIONS, BITS}), dx = x;
    tern__view target = tern__view_make(TERN_U8, TERN__PLAIN, 3, x.shape);
    tern_error err = {0};
    float loss = 0;
    x.data = scores, dx.data = slopes, target.data = bits;
    for (int i = 0; i < COUNT; i++) bits[i] = i % 3 ? (uint8_t)(i % 2) : 255, scores[i] = i % 3 ? 1 : NAN;
    assert_int_equal(run_masks(*state, &x, &target, &loss, &dx, 255, &err), TERN_OK);
    assert_true(loss > 0 && loss < 10);
    for (int i = 0; i < COUNT; i++) assert_true(i % 3 ? slopes[i] != 0 : slopes[i] == 0);
    bits[BITS + 4] = 2;
    assert_int_equal(run_masks(*state, &x, &target, &loss, &dx, 255, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "op: label 2 of sample 0 at position 5007 is not in [0, 2)");
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_labels),         cmocka_unit_test(leaves_labels_to_who_can_name_them),
        cmocka_unit_test(names_one_of_several), cmocka_unit_test(labels_begin_anywhere),
        cmocka_unit_test(masks_begin_anywhere), cmocka_unit_test(names_one_among_the_ignored),
        cmocka_unit_test(masks_have_signs),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
