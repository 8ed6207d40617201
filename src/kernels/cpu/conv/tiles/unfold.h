/* unfold.h - an input of few channels, seen with a channel for every tap of the kernel. If all of them fit
 * into one step of the tiles, a convolution is one product at each place of y. The channels of a tap have
 * the weight's order, so the weight (O, C, taps) is (O, C x taps). */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_UNFOLD_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_UNFOLD_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/planes.h"
#include "kernels/cpu/lanes.h"

typedef struct tern__unfold {
    const tern__view *x;
    int64_t count; /* channels x taps */
    int64_t stride[3], size[3];
    struct {
        int64_t channel, at[3]; /* position read for y's place 0 */
    } tap[TERN__AMX_DEPTH];
} tern__unfold;

static inline bool tern__amx_unfolds(const tern__view *x, const tern__view *w)
{
    int64_t taps = tern__view_count(w) / (w->shape[0] * w->shape[1]);
    return x->layout == TERN__PLAIN && taps > 1 && w->shape[1] * taps <= TERN__AMX_DEPTH &&
           tern__view_is_contiguous(w);
}

static inline tern__unfold tern__unfold_of(const tern__conv_attr *attr, const tern__view *x,
                                           const tern__view *y, const tern__view *w)
{
    tern__tile_planes p = tern__planes_of(attr, x, y, w, false);
    tern__unfold u = {.x = x, .count = x->shape[1] * p.taps};
    for (int64_t r = 0; r < u.count; r++) {
        u.tap[r].channel = r / p.taps;
        for (int64_t d = 2, tap = r % p.taps; d >= 0; tap /= p.axis[d--].kernel)
            u.tap[r].at[d] = tap % p.axis[d].kernel * attr->dilation[d] - attr->padding[d];
    }
    for (int d = 0; d < 3; d++) {
        u.stride[d] = attr->stride[d];
        u.size[d] = p.axis[d].source;
    }
    return u;
}

/* The planes of the unfolded input: y's places, and one tap. */
static inline tern__tile_planes tern__unfold_planes(const tern__view *y)
{
    static const tern__conv_attr plain = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    tern__view w = *y;
    for (int d = 0; d < w.ndim; d++) w.shape[d] = 1;
    return tern__planes_of(&plain, y, y, &w, false);
}

/* The row of image n that channel r contributes to a row of y: the value for place i is element i *
 * stride[2]. Places first .. last - 1 are inside the image, the others are padding. */
typedef struct tern__unfold_row {
    const char *data;
    int64_t first, last;
} tern__unfold_row;

static inline tern__unfold_row tern__unfold_row_of(const tern__unfold *u, int64_t n, int64_t r,
                                                   const int64_t place[2], int64_t width)
{
    int64_t at[3] = {0, 0, u->tap[r].at[2]}, step = u->stride[2];
    for (int d = 0; d < 2; d++) {
        at[d] = place[d] * u->stride[d] + u->tap[r].at[d];
        if (at[d] < 0 || at[d] >= u->size[d]) return (tern__unfold_row){0};
    }
    int64_t row = ((n * u->x->shape[1] + u->tap[r].channel) * u->size[0] + at[0]) * u->size[1] + at[1];
    int64_t bytes = (int64_t)tern_dtype_bytes(u->x->dtype);
    tern__unfold_row of = {.data = (const char *)u->x->data + (row * u->size[2] + at[2]) * bytes};
    of.first = TERN__MIN(width, TERN__MAX(0, (step - 1 - at[2]) / step));
    of.last = TERN__MAX(of.first, TERN__MIN(width, (u->size[2] - at[2] + step - 1) / step));
    return of;
}

/* Reads its values, of `bytes` bytes each, for places from .. to - 1; padding is not written. */
TERN__INLINE void tern__unfold_read(const tern__unfold *u, const tern__unfold_row *row, int64_t from,
                                    int64_t to, size_t bytes, void *values)
{
    int64_t first = TERN__MAX(row->first, from), last = TERN__MIN(row->last, to), size = (int64_t)bytes;
    int64_t step = u->stride[2] * size;
    char *at = (char *)values + (first - from) * size;
    if (u->stride[2] == 1 && last - first == TERN__LANES)
        memcpy(at, row->data + first * size, TERN__LANES * bytes);
    else if (u->stride[2] == 1 && last > first)
        memcpy(at, row->data + first * size, (size_t)(last - first) * bytes);
    else
        for (int64_t i = first; i < last; i++, at += bytes) memcpy(at, row->data + i * step, bytes);
}

#endif
