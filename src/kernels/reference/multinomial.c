/* multinomial.c - draws categories by their weights. */
#include "kernels/multinomial.h"
#include "kernels/reference/reference.h"

#include <math.h>

int tern__multinomial_check(const tern__call *call, int64_t row, double *sum)
{
    const tern__multinomial_attr *attr = call->attr;
    const tern__view *w = call->in[0];
    int64_t categories = w->shape[w->ndim - 1], positive = 0;
    *sum = 0;
    for (int64_t c = 0; c < categories; c++) {
        double weight = tern__view_get(w, row * categories + c);
        if (!(weight >= 0) || isinf(weight))
            return tern__error_set(
                call->err, "tern_multinomial", TERN_E_RANGE,
                "multinomial: weight %g of category %lld in row %lld is not a finite number "
                "of at least 0",
                weight, (long long)c, (long long)row);
        positive += weight > 0;
        *sum += weight;
    }
    int64_t needed = attr->replacement ? 1 : attr->count;
    if (positive >= needed || attr->count == 0) return TERN_OK;
    return tern__error_set(
        call->err, "tern_multinomial", TERN_E_RANGE,
        "multinomial: row %lld has %lld categories with weights above 0, expected at least %lld",
        (long long)row, (long long)positive, (long long)needed);
}

static int64_t with_replacement(const tern__call *call, int64_t row, int64_t sample, double sum)
{
    const tern__multinomial_attr *attr = call->attr;
    const tern__view *w = call->in[0];
    int64_t categories = w->shape[w->ndim - 1], last = 0;
    double target = sum * tern__multinomial_uniform(attr, row * attr->count + sample), before = 0;
    for (int64_t c = 0; c < categories; c++) {
        double weight = tern__view_get(w, row * categories + c);
        if (!(weight > 0)) continue;
        before += weight;
        last = c;
        if (before > target) break;
    }
    return last;
}

static double multinomial_key(const tern__call *call, int64_t place)
{
    double weight = tern__view_get(call->in[0], place);
    return weight > 0 ? log(tern__multinomial_uniform(call->attr, place)) / weight : -INFINITY;
}

/* The best of those that the key and the category before do not beat. */
static int64_t without_replacement(const tern__call *call, int64_t row, int64_t before)
{
    int64_t categories = call->in[0]->shape[call->in[0]->ndim - 1], first = row * categories, best = -1;
    double most = before < 0 ? 0 : multinomial_key(call, first + before), top = 0;
    for (int64_t c = 0; c < categories; c++) {
        double key = multinomial_key(call, first + c);
        if (before >= 0 && (key > most || (key == most && c <= before))) continue;
        if (best >= 0 && key <= top) continue;
        best = c;
        top = key;
    }
    return best;
}

int tern__reference_multinomial(const tern__call *call)
{
    const tern__multinomial_attr *attr = call->attr;
    const tern__view *w = call->in[0];
    int64_t rows = w->ndim > 1 ? w->shape[0] : 1;
    for (int64_t row = 0; row < rows; row++) {
        double sum;
        int64_t chosen = -1;
        int status = tern__multinomial_check(call, row, &sum);
        if (status) return status;
        for (int64_t s = 0; s < attr->count; s++) {
            chosen = attr->replacement ? with_replacement(call, row, s, sum)
                                       : without_replacement(call, row, chosen);
            tern__view_set_int(call->out[0], row * attr->count + s, chosen);
        }
    }
    return TERN_OK;
}
