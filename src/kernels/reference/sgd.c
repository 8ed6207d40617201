#include "kernels/sgd.h"
#include "kernels/reference/reference.h"

int tern__reference_sgd(const tern__call *call)
{
    const tern__sgd_attr *attr = call->attr;
    const tern__view *p = call->out[0], *b = call->out[1];
    int64_t count = tern__view_count(p);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i);
        double g = tern__view_get(call->in[0], i) + attr->weight_decay * value;
        if (b) {
            double moving = attr->momentum * tern__view_get(b, i) + g;
            tern__view_set(b, i, moving);
            g = attr->nesterov != 0 ? g + attr->momentum * moving : moving;
        }
        tern__view_set(p, i, value - attr->lr * g);
    }
    return TERN_OK;
}
