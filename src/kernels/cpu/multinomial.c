/* multinomial.c - draws categories by their weights: a binary search in the sums, or the largest keys by a
 * heap. The same categories as the reference's. */
#include "kernels/multinomial.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/select.h"

#include <math.h>

/* A thread's numbers: the sums up to each category, or the best keys. */
typedef union choice {
    double sum;
    tern__candidate best;
} choice;

static void draw_with_replacement(const tern__call *call, int64_t row, int64_t categories, choice *sums)
{
    const tern__multinomial_attr *attr = call->attr;
    int64_t *to = (int64_t *)call->out[0]->data + row * attr->count, last = 0;
    double sum = 0;
    for (int64_t c = 0; c < categories; c++) {
        double weight = tern__view_get(call->in[0], row * categories + c);
        if (weight > 0) last = c;
        sums[c].sum = sum += weight;
    }
    for (int64_t s = 0; s < attr->count; s++) {
        double target = sum * tern__multinomial_uniform(attr, row * attr->count + s);
        int64_t low = 0, high = last;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (sums[middle].sum > target)
                high = middle;
            else
                low = middle + 1;
        }
        to[s] = low;
    }
}

static void draw_without_replacement(const tern__call *call, int64_t row, int64_t categories, choice *best)
{
    const tern__multinomial_attr *attr = call->attr;
    int64_t *to = (int64_t *)call->out[0]->data + row * attr->count, n = 0;
    tern__candidate *heap = &best->best;
    for (int64_t c = 0; c < categories; c++) {
        double weight = tern__view_get(call->in[0], row * categories + c);
        if (!(weight > 0)) continue;
        double key = log(tern__multinomial_uniform(attr, row * categories + c)) / weight;
        tern__heap_offer(heap, &n, attr->count, (tern__candidate){tern__key_of_real(key), c});
    }
    tern__heap_sort(heap, n, attr->count);
    for (int64_t s = 0; s < attr->count; s++) to[s] = heap[s].index;
}

int tern__cpu_multinomial(const tern__call *call)
{
    const tern__multinomial_attr *attr = call->attr;
    const tern__view *w = call->in[0];
    int64_t categories = w->shape[w->ndim - 1], rows = w->ndim > 1 ? w->shape[0] : 1;
    for (int64_t row = 0; row < rows; row++) {
        double sum;
        int status = tern__multinomial_check(call, row, &sum);
        if (status) return status;
    }
    if (attr->count == 0 || rows == 0) return TERN_OK;
    int threads = (int)TERN__MIN(tern__loop_threads(call, tern__view_count(w)), rows);
    size_t each = (size_t)(attr->replacement ? categories : attr->count);
    choice *own = tern__loop_scratch(call, (size_t)threads * each * sizeof(*own));
    if (!own) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t row = rows * t / threads; row < rows * (t + 1) / threads; row++)
            (attr->replacement ? draw_with_replacement : draw_without_replacement)(call, row, categories,
                                                                                   own + (size_t)t * each);
    return TERN_OK;
}
