/* test_lacking.c - rows of kernels.def without a CUDA kernel, on a plug-in that was built without those of
 * ARGMIN and RMSPROP: the host computes them on copies, with the reference kernel's bits. */
#include "check.h"
#include "gpus.h"

#include "device/backend.h"
#include "kernels/optim.h"
#include "kernels/lines.h"

#include <string.h>

enum { ROWS = 37, COLUMNS = 53, COUNT = ROWS * COLUMNS };

static void the_other_rows_have_kernels(void **state)
{
    static const bool has_kernel[] = {
#define K(id, name, inputs, outputs)            true,
#define C(id, name, inputs, outputs)            false,
#define B(id, name, inputs, outputs)            false,
#define P(id, name, inputs, dtypes, expression) true,
#include "kernels/kernels.def"
    };
    const tern_device *gpu = *state;
    for (int k = 0; k < TERN__KERNEL_COUNT; k++) {
        bool lacks = !has_kernel[k] || k == TERN__ARGMIN || k == TERN__RMSPROP;
        assert_true((gpu->backend->kernels[k] == NULL) == lacks);
    }
}

/* An operand on the host and on the device. */
typedef struct twins {
    tern__view host, device;
} twins;

static twins twins_new(tern_device *gpu, tern_dtype dtype, int ndim, const int64_t *shape, uint32_t seed)
{
    tern_error err = {0};
    twins t;
    t.host = t.device = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    size_t bytes = tern__view_bytes(&t.host);
    t.host.data = tern__alloc(bytes, __func__, &err);
    t.device.data = tern__device_alloc(gpu, bytes);
    for (int64_t i = 0; i < tern__view_count(&t.host); i++) {
        seed = seed * 1664525u + 1013904223u;
        tern__view_set(&t.host, i, (double)(seed >> 8) / 0x1p23);
    }
    tern__memory_copy(t.device.data, t.host.data, bytes, &err);
    assert_ok(err);
    return t;
}

/* Compares the two, bit for bit, and frees them. */
static void twins_close(tern_device *gpu, const twins *t)
{
    tern_error err = {0};
    size_t bytes = tern__view_bytes(&t->host);
    void *came = tern__alloc(bytes, __func__, &err);
    tern__memory_copy(came, t->device.data, bytes, &err);
    assert_ok(err);
    assert_memory_equal(came, t->host.data, bytes);
    tern__device_free(gpu, t->device.data);
    tern__free(t->host.data);
    tern__free(came);
}

/* Makes the call on the device and, by the reference kernel, on the host. */
static void run_both(tern_device *gpu, tern__call call, twins *in, int ins, twins *out, int outs)
{
    tern_error err = {0};
    tern_device *reference = tern_device_open("cpu:reference", &err);
    call.err = &err;
    for (int side = 0; side < 2; side++) {
        call.device = side ? gpu : reference;
        for (int i = 0; i < ins; i++) call.in[i] = side ? &in[i].device : &in[i].host;
        for (int i = 0; i < outs; i++) call.out[i] = side ? &out[i].device : &out[i].host;
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
    }
    assert_ok(err);
    for (int i = 0; i < ins; i++) twins_close(gpu, &in[i]);
    for (int i = 0; i < outs; i++) twins_close(gpu, &out[i]);
    tern_device_close(reference);
}

static void argmin(void **state)
{
    const tern__dim_attr attr = {1};
    const int64_t shape[] = {ROWS, COLUMNS};
    twins x = twins_new(*state, TERN_F32, 2, shape, 1), index = twins_new(*state, TERN_I64, 1, shape, 2);
    run_both(*state, (tern__call){.kernel = TERN__ARGMIN, .attr = &attr}, &x, 1, &index, 1);
}

/* Updates in place, in every dtype. */
static void rmsprop(void **state)
{
    const tern__rmsprop_attr attr = {.step = {.lr = 0.1, .scale = 1, .decay = 0.01, .count = 3},
                                     .alpha = 0.9,
                                     .eps = 1e-3,
                                     .momentum = 0.5};
    const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        const int64_t shape[] = {COUNT};
        twins g = twins_new(*state, dtypes[d], 1, shape, 1), out[4];
        for (int i = 0; i < 4; i++) out[i] = twins_new(*state, dtypes[d], 1, shape, (uint32_t)i + 2);
        run_both(*state, (tern__call){.kernel = TERN__RMSPROP, .attr = &attr}, &g, 1, out, 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_other_rows_have_kernels),
        cmocka_unit_test(argmin),
        cmocka_unit_test(rmsprop),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
