/* target.c - writes sums of tiles to the target. */
#include "kernels/cpu/conv/tiles/target.h"
#include "kernels/cpu/lanes.h"

#define ROWS TERN__AMX_ROWS
#define PAIR (2 * ROWS)

/* The number of positions of a channel. */
TERN__INLINE int64_t size_of(const tern__target *t)
{
    const tern__axis *a = t->slabs->p.axis;
    return a[0].target * a[1].target * a[2].target;
}

/* Places that are evenly spaced in the target: images of one position, or, with single images, positions
 * of a row. */
typedef struct run {
    int64_t places, results; /* how many, and how many of them are results */
    int64_t at, apart;       /* offset of the first, and distance, in elements */
} run;

/* The next run among `left` places; channels are `width` per element. */
TERN__INLINE run run_of(const tern__target *t, const tern__place *p, int64_t left, int64_t channel,
                        int64_t width)
{
    const tern__axis *a = t->slabs->p.axis;
    const int64_t *start = p->start, *count = p->count;
    bool has = p->row < count[1] && p->column < count[2], single = t->slabs->together == 1;
    int64_t size = size_of(t), image = p->bunch + p->image, all;
    int64_t sheet = start[0] + p->sheet * a[0].turns, row = start[1] + p->row * a[1].turns;
    int64_t at = (sheet * a[1].target + row) * a[2].target + start[2] + p->column * a[2].turns;
    run r = {.at = (image * t->view->shape[1] + channel) * size + at * width,
             .apart = single ? a[2].turns * width : t->view->shape[1] * size};
    if (single)
        all = (has ? count[2] : a[2].size) - p->column;
    else
        all = t->slabs->together - p->image;
    r.places = r.results = TERN__MIN(left, all);
    if (!single) r.results = TERN__MAX(0, TERN__MIN(r.places, t->view->shape[0] - image));
    if (!has) r.results = 0;
    return r;
}

/* Writes n results of 16 channels from element `at` on. */
TERN__INLINE void put_run(const tern__target *t, int64_t channel, int64_t at, int64_t apart,
                          const float *sums, int64_t n, tern_dtype dtype)
{
    tern__lanes bias = {0};
    if (t->bias) bias = tern__lanes_load(t->bias + channel, ROWS);
    for (int64_t i = 0; i < n; i++) {
        tern__lanes v = tern__lanes_load(sums + i * ROWS, ROWS) + bias;
        tern__lanes_set(t->view->data, dtype, at + i * apart, v, ROWS, t->add);
    }
}

/* Writes a tile, and the one of the next 16 columns. */
TERN__AMX_SIMD static void put_blocked(const tern__target *t, tern__place p, int64_t channel,
                                       const float *sums, int rows)
{
    int64_t size = size_of(t), last = TERN__MIN(channel + PAIR, t->view->shape[1]);
    for (int64_t i = 0; i < rows;) {
        run r = run_of(t, &p, rows - i, channel, ROWS);
        for (int64_t c = channel; c < last; c += ROWS, r.at += ROWS * size) {
            const float *from = sums + ((c - channel) * ROWS + i * ROWS);
            if (t->view->dtype == TERN_F32)
                put_run(t, c, r.at, r.apart, from, r.results, TERN_F32);
            else
                put_run(t, c, r.at, r.apart, from, r.results, TERN_BF16);
        }
        tern__place_step(t->slabs, &p, r.places);
        i += r.places;
    }
}

/* Writes values of neighbouring positions. */
TERN__INLINE void put_values(const tern__target *t, int64_t at, int64_t apart, tern__lanes v, int64_t n)
{
    if (apart == 1 && n == ROWS) {
        tern__lanes_set(t->view->data, t->view->dtype, at, v, ROWS, t->add);
        return;
    }
    for (int64_t l = 0; l < n; l++) {
        tern__lanes one = {v[l]};
        tern__lanes_set(t->view->data, t->view->dtype, at + l * apart, one, 1, t->add);
    }
}

TERN__DEFINE_TURN(turn_words, tern__words)

/* Writes channel by channel, as far as positions are adjacent in the target. */
TERN__AMX_SIMD static void put_plain(const tern__target *t, tern__place p, int64_t channel, const float *sums,
                                     int rows)
{
    int64_t lanes = TERN__MIN(ROWS, t->view->shape[1] - channel), size = size_of(t);
    tern__words v[ROWS];
    memcpy(v, sums, sizeof(v));
    turn_words(v);
    for (int64_t i = 0; i < rows;) {
        run r = run_of(t, &p, rows - i, channel, 1);
        for (int64_t c = 0; c < lanes && r.results; c++) {
            tern__lanes sum = tern__lanes_load((const float *)&v[c] + i, (int)r.results);
            if (t->bias) sum += t->bias[channel + c];
            put_values(t, r.at + c * size, r.apart, sum, r.results);
        }
        tern__place_step(t->slabs, &p, r.places);
        i += r.places;
    }
}

void tern__target_put(const tern__target *t, tern__place p, int64_t channel, const float *sums, int rows)
{
    if (t->view->layout == TERN__BLOCKED16)
        put_blocked(t, p, channel, sums, rows);
    else
        for (int c = 0; c < 2 && channel + c * ROWS < t->view->shape[1]; c++)
            put_plain(t, p, channel + c * ROWS, sums + c * ROWS * ROWS, rows);
}
