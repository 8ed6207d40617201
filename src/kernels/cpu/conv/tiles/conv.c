/* conv.c - convolutions as products of tiles, without unfolding the input (except for few channels:
 * tiles/unfold.h).
 *
 * The source is copied into planes in which every tap of the kernel is a shift (tiles/slab.h). A tile
 * takes 16 places that are adjacent in a row of results or, if that gives fewer tiles, adjacent over all
 * rows: then what lies between the end of one row of results and the beginning of the next is computed as
 * well and discarded.
 *
 * As many slabs are copied at a time as fit into the second-level cache, so that weights are read once for
 * all of them. bf16 is summed in f32. f32 is multiplied as two parts of bf16 each (amx.h), with an error
 * of about 4e-6 of the results' root mean square. Results of which this does not hold are computed by the
 * definition (tiles/windows.h): those of large weights, and those that see a large value of the source. */
#include "kernels/cpu/conv/tiles/conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/slab.h"
#include "kernels/cpu/conv/tiles/target.h"
#include "kernels/cpu/conv/tiles/windows.h"
#include "kernels/cpu/loops.h"

#include <math.h>

#define ROWS     TERN__AMX_ROWS
#define PAIR     (2 * ROWS)           /* columns of a block */
#define WIDE     TERN__AMX_WIDE       /* bytes of a row of a tile        */
#define HALF     (TERN__AMX_TILE / 2) /* bytes of 16 channels' weights */
#define TOGETHER 4                    /* blocks                          */
#define FEW      18                   /* tiles of 16 columns at a time */
#define CACHE    (1 << 20)            /* bytes that are copied at a time */

/* Scratch buffers; operands.c uses the one between them. */
enum { PLANES = TERN__SCRATCH_OPERAND, STEPS = TERN__SCRATCH_OPERAND + 2 };

/* The steps that a turn adds up: their places in a slab's planes and in the weights of 16 columns. */
typedef struct turn {
    int64_t start[3], count[3]; /* first sheet, row and column of the target, and how many */
    int64_t steps, *a_at, *b_at;
} turn;

typedef struct job {
    const tern__call *call;
    tern__slabs s;
    tern__target target;
    const tern__amx_weight *w;
    tern__windows windows;
    const bool *large; /* for each 16 columns: whether they may have large floats */
    int64_t outs;      /* channels of the target */
    int64_t group;     /* slabs copied together                        */
    int64_t slack;     /* bytes read beyond the last */
    int64_t column;    /* bytes of 16 columns of weights               */
    int64_t few;       /* steps at a time                              */
    bool by_rows;      /* a line of tiles is a row of results, else all results */
    const char *weight;
    turn *turns;
} job;

/* ---- the loops ---- */

/* A turn in a group of slabs, for 32 columns. Its tiles are numbered through all slabs. */
typedef struct stretch {
    const char *planes;
    int64_t first_slab, channel;
    int64_t line, sheets, tiles; /* places of a line; sheets of a slab with lines; tiles of a slab */
    bool large;                  /* one of the slabs has large values */
    const turn *turn;
} stretch;

typedef struct tile {
    int64_t at; /* offset in bytes from the first plane */
    int rows;   /* rows that are results, or between them */
    tern__place place;
} tile;

/* The place at which the next tile begins. */
typedef struct cursor {
    int64_t slab, sheet, row, in_line;
} cursor;

static tile tile_at(const job *j, const stretch *s, const cursor *c)
{
    const tern__slabs *slabs = &j->s;
    int64_t n = s->first_slab + c->slab;
    tile t = {
        .at = c->slab * slabs->bytes + (c->sheet * slabs->p.axis[1].size + c->row) * slabs->row +
              c->in_line * slabs->wide,
        .rows = (int)TERN__MIN(ROWS, s->line - c->in_line),
        .place = {
            .bunch = n, .sheet = c->sheet, .row = c->row, .start = s->turn->start, .count = s->turn->count}};
    if (slabs->each > 1) {
        t.place.bunch /= slabs->each;
        t.place.sheet += n % slabs->each * slabs->deep;
    }
    t.place.bunch *= slabs->together;
    tern__place_step(slabs, &t.place, c->in_line);
    return t;
}

static void tiles_advance(const job *j, const stretch *s, cursor *c)
{
    c->in_line += ROWS;
    if (c->in_line < s->line) return;
    c->in_line = 0;
    if (j->by_rows && ++c->row < s->turn->count[1]) return;
    c->row = 0;
    if (++c->sheet < s->sheets) return;
    c->sheet = 0;
    c->slab++;
}

/* Adds up some pairs of tiles, a few steps at a time, so that all of them read these steps' weights from
 * the first-level cache. */
static void tiles_add_up(const job *j, const stretch *s, const tile *tiles, int64_t count,
                         float sums[TOGETHER][TERN__AMX_SUMS])
{
    const turn *t = s->turn;
    tern__amx_operands o = {.b = j->weight + s->channel / ROWS * j->column,
                            .a_row = j->s.wide,
                            .a_low = j->s.low,
                            .b_low = j->s.low ? TERN__AMX_TILE : 0,
                            .b_next = s->channel + ROWS < j->outs ? j->column : 0};
    for (int64_t step = 0; step == 0 || step < t->steps; step += j->few) {
        o.a_at = t->a_at + step;
        o.b_at = t->b_at + step;
        o.steps = TERN__MIN(j->few, t->steps - step);
        o.more = step > 0;
        for (int64_t i = 0; i < count; i += 2) {
            o.a = s->planes + tiles[i].at;
            o.a_next = i + 1 < count ? tiles[i + 1].at - tiles[i].at : 0;
            tern__amx_block(&o, sums[i / 2]);
        }
    }
}

/* Finds large weights. Those of bf16 matter only if they are not finite. Then no sum is, at whichever place;
 * so it is enough to look at one, and to look for the weights if it is not finite. */
static void find_large(const job *j, const stretch *s, const float *sums, bool large[2])
{
    for (int c = 0; c < 2 && s->channel + c * ROWS < j->outs; c++) {
        int64_t column = s->channel + c * ROWS;
        bool finite = true;
        for (int i = 0; i < ROWS && !j->s.low; i++) finite = finite && isfinite(sums[c * ROWS * ROWS + i]);
        large[c] =
            j->large[column / ROWS] || (!finite && !tern__windows_weight_is_finite(&j->windows, column));
    }
}

/* Replaces what tiles do not compute right. */
static void correct(const job *j, const stretch *s, const tile *t, const bool large[2], float *sums)
{
    for (int c = 0; c < 2; c++, sums += ROWS * ROWS)
        if (large[c] || (s->large && s->channel + c * ROWS < j->outs))
            tern__windows_sum(&j->windows, &j->target, t->place, t->rows, s->channel + c * ROWS, large[c],
                              sums);
}

static void tiles(const job *j, const stretch *s, int64_t all)
{
    bool large[2] = {false, false};
    float sums[TOGETHER][TERN__AMX_SUMS] __attribute__((aligned(64)));
    tile some[2 * TOGETHER];
    cursor c = {0};
    for (int64_t first = 0; first < all; first += 2 * TOGETHER) {
        int64_t count = TERN__MIN(2 * TOGETHER, all - first);
        for (int64_t i = 0; i < count; i++, tiles_advance(j, s, &c)) some[i] = tile_at(j, s, &c);
        tiles_add_up(j, s, some, count, sums);
        if (first == 0) find_large(j, s, sums[0], large);
        for (int64_t i = 0; i < count && (s->large || large[0] || large[1]); i++)
            correct(j, s, &some[i], large, sums[i / 2] + i % 2 * 2 * ROWS * ROWS);
        for (int64_t i = 0; i < count; i++)
            tern__target_put(&j->target, some[i].place, s->channel, sums[i / 2] + i % 2 * 2 * ROWS * ROWS,
                             some[i].rows);
    }
}

/* Sets the lines of a turn in slabs like `slab`: an image's last slab may have fewer sheets. */
static void tiles_measure(const job *j, stretch *s, int64_t slab)
{
    const tern__slabs *slabs = &j->s;
    const int64_t *count = s->turn->count;
    int64_t sheets = TERN__MIN(slabs->deep, count[0] - slab % slabs->each * slabs->deep);
    s->line = count[2] * slabs->together;
    if (sheets <= 0 || count[1] == 0 || s->line == 0) return;
    s->sheets = j->by_rows ? sheets : 1;
    if (!j->by_rows)
        s->line +=
            ((sheets - 1) * slabs->p.axis[1].size + count[1] - 1) * slabs->p.axis[2].size * slabs->together;
    s->tiles = (s->line + ROWS - 1) / ROWS * (j->by_rows ? sheets * count[1] : 1);
}

/* Computes slabs first .. last - 1: whole images, or a single slab. */
static void group(const job *j, char *planes, int64_t first, int64_t last)
{
    bool large = false;
    for (int64_t n = first; n < last; n++)
        large = tern__slab_copy(&j->s, n, planes + (n - first) * j->s.bytes) || large;
    for (int64_t channel = 0; channel < j->outs; channel += PAIR)
        for (int64_t t = 0; t < j->s.p.turns; t++) {
            stretch s = {.planes = planes,
                         .first_slab = first,
                         .channel = channel,
                         .large = large,
                         .turn = &j->turns[t]};
            tiles_measure(j, &s, first);
            if (s.tiles) tiles(j, &s, (last - first) * s.tiles);
        }
}

static int64_t bunches_of(const job *j)
{
    return (j->s.source->shape[0] + j->s.together - 1) / j->s.together;
}

static int tiles_walk(const job *j)
{
    int64_t slabs = bunches_of(j) * j->s.each, groups = (slabs + j->group - 1) / j->group;
    int threads = (int)TERN__MIN((int64_t)j->call->device->threads, groups);
    int64_t room = j->group * j->s.bytes + j->slack;
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

/* Makes a step for each tap and block of channels. */
static void fill_taps(const job *j, turn *to, int64_t t)
{
    const tern__slabs *s = &j->s;
    int64_t taps = j->w->taps, phase, shift;
    for (int64_t i = 0; i < s->blocks * taps; i++) {
        if (!tern__planes_tap(&s->p, t, i % taps, &phase, &shift)) continue;
        to->a_at[to->steps] = (phase * s->blocks + i / taps) * s->plane + shift * s->together * s->wide;
        to->b_at[to->steps++] = i * j->w->tile;
    }
}

/* Halves bf16 weights; the least ones, whose halves the tile unit takes for 0, become 0. */
static void halve(char *weights)
{
    uint16_t w[HALF / 2];
    memcpy(w, weights, sizeof(w));
    for (int i = 0; i < HALF / 2; i++) {
        int exponent = w[i] >> 7 & 0xff;
        if (exponent < 0xff) w[i] = (uint16_t)(exponent > 1 ? w[i] - 0x80 : w[i] & 0x8000);
    }
    memcpy(weights, w, sizeof(w));
}

/* Combines two taps of 16 channels each into a tile. again: the previous tile has the first tap, too, so
 * both have a half of its weights. In f32 this tile has zeros instead: windows with infinities are computed
 * by the definition there. */
static void put_together(const job *j, char *tiles, int64_t first, int64_t second, bool again)
{
    int64_t bytes = j->w->tile;
    for (int64_t c = 0; c * ROWS < j->outs; c++)
        for (int64_t part = 0; part < bytes; part += TERN__AMX_TILE) {
            char *to = tiles + c * j->column + part;
            const char *from = j->weight + c * j->w->taps * bytes + part;
            memcpy(to, from + first * bytes, HALF);
            memcpy(to + HALF, from + second * bytes, HALF);
            if (again && j->s.low) memset(to, 0, HALF);
            if (again && !j->s.low) {
                halve(to);
                halve(to - bytes + HALF);
            }
        }
}

/* Makes a step for every two taps, whose shifts differ by one position. The last tap of an odd row is
 * paired with the one before, which the previous step has as well. */
static void fill_pairs(const job *j, turn *to, int64_t t, char *tiles)
{
    const tern__slabs *s = &j->s;
    int64_t width = s->p.axis[2].kernel, phase, shift;
    bool back = s->p.axis[2].gradient; /* there taps go from the last to the first */
    for (int64_t row = 0; row < j->w->taps; row += width)
        for (int64_t i = 0; i < width; i += 2) {
            int64_t at = TERN__MIN(i, width - 2);
            int64_t first = row + (back ? width - 1 - at : at), second = first + (back ? -1 : 1);
            if (!tern__planes_tap(&s->p, t, first, &phase, &shift)) break;
            to->a_at[to->steps] = phase * s->plane + shift * s->wide;
            to->b_at[to->steps] = (t * j->w->taps + to->steps) * j->w->tile;
            put_together(j, tiles + to->b_at[to->steps++], first, second, at < i);
        }
}

static void fill_turn(const job *j, int64_t t, char *tiles)
{
    const tern__tile_planes *p = &j->s.p;
    turn *to = &j->turns[t];
    for (int64_t d = 2, rest = t; d >= 0; rest /= p->axis[d--].turns) {
        to->start[d] = rest % p->axis[d].turns;
        to->count[d] = tern__axis_positions(&p->axis[d], to->start[d]);
    }
    if (tiles)
        fill_pairs(j, to, t, tiles);
    else
        fill_taps(j, to, t);
}

/* Fills in tiles of pairs, turns with their steps in sequence, and the bias. */
static int tiles_fill(job *j, const tern__view *bias)
{
    int64_t turns = j->s.p.turns, steps = j->w->taps * j->s.blocks;
    int64_t columns = (j->outs + ROWS - 1) / ROWS * ROWS;
    bool pairs = j->s.wide < WIDE;
    if (pairs) j->column = turns * steps * j->w->tile;
    size_t tile_bytes = pairs ? (size_t)(columns / ROWS * j->column) : 0;
    size_t turn_bytes = (size_t)turns * sizeof(turn);
    size_t step_bytes = (size_t)(2 * steps * turns) * sizeof(int64_t);
    size_t bytes = tile_bytes + turn_bytes + step_bytes + (size_t)columns * sizeof(float);
    char *tiles = tern__loop_scratch_of(j->call, STEPS, bytes), *room = tiles + tile_bytes;
    if (!tiles) return TERN_E_MEMORY;
    j->turns = (turn *)room;
    int64_t *at = (int64_t *)(room + turn_bytes);
    for (int64_t t = 0; t < turns; t++, at += 2 * steps) {
        j->turns[t] = (turn){.a_at = at, .b_at = at + steps};
        fill_turn(j, t, pairs ? tiles : NULL);
    }
    if (pairs) j->weight = tiles;
    if (!bias) return TERN_OK;
    float *values = (float *)at;
    for (int64_t c = 0; c < columns; c++) values[c] = c < j->outs ? (float)tern__view_get(bias, c) : 0;
    j->target.bias = values;
    return TERN_OK;
}

/* Sets the sizes of slabs with `deep` sheets and bunches of `together` images. */
static void size_up(tern__slabs *s, int64_t together, int64_t deep, int parts)
{
    const tern__tile_planes *p = &s->p;
    s->together = together;
    s->deep = TERN__MAX(1, TERN__MIN(deep, p->most));
    s->each = (p->most + s->deep - 1) / s->deep;
    s->row = p->axis[2].size * together * s->wide;
    s->plane = (s->deep + p->more) * p->axis[1].size * s->row;
    s->low = parts > 1 ? p->phases * s->blocks * s->plane : 0;
    s->bytes = parts * p->phases * s->blocks * s->plane;
}

/* The number of tiles of a bunch's first turn, by rows or over all rows. */
static int64_t tiles_of(const tern__slabs *s, bool by_rows)
{
    const tern__axis *a = s->p.axis;
    int64_t rows = tern__axis_positions(&a[1], 0), line = tern__axis_positions(&a[2], 0) * s->together;
    if (by_rows) return s->p.most * rows * ((line + ROWS - 1) / ROWS);
    return (((s->p.most - 1) * a[1].size + rows - 1) * a[2].size * s->together + line + ROWS - 1) / ROWS;
}

/* Chooses slabs that fit into the cache, at least one per thread. For small images chooses the bunch with
 * the fewest tiles if that saves at least a sixth, since its results are scattered. */
static void tiles_cut(job *j)
{
    tern__slabs *s = &j->s;
    int64_t threads = j->call->device->threads, images = s->source->shape[0];
    int64_t share = (images + threads - 1) / threads;
    int parts = s->source->dtype == TERN_F32 ? 2 : 1;
    bool single = s->unfold || s->wide < WIDE || s->source->layout == TERN__PLAIN ||
                  j->target.view->layout == TERN__PLAIN;
    int64_t best = 1, least = INT64_MAX;
    for (int64_t together = 1; together <= ROWS && together <= share; together *= 2) {
        size_up(s, together, s->p.most, parts);
        if (together > 1 && (single || s->bytes > CACHE)) break;
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            int64_t count = tiles_of(s, by_rows) * (ROWS / together) * (together > 1 ? 7 : 6);
            if (count > least || (count == least && together > best)) continue;
            least = count;
            best = together;
            j->by_rows = by_rows;
        }
    }
    size_up(s, best, s->p.most, parts);
    int64_t sheet = s->bytes / (s->deep + s->p.more), each = (threads + images - 1) / images;
    size_up(s, best, TERN__MIN(CACHE / sheet - s->p.more, (s->p.most + each - 1) / each), parts);
    share = (share + best - 1) / best;
    j->group = s->each > 1 ? 1 : TERN__MAX(1, TERN__MIN(share, CACHE / s->bytes));
    j->slack = (s->p.axis[2].size * best + PAIR) * WIDE;
}

int tern__amx_conv(const tern__call *call, const tern__view *x, const tern__view *y,
                   const tern__amx_weight *weight, const void *tiles, const tern__view *bias)
{
    bool gradient = call->kernel == TERN__CONV_DATA_GRAD;
    const tern__view *w = call->in[1];
    job j = {.call = call,
             .s = {.source = gradient ? y : x, .blocks = (weight->depth + 31) / 32},
             .target = {.view = gradient ? x : y, .add = call->add[0]},
             .w = weight,
             .large = tern__amx_weight_large(weight, tiles),
             .weight = tiles,
             .outs = weight->columns,
             .column = (weight->depth + 31) / 32 * weight->taps * weight->tile,
             .few = FEW * TERN__AMX_TILE / weight->tile};
    j.windows = (tern__windows){.source = j.s.source, .w = w, .offset = weight->offset};
    for (int d = 0; d < 3; d++) j.windows.axis[d] = tern__axis_of(call->attr, d, x, y, w, gradient);
    tern__unfold unfold;
    if (!gradient && tern__amx_unfolds(x, w)) {
        unfold = tern__unfold_of(call->attr, x, y, w);
        j.s.unfold = &unfold;
        j.s.p = tern__unfold_planes(y);
    } else {
        j.s.p = tern__planes_of(call->attr, x, y, w, gradient);
    }
    const tern__axis *a = j.s.p.axis;
    bool neighbours = a[2].stride == 1 && a[2].dilation == 1 && a[2].kernel > 1;
    j.s.wide = neighbours && weight->depth <= ROWS ? WIDE / 2 : WIDE;
    j.target.slabs = &j.s;
    tiles_cut(&j);
    int status = tiles_fill(&j, bias);
    return status ? status : tiles_walk(&j);
}
