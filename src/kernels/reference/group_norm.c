/* group_norm.c - group norm: mean and deviation of each row, and a formula per element. */
#include "kernels/group_norm.h"
#include "kernels/batch_norm.h"
#include "kernels/reference/reference.h"

#include <math.h>

static double group_norm_value_of(const tern__view *vector, int64_t c, double fallback)
{
    return vector ? tern__view_get(vector, c) : fallback;
}

/* The channel, among all G K, of element i of a row. */
static int64_t channel(const tern__group_shape *s, int64_t row, int64_t i)
{
    return row % s->groups * s->channels + i / s->positions;
}

static bool is_rms(const tern__call *call)
{
    return ((const tern__group_norm_attr *)call->attr)->rms != 0;
}

static double row_mean_of(const tern__view *x, int64_t row, int64_t size)
{
    double first = size ? tern__view_get(x, row * size) : 0, sum = 0;
    for (int64_t i = 0; i < size; i++) sum += tern__view_get(x, row * size + i) - first;
    return first + sum / (double)size;
}

int tern__reference_group_norm(const tern__call *call)
{
    const tern__view *x = call->in[0];
    tern__group_shape s = tern__group_shape_of(x);
    for (int64_t row = 0; row < s.samples * s.groups; row++) {
        double n = (double)s.size, m2 = 0, eps = ((const tern__group_norm_attr *)call->attr)->eps;
        double mean = is_rms(call) ? 0 : row_mean_of(x, row, s.size);
        for (int64_t i = 0; i < s.size; i++) m2 += pow(tern__view_get(x, row * s.size + i) - mean, 2);
        double inverse = 1 / sqrt(tern__norm_variance(m2 / n) + eps);
        for (int64_t i = 0; i < s.size; i++) {
            int64_t c = channel(&s, row, i);
            double scale = inverse * group_norm_value_of(call->in[1], c, 1);
            double y =
                (tern__view_get(x, row * s.size + i) - mean) * scale + group_norm_value_of(call->in[2], c, 0);
            tern__reference_put(call, 0, row * s.size + i, y);
        }
        if (call->out[1]) tern__view_set(call->out[1], row, mean);
        tern__view_set(call->out[2], row, inverse);
    }
    return TERN_OK;
}

/* dx = inverse (w dy - mean(w dy) - xhat mean(w dy xhat)), xhat = (x - mean) inverse. Without a mean in xhat
 * there is none of w dy. */
static void group_norm_data_grad(const tern__call *call, const tern__group_shape *s, int64_t row)
{
    const tern__view *dy = call->in[0], *x = call->in[1];
    double mean = group_norm_value_of(call->in[2], row, 0), inverse = tern__view_get(call->in[3], row);
    double sum = 0, product = 0, n = (double)s->size;
    for (int64_t i = 0; i < s->size; i++) {
        double d =
            tern__view_get(dy, row * s->size + i) * group_norm_value_of(call->in[4], channel(s, row, i), 1);
        sum += d;
        product += d * (tern__view_get(x, row * s->size + i) - mean) * inverse;
    }
    if (is_rms(call)) sum = 0;
    for (int64_t i = 0; i < s->size; i++) {
        int64_t at = row * s->size + i;
        double d = tern__view_get(dy, at) * group_norm_value_of(call->in[4], channel(s, row, i), 1);
        double xhat = (tern__view_get(x, at) - mean) * inverse;
        tern__reference_put(call, 0, at, inverse * (d - sum / n - xhat * product / n));
    }
}

/* dw = sum(dy xhat) and db = sum(dy) of channel c, over samples and positions. */
static void weight_grad(const tern__call *call, const tern__group_shape *s, int64_t c)
{
    double dw = 0, db = 0;
    for (int64_t n = 0; n < s->samples; n++) {
        int64_t row = n * s->groups + c / s->channels;
        double mean = group_norm_value_of(call->in[2], row, 0), inverse = tern__view_get(call->in[3], row);
        for (int64_t p = 0; p < s->positions; p++) {
            int64_t at = row * s->size + c % s->channels * s->positions + p;
            dw += tern__view_get(call->in[0], at) * (tern__view_get(call->in[1], at) - mean) * inverse;
            db += tern__view_get(call->in[0], at);
        }
    }
    if (call->out[1]) tern__reference_put(call, 1, c, dw);
    if (call->out[2]) tern__reference_put(call, 2, c, db);
}

/* The weights first: dx may overwrite dy. */
int tern__reference_group_norm_grad(const tern__call *call)
{
    tern__group_shape s = tern__group_shape_of(call->in[1]);
    if (call->out[1] || call->out[2])
        for (int64_t c = 0; c < s.groups * s.channels; c++) weight_grad(call, &s, c);
    if (call->out[0])
        for (int64_t row = 0; row < s.samples * s.groups; row++) group_norm_data_grad(call, &s, row);
    return TERN_OK;
}
