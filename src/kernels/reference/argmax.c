/* argmax.c - the first of a line's largest or smallest elements; a NaN counts as either. Integers are
 * compared as integers. */
#include "kernels/lines.h"
#include "kernels/reference/reference.h"

/* Whether element i wins over element j, which comes later in the line. */
static bool beats(const tern__view *x, int64_t i, int64_t j, bool least)
{
    if (!tern__dtype_is_float(x->dtype)) {
        int64_t a = tern__view_get_int(x, i), b = tern__view_get_int(x, j);
        return least ? a < b : a > b;
    }
    double a = tern__view_get(x, i), b = tern__view_get(x, j);
    return b == b && (a != a || (least ? a < b : a > b));
}

static void argmax_choose_one(const tern__call *call, const tern__lines *lines, int64_t line, bool least)
{
    const tern__view *x = call->in[0], *index = call->out[0], *value = call->out[1];
    int64_t start = tern__line_start(lines, line), best = 0;
    for (int64_t i = 1; i < lines->size; i++)
        if (beats(x, start + i * lines->inner, start + best * lines->inner, least)) best = i;
    if (index) tern__view_set_int(index, line, best);
    if (!value) return;
    if (tern__dtype_is_float(x->dtype))
        tern__view_set(value, line, tern__view_get(x, start + best * lines->inner));
    else
        tern__view_set_int(value, line, tern__view_get_int(x, start + best * lines->inner));
}

static int choose_all(const tern__call *call, bool least)
{
    tern__lines lines = tern__lines_of(call->in[0], ((const tern__dim_attr *)call->attr)->dim);
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) argmax_choose_one(call, &lines, n, least);
    return TERN_OK;
}

int tern__reference_argmax(const tern__call *call)
{
    return choose_all(call, false);
}

int tern__reference_argmin(const tern__call *call)
{
    return choose_all(call, true);
}

int tern__reference_choice_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *index = call->in[1], *dx = call->out[0];
    tern__lines lines = tern__lines_of(dx, ((const tern__dim_attr *)call->attr)->dim);
    tern__lines chosen = tern__chosen_lines(&lines, index);
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) {
        int64_t start = tern__line_start(&lines, n), from = tern__line_start(&chosen, n);
        for (int64_t i = 0; i < lines.size; i++) {
            double value = 0;
            for (int64_t j = 0; j < chosen.size; j++)
                if (tern__view_get_int(index, from + j * lines.inner) == i)
                    value = tern__view_get(dy, from + j * lines.inner);
            tern__reference_put(call, 0, start + i * lines.inner, value);
        }
    }
    return TERN_OK;
}
