/* f32_matmul.c - the f32 matrix product for registers of eight floats or four. A batch's results are cut
 * into blocks, one for each thread, or each is a thread's whole block. A thread takes up to 256 rows of its
 * block and 256 products of the sums at a time. That much of a is copied into strips of 4 rows, which stay
 * in the second-level cache. Up to 24 columns of b at a time are copied into a panel that stays in the
 * first; where b's rows are contiguous, by the first strip that reads them. The product of a strip and a
 * panel is kept in 12 registers, and every row of b's panel is loaded into three more. 4 x 24 needs fewer
 * loads than 6 x 16, 7 instead of 8 for 12 multiply-adds, and cuts batches of 32 and 64 without a remainder.
 *
 * The sums are cut at places that depend on their length alone, and every element's products are added in
 * order, so no bit depends on the number of threads, nor on the other rows and columns of the product. This
 * is why oneDNN's product is not used here: on CPUs without AVX-512 it cuts sums differently for each
 * number of threads.
 *
 * Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008); Van Zee and van de
 * Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality" (2015). */
#include "kernels/cpu/width.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/matrix.h"
#include "kernels/matmul.h"

#define LANES TERN__LANES

/* A strip's rows, a panel's vectors, the most rows of a block and the most products of a stretch. */
enum { ROWS = 4, VECTORS = 3, BLOCK_ROWS = 256, DEPTH = 256 };
enum { A, B, Y };

#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

typedef struct job {
    const tern__call *call;
    const tern__product *product;
    bool add, relu;
    int64_t row_cuts, column_cuts; /* of each matrix */
} job;

typedef struct range {
    int64_t first, last;
} range;

/* What is multiplied at a time: a block's strips by a panel. */
typedef struct part {
    const float *a; /* (strips, depth, ROWS) */
    float *b;       /* the panel: (depth, columns of whole vectors) */
    int64_t depth;
    const float *from; /* what has yet to be copied to the panel: rows, `step` apart; NULL: nothing */
    int64_t step;
    float *y;
    int64_t y_row, rows, columns;
    const float *bias; /* of these columns; NULL: none, or not yet */
    bool add, relu;
} part;

/* ---- copies ---- */

typedef float four __attribute__((vector_size(16)));

/* Four elements each of as many lines as a vector has lanes, turned: v[i] becomes element i of all lines. The
 * halves of a register do not mix, so in AVX2 a vector is loaded from two lines. */
TERN__INLINE void load_turned(tern__lanes v[4], const float *from, int64_t line, int lines)
{
    four half[LANES] = {{0}};
    EACH(l, LANES) if (l < lines) memcpy(&half[l], from + l * line, sizeof(four));
#if TERN__LANES == 8
    EACH(i, 4) v[i] = __builtin_shufflevector(half[i], half[i + 4], 0, 1, 2, 3, 4, 5, 6, 7);
#else
    EACH(i, 4) v[i] = half[i];
#endif
    _Pragma("GCC unroll 2") for (int round = 0; round < 2; round++)
    {
        const tern__lanes a = v[0], b = v[1], c = v[2], d = v[3];
        v[0] = __builtin_shufflevector(a, c, TERN__ZIP_LOW);
        v[1] = __builtin_shufflevector(a, c, TERN__ZIP_HIGH);
        v[2] = __builtin_shufflevector(b, d, TERN__ZIP_LOW);
        v[3] = __builtin_shufflevector(b, d, TERN__ZIP_HIGH);
    }
}

/* Copies up to LANES lines that are contiguous along the sum: element k of line l to to[k * width + l]. If
 * `width` is less than LANES, the lines behind it go to the next strip. */
TERN__INLINE void copy_turned(float *to, int width, const float *from, int64_t line, int lines, int64_t depth)
{
    const int n = width < LANES ? width : LANES;
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
        tern__lanes v[4];
        load_turned(v, from + k, line, lines);
        EACH(i, 4)
        for (int first = 0; first < LANES; first += n)
            memcpy(to + first * depth + (k + i) * width, (const float *)&v[i] + first,
                   (size_t)n * sizeof(*to));
    }
    for (; k < depth; k++)
        for (int l = 0; l < lines; l++) to[l / n * n * depth + k * width + l % n] = from[l * line + k];
}

/* Copies `strips` strips, LANES rows or, where rows are contiguous across the sum, a cache line of them. */
TERN__INLINE void strips_copy(float *to, const tern__matrix *a, const float *from, int strips, int64_t depth)
{
    if (a->column_stride == 1)
        copy_turned(to, ROWS, from, a->row_stride, ROWS * strips, depth);
    else
        for (int64_t k = 0; k < depth; k++)
            for (int s = 0; s < strips; s++)
                memcpy(to + (s * depth + k) * ROWS, from + k * a->column_stride + s * ROWS, sizeof(four));
}

/* Copies a block's rows. Those of the last strip that do not exist stay undefined, and nothing reads them. */
TERN__SIMD static void block_copy(float *to, const tern__matrix *a, range rows, range sums)
{
    enum { SOME = LANES / ROWS, MANY = TERN__BLOCK / ROWS };
    const float *from = (const float *)a->data + rows.first * a->row_stride + sums.first * a->column_stride;
    int64_t depth = sums.last - sums.first, count = rows.last - rows.first, row = 0;
    if (a->column_stride != 1)
        for (; row + MANY * ROWS <= count; row += MANY * ROWS)
            strips_copy(to + row * depth, a, from + row * a->row_stride, MANY, depth);
    for (; row + SOME * ROWS <= count; row += SOME * ROWS)
        strips_copy(to + row * depth, a, from + row * a->row_stride, SOME, depth);
    for (; row < count; row += ROWS)
        for (int64_t r = row; r < TERN__MIN(count, row + ROWS); r++)
            for (int64_t k = 0; k < depth; k++)
                to[row * depth + k * ROWS + r - row] = from[r * a->row_stride + k * a->column_stride];
}

/* Copies a panel of so many vectors of columns, where tile_multiply does not; columns that do not exist are
 * 0. */
TERN__INLINE void panel_copy_vectors(float *to, const float *from, int64_t line, int64_t place,
                                     int64_t columns, int64_t depth, int vectors)
{
    int width = vectors * LANES;
    if (columns < width) memset(to, 0, (size_t)(width * depth) * sizeof(*to));
    if (line == 1)
        for (int64_t k = 0; k < depth; k++)
            memcpy(to + k * width, from + k * place, (size_t)columns * sizeof(*to));
    else
        for (int v = 0; v < vectors; v++, to += LANES, from += LANES * line)
            if (columns >= (v + 1) * LANES)
                copy_turned(to, width, from, line, LANES, depth);
            else
                copy_turned(to, width, from, line, (int)columns - v * LANES, depth);
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

/* Stores a row of sums. */
TERN__INLINE void sums_store(const part *p, tern__lanes *sum, float *to, int vectors)
{
    if (p->add) EACH(v, vectors) sum[v] += tern__lanes_load(to + v * LANES, LANES);
    if (p->bias) EACH(v, vectors) sum[v] += tern__lanes_load(p->bias + v * LANES, LANES);
    if (p->relu) EACH(v, vectors) sum[v] = tern__lanes_relu(sum[v]);
    EACH(v, vectors) tern__lanes_store(to + v * LANES, sum[v], LANES);
}

/* The same, where only the first columns exist. */
TERN__SIMD static void sums_store_some(const part *p, const float *sums, float *to)
{
    for (int64_t c = 0; c < p->columns; c += LANES) {
        int n = (int)TERN__MIN(LANES, p->columns - c);
        tern__lanes v = tern__lanes_load(sums + c, n);
        if (p->add) v += tern__lanes_load(to + c, n);
        if (p->bias) v += tern__lanes_load(p->bias + c, n);
        tern__lanes_store(to + c, p->relu ? tern__lanes_relu(v) : v, n);
    }
}

/* Multiplies a strip of so many rows by a panel of so many vectors, and copies the panel first if told so. */
TERN__INLINE void tile_multiply(const part *p, int64_t row, int rows, int vectors, bool copies)
{
    const float *a = p->a + row * p->depth, *from = p->from;
    float *b = p->b;
    float *y = p->y + row * p->y_row;
    tern__lanes sum[ROWS][VECTORS] = {{{0}}}, values[VECTORS];
    EACH(r, rows)
    {
        __builtin_prefetch(y + r * p->y_row, 1);
        __builtin_prefetch(y + r * p->y_row + vectors * LANES - 1, 1);
    }
    _Pragma("GCC unroll 4") for (int64_t k = 0; k < p->depth; k++, a += ROWS, b += vectors * LANES)
    {
        EACH(v, vectors) values[v] = tern__lanes_load((copies ? from : b) + v * LANES, LANES);
        if (copies) {
            __builtin_prefetch(from + 16 * p->step);
            __builtin_prefetch(from + 16 * p->step + vectors * LANES - 1);
            EACH(v, vectors) tern__lanes_store(b + v * LANES, values[v], LANES);
            from += p->step;
        }
        EACH(r, rows)
        {
            tern__lanes factor = a[r] - (tern__lanes){0};
            EACH(v, vectors) sum[r][v] += factor * values[v];
        }
    }
    EACH(r, rows)
    {
        float some[VECTORS * LANES];
        if (p->columns == vectors * LANES) {
            sums_store(p, sum[r], y + r * p->y_row, vectors);
            continue;
        }
        EACH(v, vectors) tern__lanes_store(some + v * LANES, sum[r][v], LANES);
        sums_store_some(p, some, y + r * p->y_row);
    }
}

TERN__INLINE void strip_multiply(const part *p, int64_t row, int vectors, bool copies)
{
    switch (p->rows - row) {
    case 1: tile_multiply(p, row, 1, vectors, copies); break;
    case 2: tile_multiply(p, row, 2, vectors, copies); break;
    case 3: tile_multiply(p, row, 3, vectors, copies); break;
    default: tile_multiply(p, row, ROWS, vectors, copies); break;
    }
}

TERN__INLINE void strips_multiply(const part *p, int vectors)
{
    int64_t row = 0;
    if (p->from) {
        strip_multiply(p, 0, vectors, true);
        row = ROWS;
    }
    for (; row < p->rows; row += ROWS) strip_multiply(p, row, vectors, false);
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

/* Panel i of a block's columns. */
static range panel_columns(range columns, int64_t panels, int64_t i)
{
    range some = f32_matmul_part(columns.last - columns.first, LANES, panels, i);
    return (range){columns.first + some.first, columns.first + some.last};
}

/* Adds a stretch of the sums to a block of the result. */
static void stretch_multiply(const job *j, const tern__matrix m[3], range rows, range columns, range sums,
                             float *room)
{
    const tern__view *bias = j->call->in[2];
    float *panel = room + BLOCK_ROWS * DEPTH;
    bool is_first = sums.first == 0, is_last = sums.last == m[A].columns;
    int64_t panels = cuts_of(columns.last - columns.first, VECTORS * LANES);
    block_copy(room, &m[A], rows, sums);
    for (int64_t i = 0; i < panels; i++) {
        range some = panel_columns(columns, panels, i);
        const float *from = (const float *)m[B].data + sums.first * m[B].row_stride + some.first;
        bool copies = m[B].column_stride == 1 && (some.last - some.first) % LANES == 0;
        if (!copies) panel_copy(panel, &m[B], some, sums);
        part p = {.a = room,
                  .b = panel,
                  .from = copies ? from : NULL,
                  .step = m[B].row_stride,
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

/* Computes a block of the result by up to 256 rows. */
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
    job j = {.call = call, .product = p, .add = add, .relu = tern__matmul_has_relu(call)};
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
