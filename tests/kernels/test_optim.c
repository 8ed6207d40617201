/* test_optim.c - compares the fast kernels of the optimizers and of the p-norm with the reference, for odd
 * sizes, dtypes, numbers of threads and every combination of flags. */
#include "check.h"

#include "kernels/kernel.h"
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "kernels/norm_factors.h"

#include <float.h>
#include <math.h>

static const int64_t sizes[] = {1, 15, 16, 33, 1000, 70001};

static tern__view new_vector(tern_dtype dtype, int64_t count)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &count);
    view.data = tern__alloc(tern__view_bytes(&view), __func__, NULL);
    assert_non_null(view.data);
    return view;
}

/* Fills the view with numbers of both signs and of magnitudes from 1e-3 to 1e3. */
static void fill(const tern__view *view, uint32_t seed, bool positive)
{
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        double size = pow(10, (double)(seed >> 8 & 0xffff) / 65536 * 6 - 3);
        tern__view_set(view, i, seed >> 31 && !positive ? -size : size);
    }
}

/* Returns the largest difference in units in the last place of the summed numbers, whose magnitude is
 * `size[i]`. */
static double ulps(const tern__view *got, const tern__view *want, const double *size)
{
    double worst = 0, unit = got->dtype == TERN_F64 ? DBL_EPSILON : FLT_EPSILON;
    int64_t count = tern__view_count(got);
    for (int64_t i = 0; i < count; i++) {
        double w = tern__view_get(want, i);
        worst = fmax(worst, fabs(tern__view_get(got, i) - w) / (unit * fmax(size[i], fabs(w))));
    }
    return worst;
}

static void run(const char *name, int threads, tern__call *call)
{
    tern_error err = {0};
    call->device = tern_device_open(name, &err);
    call->err = &err;
    tern_device_threads_set(call->device, threads, &err);
    assert_int_equal(tern__kernel_run(call), TERN_OK);
    assert_ok(err);
    tern_device_close(call->device);
}

/* Fills output i before the update. Second moments are positive, and RMSprop's are larger than the square of
 * its mean. */
static void fill_state(tern__kernel kernel, const tern__view *out, int i)
{
    bool is_moment = kernel == TERN__ADAM || kernel == TERN__LAMB ? i > 1 : i == 1 && kernel != TERN__SGD;
    int64_t count = tern__view_count(out);
    fill(out, (uint32_t)i + 2, is_moment);
    for (int64_t k = 0; kernel == TERN__RMSPROP && is_moment && k < count; k++)
        tern__view_set(out, k, tern__view_get(out, k) + 1e7);
}

/* ---- sections ---- */

enum { SECTIONS = 300, ROWS = 3 };

/* Makes a table of sections: one of `lead` elements, then sections of 256 with gaps in between, in the middle
 * of a longer run. Each uses one of three rows of factors. */
static tern__view cut(int64_t count, int64_t lead, tern__section table[SECTIONS])
{
    int n = 0;
    for (int64_t begin = 0, next; begin < count && n < SECTIONS; begin = next) {
        next = TERN__MIN(begin + (n ? 256 : lead), count);
        table[n] = (tern__section){4800 + begin, next - begin, n % ROWS};
        if (++n % 5 == 0) next += 16;
    }
    tern__view view = tern__view_make(TERN_I64, TERN__PLAIN, 2, (int64_t[]){n, 3});
    view.data = table;
    return view;
}

/* ---- updates ---- */

/* Makes one update of `outs` vectors, or of sections of them, on both devices. Returns the largest
 * difference. */
static double compare(tern__kernel kernel, const void *attr, tern_dtype dtype, int64_t count, int outs,
                      int threads, bool apart)
{
    static const double numbers[3 * ROWS] = {1, 1, 1, 0.5, 0.25, 2, 0.75, 0.125, 0};
    tern__section table[SECTIONS];
    tern__view sections = cut(count, 32, table),
               factors = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){ROWS, 3});
    factors.data = (void *)numbers;
    tern__view g = new_vector(dtype, count), out[2][TERN__KERNEL_OUTS];
    double *size = tern__alloc((size_t)count * sizeof(*size), __func__, NULL), worst = 0;
    fill(&g, 1, false);
    for (int side = 0; side < 2; side++) {
        tern__call call = {.kernel = kernel, .in = {&g}, .attr = attr};
        if (apart) call.in[TERN__OPTIM_SECTIONS] = &sections;
        if (apart) call.in[TERN__OPTIM_FACTORS] = &factors;
        for (int i = 0; i < outs; i++) {
            out[side][i] = new_vector(dtype, count);
            fill_state(kernel, &out[side][i], i);
            call.out[i] = &out[side][i];
            for (int64_t k = 0; k < count; k++)
                size[k] =
                    fmax(fmax(size[k], fabs(tern__view_get(&g, k))), fabs(tern__view_get(&out[side][i], k)));
        }
        run(side ? "cpu:reference" : "cpu", threads, &call);
    }
    for (int i = 0; i < outs; i++) {
        worst = fmax(worst, ulps(&out[0][i], &out[1][i], size));
        tern__free(out[0][i].data);
        tern__free(out[1][i].data);
    }
    tern__free(g.data);
    tern__free(size);
    return worst;
}

static void expect_equal(tern__kernel kernel, const void *attr, int outs)
{
    for (size_t s = 0; s < TERN__COUNT(sizes); s++)
        for (int kind = 0; kind < 4; kind++) {
            tern_dtype dtype = kind % 2 ? TERN_F64 : TERN_F32;
            double worst = compare(kernel, attr, dtype, sizes[s], outs, 1 + s % 2, kind / 2);
            if (!(worst <= 4))
                fail_msg("%s of %d elements%s: %g ulps", tern__kernel_name(kernel), (int)sizes[s],
                         kind / 2 ? " in sections" : "", worst);
        }
}

static void sgd(void **state)
{
    (void)state;
    for (int bits = 0; bits < 16; bits++) {
        tern__sgd_attr attr = {.step = {0.1, bits & 2 ? -1 : 0.75, 0.01, bits & 4 ? 1 : 2},
                               .momentum = 0.9,
                               .dampening = bits & 1 ? 0.25 : 0,
                               .nesterov = bits & 1 ? 0 : 1};
        expect_equal(TERN__SGD, &attr, bits & 8 ? 2 : 1);
    }
}

static void adam(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        tern__adam_attr attr = {.step = {0.1, bits & 2 ? -1 : 0.75, bits & 1 ? 0 : 0.01, 7},
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .eps = 1e-3,
                                .keep = bits & 1 ? 0.999 : 1};
        expect_equal(TERN__ADAM, &attr, bits & 4 ? 4 : 3);
    }
}

static void rmsprop(void **state)
{
    (void)state;
    for (int outs = 2; outs <= 4; outs++)
        for (int sign = -1; sign <= 1; sign += 2) {
            tern__rmsprop_attr attr = {.step = {0.1, sign, 0.01}, .alpha = 0.9, .eps = 1e-3, .momentum = 0.5};
            expect_equal(TERN__RMSPROP, &attr, outs);
        }
}

static void adagrad(void **state)
{
    (void)state;
    for (int bits = 0; bits < 4; bits++) {
        tern__adagrad_attr attr = {.step = {0.1, bits & 1 ? -1 : 0.75, 0.01, bits & 2 ? 1 : 5},
                                   .eps = 1e-3,
                                   .start = 2,
                                   .lr_decay = 0.5};
        expect_equal(TERN__ADAGRAD, &attr, 2);
    }
}

/* ---- masters and 16 bits ---- */

typedef struct mix {
    tern_dtype p, g, states;
    int copy; /* the copy's dtype, or -1 */
} mix;

static const mix mixes[] = {
    {TERN_F32, TERN_F32, TERN_F32, TERN_BF16}, {TERN_F32, TERN_BF16, TERN_F32, TERN_BF16},
    {TERN_F32, TERN_F16, TERN_F32, TERN_F16},  {TERN_BF16, TERN_BF16, TERN_BF16, -1},
    {TERN_F16, TERN_F32, TERN_F32, -1},        {TERN_BF16, TERN_F32, TERN_BF16, -1},
};

/* Returns one unit in the last place, relative to the number. */
static double unit_of(tern_dtype dtype)
{
    return dtype == TERN_BF16 ? 0x1p-7 : dtype == TERN_F16 ? 0x1p-10 : 8 * FLT_EPSILON;
}

static void expect_close(const tern__view *got, const tern__view *want, const double *size)
{
    for (int64_t i = 0; i < tern__view_count(got); i++) {
        double a = tern__view_get(got, i), b = tern__view_get(want, i);
        if (fabs(a - b) > unit_of(got->dtype) * fmax(size[i], fabs(b)))
            fail_msg("%s %lld: %.9g, expected %.9g", tern_dtype_name(got->dtype), (long long)i, a, b);
    }
}

/* Checks that the copy is the rounded master, bit for bit. */
static void expect_rounded(const tern__view *copy, const tern__view *master)
{
    tern__view one = tern__view_make(copy->dtype, TERN__PLAIN, 0, NULL);
    uint16_t bits;
    one.data = &bits;
    for (int64_t i = 0; i < tern__view_count(copy); i++) {
        tern__view_set(&one, 0, tern__view_get(master, i));
        assert_int_equal(((uint16_t *)copy->data)[i], bits);
    }
}

static void compare_mix(tern__kernel kernel, const void *attr, const mix *m, int64_t count, int states,
                        int threads)
{
    tern__view g = new_vector(m->g, count), out[2][TERN__KERNEL_OUTS] = {0};
    double *size = tern__alloc((size_t)count * sizeof(*size), __func__, NULL);
    fill(&g, 1, false);
    for (int side = 0; side < 2; side++) {
        tern__call call = {.kernel = kernel, .in = {&g}, .attr = attr};
        for (int i = 0; i < TERN__KERNEL_OUTS; i++) {
            if (i > states && (i != TERN__OPTIM_COPY || m->copy < 0)) continue;
            out[side][i] = new_vector(i == TERN__OPTIM_COPY ? (tern_dtype)m->copy
                                      : i                   ? m->states
                                                            : m->p,
                                      count);
            fill(&out[side][i], (uint32_t)i + 2, i > 1);
            call.out[i] = &out[side][i];
            for (int64_t k = 0; k < count; k++)
                size[k] =
                    fmax(size[k], fmax(fabs(tern__view_get(&g, k)), fabs(tern__view_get(&out[side][i], k))));
        }
        run(side ? "cpu:reference" : "cpu", threads, &call);
        if (m->copy >= 0) expect_rounded(&out[side][TERN__OPTIM_COPY], &out[side][0]);
    }
    for (int i = 0; i < TERN__KERNEL_OUTS; i++) {
        if (out[0][i].data && i < TERN__OPTIM_COPY) expect_close(&out[0][i], &out[1][i], size);
        tern__free(out[0][i].data);
        tern__free(out[1][i].data);
    }
    tern__free(g.data);
    tern__free(size);
}

static void masters_and_halves(void **state)
{
    (void)state;
    tern__sgd_attr sgd_attr = {.step = {0.1, 1, 0.01}, .momentum = 0.9};
    tern__adam_attr adam_attr = {
        .step = {0.1, 1, 0, 7}, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .keep = 0.99};
    for (size_t i = 0; i < TERN__COUNT(mixes); i++)
        for (size_t s = 0; s < TERN__COUNT(sizes); s++) {
            compare_mix(TERN__SGD, &sgd_attr, &mixes[i], sizes[s], (int)(s % 2), 1 + (int)(s % 3));
            compare_mix(TERN__ADAM, &adam_attr, &mixes[i], sizes[s], 2, 1 + (int)(s % 3));
        }
}

/* The same with numbers that are exact. */
static void halves(void **state)
{
    (void)state;
    tern_device *device = tern_device_open("cpu", NULL);
    const tern_dtype dtypes[] = {TERN_BF16, TERN_F16};
    for (int d = 0; d < 2; d++) {
        tern__view g = new_vector(dtypes[d], 3), p = new_vector(dtypes[d], 3), b = new_vector(dtypes[d], 3);
        for (int64_t i = 0; i < 3; i++) {
            tern__view_set(&g, i, (double)i - 1);
            tern__view_set(&p, i, 4);
            tern__view_set(&b, i, 2);
        }
        tern__sgd_attr attr = {.step = {0.5, 1, 0.125}, .momentum = 0.25};
        tern__call call = {.device = device, .kernel = TERN__SGD, .in = {&g}, .out = {&p, &b}, .attr = &attr};
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
        for (int64_t i = 0; i < 3; i++) {
            assert_true(tern__view_get(&b, i) == 0.5 + (double)i - 1 + 0.5);
            assert_true(tern__view_get(&p, i) == 4 - 0.5 * (double)i);
        }
        tern__free(g.data);
        tern__free(p.data);
        tern__free(b.data);
    }
    tern_device_close(device);
}

/* A NaN in the largest second moment stays. */
static void amsgrad_keeps_a_nan(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        tern_device *device = tern_device_open(reference ? "cpu:reference" : "cpu", NULL);
        tern__view v[5];
        for (int i = 0; i < 5; i++) v[i] = new_vector(TERN_F32, 40);
        tern__view_set(&v[4], 3, NAN);
        tern__view_set(&v[4], 5, 1);
        tern__view_set(&v[0], 20, NAN);
        tern__adam_attr attr = {.step = {1, 1, 0, 1}, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .keep = 1};
        tern__call call = {.device = device,
                           .kernel = TERN__ADAM,
                           .in = {&v[0]},
                           .out = {&v[1], &v[2], &v[3], &v[4]},
                           .attr = &attr};
        assert_int_equal(tern__kernel_run(&call), TERN_OK);
        for (int64_t i = 0; i < 40; i++) {
            bool nan = i == 3 || i == 20;
            assert_true(isnan(tern__view_get(&v[4], i)) == nan && isnan(tern__view_get(&v[1], i)) == nan);
            if (!nan) assert_true(tern__view_get(&v[4], i) == (i == 5));
        }
        for (int i = 0; i < 5; i++) tern__free(v[i].data);
        tern_device_close(device);
    }
}

/* ---- LAMB's two passes ---- */

static const tern__lamb_attr lamb_attr = {.step = {0.1, 0.75, 0.01, 3},
                                          .beta1 = 0.9,
                                          .take = 0.2,
                                          .beta2 = 0.99,
                                          .unbias = 1,
                                          .eps = 1e-3,
                                          .pull = 0.1};

static void lamb(void **state)
{
    (void)state;
    expect_equal(TERN__LAMB, &lamb_attr, 3);
}

/* Runs the first pass over p, m and v of `dtype` and g of `grad`, in sections with gaps between them, and
 * returns the sections' sums. */
static void move(const char *device, int threads, tern_dtype dtype, tern_dtype grad, int64_t count,
                 int64_t lead, tern__view out[3], double sums[2 * SECTIONS])
{
    tern__section table[SECTIONS];
    tern__view g = new_vector(grad, count), sections = cut(count, lead, table);
    tern__view all = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){sections.shape[0], 2});
    all.data = sums;
    fill(&g, 1, false);
    for (int i = 0; i < 3; i++) {
        out[i] = new_vector(dtype, count);
        fill(&out[i], (uint32_t)i + 2, i == 2);
    }
    tern__call call = {.kernel = TERN__LAMB_MOMENTS,
                       .in = {&g, [TERN__OPTIM_SECTIONS] = &sections},
                       .out = {&out[0], &out[1], &out[2], &all},
                       .attr = &lamb_attr};
    run(device, threads, &call);
    tern__free(g.data);
}

static void compare_moments(tern_dtype dtype, tern_dtype grad, int64_t count, int64_t lead)
{
    tern__view got[3], again[3], want[3];
    double sums[3][2 * SECTIONS] = {{0}};
    move("cpu", 1, dtype, grad, count, lead, got, sums[0]);
    move("cpu", 3, dtype, grad, count, lead, again, sums[1]);
    move("cpu:reference", 1, dtype, grad, count, lead, want, sums[2]);
    double *size = tern__alloc((size_t)count * sizeof(*size), __func__, NULL);
    for (int64_t k = 0; k < count; k++) size[k] = 1e3;
    for (int i = 0; i < 3; i++) {
        assert_true(ulps(&got[i], &want[i], size) <= 4);
        assert_memory_equal(got[i].data, again[i].data, tern__view_bytes(&got[i]));
        tern__free(got[i].data);
        tern__free(again[i].data);
        tern__free(want[i].data);
    }
    tern__free(size);
    assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
    double unit = dtype == TERN_F64 ? 1e-13 : 1e-5;
    for (int i = 0; i < 2 * SECTIONS; i++) assert_true(fabs(sums[0][i] - sums[2][i]) <= unit * sums[2][i]);
}

static void lamb_moments(void **state)
{
    (void)state;
    for (size_t s = 0; s < TERN__COUNT(sizes); s++)
        for (int lead = 16; lead <= 256; lead += 48) {
            compare_moments(TERN_F32, TERN_F32, sizes[s], lead);
            compare_moments(TERN_F64, TERN_F64, sizes[s], lead);
            compare_moments(TERN_F32, TERN_BF16, sizes[s], lead);
            if (sizes[s] <= 1000) compare_moments(TERN_BF16, TERN_BF16, sizes[s], lead);
        }
}

/* ---- the p-norm ---- */

/* The sums of sections go into every second number. */
static void power_sums_of_sections(void **state)
{
    (void)state;
    tern__section table[SECTIONS];
    tern__power_attr attr = {2};
    for (size_t s = 0; s < TERN__COUNT(sizes); s++)
        for (int d = 0; d < 2; d++) {
            double sums[3][2 * SECTIONS] = {{0}};
            tern__view x = new_vector(d ? TERN_BF16 : TERN_F32, sizes[s]),
                       sections = cut(sizes[s], 80, table);
            tern__view to = tern__view_make(TERN_F64, TERN__PLAIN, 1, sections.shape);
            to.stride[0] = 2;
            fill(&x, 9, false);
            for (int i = 0; i < 3; i++) {
                to.data = sums[i];
                run(i ? "cpu" : "cpu:reference", 1 + 2 * (i == 2),
                    &(tern__call){
                        .kernel = TERN__POWER_SUM, .in = {&x, &sections}, .out = {&to}, .attr = &attr});
            }
            for (int i = 0; i < 2 * SECTIONS; i++) {
                assert_true(i / 2 < sections.shape[0] && i % 2 == 0 ? sums[0][i] > 0 : sums[1][i] == 0);
                assert_true(fabs(sums[1][i] - sums[0][i]) <= 1e-12 * sums[0][i]);
            }
            assert_memory_equal(sums[1], sums[2], sizeof(sums[1]));
            tern__free(x.data);
        }
}

static double power_sum(const char *name, int threads, const tern__view *x, double p)
{
    double sum = -1;
    tern__view y = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    y.data = &sum;
    tern__power_attr attr = {p};
    run(name, threads, &(tern__call){.kernel = TERN__POWER_SUM, .in = {x}, .out = {&y}, .attr = &attr});
    return sum;
}

static void power_sums(void **state)
{
    (void)state;
    static const double orders[] = {1, 2, 3, 0.5, INFINITY};
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    for (size_t s = 0; s < TERN__COUNT(sizes); s++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++)
            for (size_t o = 0; o < TERN__COUNT(orders); o++) {
                tern__view x = new_vector(dtypes[d], sizes[s]);
                fill(&x, 9, false);
                double want = power_sum("cpu:reference", 1, &x, orders[o]),
                       got = power_sum("cpu", 1, &x, orders[o]);
                assert_true(want > 0 && fabs(got / want - 1) < 1e-12);
                assert_true(power_sum("cpu", 3, &x, orders[o]) == got);
                tern__view_set(&x, sizes[s] / 2, NAN);
                for (int threads = 1; threads < 3; threads++) {
                    assert_true(isnan(power_sum("cpu", threads, &x, orders[o])));
                    assert_true(isnan(power_sum("cpu:reference", threads, &x, orders[o])));
                }
                tern__free(x.data);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd),
        cmocka_unit_test(adam),
        cmocka_unit_test(rmsprop),
        cmocka_unit_test(adagrad),
        cmocka_unit_test(lamb),
        cmocka_unit_test(lamb_moments),
        cmocka_unit_test(halves),
        cmocka_unit_test(amsgrad_keeps_a_nan),
        cmocka_unit_test(masters_and_halves),
        cmocka_unit_test(power_sums),
        cmocka_unit_test(power_sums_of_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
