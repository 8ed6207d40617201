/* broadcast.c - add, mul, scale and sum, where an input (of sum: the output) may be broadcast. Neighbouring
 * dimensions that all operands walk through alike are merged into one, so that equal shapes become one long
 * run, and so does a scalar. The last dimension that is left is the inner loop; threads take equal parts of
 * the elements. */
#include "kernels/broadcast.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define LANES TERN__LANES
#define CHUNK 16384 /* elements of a long sum that are added before they meet others  */

enum { A, B, Y, OPERANDS };

/* What is left of the dimensions, the innermost first. An operand that is not there has strides 0. */
typedef struct plan {
    int ndim;
    int64_t shape[TERN_NDIM_MAX], stride[OPERANDS][TERN_NDIM_MAX];
    float *data[OPERANDS];
    int64_t count;
} plan;

static bool is_scalar(const tern__view *view)
{
    for (int d = 0; d < view->ndim; d++)
        if (view->shape[d] != 1 && view->stride[d] != 0) return false;
    return view->layout == TERN__PLAIN;
}

/* The next dimension outwards: one with the last if every operand walks on through it. */
static void push(plan *p, int64_t size, const int64_t stride[OPERANDS])
{
    int last = p->ndim - 1;
    bool on = true;
    for (int i = 0; i < OPERANDS; i++) on = on && stride[i] == p->stride[i][last] * p->shape[last];
    if (size == 1) return;
    if (on && p->shape[last] > 1) {
        p->shape[last] *= size;
        return;
    }
    if (p->shape[last] > 1) last = p->ndim++;
    p->shape[last] = size;
    for (int i = 0; i < OPERANDS; i++) p->stride[i][last] = stride[i];
}

/* False for what the loops below do not take. All views have the same shape. Blocked ones are walked in the
 * order of memory, which fits only blocked ones and scalars. */
static bool plan_make(plan *p, const tern__view *const view[OPERANDS])
{
    bool blocked = false;
    for (int i = 0; i < OPERANDS; i++) blocked = blocked || (view[i] && view[i]->layout == TERN__BLOCKED16);
    *p = (plan){.ndim = 1, .shape = {1}, .count = tern__view_count(view[A])};
    int64_t stride[OPERANDS] = {0};
    for (int i = 0; i < OPERANDS; i++) {
        if (!view[i]) continue;
        stride[i] = view[i]->layout == TERN__BLOCKED16;
        if (view[i]->dtype != TERN_F32 || (blocked && !stride[i] && !is_scalar(view[i]))) return false;
        p->data[i] = view[i]->data;
    }
    if (blocked) push(p, p->count, stride);
    for (int d = view[A]->ndim - 1; d >= 0 && !blocked; d--) {
        for (int i = 0; i < OPERANDS; i++) stride[i] = view[i] ? view[i]->stride[d] : 0;
        push(p, view[A]->shape[d], stride);
    }
    return p->count > 0;
}

/* Where row `row` of operand i begins: all dimensions but the innermost. */
static int64_t row_at(const plan *p, int i, int64_t row)
{
    int64_t offset = 0;
    for (int d = 1; d < p->ndim; d++) {
        offset += row % p->shape[d] * p->stride[i][d];
        row /= p->shape[d];
    }
    return offset;
}

static double factor_of(const tern__call *call)
{
    return ((const tern__factor_attr *)call->attr)->factor;
}

/* ---- y = a + b, a * b, factor * a ---- */

typedef struct run {
    float *a, *b, *y;
    int64_t a_stride, b_stride, count;
    float factor;
    bool add;
} run;

/* ivdep: y may lie exactly over a or b, which is no dependence between elements. */
TERN__INLINE void loop(tern__kernel kernel, const run *r, int64_t a_stride, int64_t b_stride)
{
    float *y = r->y;
    const float *a = r->a, *b = r->b;
    bool add = r->add;
    float factor = r->factor;
#pragma GCC ivdep
    for (int64_t i = 0; i < r->count; i++) {
        float u = a[i * a_stride];
        float v = kernel == TERN__SCALE ? factor * u
                  : kernel == TERN__ADD ? u + b[i * b_stride]
                                        : u * b[i * b_stride];
        y[i] = add ? y[i] + v : v;
    }
}

TERN__INLINE void loops(tern__kernel kernel, const run *r)
{
    if (r->a_stride == 1 && r->b_stride == 1)
        loop(kernel, r, 1, 1);
    else if (r->a_stride == 1 && r->b_stride == 0)
        loop(kernel, r, 1, 0);
    else if (r->a_stride == 0 && r->b_stride == 1)
        loop(kernel, r, 0, 1);
    else
        loop(kernel, r, r->a_stride, r->b_stride);
}

TERN__SIMD static void add_run(const run *r)
{
    loops(TERN__ADD, r);
}

TERN__SIMD static void mul_run(const run *r)
{
    loops(TERN__MUL, r);
}

TERN__SIMD static void scale_run(const run *r)
{
    loops(TERN__SCALE, r);
}

typedef void (*run_fn)(const run *r);

/* Elements first to last - 1 of y, in runs that end with a row. */
static void part(const plan *p, const tern__call *call, run_fn fn, int64_t first, int64_t last)
{
    int64_t inner = p->shape[0];
    run r = {.a_stride = p->stride[A][0],
             .b_stride = p->stride[B][0],
             .factor = call->attr ? (float)factor_of(call) : 0,
             .add = call->add[0]};
    for (int64_t i = first; i < last; i += r.count) {
        int64_t row = i / inner, at = i % inner;
        r.count = TERN__MIN(inner - at, last - i);
        r.a = p->data[A] + row_at(p, A, row) + at * r.a_stride;
        r.b = p->data[B] ? p->data[B] + row_at(p, B, row) + at * r.b_stride : NULL;
        r.y = p->data[Y] + i;
        fn(&r);
    }
}

static int elementwise(const tern__call *call, run_fn fn)
{
    const tern__view *y = call->out[0], *const views[OPERANDS] = {call->in[0], call->in[1], y};
    plan p;
    if (y->layout == TERN__PLAIN && !tern__view_is_contiguous(y)) return TERN_E_UNSUPPORTED;
    if (!plan_make(&p, views)) return TERN_E_UNSUPPORTED;
    int threads = tern__loop_threads(call, p.count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) part(&p, call, fn, p.count * t / threads, p.count * (t + 1) / threads);
    return TERN_OK;
}

int tern__cpu_add(const tern__call *call)
{
    return elementwise(call, add_run);
}

int tern__cpu_mul(const tern__call *call)
{
    return elementwise(call, mul_run);
}

int tern__cpu_scale(const tern__call *call)
{
    return elementwise(call, scale_run);
}

/* ---- sum ----
 *
 * Sums are kept in double. All elements into one: chunks of them are summed apart and then added up in their
 * order, so that the number of threads does not matter. Otherwise row by row, by one thread. */

TERN__SIMD static double run_sum(const float *x, int64_t count)
{
    double sum[LANES] = {0}, all = 0;
    int64_t rows = count / LANES;
    for (int64_t first = 0; first < rows; first += 64) {
        tern__lanes block = {0};
        int64_t last = TERN__MIN(rows, first + 64);
        for (int64_t r = first; r < last; r++) block += tern__lanes_load(x + r * LANES, LANES);
        for (int l = 0; l < LANES; l++) sum[l] += (double)block[l];
    }
    for (int64_t i = rows * LANES; i < count; i++) all += (double)x[i];
    for (int l = 0; l < LANES; l++) all += sum[l];
    return all;
}

TERN__SIMD static void add_row(double *sum, int64_t stride, const float *x, int64_t x_stride, int64_t count)
{
    if (stride == 1 && x_stride == 1)
        for (int64_t i = 0; i < count; i++) sum[i] += (double)x[i];
    else
        for (int64_t i = 0; i < count; i++) sum[i * stride] += (double)x[i * x_stride];
}

static void sum_rows(const plan *p, double *sum)
{
    int64_t rows = p->count / p->shape[0], stride = p->stride[Y][0], x_stride = p->stride[A][0];
    for (int64_t row = 0; row < rows; row++) {
        const float *x = p->data[A] + row_at(p, A, row);
        double *to = sum + row_at(p, Y, row);
        if (stride == 0 && x_stride == 1)
            *to += run_sum(x, p->shape[0]);
        else
            add_row(to, stride, x, x_stride, p->shape[0]);
    }
}

static void sum_chunks(const tern__call *call, const plan *p, double *partial, int64_t chunks)
{
    int threads = (int)TERN__MIN((int64_t)call->device->threads, chunks);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        partial[c] = run_sum(p->data[A] + c * CHUNK, TERN__MIN(CHUNK, p->count - c * CHUNK));
    for (int64_t c = 1; c < chunks; c++) partial[0] += partial[c];
}

/* How many elements y has of its own. */
static int64_t own_count(const tern__view *y)
{
    int64_t count = 1;
    for (int d = 0; d < y->ndim; d++) count *= y->stride[d] ? y->shape[d] : 1;
    return count;
}

int tern__cpu_sum(const tern__call *call)
{
    const tern__view *y = call->out[0], *const views[OPERANDS] = {[A] = call->in[0], [Y] = y};
    plan p;
    if (!plan_make(&p, views)) return TERN_E_UNSUPPORTED;
    bool one = p.ndim == 1 && p.stride[A][0] == 1 && p.stride[Y][0] == 0;
    int64_t sums = y->layout == TERN__PLAIN ? own_count(y) : p.count, chunks = (p.count + CHUNK - 1) / CHUNK;
    size_t bytes = (size_t)(one ? chunks : sums) * sizeof(double);
    double *sum = tern__loop_scratch(call, bytes);
    if (!sum) return TERN_E_MEMORY;
    memset(sum, 0, bytes);
    if (one)
        sum_chunks(call, &p, sum, chunks);
    else
        sum_rows(&p, sum);
    for (int64_t o = 0; o < sums; o++) {
        double value = factor_of(call) * sum[o] + (call->add[0] ? (double)p.data[Y][o] : 0);
        p.data[Y][o] = (float)value;
    }
    return TERN_OK;
}
