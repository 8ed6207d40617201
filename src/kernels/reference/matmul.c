/* matmul.c - the matrix product, with a bias and a ReLU. */
#include "kernels/matmul.h"
#include "kernels/reference/reference.h"

/* The row-major indices of y's element (n, i, j), of a's first element in row (n, i) and of b's first in
 * column (n, j). */
typedef struct place {
    int64_t y, a, b;
} place;

static place matmul_place_of(const tern__call *call, int64_t element)
{
    const tern__view *y = call->out[0];
    int64_t m = y->shape[y->ndim - 2], n = y->shape[y->ndim - 1], k = call->in[0]->shape[y->ndim - 1];
    int64_t j = element % n, i = element / n % m, batch = element / n / m;
    return (place){element, (batch * m + i) * k, batch * k * n + j};
}

static double dot(const tern__call *call, place at)
{
    const tern__view *a = call->in[0], *b = call->in[1];
    int64_t k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    double sum = 0;
    for (int64_t p = 0; p < k; p++) sum += tern__view_get(a, at.a + p) * tern__view_get(b, at.b + p * n);
    return sum;
}

/* Integers wrap. */
static int64_t dot_integers(const tern__call *call, place at)
{
    const tern__view *a = call->in[0], *b = call->in[1];
    int64_t k = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    uint64_t sum = 0;
    for (int64_t p = 0; p < k; p++)
        sum += (uint64_t)tern__view_get_int(a, at.a + p) * (uint64_t)tern__view_get_int(b, at.b + p * n);
    return (int64_t)sum;
}

static int matmul_integers(const tern__call *call)
{
    const tern__view *y = call->out[0], *bias = call->in[2];
    int64_t count = tern__view_count(y);
    for (int64_t e = 0; e < count; e++) {
        uint64_t sum = (uint64_t)dot_integers(call, matmul_place_of(call, e));
        if (bias) sum += (uint64_t)tern__view_get_int(bias, e % bias->shape[0]);
        tern__view_set_int(y, e, (int64_t)sum);
    }
    return TERN_OK;
}

int tern__reference_matmul(const tern__call *call)
{
    const tern__view *y = call->out[0], *bias = call->in[2];
    int64_t count = tern__view_count(y);
    if (!tern__dtype_is_float(y->dtype)) return matmul_integers(call);
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t e = 0; e < count; e++) {
        double *to = &sums[tern__view_offset(y, e)];
        *to += dot(call, matmul_place_of(call, e)) + (bias ? tern__view_get(bias, e % bias->shape[0]) : 0);
    }
    tern__reference_sums_put(call, sums, 1);
    const tern__call relu = tern__matmul_relu(call);
    return tern__matmul_has_relu(call) ? tern__reference_pointwise(&relu) : TERN_OK;
}
