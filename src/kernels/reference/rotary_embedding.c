/* rotary_embedding.c - pairs of elements of each row are turned. */
#include "kernels/rotary_embedding.h"
#include "kernels/reference/reference.h"

int tern__reference_rotary_embedding(const tern__call *call)
{
    const tern__view *x = call->in[0], *cosine = call->in[1], *sine = call->in[2];
    const tern__rotary_attr *attr = call->attr;
    int64_t size = x->shape[x->ndim - 1], pairs = cosine->shape[cosine->ndim - 1],
            count = tern__view_count(x);
    for (int64_t row = 0; row * size < count; row++) {
        for (int64_t k = 0; k < pairs; k++) {
            int64_t first = row * size + (attr->interleaved ? 2 * k : k);
            int64_t second = first + (attr->interleaved ? 1 : pairs);
            double a = tern__view_get(x, first), b = tern__view_get(x, second);
            double c = tern__view_get(cosine, row * pairs + k), s = tern__view_get(sine, row * pairs + k);
            if (attr->back) s = -s;
            tern__reference_put(call, 0, first, a * c - b * s);
            tern__reference_put(call, 0, second, b * c + a * s);
        }
        for (int64_t d = 2 * pairs; d < size; d++)
            tern__reference_put(call, 0, row * size + d, tern__view_get(x, row * size + d));
    }
    return TERN_OK;
}
