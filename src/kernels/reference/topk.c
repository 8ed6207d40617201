/* topk.c - the k largest or smallest elements of each line: each is the best of those that the previous ones
 * beat. Of equal elements the first comes first. A NaN is larger than all others. Integers are compared as
 * integers. */
#include "kernels/topk.h"
#include "kernels/reference/reference.h"

/* Whether element i of a line, at `a`, comes before element j, at `b`. */
static bool topk_precedes(const tern__view *x, int64_t a, int64_t i, int64_t b, int64_t j, bool largest)
{
    bool less, more;
    if (tern__dtype_is_float(x->dtype)) {
        double p = tern__view_get(x, a), q = tern__view_get(x, b);
        less = p < q || (p == p && q != q);
        more = p > q || (p != p && q == q);
    } else {
        less = tern__view_get_int(x, a) < tern__view_get_int(x, b);
        more = tern__view_get_int(x, a) > tern__view_get_int(x, b);
    }
    if (less == more) return i < j;
    return largest ? more : less;
}

int tern__reference_topk(const tern__call *call)
{
    const tern__topk_attr *attr = call->attr;
    const tern__view *x = call->in[0], *value = call->out[0];
    tern__lines lines = tern__lines_of(x, attr->dim), kept = {lines.outer, attr->k, lines.inner};
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) {
        int64_t start = tern__line_start(&lines, n), step = lines.inner, last = -1;
        for (int64_t j = 0; j < attr->k; j++) {
            int64_t best = -1, to = tern__line_start(&kept, n) + j * step;
            for (int64_t i = 0; i < lines.size; i++) {
                int64_t at = start + i * step;
                bool is_left = last < 0 || topk_precedes(x, start + last * step, last, at, i, attr->largest);
                if (!is_left || i == last) continue;
                if (best < 0 || topk_precedes(x, at, i, start + best * step, best, attr->largest)) best = i;
            }
            last = best;
            tern__view_set_int(call->out[1], to, best);
            if (value && tern__dtype_is_float(x->dtype))
                tern__view_set(value, to, tern__view_get(x, start + best * step));
            else if (value)
                tern__view_set_int(value, to, tern__view_get_int(x, start + best * step));
        }
    }
    return TERN_OK;
}
