/* amx_conv.c - convolutions as products of tiles, without unfolding the input (but for few channels:
 * amx_unfold.h).
 *
 * What is multiplied (the source: x, or dy in a data gradient) is copied into planes with the padding around
 * it, so that a tap of the kernel sees the whole plane shifted. With a stride of s, a forward deals the rows
 * of x to s planes (phases), of which each tap sees one; a data gradient computes the rows of dx in s turns,
 * each with taps of its own. So positions are always neighbours: a tile takes 16 of them as they follow each
 * other in the plane, row after row. The places between the end of one row of results and the beginning of
 * the next are computed too, and left out of the result. A volume has sheets of rows, and its planes as many
 * sheets; depth is an axis like the others, and an image a volume of one sheet.
 *
 * A plane has 32 channels of a position side by side, a row of a tile; sums go over taps and channels. Where
 * there are 16 only, a plane has those, and a row of a tile is two neighbouring positions, for two taps:
 * tiles of weights are put together for that. As many images are copied at a time as the second-level cache
 * holds, so that weights are read once for all of them; of a volume that is larger as many sheets (a slab).
 */
#include "kernels/cpu/amx_conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_unfold.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define ROWS     TERN__AMX_ROWS
#define PAIR     (2 * ROWS)            /* positions, or columns, of a block     */
#define WIDE     (2 * TERN__AMX_DEPTH) /* bytes of a row of a tile              */
#define HALF     (TERN__AMX_TILE / 2)  /* bytes of 16 channels' weights         */
#define TOGETHER 4
#define FEW      18
#define CACHE    (1 << 20) /* of what is copied at a time           */

/* Scratch buffers; conv.c has the one between them. */
enum { PLANES = TERN__SCRATCH_OPERAND, STEPS = TERN__SCRATCH_OPERAND + 2 };

/* What a turn adds up: the steps' places in an image's planes and in the weights of 16 columns. */
typedef struct turn {
    int64_t start[3], count[3]; /* its first sheet, row and column of the target, and how many */
    int64_t steps, *a_at, *b_at;
} turn;

typedef struct job {
    const tern__call *call;
    const tern__view *source, *target;
    const tern__unfold *unfold; /* of the source; NULL: it is copied */
    tern__planes p;
    int64_t blocks, outs; /* of 32 channels of the source; channels of the target */
    int64_t deep, slabs;  /* sheets of results of a slab; slabs of an image       */
    int64_t plane, slab;  /* positions of a slab's plane; bytes of its planes     */
    int64_t group, slack; /* slabs copied together; bytes read behind the last    */
    int64_t column;       /* bytes of 16 columns of weights                       */
    int64_t wide;         /* bytes of a position in a plane: WIDE, or half of it   */
    const char *weight;
    const float *bias; /* NULL: none */
    turn *turns;
} job;

/* ---- copies of the source ---- */

TERN__DEFINE_TURN(turn_halves, tern__halves)

/* Of 16 channels of a block at one source row; `to` is position 0 of the plane's row. */
static void copy_row(const job *j, char *to, const uint16_t *from, int64_t phase)
{
    const tern__axis *a = &j->p.axis[2];
    int64_t first, last;
    tern__axis_range(a, phase, &first, &last);
    from += (phase - a->margin) * ROWS;
    for (int64_t i = first; i < last; i++)
        memcpy(to + i * j->wide, from + i * a->step * ROWS, ROWS * sizeof(*from));
}

/* n positions of 16 channels, of which v has the rows. */
TERN__INLINE void put_turned(const job *j, char *to, tern__halves v[ROWS], int64_t n)
{
    turn_halves(v);
    for (int64_t l = 0; l < n; l++) memcpy(to + l * j->wide, &v[l], sizeof(v[l]));
}

/* The same of `count` channels that stand `size` apart. */
TERN__SIMD static void copy_plain_row(const job *j, char *to, const uint16_t *from, int64_t phase,
                                      int64_t size, int64_t count)
{
    const tern__axis *a = &j->p.axis[2];
    int64_t first, last;
    tern__axis_range(a, phase, &first, &last);
    from += phase - a->margin;
    for (int64_t i = first; i < last; i += ROWS) {
        tern__halves v[ROWS] = {{0}};
        int64_t n = TERN__MIN(ROWS, last - i);
        for (int64_t c = 0; c < count; c++) {
            uint16_t values[ROWS] = {0};
            const uint16_t *row = from + c * size + i * a->step;
            if (a->step == 1 && n == ROWS)
                memcpy(values, row, sizeof(values));
            else
                for (int64_t l = 0; l < n; l++) values[l] = row[l * a->step];
            memcpy(&v[c], values, sizeof(v[c]));
        }
        put_turned(j, to + i * j->wide, v, n);
    }
}

/* What another slab had in the place of padding goes. */
static void clear_row(const job *j, char *to)
{
    for (int64_t i = 0; i < j->p.axis[2].size; i++) memset(to + i * j->wide, 0, ROWS * sizeof(uint16_t));
}

/* Channels first to first + count - 1 of image n, for the slab that begins at `sheet`. */
static void copy_channels(const job *j, char *planes, int64_t n, int64_t sheet, int64_t first, int64_t count)
{
    const tern__planes *p = &j->p;
    int64_t size = p->axis[0].source * p->axis[1].source * p->axis[2].source;
    const uint16_t *from = (const uint16_t *)j->source->data + (n * j->source->shape[1] + first) * size;
    for (int64_t phase = 0; phase < p->phases; phase++) {
        char *to = planes + (phase * j->blocks + first / 32) * j->plane * j->wide + first % 32 * 2;
        for (int64_t i = 0; i < (j->deep + p->more) * p->axis[1].size; i++, to += p->axis[2].size * j->wide) {
            int64_t at = tern__planes_row(p, phase, sheet + i / p->axis[1].size, i % p->axis[1].size);
            if (at < 0)
                clear_row(j, to);
            else if (j->source->layout == TERN__BLOCKED16)
                copy_row(j, to, from + at * ROWS, phase % p->axis[2].step);
            else
                copy_plain_row(j, to, from + at, phase % p->axis[2].step, size, count);
        }
    }
}

/* A row of what is unfolded: 16 channels from the first. */
TERN__SIMD static void copy_unfolded_row(const job *j, char *to, int64_t n, const int64_t place[2],
                                         int64_t first)
{
    int64_t width = j->p.axis[2].target, count = TERN__MIN(ROWS, j->unfold->count - first);
    tern__unfold_row rows[ROWS];
    for (int64_t c = 0; c < count; c++) rows[c] = tern__unfold_row_of(j->unfold, n, first + c, place, width);
    for (int64_t i = 0; i < width; i += ROWS) {
        uint16_t values[ROWS][ROWS] = {{0}};
        tern__halves v[ROWS];
        for (int64_t c = 0; c < count; c++) tern__unfold_read(j->unfold, &rows[c], i, i + ROWS, values[c]);
        memcpy(v, values, sizeof(v));
        put_turned(j, to + i * j->wide, v, TERN__MIN(ROWS, width - i));
    }
}

static void copy_unfolded(const job *j, char *planes, int64_t n, int64_t sheet)
{
    int64_t height = j->p.axis[1].target;
    for (int64_t i = 0; i < j->deep * height; i++)
        for (int64_t first = 0; first < j->unfold->count; first += ROWS)
            copy_unfolded_row(j, planes + i * j->p.axis[2].size * j->wide + 2 * first, n,
                              (int64_t[]){sheet + i / height, i % height}, first);
}

static void copy_slab(const job *j, char *planes, int64_t n, int64_t sheet)
{
    int64_t channels = j->source->shape[1];
    if (j->unfold)
        copy_unfolded(j, planes, n, sheet);
    else
        for (int64_t c = 0; c < channels; c += ROWS)
            copy_channels(j, planes, n, sheet, c, TERN__MIN(ROWS, channels - c));
}

/* ---- results ---- */

/* A block's place: its image and turn, where its first position is in the turn's results, its first channel.
 */
typedef struct place {
    int64_t image, sheet, row, column, channel;
    const turn *turn;
} place;

/* The target's place of one position. */
TERN__INLINE int64_t target_of(const job *j, const place *b)
{
    const tern__axis *a = j->p.axis;
    const int64_t *start = b->turn->start;
    return ((start[0] + b->sheet * a[0].turns) * a[1].target + start[1] + b->row * a[1].turns) * a[2].target +
           start[2] + b->column * a[2].turns;
}

/* n positions further in the plane. */
TERN__INLINE void step(const job *j, place *b, int64_t n)
{
    for (b->column += n; b->column >= j->p.axis[2].size; b->column -= j->p.axis[2].size)
        if (++b->row == j->p.axis[1].size) {
            b->row = 0;
            b->sheet++;
        }
}

/* Whether the target has what is in that row. */
TERN__INLINE bool is_result(const place *b)
{
    return b->row < b->turn->count[1] && b->column < b->turn->count[2];
}

/* How many positions from there on, of `left`, are neighbours: all results, or none. */
TERN__INLINE int64_t run_of(const job *j, const place *b, int64_t left)
{
    return TERN__MIN(left, (is_result(b) ? b->turn->count[2] : j->p.axis[2].size) - b->column);
}

/* `rows` positions of 16 channels. */
TERN__SIMD static void put_blocked(const job *j, place b, int64_t size, const float *sums, int rows)
{
    int64_t first = (b.image * j->outs + b.channel) * size, apart = j->p.axis[2].turns * ROWS, n;
    void *data = j->target->data;
    bool add = j->call->add[0];
    tern__lanes bias = {0};
    if (j->bias) bias = tern__lanes_load(j->bias + b.channel, ROWS);
    for (int64_t r = 0; r < rows; r += n, step(j, &b, n)) {
        n = run_of(j, &b, rows - r);
        int64_t at = first + target_of(j, &b) * ROWS;
        for (int64_t i = 0; i < n && is_result(&b); i++) {
            tern__lanes v = tern__lanes_load(sums + (r + i) * ROWS, ROWS) + bias;
            tern__lanes_set(data, TERN_BF16, at + i * apart, v, ROWS, add);
        }
    }
}

/* Values of neighbouring positions, `apart` from each other in the target. */
TERN__INLINE void put_values(const job *j, int64_t at, int64_t apart, tern__lanes v, int64_t n)
{
    bool add = j->call->add[0];
    if (apart == 1 && n == ROWS) {
        tern__lanes_set(j->target->data, TERN_BF16, at, v, ROWS, add);
        return;
    }
    for (int64_t l = 0; l < n; l++) {
        tern__lanes one = {v[l]};
        tern__lanes_set(j->target->data, TERN_BF16, at + l * apart, one, 1, add);
    }
}

TERN__DEFINE_TURN(turn_words, tern__words)

/* Channel by channel, as far as positions are neighbours in the target. */
TERN__SIMD static void put_plain(const job *j, place b, int64_t size, const float *sums, int rows)
{
    int64_t lanes = TERN__MIN(ROWS, j->outs - b.channel), n;
    tern__words v[ROWS];
    memcpy(v, sums, sizeof(v));
    turn_words(v);
    for (int64_t r = 0; r < rows; r += n, step(j, &b, n)) {
        n = run_of(j, &b, rows - r);
        for (int64_t c = 0; c < lanes && is_result(&b); c++) {
            const float *values = (const float *)&v[c] + r;
            int64_t channel = b.channel + c, at = (b.image * j->outs + channel) * size + target_of(j, &b);
            tern__lanes sum = tern__lanes_load(values, (int)n);
            if (j->bias) sum += j->bias[channel];
            put_values(j, at, j->p.axis[2].turns, sum, n);
        }
    }
}

/* A block: up to 32 positions of up to 32 channels. */
static void put(const job *j, place b, const float *sums, int rows)
{
    const tern__axis *a = j->p.axis;
    int64_t size = a[0].target * a[1].target * a[2].target, first = b.channel;
    for (int r = 0; r < rows; r += ROWS, step(j, &b, ROWS))
        for (int c = 0; c < 2 && first + c * ROWS < j->outs; c++) {
            b.channel = first + c * ROWS;
            (j->target->layout == TERN__BLOCKED16 ? put_blocked : put_plain)(
                j, b, size, sums + (r / ROWS * 2 + c) * ROWS * ROWS, TERN__MIN(ROWS, rows - r));
        }
}

/* ---- the walk ---- */

/* A turn in a group of slabs: pairs of 16 positions, numbered through all of them. */
typedef struct stretch {
    const char *planes;
    int64_t first_slab, channel, all, pairs; /* positions of a slab, and how many pairs they make */
    const turn *turn;
} stretch;

/* The sums of some pairs, a few steps at a time, so that the weights of these steps are read from the
 * first-level cache by all of them. */
static void add_up(const job *j, const stretch *s, int64_t first, int64_t count,
                   float sums[TOGETHER][TERN__AMX_SUMS])
{
    const turn *t = s->turn;
    tern__amx_operands o = {.b = j->weight + s->channel / ROWS * j->column,
                            .a_row = j->wide,
                            .b_next = s->channel + ROWS < j->outs ? j->column : 0};
    for (int64_t step = 0; step == 0 || step < t->steps; step += FEW) {
        o.a_at = t->a_at + step;
        o.b_at = t->b_at + step;
        o.steps = TERN__MIN(FEW, t->steps - step);
        o.more = step > 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t slab = (first + i) / s->pairs, at = (first + i) % s->pairs * PAIR;
            o.a = s->planes + slab * j->slab + at * j->wide;
            o.a_next = at + ROWS < s->all ? ROWS * j->wide : 0;
            tern__amx_block(&o, sums[i]);
        }
    }
}

static place place_of(const job *j, const stretch *s, int64_t slab, int64_t at)
{
    int64_t number = s->first_slab + slab, columns = j->p.axis[2].size;
    return (place){.image = number / j->slabs,
                   .sheet = number % j->slabs * j->deep + at / j->p.sheet,
                   .row = at % j->p.sheet / columns,
                   .column = at % columns,
                   .channel = s->channel,
                   .turn = s->turn};
}

static void pairs(const job *j, const stretch *s, int64_t slabs)
{
    float sums[TOGETHER][TERN__AMX_SUMS] __attribute__((aligned(64)));
    for (int64_t first = 0; first < slabs * s->pairs; first += TOGETHER) {
        int64_t count = TERN__MIN(TOGETHER, slabs * s->pairs - first);
        add_up(j, s, first, count, sums);
        for (int64_t i = 0; i < count; i++) {
            int64_t slab = (first + i) / s->pairs, at = (first + i) % s->pairs * PAIR;
            put(j, place_of(j, s, slab, at), sums[i], (int)TERN__MIN(PAIR, s->all - at));
        }
    }
}

/* Positions of a turn's results in a slab: an image's last slab may have fewer sheets. */
static int64_t positions(const job *j, const turn *t, int64_t slab)
{
    int64_t sheets = TERN__MIN(j->deep, t->count[0] - slab % j->slabs * j->deep);
    if (sheets <= 0 || t->count[1] == 0 || t->count[2] == 0) return 0;
    return (sheets - 1) * j->p.sheet + (t->count[1] - 1) * j->p.axis[2].size + t->count[2];
}

/* Slabs first to last - 1: whole images, or one. */
static void group(const job *j, char *planes, int64_t first, int64_t last)
{
    for (int64_t n = first; n < last; n++)
        copy_slab(j, planes + (n - first) * j->slab, n / j->slabs, n % j->slabs * j->deep);
    for (int64_t channel = 0; channel < j->outs; channel += PAIR)
        for (int64_t t = 0; t < j->p.turns; t++) {
            stretch s = {.planes = planes, .first_slab = first, .channel = channel, .turn = &j->turns[t]};
            s.all = positions(j, s.turn, first);
            s.pairs = (s.all + PAIR - 1) / PAIR;
            if (s.all) pairs(j, &s, last - first);
        }
}

static int walk(const job *j)
{
    int64_t slabs = j->source->shape[0] * j->slabs, groups = (slabs + j->group - 1) / j->group;
    int threads = (int)TERN__MIN((int64_t)j->call->device->threads, groups);
    int64_t room = j->group * j->slab + j->slack;
    char *planes = tern__loop_scratch_of(j->call, PLANES, (size_t)(threads * room));
    if (!planes) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        char *mine = planes + t * room;
        memset(mine, 0, (size_t)room);
        tern__amx_open();
        for (int64_t g = groups * t / threads; g < groups * (t + 1) / threads; g++)
            group(j, mine, g * j->group, TERN__MIN(slabs, (g + 1) * j->group));
        tern__amx_close();
    }
    return TERN_OK;
}

/* ---- the plan ---- */

/* A step for each tap and block of channels. */
static void fill_taps(const job *j, int64_t t)
{
    turn *to = &j->turns[t];
    int64_t taps = j->p.taps, phase, shift;
    for (int64_t i = 0; i < taps * j->blocks; i++) {
        if (!tern__planes_tap(&j->p, t, i % taps, &phase, &shift)) continue;
        to->a_at[to->steps] = ((phase * j->blocks + i / taps) * j->plane + shift) * j->wide;
        to->b_at[to->steps++] = i * TERN__AMX_TILE;
    }
}

/* A tile of two taps for each 16 columns of `weight`; first = -1: zeros, and the second tap. */
static void put_together(const job *j, char *tiles, const char *weight, int64_t first, int64_t second)
{
    for (int64_t c = 0; c * ROWS < j->outs; c++) {
        char *to = tiles + c * j->column;
        const char *from = weight + c * j->p.taps * TERN__AMX_TILE;
        if (first < 0)
            memset(to, 0, HALF);
        else
            memcpy(to, from + first * TERN__AMX_TILE, HALF);
        memcpy(to + HALF, from + second * TERN__AMX_TILE, HALF);
    }
}

/* Two taps to a step: their shifts differ by one position. The last tap of an odd row goes with the one
 * before it once more, whose weights are 0 then. */
static void fill_pairs(const job *j, int64_t t, char *tiles, const char *weight)
{
    turn *to = &j->turns[t];
    int64_t width = j->p.axis[2].kernel, phase, shift;
    bool back = j->p.axis[2].gradient; /* there taps go from the last to the first */
    for (int64_t row = 0; row < j->p.taps; row += width)
        for (int64_t i = 0; i < width; i += 2) {
            int64_t at = TERN__MIN(i, width - 2);
            int64_t first = row + (back ? width - 1 - at : at), second = first + (back ? -1 : 1);
            if (!tern__planes_tap(&j->p, t, first, &phase, &shift)) break;
            to->a_at[to->steps] = (phase * j->plane + shift) * j->wide;
            to->b_at[to->steps] = (t * j->p.taps + to->steps) * TERN__AMX_TILE;
            put_together(j, tiles + to->b_at[to->steps++], weight, at < i ? -1 : first, second);
        }
}

static void fill_turn(const job *j, int64_t t, int64_t *at)
{
    const tern__planes *p = &j->p;
    turn *to = &j->turns[t];
    *to = (turn){.a_at = at, .b_at = at + p->taps * j->blocks};
    for (int64_t d = 2, rest = t; d >= 0; rest /= p->axis[d--].turns) {
        to->start[d] = rest % p->axis[d].turns;
        to->count[d] = tern__axis_positions(&p->axis[d], to->start[d]);
    }
}

/* Tiles of pairs, turns, their steps one behind the other, and the bias. */
static int fill(job *j, const tern__view *bias)
{
    int64_t turns = j->p.turns, steps = j->p.taps * j->blocks;
    int64_t columns = (j->outs + ROWS - 1) / ROWS * ROWS;
    bool pairs = j->wide < WIDE;
    if (pairs) j->column = turns * steps * TERN__AMX_TILE;
    size_t tile_bytes = pairs ? (size_t)(columns / ROWS * j->column) : 0;
    size_t turn_bytes = (size_t)turns * sizeof(turn);
    size_t step_bytes = (size_t)(2 * steps * turns) * sizeof(int64_t);
    size_t bytes = tile_bytes + turn_bytes + step_bytes + (size_t)columns * sizeof(float);
    char *tiles = tern__loop_scratch_of(j->call, STEPS, bytes), *room = tiles + tile_bytes;
    if (!tiles) return TERN_E_MEMORY;
    j->turns = (turn *)room;
    for (int64_t t = 0; t < turns; t++) {
        fill_turn(j, t, (int64_t *)(room + turn_bytes) + 2 * steps * t);
        if (pairs)
            fill_pairs(j, t, tiles, j->weight);
        else
            fill_taps(j, t);
    }
    if (pairs) j->weight = tiles;
    if (!bias) return TERN_OK;
    float *values = (float *)(room + turn_bytes + step_bytes);
    for (int64_t c = 0; c < columns; c++) values[c] = c < j->outs ? (float)tern__view_get(bias, c) : 0;
    j->bias = values;
    return TERN_OK;
}

/* Slabs that fit the cache, and at least one for each thread. */
static void cut(job *j)
{
    const tern__planes *p = &j->p;
    int64_t threads = j->call->device->threads, images = j->source->shape[0];
    int64_t sheet = p->phases * j->blocks * p->sheet * j->wide;
    int64_t least = (threads + images - 1) / images; /* slabs of an image */
    j->deep = TERN__MIN(CACHE / sheet - p->more, (p->most + least - 1) / least);
    j->deep = TERN__MAX(1, TERN__MIN(j->deep, p->most));
    j->slabs = (p->most + j->deep - 1) / j->deep;
    j->plane = (j->deep + p->more) * p->sheet;
    j->slab = (j->deep + p->more) * sheet;
    j->slack = (p->axis[2].size + PAIR) * WIDE;
    int64_t share = (images + threads - 1) / threads;
    j->group = j->slabs > 1 ? 1 : TERN__MAX(1, TERN__MIN(share, CACHE / j->slab));
}

int tern__amx_conv(const tern__call *call, const tern__view *x, const tern__view *y, const void *weight,
                   const tern__view *bias)
{
    bool gradient = call->kernel == TERN__CONV_DATA_GRAD;
    const tern__view *w = call->in[1];
    job j = {.call = call, .source = gradient ? y : x, .target = gradient ? x : y, .weight = weight};
    tern__unfold unfold;
    if (!gradient && tern__amx_unfolds(x, w)) {
        unfold = tern__unfold_of(call->attr, x, y, w);
        j.unfold = &unfold;
        j.p = tern__unfold_planes(y);
        j.blocks = 1;
    } else {
        j.p = tern__planes_of(call->attr, x, y, w, gradient);
        j.blocks = (j.source->shape[1] + 31) / 32;
    }
    const tern__axis *columns = &j.p.axis[2];
    bool neighbours = columns->stride == 1 && columns->dilation == 1 && columns->kernel > 1;
    j.wide = neighbours && j.source->shape[1] <= ROWS ? WIDE / 2 : WIDE;
    j.outs = j.target->shape[1];
    j.column = j.p.taps * j.blocks * TERN__AMX_TILE;
    cut(&j);
    int status = fill(&j, bias);
    return status ? status : walk(&j);
}
