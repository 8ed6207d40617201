/* transform_tiles.c - the transforms of activations and of their gradients. A tile of a block of channels
 * is transformed vector by vector. Elements are converted to f32 on loading and rounded on storing. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/conv/winograd/steps.h"
#include "kernels/cpu/conv/winograd/transforms.h"

DEFINE_BOTH(input_tile, input_step, IN, IN)
DEFINE_BOTH(grad_tile, grad_step, OUT, IN)

/* A place in a sheet of a block of channels: its first element, and a tile's first output. */
typedef struct place {
    int64_t plane, row, column;
    bool is_beyond; /* the sheet is outside of the volume: all zeros */
} place;

TERN__INLINE int64_t first_output(const tern__winograd_axis *a, int64_t tile)
{
    int64_t rest = tile - a->longer * a->long_tiles;
    if (rest < 0) return tile / a->long_tiles + tile % a->long_tiles * OUT * a->step;
    return a->longer + rest / a->short_tiles + rest % a->short_tiles * OUT * a->step;
}

/* The place of tile t of the part, in a volume of `sheets` sheets. */
TERN__INLINE place place_of(const tern__winograd_grid *g, const tern__view *view, int64_t sheets,
                            const tern__winograd_part *part, int64_t t)
{
    int64_t across = g->axis[1].tiles, area = g->axis[0].tiles * across;
    int64_t image = (part->first + t) / area, rest = (part->first + t) % area;
    int64_t plane = (image * (view->shape[1] / BLOCK) + part->block) * sheets + part->sheet;
    return (place){plane * view->shape[view->ndim - 2] * view->shape[view->ndim - 1] * BLOCK,
                   first_output(&g->axis[0], rest / across), first_output(&g->axis[1], rest % across),
                   part->sheet < 0 || part->sheet >= sheets};
}

/* Goes on along an axis: to the next tile, or the first one of the next interleaved axis. Returns false after
 * the last, at the first again. */
TERN__INLINE bool advance_axis(int64_t *first, const tern__winograd_axis *a)
{
    *first += OUT * a->step;
    if (*first < a->out) return true;
    *first = *first % a->step + 1;
    if (*first < a->step && *first < a->out) return true;
    *first = 0;
    return false;
}

/* Goes on to the next tile, without the divisions of place_of. */
TERN__INLINE void advance(place *p, const tern__winograd_grid *g, const tern__view *view)
{
    if (advance_axis(&p->column, &g->axis[1]) || advance_axis(&p->row, &g->axis[0])) return;
    p->plane += tern__view_count(view) / view->shape[0];
}

/* The tile's first input. */
TERN__INLINE place input_of(const tern__winograd_grid *g, place p)
{
    p.row -= g->axis[0].padding;
    p.column -= g->axis[1].padding;
    return p;
}

static const float zeros[BLOCK] = {0};

/* The square of `side` lines at p, a step apart. */
TERN__INLINE lines square(const tern__winograd_grid *g, const tern__view *view, place p, int side,
                          tern_dtype dtype)
{
    const char *none = (const char *)zeros, *data = view->data;
    const int64_t line = BLOCK * (dtype == TERN_F32 ? sizeof(float) : sizeof(uint16_t));
    int64_t height = view->shape[view->ndim - 2], width = view->shape[view->ndim - 1];
    int64_t down = g->axis[0].step, on = g->axis[1].step;
    __asm__("" : "+r"(none)); /* or the compiler makes other sums, of other bits, for rows that are zeros */
    lines from = {.row_pitch = down * width * line, .right = side};
    while (from.left < side && p.column + from.left * on < 0) from.left++;
    while (from.right > from.left && p.column + (from.right - 1) * on >= width) from.right--;
    from.whole =
        from.right - from.left == side && !p.is_beyond && p.row >= 0 && p.row + (side - 1) * down < height;
    int64_t first = p.plane / BLOCK + p.row * width + p.column + from.left * on;
    _Pragma("GCC unroll 6") for (int i = 0; i < side; i++)
    {
        int64_t r = p.row + i * down;
        bool within = from.whole || (!p.is_beyond && r >= 0 && r < height);
        from.row[i] = within ? data + (first + i * down * width) * line : none;
        from.pitch[i] = within ? on * line : 0;
    }
    return from;
}

/* Line j of row i. */
TERN__INLINE const char *line_at(const lines *from, int64_t i, int64_t j)
{
    bool within = j >= from->left && j < from->right;
    return within ? from->row[i] + (j - from->left) * from->pitch[i] : (const char *)zeros;
}

/* Fetches as many lines of a row as a tile has outputs, for the next tile. Of eight floats per vector a tile
 * has twice as many instructions as of sixteen, and the processor looks less far ahead by itself. */
TERN__INLINE void prefetch_row(const char *first, int64_t pitch)
{
    for (int j = 0; j < OUT && LANES < BLOCK; j++) __builtin_prefetch(first + j * pitch);
}

/* Stores the sum of squares of the given points. */
TERN__INLINE void put_energy(float *tile, int64_t pitch, const int *points, int count)
{
    tern__lanes sum = {0};
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)
    {
        tern__lanes point = tern__lanes_load(tile + points[i] * pitch, LANES);
        sum += point * point;
    }
    tern__lanes_store(tile + TERN__WINOGRAD_ENERGY * pitch, sum, LANES);
}

/* The places along an axis of which every window has one: 2 and 3, or a single one if the tile's outputs are
 * fewer and inputs beyond them may be padding. `first`: the first output. */
TERN__INLINE void middle_of(int64_t middle[2], const tern__winograd_axis *a, int64_t first)
{
    middle[0] = first + a->step < a->out ? 2 : 1;
    middle[1] = first + 3 * a->step < a->out ? 3 : middle[0];
}

/* Lane l has squares of input l % 4 of the four in the middle of the tile, from element v on, summed over the
 * channels of a quarter of the lanes. */
TERN__INLINE tern__lanes centre_of(const char *const middle[4], int v, tern_dtype dtype)
{
    tern__lanes square[4], pair[2];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        tern__lanes line = tern__lanes_get(middle[i], dtype, v, LANES);
        square[i] = line * line;
    }
    for (int i = 0; i < 2; i++) pair[i] = tern__lanes_add_pairs(square[i], square[i + 2]);
    return tern__lanes_add_pairs(pair[0], pair[1]);
}

/* Each input has a part in one of the four corners of the transformed tile. */
TERN__INLINE void inputs(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                         const tern__winograd_part *part, tern_dtype dtype)
{
    static const int corners[] = {0, IN - 1, IN * (IN - 1), IN * IN - 1};
    place p = place_of(g, in, g->depth.in, part, 0);
    for (int64_t t = 0; t < part->count; t++, advance(&p, g, in)) {
        lines from = square(g, in, input_of(g, p), IN, dtype);
        int64_t row[2], column[2];
        const char *middle[4];
        middle_of(row, &g->axis[0], p.row);
        middle_of(column, &g->axis[1], p.column);
        for (int i = 0; i < 4; i++) middle[i] = line_at(&from, row[i / 2], column[i % 2]);
        for (int i = IN - OUT; i < IN; i++) /* the rows above belong to tiles above, too */
            prefetch_row(from.row[i] + (IN - from.left) * from.pitch[i], from.pitch[i]);
        for (int v = 0; v < BLOCK; v += LANES) {
            float *tile = to.data + t * BLOCK + v;
            tern__lanes centre = centre_of(middle, v, dtype);
            if (from.whole)
                input_tile(tile, to.pitch, &from, true, v, dtype);
            else
                input_tile(tile, to.pitch, &from, false, v, dtype);
            tern__lanes_store(tile + TERN__WINOGRAD_CENTRE * to.pitch, centre, LANES);
            put_energy(tile, to.pitch, corners, 4);
        }
    }
}

/* All gradients have a part in the points (b, b), (a, b) and (b, a). */
TERN__INLINE void grads(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                        const tern__winograd_part *part, tern_dtype dtype)
{
    static const int full[] = {3 * IN + 3, IN + 3, 3 * IN + 1};
    place p = place_of(g, out, g->depth.out, part, 0);
    for (int64_t t = 0; t < part->count; t++, advance(&p, g, out)) {
        lines from = square(g, out, p, OUT, dtype);
        for (int i = 0; i < OUT; i++) prefetch_row(from.row[i] + OUT * from.pitch[i], from.pitch[i]);
        for (int v = 0; v < BLOCK; v += LANES) {
            float *tile = to.data + t * BLOCK + v;
            if (from.whole)
                grad_tile(tile, to.pitch, &from, true, v, dtype);
            else
                grad_tile(tile, to.pitch, &from, false, v, dtype);
            put_energy(tile, to.pitch, full, 3);
        }
    }
}

/* The outputs of a tile: memory of one dtype, the first element, and the distances to the next row and the
 * next line. Functions also take how many rows and columns of them the image has. */
typedef struct target {
    void *data;
    int64_t first, row_pitch, pitch;
    bool add;
} target;

/* How many of a tile's outputs from `first` on are within the image. */
TERN__INLINE int64_t outputs_within(const tern__winograd_axis *a, int64_t first)
{
    int64_t count = 1;
    while (count < OUT && first + count * a->step < a->out) count++;
    return count;
}

/* Stores or adds a row of outputs plus a bias. */
TERN__INLINE void put_row(const target *to, int row, int64_t columns, int v, const tern__lanes result[OUT],
                          tern__lanes bias, tern_dtype dtype)
{
    int64_t at = to->first + row * to->row_pitch + v;
    _Pragma("GCC unroll 4") for (int j = 0; j < OUT; j++) if (j < columns)
        tern__lanes_set(to->data, dtype, at + j * to->pitch, result[j] + bias, LANES, to->add);
}

/* Both steps, the second row by row on the way to the outputs. */
TERN__INLINE void output_tile(const target *to, int64_t rows, int64_t columns, int v, const float *from,
                              int64_t pitch, tern__lanes bias, tern_dtype dtype)
{
    tern__lanes half[OUT][IN];
    EACH_STEP for (int j = 0; j < IN; j++, from += pitch)
    {
        tern__lanes line[IN], result[OUT];
        _Pragma("GCC unroll 6") for (int i = 0; i < IN; i++) line[i] =
            tern__lanes_load(from + i * IN * pitch, LANES);
        output_step(result, line);
        _Pragma("GCC unroll 4") for (int i = 0; i < OUT; i++) half[i][j] = result[i];
    }
    EACH_STEP for (int i = 0; i < OUT; i++) if (i < rows)
    {
        tern__lanes result[OUT];
        output_step(result, half[i]);
        put_row(to, i, columns, v, result, bias, dtype);
    }
}

/* Outputs that are the first 16 points. */
TERN__INLINE void output_points(const target *to, int64_t rows, int64_t columns, int v, const float *from,
                                int64_t pitch, tern__lanes bias, tern_dtype dtype)
{
    for (int i = 0; i < rows; i++) {
        tern__lanes result[OUT];
        for (int j = 0; j < OUT; j++) result[j] = tern__lanes_load(from + (i * OUT + j) * pitch, LANES);
        put_row(to, i, columns, v, result, bias, dtype);
    }
}

TERN__INLINE void outputs(tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                          const void *bias, bool add, const tern__winograd_part *part, const bool *direct,
                          tern_dtype dtype)
{
    const int64_t size = dtype == TERN_F32 ? sizeof(float) : sizeof(uint16_t);
    const tern__winograd_axis *down = &g->axis[0], *on = &g->axis[1];
    target to = {out->data, 0, down->step * on->out * BLOCK, on->step * BLOCK, add};
    place p = place_of(g, out, g->depth.out, part, 0);
    for (int64_t t = 0; t < part->count; t++, advance(&p, g, out)) {
        int64_t rows = outputs_within(down, p.row), columns = outputs_within(on, p.column);
        to.first = p.plane + (p.row * on->out + p.column) * BLOCK;
        for (int i = 0; i < OUT; i++)
            prefetch_row((char *)to.data + (to.first + i * to.row_pitch + OUT * to.pitch) * size,
                         to.pitch * size);
        for (int v = 0; v < BLOCK; v += LANES) {
            const float *tile = from.data + t * BLOCK + v;
            tern__lanes more = {0};
            if (bias) more = tern__lanes_get(bias, dtype, part->block * BLOCK + v, LANES);
            if (direct && direct[t])
                output_points(&to, rows, columns, v, tile, from.pitch, more, dtype);
            else if (rows == OUT && columns == OUT)
                output_tile(&to, OUT, OUT, v, tile, from.pitch, more, dtype);
            else
                output_tile(&to, rows, columns, v, tile, from.pitch, more, dtype);
        }
    }
}

/* ---- uneven tiles (even.h) ---- */

#define CENTRES 1e-4f /* of the tile's energy each input in the middle has at least */
#define ALONE   0.75f /* and a quarter of the channels has at most */
#define FAINT   0x1p-96f
#define BRIGHT  0x1p96f /* energies between these are far from f32's limits */

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_flags __attribute__((vector_size(16)));

/* Element i has lanes i, i + 4, i + 8 and i + 12 of the sum over some lines. */
TERN__INLINE quad sum_lines(const float *line, int64_t blocks, int64_t block_pitch, int64_t sheets,
                            int64_t sheet_pitch)
{
    tern__lanes sum[TERN__PARTS] = {{0}};
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t s = 0; s < sheets; s++) TERN__EACH_PART(v)
    sum[v] += tern__lanes_load(line + b * block_pitch + s * sheet_pitch + v * LANES, LANES);
    quad q[BLOCK / 4];
    memcpy(q, sum, sizeof(q));
    return (q[0] + q[1]) + (q[2] + q[3]);
}

TERN__SIMD static void find_doubtful(bool *doubtful, tern__winograd_points from, int64_t blocks,
                                     int64_t block_pitch, int64_t taps, int64_t count)
{
    const float *energy = from.data + TERN__WINOGRAD_ENERGY * from.pitch;
    const float *centre = from.data + TERN__WINOGRAD_CENTRE * from.pitch;
    for (int64_t t = 0; t < count; t++) {
        quad all = sum_lines(energy + t * BLOCK, blocks, block_pitch, taps, count * BLOCK);
        quad middle = sum_lines(centre + t * BLOCK, blocks, block_pitch, taps, count * BLOCK);
        float sum = (all[0] + all[1]) + (all[2] + all[3]);
        quad_flags even = (middle >= (quad){0} + CENTRES * sum) & (all <= (quad){0} + ALONE * sum);
        int64_t both[2];
        memcpy(both, &even, sizeof(both));
        doubtful[t] = (both[0] & both[1]) != -1 || !(sum >= FAINT && sum <= BRIGHT);
    }
}

/* Tile t's square of inputs in f32. */
TERN__INLINE void load_square(float square_of[IN * IN * BLOCK], const tern__winograd_grid *g,
                              const tern__view *in, const tern__winograd_part *part, int64_t t,
                              tern_dtype dtype)
{
    lines from = square(g, in, input_of(g, place_of(g, in, g->depth.in, part, t)), IN, dtype);
    for (int i = 0; i < IN * IN; i++)
        for (int v = 0; v < BLOCK; v += LANES)
            tern__lanes_store(square_of + i * BLOCK + v,
                              tern__lanes_get(line_at(&from, i / IN, i % IN), dtype, v, LANES), LANES);
}

/* sum += what a tap adds to 16 outputs from 16 inputs, in four chains. */
TERN__INLINE void add_tap(float *sum, const float *in, const float *tap)
{
    for (int v = 0; v < BLOCK; v += LANES) {
        tern__lanes chain[4] = {{0}};
        for (int c = 0; c < BLOCK; c += 4)
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) chain[i] +=
                in[c + i] * tern__lanes_load(tap + (c + i) * TERN__WINOGRAD_SQUARE * BLOCK + v, LANES);
        tern__lanes_put(sum + v, (chain[0] + chain[1]) + (chain[2] + chain[3]), LANES, true);
    }
}

/* Taps that see padding are left out: a weight may be infinite. */
TERN__INLINE void add_direct(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                             const tern__winograd_part *part, const float *taps, bool turned,
                             const bool *direct, tern_dtype dtype)
{
    int64_t height = in->shape[in->ndim - 2], width = in->shape[in->ndim - 1];
    for (int64_t t = 0; t < part->count; t++) {
        float from[IN * IN * BLOCK];
        place p = input_of(g, place_of(g, in, g->depth.in, part, t));
        if (!direct[t] || p.is_beyond) continue;
        load_square(from, g, in, part, t, dtype);
        for (int i = 0; i < OUT * OUT; i++)
            for (int k = 0; k < TERN__WINOGRAD_SQUARE; k++) {
                int down = i / OUT + k / 3, on = i % OUT + k % 3;
                int64_t row = p.row + down * g->axis[0].step, column = p.column + on * g->axis[1].step;
                if (row < 0 || column < 0 || row >= height || column >= width) continue;
                add_tap(to.data + i * to.pitch + t * BLOCK, from + (down * IN + on) * BLOCK,
                        taps + (turned ? TERN__WINOGRAD_SQUARE - 1 - k : k) * BLOCK);
            }
    }
}

TERN__INLINE tern__lanes magnitude(tern__lanes v)
{
    return (tern__lanes)((tern__words)v & 0x7fffffff);
}

TERN__INLINE void add_sizes(float *sums, const tern__winograd_grid *g, const tern__view *in,
                            const tern__winograd_part *part, int64_t t, tern_dtype dtype)
{
    float from[IN * IN * BLOCK];
    load_square(from, g, in, part, t, dtype);
    for (int v = 0; v < BLOCK; v += LANES) {
        tern__lanes most = tern__lanes_load(sums + IN * IN * BLOCK + v, LANES);
        for (int i = v; i < IN * IN * BLOCK; i += BLOCK) {
            tern__lanes size = magnitude(tern__lanes_load(from + i, LANES));
            tern__lanes_put(sums + i, size, LANES, true);
            most += tern__lanes_relu(size - most);
        }
        tern__lanes_store(sums + IN * IN * BLOCK + v, most, LANES);
    }
}

/* The maximum is NaN if a line is. */
TERN__INLINE void add_lines(float *to, const void *from, int64_t count, tern_dtype dtype)
{
    for (int v = 0; v < BLOCK; v += LANES) {
        tern__lanes sum = tern__lanes_load(to + v, LANES), most = tern__lanes_load(to + BLOCK + v, LANES);
        for (int64_t i = 0; i < count; i++) {
            tern__lanes size = magnitude(tern__lanes_get(from, dtype, i * BLOCK + v, LANES));
            sum += size;
            most += tern__lanes_relu(size - most);
        }
        tern__lanes_store(to + v, sum, LANES);
        tern__lanes_store(to + BLOCK + v, most, LANES);
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
                   const void *bias, bool add, const tern__winograd_part *part, const bool *direct),
                  from, g, out, bias, add, part, direct)
DEFINE_FOR_DTYPES(add_direct,
                  (tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                   const tern__winograd_part *part, const float *taps, bool turned, const bool *direct),
                  to, g, in, part, taps, turned, direct)
DEFINE_FOR_DTYPES(add_sizes,
                  (float *sums, const tern__winograd_grid *g, const tern__view *in,
                   const tern__winograd_part *part, int64_t t),
                  sums, g, in, part, t)
DEFINE_FOR_DTYPES(add_lines, (float *to, const void *from, int64_t count), to, from, count)

static void inputs_of_any(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                          const tern__winograd_part *part)
{
    FOR_DTYPE(inputs, in->dtype)(to, g, in, part);
}

static void grads_of_any(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                         const tern__winograd_part *part)
{
    FOR_DTYPE(grads, out->dtype)(to, g, out, part);
}

static void outputs_of_any(tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                           const void *bias, bool add, const tern__winograd_part *part, const bool *direct)
{
    FOR_DTYPE(outputs, out->dtype)(from, g, out, bias, add, part, direct);
}

static void add_direct_of_any(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                              const tern__winograd_part *part, const float *taps, bool turned,
                              const bool *direct)
{
    FOR_DTYPE(add_direct, in->dtype)(to, g, in, part, taps, turned, direct);
}

static void add_sizes_of_any(float *sums, const tern__winograd_grid *g, const tern__view *in,
                             const tern__winograd_part *part, int64_t t)
{
    FOR_DTYPE(add_sizes, in->dtype)(sums, g, in, part, t);
}

static void add_lines_of_any(float *to, const void *from, tern_dtype dtype, int64_t count)
{
    FOR_DTYPE(add_lines, dtype)(to, from, count);
}

const tern__winograd_tiles TERN__OF_WIDTH(tern__winograd_tiles) = {
    inputs_of_any, grads_of_any,     outputs_of_any,  add_direct_of_any,
    find_doubtful, add_sizes_of_any, add_lines_of_any};
