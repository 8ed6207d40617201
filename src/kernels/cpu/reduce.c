/* reduce.c - sum, amax and amin: the output is seen with the input's shape, with stride 0 along reduced
 * dimensions.
 *
 * Results are collected in double, or in 64-bit integers. The two innermost dimensions are one loop: over
 * rows that are reduced, or over columns that are. Threads divide a dimension that is kept. If everything
 * is reduced to one element, chunks are reduced separately and joined in order. So the number of threads
 * does not matter. */
#include "kernels/reduce.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/plan.h"
#include "kernels/cpu/staging.h"

#include <math.h>

#define CHUNK 16384 /* elements of a long run that are reduced before they are joined with others */
#define ROUND 1024  /* elements of a row that are added in f32 */
#define FEW   16    /* elements that do not pay for a vector */
#define WIDTH 512   /* columns whose results stay in the cache */

enum { X, Y, OPERANDS };

/* ---- the loops over `rows` rows of n elements, `step` apart. _rows: each row into result[r * stride];
 * _columns: element i of all rows into result[i * stride] ---- */

#define DEFINE_SUM(name, type, wide)                                                                         \
    TERN__SIMD static void name##_rows(void *to, int64_t stride, const void *from, int64_t rows,             \
                                       int64_t step, int64_t n)                                              \
    {                                                                                                        \
        wide *result = to;                                                                                   \
        for (int64_t r = 0; r < rows; r++, result += stride) {                                               \
            const type *x = (const type *)from + r * step;                                                   \
            type few = 0;                                                                                    \
            for (int64_t i = 0; i < n && n < FEW; i++) few += x[i];                                          \
            wide sum = (wide)few;                                                                            \
            for (int64_t first = 0; first < n && n >= FEW; first += ROUND) {                                 \
                int64_t last = TERN__MIN(n, first + ROUND);                                                  \
                type part = 0;                                                                               \
                _Pragma("omp simd reduction(+ : part)") for (int64_t i = first; i < last; i++) part += x[i]; \
                sum += (wide)part;                                                                           \
            }                                                                                                \
            *result += sum;                                                                                  \
        }                                                                                                    \
    }                                                                                                        \
    TERN__SIMD static void name##_columns(void *to, int64_t stride, const void *from, int64_t rows,          \
                                          int64_t step, int64_t n)                                           \
    {                                                                                                        \
        for (int64_t first = 0; first < n; first += WIDTH) {                                                 \
            int64_t count = TERN__MIN(WIDTH, n - first), r = 0;                                              \
            const type *x = (const type *)from + first;                                                      \
            wide *result = (wide *)to + first * stride;                                                      \
            for (; r + 8 <= rows && stride == 1; r += 8, x += 8 * step)                                      \
                for (int64_t i = 0; i < count; i++)                                                          \
                    result[i] +=                                                                             \
                        (wide)(((x[i] + x[step + i]) + (x[2 * step + i] + x[3 * step + i])) +                \
                               ((x[4 * step + i] + x[5 * step + i]) + (x[6 * step + i] + x[7 * step + i]))); \
            for (; r < rows; r++, x += step)                                                                 \
                for (int64_t i = 0; i < count; i++) result[i * stride] += (wide)x[i];                        \
        }                                                                                                    \
    }
DEFINE_SUM(sum_f32, float, double)
DEFINE_SUM(sum_f64, double, double)
DEFINE_SUM(sum_i64, int64_t, int64_t)

/* `odd` handles NaN, so that one instruction suffices for the rest. */
#define EACH_max _Pragma("omp simd reduction(max : top) reduction(| : odd)")
#define EACH_min _Pragma("omp simd reduction(min : top) reduction(| : odd)")
#define DEFINE_EXTREME(name, kind, BEYOND, type, wide, START, NOT_A_NUMBER)                                  \
    TERN__INLINE wide name##_join(wide a, type b)                                                            \
    {                                                                                                        \
        return (wide)b BEYOND a || b != b ? (wide)b : a;                                                     \
    }                                                                                                        \
    TERN__SIMD static void name##_rows(void *to, int64_t stride, const void *from, int64_t rows,             \
                                       int64_t step, int64_t n)                                              \
    {                                                                                                        \
        wide *result = to;                                                                                   \
        for (int64_t r = 0; r < rows; r++, result += stride) {                                               \
            const type *x = (const type *)from + r * step;                                                   \
            type top = START;                                                                                \
            int odd = 0;                                                                                     \
            for (int64_t i = 0; i < n && n < FEW; i++)                                                       \
                top = x[i] BEYOND top ? x[i] : top, odd |= x[i] != x[i];                                     \
            EACH_##kind for (int64_t i = n < FEW ? n : 0; i < n; i++)                                        \
            {                                                                                                \
                top = x[i] BEYOND top ? x[i] : top;                                                          \
                odd |= x[i] != x[i];                                                                         \
            }                                                                                                \
            *result = name##_join(*result, odd ? NOT_A_NUMBER : top);                                        \
        }                                                                                                    \
    }                                                                                                        \
    TERN__SIMD static void name##_columns(void *to, int64_t stride, const void *from, int64_t rows,          \
                                          int64_t step, int64_t n)                                           \
    {                                                                                                        \
        for (int64_t first = 0; first < n; first += WIDTH) {                                                 \
            int64_t count = TERN__MIN(WIDTH, n - first);                                                     \
            const type *x = (const type *)from + first;                                                      \
            wide *result = (wide *)to + first * stride;                                                      \
            type top[WIDTH];                                                                                 \
            int odd[WIDTH] = {0};                                                                            \
            for (int64_t i = 0; i < count; i++) top[i] = START;                                              \
            for (int64_t r = 0; r < rows; r++, x += step)                                                    \
                for (int64_t i = 0; i < count; i++) {                                                        \
                    top[i] = x[i] BEYOND top[i] ? x[i] : top[i];                                             \
                    odd[i] |= x[i] != x[i];                                                                  \
                }                                                                                            \
            for (int64_t i = 0; i < count; i++)                                                              \
                result[i * stride] = name##_join(result[i * stride], odd[i] ? NOT_A_NUMBER : top[i]);        \
        }                                                                                                    \
    }
DEFINE_EXTREME(amax_f32, max, >, float, double, -INFINITY, NAN)
DEFINE_EXTREME(amax_f64, max, >, double, double, -INFINITY, NAN)
DEFINE_EXTREME(amax_i64, max, >, int64_t, int64_t, INT64_MIN, 0)
DEFINE_EXTREME(amin_f32, min, <, float, double, INFINITY, NAN)
DEFINE_EXTREME(amin_f64, min, <, double, double, INFINITY, NAN)
DEFINE_EXTREME(amin_i64, min, <, int64_t, int64_t, INT64_MAX, 0)

typedef void (*loop_fn)(void *result, int64_t stride, const void *x, int64_t rows, int64_t step, int64_t n);

/* The initial value, and the loops by type of computation. */
typedef struct operation {
    double start;
    int64_t integer_start;
    struct {
        loop_fn rows, columns;
    } by[TERN__COMPUTES];
} operation;

#define LOOPS(name)                                                                                          \
    {                                                                                                        \
        {name##_f32_rows, name##_f32_columns}, {name##_f64_rows, name##_f64_columns},                        \
        {                                                                                                    \
            name##_i64_rows, name##_i64_columns                                                              \
        }                                                                                                    \
    }
static const operation sum = {0, 0, LOOPS(sum)};
static const operation amax = {-INFINITY, INT64_MIN, LOOPS(amax)};
static const operation amin = {INFINITY, INT64_MAX, LOOPS(amin)};

/* A result while it is collected, in 8 bytes. */
typedef union wide {
    double real;
    int64_t integer;
} wide;

/* ---- going over the elements ---- */

typedef struct walk {
    const tern__view *x;
    tern__plan plan;
    tern__compute compute;
    const operation *op;
    bool direct; /* x is read in place */
} walk;

static const void *reduce_place(const walk *w, int64_t offset)
{
    return (const char *)w->x->data + offset * (int64_t)tern_dtype_bytes(w->x->dtype);
}

/* Reduces rows of n elements that begin at `c`. */
static void reduce_rows(const walk *w, const tern__cursor *c, const void *x, int64_t rows, int64_t n,
                        wide *result)
{
    const int64_t *of_x = w->plan.stride[X], *of_y = w->plan.stride[Y];
    loop_fn columns = w->op->by[w->compute].columns;
    wide *to = &result[c->at[Y]];
    if (of_y[0] == 0)
        w->op->by[w->compute].rows(to, of_y[1], x, rows, of_x[1], n);
    else if (rows == 1 || of_y[1] == 0)
        columns(to, of_y[0], x, rows, of_x[1], n);
    else
        for (int64_t r = 0; r < rows; r++)
            columns(to + r * of_y[1], of_y[0], reduce_place(w, c->at[X] + r * of_x[1]), 1, 0, n);
}

/* Reads x in place, two dimensions at a time. */
static void in_place(const walk *w, tern__cursor c, wide *result)
{
    int64_t n = w->plan.shape[0], rows = w->plan.ndim > 1 ? w->plan.shape[1] : 1;
    tern__plan rest = w->plan; /* without those two */
    rest.shape[0] = rest.shape[1] = 1;
    for (int64_t done = 0; done < w->plan.count; done += n * rows) {
        reduce_rows(w, &c, reduce_place(w, c.at[X]), rows, n, result);
        tern__cursor_move(&rest, &c, 1);
    }
}

/* Reads x through a stage, a stretch of a row at a time. */
static void staged(const walk *w, tern__cursor c, wide *result)
{
    tern__stage stage;
    for (int64_t done = 0, n; done < w->plan.count; done += n) {
        n = TERN__MIN(tern__cursor_room(&w->plan, &c), TERN__STAGE);
        tern__stage_load(w->compute, &stage, w->x->dtype, w->x->data, c.at[X], w->plan.stride[X][0], n);
        reduce_rows(w, &c, &stage, 1, n, result);
        tern__cursor_move(&w->plan, &c, n);
    }
}

/* The outermost dimension that is kept; -1: none. */
static int kept_dim(const tern__plan *p)
{
    int d = p->ndim - 1;
    while (d >= 0 && p->stride[Y][d] == 0) d--;
    return d;
}

/* Each thread takes a part of a dimension that is kept. */
static void reduce_divide(const tern__call *call, const walk *w, wide *result)
{
    int d = kept_dim(&w->plan);
    int64_t size = d < 0 ? 1 : w->plan.shape[d];
    int threads = (int)TERN__MIN(tern__loop_threads(call, w->plan.count), size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        walk part = *w;
        tern__cursor c = {0};
        int64_t first = size * t / threads, last = size * (t + 1) / threads;
        for (int i = 0; i < OPERANDS && d >= 0; i++) c.at[i] = first * w->plan.stride[i][d];
        if (d >= 0) part.plan.shape[d] = last - first;
        part.plan.count = w->plan.count / size * (last - first);
        (w->direct ? in_place : staged)(&part, c, result);
    }
}

static void into_one(const tern__call *call, const walk *w, wide *partial, int64_t chunks)
{
    loop_fn rows = w->op->by[w->compute].rows;
    tern__compute joined = w->compute == TERN__COMPUTE_I64 ? TERN__COMPUTE_I64 : TERN__COMPUTE_F64;
    int threads = (int)TERN__MIN((int64_t)call->device->threads, chunks);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        rows(&partial[c], 0, reduce_place(w, c * CHUNK), 1, 0, TERN__MIN(CHUNK, w->plan.count - c * CHUNK));
    w->op->by[joined].rows(partial, 0, partial + 1, 1, 0, chunks - 1);
}

/* ---- the call ---- */

static walk reduce_walk_of(const tern__call *call, const operation *op)
{
    const tern__view *views[OPERANDS] = {call->in[0], call->out[0]};
    walk w = {.x = call->in[0], .plan = tern__plan_of(views, OPERANDS), .op = op};
    w.compute = tern__compute_of(views, OPERANDS);
    w.direct = w.x->dtype == tern__compute_dtype(w.compute) && w.plan.stride[X][0] == 1;
    return w;
}

static void reduce_start(const walk *w, wide *result, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (w->compute == TERN__COMPUTE_I64)
            result[i].integer = w->op->integer_start;
        else
            result[i].real = w->op->start;
}

/* y = or += factor * result; integers have no factor. */
static void reduce_put(const tern__call *call, const walk *w, wide *result, int64_t count, double factor)
{
    const tern__view *y = call->out[0];
    bool integer = w->compute == TERN__COMPUTE_I64;
    for (int64_t i = 0; i < count && !integer; i++) result[i].real *= factor;
    for (int64_t first = 0; first < count; first += TERN__STAGE)
        tern__stage_store(integer ? TERN__COMPUTE_I64 : TERN__COMPUTE_F64, (tern__stage *)&result[first],
                          y->dtype, y->data, first, 1, TERN__MIN(TERN__STAGE, count - first), call->add[0]);
}

static int reduce_run(const tern__call *call, const operation *op, double factor)
{
    walk w = reduce_walk_of(call, op);
    bool one = w.direct && w.plan.ndim == 1 && w.plan.stride[Y][0] == 0 && w.plan.count > 0;
    int64_t count = call->out[0]->layout == TERN__PLAIN ? tern__own_count(call->out[0]) : w.plan.count;
    if (count == 0) return TERN_OK;
    int64_t room = one ? (w.plan.count + CHUNK - 1) / CHUNK : count;
    wide *result = tern__loop_scratch(call, (size_t)room * sizeof(*result));
    if (!result) return TERN_E_MEMORY;
    reduce_start(&w, result, room);
    if (one)
        into_one(call, &w, result, room);
    else
        reduce_divide(call, &w, result);
    reduce_put(call, &w, result, count, factor);
    return TERN_OK;
}

int tern__cpu_sum(const tern__call *call)
{
    int status = tern__cpu_channel_sum(call);
    if (status != TERN_E_UNSUPPORTED) return status;
    return reduce_run(call, &sum, ((const tern__factor_attr *)call->attr)->factor);
}

int tern__cpu_amax(const tern__call *call)
{
    return reduce_run(call, &amax, 1);
}

int tern__cpu_amin(const tern__call *call)
{
    return reduce_run(call, &amin, 1);
}
