/* transform.c - see winograd/transform.h. Each transform is two rounds of the same one-dimensional
 * step, down the columns and then along the rows. What comes from outside is widened to f32 where it is
 * loaded, and what goes there is rounded where it is stored. */
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

/* ---- dtypes ---- */

/* `name`, which is inlined, once for each dtype as a constant. */
#define DEFINE_FOR_DTYPES(name, parameters, ...)                                                             \
    TERN__SIMD static void name##_f32 parameters                                                             \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_F32);                                                                         \
    }                                                                                                        \
    TERN__SIMD static void name##_bf16 parameters                                                            \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_BF16);                                                                        \
    }                                                                                                        \
    TERN__SIMD static void name##_f16 parameters                                                             \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_F16);                                                                         \
    }
#define FOR_DTYPE(name, dtype)                                                                               \
    ((dtype) == TERN_F32 ? name##_f32 : (dtype) == TERN_BF16 ? name##_bf16 : name##_f16)

/* ---- two dimensions ---- */

/* One step for each of the columns of `rows` lines of lanes, from the `first` element of `from` on, and one
 * for each line of what comes of that: every result's place is to + (IN i + j) * to_pitch. */
#define DEFINE_BOTH(name, step, rows, results)                                                               \
    TERN__INLINE void name(float *to, int64_t to_pitch, const void *from, int64_t first, int64_t row_pitch,  \
                           int64_t pitch, tern_dtype dtype)                                                  \
    {                                                                                                        \
        tern__lanes half[results][rows];                                                                     \
        _Pragma("GCC unroll 6") for (int j = 0; j < (rows); j++)                                             \
        {                                                                                                    \
            tern__lanes line[rows], result[results];                                                         \
            _Pragma("GCC unroll 6") for (int i = 0; i < (rows); i++) line[i] =                               \
                tern__lanes_get(from, dtype, first + i * row_pitch + j * pitch, LANES);                      \
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

static tern__winograd_axis axis_of(int64_t out, int64_t padding, int64_t step)
{
    tern__winograd_axis a = {.out = out, .padding = padding, .step = step, .longer = out % step};
    a.long_tiles = (out / step + 1 + OUT - 1) / OUT;
    a.short_tiles = (out / step + OUT - 1) / OUT;
    a.tiles = a.longer * a.long_tiles + (step - a.longer) * a.short_tiles;
    return a;
}

static tern__winograd_depth depth_of(const tern__view *in, const tern__view *out, int64_t taps,
                                     const tern__conv_attr *attr, bool turned)
{
    int64_t shift = -attr->padding[0], step = attr->dilation[0];
    if (out->ndim == 4) return (tern__winograd_depth){1, 1, 1, 0, 1};
    return (tern__winograd_depth){in->shape[2], out->shape[2], taps, turned ? -shift : shift,
                                  turned ? -step : step};
}

tern__winograd_grid tern__winograd_grid_of(const tern__view *in, const tern__view *out, int64_t taps,
                                           const tern__conv_attr *attr, bool turned)
{
    tern__winograd_grid g = {.depth = depth_of(in, out, taps, attr, turned)};
    for (int d = 0; d < 2; d++) {
        int64_t step = attr->dilation[1 + d], padding = attr->padding[1 + d];
        g.axis[d] = axis_of(out->shape[out->ndim - 2 + d], turned ? 2 * step - padding : padding, step);
    }
    g.tiles = out->shape[0] * g.axis[0].tiles * g.axis[1].tiles;
    g.count = g.depth.out * g.tiles;
    return g;
}

/* Of a block of channels of a sheet: its first element, and a tile's first output. */
typedef struct place {
    int64_t plane, row, column;
    bool is_beyond; /* the volume: the sheet is all zeros */
} place;

TERN__INLINE int64_t first_output(const tern__winograd_axis *a, int64_t tile)
{
    int64_t rest = tile - a->longer * a->long_tiles;
    if (rest < 0) return tile / a->long_tiles + tile % a->long_tiles * OUT * a->step;
    return a->longer + rest / a->short_tiles + rest % a->short_tiles * OUT * a->step;
}

/* Of tile t of the part, of a volume of so many sheets. */
TERN__INLINE place place_of(const tern__winograd_grid *g, const tern__view *view, int64_t sheets,
                            const tern__winograd_part *part, int64_t t)
{
    int64_t across = g->axis[1].tiles, area = g->axis[0].tiles * across;
    int64_t image = (part->first + t) / area, rest = (part->first + t) % area;
    int64_t plane = (image * (view->shape[1] / LANES) + part->block) * sheets + part->sheet;
    return (place){plane * view->shape[view->ndim - 2] * view->shape[view->ndim - 1] * LANES,
                   first_output(&g->axis[0], rest / across), first_output(&g->axis[1], rest % across),
                   part->sheet < 0 || part->sheet >= sheets};
}

/* The inputs that the tile sees begin here. */
TERN__INLINE place input_of(const tern__winograd_grid *g, const tern__view *in,
                            const tern__winograd_part *part, int64_t t)
{
    place p = place_of(g, in, g->depth.in, part, t);
    p.row -= g->axis[0].padding;
    p.column -= g->axis[1].padding;
    return p;
}

/* Lines of lanes of one dtype: the first's element, and how many elements further on the next one and the
 * next row's begin. */
typedef struct lines {
    const void *data;
    int64_t first, row_pitch, pitch;
} lines;

/* A line's bits as they are; NULL: zeros. */
TERN__INLINE void copy_line(void *to, int64_t at, const void *from, int64_t from_at, tern_dtype dtype)
{
    if (dtype == TERN_F32) {
        tern__lanes v = {0};
        if (from) v = tern__lanes_load((const float *)from + from_at, LANES);
        tern__lanes_store((float *)to + at, v, LANES);
    } else {
        tern__halves v = {0};
        if (from) memcpy(&v, (const uint16_t *)from + from_at, sizeof(v));
        memcpy((uint16_t *)to + at, &v, sizeof(v));
    }
}

/* The square of `side` lines at p, a step apart, which may reach over the edges of its plane: where it
 * stands, or a copy in `room` with zeros around it. */
TERN__INLINE lines square(const tern__winograd_grid *g, const tern__view *view, place p, int side, void *room,
                          tern_dtype dtype)
{
    int64_t height = view->shape[view->ndim - 2], width = view->shape[view->ndim - 1];
    int64_t down = g->axis[0].step, on = g->axis[1].step;
    const void *data = view->data;
    if (!p.is_beyond && p.row >= 0 && p.column >= 0 && p.row + (side - 1) * down < height &&
        p.column + (side - 1) * on < width)
        return (lines){data, p.plane + (p.row * width + p.column) * LANES, down * width * LANES, on * LANES};
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            int64_t r = p.row + i * down, c = p.column + j * on;
            bool inside = !p.is_beyond && r >= 0 && c >= 0 && r < height && c < width;
            copy_line(room, (i * side + j) * LANES, inside ? data : NULL, p.plane + (r * width + c) * LANES,
                      dtype);
        }
    return (lines){room, 0, side * LANES, LANES};
}

TERN__INLINE void inputs(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                         const tern__winograd_part *part, tern_dtype dtype)
{
    float room[IN * IN * LANES];
    for (int64_t t = 0; t < part->count; t++) {
        lines from = square(g, in, input_of(g, in, part, t), IN, room, dtype);
        input_tile(to.data + t * LANES, to.pitch, from.data, from.first, from.row_pitch, from.pitch, dtype);
    }
}

TERN__INLINE void grads(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                        const tern__winograd_part *part, tern_dtype dtype)
{
    float room[OUT * OUT * LANES];
    for (int64_t t = 0; t < part->count; t++) {
        lines from = square(g, out, place_of(g, out, g->depth.out, part, t), OUT, room, dtype);
        grad_tile(to.data + t * LANES, to.pitch, from.data, from.first, from.row_pitch, from.pitch, dtype);
    }
}

TERN__INLINE void outputs(tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                          const void *bias, bool add, const tern__winograd_part *part, tern_dtype dtype)
{
    float room[OUT * OUT * LANES];
    void *data = out->data;
    tern__lanes more = {0};
    if (bias) more = tern__lanes_get(bias, dtype, part->block * LANES, LANES);
    for (int64_t t = 0; t < part->count; t++) {
        place p = place_of(g, out, g->depth.out, part, t);
        output_tile(room, LANES, from.data, t * LANES, IN * from.pitch, from.pitch, TERN_F32);
        const tern__winograd_axis *down = &g->axis[0], *on = &g->axis[1];
        for (int64_t i = 0, row = p.row; i < OUT && row < down->out; i++, row += down->step)
            for (int64_t j = 0, column = p.column; j < OUT && column < on->out; j++, column += on->step) {
                tern__lanes v = tern__lanes_load(room + (i * OUT + j) * LANES, LANES) + more;
                tern__lanes_set(data, dtype, p.plane + (row * on->out + column) * LANES, v, LANES, add);
            }
    }
}

DEFINE_FOR_DTYPES(inputs,
                  (tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                   const tern__winograd_part *part),
                  to, g, in, part)
DEFINE_FOR_DTYPES(grads,
                  (tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                   const tern__winograd_part *part),
                  to, g, out, part)
DEFINE_FOR_DTYPES(outputs,
                  (tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                   const void *bias, bool add, const tern__winograd_part *part),
                  from, g, out, bias, add, part)

void tern__winograd_inputs(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_part *part)
{
    FOR_DTYPE(inputs, in->dtype)(to, grid, in, part);
}

void tern__winograd_grads(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                          const tern__winograd_part *part)
{
    FOR_DTYPE(grads, out->dtype)(to, grid, out, part);
}

void tern__winograd_outputs(tern__winograd_points from, const tern__winograd_grid *grid,
                            const tern__view *out, const void *bias, bool add,
                            const tern__winograd_part *part)
{
    FOR_DTYPE(outputs, out->dtype)(from, grid, out, bias, add, part);
}

/* ---- weights ---- */

TERN__DEFINE_TURN(turn, tern__words)

/* A sheet of the plain weights of 16 outputs and 16 inputs: elements of w's memory. */
typedef struct channels {
    void *data;
    int64_t first, out_stride, in_stride;
} channels;

static channels channels_of(const tern__winograd_weights *w, int64_t out, int64_t in)
{
    int64_t ins = w->ins / w->taps, near = w->taps * TAPS, far = (w->turned ? w->outs : ins) * near;
    channels c = {.data = w->data, .out_stride = w->turned ? near : far, .in_stride = w->turned ? far : near};
    c.first = out * c.out_stride + in % ins * c.in_stride + in / ins * TAPS;
    return c;
}

/* A copy of such, in which nothing stands between channels that follow each other. */
static channels dense_channels(const tern__winograd_weights *w, float room[LANES * LANES * TAPS])
{
    int64_t far = LANES * TAPS;
    return (channels){
        .data = room, .out_stride = w->turned ? TAPS : far, .in_stride = w->turned ? far : TAPS};
}

static void copy_channels(const channels *to, const channels *from, size_t size)
{
    for (int64_t o = 0; o < LANES; o++)
        for (int64_t i = 0; i < LANES; i++) {
            int64_t at = to->first + o * to->out_stride + i * to->in_stride;
            int64_t from_at = from->first + o * from->out_stride + i * from->in_stride;
            memcpy((char *)to->data + (size_t)at * size, (char *)from->data + (size_t)from_at * size,
                   TAPS * size);
        }
}

/* taps[c][k][lane] of weights whose inputs follow each other: lines of 16 taps become columns. */
TERN__INLINE void load_following(float *taps, const channels *c, tern_dtype dtype)
{
    for (int i = 0; i < TAPS; i++) {
        tern__words v[LANES];
        for (int l = 0; l < LANES; l++)
            v[l] =
                (tern__words)tern__lanes_get(c->data, dtype, c->first + l * c->out_stride + i * LANES, LANES);
        turn(v);
        memcpy(taps + i * LANES * LANES, v, sizeof(v));
    }
}

/* The same where outputs do: of lines of 16 the first 9 count. They are copied first, for what is read behind
 * the last. */
TERN__INLINE void load_turned(float *taps, const channels *c, tern_dtype dtype)
{
    float rows[LANES * TAPS * LANES + LANES];
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < TAPS; k++) {
            int64_t at = c->first + i * c->in_stride + k * LANES;
            tern__lanes_store(rows + (i * TAPS + k) * LANES, tern__lanes_get(c->data, dtype, at, LANES),
                              LANES);
        }
    memset(rows + LANES * TAPS * LANES, 0, LANES * sizeof(*rows));
    for (int i = 0; i < LANES; i++) {
        tern__words v[LANES];
        for (int l = 0; l < LANES; l++) memcpy(&v[l], rows + (i * LANES + l) * TAPS, sizeof(v[l]));
        turn(v);
        memcpy(taps + i * TAPS * LANES, v, TAPS * sizeof(v[0]));
    }
}

TERN__INLINE void pack(float *to, int64_t pitch, int64_t width, channels c, bool turned, tern_dtype dtype)
{
    float taps[LANES * TAPS * LANES];
    if (turned)
        load_turned(taps, &c, dtype);
    else
        load_following(taps, &c, dtype);
    for (int i = 0; i < LANES; i++) {
        int64_t from = i * TAPS * LANES;
        if (turned)
            weight_tile(to + i * width, pitch, taps, from + (TAPS - 1) * LANES, -3 * LANES, -LANES, TERN_F32);
        else
            weight_tile(to + i * width, pitch, taps, from, 3 * LANES, LANES, TERN_F32);
    }
}

TERN__INLINE void unpack(const float *from, int64_t pitch, int64_t width, channels c, bool add,
                         tern_dtype dtype)
{
    float taps[LANES * TAPS * LANES];
    for (int i = 0; i < LANES; i++)
        weight_grad_tile(taps + i * TAPS * LANES, LANES, from, i * width, IN * pitch, pitch, TERN_F32);
    for (int k = 0; k < TAPS; k++) {
        tern__words v[LANES];
        memcpy(v, taps + k * LANES * LANES, sizeof(v));
        turn(v);
        for (int l = 0; l < LANES; l++) {
            int64_t at = c.first + l * c.out_stride + k * LANES;
            tern__lanes_set(c.data, dtype, at, (tern__lanes)v[l], LANES, add);
        }
    }
}

DEFINE_FOR_DTYPES(pack, (float *to, int64_t pitch, int64_t width, channels c, bool turned), to, pitch, width,
                  c, turned)
DEFINE_FOR_DTYPES(unpack, (const float *from, int64_t pitch, int64_t width, channels c, bool add), from,
                  pitch, width, c, add)

void tern__winograd_pack(float *to, const tern__winograd_weights *w, int64_t group, int64_t first,
                         int64_t count)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    void (*one)(float *, int64_t, int64_t, channels, bool) = FOR_DTYPE(pack, w->dtype);
    float room[LANES * LANES * TAPS];
    for (int64_t c = 0; c < count; c += LANES)
        for (int64_t o = 0; o < width; o += LANES) {
            channels own = channels_of(w, 32 * group + o, first + c), dense = dense_channels(w, room);
            if (w->taps > 1) copy_channels(&dense, &own, tern_dtype_bytes(w->dtype));
            one(to + c * width + o, pitch, width, w->taps > 1 ? dense : own, w->turned);
        }
}

void tern__winograd_unpack(const float *from, const tern__winograd_weights *w, int64_t group, int64_t first,
                           int64_t count, bool add)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    void (*one)(const float *, int64_t, int64_t, channels, bool) = FOR_DTYPE(unpack, w->dtype);
    size_t size = tern_dtype_bytes(w->dtype);
    float room[LANES * LANES * TAPS];
    for (int64_t c = 0; c < count; c += LANES)
        for (int64_t o = 0; o < width; o += LANES) {
            channels own = channels_of(w, 32 * group + o, first + c), dense = dense_channels(w, room);
            if (w->taps > 1 && add) copy_channels(&dense, &own, size);
            one(from + c * width + o, pitch, width, w->taps > 1 ? dense : own, add);
            if (w->taps > 1) copy_channels(&own, &dense, size);
        }
}
