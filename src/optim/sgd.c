#include "optim/optim.h"

#include "base/opts.h"
#include "kernels/sgd.h"

tern_sgd_opts tern_sgd_defaults(void)
{
    return (tern_sgd_opts){.size = sizeof(tern_sgd_opts), .lr = 1e-3};
}

static int check(const tern_module *module, const tern_sgd_opts *o, tern_error *err)
{
    if (!module) return tern__error_set(err, "tern_sgd_new", TERN_E_INVALID, "the module is NULL");
    if (!(o->lr >= 0) || !(o->momentum >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, "tern_sgd_new", TERN_E_RANGE,
                               "sgd: expected lr, momentum and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->momentum, o->weight_decay);
    if (o->nesterov && o->momentum == 0)
        return tern__error_set(err, "tern_sgd_new", TERN_E_INVALID, "sgd: nesterov wants a momentum > 0");
    return TERN_OK;
}

tern_optim *tern_sgd_new(tern_module *module, const tern_sgd_opts *opts, tern_error *err)
{
    tern_sgd_opts o = tern_sgd_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || check(module, &o, err))
        return NULL;
    tern__seal *seal = tern__module_seal(module, err);
    tern_optim *optim = seal ? tern__alloc(sizeof(*optim), __func__, err) : NULL;
    if (!optim) return NULL;
    *optim = (tern_optim){.seal = seal, .sgd = o};
    for (int r = 0; r < seal->range_count && o.momentum > 0; r++) {
        optim->momentum[r] = tern__alloc(seal->ranges[r].bytes, __func__, err);
        if (optim->momentum[r]) continue;
        tern_optim_free(optim);
        return NULL;
    }
    return optim;
}

void tern_optim_free(tern_optim *optim)
{
    if (!optim) return;
    for (int r = 0; r < TERN_DTYPE_COUNT; r++) tern__free(optim->momentum[r]);
    tern__free(optim);
}

double tern_optim_lr_get(const tern_optim *optim)
{
    return optim->sgd.lr;
}

void tern_optim_lr_set(tern_optim *optim, double lr)
{
    optim->sgd.lr = lr;
}

/* One kernel call over the leaves [first, last], neighbours in one range: the gaps between them are zeros in
 * all three ranges and stay zeros. */
static bool update(tern_optim *optim, tern_scope *scope, int first, int last)
{
    tern__seal *seal = optim->seal;
    int r = seal->range_of[first];
    tern__range *range = &seal->ranges[r];
    size_t begin = seal->offset[first];
    size_t end = seal->offset[last] + tern__view_bytes(&seal->leaves[last]->parameter->view);
    int64_t count = (int64_t)((end - begin) / tern_dtype_bytes(range->dtype));
    tern__view p = tern__view_make(range->dtype, TERN__PLAIN, 1, &count), g = p, b = p;
    p.data = range->params + begin;
    g.data = range->grads + begin;
    b.data = optim->momentum[r] ? optim->momentum[r] + begin : NULL;
    tern__sgd_attr attr = {.lr = optim->sgd.lr,
                           .momentum = optim->sgd.momentum,
                           .weight_decay = optim->sgd.weight_decay,
                           .nesterov = optim->sgd.nesterov};
    tern__call call = {.kernel = TERN__SGD, .in = {&g}, .out = {&p, b.data ? &b : NULL}, .attr = &attr};
    return tern__run(scope, &call);
}

static void finish(tern__seal *seal)
{
    for (int k = 0; k < seal->leaf_count; k++) {
        seal->leaves[k]->packs.version += seal->leaves[k]->fresh;
        seal->leaves[k]->fresh = false;
    }
}

void tern_optim_step(tern_optim *optim, tern_scope *scope)
{
    if (!optim || scope->error.code) return;
    tern__seal *seal = optim->seal;
    for (int k = 0, last; k < seal->leaf_count; k = last + 1) {
        last = k;
        if (!seal->leaves[k]->fresh) continue;
        while (last + 1 < seal->leaf_count && seal->leaves[last + 1]->fresh &&
               seal->range_of[last + 1] == seal->range_of[k])
            last++;
        if (!update(optim, scope, k, last)) return;
    }
    finish(seal);
}
