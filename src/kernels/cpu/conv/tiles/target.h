/* target.h - the way of tiles/conv.c's sums into the target: y, or dx in a data gradient. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_TARGET_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_TARGET_H

#include "kernels/cpu/conv/tiles/slab.h"

typedef struct tern__target {
    const tern__view *view;
    const tern__slabs *slabs;
    bool add;          /* to what is there                                  */
    const float *bias; /* of whole blocks of 16 channels; NULL: none        */
} tern__target;

/* A place of a turn's results: in the first image of its bunch and which one of it, and where in a plane. */
typedef struct tern__place {
    int64_t bunch, image, sheet, row, column;
    const int64_t *start, *count; /* of the turn: its first sheet, row and column, and how many */
} tern__place;

/* n places further: through the images of a bunch, then the columns of a row, then rows. */
static inline void tern__place_step(const tern__slabs *s, tern__place *p, int64_t n)
{
    p->image += n;
    if (p->image < s->together) return;
    p->column += p->image / s->together;
    p->image %= s->together;
    for (; p->column >= s->p.axis[2].size; p->column -= s->p.axis[2].size)
        if (++p->row == s->p.axis[1].size) {
            p->row = 0;
            p->sheet++;
        }
}

/* `rows` places, of 16 channels from `channel` on and, 256 floats behind them, of the next 16 if the target
 * has them. What is between results is left out. */
void tern__target_put(const tern__target *t, tern__place p, int64_t channel, const float *sums, int rows);

#endif
