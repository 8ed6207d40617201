/* test_attention.c - compares the fast kernels of attention with the reference: random sizes, strides and
 * gaps, groups of heads, masks that are broadcast, outputs that are absent or added to. Each operand ends
 * with its memory, so that a sanitizer sees what is read behind it. */
#include "check.h"

#include "kernels/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 80

static uint32_t state = 1;

static int64_t draw(int64_t low, int64_t high)
{
    state = state * 1664525 + 1013904223;
    return low + (int64_t)((uint64_t)(state >> 8) * (uint64_t)(high - low + 1) >> 24);
}

/* The elements of a view's memory, with the gaps. */
static int64_t reach_of(const tern__view *v)
{
    int64_t reach = 1;
    for (int d = 0; d < v->ndim; d++) reach += (v->shape[d] - 1) * v->stride[d];
    return reach;
}

static tern__view memory_of(const tern__view *v)
{
    int64_t reach = reach_of(v);
    tern__view all = tern__view_make(v->dtype, TERN__PLAIN, 1, &reach);
    all.data = v->data;
    return all;
}

static void view_fill(tern__view *v)
{
    v->data = malloc((size_t)reach_of(v) * tern_dtype_bytes(v->dtype));
    tern__view all = memory_of(v);
    for (int64_t i = 0; i < all.shape[0]; i++)
        tern__view_set(&all, i, v->dtype == TERN_BOOL ? (double)(draw(0, 3) > 0) : (double)draw(-9, 9) / 8);
}

/* Random strides: rows, heads and samples in any order and with gaps; elements of a row are adjacent, or now
 * and then not. Dimensions whose bit is set in `repeated` have stride 0. */
static tern__view random_view(tern_dtype dtype, const int64_t shape[4], unsigned repeated, bool any_order)
{
    tern__view v = tern__view_make(dtype, TERN__PLAIN, 4, shape);
    int order[4] = {3, 2, 1, 0};
    for (int i = 1; i < 4; i++) {
        int k = (int)draw(any_order && draw(0, 5) == 0 ? 0 : 1, i);
        int kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
    int64_t stride = 1;
    for (int i = 0; i < 4; i++) {
        int d = order[i];
        v.stride[d] = repeated >> d & 1 ? 0 : stride;
        if (v.stride[d]) stride = stride * shape[d] + (i > 0 || d < 3 ? draw(0, 2) : 0);
    }
    view_fill(&v);
    return v;
}

static tern__view dense_view(tern_dtype dtype, int ndim, const int64_t *shape)
{
    tern__view v = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    view_fill(&v);
    return v;
}

static tern__view twin_of(const tern__view *v)
{
    tern__view twin = *v;
    size_t bytes = (size_t)reach_of(v) * tern_dtype_bytes(v->dtype);
    twin.data = memcpy(malloc(bytes), v->data, bytes);
    return twin;
}

static void run_on(const char *device, int threads, tern__call *call)
{
    tern_error err = {0};
    tern_device *d = tern_device_open(device, &err);
    tern_device_threads_set(d, threads, &err);
    assert_ok(err);
    call->device = d;
    call->err = &err;
    tern__kernel_run(call);
    assert_ok(err);
    tern_device_close(d);
}

/* Inputs are about 1. In 16 bits delta is computed from a rounded result, and sums over many queries of what
 * cancels would be nothing but that. */
static double tolerance_of(tern_dtype dtype, bool back)
{
    if (dtype == TERN_F64) return 1e-13;
    if (dtype == TERN_F32) return back ? 1e-5 : 3e-6;
    return (dtype == TERN_BF16 ? 1.0 / 128 : 1.0 / 1024) * (back ? 2 : 1);
}

static void assert_near(const tern__view *got, const tern__view *want, double tolerance)
{
    tern__view a = memory_of(got), b = memory_of(want);
    double largest = 1;
    for (int64_t i = 0; i < b.shape[0]; i++)
        if (isfinite(tern__view_get(&b, i))) largest = fmax(largest, fabs(tern__view_get(&b, i)));
    for (int64_t i = 0; i < b.shape[0]; i++) {
        double x = tern__view_get(&a, i), y = tern__view_get(&b, i);
        if (isinf(y))
            assert_true(x == y);
        else
            assert_true(fabs(x - y) <= tolerance * largest);
    }
}

/* Runs the call on both devices and compares all outputs, gaps included. */
static void compare(tern__call *call, double tolerance)
{
    tern__view want[TERN__KERNEL_OUTS];
    const tern__view *out[TERN__KERNEL_OUTS];
    memcpy(out, call->out, sizeof(out));
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (out[i]) want[i] = twin_of(out[i]);
    run_on("cpu", (int)draw(1, 3), call);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (out[i]) call->out[i] = &want[i];
    run_on("cpu:reference", 1, call);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++) {
        if (!out[i]) continue;
        assert_near(out[i], &want[i], tolerance);
        free(want[i].data);
    }
}

/* A problem with all of its operands. */
enum { Q, K, V, MASK, Y, DY, DQ, DK, DV, DMASK, LSE, VIEWS };

typedef struct problem {
    tern_dtype dtype, mask_dtype;
    int64_t shape[4][4]; /* of q, k, v and the mask */
    tern__attention_attr attr;
    bool has_mask, is_summed; /* of 16 bits, with a mask that is broadcast */
    tern__view view[VIEWS];
} problem;

static problem random_problem(int round)
{
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    problem p = {.dtype = dtypes[round % 4]};
    int64_t b = draw(1, 2), heads = draw(1, 2), group = draw(1, 2), d = draw(1, 40), e = draw(1, 40);
    int64_t queries = draw(1, 30), keys = draw(1, 30);
    if (round % 5 == 1) queries = draw(90, 200);
    if (round % 5 == 2) keys = draw(120, 280);
    if (round % 5 == 3) queries = draw(80, 120), keys = draw(110, 140), b = group = 1;
    memcpy(p.shape[Q], (int64_t[]){b, heads * group, queries, d}, sizeof(p.shape[Q]));
    memcpy(p.shape[K], (int64_t[]){b, heads, keys, d}, sizeof(p.shape[K]));
    memcpy(p.shape[V], (int64_t[]){b, heads, keys, e}, sizeof(p.shape[V]));
    memcpy(p.shape[MASK], (int64_t[]){b, heads * group, queries, keys}, sizeof(p.shape[MASK]));
    p.has_mask = draw(0, 2) > 0;
    p.mask_dtype = draw(0, 1) ? TERN_BOOL : draw(0, 1) && p.dtype != TERN_F64 ? TERN_F32 : p.dtype;
    p.attr = (tern__attention_attr){.scale = 0.3, .is_causal = !p.has_mask && draw(0, 1)};
    if (draw(0, 2) == 0)
        p.attr.dropout = (tern__dropout_attr){.key = 5, .step = 2, .threshold = 1u << 30, .scale = 4.0 / 3};
    return p;
}

static void problem_make(problem *p)
{
    unsigned repeated = (unsigned)draw(0, 15);
    int64_t y[4] = {p->shape[Q][0], p->shape[Q][1], p->shape[Q][2], p->shape[V][3]}, own[4];
    p->is_summed = repeated && (p->dtype == TERN_BF16 || p->dtype == TERN_F16);
    for (int i = Q; i <= V; i++) p->view[i] = random_view(p->dtype, p->shape[i], 0, true);
    p->view[MASK] = random_view(p->mask_dtype, p->shape[MASK], repeated, true);
    p->view[Y] = random_view(p->dtype, y, 0, false);
    p->view[DY] = random_view(p->dtype, y, 0, true);
    for (int i = Q; i <= V; i++) p->view[DQ + i] = random_view(p->dtype, p->shape[i], 0, false);
    for (int d = 0; d < 4; d++) own[d] = repeated >> d & 1 ? 1 : p->shape[MASK][d];
    tern__view dmask = dense_view(p->mask_dtype == TERN_BOOL ? TERN_F32 : p->mask_dtype, 4, own);
    p->view[DMASK] = tern__broadcast_view(&dmask, 4, p->shape[MASK]);
    p->view[LSE] = dense_view(p->dtype == TERN_F64 ? TERN_F64 : TERN_F32, 3, y);
}

static void fast_kernels_do_what_the_reference_does(void **unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        problem p = random_problem(round);
        problem_make(&p);
        tern__view *v = p.view;
        const tern__view *mask = p.has_mask ? &v[MASK] : NULL;
        tern__call forward = {.kernel = TERN__ATTENTION, .in = {&v[Q], &v[K], &v[V], mask}, .attr = &p.attr};
        forward.out[0] = &v[Y];
        forward.out[1] = &v[LSE];
        compare(&forward, tolerance_of(p.dtype, false));
        tern__call back = {.kernel = TERN__ATTENTION_GRAD,
                           .in = {&v[DY], &v[Q], &v[K], &v[V], mask, &v[Y], &v[LSE]},
                           .attr = &p.attr};
        for (int i = 0; i < 4; i++) {
            bool has_none = i == 3 && (!mask || p.mask_dtype == TERN_BOOL || p.is_summed);
            back.out[i] = draw(0, 3) && !has_none ? &v[DQ + i] : NULL;
            back.add[i] = draw(0, 1);
        }
        compare(&back, tolerance_of(p.dtype, true));
        for (int i = 0; i < VIEWS; i++) free(v[i].data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_kernels_do_what_the_reference_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
