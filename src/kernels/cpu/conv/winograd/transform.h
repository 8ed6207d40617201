/* transform.h - the transforms around the products of Winograd's algorithm, sixteen channels at a
 * time. Activations and weights are f32, bf16 or f16; transformed ones are f32.
 *
 * A tile is 4x4 outputs and the 6x6 inputs that they depend on. With the inputs d, the 3x3 weight g of a pair
 * of channels and the outputs y,
 *     y = A' [ sum over channels (G g G') . (B' d B) ] A,
 * where . is the elementwise product: a pair of channels takes 36 multiplications instead of 144. The 36
 * elements (points) are as many independent matrix products of weights and tiles. The algorithm is bilinear,
 * so the gradient of g uses the same matrices:
 *     dg = G' [ sum over tiles (A dy A') . (B' d B) ] G.
 * The matrices follow from the points 0, a, -a, b, -b and infinity, with M(x) = x (x^2 - a^2) (x^2 - b^2):
 * column p of A is 1, p, p^2, p^3; row p of G is (1, p, p^2) / N_p with N_p = M'(p); row p of B' has the
 * coefficients of M(x) / (x - p). With a = 5/8 and b = 3/2 every element of A and B is exact in f32. Among
 * small fractions these have the smallest error, half of that of Lavin's 1 and 2. Since the points come in
 * pairs of opposite sign, even and odd powers are summed separately and used for both. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORM_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORM_H

#include "kernels/conv.h"
#include "kernels/kernel.h"

#define TERN__WINOGRAD_POINTS 36
#define TERN__WINOGRAD_OUT    4 /* outputs of a tile along an axis */
#define TERN__WINOGRAD_IN     6 /* inputs                          */

/* With a dilation of `step`, an axis consists of that many independent axes of dilation 1, of which the
 * first `longer` have one output more. Each is cut into tiles separately. */
typedef struct tern__winograd_axis {
    int64_t out, padding, step;
    int64_t longer, long_tiles, short_tiles; /* tiles of a longer and of another axis */
    int64_t tiles;                           /* of all of them */
} tern__winograd_axis;

/* Sheets of a volume; an image is one sheet. An output's sheet is a sum over `taps` sheets of the inputs;
 * tap k's is `shift` + k * step further. To the products these are `taps` times the channels, and sheets
 * beyond the volume are zeros. */
typedef struct tern__winograd_depth {
    int64_t in, out, taps;
    int64_t shift, step;
} tern__winograd_depth;

typedef struct tern__winograd_grid {
    tern__winograd_depth depth;
    tern__winograd_axis axis[2]; /* height and width */
    int64_t tiles;               /* tiles of one sheet in all images */
    int64_t count;               /* tiles of all sheets */
} tern__winograd_grid;

/* The number of sheets of weights (O, C, [sheets,] 3, 3). */
static inline int64_t tern__winograd_sheets(const tern__view *w)
{
    return w->ndim == 5 ? w->shape[2] : 1;
}

/* The grid for computing `out` from `in` with weights of `taps` sheets. A data gradient is a convolution
 * with the weight turned, with padding 2 steps minus the forward's. */
tern__winograd_grid tern__winograd_grid_of(const tern__view *in, const tern__view *out, int64_t taps,
                                           const tern__conv_attr *attr, bool turned);

/* Transformed tiles of a block of channels: tile t of point p is the 16 floats at data + p * pitch + 16 t.
 * After the points come two lines per tile by which even.h judges it: sums of squares that see all of the
 * tile's inputs (or gradients), and, for inputs, squares from its centre. */
typedef struct tern__winograd_points {
    float *data;
    int64_t pitch;
} tern__winograd_points;

enum { TERN__WINOGRAD_ENERGY = TERN__WINOGRAD_POINTS, TERN__WINOGRAD_CENTRE, TERN__WINOGRAD_LINES };

/* Tiles first .. first + count - 1 of a sheet of a block of channels. */
typedef struct tern__winograd_part {
    int64_t block, sheet, first, count;
} tern__winograd_part;

/* B' d B for a sheet of the inputs, and A dy A'. */
void tern__winograd_inputs(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_part *part);
void tern__winograd_grads(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                          const tern__winograd_part *part);
/* A' m A plus a bias of the outputs' dtype (NULL: none), stored or added to the outputs. Where direct[t] is
 * set, the first 16 points of tile t are its outputs already. */
void tern__winograd_outputs(tern__winograd_points from, const tern__winograd_grid *grid,
                            const tern__view *out, const void *bias, bool add,
                            const tern__winograd_part *part, const bool *direct);

/* Weights (O, C, [sheets,] 3, 3), or their gradient. turned: as for a data gradient, by 180 degrees in
 * each sheet and with inputs and outputs swapped. Inputs count once for each sheet. Transformed weights
 * are in groups of 32 outputs, the last possibly of 16: point p of input c of a group's outputs begins at
 * p * pitch + c * width. */
typedef struct tern__winograd_weights {
    void *data;
    tern_dtype dtype;
    int64_t ins, outs; /* after turning */
    int64_t taps;      /* sheets */
    bool turned;
} tern__winograd_weights;

static inline int64_t tern__winograd_width(const tern__winograd_weights *w, int64_t group)
{
    return TERN__MIN(32, w->outs - 32 * group);
}
/* The pitch for `ins` inputs. It is a cache line off a power of two, so that points do not map to the same
 * cache set. */
static inline int64_t tern__winograd_pitch(const tern__winograd_weights *w, int64_t group, int64_t ins)
{
    return ins * tern__winograd_width(w, group) + 16;
}

/* G g G' for a group's outputs and inputs first .. first + count - 1, whole blocks of 16. Returns whether
 * these weights are even (even.h). */
bool tern__winograd_pack(float *to, const tern__winograd_weights *w, int64_t group, int64_t first,
                         int64_t count);
/* The outputs of the tiles with direct[t] by the definition, to their first 16 points. `part`: tiles of a
 * block of the outputs. */
void tern__winograd_direct(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_weights *w, const tern__winograd_part *part,
                           const bool *direct);
/* G' m G, stored or added to the same part of the weights. */
void tern__winograd_unpack(const float *from, const tern__winograd_weights *w, int64_t group, int64_t first,
                           int64_t count, bool add);

#endif
