/* target.h - writes the sums of tiles/conv.c to the target: y, or dx in a data gradient. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_TARGET_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_TARGET_H

#include "kernels/cpu/conv/tiles/slab.h"

typedef struct tern__target {
    const tern__view *view;
    const tern__slabs *slabs;
    bool add;          /* add to the target */
    const float *bias; /* padded to blocks of 16 channels; NULL: none */
} tern__target;

/* A place of a turn's results: the bunch's first image and the index within the bunch, and the place in a
 * plane. */
typedef struct tern__place {
    int64_t bunch, image, sheet, row, column;
    const int64_t *start, *count; /* of the turn: first sheet, row and column, and how many */
} tern__place;

/* Advances n places: through the images of a bunch, then the columns of a row, then rows. */
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

/* Writes `rows` places of 16 channels from `channel` on and, from 256 floats further, of the next 16 if
 * the target has them. Places between results are skipped. */
void tern__target_put(const tern__target *t, tern__place p, int64_t channel, const float *sums, int rows);

#endif
