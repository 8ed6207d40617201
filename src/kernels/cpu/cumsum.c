/* cumsum.c - cumulative sums along any dimension in f32 and f64, made in double; 16-bit types are widened.
 * Adjacent lines go side by side. */
#include "kernels/cumsum.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#define WIDTH TERN__TILE_LINES

/* The lines of a tile; y may be x. */
#define DEFINE_CUMSUM(name, R)                                                                               \
    TERN__SIMD static void name(void *to, const void *from, const tern__line_tiles *tiles, int64_t lines,    \
                                bool back, bool add)                                                         \
    {                                                                                                        \
        R *y = to;                                                                                           \
        const R *x = from;                                                                                   \
        int64_t size = tiles->size, step = tiles->step;                                                      \
        double sums[WIDTH] = {0};                                                                            \
        for (int64_t j = 0; j < lines && tiles->rows; j++) {                                                 \
            double sum = 0;                                                                                  \
            for (int64_t i = 0; i < size; i++) {                                                             \
                int64_t at = j * size + (back ? size - 1 - i : i);                                           \
                sum += (double)x[at];                                                                        \
                y[at] = (R)(add ? (double)y[at] + sum : sum);                                                \
            }                                                                                                \
        }                                                                                                    \
        for (int64_t i = 0; i < size && !tiles->rows; i++) {                                                 \
            int64_t at = (back ? size - 1 - i : i) * step;                                                   \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < lines; j++)                                         \
            {                                                                                                \
                sums[j] += (double)x[at + j];                                                                \
                y[at + j] = (R)(add ? (double)y[at + j] + sums[j] : sums[j]);                                \
            }                                                                                                \
        }                                                                                                    \
    }
DEFINE_CUMSUM(cumsum_f32, float)
DEFINE_CUMSUM(cumsum_f64, double)

int tern__cpu_cumsum(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    const tern__cumsum_attr *attr = call->attr;
    bool wide = x->dtype == TERN_F64, back = attr->back != 0;
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_cumsum);
    if (!wide && x->dtype != TERN_F32) return TERN_E_UNSUPPORTED;
    if (y->dtype != x->dtype || !tern__view_is_contiguous(x) || !tern__view_is_contiguous(y))
        return TERN_E_UNSUPPORTED;
    if (tern__view_count(x) == 0) return TERN_OK;
    tern__lines lines = tern__lines_of(x, attr->dim);
    tern__line_tiles tiles = tern__line_tiles_of(&lines);
    size_t bytes = tern_dtype_bytes(x->dtype);
    int threads = tern__loop_threads(call, tern__view_count(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&tiles, i);
        (wide ? cumsum_f64 : cumsum_f32)((char *)y->data + (size_t)t.at * bytes,
                                         (const char *)x->data + (size_t)t.at * bytes, &tiles, t.lines, back,
                                         call->add[0]);
    }
    return TERN_OK;
}
