/* amx_conv.c - convolutions as products of tiles, without unfolding the input.
 *
 * What is multiplied (the source: x, or dy in a data gradient) is copied into planes with the padding around
 * it, so that a tap of the kernel sees the whole plane shifted. With a stride of s, a forward deals the rows
 * of x to s planes (phases), of which each tap sees one; a data gradient computes the rows of dx in s turns,
 * each with taps of its own. So positions are always neighbours: a tile takes 16 of them as they follow each
 * other in the plane, row after row. The places between the end of one row of results and the beginning of
 * the next are computed too, and left out of the result.
 *
 * A plane has 32 channels of a position side by side, a row of a tile; sums go over taps and channels. As
 * many images are copied at a time as the second-level cache holds, so that weights are read once for all of
 * them. */
#include "kernels/cpu/amx_conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_planes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define ROWS     TERN__AMX_ROWS
#define PAIR     (2 * ROWS)            /* positions, or columns, of a block     */
#define WIDE     (2 * TERN__AMX_DEPTH) /* bytes of a position in a plane        */
#define TOGETHER 4
#define FEW      18
#define CACHE    (1 << 20) /* of images that are copied at a time   */

/* Scratch buffers; conv.c has the one between them. */
enum { PLANES = TERN__SCRATCH_OPERAND, STEPS = TERN__SCRATCH_OPERAND + 2 };

/* What a turn adds up: the steps' places in an image's planes and in the weights of 16 columns. */
typedef struct turn {
    int64_t start[2], count[2]; /* its first row and column of the target, and how many */
    int64_t steps, *a_at, *b_at;
} turn;

typedef struct job {
    const tern__call *call;
    const tern__view *source, *target;
    tern__axis axis[2];
    int64_t blocks, outs; /* of 32 channels of the source; channels of the target */
    int64_t plane, image; /* positions of a plane; bytes of an image's planes      */
    int64_t group, slack; /* images copied together; bytes read behind the last one */
    int64_t column;       /* bytes of 16 columns of weights                        */
    const char *weight;
    const float *bias; /* NULL: none */
    turn *turns;
} job;

/* ---- copies of the source ---- */

/* Of 16 channels of a block at one source row; `to` is position 0 of the plane's row. */
static void copy_row(const job *j, char *to, const uint16_t *from, int64_t phase)
{
    const tern__axis *a = &j->axis[1];
    for (int64_t i = 0; i < a->size; i++) {
        int64_t at = tern__axis_source(a, phase, i);
        if (at >= 0) memcpy(to + i * WIDE, from + at * ROWS, ROWS * sizeof(*from));
    }
}

static void copy_plain_row(const job *j, char *to, const uint16_t *from, int64_t phase)
{
    const tern__axis *a = &j->axis[1];
    for (int64_t i = 0; i < a->size; i++) {
        int64_t at = tern__axis_source(a, phase, i);
        if (at >= 0) memcpy(to + i * WIDE, from + at, sizeof(*from));
    }
}

/* Channels first to first + count - 1, which stand together, of image n. */
static void copy_channels(const job *j, char *planes, int64_t n, int64_t first, int64_t count)
{
    const tern__axis *rows = &j->axis[0], *columns = &j->axis[1];
    int64_t area = rows->source * columns->source;
    const uint16_t *from = (const uint16_t *)j->source->data + (n * j->source->shape[1] + first) * area;
    for (int64_t p = 0; p < rows->step * columns->step; p++) {
        char *to = planes + (p * j->blocks + first / 32) * j->plane * WIDE + first % 32 * 2;
        for (int64_t i = 0; i < rows->size; i++) {
            int64_t at = tern__axis_source(rows, p / columns->step, i);
            if (at < 0) continue;
            (count == 1 ? copy_plain_row : copy_row)(j, to + i * columns->size * WIDE,
                                                     from + at * columns->source * count, p % columns->step);
        }
    }
}

static void copy_image(const job *j, char *planes, int64_t n)
{
    int64_t together = j->source->layout == TERN__BLOCKED16 ? ROWS : 1;
    for (int64_t c = 0; c < j->source->shape[1]; c += together) copy_channels(j, planes, n, c, together);
}

/* ---- results ---- */

/* A block's place: its image, turn, first position and first channel. */
typedef struct place {
    int64_t image, row, column, channel;
    const turn *turn;
} place;

/* 16 channels of one position: `lanes` of them are the target's. */
TERN__INLINE void put_lanes(const job *j, const place *b, int64_t row, int64_t column, int64_t channel,
                            const float *sums, int lanes)
{
    const tern__view *y = j->target;
    const tern__axis *rows = &j->axis[0], *columns = &j->axis[1];
    int64_t at = (b->turn->start[0] + row * rows->turns) * columns->target + b->turn->start[1] +
                 column * columns->turns;
    int64_t area = rows->target * columns->target;
    tern__lanes v = tern__lanes_load(sums, ROWS);
    bool add = j->call->add[0];
    if (j->bias) v += tern__lanes_load(j->bias + channel, ROWS);
    if (y->layout == TERN__BLOCKED16) {
        tern__lanes_set(y->data, TERN_BF16, ((b->image * j->outs + channel) * area) + at * ROWS, v, ROWS,
                        add);
        return;
    }
    for (int l = 0; l < lanes; l++) {
        tern__lanes one = {v[l]};
        tern__lanes_set(y->data, TERN_BF16, (b->image * j->outs + channel + l) * area + at, one, 1, add);
    }
}

TERN__SIMD static void put(const job *j, const place *b, const float *sums, int rows)
{
    int64_t row = b->row, column = b->column;
    for (int r = 0; r < rows && row < b->turn->count[0]; r++) {
        for (int c = 0; c < 2 && column < b->turn->count[1]; c++) {
            int64_t channel = b->channel + c * ROWS, lanes = TERN__MIN(ROWS, j->outs - channel);
            if (lanes > 0)
                put_lanes(j, b, row, column, channel, sums + ((r / ROWS * 2 + c) * ROWS + r % ROWS) * ROWS,
                          (int)lanes);
        }
        if (++column < j->axis[1].size) continue;
        column = 0;
        row++;
    }
}

/* ---- the walk ---- */

/* A turn in a group of images: pairs of 16 positions, numbered through all of them. */
typedef struct stretch {
    const char *planes;
    int64_t first_image, channel, all, pairs; /* positions of an image, and how many pairs they make */
    const turn *turn;
} stretch;

/* The sums of some pairs, a few steps at a time, so that the weights of these steps are read from the
 * first-level cache by all of them. */
static void add_up(const job *j, const stretch *s, int64_t first, int64_t count,
                   float sums[TOGETHER][TERN__AMX_SUMS])
{
    const turn *t = s->turn;
    tern__amx_operands o = {.b = j->weight + s->channel / ROWS * j->column,
                            .a_row = WIDE,
                            .b_next = s->channel + ROWS < j->outs ? j->column : 0};
    for (int64_t step = 0; step == 0 || step < t->steps; step += FEW) {
        o.a_at = t->a_at + step;
        o.b_at = t->b_at + step;
        o.steps = TERN__MIN(FEW, t->steps - step);
        o.more = step > 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t image = (first + i) / s->pairs, at = (first + i) % s->pairs * PAIR;
            o.a = s->planes + image * j->image + at * WIDE;
            o.a_next = at + ROWS < s->all ? ROWS * WIDE : 0;
            tern__amx_block(&o, sums[i]);
        }
    }
}

static void pairs(const job *j, const stretch *s, int64_t images)
{
    float sums[TOGETHER][TERN__AMX_SUMS] __attribute__((aligned(64)));
    int64_t width = j->axis[1].size;
    for (int64_t first = 0; first < images * s->pairs; first += TOGETHER) {
        int64_t count = TERN__MIN(TOGETHER, images * s->pairs - first);
        add_up(j, s, first, count, sums);
        for (int64_t i = 0; i < count; i++) {
            int64_t image = (first + i) / s->pairs, at = (first + i) % s->pairs * PAIR;
            place b = {s->first_image + image, at / width, at % width, s->channel, s->turn};
            put(j, &b, sums[i], (int)TERN__MIN(PAIR, s->all - at));
        }
    }
}

static void group(const job *j, char *planes, int64_t first, int64_t last)
{
    for (int64_t n = first; n < last; n++) copy_image(j, planes + (n - first) * j->image, n);
    for (int64_t channel = 0; channel < j->outs; channel += PAIR)
        for (int64_t t = 0; t < j->axis[0].turns * j->axis[1].turns; t++) {
            stretch s = {.planes = planes, .first_image = first, .channel = channel, .turn = &j->turns[t]};
            if (s.turn->count[0] == 0 || s.turn->count[1] == 0) continue;
            s.all = (s.turn->count[0] - 1) * j->axis[1].size + s.turn->count[1];
            s.pairs = (s.all + PAIR - 1) / PAIR;
            pairs(j, &s, last - first);
        }
}

static int walk(const job *j)
{
    int64_t images = j->source->shape[0], groups = (images + j->group - 1) / j->group;
    int threads = (int)TERN__MIN((int64_t)j->call->device->threads, groups);
    int64_t room = j->group * j->image + j->slack;
    char *planes = tern__loop_scratch_of(j->call, PLANES, (size_t)(threads * room));
    if (!planes) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        char *mine = planes + t * room;
        memset(mine, 0, (size_t)room);
        tern__amx_open();
        for (int64_t g = groups * t / threads; g < groups * (t + 1) / threads; g++)
            group(j, mine, g * j->group, TERN__MIN(images, (g + 1) * j->group));
        tern__amx_close();
    }
    return TERN_OK;
}

/* ---- the plan ---- */

/* The steps of turn t behind those of the turns before it. */
static void fill_turn(const job *j, int64_t t, int64_t *at, const int64_t kernel[2])
{
    const tern__axis *rows = &j->axis[0], *columns = &j->axis[1];
    turn *to = &j->turns[t];
    int64_t taps = kernel[0] * kernel[1], all = taps * j->blocks, phase[2], shift[2];
    *to = (turn){.start = {t / columns->turns, t % columns->turns}, .a_at = at, .b_at = at + all};
    for (int d = 0; d < 2; d++) to->count[d] = tern__axis_positions(&j->axis[d], to->start[d]);
    for (int64_t i = 0; i < all; i++) {
        int64_t b = i / taps, k = i % taps;
        if (!tern__axis_tap(rows, to->start[0], k / kernel[1], &phase[0], &shift[0]) ||
            !tern__axis_tap(columns, to->start[1], k % kernel[1], &phase[1], &shift[1]))
            continue;
        int64_t plane = (phase[0] * columns->step + phase[1]) * j->blocks + b;
        to->a_at[to->steps] = (plane * j->plane + shift[0] * columns->size + shift[1]) * WIDE;
        to->b_at[to->steps++] = i * TERN__AMX_TILE;
    }
}

static int fill(job *j, const int64_t kernel[2], const tern__view *bias)
{
    int64_t turns = j->axis[0].turns * j->axis[1].turns, steps = kernel[0] * kernel[1] * j->blocks;
    int64_t columns = (j->outs + ROWS - 1) / ROWS * ROWS;
    size_t turn_bytes = (size_t)turns * sizeof(turn),
           step_bytes = (size_t)(2 * steps * turns) * sizeof(int64_t);
    char *room =
        tern__loop_scratch_of(j->call, STEPS, turn_bytes + step_bytes + (size_t)columns * sizeof(float));
    if (!room) return TERN_E_MEMORY;
    j->turns = (turn *)room;
    for (int64_t t = 0; t < turns; t++)
        fill_turn(j, t, (int64_t *)(room + turn_bytes) + 2 * steps * t, kernel);
    if (!bias) return TERN_OK;
    float *values = (float *)(room + turn_bytes + step_bytes);
    for (int64_t c = 0; c < columns; c++) values[c] = c < j->outs ? (float)tern__view_get(bias, c) : 0;
    j->bias = values;
    return TERN_OK;
}

int tern__amx_conv(const tern__call *call, const tern__view *x, const tern__view *y, const void *weight,
                   const tern__view *bias)
{
    bool gradient = call->kernel == TERN__CONV_DATA_GRAD;
    const int64_t *kernel = call->in[1]->shape + 2;
    job j = {.call = call, .source = gradient ? y : x, .target = gradient ? x : y, .weight = weight};
    for (int d = 0; d < 2; d++) j.axis[d] = tern__axis_of(call->attr, d, x, y, kernel[d], gradient);
    j.blocks = (j.source->shape[1] + 31) / 32;
    j.outs = j.target->shape[1];
    j.plane = j.axis[0].size * j.axis[1].size;
    j.image = j.axis[0].step * j.axis[1].step * j.blocks * j.plane * WIDE;
    j.slack = (j.axis[1].size + PAIR) * WIDE;
    int64_t share = (j.source->shape[0] + call->device->threads - 1) / call->device->threads;
    j.group = TERN__MAX(1, TERN__MIN(share, CACHE / j.image));
    j.column = kernel[0] * kernel[1] * j.blocks * TERN__AMX_TILE;
    int status = fill(&j, kernel, bias);
    return status ? status : walk(&j);
}
