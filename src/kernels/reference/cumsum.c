/* cumsum.c - sums of each element of a line and those before it; sums of integers wrap. */
#include "kernels/cumsum.h"
#include "kernels/reference/reference.h"

static void cumsum_line(const tern__call *call, const tern__lines *lines, int64_t line, bool back)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t start = tern__line_start(lines, line);
    uint64_t whole = 0;
    double sum = 0;
    for (int64_t i = 0; i < lines->size; i++) {
        int64_t at = start + (back ? lines->size - 1 - i : i) * lines->inner;
        if (tern__dtype_is_float(x->dtype)) {
            sum += tern__view_get(x, at);
            tern__reference_put(call, 0, at, sum);
        } else {
            whole += (uint64_t)tern__view_get_int(x, at);
            tern__view_set_int(y, at,
                               (int64_t)(call->add[0] ? whole + (uint64_t)tern__view_get_int(y, at) : whole));
        }
    }
}

int tern__reference_cumsum(const tern__call *call)
{
    const tern__cumsum_attr *attr = call->attr;
    tern__lines lines = tern__lines_of(call->in[0], attr->dim);
    for (int64_t n = 0; n < lines.outer * lines.inner; n++) cumsum_line(call, &lines, n, attr->back != 0);
    return TERN_OK;
}
