/* argmax.c - the first of a line's largest or smallest elements in f32; 16-bit types are widened. The
 * smallest of x is the largest of -x.
 *
 * In a long row the largest stretch is found first, by a loop without branches, and only that stretch is
 * searched for the index. Adjacent lines each keep their best so far. */
#include "kernels/cpu/argmax.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#include <math.h>
#include <string.h>

#define STRETCH 256
#define SHORT   32
#define WIDTH   TERN__TILE_LINES

/* Returns the largest of sign x, or NaN if there is one. */
TERN__INLINE float top_of(const float *x, float sign, int64_t n)
{
    float top = sign * x[0];
    int nan = 0;
#pragma omp simd reduction(max : top) reduction(| : nan)
    for (int64_t i = 0; i < n; i++) {
        float v = sign * x[i];
        top = v > top ? v : top;
        nan |= v != v;
    }
    return nan ? NAN : top;
}

/* Finds `top`: the NaN if there is one, else what equals the largest. */
TERN__INLINE int64_t place_of_top(const float *x, float sign, float top, int64_t n)
{
    int64_t i = 0;
    while (i < n && (top == top ? sign * x[i] != top : x[i] == x[i])) i++;
    return i;
}

TERN__INLINE int64_t best_of_long(const float *x, float sign, int64_t n)
{
    int64_t best = 0;
    float top = top_of(x, sign, TERN__MIN(n, STRETCH));
    for (int64_t first = STRETCH; first < n && top == top; first += STRETCH) {
        float here = top_of(x + first, sign, TERN__MIN(n - first, STRETCH));
        if (here <= top) continue;
        top = here;
        best = first;
    }
    return best + place_of_top(x + best, sign, top, TERN__MIN(n - best, STRETCH));
}

/* Searches a few elements one by one. */
TERN__INLINE int64_t best_of_short(const float *x, float sign, int64_t n)
{
    int64_t best = 0;
    float top = sign * x[0];
    for (int64_t i = 1; i < n && top == top; i++) {
        float v = sign * x[i];
        if (v <= top) continue;
        top = v;
        best = i;
    }
    return best;
}

TERN__SIMD static void best_of_rows(const float *x, float sign, int64_t rows, int64_t size, int64_t *index)
{
    for (int64_t r = 0; r < rows; r++)
        index[r] =
            size < SHORT ? best_of_short(x + r * size, sign, size) : best_of_long(x + r * size, sign, size);
}

TERN__SIMD static void best_of_columns(const float *x, float sign, int64_t columns, int64_t size,
                                       int64_t step, int64_t *index)
{
    float top[WIDTH];
    int32_t best[WIDTH];
    for (int64_t j = 0; j < columns; j++) {
        top[j] = sign * x[j];
        best[j] = 0;
    }
    for (int64_t i = 1; i < size; i++)
        for (int64_t j = 0; j < columns; j++) {
            float v = sign * x[i * step + j];
            bool better = (v > top[j] || v != v) && top[j] == top[j];
            top[j] = better ? v : top[j];
            best[j] = better ? (int32_t)i : best[j];
        }
    for (int64_t j = 0; j < columns; j++) index[j] = best[j];
}

void tern__cpu_best(const float *x, const tern__line_tiles *tiles, int64_t lines, float sign, int64_t *best)
{
    if (tiles->rows)
        best_of_rows(x, sign, lines, tiles->size, best);
    else
        best_of_columns(x, sign, lines, tiles->size, tiles->step, best);
}

/* Processes the lines of one tile. */
static void argmax_choose(const tern__call *call, const tern__line_tiles *tiles, const tern__line_tile *t,
                          float sign)
{
    const float *x = (const float *)call->in[0]->data + t->at;
    int64_t best[WIDTH];
    tern__cpu_best(x, tiles, t->lines, sign, best);
    for (int64_t j = 0; j < t->lines; j++) {
        if (call->out[0]) ((int64_t *)call->out[0]->data)[t->line + j] = best[j];
        if (call->out[1])
            ((float *)call->out[1]->data)[t->line + j] = x[j * tiles->apart + best[j] * tiles->step];
    }
}

static int choose_all(const tern__call *call, float sign)
{
    const tern__view *x = call->in[0];
    if (tern__view_is_half(x)) return tern__cpu_widened(call, sign > 0 ? tern__cpu_argmax : tern__cpu_argmin);
    tern__lines lines = tern__lines_of(x, ((const tern__dim_attr *)call->attr)->dim);
    if (!tern__is_dense(x, x) || tern__view_count(x) == 0 || lines.size > INT32_MAX)
        return TERN_E_UNSUPPORTED;
    tern__line_tiles tiles = tern__line_tiles_of(&lines);
    int threads = tern__loop_threads(call, tern__view_count(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&tiles, i);
        argmax_choose(call, &tiles, &t, sign);
    }
    return TERN_OK;
}

int tern__cpu_argmax(const tern__call *call)
{
    return choose_all(call, 1);
}

int tern__cpu_argmin(const tern__call *call)
{
    return choose_all(call, -1);
}

int tern__cpu_choice_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *index = call->in[1], *dx = call->out[0];
    if (tern__view_is_half(dx)) return tern__cpu_widened(call, tern__cpu_choice_grad);
    if (!tern__is_dense(dx, dx) || !tern__is_dense(dy, dy)) return TERN_E_UNSUPPORTED;
    tern__lines lines = tern__lines_of(dx, ((const tern__dim_attr *)call->attr)->dim);
    tern__lines chosen = tern__chosen_lines(&lines, index);
    const int64_t *place = index->data;
    float *to = dx->data;
    if (!call->add[0]) memset(to, 0, tern__view_bytes(dx));
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) {
        int64_t start = tern__line_start(&lines, n), from = tern__line_start(&chosen, n);
        for (int64_t at = from; at < from + chosen.size * lines.inner; at += lines.inner)
            to[start + place[at] * lines.inner] += ((const float *)dy->data)[at];
    }
    return TERN_OK;
}
