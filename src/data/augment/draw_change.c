/* draw_change.c - draws the random changes of a sample. */
#include "data/augment/augment.h"

#include "data/draw.h"

#include <math.h>
#include <string.h>

enum { /* which of a sample's random numbers decides what, as listed in tern/augment.h */
       TOP,
       LEFT,
       FLIP,
       FRONT = 16,
       FLIP_VERTICAL,
       FLIP_DEPTH,
       TURNS,
       SCALE,
       COLOUR,
       ORDER = COLOUR + TERN__COLOURS,
       INTENSITY_SCALE = ORDER + TERN__COLOURS - 1,
       INTENSITY_SHIFT
};

/* room / 2, rounded as Python does: a half goes to the even number. */
static int64_t change_centre(int64_t room)
{
    return (room + (room >> 1 & 1)) / 2;
}

static double between(uint64_t key, uint64_t i, double low, double high)
{
    return tern__draw_between(tern__draw_number(key, i), low, high);
}

static bool chance(uint64_t key, uint64_t i, double probability)
{
    return tern__draw_share(tern__draw_number(key, i)) < probability;
}

static void draw_size(tern__change *c, const tern_augment_opts *o, uint64_t key)
{
    double factor = between(key, SCALE, o->scale[0], o->scale[1]);
    for (int d = 1; d < 3; d++)
        if (factor != 1) c->size[d] = TERN__MAX((int64_t)nearbyint((double)c->size[d] * factor), 1);
}

static void draw_place(tern__change *c, const tern_augment_opts *o, const int64_t cut[3], uint64_t key)
{
    static const uint64_t numbers[3] = {FRONT, TOP, LEFT};
    const int64_t padding[3] = {o->padding_depth, o->padding[0], o->padding[1]};
    for (int d = 0; d < 3; d++) {
        int64_t room = TERN__MAX(c->size[d] + 2 * padding[d] - cut[d], 0);
        c->start[d] = o->random_crop ? tern__draw_place(tern__draw_number(key, numbers[d]), room + 1)
                                     : change_centre(room);
        c->start[d] -= padding[d];
    }
}

static void draw_colours(tern__change *c, const tern_augment_opts *o, uint64_t key)
{
    const double strength[] = {o->brightness, o->contrast, o->saturation};
    int left[TERN__COLOURS] = {TERN__BRIGHTNESS, TERN__CONTRAST, TERN__SATURATION, TERN__HUE};
    for (int i = 0; i < TERN__HUE; i++)
        c->colour[i] = between(key, (uint64_t)(COLOUR + i), fmax(0, 1 - strength[i]), 1 + strength[i]);
    c->colour[TERN__HUE] = between(key, COLOUR + TERN__HUE, -o->hue, o->hue);
    for (int i = 0, count = TERN__COLOURS; i < TERN__COLOURS; i++, count--) {
        int64_t at = count > 1 ? tern__draw_place(tern__draw_number(key, (uint64_t)(ORDER + i)), count) : 0;
        c->order[i] = left[at];
        memmove(left + at, left + at + 1, (size_t)(count - 1 - at) * sizeof(int));
    }
}

tern__change tern__change_draw(const tern_augment_opts *o, const int64_t size[3], const int64_t cut[3],
                               int64_t epoch, int64_t index)
{
    uint64_t key = tern__draw_key(o->seed, epoch, index);
    tern__change c = {.size = {size[0], size[1], size[2]},
                      .flip = {chance(key, FLIP_DEPTH, o->flip_depth),
                               chance(key, FLIP_VERTICAL, o->flip_vertical), chance(key, FLIP, o->flip)},
                      .turns = o->rotate ? (int)tern__draw_place(tern__draw_number(key, TURNS), 4) : 0};
    draw_size(&c, o, key);
    draw_place(&c, o, cut, key);
    draw_colours(&c, o, key);
    c.scale = (float)between(key, INTENSITY_SCALE, 1 - o->intensity_scale, 1 + o->intensity_scale);
    c.shift = (float)between(key, INTENSITY_SHIFT, -o->intensity_shift, o->intensity_shift);
    return c;
}
