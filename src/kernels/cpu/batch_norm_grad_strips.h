/* batch_norm_grad_strips.h - batch norm's backward loops over a strip of a tile (tiles.h). */
#ifndef TERN_SRC_KERNELS_CPU_BATCH_NORM_GRAD_STRIPS_H
#define TERN_SRC_KERNELS_CPU_BATCH_NORM_GRAD_STRIPS_H

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/widths.h"

/* How dy' is computed from dy: unchanged, masked by y, or by y recomputed from x. */
typedef enum mask { MASK_NONE, MASK_Y, MASK_AGAIN } mask;

/* Activations of one layout, and numbers computed per channel. */
typedef struct grad_maps {
    const tern__view *dy, *x, *y;
    const tern__view *dx, *residual; /* NULL: not wanted */
    bool add_dx, add_residual;
    mask mask;
    float *centre, *scale, *shift; /* y = (x - centre) * scale + shift                    */
    float *mean_dy, *slope;        /* dx = scale * (dy' - mean_dy - (x - centre) * slope) */
} grad_maps;

typedef struct tern__batch_norm_grad_fns {
    /* sum and product += sum(dy'), sum(dy' (x - centre)) per lane; the residual's gradient is dy'. */
    void (*sums)(const grad_maps *maps, const tern__tile *t, const tern__strip *s, double sum[TERN__BLOCK],
                 double product[TERN__BLOCK]);
    /* The sums in double; the residual's gradient stays. */
    void (*sums_f64)(const grad_maps *maps, const tern__tile *t, const tern__strip *s,
                     double sum[TERN__BLOCK], double product[TERN__BLOCK]);
    /* Computes dx, and the residual's gradient. */
    void (*dx)(const grad_maps *maps, const tern__tile *t, const tern__strip *s);
} tern__batch_norm_grad_fns;

TERN__DECLARE_WIDTHS(tern__batch_norm_grad_fns, tern__batch_norm_grad_strips);

#endif
