#include "kernels/power_sum.h"
#include "kernels/pieces.h"
#include "kernels/reference/reference.h"

#include <math.h>

static double sum_of(const tern__view *x, tern__piece piece, double p)
{
    double sum = 0;
    for (int64_t i = piece.begin; i < piece.begin + piece.count; i++) {
        double size = fabs(tern__view_get(x, i));
        if (!isinf(p))
            sum += pow(size, p);
        else if (size > sum || size != size) /* nothing is larger than a NaN */
            sum = size;
    }
    return sum;
}

int tern__reference_power_sum(const tern__call *call)
{
    const tern__view *x = call->in[0], *pieces = call->in[1];
    int64_t count = tern__piece_count(pieces), all = tern__view_count(x);
    for (int64_t n = 0; n < count; n++) {
        tern__piece piece = tern__piece_get(tern__piece_table(pieces), n, all);
        tern__reference_put(call, 0, n, sum_of(x, piece, ((const tern__power_attr *)call->attr)->p));
    }
    return TERN_OK;
}
