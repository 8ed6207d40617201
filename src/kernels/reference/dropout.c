/* dropout.c - dropout of elements and of whole channels. */
#include "kernels/dropout.h"
#include "kernels/reference/reference.h"
#include "kernels/space.h"

/* `size` neighbours share one random word. */
static int dropout_drop(const tern__call *call, int64_t size)
{
    const tern__view *x = call->in[0];
    const tern__dropout_attr *a = call->attr;
    int64_t count = tern__view_count(x);
    double scale = x->dtype == TERN_F64 ? a->scale : (double)(float)a->scale;
    for (int64_t i = 0; i < count; i++) {
        int64_t number = i / size;
        tern__philox_words r = tern__philox(a->key, tern__dropout_counter(a, (uint64_t)number / 4));
        double factor = r.word[number % 4] >= a->threshold ? scale : 0;
        tern__reference_put(call, 0, i, factor * tern__view_get(x, i));
    }
    return TERN_OK;
}

int tern__reference_dropout(const tern__call *call)
{
    return dropout_drop(call, 1);
}

int tern__reference_dropout_channels(const tern__call *call)
{
    return dropout_drop(call, tern__space_of(call->in[0]).count);
}
