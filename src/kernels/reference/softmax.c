/* softmax.c - softmax: y = exp(x) / sum exp(x) along one dimension, and its logarithm. Their gradients are
 * dx = y (dy - sum dy y) and dx = dy - exp(y) sum dy. */
#include "kernels/lines.h"
#include "kernels/reference/reference.h"

#include <math.h>

typedef struct line {
    int64_t start, size, step;
} line;

static line softmax_line_of(const tern__lines *lines, int64_t number)
{
    return (line){tern__line_start(lines, number), lines->size, lines->inner};
}

static double softmax_get(const tern__view *view, const line *l, int64_t i)
{
    return tern__view_get(view, l->start + i * l->step);
}

static tern__lines softmax_lines_of(const tern__call *call)
{
    return tern__lines_of(call->out[0], ((const tern__dim_attr *)call->attr)->dim);
}

/* ---- forward ---- */

static void forward_line(const tern__call *call, const line *l, bool log_of)
{
    const tern__view *x = call->in[0];
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < l->size; i++) top = fmax(top, softmax_get(x, l, i));
    for (int64_t i = 0; i < l->size; i++) sum += exp(softmax_get(x, l, i) - top);
    for (int64_t i = 0; i < l->size; i++) {
        double shifted = softmax_get(x, l, i) - top;
        tern__reference_put(call, 0, l->start + i * l->step,
                            log_of ? shifted - log(sum) : exp(shifted) / sum);
    }
}

static int softmax_lines_forward(const tern__call *call, bool log_of)
{
    tern__lines lines = softmax_lines_of(call);
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) {
        line l = softmax_line_of(&lines, n);
        forward_line(call, &l, log_of);
    }
    return TERN_OK;
}

int tern__reference_softmax(const tern__call *call)
{
    return softmax_lines_forward(call, false);
}

int tern__reference_log_softmax(const tern__call *call)
{
    return softmax_lines_forward(call, true);
}

/* ---- gradient ---- */

static void gradient_line(const tern__call *call, const line *l, bool log_of)
{
    const tern__view *dy = call->in[0], *y = call->in[1];
    double sum = 0;
    for (int64_t i = 0; i < l->size; i++) sum += softmax_get(dy, l, i) * (log_of ? 1 : softmax_get(y, l, i));
    for (int64_t i = 0; i < l->size; i++) {
        double d = softmax_get(dy, l, i), of = softmax_get(y, l, i);
        tern__reference_put(call, 0, l->start + i * l->step, log_of ? d - exp(of) * sum : of * (d - sum));
    }
}

static int softmax_lines_gradient(const tern__call *call, bool log_of)
{
    tern__lines lines = softmax_lines_of(call);
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) {
        line l = softmax_line_of(&lines, n);
        gradient_line(call, &l, log_of);
    }
    return TERN_OK;
}

int tern__reference_softmax_grad(const tern__call *call)
{
    return softmax_lines_gradient(call, false);
}

int tern__reference_log_softmax_grad(const tern__call *call)
{
    return softmax_lines_gradient(call, true);
}
