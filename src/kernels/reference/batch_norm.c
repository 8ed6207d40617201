/* batch_norm.c - torch.nn.functional.batch_norm as three sums and a formula, channel by channel. */
#include "kernels/batch_norm.h"
#include "kernels/reference/reference.h"

#include <math.h>
#include <string.h>

/* A channel's values have the indices ((n * channels) + c) * positions + p. */
typedef struct shape {
    int64_t batch, channels, positions;
} shape;

static shape shape_of(const tern__view *x)
{
    shape s = {x->shape[0], x->shape[1], 1};
    for (int d = 2; d < x->ndim; d++) s.positions *= x->shape[d];
    return s;
}

/* The index of the i-th value of channel c. */
static int64_t batch_norm_number(const shape *s, int64_t c, int64_t i)
{
    return (i / s->positions * s->channels + c) * s->positions + i % s->positions;
}

static double batch_norm_value_of(const tern__view *vector, int64_t c, double fallback)
{
    return vector ? tern__view_get(vector, c) : fallback;
}

static double inverse_deviation(const tern__call *call, const tern__view *var, int64_t c)
{
    return 1 / sqrt(tern__view_get(var, c) + ((const tern__batch_norm_attr *)call->attr)->eps);
}

static void move_towards(const tern__view *running, int64_t c, double value, double share)
{
    if (running) tern__view_set(running, c, (1 - share) * tern__view_get(running, c) + share * value);
}

int tern__reference_batch_norm_stats(const tern__call *call)
{
    const tern__view *x = call->in[0];
    const tern__batch_norm_attr *attr = call->attr;
    shape s = shape_of(x);
    int64_t n = s.batch * s.positions;
    for (int64_t c = 0; c < s.channels; c++) {
        double first = tern__view_get(x, batch_norm_number(&s, c, 0)), sum = 0, m2 = 0;
        for (int64_t i = 0; i < n; i++) sum += tern__view_get(x, batch_norm_number(&s, c, i)) - first;
        double mean = first + sum / (double)n;
        for (int64_t i = 0; i < n; i++) m2 += pow(tern__view_get(x, batch_norm_number(&s, c, i)) - mean, 2);
        tern__view_set(call->out[0], c, mean);
        tern__view_set(call->out[1], c, tern__norm_variance(m2 / (double)n));
        move_towards(call->out[2], c, mean, attr->momentum);
        move_towards(call->out[3], c, m2 / (double)(n - 1), attr->momentum);
    }
    return TERN_OK;
}

int tern__reference_batch_norm_merge(const tern__call *call)
{
    const tern__view *rows = call->in[0], *mean = call->out[0], *var = call->out[1], *count = call->out[4];
    const tern__batch_norm_attr *attr = call->attr;
    tern__batch_norm_moments m = {0};
    for (int64_t c = 0; c < mean->shape[0]; c++) {
        m = tern__batch_norm_merged(rows->data, rows->shape[0], mean->shape[0], c);
        tern__view_set(mean, c, m.mean);
        tern__view_set(var, c, m.var);
        if (m.count <= 1) continue;
        move_towards(call->out[2], c, m.mean, attr->momentum);
        move_towards(call->out[3], c, m.var * m.count / (m.count - 1), attr->momentum);
    }
    if (count) tern__view_set(count, 0, m.count);
    return TERN_OK;
}

int tern__reference_batch_norm_apply(const tern__call *call)
{
    const tern__view *x = call->in[0], *residual = call->in[5];
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    shape s = shape_of(x);
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = tern__view_get(call->in[1], c), inverse = inverse_deviation(call, call->in[2], c);
        double scale = inverse * batch_norm_value_of(call->in[3], c, 1),
               bias = batch_norm_value_of(call->in[4], c, 0);
        for (int64_t k = 0; k < s.batch * s.positions; k++) {
            int64_t i = batch_norm_number(&s, c, k);
            double y = (tern__view_get(x, i) - mean) * scale + bias + batch_norm_value_of(residual, i, 0);
            tern__reference_put(call, 0, i, relu && y < 0 ? 0 : y); /* NaN passes */
        }
    }
    return TERN_OK;
}

/* dy where the ReLU's output is positive; as in PyTorch also where it is NaN. */
static double masked(const tern__call *call, int64_t i)
{
    return batch_norm_value_of(call->in[2], i, 1) <= 0 ? 0 : tern__view_get(call->in[0], i);
}

int tern__reference_batch_norm_sums(const tern__call *call)
{
    const tern__view *x = call->in[1];
    shape s = shape_of(x);
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = tern__view_get(call->in[3], c), sum = 0, product = 0;
        for (int64_t k = 0; k < s.batch * s.positions; k++) {
            int64_t i = batch_norm_number(&s, c, k);
            sum += masked(call, i);
            product += masked(call, i) * (tern__view_get(x, i) - mean);
        }
        product *= inverse_deviation(call, call->in[4], c);
        for (int i = 0; i < 4; i++)
            if (call->out[i]) tern__reference_put(call, i, c, i % 2 ? product : sum);
    }
    return TERN_OK;
}

int tern__reference_batch_norm_data_grad(const tern__call *call)
{
    const tern__view *x = call->in[1];
    shape s = shape_of(x);
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = tern__view_get(call->in[3], c), inverse = inverse_deviation(call, call->in[4], c);
        double scale = inverse * batch_norm_value_of(call->in[5], c, 1);
        double mean_dy = batch_norm_value_of(call->in[6], c, 0),
               slope = batch_norm_value_of(call->in[7], c, 0) * inverse;
        for (int64_t k = 0; k < s.batch * s.positions; k++) {
            int64_t i = batch_norm_number(&s, c, k);
            double dy = masked(call, i), dx = dy - mean_dy - (tern__view_get(x, i) - mean) * slope;
            if (call->out[0]) tern__reference_put(call, 0, i, scale * dx);
            if (call->out[1]) tern__reference_put(call, 1, i, dy);
        }
    }
    return TERN_OK;
}

int tern__reference_batch_norm(const tern__call *call)
{
    const tern__view *const *in = call->in, *const *out = call->out;
    tern__call stats = *call, apply = *call;
    memcpy(stats.out, out + 1, 4 * sizeof(*out));
    int status = tern__reference_batch_norm_stats(&stats);
    memcpy(apply.in, (const tern__view *[]){in[0], out[1], out[2], in[1], in[2], in[3]}, 6 * sizeof(*in));
    return status ? status : tern__reference_batch_norm_apply(&apply);
}

/* One channel: y is (x - mean) * scale + bias, and dy' as in `masked`. */
typedef struct channel {
    double mean, scale, bias;
} channel;

static double batch_norm_passed(const tern__call *call, const channel *c, int64_t i)
{
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    if (call->in[2] || !relu) return masked(call, i);
    double y = (tern__view_get(call->in[1], i) - c->mean) * c->scale + c->bias;
    return y <= 0 ? 0 : tern__view_get(call->in[0], i);
}

int tern__reference_batch_norm_grad(const tern__call *call)
{
    const tern__view *x = call->in[1];
    shape s = shape_of(x);
    double n = (double)(s.batch * s.positions);
    for (int64_t c = 0; c < s.channels; c++) {
        double inverse = inverse_deviation(call, call->in[4], c), sum = 0, product = 0;
        channel of = {tern__view_get(call->in[3], c), inverse * batch_norm_value_of(call->in[5], c, 1),
                      batch_norm_value_of(call->in[6], c, 0)};
        for (int64_t k = 0; k < s.batch * s.positions; k++) {
            int64_t i = batch_norm_number(&s, c, k);
            sum += batch_norm_passed(call, &of, i);
            product += batch_norm_passed(call, &of, i) * (tern__view_get(x, i) - of.mean) * inverse;
        }
        for (int64_t k = 0; k < s.batch * s.positions; k++) {
            int64_t i = batch_norm_number(&s, c, k);
            double dy = batch_norm_passed(call, &of, i), xhat = (tern__view_get(x, i) - of.mean) * inverse;
            if (call->out[0]) tern__reference_put(call, 0, i, of.scale * (dy - sum / n - xhat * product / n));
            if (call->out[1]) tern__reference_put(call, 1, i, dy);
        }
        if (call->out[2]) tern__reference_put(call, 2, c, sum);
        if (call->out[3]) tern__reference_put(call, 3, c, product);
    }
    return TERN_OK;
}
