/* confusion.c - the confusion matrix and the rank of a label, in f32 and for integer maps; 16-bit types
 * are widened. Each thread counts separately, and the integer counts are added in any order. */
#include "kernels/confusion.h"
#include "kernels/cpu/argmax.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/widen.h"

#include <string.h>

#define WIDTH TERN__TILE_LINES

_Static_assert(WIDTH <= TERN__STAGE, "the labels of a tile fit a stage");

typedef struct problem {
    const tern__call *call;
    const tern__confusion_attr *attr;
    const tern__view *x, *label;
    tern__line_tiles tiles;
} problem;

/* Returns false if an operand's layout does not suit the loops. One prediction per label gives lines of
 * one element. */
static bool confusion_take(const tern__call *call, int64_t predict, problem *p)
{
    const tern__view *x = call->in[0];
    bool scores = predict == TERN__PREDICT_LARGEST;
    *p = (problem){.call = call, .attr = call->attr, .x = x, .label = call->in[1]};
    tern__lines lines = {1, 1, tern__view_count(x)};
    if (scores) lines = tern__lines_of(x, x->ndim > 1);
    p->tiles = tern__line_tiles_of(&lines);
    return (predict == TERN__PREDICT_CLASS || x->dtype == TERN_F32) && tern__view_is_contiguous(x) &&
           tern__view_is_contiguous(p->label) && tern__view_count(x) > 0 && lines.size <= INT32_MAX;
}

static void confusion_load_labels(const tern__view *from, const tern__line_tile *t, tern__stage *labels)
{
    tern__stage_load(TERN__COMPUTE_I64, labels, from->dtype, from->data, t->line, 1, t->lines);
}

/* Sets E_RANGE for the first label that counts and is no class. */
static int find_bad(const problem *p, const tern__view *from, tern__labels labels)
{
    for (int64_t i = 0; i < tern__view_count(from); i++) {
        int64_t label = tern__view_get_int(from, i);
        if ((label < 0 || label >= labels.classes) && tern__view_get_int(p->label, i) != p->attr->ignored)
            return tern__label_error(p->call->err, labels, i, label);
    }
    return TERN_OK;
}

/* ---- confusion matrix ---- */

static void predict(const problem *p, const tern__line_tile *t, tern__stage *to)
{
    const float *x = (const float *)p->x->data + t->at;
    float threshold = (float)p->attr->threshold;
    if (p->attr->predict == TERN__PREDICT_CLASS)
        confusion_load_labels(p->x, t, to);
    else if (p->attr->predict == TERN__PREDICT_LARGEST)
        tern__cpu_best(x, &p->tiles, t->lines, 1, to->i64);
    else
        for (int64_t j = 0; j < t->lines; j++) to->i64[j] = x[j] > threshold;
}

/* Adds a tile's counts; false if one of its labels is no class. */
static bool count_tile(const problem *p, const tern__line_tile *t, int64_t *counts)
{
    tern__stage truth, taken;
    int64_t classes = p->attr->labels.classes, bad = 0;
    confusion_load_labels(p->label, t, &truth);
    predict(p, t, &taken);
    for (int64_t j = 0; j < t->lines; j++) {
        bool fit = (uint64_t)truth.i64[j] < (uint64_t)classes && (uint64_t)taken.i64[j] < (uint64_t)classes;
        if (truth.i64[j] == p->attr->ignored) continue;
        if (fit) counts[truth.i64[j] * classes + taken.i64[j]]++;
        bad += !fit;
    }
    return bad == 0;
}

/* Counts the share of thread `number`. */
static bool count_share(const problem *p, int number, int threads, int64_t *counts)
{
    bool fit = true;
    int64_t first = p->tiles.count * number / threads, last = p->tiles.count * (number + 1) / threads;
    for (int64_t i = first; i < last; i++) {
        tern__line_tile t = tern__line_tile_at(&p->tiles, i);
        fit = count_tile(p, &t, counts) && fit;
    }
    return fit;
}

static int find_bad_of_both(const problem *p)
{
    int status = find_bad(p, p->label, p->attr->labels);
    return status ? status : find_bad(p, p->x, tern__predictions(p->attr));
}

int tern__cpu_confusion(const tern__call *call)
{
    problem p;
    const tern__confusion_attr *attr = call->attr;
    if (tern__view_is_half(call->in[0])) return tern__cpu_widened(call, tern__cpu_confusion);
    if (!confusion_take(call, attr->predict, &p)) return TERN_E_UNSUPPORTED;
    int64_t cells = attr->labels.classes * attr->labels.classes, *to = call->out[0]->data;
    int threads = tern__loop_threads(call, tern__view_count(p.x)), unfit = 0;
    size_t bytes = (size_t)(cells * threads) * sizeof(int64_t);
    int64_t *counts = tern__loop_scratch(call, bytes);
    if (!counts) return TERN_E_MEMORY;
    memset(counts, 0, bytes);
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : unfit) if (threads > 1)
    for (int i = 0; i < threads; i++) unfit += !count_share(&p, i, threads, counts + i * cells);
    if (unfit) return find_bad_of_both(&p);
    for (int64_t i = 0; i < cells * threads; i++) to[i % cells] += counts[i];
    return TERN_OK;
}

/* ---- rank of a label ---- */

/* Counts the classes from `first` on that rank before one of score `own`: larger scores and, among earlier
 * classes, equal ones. NaN is the largest. */
TERN__SIMD static int64_t count_before(const float *x, int64_t step, int64_t first, int64_t last, float own,
                                       bool equal)
{
    int32_t larger = 0, same = 0;
    bool nan = own != own;
    for (int64_t c = first; c < last; c++) {
        float v = x[c * step];
        larger += v > own || (v != v && !nan);
        same += v == own || (v != v && nan);
    }
    return larger + (equal ? same : 0);
}

int tern__cpu_label_rank(const tern__call *call)
{
    problem p;
    const tern__confusion_attr *attr = call->attr;
    if (tern__view_is_half(call->in[0])) return tern__cpu_widened(call, tern__cpu_label_rank);
    if (!confusion_take(call, TERN__PREDICT_LARGEST, &p)) return TERN_E_UNSUPPORTED;
    int status = find_bad(&p, p.label, attr->labels);
    if (status) return status;
    tern__lines lines = {p.tiles.rows ? p.tiles.beside : p.tiles.count / p.tiles.parts, p.tiles.size,
                         p.tiles.step};
    int threads = tern__loop_threads(call, tern__view_count(p.x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < lines.outer * lines.inner; i++) {
        const float *x = (const float *)p.x->data + tern__line_start(&lines, i);
        int64_t label = tern__view_get_int(p.label, i), *to = (int64_t *)call->out[0]->data + i;
        if (label == attr->ignored) {
            *to = -1;
            continue;
        }
        float own = x[label * lines.inner];
        *to = count_before(x, lines.inner, 0, label, own, true) +
              count_before(x, lines.inner, label + 1, lines.size, own, false);
    }
    return TERN_OK;
}
