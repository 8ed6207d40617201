/* softmax.c - softmax, log softmax and their gradients along any dimension in f32; 16-bit types are
 * widened.
 *
 * Several short rows go through exp together, so that it always has many numbers to process. */
#include "kernels/cpu/exps.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#define WIDTH   TERN__TILE_LINES
#define STRETCH TERN__TILE_ELEMENTS /* elements of a long row that are taken at a time */

/* ---- forward ---- */

TERN__INLINE float largest(const float *x, int64_t n)
{
    float top = x[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* y = (x - shift) scale */
TERN__INLINE void row_shift_scale(float *y, const float *x, float shift, float scale, int64_t n)
{
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = (x[i] - shift) * scale;
}

TERN__SIMD static void forward_rows(float *y, const float *x, int64_t rows, int64_t size, bool log_of)
{
    float stage[STRETCH];
    double sum[WIDTH] = {0};
    for (int64_t r = 0; r < rows; r++)
        row_shift_scale(y + r * size, x + r * size, largest(x + r * size, size), 1, size);
    for (int64_t first = 0; first < rows * size; first += STRETCH) {
        int64_t n = TERN__MIN(STRETCH, rows * size - first);
        float *e = log_of ? stage : y + first;
        tern__exps(e, y + first, n);
        for (int64_t r = 0; r < rows; r++) sum[r] += tern__dot(e + r * size, NULL, TERN__MIN(n, size));
    }
    for (int64_t r = 0; r < rows; r++)
        row_shift_scale(y + r * size, y + r * size, log_of ? (float)log(sum[r]) : 0,
                        log_of ? 1 : (float)(1 / sum[r]), size);
}

TERN__SIMD static void forward_columns(float *y, const float *x, int64_t columns, int64_t size, int64_t step,
                                       bool log_of)
{
    float top[WIDTH], stage[WIDTH], norm[WIDTH];
    double sum[WIDTH] = {0};
    for (int64_t j = 0; j < columns; j++) top[j] = x[j];
    for (int64_t i = 1; i < size; i++)
        for (int64_t j = 0; j < columns; j++) {
            float v = x[i * step + j];
            top[j] = v > top[j] ? v : top[j];
        }
    for (int64_t i = 0; i < size; i++) {
        float *to = y + i * step, *e = log_of ? stage : to;
        for (int64_t j = 0; j < columns; j++) to[j] = x[i * step + j] - top[j];
        tern__exps(e, to, columns);
        for (int64_t j = 0; j < columns; j++) sum[j] += (double)e[j];
    }
    for (int64_t j = 0; j < columns; j++) norm[j] = (float)(log_of ? log(sum[j]) : 1 / sum[j]);
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < columns; j++)
            y[i * step + j] = log_of ? y[i * step + j] - norm[j] : y[i * step + j] * norm[j];
}

static int softmax_forward(const tern__call *call, bool log_of)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (tern__view_is_half(x))
        return tern__cpu_widened(call, log_of ? tern__cpu_log_softmax : tern__cpu_softmax);
    if (!tern__is_dense(x, y) || !tern__is_dense(y, y) || call->add[0]) return TERN_E_UNSUPPORTED;
    if (tern__view_count(y) == 0) return TERN_OK;
    tern__lines lines = tern__lines_of(y, ((const tern__dim_attr *)call->attr)->dim);
    tern__line_tiles tiles = tern__line_tiles_of(&lines);
    int threads = tern__loop_threads(call, tern__view_count(y));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&tiles, i);
        const float *from = (const float *)x->data + t.at;
        float *to = (float *)y->data + t.at;
        if (tiles.rows)
            forward_rows(to, from, t.lines, tiles.size, log_of);
        else
            forward_columns(to, from, t.lines, tiles.size, tiles.step, log_of);
    }
    return TERN_OK;
}

int tern__cpu_softmax(const tern__call *call)
{
    return softmax_forward(call, false);
}

int tern__cpu_log_softmax(const tern__call *call)
{
    return softmax_forward(call, true);
}

/* ---- gradient; dx may be dy ---- */

/* dx = or += y (dy - sum), or dy - e sum. */
TERN__INLINE void row_grad(float *dx, const float *dy, const float *y, float sum, int64_t n, bool log_of,
                           bool add)
{
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
    {
        float d = log_of ? dy[i] - y[i] * sum : y[i] * (dy[i] - sum);
        dx[i] = add ? dx[i] + d : d;
    }
}

TERN__SIMD static void gradient_rows(float *dx, const float *dy, const float *y, int64_t rows, int64_t size,
                                     bool log_of, bool add)
{
    float stage[STRETCH], sum[WIDTH];
    for (int64_t r = 0; r < rows; r++)
        sum[r] = (float)tern__dot(dy + r * size, log_of ? NULL : y + r * size, size);
    for (int64_t first = 0; first < rows * size; first += STRETCH) {
        int64_t n = TERN__MIN(STRETCH, rows * size - first);
        const float *p = log_of ? stage : y + first;
        if (log_of) tern__exps(stage, y + first, n);
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * size;
            row_grad(dx + first + at, dy + first + at, p + at, sum[r], TERN__MIN(n, size), log_of, add);
        }
    }
}

TERN__SIMD static void gradient_columns(float *dx, const float *dy, const float *y, int64_t columns,
                                        int64_t size, int64_t step, bool log_of, bool add)
{
    double sum[WIDTH] = {0};
    float stage[WIDTH], all[WIDTH];
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < columns; j++) {
            float d = dy[i * step + j];
            sum[j] += (double)(log_of ? d : d * y[i * step + j]);
        }
    for (int64_t j = 0; j < columns; j++) all[j] = (float)sum[j];
    for (int64_t i = 0; i < size; i++) {
        const float *p = log_of ? stage : y + i * step;
        if (log_of) tern__exps(stage, y + i * step, columns);
        _Pragma("GCC ivdep") for (int64_t j = 0; j < columns; j++)
        {
            int64_t at = i * step + j;
            float d = log_of ? dy[at] - p[j] * all[j] : p[j] * (dy[at] - all[j]);
            dx[at] = add ? dx[at] + d : d;
        }
    }
}

static int softmax_gradient(const tern__call *call, bool log_of)
{
    const tern__view *dy = call->in[0], *y = call->in[1], *dx = call->out[0];
    if (tern__view_is_half(y))
        return tern__cpu_widened(call, log_of ? tern__cpu_log_softmax_grad : tern__cpu_softmax_grad);
    if (!tern__is_dense(dy, y) || !tern__is_dense(y, y) || !tern__is_dense(dx, y)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(y) == 0) return TERN_OK;
    tern__lines lines = tern__lines_of(y, ((const tern__dim_attr *)call->attr)->dim);
    tern__line_tiles tiles = tern__line_tiles_of(&lines);
    int threads = tern__loop_threads(call, tern__view_count(y));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&tiles, i);
        const float *d = (const float *)dy->data + t.at, *of = (const float *)y->data + t.at;
        float *to = (float *)dx->data + t.at;
        if (tiles.rows)
            gradient_rows(to, d, of, t.lines, tiles.size, log_of, call->add[0]);
        else
            gradient_columns(to, d, of, t.lines, tiles.size, tiles.step, log_of, call->add[0]);
    }
    return TERN_OK;
}

int tern__cpu_softmax_grad(const tern__call *call)
{
    return softmax_gradient(call, false);
}

int tern__cpu_log_softmax_grad(const tern__call *call)
{
    return softmax_gradient(call, true);
}
