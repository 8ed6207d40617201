/* nll_loss.c - losses of labels under log probabilities in f32, and their gradients. The formulas are in
 * reference/nll_loss.c. Tiles' results are added in double and in order. */
#include "kernels/nll_loss.h"
#include "kernels/cpu/exps.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/widen.h"

#include <string.h>

#define WIDTH   TERN__TILE_LINES
#define STRETCH TERN__TILE_ELEMENTS

_Static_assert(WIDTH <= TERN__STAGE, "the labels of a tile fit a stage");

typedef struct problem {
    const tern__call *call;
    const tern__nll_attr *attr;
    const tern__view *label;
    const float *logp, *weight; /* weight NULL: all 1 */
    tern__lines lines;
    tern__line_tiles tiles;
} problem;

/* Returns false if an operand's layout does not suit the loops. */
static bool nll_take(const tern__call *call, const tern__view *logp, int label, problem *p)
{
    const tern__view *weight = call->in[label + 1];
    *p = (problem){.call = call, .attr = call->attr, .label = call->in[label], .logp = logp->data};
    p->weight = weight ? weight->data : NULL;
    p->lines = tern__class_lines(logp);
    p->tiles = tern__line_tiles_of(&p->lines);
    return tern__is_dense(logp, logp) && tern__view_is_contiguous(p->label) &&
           (!weight || tern__is_dense(weight, weight)) && tern__view_count(logp) > 0;
}

static void nll_load_labels(const problem *p, tern__stage *stage, int64_t first, int64_t n)
{
    tern__stage_load(TERN__COMPUTE_I64, stage, p->label->dtype, p->label->data, first, 1, n);
}

static int nll_check_labels(const problem *p)
{
    tern__stage stage;
    int64_t count = tern__view_count(p->label), classes = p->lines.size;
    for (int64_t first = 0; first < count; first += TERN__STAGE) {
        int64_t n = TERN__MIN(TERN__STAGE, count - first);
        nll_load_labels(p, &stage, first, n);
        for (int64_t i = 0; i < n; i++)
            if ((stage.i64[i] < 0 || stage.i64[i] >= classes) && stage.i64[i] != p->attr->ignored)
                return tern__label_error(p->call->err, tern__nll_labels(p->attr, &p->lines), first + i,
                                         stage.i64[i]);
    }
    return TERN_OK;
}

static float nll_weight_of(const problem *p, int64_t class)
{
    return p->weight ? p->weight[class] : 1;
}

/* ---- forward ---- */

/* sum_c w[c] logp[c] for each line of a tile. */
TERN__SIMD static void line_sums(const problem *p, const tern__line_tile *t, double *sum)
{
    const float *logp = p->logp + t->at;
    for (int64_t j = 0; j < t->lines && p->tiles.rows; j++)
        sum[j] = tern__dot(logp + j * p->lines.size, p->weight, p->lines.size);
    if (p->tiles.rows) return;
    for (int64_t j = 0; j < t->lines; j++) sum[j] = 0;
    for (int64_t c = 0; c < p->lines.size; c++) {
        float w = p->weight ? p->weight[c] : 1;
        for (int64_t j = 0; j < t->lines; j++) sum[j] += (double)(w * logp[c * p->tiles.step + j]);
    }
}

/* Focal loss's factors for the losses of a tile, or for their slopes: the formulas of kernels/nll_loss.h
 * for many labels at a time. Undefined for ignored labels. */
TERN__SIMD static void focus(const problem *p, const tern__line_tile *t, const tern__stage *labels,
                             bool slope, double *factor)
{
    double logp[WIDTH], p_of[WIDTH], gamma = p->attr->gamma;
    for (int64_t j = 0; j < t->lines; j++) factor[j] = 1;
    if (gamma == 0) return;
    for (int64_t j = 0; j < t->lines; j++) {
        int64_t label = labels->i64[j] == p->attr->ignored ? 0 : labels->i64[j];
        logp[j] = (double)p->logp[t->at + j * p->tiles.apart + label * p->tiles.step];
    }
    for (int64_t j = 0; j < t->lines; j++) p_of[j] = exp(logp[j]);
    for (int64_t j = 0; j < t->lines; j++) {
        double q = p_of[j] < 1 ? 1 - p_of[j] : 0, power = pow(q, gamma);
        double share = 1 - gamma * p_of[j] * logp[j] / (q + 1e-300);
        factor[j] = !slope ? power : q > 0 ? power * share : 0;
    }
}

typedef struct partial {
    double loss, weight;
} partial;

static partial tile_loss(const problem *p, const tern__line_tile *t, float *each)
{
    tern__stage labels;
    double sum[WIDTH] = {0}, factor[WIDTH], smoothing = p->attr->smoothing;
    partial part = {0};
    nll_load_labels(p, &labels, t->line, t->lines);
    if (smoothing) line_sums(p, t, sum);
    focus(p, t, &labels, false, factor);
    for (int64_t j = 0; j < t->lines; j++) {
        int64_t label = labels.i64[j];
        double loss = 0;
        if (label != p->attr->ignored) {
            double w = (double)nll_weight_of(p, label);
            double logp = (double)p->logp[t->at + j * p->tiles.apart + label * p->tiles.step];
            loss = -(1 - smoothing) * w * logp * factor[j];
            if (smoothing) loss -= smoothing / (double)p->lines.size * sum[j];
            part.weight += w;
        }
        if (each) each[t->line + j] = (float)loss;
        part.loss += loss;
    }
    return part;
}

static int all_tiles(const problem *p, float *each, partial *sum)
{
    partial *parts = tern__loop_scratch(p->call, (size_t)p->tiles.count * sizeof(*parts));
    if (!parts) return TERN_E_MEMORY;
    int64_t count = p->lines.outer * p->lines.inner;
    int threads = tern__loop_threads(p->call, (p->attr->smoothing ? p->lines.size
                                               : p->attr->gamma   ? 8
                                                                  : 0) *
                                                  count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < p->tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&p->tiles, i);
        parts[i] = tile_loss(p, &t, each);
    }
    for (int64_t i = 0; i < p->tiles.count; i++) {
        sum->loss += parts[i].loss;
        sum->weight += parts[i].weight;
    }
    return TERN_OK;
}

int tern__cpu_nll_loss(const tern__call *call)
{
    problem p;
    partial sum = {0};
    const tern__view *loss = call->out[0];
    if (tern__view_is_half(call->in[0])) return tern__cpu_widened(call, tern__cpu_nll_loss);
    if (!nll_take(call, call->in[0], 1, &p) || !tern__is_dense(loss, loss) || call->add[0] || call->add[1])
        return TERN_E_UNSUPPORTED;
    int status = nll_check_labels(&p);
    if (!status) status = all_tiles(&p, p.attr->each ? loss->data : NULL, &sum);
    if (status) return status;
    if (!p.attr->each) tern__put_scalar(call, p.attr->mean ? tern__nll_mean(sum.loss, sum.weight) : sum.loss);
    *(double *)call->out[1]->data = sum.weight;
    return TERN_OK;
}

int tern__cpu_cross_entropy(const tern__call *call)
{
    return tern__cross_entropy_by(call, tern__cpu_log_softmax, tern__cpu_nll_loss,
                                  tern__cpu_cross_entropy_grad);
}

/* ---- gradients ---- */

/* For each line of a tile: its label (0 if ignored), and its loss's incoming gradient, 0 if ignored. */
static void load_sent(const problem *p, const tern__line_tile *t, const tern__view *weights,
                      tern__stage *labels, float *sent)
{
    const float *dloss = p->call->in[0]->data;
    double scale = p->attr->mean ? tern__nll_mean(1, *(const double *)weights->data) : 1;
    nll_load_labels(p, labels, t->line, t->lines);
    for (int64_t j = 0; j < t->lines; j++) {
        bool ignored = labels->i64[j] == p->attr->ignored;
        sent[j] = ignored ? 0 : (float)((double)dloss[p->attr->each ? t->line + j : 0] * scale);
        if (ignored) labels->i64[j] = 0;
    }
}

/* dx at the labels -= sent (1 - smoothing) w. */
static void subtract_labels(const problem *p, const tern__line_tile *t, const tern__stage *labels,
                            const float *sent, float *dx)
{
    float share = (float)(1 - p->attr->smoothing);
    for (int64_t j = 0; j < t->lines; j++) {
        int64_t label = labels->i64[j];
        if (sent[j] != 0)
            dx[t->at + j * p->tiles.apart + label * p->tiles.step] -=
                sent[j] * share * nll_weight_of(p, label);
    }
}

int tern__cpu_nll_loss_grad(const tern__call *call)
{
    problem p;
    const tern__view *dx = call->out[0];
    if (tern__view_is_half(dx)) return tern__cpu_widened(call, tern__cpu_nll_loss_grad);
    if (!nll_take(call, dx, 1, &p) || !tern__is_dense(call->in[0], call->in[0])) return TERN_E_UNSUPPORTED;
    if (!call->add[0]) memset(dx->data, 0, tern__view_bytes(dx));
    for (int64_t i = 0; i < p.tiles.count; i++) {
        tern__stage labels;
        float sent[WIDTH];
        tern__line_tile t = tern__line_tile_at(&p.tiles, i);
        load_sent(&p, &t, call->in[3], &labels, sent);
        subtract_labels(&p, &t, &labels, sent, dx->data);
    }
    return TERN_OK;
}

/* dx = or += exp(logp) gain - even w, where gain is `sent` times the sum of q, and even is sent smoothing
 * / C. The labels' own terms are subtracted separately. */
TERN__SIMD static void spread_rows(const problem *p, const tern__line_tile *t, const float *gain,
                                   const float *even, float *dx, bool add)
{
    float e[STRETCH];
    int64_t size = p->lines.size, all = t->lines * size;
    for (int64_t first = 0; first < all; first += STRETCH) {
        int64_t n = TERN__MIN(STRETCH, all - first);
        tern__exps(e, p->logp + t->at + first, n);
        for (int64_t r = 0; r < t->lines; r++) {
            const float *w = p->weight ? p->weight + first : NULL, *p_of = e + r * size;
            float *to = dx + t->at + first + r * size;
            for (int64_t c = 0; c < TERN__MIN(n, size); c++) {
                float d = p_of[c] * gain[r] - (w ? w[c] : 1) * even[r];
                to[c] = add ? to[c] + d : d;
            }
        }
    }
}

TERN__SIMD static void spread_columns(const problem *p, const tern__line_tile *t, const float *gain,
                                      const float *even, float *dx, bool add)
{
    float e[WIDTH];
    for (int64_t c = 0; c < p->lines.size; c++) {
        float *to = dx + t->at + c * p->tiles.step, w = p->weight ? p->weight[c] : 1;
        tern__exps(e, p->logp + t->at + c * p->tiles.step, t->lines);
        for (int64_t j = 0; j < t->lines; j++) {
            float d = e[j] * gain[j] - w * even[j];
            to[j] = add ? to[j] + d : d;
        }
    }
}

/* Multiplies the incoming gradients by focal loss's factors. */
static void focus_sent(const problem *p, const tern__line_tile *t, const tern__stage *labels, float *sent)
{
    double factor[WIDTH];
    focus(p, t, labels, true, factor);
    for (int64_t j = 0; j < t->lines; j++) sent[j] = sent[j] != 0 ? (float)((double)sent[j] * factor[j]) : 0;
}

static void tile_gradient(const problem *p, const tern__line_tile *t, float *dx, double all_weights)
{
    tern__stage labels;
    float sent[WIDTH], gain[WIDTH], even[WIDTH];
    double smoothing = p->attr->smoothing, share = smoothing / (double)p->lines.size;
    load_sent(p, t, p->call->in[4], &labels, sent);
    if (p->attr->gamma != 0) focus_sent(p, t, &labels, sent);
    for (int64_t j = 0; j < t->lines; j++) {
        double w = (double)nll_weight_of(p, labels.i64[j]);
        gain[j] = (float)((double)sent[j] * ((1 - smoothing) * w + share * all_weights));
        even[j] = (float)((double)sent[j] * share);
    }
    (p->tiles.rows ? spread_rows : spread_columns)(p, t, gain, even, dx, p->call->add[0]);
    subtract_labels(p, t, &labels, sent, dx);
}

int tern__cpu_cross_entropy_grad(const tern__call *call)
{
    problem p;
    const tern__view *logp = call->in[1], *dx = call->out[0];
    double all_weights = 0;
    if (tern__view_is_half(logp)) return tern__cpu_widened(call, tern__cpu_cross_entropy_grad);
    if (!nll_take(call, logp, 2, &p) || !tern__is_dense(dx, logp) ||
        !tern__is_dense(call->in[0], call->in[0]))
        return TERN_E_UNSUPPORTED;
    for (int64_t c = 0; c < p.lines.size; c++) all_weights += (double)nll_weight_of(&p, c);
    int threads = tern__loop_threads(call, tern__view_count(logp));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < p.tiles.count; i++) {
        tern__line_tile t = tern__line_tile_at(&p.tiles, i);
        tile_gradient(&p, &t, dx->data, all_weights);
    }
    return TERN_OK;
}
