/* pack.c - see taps/pack.h. Sixteen inputs at a time, so that what is written in pieces stays in the cache
 * until it is whole. */
#include "kernels/cpu/conv/taps/pack.h"

#define LANES 16

tern__taps_weight tern__taps_weight_of(const tern__view *w, int64_t offset, bool turned)
{
    int in = turned ? 0 : 1, out = 1 - in;
    return (tern__taps_weight){.data = (float *)w->data + offset,
                               .ins = w->shape[in],
                               .outs = w->shape[out],
                               .in_stride = w->stride[in],
                               .out_stride = w->stride[out],
                               .taps = {w->shape[2], w->shape[3]},
                               .tap_stride = {w->stride[2], w->stride[3]}};
}

/* Tap `tap` of an output's first input. */
static float *place(const tern__taps_weight *w, int64_t out, int64_t in, int64_t tap)
{
    return w->data + out * w->out_stride + in * w->in_stride + tap / w->taps[1] * w->tap_stride[0] +
           tap % w->taps[1] * w->tap_stride[1];
}

void tern__taps_pack(float *to, const tern__taps_weight *w, int64_t group, int64_t first, int64_t count)
{
    int64_t width = tern__taps_width(w, group), pitch = tern__taps_pitch(w, group, count);
    int64_t taps = w->taps[0] * w->taps[1];
    for (int64_t block = 0; block < count; block += LANES)
        for (int64_t o = 0; o < width; o++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const float *from = place(w, 32 * group + o, first + block, tap);
                float *line = to + tap * pitch + block * width + o;
                for (int64_t c = 0; c < LANES; c++) line[c * width] = from[c * w->in_stride];
            }
}

void tern__taps_unpack(const float *from, const tern__taps_weight *w, int64_t group, int64_t first,
                       int64_t count, bool add)
{
    int64_t width = tern__taps_width(w, group), pitch = tern__taps_pitch(w, group, count);
    int64_t taps = w->taps[0] * w->taps[1];
    for (int64_t block = 0; block < count; block += LANES)
        for (int64_t o = 0; o < width; o++)
            for (int64_t tap = 0; tap < taps; tap++) {
                float *to = place(w, 32 * group + o, first + block, tap);
                const float *line = from + tap * pitch + block * width + o;
                for (int64_t c = 0; c < LANES; c++)
                    to[c * w->in_stride] = line[c * width] + (add ? to[c * w->in_stride] : 0);
            }
}
