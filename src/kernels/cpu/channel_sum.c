/* channel_sum.c - the sum of each channel of a blocked tensor, which is the gradient of a bias. At most 64
 * of a tile's rows are summed in f32, the rest in double, and tiles are added in order. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/channel_sum_strips.h"
#include "kernels/cpu/channels.h"
#include "kernels/reduce.h"

typedef struct channel_sum {
    const tern__channel_sum_fns *strips;
    const tern__view *x;
    partial sums;
} channel_sum;

static void tile_sum(const tern__tile *t, void *ctx)
{
    const channel_sum *self = ctx;
    double sum[TERN__BLOCK] = {0};
    for (int i = 0; i < 2; i++) self->strips->add(self->x, &t->strips[i], sum);
    gather(self->sums.first + t->number * self->sums.channels + t->channel, t, sum);
}

/* Whether x is blocked and the result is reduced over everything but the channels. */
static bool is_of_channels(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    bool fit = x->layout == TERN__BLOCKED16 && y->layout == TERN__PLAIN && takes(x) &&
               tern__view_count(x) > 0 && y->stride[1] != 0;
    for (int d = 0; d < x->ndim; d++) fit = fit && (d == 1 || y->stride[d] == 0 || y->shape[d] == 1);
    return fit;
}

int tern__cpu_channel_sum(const tern__call *call)
{
    if (!is_of_channels(call)) return TERN_E_UNSUPPORTED;
    channel_sum self = {.strips = TERN__BY_WIDTH(tern__channel_sum_strips), .x = call->in[0]};
    const tern__view *y = call->out[0];
    tern__tiling s = tern__tiling_of(self.x);
    if (partial_new(call, &s, &self.sums)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &s);
    tern__tiles_each(&s, &all, tile_sum, &self, false);
    tern__view vector = tern__view_make(y->dtype, TERN__PLAIN, 1, &s.channels);
    vector.data = y->data;
    vector.stride[0] = y->stride[1];
    for (int64_t c = 0; c < s.channels; c++) {
        double sum = 0;
        for (int64_t t = 0; t < s.tiles; t++) sum += self.sums.first[t * s.channels + c];
        sum *= ((const tern__factor_attr *)call->attr)->factor;
        tern__view_set(&vector, c, call->add[0] ? tern__view_get(&vector, c) + sum : sum);
    }
    return TERN_OK;
}
