/* f32_matmul.c - the f32 matrix product for registers of eight floats or four. A batch's results are cut
 * into blocks, one for each thread, or each is a thread's whole block. A thread takes up to 192 rows of its
 * block and 256 products of the sums at a time. That much of a is copied into strips of 4 rows, which stay
 * in the second-level cache. Up to 24 columns of b at a time are copied into a panel that stays in the
 * first. The product of a strip and a panel is kept in 12 registers, and every row of b's panel is loaded
 * into three more. 4 x 24 needs fewer loads than 6 x 16, 7 instead of 8 for 12 multiply-adds, and cuts
 * batches of 32 and 64 without a remainder.
 *
 * * The sums are cut at places that depend on their length alone, and every element's products are added in
 * order, so no bit depends on the number of threads, nor on the other rows and columns of the product. This
 * is why oneDNN's product is not used here: on CPUs without AVX-512 it cuts sums differently for each
 * number of threads.
 *
 * * Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008); Van Zee and van de
 * Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality" (2015). */
#include "kernels/cpu/width.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/matrix.h"
#include "kernels/matmul.h"

#define LANES TERN__LANES

/* A strip's rows, a panel's vectors, the most rows of a block and the most products of a stretch. */
enum { ROWS = 4, VECTORS = 3, BLOCK_ROWS = 192, DEPTH = 256 };
enum { A, B, Y };

#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

typedef struct job {
    const tern__call *call;
    const tern__product *product;
    char *const *at; /* the operands' first elements */
    bool add, relu;
    int64_t row_cuts, column_cuts; /* of each matrix */
} job;

typedef struct range {
    int64_t first, last;
} range;

/* What is multiplied at a time: a block's strips by a panel. */
typedef struct part {
    const float *a, *b; /* (strips, depth, ROWS) and (depth, columns of whole vectors) */
    int64_t depth;
    float *y;
    int64_t y_row, rows, columns;
    const float *bias; /* of these columns; NULL: none, or not yet */
    bool add, relu;
} part;

/* ---- copies ---- */

TERN__DEFINE_TURN(turn_lanes, tern__lanes)

/* Copies `lines` lines that are contiguous along the sum: element k of line l to to[k * width + l]. */
TERN__INLINE void copy_turned(float *to, int width, const float *from, int64_t line, int lines, int64_t depth)
{
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) {
        tern__lanes v[LANES] = {{0}};
        EACH(l, LANES) if (l < lines) v[l] = tern__lanes_load(from + l * line + k, LANES);
        turn_lanes(v);
        EACH(i, LANES)
        tern__lanes_store(to + (k + i) * width, v[i], width < LANES ? width : LANES);
    }
    for (; k < depth; k++)
        for (int l = 0; l < lines; l++) to[k * width + l] = from[l * line + k];
}

/* Copies lines that are contiguous across the sum. */
TERN__INLINE void copy_straight(float *to, int width, const float *from, int64_t place, int lines,
                                int64_t depth)
{
    for (int64_t k = 0; k < depth; k++) memcpy(to + k * width, from + k * place, (size_t)lines * sizeof(*to));
}

/* Copies up to ROWS rows of a. Rows that do not exist stay undefined, and nothing reads them. */
TERN__INLINE void strip_copy(float *to, const float *from, int64_t line, int64_t place, int rows,
                             int64_t depth)
{
    if (place != 1)
        copy_straight(to, ROWS, from, place, rows, depth);
    else
        copy_turned(to, ROWS, from, line, rows, depth);
}

TERN__SIMD static void block_copy(float *to, const tern__matrix *a, range rows, range sums)
{
    const float *from = (const float *)a->data + sums.first * a->column_stride;
    int64_t depth = sums.last - sums.first, row = rows.first;
    for (; row + ROWS <= rows.last; row += ROWS, to += ROWS * depth)
        strip_copy(to, from + row * a->row_stride, a->row_stride, a->column_stride, ROWS, depth);
    if (row < rows.last)
        strip_copy(to, from + row * a->row_stride, a->row_stride, a->column_stride, (int)(rows.last - row),
                   depth);
}

/* Copies a panel of so many vectors of columns; columns that do not exist are 0. */
TERN__INLINE void panel_copy_vectors(float *to, const float *from, int64_t line, int64_t place,
                                     int64_t columns, int64_t depth, int vectors)
{
    int width = vectors * LANES;
    if (columns < width) memset(to, 0, (size_t)(width * depth) * sizeof(*to));
    if (line == 1 && columns == width)
        copy_straight(to, width, from, place, width, depth);
    else if (line == 1)
        copy_straight(to, width, from, place, (int)columns, depth);
    else
        EACH(v, vectors)
        {
            int lines = (int)TERN__MIN(LANES, columns - v * LANES);
            if (lines == LANES)
                copy_turned(to + v * LANES, width, from + v * LANES * line, line, LANES, depth);
            else
                for (int l = 0; l < lines; l++)
                    for (int64_t k = 0; k < depth; k++)
                        to[k * width + v * LANES + l] = from[(v * LANES + l) * line + k * place];
        }
}

TERN__SIMD static void panel_copy(float *to, const tern__matrix *b, range columns, range sums)
{
    const float *from =
        (const float *)b->data + sums.first * b->row_stride + columns.first * b->column_stride;
    int64_t line = b->column_stride, place = b->row_stride, depth = sums.last - sums.first,
            count = columns.last - columns.first;
    switch ((count + LANES - 1) / LANES) {
    case 1: panel_copy_vectors(to, from, line, place, count, depth, 1); break;
    case 2: panel_copy_vectors(to, from, line, place, count, depth, 2); break;
    default: panel_copy_vectors(to, from, line, place, count, depth, VECTORS); break;
    }
}

/* ---- products ---- */

/* Stores a row of sums, of which only the first `columns` exist. */
TERN__INLINE void sums_store(const part *p, tern__lanes *sum, float *to, int64_t columns, int vectors)
{
    EACH(v, vectors)
    {
        int n = (int)TERN__MIN(LANES, columns - v * LANES), at = v * LANES;
        if (p->add) sum[v] += tern__lanes_load(to + at, n);
        if (p->bias) sum[v] += tern__lanes_load(p->bias + at, n);
        if (p->relu) sum[v] = tern__lanes_relu(sum[v]);
        tern__lanes_store(to + at, sum[v], n);
    }
}

/* Multiplies a strip of so many rows by a panel of so many vectors. */
TERN__INLINE void tile_multiply(const part *p, int64_t row, int rows, int vectors)
{
    const float *a = p->a + row * p->depth, *b = p->b;
    float *y = p->y + row * p->y_row;
    tern__lanes sum[ROWS][VECTORS] = {{{0}}}, values[VECTORS];
    EACH(r, rows)
    {
        __builtin_prefetch(y + r * p->y_row, 1);
        __builtin_prefetch(y + r * p->y_row + vectors * LANES - 1, 1);
    }
    _Pragma("GCC unroll 4") for (int64_t k = 0; k < p->depth; k++, a += ROWS, b += vectors * LANES)
    {
        EACH(v, vectors) values[v] = tern__lanes_load(b + v * LANES, LANES);
        EACH(r, rows)
        {
            tern__lanes factor = a[r] - (tern__lanes){0};
            EACH(v, vectors) sum[r][v] += factor * values[v];
        }
    }
    EACH(r, rows)
    {
        if (p->columns == vectors * LANES)
            sums_store(p, sum[r], y + r * p->y_row, vectors * LANES, vectors);
        else
            sums_store(p, sum[r], y + r * p->y_row, p->columns, vectors);
    }
}

TERN__INLINE void strips_multiply(const part *p, int vectors)
{
    int64_t row = 0;
    for (; row + ROWS <= p->rows; row += ROWS) tile_multiply(p, row, ROWS, vectors);
    switch (p->rows - row) {
    case 1: tile_multiply(p, row, 1, vectors); break;
    case 2: tile_multiply(p, row, 2, vectors); break;
    case 3: tile_multiply(p, row, 3, vectors); break;
    }
}

TERN__SIMD static void f32_matmul_multiply(const part *p)
{
    switch ((p->columns + LANES - 1) / LANES) {
    case 1: strips_multiply(p, 1); break;
    case 2: strips_multiply(p, 2); break;
    default: strips_multiply(p, VECTORS); break;
    }
}

/* ---- blocks ---- */

/* Part `i` of `cuts` parts of `count` lines, in whole units of `width`. */
static range f32_matmul_part(int64_t count, int64_t width, int64_t cuts, int64_t i)
{
    int64_t units = (count + width - 1) / width;
    return (range){units * i / cuts * width, TERN__MIN(count, units * (i + 1) / cuts * width)};
}

/* The range cut into parts of up to `most` lines: how many. */
static int64_t cuts_of(int64_t count, int64_t most)
{
    return (count + most - 1) / most;
}

/* Adds a stretch of the sums to a block of the result. */
static void stretch_multiply(const job *j, const tern__matrix m[3], range rows, range columns, range sums,
                             float *room)
{
    const tern__view *bias = j->call->in[2];
    float *panel = room + BLOCK_ROWS * DEPTH;
    bool is_first = sums.first == 0, is_last = sums.last == m[A].columns;
    int64_t count = columns.last - columns.first, panels = cuts_of(count, VECTORS * LANES);
    block_copy(room, &m[A], rows, sums);
    for (int64_t i = 0; i < panels; i++) {
        range some = f32_matmul_part(count, LANES, panels, i);
        some = (range){columns.first + some.first, columns.first + some.last};
        panel_copy(panel, &m[B], some, sums);
        part p = {.a = room,
                  .b = panel,
                  .depth = sums.last - sums.first,
                  .y = (float *)m[Y].data + rows.first * m[Y].row_stride + some.first,
                  .y_row = m[Y].row_stride,
                  .rows = rows.last - rows.first,
                  .columns = some.last - some.first,
                  .bias = bias && is_last ? (const float *)bias->data + some.first : NULL,
                  .add = j->add || !is_first,
                  .relu = j->relu && is_last};
        f32_matmul_multiply(&p);
    }
}

/* Computes a block of the result by up to 192 rows. */
static void block_multiply(const job *j, const tern__matrix m[3], range rows, range columns, float *room)
{
    int64_t count = rows.last - rows.first, depth = m[A].columns;
    int64_t blocks = cuts_of(count, BLOCK_ROWS), stretches = cuts_of(depth, DEPTH);
    for (int64_t i = 0; i < blocks; i++) {
        range some = f32_matmul_part(count, ROWS, blocks, i);
        some = (range){rows.first + some.first, rows.first + some.last};
        for (int64_t s = 0; s < stretches; s++)
            stretch_multiply(j, m, some, columns, f32_matmul_part(depth, 1, stretches, s), room);
    }
}

/* ---- cuts ---- */

/* The time of a thread's block, in vectors of multiply-adds; a copied element takes that of some eight. */
static int64_t block_cost(const tern__product *p, int64_t row_cuts, int64_t column_cuts)
{
    int64_t strips = cuts_of(p->axis[0].size, ROWS), vectors = cuts_of(p->axis[2].size, LANES);
    int64_t rows = cuts_of(strips, row_cuts) * ROWS, columns = cuts_of(vectors, column_cuts) * LANES;
    return rows * columns + 8 * (rows + columns);
}

/* Cuts each matrix into as many blocks as there are threads, unless there are many matrices. */
static void f32_matmul_cut(job *j, int64_t count, int threads)
{
    int64_t cuts = count < 4 * threads ? threads : 1, best = INT64_MAX;
    for (int64_t rows = 1; rows <= cuts; rows++) {
        int64_t cost = block_cost(j->product, rows, cuts / rows);
        if (cost >= best) continue;
        best = cost;
        j->row_cuts = rows;
        j->column_cuts = cuts / rows;
    }
}

int tern__f32_matmul(const tern__call *call, const tern__product *p, char *const at[], bool add)
{
    job j = {.call = call, .product = p, .at = at, .add = add, .relu = tern__matmul_has_relu(call)};
    int64_t rows = p->axis[0].size, depth = p->axis[1].size, columns = p->axis[2].size,
            count = tern__product_count(p);
    int threads = tern__loop_threads(call, count * rows * columns * depth / LANES);
    size_t room = (BLOCK_ROWS + VECTORS * LANES) * DEPTH;
    float *memory = tern__loop_scratch(call, (size_t)threads * room * sizeof(*memory));
    if (!memory) return TERN_E_MEMORY;
    f32_matmul_cut(&j, count, threads);
    int64_t blocks = j.row_cuts * j.column_cuts;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = t; i < count * blocks; i += threads) {
            tern__matrix m[3];
            for (int o = 0; o < 3; o++) m[o] = tern__matrix_of(p, o, at[o], i / blocks);
            block_multiply(&j, m, f32_matmul_part(rows, ROWS, j.row_cuts, i % blocks / j.column_cuts),
                           f32_matmul_part(columns, LANES, j.column_cuts, i % j.column_cuts),
                           memory + (size_t)t * room);
        }
    return TERN_OK;
}
