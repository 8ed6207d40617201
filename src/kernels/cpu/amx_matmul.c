/* amx_matmul.c - a bf16 matrix product in blocks of 32 by 32. A block's operands are copied into tiles,
 * padded with zeros: first as much of a as fits into the second-level cache, then b, 32 columns at a time,
 * so that all these rows use a tile of b while it is in a near cache. Threads divide the rows of a for the
 * former, the columns of b for the latter. */
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/matmul.h"

#define ROWS  TERN__AMX_ROWS
#define PAIR  (2 * ROWS)
#define DEPTH TERN__AMX_DEPTH
#define CACHE (1 << 19) /* bytes of a that are copied at a time */

enum { A_TILES = TERN__SCRATCH_OPERAND, B_TILES, STEPS };

typedef struct job {
    const tern__call *call;
    const tern__matrix *a, *b, *y;
    bool add, relu;
    int64_t steps, panel; /* steps along the sum; bytes of 16 rows or columns in tiles */
    char *a_tiles, *b_tiles;
    int64_t *at; /* offsets of the steps in a panel */
} job;

/* ---- tiles ---- */

/* Two adjacent values are a word. In a tile of a the words of one row are contiguous, in a tile of b the
 * words of one place in the sum. */
typedef tern__words words;

TERN__DEFINE_TURN(turn, words)

/* Loads `lines` lines whose elements are adjacent along the sum. */
TERN__INLINE void load_along(words v[ROWS], const uint16_t *from, int64_t stride, int64_t lines,
                             int64_t depth)
{
    for (int64_t i = 0; i < lines; i++) {
        if (depth == DEPTH)
            memcpy(&v[i], from + i * stride, sizeof(v[i]));
        else
            memcpy(&v[i], from + i * stride, (size_t)depth * sizeof(*from));
    }
}

/* The same for adjacent lines: word i of v[k] has places 2 k and 2 k + 1 of line i. */
TERN__INLINE void load_across(words v[ROWS], const uint16_t *from, int64_t stride, int64_t lines,
                              int64_t depth)
{
    for (int64_t k = 0; k < depth; k++) {
        tern__halves h = {0};
        if (lines == ROWS)
            memcpy(&h, from + k * stride, sizeof(h));
        else
            memcpy(&h, from + k * stride, (size_t)lines * sizeof(*from));
        v[k / 2] |= __builtin_convertvector(h, words) << (k % 2 ? 16 : 0);
    }
}

/* Makes a tile from up to 16 lines of up to 32 places, with the strides `line` and `place`. */
TERN__AMX_SIMD static void make_tile(char *to, const uint16_t *from, int64_t line, int64_t place,
                                     int64_t lines, int64_t depth, bool of_a)
{
    words v[ROWS] = {{0}};
    bool along = place == 1;
    if (along)
        load_along(v, from, line, lines, depth);
    else
        load_across(v, from, place, lines, depth);
    if (along != of_a) turn(v);
    memcpy(to, v, sizeof(v));
}

/* Makes a panel: 16 lines from `first` on, rows of a or columns of b. */
static void make_panel(const job *j, char *to, const tern__matrix *m, bool of_a, int64_t first)
{
    int64_t line = of_a ? m->row_stride : m->column_stride, place = of_a ? m->column_stride : m->row_stride;
    int64_t lines = of_a ? m->rows : m->columns, depth = of_a ? m->columns : m->rows;
    const uint16_t *from = (const uint16_t *)m->data + first * line;
    for (int64_t s = 0; s < j->steps; s++)
        make_tile(to + s * TERN__AMX_TILE, from + s * DEPTH * place, line, place,
                  TERN__MIN(ROWS, lines - first), TERN__MIN(DEPTH, depth - s * DEPTH), of_a);
}

/* ---- products ---- */

TERN__INLINE void put_rows(const job *j, const float *sums, int64_t row, int64_t column, int64_t rows, int n)
{
    const tern__view *bias = j->call->in[2];
    tern_dtype dtype = j->call->out[0]->dtype;
    tern__lanes more = {0};
    if (bias) more = tern__lanes_get(bias->data, bias->dtype, column, n);
    for (int64_t r = 0; r < rows; r++) {
        tern__lanes v = tern__lanes_load(sums + r * ROWS, ROWS) + more;
        int64_t at = (row + r) * j->y->row_stride + column;
        if (j->add) v += tern__lanes_get(j->y->data, dtype, at, n);
        tern__lanes_set(j->y->data, dtype, at, j->relu ? tern__lanes_relu(v) : v, n, false);
    }
}

/* Writes a tile of the result, cut to y's size. */
TERN__AMX_SIMD static void amx_put(const job *j, const float *sums, int64_t row, int64_t column)
{
    int64_t rows = TERN__MIN(ROWS, j->y->rows - row), columns = TERN__MIN(ROWS, j->y->columns - column);
    if (columns == ROWS)
        put_rows(j, sums, row, column, rows, ROWS);
    else
        put_rows(j, sums, row, column, rows, (int)columns);
}

/* Computes 32 columns of the result from `column` on, for rows first .. last - 1. */
static void columns(const job *j, char *b_tiles, int64_t column, int64_t first, int64_t last)
{
    float sums[TERN__AMX_SUMS] __attribute__((aligned(64)));
    bool wide = column + ROWS < j->y->columns;
    make_panel(j, b_tiles, j->b, false, column);
    if (wide) make_panel(j, b_tiles + j->panel, j->b, false, column + ROWS);
    for (int64_t row = first; row < last; row += PAIR) {
        bool high = row + ROWS < last;
        tern__amx_operands o = {.a = j->a_tiles + (row - first) / ROWS * j->panel,
                                .b = b_tiles,
                                .a_row = 2 * DEPTH,
                                .a_next = high ? j->panel : 0,
                                .b_next = wide ? j->panel : 0,
                                .a_at = j->at,
                                .b_at = j->at,
                                .steps = j->steps};
        tern__amx_block(&o, sums);
        for (int r = 0; r < 1 + high; r++)
            for (int c = 0; c < 1 + wide; c++)
                amx_put(j, sums + (r * 2 + c) * ROWS * ROWS, row + r * ROWS, column + c * ROWS);
    }
}

/* Computes rows first .. last - 1 of the result. */
static void rows(const job *j, int64_t first, int64_t last, int threads)
{
    int64_t panels = (last - first + ROWS - 1) / ROWS, pairs = (j->y->columns + PAIR - 1) / PAIR;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < panels; i++)
            make_panel(j, j->a_tiles + i * j->panel, j->a, true, first + i * ROWS);
#pragma omp for schedule(static)
        for (int t = 0; t < threads; t++) {
            tern__amx_open();
            for (int64_t i = pairs * t / threads; i < pairs * (t + 1) / threads; i++)
                columns(j, j->b_tiles + 2 * t * j->panel, i * PAIR, first, last);
            tern__amx_close();
        }
    }
}

static int open_tiles(job *j, int64_t count, int threads)
{
    int64_t panels = (count + ROWS - 1) / ROWS;
    j->a_tiles = tern__loop_scratch_of(j->call, A_TILES, (size_t)(panels * j->panel));
    j->b_tiles =
        j->a_tiles ? tern__loop_scratch_of(j->call, B_TILES, (size_t)(2 * threads * j->panel)) : NULL;
    j->at = j->b_tiles ? tern__loop_scratch_of(j->call, STEPS, (size_t)j->steps * sizeof(*j->at)) : NULL;
    for (int64_t s = 0; s < j->steps && j->at; s++) j->at[s] = s * TERN__AMX_TILE;
    return j->at ? TERN_OK : TERN_E_MEMORY;
}

int tern__amx_matmul(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                     const tern__matrix *y, bool add)
{
    job j = {.call = call, .a = a, .b = b, .y = y, .add = add, .steps = (a->columns + DEPTH - 1) / DEPTH};
    j.relu = tern__matmul_has_relu(call);
    j.panel = j.steps * TERN__AMX_TILE;
    int64_t count = TERN__MIN(y->rows, TERN__MAX(1, CACHE / (PAIR * DEPTH * 2 * j.steps)) * PAIR);
    int threads = tern__loop_threads(call, y->rows * y->columns * j.steps / 4);
    int status = open_tiles(&j, count, threads);
    for (int64_t first = 0; first < y->rows && !status; first += count)
        rows(&j, first, TERN__MIN(y->rows, first + count), threads);
    return status;
}
