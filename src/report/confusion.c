/* confusion.c - the confusion matrix: counts by label (row) and prediction (column). This rank's counts and
 * the reduced ones of all ranks are separate, so updates may go on after a reduce. */
#include "kernels/confusion.h"
#include "kernels/lines.h"
#include "ops/ops.h"
#include "report/predictions.h"

#include <tern/collectives.h>
#include <tern/confusion.h>

#include <math.h>
#include <string.h>

#define CLASSES_MAX 4096

struct tern_confusion {
    tern_group *group;
    int64_t classes, ignored;
    int64_t *own, *reduced; /* [classes][classes] */
};

tern_confusion *tern_confusion_new(tern_group *group, int64_t classes, int64_t ignore_index, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (classes < 2 || classes > CLASSES_MAX) {
        tern__error_set(err, __func__, TERN_E_RANGE, "expected 2 to %d classes, got %lld", CLASSES_MAX,
                        (long long)classes);
        return NULL;
    }
    tern_confusion *c = tern__alloc(sizeof(*c), __func__, err);
    if (!c) return NULL;
    *c = (tern_confusion){.group = group, .classes = classes, .ignored = ignore_index};
    c->own = tern__alloc((size_t)(2 * classes * classes) * sizeof(int64_t), __func__, err);
    c->reduced = c->own + classes * classes;
    if (c->own) return c;
    tern__free(c);
    return NULL;
}

void tern_confusion_free(tern_confusion *c)
{
    if (!c) return;
    tern__free(c->own);
    tern__free(c);
}

/* ---- counting ---- */

static int count_labels(tern_confusion *c, tern_scope *scope, const char *func, const tern__operands *in,
                        tern__predict predict, double threshold)
{
    int64_t shape[] = {c->classes, c->classes};
    tern__view counts = tern__view_make(TERN_I64, TERN__PLAIN, 2, shape);
    tern__confusion_attr attr = {
        {func, "confusion", NULL, c->classes, in->of_sample}, c->ignored, predict, threshold};
    tern__call call = {.kernel = TERN__CONFUSION,
                       .in = {&in->x->view, &in->label->view},
                       .out = {&counts},
                       .add = {true},
                       .attr = &attr};
    counts.data = c->own;
    if (tern__view_count(&in->label->view) == 0) return TERN_OK;
    return tern__run(scope, &call) ? TERN_OK : scope->error.code;
}

static int fail_null(tern_scope *scope, const char *func)
{
    return tern__scope_fail(scope, func, TERN_E_INVALID, "the confusion is NULL");
}

int tern_confusion_update(tern_confusion *c, tern_scope *scope, tern_tensor *x, tern_tensor *label)
{
    tern__operands in = {x, label, 0};
    if (!TERN__ENTER(scope, __func__, 2, &in.x, &in.label)) return scope ? scope->error.code : TERN_E_INVALID;
    if (!c) return fail_null(scope, __func__);
    bool scores = tern__dtype_is_float(x->view.dtype);
    if (scores ? tern__scores_take(scope, __func__, "confusion", c->classes, &in)
               : tern__maps_take(scope, __func__, "confusion", &in))
        return scope->error.code;
    return count_labels(c, scope, __func__, &in, scores ? TERN__PREDICT_LARGEST : TERN__PREDICT_CLASS, 0);
}

int tern_confusion_update_mask(tern_confusion *c, tern_scope *scope, tern_tensor *x, tern_tensor *mask,
                               double threshold)
{
    tern__operands in = {x, mask, 0};
    if (!TERN__ENTER(scope, __func__, 2, &in.x, &in.label)) return scope ? scope->error.code : TERN_E_INVALID;
    if (!c) return fail_null(scope, __func__);
    if (c->classes != 2)
        return tern__scope_fail(scope, __func__, TERN_E_INVALID,
                                "a mask has 2 classes, the confusion has %lld", (long long)c->classes);
    if (tern__mask_take(scope, __func__, "confusion", &in)) return scope->error.code;
    return count_labels(c, scope, __func__, &in, TERN__PREDICT_ABOVE, threshold);
}

int tern_confusion_reduce(tern_confusion *c, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!c) return tern__error_set(err, __func__, TERN_E_INVALID, "the confusion is NULL");
    size_t cells = (size_t)(c->classes * c->classes);
    memcpy(c->reduced, c->own, cells * sizeof(int64_t));
    memset(c->own, 0, cells * sizeof(int64_t));
    int status = c->group ? tern_all_reduce(c->group, c->reduced, cells, TERN_I64, TERN_SUM, err) : TERN_OK;
    if (status) memset(c->reduced, 0, cells * sizeof(int64_t));
    return status;
}

/* ---- numbers ---- */

int64_t tern_confusion_count(const tern_confusion *c, int64_t label, int64_t prediction)
{
    bool known = c && label >= 0 && label < c->classes && prediction >= 0 && prediction < c->classes;
    return known ? c->reduced[label * c->classes + prediction] : 0;
}

int64_t tern_confusion_total(const tern_confusion *c)
{
    int64_t sum = 0;
    for (int64_t i = 0; c && i < c->classes * c->classes; i++) sum += c->reduced[i];
    return sum;
}

double tern_confusion_accuracy(const tern_confusion *c)
{
    int64_t right = 0;
    for (int64_t k = 0; c && k < c->classes; k++) right += tern_confusion_count(c, k, k);
    return (double)right / (double)tern_confusion_total(c);
}

/* How often a class was the label, the prediction, and both. */
typedef struct extent {
    int64_t labelled, predicted, both;
} extent;

static extent extent_of(const tern_confusion *c, int64_t k)
{
    extent e = {.both = tern_confusion_count(c, k, k)};
    for (int64_t i = 0; c && i < c->classes; i++) {
        e.labelled += tern_confusion_count(c, k, i);
        e.predicted += tern_confusion_count(c, i, k);
    }
    return e;
}

double tern_confusion_iou(const tern_confusion *c, int64_t class_index)
{
    extent e = extent_of(c, class_index);
    return (double)e.both / (double)(e.labelled + e.predicted - e.both);
}

double tern_confusion_dice(const tern_confusion *c, int64_t class_index)
{
    extent e = extent_of(c, class_index);
    return 2 * (double)e.both / (double)(e.labelled + e.predicted);
}

/* The mean over the classes that have a value. */
static double mean_of(const tern_confusion *c, double (*of)(const tern_confusion *, int64_t))
{
    double sum = 0;
    int64_t present = 0;
    for (int64_t k = 0; c && k < c->classes; k++) {
        double one = of(c, k);
        if (isnan(one)) continue;
        sum += one;
        present++;
    }
    return sum / (double)present;
}

double tern_confusion_mean_iou(const tern_confusion *c)
{
    return mean_of(c, tern_confusion_iou);
}

double tern_confusion_mean_dice(const tern_confusion *c)
{
    return mean_of(c, tern_confusion_dice);
}
