/* test_cost.c - compares the computed cost of calls with counts made by hand; also the observer of kernels.
 */
#include "check.h"

#include "device/backend.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/cost.h"

#define VIEW(dtype, ...)                                                                                     \
    tern__view_make(dtype, TERN__PLAIN, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                  \
                    (int64_t[]){__VA_ARGS__})

static void assert_cost(const tern__call *call, double flops, double bytes)
{
    tern__cost cost = tern__call_cost(call);
    assert_true(cost.flops == flops);
    assert_true(cost.bytes == bytes);
}

static void assert_convs(const tern__view *x, const tern__view *w, const tern__view *y,
                         const tern__conv_attr *attr, double flops, double bytes)
{
    assert_cost(&(tern__call){.kernel = TERN__CONV, .in = {x, w}, .out = {y}, .attr = attr}, flops, bytes);
    assert_cost(&(tern__call){.kernel = TERN__CONV_DATA_GRAD, .in = {y, w}, .out = {x}, .attr = attr}, flops,
                bytes);
    assert_cost(&(tern__call){.kernel = TERN__CONV_WEIGHT_GRAD, .in = {y, x}, .out = {w}, .attr = attr},
                flops, bytes);
}

static void the_three_products_of_a_layer_cost_the_same(void **state)
{
    (void)state;
    tern__view x = VIEW(TERN_F32, 3, 5), w = VIEW(TERN_F32, 5, 7), b = VIEW(TERN_F32, 7);
    tern__view y = VIEW(TERN_F32, 3, 7), turned = VIEW(TERN_F32, 7, 5), x_turned = VIEW(TERN_F32, 5, 3);
    double flops = 2 * 3 * 5 * 7;
    assert_cost(&(tern__call){.kernel = TERN__MATMUL, .in = {&x, &w, &b}, .out = {&y}}, flops,
                4 * (15 + 35 + 7 + 21));
    assert_cost(&(tern__call){.kernel = TERN__MATMUL, .in = {&y, &turned}, .out = {&x}}, flops,
                4 * (21 + 35 + 15));
    assert_cost(&(tern__call){.kernel = TERN__MATMUL, .in = {&x_turned, &y}, .out = {&w}, .add = {true}},
                flops, 4 * (21 + 15 + 2 * 35));
    assert_cost(&(tern__call){.kernel = TERN__LINEAR_GRAD, .in = {&y, &x, &w, &y}, .out = {&x, &w, &b}},
                2 * flops, 4 * (21 + 15 + 35 + 21 + 15 + 35 + 7));
    assert_cost(&(tern__call){.kernel = TERN__LINEAR_GRAD, .in = {&y, &x}, .out = {NULL, &w}}, flops,
                4 * (21 + 15 + 35));
}

/* With 4 input and 6 output channels, two groups and a 3x3 kernel, an element of y is a sum of 2 * 9
 * products. */
static void a_group_sees_its_own_channels(void **state)
{
    (void)state;
    tern__view x = VIEW(TERN_F64, 2, 4, 8, 9), w = VIEW(TERN_F64, 6, 2, 3, 3);
    tern__view y = VIEW(TERN_F64, 2, 6, 6, 7);
    const tern__conv_attr attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 2};
    double flops = 2 * (2 * 6 * 6 * 7) * (2 * 9), bytes = 8 * (576 + 108 + 504);
    assert_convs(&x, &w, &y, &attr, flops, bytes);
}

/* Counts the products along a dimension by trying every pair of an output and a tap. */
static double products_seen(int64_t x, int64_t y, int64_t taps, const int64_t at[3])
{
    int64_t count = 0;
    for (int64_t i = 0; i < y; i++)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t place = i * at[0] - at[1] + tap * at[2];
            count += place >= 0 && place < x;
        }
    return (double)count;
}

/* From 3 to 5 channels, 2 images, with stride, padding and dilation. */
static void padding_costs_nothing(void **state)
{
    (void)state;
    static const int64_t cases[][6] = {{8, 8, 3, 1, 1, 1},  {9, 9, 3, 1, 4, 4},  {9, 9, 3, 1, 12, 12},
                                       {11, 4, 3, 3, 1, 1}, {7, 9, 4, 1, 4, 2},  {5, 4, 2, 3, 4, 2},
                                       {1, 1, 5, 2, 2, 1},  {6, 13, 1, 1, 4, 1}, {6, 2, 1, 9, 4, 1}};
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        const int64_t *c = cases[i];
        const tern__conv_attr attr = {{1, c[3], 1}, {0, c[4], 0}, {1, c[5], 1}, 1};
        tern__view x = VIEW(TERN_F32, 2, 3, c[0], 7), w = VIEW(TERN_F32, 5, 3, c[2], 2);
        tern__view y = VIEW(TERN_F32, 2, 5, c[1], 6);
        double flops = 2 * 2 * 3 * 5 * (2 * 6) * products_seen(c[0], c[1], c[2], c + 3);
        double bytes = 4 * (double)(2 * 3 * 7 * c[0] + 5 * 3 * 2 * c[2] + 2 * 5 * 6 * c[1]);
        assert_convs(&x, &w, &y, &attr, flops, bytes);
    }
}

static void what_is_added_to_or_updated_in_place_moves_twice(void **state)
{
    (void)state;
    tern__view g = VIEW(TERN_F32, 10), p = g, m = g, v = g;
    assert_cost(&(tern__call){.kernel = TERN__SGD, .in = {&g}, .out = {&p, &m}}, 0, 4 * (10 + 20 + 20));
    assert_cost(&(tern__call){.kernel = TERN__ADAM, .in = {&g}, .out = {&p, &m, &v}}, 0,
                4 * (10 + 20 + 20 + 20));
    tern__view x = VIEW(TERN_F32, 2, 16), y = x;
    assert_cost(&(tern__call){.kernel = TERN__REORDER, .in = {&x}, .out = {&y}}, 0, 4 * (32 + 32));
    assert_cost(&(tern__call){.kernel = TERN__REORDER, .in = {&x}, .out = {&y}, .add = {true}}, 0,
                4 * (32 + 64));
}

static void what_is_broadcast_moves_once(void **state)
{
    (void)state;
    tern__view a = VIEW(TERN_F32, 5, 8), row = VIEW(TERN_F32, 5, 8), y = a;
    row.stride[0] = 0;
    assert_cost(&(tern__call){.kernel = TERN__ADD, .in = {&a, &row}, .out = {&y}}, 0, 4 * (40 + 8 + 40));
    tern__view label = VIEW(TERN_I64, 5), none = VIEW(TERN_F32, 0, 0);
    assert_cost(&(tern__call){.kernel = TERN__ARGMAX, .in = {&a}, .out = {&label}}, 0, 4 * 40 + 8 * 5);
    assert_cost(&(tern__call){.kernel = TERN__MATMUL, .in = {&none, &none}, .out = {&none}}, 0, 0);
}

/* It reads x once for the statistics and once more for the result. */
static void what_a_gpu_normalises_it_reads_twice(void **state)
{
    (void)state;
    static const tern__device_backend backend;
    tern_device gpu = {.backend = &backend};
    tern__view x = VIEW(TERN_BF16, 4, 8, 5, 5), dy = x, y = x, c = VIEW(TERN_F32, 8);
    tern__call norm = {.kernel = TERN__BATCH_NORM, .in = {&x, &c, &c, &dy}, .out = {&y, &c, &c}};
    assert_cost(&norm, 0, 2 * 3 * 800 + 4 * 4 * 8);
    norm.device = &gpu;
    assert_cost(&norm, 0, 2 * 4 * 800 + 4 * 4 * 8);
    tern__call grad = {
        .kernel = TERN__BATCH_NORM_GRAD, .in = {&dy, &x, &y, &c, &c, &c}, .out = {&dy, &dy, &c, &c}};
    assert_cost(&grad, 0, 2 * 5 * 800 + 5 * 4 * 8);
    grad.device = &gpu;
    assert_cost(&grad, 0, 2 * 7 * 800 + 5 * 4 * 8); /* the second pass reads dresidual instead of dy and y */
    grad.add[1] = true;
    assert_cost(&grad, 0, 2 * 9 * 800 + 5 * 4 * 8);
    grad.out[1] = NULL;
    assert_cost(&grad, 0, 2 * 7 * 800 + 5 * 4 * 8);
    grad.in[2] = NULL;
    assert_cost(&grad, 0, 2 * 5 * 800 + 5 * 4 * 8);
}

/* Queries and keys in pairs; a causal head of five queries and three keys has 1 + 2 + 3 + 3 + 3 of them. */
static void pairs_that_are_hidden_cost_nothing(void **state)
{
    (void)state;
    tern__view q = VIEW(TERN_F32, 2, 4, 5, 7), k = VIEW(TERN_F32, 2, 2, 3, 7), v = VIEW(TERN_F32, 2, 2, 3, 6);
    tern__view y = VIEW(TERN_F32, 2, 4, 5, 6), lse = VIEW(TERN_F32, 2, 4, 5);
    tern__attention_attr attr = {.scale = 1};
    for (int causal = 0; causal <= 1; causal++) {
        attr.is_causal = causal;
        double pairs = 2 * 4 * (causal ? 12 : 15), bytes = 4 * (280 + 84 + 72 + 240 + 40);
        assert_cost(
            &(tern__call){.kernel = TERN__ATTENTION, .in = {&q, &k, &v}, .out = {&y, &lse}, .attr = &attr},
            2 * pairs * (7 + 6), bytes);
        assert_cost(&(tern__call){.kernel = TERN__ATTENTION_GRAD,
                                  .in = {&y, &q, &k, &v, NULL, &y, &lse},
                                  .out = {&q, &k, &v},
                                  .attr = &attr},
                    2 * pairs * (3 * 7 + 2 * 6), bytes + 4 * (280 + 84 + 72 + 240));
    }
}

/* ---- the observer ---- */

typedef struct witness {
    tern__kernel_observer observer; /* first: cast back to the witness */
    int begun, calls;
    tern__kernel kernel;
} witness;

static void begins(tern__kernel_observer *observer)
{
    ((witness *)observer)->begun++;
}

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    witness *self = (witness *)observer;
    self->calls++;
    self->kernel = call->kernel;
    assert_int_equal(self->begun, self->calls);
}

static void the_observer_is_told_of_every_kernel(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    float from[3] = {1, 2, 3}, to[3] = {0};
    tern__view x = VIEW(TERN_F32, 3), y = x;
    x.data = from;
    y.data = to;
    tern__call call = {.device = device, .kernel = TERN__REORDER, .in = {&x}, .out = {&y}, .err = &err};
    witness w = {.observer = {ran, begins}, .kernel = TERN__KERNEL_COUNT};
    device->observer = &w.observer;
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_int_equal(w.calls, 1);
    assert_int_equal(w.kernel, TERN__REORDER);
    assert_memory_equal(from, to, sizeof(from));
    device->observer = NULL;
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
    assert_int_equal(w.calls, 1);
    tern_device_close(device);
    assert_ok(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_products_of_a_layer_cost_the_same),
        cmocka_unit_test(a_group_sees_its_own_channels),
        cmocka_unit_test(padding_costs_nothing),
        cmocka_unit_test(what_is_added_to_or_updated_in_place_moves_twice),
        cmocka_unit_test(what_is_broadcast_moves_once),
        cmocka_unit_test(what_a_gpu_normalises_it_reads_twice),
        cmocka_unit_test(pairs_that_are_hidden_cost_nothing),
        cmocka_unit_test(the_observer_is_told_of_every_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
