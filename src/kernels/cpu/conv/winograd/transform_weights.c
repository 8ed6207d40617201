/* transform_weights.c - the transforms of weights and of their gradients: 16 outputs and 16 inputs at a
 * time, with as many outputs per vector as fit. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/conv/winograd/steps.h"
#include "kernels/cpu/conv/winograd/transforms.h"

#define TAPS TERN__WINOGRAD_SQUARE
/* Unrolled, so that the vectors of a transpose stay in registers. */
#define EACH_LANE(l) _Pragma("GCC unroll 16") for (int l = 0; l < LANES; l++)

DEFINE_BOTH(weight_tile, weight_step, 3, IN)
DEFINE_BOTH(weight_grad_tile, weight_grad_step, IN, 3)
TERN__DEFINE_TURN(turn, tern__words)

typedef tern__winograd_channels channels;

/* Loads taps[c][k][output] from weights whose inputs are adjacent: transposes lines of taps into columns. */
TERN__INLINE void load_following(float *taps, const channels *c, tern_dtype dtype)
{
    for (int64_t o = 0; o < BLOCK; o += LANES)
        for (int64_t i = 0; i < BLOCK * TAPS; i += LANES) {
            tern__words v[LANES];
            EACH_LANE(l)
            v[l] =
                (tern__words)tern__lanes_get(c->data, dtype, c->first + (o + l) * c->out_stride + i, LANES);
            turn(v);
            EACH_LANE(l) memcpy(taps + (i + l) * BLOCK + o, &v[l], sizeof(v[l]));
        }
}

/* The same if outputs are adjacent. Of an output's 16 elements read the first 9 count. The elements are
 * copied first, since reading goes beyond the last. */
TERN__INLINE void load_turned(float *taps, const channels *c, tern_dtype dtype)
{
    float rows[BLOCK * TAPS * BLOCK + BLOCK];
    for (int64_t i = 0; i < BLOCK; i++)
        for (int64_t k = 0; k < BLOCK * TAPS; k += LANES)
            tern__lanes_store(rows + i * BLOCK * TAPS + k,
                              tern__lanes_get(c->data, dtype, c->first + i * c->in_stride + k, LANES), LANES);
    memset(rows + BLOCK * TAPS * BLOCK, 0, BLOCK * sizeof(*rows));
    for (int64_t i = 0; i < BLOCK; i++)
        for (int64_t o = 0; o < BLOCK; o += LANES)
            _Pragma("GCC unroll 4") for (int64_t k = 0; k < TAPS; k += LANES)
            {
                tern__words v[LANES];
                EACH_LANE(l) memcpy(&v[l], rows + (i * BLOCK + o + l) * TAPS + k, sizeof(v[l]));
                turn(v);
                EACH_LANE(l)
                if (k + l < TAPS) memcpy(taps + (i * TAPS + k + l) * BLOCK + o, &v[l], sizeof(v[l]));
            }
}

TERN__INLINE void taps_load(float *taps, channels c, bool turned, tern_dtype dtype)
{
    if (turned)
        load_turned(taps, &c, dtype);
    else
        load_following(taps, &c, dtype);
}

/* Adds the squares of each tap over the inputs. */
TERN__INLINE void add_energy(float *energy, const float *taps)
{
    for (int64_t o = 0; o < BLOCK; o += LANES) _Pragma("GCC unroll 9") for (int k = 0; k < TAPS; k++)
        {
            tern__lanes sum = tern__lanes_load(energy + k * 2 * BLOCK + o, LANES);
            for (int64_t i = 0; i < BLOCK; i++) {
                tern__lanes tap = tern__lanes_load(taps + (i * TAPS + k) * BLOCK + o, LANES);
                sum += tap * tap;
            }
            tern__lanes_store(energy + k * 2 * BLOCK + o, sum, LANES);
        }
}

TERN__INLINE void pack(float *to, int64_t pitch, int64_t width, channels c, bool turned, float *energy,
                       tern_dtype dtype)
{
    float taps[BLOCK * TAPS * BLOCK];
    taps_load(taps, c, turned, dtype);
    add_energy(energy, taps);
    for (int64_t i = 0; i < BLOCK; i++)
        for (int64_t o = 0; o < BLOCK; o += LANES) {
            const float *first = taps + i * TAPS * BLOCK + o;
            lines from = turned ? lines_of(first + (TAPS - 1) * BLOCK, -3 * BLOCK, -BLOCK)
                                : lines_of(first, 3 * BLOCK, BLOCK);
            weight_tile(to + i * width + o, pitch, &from, true, 0, TERN_F32);
        }
}

TERN__INLINE void unpack(const float *from, int64_t pitch, int64_t width, channels c, bool add,
                         tern_dtype dtype)
{
    float taps[BLOCK * TAPS * BLOCK];
    for (int64_t i = 0; i < BLOCK; i++)
        for (int64_t o = 0; o < BLOCK; o += LANES) {
            lines points = lines_of(from + i * width + o, IN * pitch, pitch);
            weight_grad_tile(taps + i * TAPS * BLOCK + o, BLOCK, &points, true, 0, TERN_F32);
        }
    for (int64_t o = 0; o < BLOCK; o += LANES)
        for (int64_t i = 0; i < BLOCK * TAPS; i += LANES) {
            tern__words v[LANES];
            EACH_LANE(l) memcpy(&v[l], taps + (i + l) * BLOCK + o, sizeof(v[l]));
            turn(v);
            EACH_LANE(l)
            tern__lanes_set(c.data, dtype, c.first + (o + l) * c.out_stride + i, (tern__lanes)v[l], LANES,
                            add);
        }
}

DEFINE_FOR_DTYPES(pack, (float *to, int64_t pitch, int64_t width, channels c, bool turned, float *energy), to,
                  pitch, width, c, turned, energy)
DEFINE_FOR_DTYPES(taps_load, (float *taps, channels c, bool turned), taps, c, turned)
DEFINE_FOR_DTYPES(unpack, (const float *from, int64_t pitch, int64_t width, channels c, bool add), from,
                  pitch, width, c, add)

static void pack_of_any(float *to, int64_t pitch, int64_t width, channels c, bool turned, float *energy,
                        tern_dtype dtype)
{
    FOR_DTYPE(pack, dtype)(to, pitch, width, c, turned, energy);
}

static void load_of_any(float *taps, channels c, bool turned, tern_dtype dtype)
{
    FOR_DTYPE(taps_load, dtype)(taps, c, turned);
}

static void unpack_of_any(const float *from, int64_t pitch, int64_t width, channels c, bool add,
                          tern_dtype dtype)
{
    FOR_DTYPE(unpack, dtype)(from, pitch, width, c, add);
}

const tern__winograd_squares TERN__OF_WIDTH(tern__winograd_squares) = {pack_of_any, load_of_any,
                                                                       unpack_of_any};
