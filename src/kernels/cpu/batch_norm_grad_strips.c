/* batch_norm_grad_strips.c - batch norm's backward loops, compiled for each vector width. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/batch_norm_grad_strips.h"
#include "kernels/cpu/channel_strips.h"

static void *norm_grad_data_of(const tern__view *view)
{
    return view ? view->data : NULL;
}

/* Three numbers of each lane's channel, from which y is computed. */
typedef struct line {
    tern__lanes centre[TERN__PARTS], scale[TERN__PARTS], shift[TERN__PARTS];
} line;

TERN__INLINE line line_of(const grad_maps *maps, const tern__tile *t, int lanes)
{
    line k;
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        k.centre[p] = spread(maps->centre, t, lanes, p);
        k.scale[p] = spread(maps->scale, t, lanes, p);
        k.shift[p] = spread(maps->shift, t, lanes, p);
    }
    return k;
}

/* Part p of dy' in one row, given x. */
TERN__INLINE tern__lanes masked(const grad_maps *maps, mask by, tern__lanes x, const line *k, int64_t at,
                                int p, int lanes, tern_dtype dtype)
{
    tern__lanes dy = get_part(maps->dy->data, dtype, at, lanes, p);
    if (by == MASK_NONE) return dy;
    tern__lanes y = by == MASK_Y ? get_part(maps->y->data, dtype, at, lanes, p)
                                 : tern__lanes_relu(affine_of(x, k->centre[p], k->scale[p], k->shift[p]));
    return tern__lanes_passed(y, dy);
}

/* Calls `name` with what is known of whole blocks as constants. In f16 the mask is not: its test costs
 * nothing beside the conversions, of which there would be three copies. */
#define EACH_MASK(name, maps, dtype, ...)                                                                    \
    do {                                                                                                     \
        if ((maps)->mask == MASK_NONE)                                                                       \
            name(maps, __VA_ARGS__, MASK_NONE, TERN__BLOCK, dtype);                                          \
        else if ((maps)->mask == MASK_Y)                                                                     \
            name(maps, __VA_ARGS__, MASK_Y, TERN__BLOCK, dtype);                                             \
        else                                                                                                 \
            name(maps, __VA_ARGS__, MASK_AGAIN, TERN__BLOCK, dtype);                                         \
    } while (0)
#define EACH_DTYPE(name, maps, s, ...)                                                                       \
    do {                                                                                                     \
        tern_dtype dtype = (maps)->x->dtype;                                                                 \
        if ((s)->lanes != TERN__BLOCK)                                                                       \
            name(maps, __VA_ARGS__, (maps)->mask, (s)->lanes, dtype);                                        \
        else if (dtype == TERN_F32)                                                                          \
            EACH_MASK(name, maps, TERN_F32, __VA_ARGS__);                                                    \
        else if (dtype == TERN_BF16)                                                                         \
            EACH_MASK(name, maps, TERN_BF16, __VA_ARGS__);                                                   \
        else                                                                                                 \
            name(maps, __VA_ARGS__, (maps)->mask, TERN__BLOCK, TERN_F16);                                    \
    } while (0)

/* ---- sums ---- */

/* Adds a row: a and b += dy' and dy' (x - centre). */
TERN__INLINE void add_row(const grad_maps *maps, const line *k, mask by, int64_t at,
                          tern__lanes a[TERN__PARTS], tern__lanes b[TERN__PARTS], int lanes, tern_dtype dtype)
{
    void *residual = norm_grad_data_of(maps->residual);
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        tern__lanes x = get_part(maps->x->data, dtype, at, lanes, p);
        tern__lanes d = masked(maps, by, x, k, at, p, lanes, dtype);
        a[p] += d;
        b[p] += d * (x - k->centre[p]);
        if (residual) set_part(residual, dtype, at, d, lanes, p, maps->add_residual);
    }
}

TERN__INLINE void sums_of(const grad_maps *maps, const tern__tile *t, const tern__strip *s,
                          double sum[TERN__BLOCK], double product[TERN__BLOCK], mask by, int lanes,
                          tern_dtype dtype)
{
    const line k = line_of(maps, t, lanes);
    for (int64_t first = 0; first < s->rows; first += ROWS) {
        int64_t last = TERN__MIN(s->rows, first + ROWS), r = first;
        tern__lanes a[CHAINS][TERN__PARTS] = {0}, b[CHAINS][TERN__PARTS] = {0};
        for (; r + CHAINS <= last; r += CHAINS) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS; i++)
                add_row(maps, &k, by, s->at + (r + i) * s->stride, a[i], b[i], lanes, dtype);
        }
        for (; r < last; r++) add_row(maps, &k, by, s->at + r * s->stride, a[0], b[0], lanes, dtype);
        add_lanes(sum, a);
        add_lanes(product, b);
    }
}

TERN__SIMD static void norm_grad_sums(const grad_maps *maps, const tern__tile *t, const tern__strip *s,
                                      double sum[TERN__BLOCK], double product[TERN__BLOCK])
{
    EACH_DTYPE(sums_of, maps, s, t, s, sum, product);
}

TERN__SIMD static void sums_f64(const grad_maps *maps, const tern__tile *t, const tern__strip *s,
                                double sum[TERN__BLOCK], double product[TERN__BLOCK])
{
    const line k = line_of(maps, t, s->lanes);
    for (int64_t r = 0; r < s->rows; r++)
        for (int p = 0; p < TERN__PARTS; p++) {
            int64_t at = s->at + r * s->stride;
            tern__lanes x = get_part(maps->x->data, maps->x->dtype, at, s->lanes, p);
            tern__lanes d = masked(maps, maps->mask, x, &k, at, p, s->lanes, maps->x->dtype);
            for (int l = 0; l < tern__lanes_in(s->lanes, p); l++) {
                sum[p * TERN__LANES + l] += (double)d[l];
                product[p * TERN__LANES + l] += (double)d[l] * ((double)x[l] - (double)k.centre[p][l]);
            }
        }
}

/* ---- dx ---- */

TERN__INLINE void dx_of(const grad_maps *maps, const tern__tile *t, const tern__strip *s, mask by, int lanes,
                        tern_dtype dtype)
{
    const line k = line_of(maps, t, lanes);
    void *dx = norm_grad_data_of(maps->dx), *residual = norm_grad_data_of(maps->residual);
    tern__lanes mean_dy[TERN__PARTS], slope[TERN__PARTS];
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        mean_dy[p] = spread(maps->mean_dy, t, lanes, p);
        slope[p] = spread(maps->slope, t, lanes, p);
    }
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
#pragma GCC unroll 4
        for (int p = 0; p < TERN__PARTS; p++) {
            tern__lanes x = get_part(maps->x->data, dtype, at, lanes, p);
            tern__lanes d = masked(maps, by, x, &k, at, p, lanes, dtype);
            tern__lanes v = k.scale[p] * (d - mean_dy[p] - (x - k.centre[p]) * slope[p]);
            if (dx) set_part(dx, dtype, at, v, lanes, p, maps->add_dx);
            if (residual) set_part(residual, dtype, at, d, lanes, p, maps->add_residual);
        }
    }
}

TERN__SIMD static void make_dx(const grad_maps *maps, const tern__tile *t, const tern__strip *s)
{
    EACH_DTYPE(dx_of, maps, s, t, s);
}

const tern__batch_norm_grad_fns TERN__OF_WIDTH(tern__batch_norm_grad_strips) = {
    .sums = norm_grad_sums, .sums_f64 = sums_f64, .dx = make_dx};
