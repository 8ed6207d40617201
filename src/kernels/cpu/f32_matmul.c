/* f32_matmul.c - the f32 matrix product for registers of eight floats or four. A batch's results are cut
 * into blocks, one for each thread, or each is a thread's whole block. A thread takes up to 256 rows of its
 * block and 256 products of the sums at a time. That much of a is copied into strips of 4 rows, which stay
 * in the second-level cache. Up to 24 columns of b at a time are copied into a panel that stays in the
 * first; where b's rows are contiguous, by the first strip that reads them. The product of a strip and a
 * panel is kept in 12 registers, and every row of b's panel is loaded into three more. 4 x 24 needs fewer
 * loads than 6 x 16, 7 instead of 8 for 12 multiply-adds, and cuts batches of 32 and 64 without a remainder.
 *
 * A batch of few rows by a weight whose rows are contiguous along the sum, as in a linear layer's forward, is
 * computed turned: the weight's rows are the strips, which are read where they lie, each by all panels of the
 * batch while it is in the second-level cache. Copying the weight took 7 % of the product's time for 64 rows
 * and 15 % for 32. Only a tile's sums are turned then.
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
/* Of a turned product: the most rows of the batch, and the weight's rows that all panels read in turn. Rows
 * of 1024 floats share the sets of a cache, so more of them would not stay there. */
enum { TURNED_ROWS = 96, TURNED_BLOCK = 64 };
enum { A, B, Y };

#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

typedef struct job {
    const tern__call *call;
    bool add, relu;
    bool turned;                   /* y's transpose is computed, as b's by a's */
    int64_t rows, columns;         /* of what is computed                      */
    int64_t row_cuts, column_cuts; /* of each matrix */
} job;

typedef struct range {
    int64_t first, last;
} range;

/* What is multiplied at a time: a block's strips by a panel. */
typedef struct part {
    const float *a; /* (strips, depth, ROWS); turned: rows, `a_row` apart */
    int64_t a_row;
    float *b; /* the panel: (depth, columns of whole vectors) */
    int64_t depth;
    const float *from; /* what has yet to be copied to the panel: rows, `step` apart; NULL: nothing */
    int64_t step;
    float *y;
    int64_t y_row, rows, columns; /* turned: y_row is from one column to the next */
    const float *bias;            /* of these columns, or turned of these rows; NULL: none, or not yet */
    bool add, relu;
} part;

/* ---- copies ---- */

typedef float four __attribute__((vector_size(16)));

/* Turns four vectors: v[i] becomes element i of all four, in each half of a register. */
TERN__INLINE void lanes_turn(tern__lanes v[4])
{
    _Pragma("GCC unroll 2") for (int round = 0; round < 2; round++)
    {
        const tern__lanes a = v[0], b = v[1], c = v[2], d = v[3];
        v[0] = __builtin_shufflevector(a, c, TERN__ZIP_LOW);
        v[1] = __builtin_shufflevector(a, c, TERN__ZIP_HIGH);
        v[2] = __builtin_shufflevector(b, d, TERN__ZIP_LOW);
        v[3] = __builtin_shufflevector(b, d, TERN__ZIP_HIGH);
    }
}

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
    lanes_turn(v);
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

/* ---- turned products ---- */

/* Sums of up to a cache line of rows, column by column; a strip of fewer rows overwrites what lies behind. */
typedef struct lines {
    float sum[VECTORS * LANES][TERN__BLOCK + ROWS];
} lines;

/* Turns a strip's sums. */
TERN__INLINE void lines_put(lines *to, int64_t row, tern__lanes sum[ROWS][VECTORS], int vectors)
{
    EACH(v, vectors)
    {
        tern__lanes turned[ROWS] = {sum[0][v], sum[1][v], sum[2][v], sum[3][v]};
        lanes_turn(turned);
        EACH(l, LANES)
        memcpy(&to->sum[v * LANES + l][row], (const float *)&turned[l % ROWS] + l / ROWS * ROWS,
               sizeof(four));
    }
}

/* Stores the lines of rows row .. row + count - 1. */
TERN__INLINE void lines_store(const part *p, const lines *from, int64_t row, int count)
{
    for (int64_t c = 0; c < p->columns; c++)
        for (int first = 0; first < count; first += LANES) {
            int n = count - first < LANES ? count - first : LANES;
            float *to = p->y + c * p->y_row + row + first;
            tern__lanes value = tern__lanes_load(from->sum[c] + first, n);
            if (p->add) value += tern__lanes_load(to, n);
            if (p->bias) value += tern__lanes_load(p->bias + row + first, n);
            tern__lanes_store(to, p->relu ? tern__lanes_relu(value) : value, n);
        }
}

/* Multiplies so many rows by a panel of so many vectors, and fetches the next rows meanwhile. */
TERN__INLINE void turned_tile_multiply(const part *p, int64_t row, int rows, int vectors, lines *to)
{
    const float *a = p->a + row * p->a_row, *b = p->b;
    const int64_t a_row = p->a_row;
    tern__lanes sum[ROWS][VECTORS] = {{{0}}}, values[VECTORS];
    for (int64_t first = 0, last; first < p->depth; first = last) {
        last = TERN__MIN(p->depth, first + TERN__BLOCK);
        EACH(r, rows) __builtin_prefetch(a + (rows + r) * a_row + first);
        _Pragma("GCC unroll 4") for (int64_t k = first; k < last; k++, b += vectors * LANES)
        {
            EACH(v, vectors) values[v] = tern__lanes_load(b + v * LANES, LANES);
            EACH(r, rows)
            {
                tern__lanes factor = a[r * a_row + k] - (tern__lanes){0};
                EACH(v, vectors) sum[r][v] += factor * values[v];
            }
        }
    }
    lines_put(to, row % TERN__BLOCK, sum, vectors);
}

TERN__INLINE void turned_strips_multiply(const part *p, int vectors)
{
    lines some;
    int64_t row = 0;
    for (; row + TERN__BLOCK <= p->rows; row += TERN__BLOCK) {
        for (int r = 0; r < TERN__BLOCK; r += ROWS) turned_tile_multiply(p, row + r, ROWS, vectors, &some);
        lines_store(p, &some, row, TERN__BLOCK);
    }
    for (int64_t r = row; r < p->rows;)
        if (r + ROWS <= p->rows) {
            turned_tile_multiply(p, r, ROWS, vectors, &some);
            r += ROWS;
        } else
            turned_tile_multiply(p, r++, 1, vectors, &some);
    if (row < p->rows) lines_store(p, &some, row, (int)(p->rows - row));
}

TERN__SIMD static void f32_matmul_multiply_turned(const part *p)
{
    switch ((p->columns + LANES - 1) / LANES) {
    case 1: turned_strips_multiply(p, 1); break;
    case 2: turned_strips_multiply(p, 2); break;
    default: turned_strips_multiply(p, VECTORS); break;
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

/* Where panel i of a stretch begins in the room. */
static float *panel_room(float *room, int64_t i)
{
    return room + i * VECTORS * LANES * DEPTH;
}

/* Adds a stretch of the sums to a block of the transposed result. */
static void stretch_multiply_turned(const job *j, const tern__matrix m[3], range rows, range columns,
                                    range sums, float *room)
{
    const tern__view *bias = j->call->in[2];
    int64_t panels = cuts_of(columns.last - columns.first, VECTORS * LANES);
    for (int64_t i = 0; i < panels; i++)
        panel_copy(panel_room(room, i), &m[B], panel_columns(columns, panels, i), sums);
    for (int64_t row = rows.first; row < rows.last; row += TURNED_BLOCK)
        for (int64_t i = 0; i < panels; i++) {
            range some = panel_columns(columns, panels, i);
            part p = {.a = (const float *)m[A].data + row * m[A].row_stride + sums.first,
                      .a_row = m[A].row_stride,
                      .b = panel_room(room, i),
                      .depth = sums.last - sums.first,
                      .y = (float *)m[Y].data + some.first * m[Y].column_stride + row,
                      .y_row = m[Y].column_stride,
                      .rows = TERN__MIN(TURNED_BLOCK, rows.last - row),
                      .columns = some.last - some.first,
                      .bias = bias && sums.last == m[A].columns ? (const float *)bias->data + row : NULL,
                      .add = j->add || sums.first > 0,
                      .relu = j->relu && sums.last == m[A].columns};
            f32_matmul_multiply_turned(&p);
        }
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

/* Computes a block of the result, by up to 256 rows unless it is turned. */
static void block_multiply(const job *j, const tern__matrix m[3], range rows, range columns, float *room)
{
    int64_t count = rows.last - rows.first, depth = m[A].columns;
    int64_t blocks = j->turned ? 1 : cuts_of(count, BLOCK_ROWS), stretches = cuts_of(depth, DEPTH);
    for (int64_t i = 0; i < blocks; i++) {
        range some = f32_matmul_part(count, ROWS, blocks, i);
        some = (range){rows.first + some.first, rows.first + some.last};
        for (int64_t s = 0; s < stretches; s++)
            (j->turned ? stretch_multiply_turned : stretch_multiply)(
                j, m, some, columns, f32_matmul_part(depth, 1, stretches, s), room);
    }
}

/* ---- cuts ---- */

/* The time of a thread's block, in vectors of multiply-adds; a copied element takes that of some eight. */
static int64_t block_cost(const job *j, int64_t row_cuts, int64_t column_cuts)
{
    int64_t strips = cuts_of(j->rows, ROWS), vectors = cuts_of(j->columns, LANES);
    int64_t rows = cuts_of(strips, row_cuts) * ROWS, columns = cuts_of(vectors, column_cuts) * LANES;
    return rows * columns + 8 * (rows + columns);
}

/* Cuts each matrix into as many blocks as there are threads, unless there are many matrices. */
static void f32_matmul_cut(job *j, int64_t count, int threads)
{
    int64_t cuts = count < 4 * threads ? threads : 1, best = INT64_MAX;
    for (int64_t rows = 1; rows <= cuts; rows++) {
        int64_t cost = block_cost(j, rows, cuts / rows);
        if (cost >= best) continue;
        best = cost;
        j->row_cuts = rows;
        j->column_cuts = cuts / rows;
    }
}

/* ---- turning ---- */

static tern__matrix matrix_turned(const tern__matrix *m)
{
    return (tern__matrix){m->data, m->columns, m->rows, m->column_stride, m->row_stride};
}

/* The batch's rows are copied instead of the weight's, so there have to be fewer of them. */
static bool pays_turned(const tern__product *p, char *const at[])
{
    tern__matrix b = tern__matrix_of(p, B, at[B], 0), y = tern__matrix_of(p, Y, at[Y], 0);
    return b.row_stride == 1 && b.column_stride > 1 && y.column_stride == 1 && y.rows <= TURNED_ROWS &&
           y.columns >= 4 * y.rows;
}

/* The operands of matrix `n` of the batch. */
static void job_matrices(const job *j, const tern__product *p, char *const at[], int64_t n, tern__matrix m[3])
{
    for (int o = 0; o < 3; o++) m[o] = tern__matrix_of(p, o, at[o], n);
    if (!j->turned) return;
    const tern__matrix a = m[A];
    m[A] = matrix_turned(&m[B]);
    m[B] = matrix_turned(&a);
    m[Y] = matrix_turned(&m[Y]);
}

int tern__f32_matmul(const tern__call *call, const tern__product *p, char *const at[], bool add)
{
    int64_t rows = p->axis[0].size, depth = p->axis[1].size, columns = p->axis[2].size,
            count = tern__product_count(p);
    bool turned = pays_turned(p, at);
    job j = {.call = call,
             .add = add,
             .relu = tern__matmul_has_relu(call),
             .turned = turned,
             .rows = turned ? columns : rows,
             .columns = turned ? rows : columns};
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
            job_matrices(&j, p, at, i / blocks, m);
            block_multiply(&j, m, f32_matmul_part(j.rows, ROWS, j.row_cuts, i % blocks / j.column_cuts),
                           f32_matmul_part(j.columns, LANES, j.column_cuts, i % j.column_cuts),
                           memory + (size_t)t * room);
        }
    return TERN_OK;
}
