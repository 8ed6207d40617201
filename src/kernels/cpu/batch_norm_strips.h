/* batch_norm_strips.h - batch norm's forward loops over a strip of a tile (tiles.h). */
#ifndef TERN_SRC_KERNELS_CPU_BATCH_NORM_STRIPS_H
#define TERN_SRC_KERNELS_CPU_BATCH_NORM_STRIPS_H

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/widths.h"

/* Activations of one layout, and numbers computed per channel: y = act((x - centre) * scale + shift +
 * residual). */
typedef struct norm_maps {
    const tern__view *x, *residual, *y;
    float *centre, *scale, *shift;
    bool relu;
} norm_maps;

typedef struct tern__batch_norm_fns {
    /* A number near the tile's values for each lane: the mean of its first rows. */
    void (*shift)(const tern__view *x, const tern__tile *t, float shift[TERN__BLOCK]);
    /* sum and square += sum(d), sum(d * d) per lane, where d = x - shift. */
    void (*moments)(const tern__view *x, const tern__strip *s, const float shift[TERN__BLOCK],
                    double sum[TERN__BLOCK], double square[TERN__BLOCK]);
    /* The same in double. */
    void (*moments_f64)(const tern__view *x, const tern__strip *s, const double shift[TERN__BLOCK],
                        double sum[TERN__BLOCK], double square[TERN__BLOCK]);
    void (*apply)(const norm_maps *maps, const tern__tile *t, const tern__strip *s);
} tern__batch_norm_fns;

TERN__DECLARE_WIDTHS(tern__batch_norm_fns, tern__batch_norm_strips);

#endif
