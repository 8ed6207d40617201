/* confusion.c - the confusion matrix (row: label, column: prediction), and the rank of a label among the
 * scores. */
#include "kernels/confusion.h"
#include "kernels/lines.h"
#include "kernels/reference/reference.h"

static tern__lines class_lines(const tern__view *x)
{
    return tern__lines_of(x, x->ndim > 1);
}

/* Whether a class of score b ranks before one of score a: larger scores do, NaN before all, and of equal
 * ones the earlier class. */
static bool goes_before(double b, double a, bool later)
{
    if (a != a || b != b) return b != b && (a == a || !later);
    return later ? b > a : b >= a;
}

/* The number of scores of a line that rank before that of class `of`. */
static int64_t rank_of(const tern__view *x, const tern__lines *lines, int64_t line, int64_t of)
{
    int64_t start = tern__line_start(lines, line), rank = 0;
    double own = tern__view_get(x, start + of * lines->inner);
    for (int64_t c = 0; c < lines->size; c++)
        if (c != of) rank += goes_before(tern__view_get(x, start + c * lines->inner), own, c > of);
    return rank;
}

static int confusion_check_labels(const tern__call *call, const tern__view *label, tern__labels labels,
                                  int64_t ignored)
{
    const tern__view *truth = call->in[1];
    for (int64_t i = 0; i < tern__view_count(label); i++) {
        int64_t l = tern__view_get_int(label, i);
        if (tern__view_get_int(truth, i) != ignored && (l < 0 || l >= labels.classes))
            return tern__label_error(call->err, labels, i, l);
    }
    return TERN_OK;
}

static int64_t prediction(const tern__call *call, int64_t i)
{
    const tern__confusion_attr *attr = call->attr;
    const tern__view *x = call->in[0];
    if (attr->predict == TERN__PREDICT_CLASS) return tern__view_get_int(x, i);
    if (attr->predict == TERN__PREDICT_ABOVE) return tern__view_get(x, i) > attr->threshold;
    tern__lines lines = class_lines(x);
    int64_t start = tern__line_start(&lines, i), best = 0;
    for (int64_t c = 1; c < lines.size; c++) {
        double largest = tern__view_get(x, start + best * lines.inner);
        if (goes_before(tern__view_get(x, start + c * lines.inner), largest, true)) best = c;
    }
    return best;
}

int tern__reference_confusion(const tern__call *call)
{
    const tern__confusion_attr *attr = call->attr;
    const tern__view *label = call->in[1];
    int status = confusion_check_labels(call, label, attr->labels, attr->ignored);
    if (!status && attr->predict == TERN__PREDICT_CLASS)
        status = confusion_check_labels(call, call->in[0], tern__predictions(attr), attr->ignored);
    for (int64_t i = 0; i < tern__view_count(label) && !status; i++) {
        int64_t truth = tern__view_get_int(label, i);
        if (truth == attr->ignored) continue;
        int64_t at = truth * attr->labels.classes + prediction(call, i);
        tern__view_set_int(call->out[0], at, tern__view_get_int(call->out[0], at) + 1);
    }
    return status;
}

int tern__reference_label_rank(const tern__call *call)
{
    const tern__confusion_attr *attr = call->attr;
    const tern__view *x = call->in[0], *label = call->in[1];
    tern__lines lines = class_lines(x);
    int status = confusion_check_labels(call, label, attr->labels, attr->ignored);
    for (int64_t i = 0; i < tern__view_count(label) && !status; i++) {
        int64_t truth = tern__view_get_int(label, i);
        tern__view_set_int(call->out[0], i, truth == attr->ignored ? -1 : rank_of(x, &lines, i, truth));
    }
    return status;
}
