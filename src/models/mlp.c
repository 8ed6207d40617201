/* mlp.c - a multilayer perceptron: linear layers with ReLUs between them. */
#include "base/base.h"

#include <tern/models.h>

tern_module *tern_mlp_new(const int64_t *sizes, int count, tern_rng *rng, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!sizes) {
        tern__error_set(err, __func__, TERN_E_INVALID, "mlp: the sizes are NULL");
        return NULL;
    }
    if (count < 2) {
        tern__error_set(err, __func__, TERN_E_RANGE, "mlp: expected at least 2 sizes, got %d", count);
        return NULL;
    }
    tern_module *net = tern_sequential_new(err);
    bool whole = net;
    for (int i = 0; i + 1 < count && whole; i++) {
        if (i) whole = tern_sequential_add(net, tern_relu_new(err), err);
        if (whole)
            whole = tern_sequential_add(net, tern_linear_new(sizes[i], sizes[i + 1], NULL, rng, err), err);
    }
    if (whole) return net;
    tern_module_free(net);
    return NULL;
}
