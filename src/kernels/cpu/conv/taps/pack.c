/* pack.c - packs weights (taps/pack.h), sixteen inputs at a time, so that cache lines written in pieces
 * stay in the cache until they are complete. */
#include "kernels/cpu/conv/taps/pack.h"

#include <string.h>

tern__taps_weight tern__taps_weight_of(const tern__view *w, int64_t offset, bool turned)
{
    int in = turned ? 0 : 1, out = 1 - in;
    tern__taps_weight weight = {.data = (float *)w->data + offset,
                                .ins = w->shape[in],
                                .outs = w->shape[out],
                                .in_stride = w->stride[in],
                                .out_stride = w->stride[out],
                                .taps = {1}};
    for (int axis = 5 - w->ndim, d = 2; axis < 3; axis++, d++) {
        weight.taps[axis] = w->shape[d];
        weight.tap_stride[axis] = w->stride[d];
    }
    return weight;
}

/* The address of tap `tap` of an output's input. */
static float *taps_place(const tern__taps_weight *w, int64_t out, int64_t in, int64_t tap)
{
    int64_t column = tap % w->taps[2], row = tap / w->taps[2] % w->taps[1];
    int64_t sheet = tap / w->taps[2] / w->taps[1];
    return w->data + out * w->out_stride + in * w->in_stride + sheet * w->tap_stride[0] +
           row * w->tap_stride[1] + column * w->tap_stride[2];
}

void tern__taps_pack(float *to, const tern__taps_weight *w, int64_t group)
{
    int64_t width = tern__taps_width(w, group), pitch = tern__taps_pitch(w, group, w->ins);
    int64_t taps = w->taps[0] * w->taps[1] * w->taps[2];
    if (w->out_stride == 1) { /* one tap */
        for (int64_t in = 0; in < w->ins; in++)
            memcpy(to + in * width, taps_place(w, 32 * group, in, 0), (size_t)width * sizeof(*to));
        return;
    }
    for (int64_t block = 0; block < w->ins; block += TERN__BLOCK)
        for (int64_t o = 0; o < width; o++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const float *from = taps_place(w, 32 * group + o, block, tap);
                float *line = to + tap * pitch + block * width + o;
                for (int64_t c = 0; c < TERN__BLOCK; c++) line[c * width] = from[c * w->in_stride];
            }
}

void tern__taps_unpack(const float *from, const tern__taps_weight *w, const tern__taps_part *part, bool add)
{
    int64_t width = tern__taps_width(w, part->group), pitch = tern__taps_pitch(w, part->group, part->ins);
    for (int64_t block = 0; block < part->ins; block += TERN__BLOCK)
        for (int64_t o = 0; o < width; o++)
            for (int64_t tap = 0; tap < part->taps; tap++) {
                float *to = taps_place(w, 32 * part->group + o, part->in + block, part->tap + tap);
                const float *line = from + tap * pitch + block * width + o;
                for (int64_t c = 0; c < TERN__BLOCK; c++)
                    to[c * w->in_stride] = line[c * width] + (add ? to[c * w->in_stride] : 0);
            }
}
