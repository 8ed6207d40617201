/* clip.c - clips the gradients of a module tree, by norm or by value. Gradients that adjoin in a range go
 * through the kernels together. Those with padding in between do not: padding must stay zero, whatever
 * gradients are multiplied by. */
#include "kernels/norm_factors.h"
#include "kernels/pointwise.h"
#include "kernels/loss_scale.h"
#include "nn/nn.h"
#include "ops/ops.h"
#include "tensor/number.h"

#include <tern/optim.h>

typedef struct clip {
    tern_scope *scope;
    const tern__seal *seal; /* NULL: there are no gradients */
    const tern_module *module;
    double p, *sums;                     /* of the norm, by run */
    const tern__pointwise_attr *between; /* limits              */
    const double *factor;
} clip;

typedef bool (*visit_fn)(clip *c, const tern__view *run, int number);

static bool counts(const clip *c, int k)
{
    const tern__leaf *leaf = c->seal->leaves[k];
    return leaf->fresh && tern__leaf_is_under(leaf, c->module);
}

/* Returns the run that begins with leaf k; *next is the leaf behind it. */
static tern__view run_of(const clip *c, int k, int *next)
{
    const tern__view *first = &c->seal->leaves[k]->grad->view, *last = first;
    for (*next = k + 1; *next < c->seal->leaf_count; ++*next) {
        if (c->seal->range_of[*next] != c->seal->range_of[k]) continue;
        const tern__view *grad = &c->seal->leaves[*next]->grad->view;
        if (!counts(c, *next) || grad->data != (char *)last->data + tern__view_bytes(last)) break;
        last = grad;
    }
    return tern__view_span(first, last);
}

/* Calls `visit`, if it is not NULL, with all gradients under the module; returns how many runs there are, or
 * -1 after a failure. */
static int each_run(clip *c, visit_fn visit)
{
    int runs = 0;
    for (int r = 0; c->seal && r < c->seal->range_count; r++)
        for (int k = 0, next; k < c->seal->leaf_count; k = next) {
            next = k + 1;
            if (c->seal->range_of[k] != r || !counts(c, k)) continue;
            tern__view run = run_of(c, k, &next);
            tern__go_to(c->scope, run.data);
            if (visit && !visit(c, &run, runs)) return -1;
            runs++;
        }
    return runs;
}

static bool add_powers(clip *c, const tern__view *run, int number)
{
    tern__power_attr attr = {c->p};
    tern__view sum = tern__number_view(c->sums + number);
    tern__call call = {.kernel = TERN__POWER_SUM, .in = {run}, .out = {&sum}, .attr = &attr};
    return tern__run(c->scope, &call);
}

static bool clip_scale(clip *c, const tern__view *run, int number)
{
    (void)number;
    tern__view view;
    const tern__view *given = tern__number_operand(c->factor, &view);
    tern__unscale_attr attr = {given ? 1 : *c->factor};
    tern__call call = {.kernel = TERN__UNSCALE, .in = {run, given}, .out = {run}, .attr = &attr};
    return tern__run(c->scope, &call);
}

static bool limit_to(clip *c, const tern__view *run, int number)
{
    (void)number;
    tern__call call = {.kernel = TERN__CLAMP, .in = {run}, .out = {run}, .attr = c->between};
    return tern__run(c->scope, &call);
}

/* Checks the argument called `name`. */
static bool clip_begin(clip *c, const char *func, tern_module *module, const char *name, double value)
{
    if (!c->scope || c->scope->error.code) return false;
    if (!module)
        tern__scope_fail(c->scope, func, TERN_E_INVALID, "the module is NULL");
    else if (!(value >= 0))
        tern__scope_fail(c->scope, func, TERN_E_RANGE, "expected %s >= 0, got %g", name, value);
    if (c->scope->error.code) return false;
    c->module = module;
    c->seal = tern__module_root(module)->tree->seal;
    return true;
}

/* Computes the norm, and the factor that gradients are multiplied by. */
static tern_tensor *clip_measure(clip *c, int runs, double max_norm)
{
    tern__norm_attr attr = {.use = TERN__NORM_CLIP, .p = c->p, .most = max_norm, .eps = 1e-6};
    tern_tensor *sums = tern__result(c->scope, TERN_F64, TERN__PLAIN, 2, (int64_t[]){runs, 1});
    tern_tensor *factors = tern__result(c->scope, TERN_F64, TERN__PLAIN, 1, (int64_t[]){3});
    tern_tensor *norm = tern__result(c->scope, TERN_F32, TERN__PLAIN, 0, NULL);
    if (!sums || !factors || !norm) return NULL;
    c->sums = sums->view.data;
    c->factor = (double *)factors->view.data + 1;
    if (each_run(c, add_powers) < 0) return NULL;
    tern__go_to(c->scope, c->sums);
    tern__call call = {.kernel = TERN__NORM_FACTORS,
                       .in = {&sums->view},
                       .out = {&factors->view, &norm->view},
                       .attr = &attr};
    return tern__run(c->scope, &call) ? norm : NULL;
}

tern_tensor *tern_clip_grad_norm(tern_scope *scope, tern_module *module, double max_norm, double norm_type)
{
    clip c = {.scope = scope, .p = norm_type};
    if (!clip_begin(&c, __func__, module, "max_norm", max_norm)) return NULL;
    if (!(norm_type > 0)) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "expected norm_type > 0, got %g", norm_type);
        return NULL;
    }
    int runs = each_run(&c, NULL);
    if (runs == 0) {
        tern_tensor *none = tern__result(scope, TERN_F32, TERN__PLAIN, 0, NULL);
        return none && tern__fill(scope, &none->view, 0) ? none : NULL;
    }
    tern_tensor *norm = clip_measure(&c, runs, max_norm);
    bool stays = norm && !tern__number_is_on_device(c.factor) && *c.factor == 1;
    return norm && (stays || each_run(&c, clip_scale) >= 0) ? norm : NULL;
}

void tern_clip_grad_value(tern_scope *scope, tern_module *module, double limit)
{
    const tern__pointwise_attr between = {{-limit, limit}};
    clip c = {.scope = scope, .between = &between};
    if (clip_begin(&c, __func__, module, "limit", limit)) each_run(&c, limit_to);
}
