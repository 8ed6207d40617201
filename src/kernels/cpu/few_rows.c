/* few_rows.c - a matrix product of a few rows, such as the one of each step of generation. It takes as
 * long as reading b does, so b is read once, in its own type, and each thread reads a stretch of memory: some
 * of the columns where these are contiguous. Where rows are, it takes some of the depth: the products are cut
 * into eight parts of the depth, always the same ones, whose sums are added in their order. So no bit depends
 * on the number of threads. few_rows_sums.c has the loops. */
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/matrix.h"
#include "kernels/matmul.h"

enum { CUT = 16 /* columns, and places of the depth, are cut at multiples of it */, DEPTH_CUTS = 8 };

typedef struct job {
    const tern__call *call;
    const tern__matrix *y;
    bool add, is_by_columns;
    tern__few_rows p;
    int64_t depth_cuts, column_cuts;
    float *sums; /* (depth_cuts, rows, columns) */
} job;

/* Where part `i` of `cuts` begins. */
static int64_t few_rows_cut(int64_t count, int64_t cuts, int64_t i)
{
    return TERN__MIN(count, (count + CUT - 1) / CUT * i / cuts * CUT);
}

/* Copies a to f32, row by row. */
TERN__SIMD static void few_rows_copy(const tern__matrix *a, tern_dtype dtype, float *to)
{
    tern__view all = {.dtype = dtype, .data = a->data};
    for (int64_t i = 0; i < a->rows; i++, to += a->columns)
        for (int64_t k = 0; k < a->columns; k += TERN__LANES) {
            int n = (int)TERN__MIN(TERN__LANES, a->columns - k);
            int64_t at = i * a->row_stride + k * a->column_stride;
            if (a->column_stride == 1)
                tern__lanes_store(to + k, tern__lanes_get(a->data, dtype, at, n), n);
            else
                for (int l = 0; l < n; l++)
                    to[k + l] = (float)tern__view_get(&all, at + l * a->column_stride);
        }
}

/* Returns a in f32, row by row: in place, or copied to `room`. */
static const float *few_rows_load(const tern__matrix *a, tern_dtype dtype, float *room)
{
    bool is_one = a->rows == 1 || a->row_stride == a->columns;
    if (dtype == TERN_F32 && a->column_stride == 1 && is_one) return (const float *)a->data;
    few_rows_copy(a, dtype, room);
    return room;
}

/* Every thread has as many parts as the others, if there are enough columns. */
static void few_rows_divide(job *j, int threads)
{
    int64_t columns = (j->p.columns + CUT - 1) / CUT, cuts = threads;
    j->depth_cuts = j->is_by_columns ? 1 : TERN__MIN(DEPTH_CUTS, (j->p.depth + CUT - 1) / CUT);
    while (cuts % 2 == 0 && j->depth_cuts == DEPTH_CUTS && threads / cuts < DEPTH_CUTS) cuts /= 2;
    j->column_cuts = TERN__MIN(columns, cuts);
}

static void few_rows_sum(const job *j, int64_t i)
{
    const tern__few_rows_fns *fns = TERN__BY_WIDTH(tern__few_rows_sums);
    int64_t d = i / j->column_cuts, c = i % j->column_cuts;
    tern__few_rows_part part = {.sums = j->sums + d * j->p.rows * j->p.columns};
    for (int end = 0; end < 2; end++) {
        part.k[end] = few_rows_cut(j->p.depth, j->depth_cuts, d + end);
        part.column[end] = few_rows_cut(j->p.columns, j->column_cuts, c + end);
    }
    (j->is_by_columns ? fns->by_columns : fns->by_rows)(&j->p, &part);
}

/* Stores columns first .. last - 1: y = or += sums [+ bias], with the call's ReLU. */
TERN__SIMD static void few_rows_store(const job *j, int64_t first, int64_t last)
{
    const tern__view *bias = j->call->in[2];
    tern_dtype dtype = j->call->out[0]->dtype;
    int64_t size = j->p.rows * j->p.columns;
    bool relu = tern__matmul_has_relu(j->call);
    for (int64_t i = 0; i < j->p.rows; i++)
        for (int64_t c = first; c < last; c += TERN__LANES) {
            int n = (int)TERN__MIN(TERN__LANES, last - c);
            int64_t at = i * j->y->row_stride + c, from = i * j->p.columns + c;
            tern__lanes v = tern__lanes_load(j->sums + from, n);
            for (int64_t d = 1; d < j->depth_cuts; d++) v += tern__lanes_load(j->sums + d * size + from, n);
            if (bias) v += tern__lanes_get(bias->data, bias->dtype, c, n);
            if (j->add) v += tern__lanes_get(j->y->data, dtype, at, n);
            tern__lanes_set(j->y->data, dtype, at, relu ? tern__lanes_relu(v) : v, n, false);
        }
}

int tern__few_rows_matmul(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                          const tern__matrix *y, bool add)
{
    job j = {.call = call, .y = y, .add = add, .is_by_columns = b->column_stride != 1};
    int threads = tern__loop_threads(call, b->rows * b->columns);
    j.p = (tern__few_rows){.b = b->data,
                           .dtype = call->in[1]->dtype,
                           .line = j.is_by_columns ? b->column_stride : b->row_stride,
                           .rows = a->rows,
                           .depth = a->columns,
                           .columns = b->columns};
    few_rows_divide(&j, threads);
    size_t sums = (size_t)(j.depth_cuts * a->rows * b->columns), copy = (size_t)(a->rows * a->columns);
    j.sums = tern__loop_scratch(call, (sums + copy) * sizeof(*j.sums));
    if (!j.sums) return TERN_E_MEMORY;
    j.p.a = few_rows_load(a, call->in[0]->dtype, j.sums + sums);
    int64_t parts = j.depth_cuts * j.column_cuts;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < parts; i++) few_rows_sum(&j, i);
#pragma omp for schedule(static)
        for (int t = 0; t < threads; t++)
            few_rows_store(&j, few_rows_cut(b->columns, threads, t),
                           few_rows_cut(b->columns, threads, t + 1));
    }
    return TERN_OK;
}
