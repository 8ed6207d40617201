/* f64_interpolate.c - resizing and its gradient in f64, row by row of y. The neighbours and weights of
 * each slice, row and column of y are computed first. Then each row of x that a row of y depends on is
 * processed once. Threads take planes. The result is cleared, unless the caller adds, and then added to
 * row by row. */
#include "kernels/cpu/loops.h"
#include "kernels/interpolate.h"

#include <string.h>

typedef struct resizing {
    const tern__call *call;
    double *x, *y; /* or their gradients */
    tern__space in, out;
    const tern__taps *taps[TERN__SPACE]; /* of each slice, row and column of y */
} resizing;

/* y's row += its weighted neighbours in x's row, times weight. */
static void see(const resizing *r, double *x, double *y, double weight)
{
    for (int64_t col = 0; col < r->out.size[2]; col++) {
        const tern__taps *t = &r->taps[2][col];
        double sum = t->weight[0] * x[t->first];
        for (int64_t k = 1; k < t->count; k++) sum += t->weight[1] * x[t->first + k];
        y[col] += weight * sum;
    }
}

/* The transpose: dx's row += the contributions of dy's row, times weight. */
static void f64_interpolate_send(const resizing *r, double *x, double *y, double weight)
{
    for (int64_t col = 0; col < r->out.size[2]; col++) {
        const tern__taps *t = &r->taps[2][col];
        for (int64_t k = 0; k < t->count; k++) x[t->first + k] += t->weight[k > 0] * (weight * y[col]);
    }
}

static void f64_interpolate_resize(const resizing *r, int64_t plane)
{
    bool gradient = r->call->kernel == TERN__INTERPOLATE_GRAD;
    double *x = r->x + plane * r->in.count, *y = r->y + plane * r->out.count;
    for (int64_t i = 0; i < r->out.size[0] * r->out.size[1]; i++, y += r->out.size[2]) {
        const tern__taps *slices = &r->taps[0][i / r->out.size[1]], *rows = &r->taps[1][i % r->out.size[1]];
        for (int64_t k = 0; k < slices->count * rows->count; k++) {
            int64_t slice = k / rows->count, row = k % rows->count;
            int64_t at = (slices->first + slice) * r->in.size[1] + rows->first + row;
            double weight = slices->weight[slice > 0] * rows->weight[row > 0];
            (gradient ? f64_interpolate_send : see)(r, x + at * r->in.size[2], y, weight);
        }
    }
}

static int find_taps(resizing *r)
{
    const int64_t *out = r->out.size;
    tern__taps *taps = tern__loop_scratch(r->call, (size_t)(out[0] + out[1] + out[2]) * sizeof(*taps));
    if (!taps) return TERN_E_MEMORY;
    for (int d = 0; d < TERN__SPACE; d++) {
        r->taps[d] = taps;
        for (int64_t i = 0; i < out[d]; i++)
            *taps++ = tern__taps_of(r->call->attr, d, r->in.size[d], out[d], i, true);
    }
    return TERN_OK;
}

int tern__f64_interpolate(const tern__call *call)
{
    bool gradient = call->kernel == TERN__INTERPOLATE_GRAD;
    const tern__view *to = call->out[0], *x = gradient ? to : call->in[0], *y = gradient ? call->in[0] : to;
    resizing r = {call, x->data, y->data, tern__space_of(x), tern__space_of(y), {0}};
    bool fine = x->dtype == y->dtype && tern__view_is_contiguous(x) && tern__view_is_contiguous(y);
    if (!fine) return TERN_E_UNSUPPORTED;
    if (find_taps(&r)) return TERN_E_MEMORY;
    int64_t planes = x->shape[0] * x->shape[1];
    int threads = tern__loop_threads(call, TERN__MAX(tern__view_count(x), tern__view_count(y)));
    if (!call->add[0]) memset(to->data, 0, tern__view_bytes(to));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < planes; i++) f64_interpolate_resize(&r, i);
    return TERN_OK;
}
