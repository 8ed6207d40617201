/* transform.h - the transforms around the products of Winograd's algorithm, sixteen channels at a
 * time. Activations and weights are f32, bf16 or f16; what is transformed is f32.
 *
 * A tile is 4x4 outputs and the 6x6 inputs that they see. With d the inputs, g the 3x3 weight of a pair of
 * channels and y the outputs,
 *     y = A' [ sum over channels (G g G') . (B' d B) ] A,
 * . being the product element by element: in place of 144 multiplications a pair of channels takes 36. These
 * 36 elements (points) are as many independent products of matrices, weights by tiles. The algorithm is
 * bilinear, so the gradient of g comes of the same matrices:
 *     dg = G' [ sum over tiles (A dy A') . (B' d B) ] G.
 * What the points 0, a, -a, b, -b and infinity give (M(x) = x (x^2 - a^2) (x^2 - b^2)): column p of A is 1,
 * p, p^2, p^3; row p of G is (1, p, p^2) / N_p with N_p = M'(p); row p of B' has the coefficients of M(x) /
 * (x - p). With a = 5/8, b = 3/2 every element of A and B is exact in f32, and of small fractions these lose
 * the least: half of what Lavin's 1 and 2 do. As the points come in pairs of either sign, even and odd powers
 * are summed apart and serve both. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORM_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORM_H

#include "kernels/conv.h"
#include "kernels/kernel.h"

#define TERN__WINOGRAD_POINTS 36
#define TERN__WINOGRAD_OUT    4 /* outputs of a tile along an axis */
#define TERN__WINOGRAD_IN     6 /* inputs                          */

/* With a dilation of `step` outputs see each other's inputs only step apart: an axis is that many of stride
 * 1, of which the first `longer` have an output more than the others. Each is cut into tiles by itself. */
typedef struct tern__winograd_axis {
    int64_t out, padding, step;
    int64_t longer, long_tiles, short_tiles; /* tiles of each */
    int64_t tiles;                           /* of all        */
} tern__winograd_axis;

/* Sheets of a volume, of which an image is one. An output's sheet is a sum over `taps` sheets of the inputs,
 * of which tap k is `shift` + k * step further on: to the products these are as many times the channels, and
 * sheets beyond the volume are zeros. */
typedef struct tern__winograd_depth {
    int64_t in, out, taps;
    int64_t shift, step;
} tern__winograd_depth;

typedef struct tern__winograd_grid {
    tern__winograd_depth depth;
    tern__winograd_axis axis[2]; /* height and width                   */
    int64_t tiles;               /* of one sheet in all images         */
    int64_t count;               /* of all sheets                      */
} tern__winograd_grid;

/* Of weights (O, C, [sheets,] 3, 3). */
static inline int64_t tern__winograd_sheets(const tern__view *w)
{
    return w->ndim == 5 ? w->shape[2] : 1;
}

/* Of what computes `out` of `in` by weights with `taps` sheets: a data gradient is a convolution turned
 * around, whose padding is what is left of two steps. */
tern__winograd_grid tern__winograd_grid_of(const tern__view *in, const tern__view *out, int64_t taps,
                                           const tern__conv_attr *attr, bool turned);

/* Transformed tiles of a block of channels: tile t of point p is the 16 floats at data + p * pitch + 16 t. */
typedef struct tern__winograd_points {
    float *data;
    int64_t pitch;
} tern__winograd_points;

/* Tiles `first` to first + count - 1 of a sheet of a block of channels. */
typedef struct tern__winograd_part {
    int64_t block, sheet, first, count;
} tern__winograd_part;

/* B' d B, of a sheet of the inputs, and A dy A'. */
void tern__winograd_inputs(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_part *part);
void tern__winograd_grads(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                          const tern__winograd_part *part);
/* A' m A, plus a bias of the outputs' dtype (NULL: none), into or onto the outputs. */
void tern__winograd_outputs(tern__winograd_points from, const tern__winograd_grid *grid,
                            const tern__view *out, const void *bias, bool add,
                            const tern__winograd_part *part);

/* Weights (O, C, [sheets,] 3, 3), or their gradient; turned: as a data gradient has them, by 180 degrees in
 * each sheet and with outputs for inputs. Inputs are counted once for each sheet. Transformed ones stand in
 * groups of 32 outputs, of which the last may have 16: point p of input c of a group's outputs begins at p *
 * pitch + c * width. */
typedef struct tern__winograd_weights {
    void *data;
    tern_dtype dtype;
    int64_t ins, outs; /* as turned */
    int64_t taps;      /* sheets    */
    bool turned;
} tern__winograd_weights;

static inline int64_t tern__winograd_width(const tern__winograd_weights *w, int64_t group)
{
    return TERN__MIN(32, w->outs - 32 * group);
}
/* Of so many inputs; points are a line off a power of two, so that they do not meet in a cache's set. */
static inline int64_t tern__winograd_pitch(const tern__winograd_weights *w, int64_t group, int64_t ins)
{
    return ins * tern__winograd_width(w, group) + 16;
}

/* G g G' of a group's outputs and inputs `first` to first + count - 1, whole blocks of 16. */
void tern__winograd_pack(float *to, const tern__winograd_weights *w, int64_t group, int64_t first,
                         int64_t count);
/* G' m G into or onto the same part of the weights. */
void tern__winograd_unpack(const float *from, const tern__winograd_weights *w, int64_t group, int64_t first,
                           int64_t count, bool add);

#endif
