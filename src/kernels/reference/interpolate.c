/* interpolate.c - resizing and its gradient. */
#include "kernels/interpolate.h"
#include "kernels/reference/reference.h"

/* The neighbours in x from which y's element `i` is computed. */
typedef struct window {
    tern__taps taps[TERN__SPACE];
    tern__space in;
    int64_t plane; /* index of the plane's first element in x */
} window;

static window interpolate_window_of(const tern__call *call, const tern__view *x, const tern__view *y,
                                    int64_t i)
{
    window w = {.in = tern__space_of(x)};
    tern__space out = tern__space_of(y);
    w.plane = i / out.count * w.in.count;
    for (int d = TERN__SPACE - 1; d >= 0; i /= out.size[d--])
        w.taps[d] =
            tern__taps_of(call->attr, d, w.in.size[d], out.size[d], i % out.size[d], x->dtype == TERN_F64);
    return w;
}

static double weight(const window *w, int64_t d, int64_t r, int64_t c)
{
    return w->taps[0].weight[d > 0] * w->taps[1].weight[r > 0] * w->taps[2].weight[c > 0];
}

static int64_t interpolate_number(const window *w, int64_t d, int64_t r, int64_t c)
{
    int64_t slice = w->taps[0].first + d, row = w->taps[1].first + r;
    return w->plane + (slice * w->in.size[1] + row) * w->in.size[2] + w->taps[2].first + c;
}

#define EACH_NEIGHBOUR(w)                                                                                    \
    for (int64_t d = 0; d < (w).taps[0].count; d++)                                                          \
        for (int64_t r = 0; r < (w).taps[1].count; r++)                                                      \
            for (int64_t c = 0; c < (w).taps[2].count; c++)

int tern__reference_interpolate(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y);
    for (int64_t i = 0; i < count; i++) {
        window w = interpolate_window_of(call, x, y, i);
        double sum = 0;
        EACH_NEIGHBOUR(w) sum += weight(&w, d, r, c) * tern__view_get(x, interpolate_number(&w, d, r, c));
        tern__reference_put(call, 0, i, sum);
    }
    return TERN_OK;
}

int tern__reference_interpolate_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy);
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        window w = interpolate_window_of(call, dx, dy, i);
        EACH_NEIGHBOUR(w)
        sums[tern__view_offset(dx, interpolate_number(&w, d, r, c))] +=
            weight(&w, d, r, c) * tern__view_get(dy, i);
    }
    tern__reference_sums_put(call, sums, 1);
    return TERN_OK;
}
