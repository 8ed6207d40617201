/* f64_matmul.c - an f64 matrix product. The result is cut into blocks of up to 120 rows, which threads
 * take; if these are few, also into ranges of columns. A block's sums grow by 256 products at a time: that
 * much of its rows of a is copied into panels of 6 rows, which stay in the second-level cache, and 8
 * columns of b at a time into a panel that stays in the first. The product of a panel of a and one of b is
 * kept in registers. Panels are padded with zeros. Every element's products are added in order, so no bit
 * depends on how work is divided.
 *
 * Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008). */
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/matmul.h"

enum { ROWS = 6, COLUMNS = 8, PANELS = 20, DEPTH = 256 };

typedef double eight __attribute__((vector_size(8 * COLUMNS)));

typedef struct job {
    const tern__call *call;
    const tern__matrix *a, *b, *y;
    bool add, relu;
    int64_t row_cuts, column_cuts;
} job;

/* Products begin .. end - 1 of the sums. */
typedef struct stretch {
    int64_t begin, end;
} stretch;

typedef struct range {
    int64_t first, last;
} range;

/* ---- panels ---- */

/* Stores element k of line l at to[k * width + l], for `lines` lines; the rest is 0. */
TERN__INLINE void panel_fill(double *to, int64_t width, const double *from, int64_t line, int64_t place,
                             int64_t lines, int64_t depth)
{
    if (place == 1)
        for (int64_t l = 0; l < lines; l++)
            for (int64_t k = 0; k < depth; k++) to[k * width + l] = from[l * line + k];
    else
        for (int64_t k = 0; k < depth; k++)
            for (int64_t l = 0; l < lines; l++) to[k * width + l] = from[l * line + k * place];
}

/* Fast if all lines exist, since their number is then a constant. */
TERN__INLINE void make_panel(double *to, int64_t width, const double *from, int64_t line, int64_t place,
                             int64_t lines, int64_t depth)
{
    if (lines < width) {
        memset(to, 0, (size_t)(width * depth) * sizeof(*to));
        panel_fill(to, width, from, line, place, lines, depth);
    } else if (line == 1)
        panel_fill(to, width, from, 1, place, width, depth);
    else
        panel_fill(to, width, from, line, place, width, depth);
}

TERN__SIMD static void make_rows(const job *j, double *to, range rows, stretch s)
{
    const tern__matrix *a = j->a;
    const double *from = (const double *)a->data + s.begin * a->column_stride;
    for (int64_t row = rows.first; row < rows.last; row += ROWS, to += ROWS * (s.end - s.begin))
        make_panel(to, ROWS, from + row * a->row_stride, a->row_stride, a->column_stride,
                   TERN__MIN(ROWS, rows.last - row), s.end - s.begin);
}

TERN__SIMD static void make_columns(const job *j, double *to, int64_t column, stretch s)
{
    const tern__matrix *b = j->b;
    const double *from = (const double *)b->data + s.begin * b->row_stride + column * b->column_stride;
    make_panel(to, COLUMNS, from, b->column_stride, b->row_stride, TERN__MIN(COLUMNS, b->columns - column),
               s.end - s.begin);
}

/* ---- products ---- */

TERN__SIMD static void f64_matmul_multiply(const double *a, const double *b, int64_t depth, double *sums)
{
    eight sum[ROWS] = {{0}};
    for (int64_t k = 0; k < depth; k++, a += ROWS, b += COLUMNS) {
        eight row;
        memcpy(&row, b, sizeof(row));
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) sum[r] += a[r] * row;
    }
    memcpy(sums, sum, sizeof(sum));
}

TERN__INLINE void put_rows(const job *j, double *sums, int64_t row, int64_t column, stretch s,
                           int64_t columns)
{
    const double *bias = s.begin || !j->call->in[2] ? NULL : (const double *)j->call->in[2]->data + column;
    int64_t rows = TERN__MIN(ROWS, j->y->rows - row);
    for (int64_t r = 0; r < rows; r++, sums += COLUMNS) {
        double *to = (double *)j->y->data + (row + r) * j->y->row_stride + column;
        if (j->add || s.begin)
            for (int64_t c = 0; c < columns; c++) sums[c] += to[c];
        if (bias)
            for (int64_t c = 0; c < columns; c++) sums[c] += bias[c];
        if (j->relu && s.end == j->a->columns)
            for (int64_t c = 0; c < columns; c++) sums[c] = sums[c] < 0 ? 0 : sums[c];
        memcpy(to, sums, (size_t)columns * sizeof(*to));
    }
}

/* Writes the sums, cut to y's size. */
TERN__SIMD static void f64_matmul_put(const job *j, double *sums, int64_t row, int64_t column, stretch s)
{
    int64_t columns = j->y->columns - column;
    if (columns >= COLUMNS)
        put_rows(j, sums, row, column, s, COLUMNS);
    else
        put_rows(j, sums, row, column, s, columns);
}

static void block(const job *j, range rows, range columns, double *a, double *b)
{
    double sums[ROWS * COLUMNS];
    for (stretch s = {0, 0}; s.begin < j->a->columns; s.begin = s.end) {
        s.end = TERN__MIN(j->a->columns, s.begin + DEPTH);
        make_rows(j, a, rows, s);
        for (int64_t column = columns.first; column < columns.last; column += COLUMNS) {
            make_columns(j, b, column, s);
            for (int64_t row = rows.first; row < rows.last; row += ROWS) {
                f64_matmul_multiply(a + (row - rows.first) * (s.end - s.begin), b, s.end - s.begin, sums);
                f64_matmul_put(j, sums, row, column, s);
            }
        }
    }
}

/* ---- cuts ---- */

/* Part `i` of `cuts` parts of `count` lines, in whole panels. */
static range f64_matmul_part(int64_t count, int64_t width, int64_t cuts, int64_t i)
{
    int64_t panels = (count + width - 1) / width;
    return (range){panels * i / cuts * width, TERN__MIN(count, panels * (i + 1) / cuts * width)};
}

static void f64_matmul_cut(job *j, int threads)
{
    int64_t rows = (j->y->rows + ROWS - 1) / ROWS, columns = (j->y->columns + COLUMNS - 1) / COLUMNS;
    int64_t blocks = (rows + PANELS - 1) / PANELS;
    if (blocks > 1) blocks = TERN__MIN(rows, (blocks + threads - 1) / threads * threads);
    j->row_cuts = blocks;
    j->column_cuts = TERN__MIN(columns, (threads + blocks - 1) / blocks);
}

int tern__f64_matmul(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                     const tern__matrix *y, bool add)
{
    job j = {.call = call, .a = a, .b = b, .y = y, .add = add, .relu = tern__matmul_has_relu(call)};
    int threads = tern__loop_threads(call, y->rows * y->columns * a->columns / 4);
    size_t room = (ROWS * PANELS + COLUMNS) * DEPTH;
    double *memory = tern__loop_scratch(call, (size_t)threads * room * sizeof(*memory));
    if (!memory) return TERN_E_MEMORY;
    f64_matmul_cut(&j, threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        double *panels = memory + (size_t)t * room;
        for (int64_t i = t; i < j.row_cuts * j.column_cuts; i += threads)
            block(&j, f64_matmul_part(y->rows, ROWS, j.row_cuts, i / j.column_cuts),
                  f64_matmul_part(y->columns, COLUMNS, j.column_cuts, i % j.column_cuts), panels,
                  panels + ROWS * PANELS * DEPTH);
    }
    return TERN_OK;
}
