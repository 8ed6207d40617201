/* transform.c - see winograd/transform.h. Each transform is two rounds of the same one-dimensional
 * step, down the columns and then along the rows. */
#include "kernels/cpu/conv/winograd/transform.h"
#include "kernels/cpu/lanes.h"

#define LANES  TERN__LANES
#define POINTS TERN__WINOGRAD_POINTS
#define OUT    TERN__WINOGRAD_OUT
#define IN     TERN__WINOGRAD_IN
#define TAPS   9

/* The points and what the matrices have of them. */
#define A    0.625f
#define B    1.5f
#define AA   (A * A)
#define BB   (B * B)
#define SUM  (AA + BB)
#define PROD (AA * BB)
#define N_A  (2 * AA * (AA - BB))
#define N_B  (2 * BB * (BB - AA))

/* ---- one dimension ---- */

/* B' d */
TERN__INLINE void input_step(tern__lanes to[IN], const tern__lanes d[IN])
{
    tern__lanes even_a = d[4] - BB * d[2], odd_a = d[3] - BB * d[1];
    tern__lanes even_b = d[4] - AA * d[2], odd_b = d[3] - AA * d[1];
    to[0] = PROD * d[0] + (d[4] - SUM * d[2]);
    to[1] = even_a + A * odd_a;
    to[2] = even_a - A * odd_a;
    to[3] = even_b + B * odd_b;
    to[4] = even_b - B * odd_b;
    to[5] = PROD * d[1] + (d[5] - SUM * d[3]);
}

/* A' m */
TERN__INLINE void output_step(tern__lanes to[OUT], const tern__lanes m[IN])
{
    tern__lanes even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    to[0] = m[0] + (even_a + even_b);
    to[1] = A * odd_a + B * odd_b;
    to[2] = AA * even_a + BB * even_b;
    to[3] = A * AA * odd_a + (B * BB * odd_b + m[5]);
}

/* A dy */
TERN__INLINE void grad_step(tern__lanes to[IN], const tern__lanes dy[OUT])
{
    tern__lanes even_a = dy[0] + AA * dy[2], odd_a = dy[1] + AA * dy[3];
    tern__lanes even_b = dy[0] + BB * dy[2], odd_b = dy[1] + BB * dy[3];
    to[0] = dy[0];
    to[1] = even_a + A * odd_a;
    to[2] = even_a - A * odd_a;
    to[3] = even_b + B * odd_b;
    to[4] = even_b - B * odd_b;
    to[5] = dy[3];
}

/* G g */
TERN__INLINE void weight_step(tern__lanes to[IN], const tern__lanes g[3])
{
    tern__lanes even_a = 1 / N_A * g[0] + AA / N_A * g[2], odd_a = A / N_A * g[1];
    tern__lanes even_b = 1 / N_B * g[0] + BB / N_B * g[2], odd_b = B / N_B * g[1];
    to[0] = 1 / PROD * g[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = g[2];
}

/* G' m */
TERN__INLINE void weight_grad_step(tern__lanes to[3], const tern__lanes m[IN])
{
    tern__lanes even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    to[0] = 1 / PROD * m[0] + (1 / N_A * even_a + 1 / N_B * even_b);
    to[1] = A / N_A * odd_a + B / N_B * odd_b;
    to[2] = AA / N_A * even_a + (BB / N_B * even_b + m[5]);
}

/* ---- two dimensions ---- */

/* One step for each of the columns `from`, of `rows` lines of lanes `pitch` floats apart, and one for each
 * line of what comes of that: every result's place is to + (IN i + j) * to_pitch. */
#define DEFINE_BOTH(name, step, rows, results)                                                               \
    TERN__INLINE void name(float *to, int64_t to_pitch, const float *from, int64_t row_pitch, int64_t pitch) \
    {                                                                                                        \
        tern__lanes half[results][rows];                                                                     \
        _Pragma("GCC unroll 6") for (int j = 0; j < (rows); j++)                                             \
        {                                                                                                    \
            tern__lanes line[rows], result[results];                                                         \
            _Pragma("GCC unroll 6") for (int i = 0; i < (rows); i++) line[i] =                               \
                tern__lanes_load(from + i * row_pitch + j * pitch, LANES);                                   \
            step(result, line);                                                                              \
            _Pragma("GCC unroll 6") for (int i = 0; i < (results); i++) half[i][j] = result[i];              \
        }                                                                                                    \
        _Pragma("GCC unroll 6") for (int i = 0; i < (results); i++)                                          \
        {                                                                                                    \
            tern__lanes result[results];                                                                     \
            step(result, half[i]);                                                                           \
            _Pragma("GCC unroll 6") for (int j = 0; j < (results); j++)                                      \
                tern__lanes_store(to + ((results)*i + j) * to_pitch, result[j], LANES);                      \
        }                                                                                                    \
    }
DEFINE_BOTH(input_tile, input_step, IN, IN)
DEFINE_BOTH(output_tile, output_step, IN, OUT)
DEFINE_BOTH(grad_tile, grad_step, OUT, IN)
DEFINE_BOTH(weight_tile, weight_step, 3, IN)
DEFINE_BOTH(weight_grad_tile, weight_grad_step, IN, 3)

/* ---- tiles of an image ---- */

tern__winograd_grid tern__winograd_grid_of(const tern__view *in, const tern__view *out,
                                           const int64_t padding[2])
{
    tern__winograd_grid g;
    for (int d = 0; d < 2; d++) {
        g.in[d] = in->shape[2 + d];
        g.out[d] = out->shape[2 + d];
        g.padding[d] = padding[d];
        g.tiles[d] = (g.out[d] + OUT - 1) / OUT;
    }
    g.count = out->shape[0] * g.tiles[0] * g.tiles[1];
    return g;
}

/* A block of channels of tile t's image, and the tile's first output. */
typedef struct place {
    int64_t plane, row, column;
} place;

TERN__INLINE place place_of(const tern__winograd_grid *g, const tern__view *view, int64_t block, int64_t t)
{
    int64_t area = g->tiles[0] * g->tiles[1], image = t / area, rest = t % area;
    return (place){image * (view->shape[1] / LANES) + block, rest / g->tiles[1] * OUT,
                   rest % g->tiles[1] * OUT};
}

/* The square of `side` lines at (row, column) of a plane, which may reach over its edges: where it stands, or
 * a copy in `room` with zeros around it. */
TERN__INLINE const float *square(const float *plane, const int64_t size[2], int64_t row, int64_t column,
                                 int side, float *room, int64_t *row_pitch)
{
    if (row >= 0 && column >= 0 && row + side <= size[0] && column + side <= size[1]) {
        *row_pitch = size[1] * LANES;
        return plane + (row * size[1] + column) * LANES;
    }
    *row_pitch = side * LANES;
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            int64_t r = row + i, c = column + j;
            tern__lanes v = {0};
            if (r >= 0 && c >= 0 && r < size[0] && c < size[1])
                v = tern__lanes_load(plane + (r * size[1] + c) * LANES, LANES);
            tern__lanes_store(room + (i * side + j) * LANES, v, LANES);
        }
    return room;
}

TERN__SIMD static void inputs(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                              int64_t block, int64_t first, int64_t count)
{
    float room[IN * IN * LANES];
    for (int64_t t = 0; t < count; t++) {
        place p = place_of(g, in, block, first + t);
        const float *plane = (const float *)in->data + p.plane * g->in[0] * g->in[1] * LANES;
        int64_t row_pitch;
        const float *from =
            square(plane, g->in, p.row - g->padding[0], p.column - g->padding[1], IN, room, &row_pitch);
        input_tile(to.data + t * LANES, to.pitch, from, row_pitch, LANES);
    }
}

TERN__SIMD static void grads(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                             int64_t block, int64_t first, int64_t count)
{
    float room[OUT * OUT * LANES];
    for (int64_t t = 0; t < count; t++) {
        place p = place_of(g, out, block, first + t);
        const float *plane = (const float *)out->data + p.plane * g->out[0] * g->out[1] * LANES;
        int64_t row_pitch;
        const float *from = square(plane, g->out, p.row, p.column, OUT, room, &row_pitch);
        grad_tile(to.data + t * LANES, to.pitch, from, row_pitch, LANES);
    }
}

TERN__SIMD static void outputs(tern__winograd_points from, const tern__winograd_grid *g,
                               const tern__view *out, const float bias[LANES], bool add, int64_t block,
                               int64_t first, int64_t count)
{
    float room[OUT * OUT * LANES];
    tern__lanes more = tern__lanes_load(bias, LANES);
    for (int64_t t = 0; t < count; t++) {
        place p = place_of(g, out, block, first + t);
        float *plane = (float *)out->data + p.plane * g->out[0] * g->out[1] * LANES;
        output_tile(room, LANES, from.data + t * LANES, IN * from.pitch, from.pitch);
        int64_t rows = TERN__MIN(OUT, g->out[0] - p.row), columns = TERN__MIN(OUT, g->out[1] - p.column);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                float *to = plane + ((p.row + i) * g->out[1] + p.column + j) * LANES;
                tern__lanes v = tern__lanes_load(room + (i * OUT + j) * LANES, LANES) + more;
                tern__lanes_put(to, v, LANES, add);
            }
    }
}

void tern__winograd_inputs(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           int64_t block, int64_t first, int64_t count)
{
    inputs(to, grid, in, block, first, count);
}

void tern__winograd_grads(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                          int64_t block, int64_t first, int64_t count)
{
    grads(to, grid, out, block, first, count);
}

void tern__winograd_outputs(tern__winograd_points from, const tern__winograd_grid *grid,
                            const tern__view *out, const float bias[LANES], bool add, int64_t block,
                            int64_t first, int64_t count)
{
    outputs(from, grid, out, bias, add, block, first, count);
}

/* ---- weights ---- */

TERN__DEFINE_TURN(turn, tern__words)

/* The plain weights of 16 outputs and 16 inputs. */
typedef struct channels {
    float *data;
    int64_t out_stride, in_stride;
} channels;

static channels channels_of(const tern__winograd_weights *w, int64_t out, int64_t in)
{
    int64_t row = (w->turned ? w->outs : w->ins) * TAPS;
    channels c = {.out_stride = w->turned ? TAPS : row, .in_stride = w->turned ? row : TAPS};
    c.data = w->data + out * c.out_stride + in * c.in_stride;
    return c;
}

/* taps[c][k][lane] of weights whose inputs follow each other: lines of 16 taps become columns. */
TERN__INLINE void load_following(float *taps, const channels *c)
{
    for (int i = 0; i < TAPS; i++) {
        tern__words v[LANES];
        for (int l = 0; l < LANES; l++) memcpy(&v[l], c->data + l * c->out_stride + i * LANES, sizeof(v[l]));
        turn(v);
        memcpy(taps + i * LANES * LANES, v, sizeof(v));
    }
}

/* The same where outputs do: of lines of 16 the first 9 count. They are copied first, for what is read behind
 * the last. */
TERN__INLINE void load_turned(float *taps, const channels *c)
{
    float lines[LANES * TAPS * LANES + LANES];
    for (int i = 0; i < LANES; i++)
        memcpy(lines + i * TAPS * LANES, c->data + i * c->in_stride, TAPS * LANES * sizeof(*lines));
    memset(lines + LANES * TAPS * LANES, 0, LANES * sizeof(*lines));
    for (int i = 0; i < LANES; i++) {
        tern__words v[LANES];
        for (int l = 0; l < LANES; l++) memcpy(&v[l], lines + (i * LANES + l) * TAPS, sizeof(v[l]));
        turn(v);
        memcpy(taps + i * TAPS * LANES, v, TAPS * sizeof(v[0]));
    }
}

TERN__SIMD static void pack_channels(float *to, int64_t pitch, int64_t width, channels c, bool turned)
{
    float taps[LANES * TAPS * LANES];
    if (turned)
        load_turned(taps, &c);
    else
        load_following(taps, &c);
    for (int i = 0; i < LANES; i++) {
        const float *from = taps + i * TAPS * LANES;
        if (turned)
            weight_tile(to + i * width, pitch, from + (TAPS - 1) * LANES, -3 * LANES, -LANES);
        else
            weight_tile(to + i * width, pitch, from, 3 * LANES, LANES);
    }
}

TERN__SIMD static void unpack_channels(const float *from, int64_t pitch, int64_t width, channels c, bool add)
{
    float taps[LANES * TAPS * LANES];
    for (int i = 0; i < LANES; i++)
        weight_grad_tile(taps + i * TAPS * LANES, LANES, from + i * width, IN * pitch, pitch);
    for (int k = 0; k < TAPS; k++) {
        tern__words v[LANES];
        memcpy(v, taps + k * LANES * LANES, sizeof(v));
        turn(v);
        for (int l = 0; l < LANES; l++) {
            tern__lanes line = (tern__lanes)v[l];
            tern__lanes_put(c.data + l * c.out_stride + k * LANES, line, LANES, add);
        }
    }
}

void tern__winograd_pack(float *to, const tern__winograd_weights *w, int64_t group, int64_t first,
                         int64_t count)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    for (int64_t c = 0; c < count; c += LANES)
        for (int64_t o = 0; o < width; o += LANES)
            pack_channels(to + c * width + o, pitch, width, channels_of(w, 32 * group + o, first + c),
                          w->turned);
}

void tern__winograd_unpack(const float *from, const tern__winograd_weights *w, int64_t group, int64_t first,
                           int64_t count, bool add)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    for (int64_t c = 0; c < count; c += LANES)
        for (int64_t o = 0; o < width; o += LANES)
            unpack_channels(from + c * width + o, pitch, width, channels_of(w, 32 * group + o, first + c),
                            add);
}
