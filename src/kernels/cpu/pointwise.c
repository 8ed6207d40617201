/* pointwise.c - all pointwise kernels on views of any dtype, stride and layout.
 *
 * Each thread walks through its part of the elements row by row. Where an operand stands in memory as the
 * loop wants it (its dtype is the one computed in, its elements are neighbours), the loop reads and writes it
 * in place; the others go through a stage, a stretch at a time. A scalar's stage is filled once. */
#include "kernels/pointwise.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_math.h"

#include <string.h>

#define INS TERN__POINTWISE_INS /* in the plan the output stands after them */

/* ---- the loops: one for each kernel and type computed in ---- */

typedef void (*loop_fn)(void *out, const void *const in[INS], const double *numbers, int64_t n);

#define TAKE_1(R) R a = ((const R *)in[0])[i];
#define TAKE_2(R) TAKE_1(R) R b = ((const R *)in[1])[i];
#define TAKE_3(R) TAKE_2(R) R c = ((const R *)in[2])[i];
#define TAKE_4(R) TAKE_3(R) R d = ((const R *)in[3])[i];

#define NUMBER_f32(k) (float)(k)
#define NUMBER_f64(k) (k)
#define NUMBER_i64(k) tern__nearest_integer(k)

/* ivdep: the output may lie exactly over an input, which is no dependence between elements. */
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

/* ---- the walk ---- */

typedef struct walk {
    const tern__call *call;
    tern__plan plan;
    tern__compute compute;
    loop_fn loop;
    double numbers[2];
    const tern__view *view[INS + 1]; /* the inputs, then the output; NULL where there is none */
    bool direct[INS + 1];
} walk;

/* One thread's stages, and which scalar each holds (its place plus one). */
typedef struct stages {
    tern__stage stage[INS + 1];
    int64_t scalar[INS];
} stages;

static void *place(const walk *w, int i, const tern__cursor *c)
{
    return (char *)w->view[i]->data + c->at[i] * (int64_t)tern_dtype_bytes(w->view[i]->dtype);
}

static void load(const walk *w, stages *s, int i, const tern__cursor *c, int64_t n)
{
    int64_t stride = w->plan.stride[i][0];
    if (stride == 0) {
        if (s->scalar[i] == c->at[i] + 1) return;
        s->scalar[i] = c->at[i] + 1;
        n = TERN__STAGE;
    }
    tern__stage_load(w->compute, &s->stage[i], w->view[i]->dtype, w->view[i]->data, c->at[i], stride, n);
}

static void stretch(const walk *w, stages *s, const tern__cursor *c, int64_t n)
{
    const void *in[INS] = {0};
    for (int i = 0; i < INS && w->view[i]; i++) {
        if (!w->direct[i]) load(w, s, i, c, n);
        in[i] = w->direct[i] ? place(w, i, c) : &s->stage[i];
    }
    w->loop(w->direct[INS] ? place(w, INS, c) : &s->stage[INS], in, w->numbers, n);
    if (!w->direct[INS])
        tern__stage_store(w->compute, &s->stage[INS], w->view[INS]->dtype, w->view[INS]->data, c->at[INS],
                          w->plan.stride[INS][0], n, w->call->add[0]);
}

static void part(const walk *w, int64_t first, int64_t last)
{
    stages s;
    memset(s.scalar, 0, sizeof(s.scalar));
    bool all = true;
    for (int i = 0; i <= INS; i++) all = all && (!w->view[i] || w->direct[i]);
    tern__cursor c = tern__cursor_at(&w->plan, first);
    for (int64_t n; first < last; first += n) {
        n = TERN__MIN(tern__cursor_room(&w->plan, &c), last - first);
        if (!all) n = TERN__MIN(n, TERN__STAGE);
        stretch(w, &s, &c, n);
        tern__cursor_move(&w->plan, &c, n);
    }
}

static walk walk_of(const tern__call *call)
{
    walk w = {.call = call};
    for (int i = 0; i < INS; i++) w.view[i] = call->in[i];
    w.view[INS] = call->out[0];
    w.plan = tern__plan_of(w.view, INS + 1);
    /* A copy is computed in what it is copied from, and so rounded once. */
    w.compute = tern__compute_of(w.view, call->kernel == TERN__COPY && !call->add[0] ? INS : INS + 1);
    w.loop = table[call->kernel][w.compute];
    for (int i = 0; i <= INS; i++)
        w.direct[i] = w.view[i] && w.view[i]->dtype == tern__compute_dtype(w.compute) &&
                      (w.plan.stride[i][0] == 1 || w.plan.shape[0] == 1);
    w.direct[INS] = w.direct[INS] && !call->add[0];
    const tern__pointwise_attr *attr = call->attr;
    for (int i = 0; attr && i < 2; i++) w.numbers[i] = attr->k[i];
    return w;
}

/* Where part t begins: at a row's start or a whole number of stages further on, so that every element is
 * computed by the same instructions whatever the number of threads. */
static int64_t part_start(const walk *w, int t, int threads)
{
    int64_t at = w->plan.count * t / threads;
    return t == threads ? at : at - at % w->plan.shape[0] % TERN__STAGE;
}

int tern__cpu_pointwise(const tern__call *call)
{
    walk w = walk_of(call);
    if (!w.loop) return TERN_E_UNSUPPORTED;
    int64_t count = w.plan.count;
    if (count == 0 || (call->kernel == TERN__COPY && tern__transpose(call, &w.plan, 0, INS))) return TERN_OK;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) part(&w, part_start(&w, t, threads), part_start(&w, t + 1, threads));
    return TERN_OK;
}
