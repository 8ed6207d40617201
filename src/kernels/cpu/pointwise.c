/* pointwise.c - all pointwise kernels on views of any dtype, stride and layout.
 *
 * Each thread goes over its part of the elements. If an operand has the dtype of the computation and its
 * elements are contiguous, the loop reads or writes it in place. The others go through a stage, one
 * stretch at a time. */
#include "kernels/pointwise.h"
#include "kernels/cpu/loops.h"
#include "kernels/plan.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_math.h"

#include <string.h>

#define INS TERN__POINTWISE_INS /* in the plan the output follows them */

/* ---- the loops: one for each kernel and type of computation ---- */

typedef void (*loop_fn)(void *out, const void *const in[INS], const double *numbers, int64_t n);

#define TAKE_1(R) R a = ((const R *)in[0])[i];
#define TAKE_2(R) TAKE_1(R) R b = ((const R *)in[1])[i];
#define TAKE_3(R) TAKE_2(R) R c = ((const R *)in[2])[i];
#define TAKE_4(R) TAKE_3(R) R d = ((const R *)in[3])[i];

#define NUMBER_f32(k) (float)(k)
#define NUMBER_f64(k) (k)
#define NUMBER_i64(k) tern__nearest_integer(k)

/* ivdep: the output may be exactly an input, which is no dependence between elements. */
#define LOOP(ID, suffix, inputs, expression)                                                                 \
    TERN__SIMD static void ID##_##suffix(void *out, const void *const in[INS], const double *numbers,        \
                                         int64_t n)                                                          \
    {                                                                                                        \
        R *y = out;                                                                                          \
        const R k[2] = {NUMBER_##suffix(numbers[0]), NUMBER_##suffix(numbers[1])};                           \
        (void)k;                                                                                             \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                 \
        {                                                                                                    \
            TAKE_##inputs(R) y[i] = (R)(expression);                                                         \
        }                                                                                                    \
    }

#define R                                       float
#define P(ID, name, inputs, dtypes, expression) LOOP(ID, f32, inputs, expression)
#include "kernels/pointwise.def"
#undef P
#undef R

#define R                                       double
#define P(ID, name, inputs, dtypes, expression) LOOP(ID, f64, inputs, expression)
#include "kernels/pointwise.def"
#undef P
#undef R

#define INTEGER_ANY(ID, inputs, expression) LOOP(ID, i64, inputs, expression)
#define INTEGER_FLOAT(ID, inputs, expression)
#define R                                       int64_t
#define P(ID, name, inputs, dtypes, expression) INTEGER_##dtypes(ID, inputs, expression)
#include "kernels/pointwise.def"
#undef P
#undef R

#define I64_ANY(ID)   , ID##_i64
#define I64_FLOAT(ID) , NULL
static const loop_fn table[TERN__KERNEL_COUNT][TERN__COMPUTES] = {
#define P(ID, name, inputs, dtypes, expression) [TERN__##ID] = {ID##_f32, ID##_f64 I64_##dtypes(ID)},
#include "kernels/pointwise.def"
#undef P
};

/* ---- going over the elements ---- */

/* Elements of one operand: rows of n, whose elements are `stride` apart. */
typedef struct span {
    int64_t rows, row_stride, n, stride;
} span;

/* Long rows are processed one by one. Of short rows several whole ones are processed at a time: then the
 * plan goes from row to row, and `inner` describes a row. */
typedef struct walk {
    const tern__call *call;
    tern__plan plan;
    int64_t inner, inner_stride[INS + 1]; /* elements of a short row; 1 if rows are long */
    int64_t most;                         /* steps of the plan that fit into a stage */
    tern__compute compute;
    loop_fn loop;
    double numbers[2];
    const tern__view *view[INS + 1]; /* the inputs, then the output; NULL: absent */
    bool direct[INS + 1];
    bool casts; /* a copy that needs at most one stage */
} walk;

/* One thread's stages. Data that repeat in the next stretch are loaded once: `at` is their place plus one,
 * `count` their length. */
typedef struct stages {
    tern__stage stage[INS + 1];
    int64_t at[INS], count[INS];
} stages;

static void *pointwise_place(const walk *w, int i, int64_t at)
{
    return (char *)w->view[i]->data + at * (int64_t)tern_dtype_bytes(w->view[i]->dtype);
}

static span span_of(const walk *w, int i, int64_t steps)
{
    int64_t stride = w->plan.stride[i][0];
    if (w->inner == 1) return (span){1, 0, steps, stride};
    if (stride == w->inner * w->inner_stride[i]) return (span){1, 0, steps * w->inner, w->inner_stride[i]};
    return (span){steps, stride, w->inner, w->inner_stride[i]};
}

static tern__stage *pointwise_row_of(const walk *w, tern__stage *stage, int64_t element)
{
    return (tern__stage *)((char *)stage +
                           element * (int64_t)tern_dtype_bytes(tern__compute_dtype(w->compute)));
}

static void pointwise_load(const walk *w, stages *s, int i, int64_t at, int64_t steps)
{
    span p = span_of(w, i, steps);
    if (w->plan.stride[i][0] == 0) {
        if (s->at[i] == at + 1 && s->count[i] >= steps) return;
        s->at[i] = at + 1;
        s->count[i] = steps;
    }
    for (int64_t r = 0; r < p.rows; r++)
        tern__stage_load(w->compute, pointwise_row_of(w, &s->stage[i], r * p.n), w->view[i]->dtype,
                         w->view[i]->data, at + r * p.row_stride, p.stride, p.n);
}

static void pointwise_store(const walk *w, stages *s, int64_t at, int64_t steps)
{
    span p = span_of(w, INS, steps);
    for (int64_t r = 0; r < p.rows; r++)
        tern__stage_store(w->compute, pointwise_row_of(w, &s->stage[INS], r * p.n), w->view[INS]->dtype,
                          w->view[INS]->data, at + r * p.row_stride, p.stride, p.n, w->call->add[0]);
}

/* A copy whose one side can be used in place: that side is the stage. */
static void pointwise_cast(const walk *w, const tern__cursor *c, int64_t steps)
{
    int staged = w->direct[INS] ? 0 : INS, direct = INS - staged;
    span p = span_of(w, staged, steps);
    const tern__view *view = w->view[staged];
    tern__stage *stage = pointwise_place(w, direct, c->at[direct]);
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t at = c->at[staged] + r * p.row_stride;
        if (staged == INS)
            tern__stage_store(w->compute, pointwise_row_of(w, stage, r * p.n), view->dtype, view->data, at,
                              p.stride, p.n, w->call->add[0]);
        else
            tern__stage_load(w->compute, pointwise_row_of(w, stage, r * p.n), view->dtype, view->data, at,
                             p.stride, p.n);
    }
}

static void stretch(const walk *w, stages *s, const tern__cursor *c, int64_t steps)
{
    const void *in[INS] = {0};
    if (w->casts) {
        pointwise_cast(w, c, steps);
        return;
    }
    for (int i = 0; i < INS && w->view[i]; i++) {
        if (!w->direct[i]) pointwise_load(w, s, i, c->at[i], steps);
        in[i] = w->direct[i] ? pointwise_place(w, i, c->at[i]) : &s->stage[i];
    }
    void *out = w->direct[INS] ? pointwise_place(w, INS, c->at[INS]) : &s->stage[INS];
    if (!w->view[0]) in[0] = out;
    w->loop(out, in, w->numbers, steps * w->inner);
    if (!w->direct[INS]) pointwise_store(w, s, c->at[INS], steps);
}

static void pointwise_part(const walk *w, int64_t first, int64_t last)
{
    stages s;
    memset(s.at, 0, sizeof(s.at));
    tern__cursor c = tern__cursor_at(&w->plan, first);
    for (int64_t steps; first < last; first += steps) {
        steps = TERN__MIN(TERN__MIN(tern__cursor_room(&w->plan, &c), w->most), last - first);
        stretch(w, &s, &c, steps);
        tern__cursor_move(&w->plan, &c, steps);
    }
}

/* Where part t begins: at a row's start or a whole number of stages later, so that every element is
 * computed by the same instructions whatever the number of threads. */
static int64_t part_start(const walk *w, int t, int threads)
{
    int64_t at = w->plan.count * t / threads, stage = TERN__MAX(TERN__STAGE / w->inner, 1);
    return t == threads ? at : at - at % w->plan.shape[0] % stage;
}

/* Removes the innermost dimension from the plan, making it the row. */
static void take_rows(walk *w)
{
    tern__plan *p = &w->plan;
    w->inner = p->shape[0];
    for (int i = 0; i <= INS; i++) w->inner_stride[i] = p->stride[i][0];
    p->count /= w->inner;
    p->ndim--;
    for (int d = 0; d < p->ndim; d++) {
        p->shape[d] = p->shape[d + 1];
        for (int i = 0; i <= INS; i++) p->stride[i][d] = p->stride[i][d + 1];
    }
}

/* Finds the operands that the loop can use in place. */
static void find_direct(walk *w)
{
    bool all = true;
    for (int i = 0; i <= INS; i++) {
        if (!w->view[i]) continue;
        span p = span_of(w, i, w->plan.shape[0]);
        w->direct[i] = w->view[i]->dtype == tern__compute_dtype(w->compute) && p.rows == 1 &&
                       (p.stride == 1 || p.n == 1) && !(i == INS && w->call->add[0]);
        all = all && w->direct[i];
    }
    w->casts = w->call->kernel == TERN__COPY && w->direct[0] != w->direct[INS];
    w->most = all || w->casts ? INT64_MAX : TERN__STAGE / w->inner;
}

static walk pointwise_walk_of(const tern__call *call)
{
    walk w = {.call = call, .inner = 1};
    for (int i = 0; i < INS; i++) w.view[i] = call->in[i];
    if (call->kernel == TERN__FILL)
        w.view[0] = NULL; /* its input only tells the shape, and may hold no values yet */
    w.view[INS] = call->out[0];
    w.plan = tern__plan_of(w.view, INS + 1);
    /* A copy is computed in its source's type and so rounded once. */
    w.compute = tern__compute_of(w.view, call->kernel == TERN__COPY && !call->add[0] ? INS : INS + 1);
    w.loop = table[call->kernel][w.compute];
    tern__pointwise_numbers(call, w.numbers);
    return w;
}

int tern__cpu_pointwise(const tern__call *call)
{
    walk w = pointwise_walk_of(call);
    if (!w.loop) return TERN_E_UNSUPPORTED;
    int64_t count = w.plan.count;
    if (count == 0 || (call->kernel == TERN__COPY && tern__transpose(call, &w.plan, 0, INS))) return TERN_OK;
    if (w.plan.ndim > 1 && w.plan.shape[0] <= TERN__STAGE / 2) take_rows(&w);
    find_direct(&w);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        pointwise_part(&w, part_start(&w, t, threads), part_start(&w, t + 1, threads));
    return TERN_OK;
}

int tern__cpu_copy(const tern__call *call)
{
    tern__call copy = *call;
    copy.kernel = TERN__COPY;
    copy.attr = NULL;
    return tern__cpu_pointwise(&copy);
}
