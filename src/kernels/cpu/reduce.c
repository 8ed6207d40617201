/* reduce.c - sum, amax and amin: the output is seen with the input's shape, with stride 0 along what is
 * reduced.
 *
 * Results are gathered in double. All elements into one: chunks of them are reduced apart and then put
 * together in their order, so that the number of threads does not matter. Otherwise stretch by stretch, by
 * one thread. */
#include "kernels/reduce.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/staging.h"

#include <math.h>

#define LANES 16
#define CHUNK 16384 /* elements of a long run that are reduced before they meet others */
#define ROUND 1024  /* elements of f32 that are added in f32                           */

enum { X, Y, OPERANDS };

/* A NaN stays. */
#define ADD(a, b)  ((a) + (b))
#define HIGH(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))
#define LOW(a, b)  ((b) < (a) || (b) != (b) ? (b) : (a))

/* `all`: everything into one number. `into`: element i of each row into result i * stride; from one
 * row to the next it is `step`. */
#define DEFINE(name, type, JOIN, START)                                                                      \
    TERN__SIMD static double name##_all(const void *from, int64_t n)                                         \
    {                                                                                                        \
        const type *x = from;                                                                                \
        double result = START;                                                                               \
        for (int64_t first = 0; first < n; first += ROUND) {                                                 \
            type lane[LANES];                                                                                \
            int64_t last = TERN__MIN(n, first + ROUND), whole = first + (last - first) / LANES * LANES;      \
            for (int l = 0; l < LANES; l++) lane[l] = START;                                                 \
            for (int64_t i = first; i < whole; i += LANES)                                                   \
                for (int l = 0; l < LANES; l++) lane[l] = JOIN(lane[l], x[i + l]);                           \
            for (int l = 0; l < LANES; l++) result = JOIN(result, (double)lane[l]);                          \
            for (int64_t i = whole; i < last; i++) result = JOIN(result, (double)x[i]);                      \
        }                                                                                                    \
        return result;                                                                                       \
    }                                                                                                        \
    TERN__SIMD static void name##_into(double *result, int64_t stride, const void *from, int64_t n,          \
                                       int64_t rows, int64_t step)                                           \
    {                                                                                                        \
        for (int64_t r = 0; r < rows; r++) {                                                                 \
            const type *x = (const type *)from + r * step;                                                   \
            for (int64_t i = 0; i < n && stride == 1; i++) result[i] = JOIN(result[i], (double)x[i]);        \
            for (int64_t i = 0; i < n && stride != 1; i++)                                                   \
                result[i * stride] = JOIN(result[i * stride], (double)x[i]);                                 \
        }                                                                                                    \
    }
DEFINE(sum_f32, float, ADD, 0)
DEFINE(sum_f64, double, ADD, 0)
DEFINE(amax_f32, float, HIGH, -INFINITY)
DEFINE(amax_f64, double, HIGH, -INFINITY)
DEFINE(amin_f32, float, LOW, INFINITY)
DEFINE(amin_f64, double, LOW, INFINITY)

typedef struct reduction {
    double (*all)(const void *x, int64_t n);
    void (*into)(double *result, int64_t stride, const void *x, int64_t n, int64_t rows, int64_t step);
} reduction;

/* What is joined first, and the functions by the type computed in. */
typedef struct operation {
    double start;
    reduction by[TERN__COMPUTE_F64 + 1];
} operation;

static const operation sum = {0, {{sum_f32_all, sum_f32_into}, {sum_f64_all, sum_f64_into}}};
static const operation amax = {-INFINITY, {{amax_f32_all, amax_f32_into}, {amax_f64_all, amax_f64_into}}};
static const operation amin = {INFINITY, {{amin_f32_all, amin_f32_into}, {amin_f64_all, amin_f64_into}}};

typedef struct walk {
    const tern__view *x;
    tern__plan plan;
    tern__compute compute;
    const operation *op;
    bool direct;        /* x is read where it stands                           */
    int64_t rows, step; /* so many rows fall together and are taken in one go  */
} walk;

static const void *place(const walk *w, int64_t offset, int64_t n, tern__stage *stage)
{
    if (w->direct) return (const char *)w->x->data + offset * (int64_t)tern_dtype_bytes(w->x->dtype);
    tern__stage_load(w->compute, stage, w->x->dtype, w->x->data, offset, w->plan.stride[X][0], n);
    return stage;
}

/* A row's stretch into one result, or each element into its own. */
static void into_many(const walk *w, double *result)
{
    tern__stage stage;
    const reduction *of = &w->op->by[w->compute], *join = &w->op->by[TERN__COMPUTE_F64];
    int64_t stride = w->plan.stride[Y][0];
    tern__cursor c = {0};
    for (int64_t done = 0, n; done < w->plan.count; done += n) {
        n = tern__cursor_room(&w->plan, &c);
        if (!w->direct) n = TERN__MIN(n, TERN__STAGE);
        const void *x = place(w, c.at[X], n, &stage);
        if (stride == 0) {
            double part = of->all(x, n);
            join->into(&result[c.at[Y]], 1, &part, 1, 1, 0);
        } else {
            of->into(&result[c.at[Y]], stride, x, n, w->rows, w->step);
        }
        tern__cursor_move(&w->plan, &c, n);
    }
}

static void into_one(const tern__call *call, const walk *w, double *partial, int64_t chunks)
{
    const reduction *of = &w->op->by[w->compute];
    int threads = (int)TERN__MIN((int64_t)call->device->threads, chunks);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        partial[c] = of->all(place(w, c * CHUNK, 0, NULL), TERN__MIN(CHUNK, w->plan.count - c * CHUNK));
    w->op->by[TERN__COMPUTE_F64].into(partial, 0, partial + 1, chunks - 1, 1, 0);
}

/* Rows that fall together leave the plan: it goes from one lot of them to the next. */
static void take_rows(walk *w)
{
    tern__plan *p = &w->plan;
    w->rows = 1;
    bool together = w->direct && p->ndim > 1 && p->stride[Y][0] && !p->stride[Y][1] && p->count > 0;
    if (!together) return;
    w->rows = p->shape[1];
    w->step = p->stride[X][1];
    p->count /= w->rows;
    p->shape[1] = 1;
}

static walk walk_of(const tern__call *call, const operation *op)
{
    const tern__view *views[OPERANDS] = {call->in[0], call->out[0]};
    walk w = {.x = call->in[0], .plan = tern__plan_of(views, OPERANDS), .op = op};
    w.compute = tern__compute_of(views, OPERANDS);
    w.direct = w.x->dtype == tern__compute_dtype(w.compute) && w.plan.stride[X][0] == 1;
    take_rows(&w);
    return w;
}

/* y = or += factor * result. */
static void put(const tern__call *call, double *result, int64_t count, double factor)
{
    const tern__view *y = call->out[0];
    for (int64_t i = 0; i < count && factor != 1; i++) result[i] *= factor;
    for (int64_t i = 0; i < count; i += TERN__STAGE)
        tern__stage_store(TERN__COMPUTE_F64, (const tern__stage *)(result + i), y->dtype, y->data, i, 1,
                          TERN__MIN(TERN__STAGE, count - i), call->add[0]);
}

static int reduce(const tern__call *call, const operation *op, double factor)
{
    walk w = walk_of(call, op);
    if (w.compute == TERN__COMPUTE_I64) return TERN_E_UNSUPPORTED;
    bool one = w.direct && w.plan.ndim == 1 && w.plan.stride[Y][0] == 0 && w.plan.count > 0;
    int64_t count = call->out[0]->layout == TERN__PLAIN ? tern__own_count(call->out[0]) : w.plan.count;
    int64_t room = one ? (w.plan.count + CHUNK - 1) / CHUNK : count;
    double *result = tern__loop_scratch(call, (size_t)TERN__MAX(room, 1) * sizeof(double));
    if (!result) return TERN_E_MEMORY;
    for (int64_t i = 0; i < room; i++) result[i] = op->start;
    if (one)
        into_one(call, &w, result, room);
    else
        into_many(&w, result);
    put(call, result, count, factor);
    return TERN_OK;
}

int tern__cpu_sum(const tern__call *call)
{
    return reduce(call, &sum, ((const tern__factor_attr *)call->attr)->factor);
}

int tern__cpu_amax(const tern__call *call)
{
    return reduce(call, &amax, 1);
}

int tern__cpu_amin(const tern__call *call)
{
    return reduce(call, &amin, 1);
}
