#include "kernels/norm_factors.h"
#include "kernels/pieces.h"
#include "kernels/reference/reference.h"

/* Nothing is larger than a NaN. */
static double join(double a, double b, double p)
{
    return isinf(p) ? (b > a || b != b ? b : a) : a + b;
}

/* What the sums of piece n say. */
static void decide(const tern__call *call, int64_t n)
{
    const tern__norm_attr *attr = call->attr;
    const tern__view *sums = call->in[0];
    tern__piece piece = tern__piece_get(tern__piece_table(call->in[1]), n, sums->shape[0]);
    double all[2] = {0, 0}, factors[3];
    int64_t columns = sums->shape[1], first = piece.begin * columns;
    for (int64_t i = first; i < first + piece.count * columns; i++)
        all[i % columns] = join(all[i % columns], tern__view_get(sums, i), attr->p);
    double x = tern__norm_root(all[0], attr->p), y = tern__norm_root(all[1], attr->p);
    tern__norm_factors(attr, x, y, factors);
    for (int i = 0; i < 3; i++) tern__view_set(call->out[0], 3 * piece.row + i, factors[i]);
    if (call->out[1]) tern__view_set(call->out[1], 0, x);
}

int tern__reference_norm_factors(const tern__call *call)
{
    int64_t count = tern__piece_count(call->in[1]);
    for (int64_t n = 0; n < count; n++) decide(call, n);
    return TERN_OK;
}
