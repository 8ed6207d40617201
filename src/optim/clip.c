/* clip.c - the gradients of a module tree, one parameter after another: the bytes between them in their range
 * must stay zero, whatever the gradients are multiplied with. */
#include "kernels/pointwise.h"
#include "kernels/power_sum.h"
#include "nn/nn.h"
#include "ops/ops.h"

#include <tern/optim.h>

#include <math.h>

typedef struct clip {
    tern_scope *scope;
    double p, sum; /* of the norm; the largest size for p = infinity */
    tern__kernel kernel;
    tern__pointwise_attr attr; /* what is done to each gradient */
} clip;

typedef bool (*visit_fn)(clip *c, const tern__view *grad);

/* A parameter of several names counts under the first. */
static bool has_grad(const tern_module *root, const tern__member *member)
{
    const tern__leaf *leaf = member->tensor.leaf;
    return leaf && leaf->fresh && (!leaf->shared || tern__leaf_member(root, leaf) == member);
}

/* Calls `visit` with all gradients under the module, a part of `root`; false after a failure. */
static bool each_grad(const tern_module *root, const tern_module *module, visit_fn visit, clip *c)
{
    for (tern__member *member = module->tree->members; member; member = member->next)
        if (has_grad(root, member) && !visit(c, &member->tensor.leaf->grad->view)) return false;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        if (!each_grad(root, child->module, visit, c)) return false;
    return true;
}

static bool add_powers(clip *c, const tern__view *grad)
{
    double part = 0;
    tern__power_attr attr = {c->p};
    tern__view sum = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    sum.data = &part;
    tern__call call = {.kernel = TERN__POWER_SUM, .in = {grad}, .out = {&sum}, .attr = &attr};
    if (!tern__run(c->scope, &call)) return false;
    if (!isinf(c->p))
        c->sum += part;
    else if (part > c->sum || part != part) /* nothing is larger than a NaN */
        c->sum = part;
    return true;
}

static bool change(clip *c, const tern__view *grad)
{
    tern__call call = {.kernel = c->kernel, .in = {grad}, .out = {grad}, .attr = &c->attr};
    return tern__run(c->scope, &call);
}

/* `value` is the argument called `name`. */
static bool check(tern_scope *scope, const char *func, const tern_module *module, const char *name,
                  double value)
{
    if (scope->error.code) return false;
    if (!module)
        tern__scope_fail(scope, func, TERN_E_INVALID, "the module is NULL");
    else if (!(value >= 0))
        tern__scope_fail(scope, func, TERN_E_RANGE, "expected %s >= 0, got %g", name, value);
    return !scope->error.code;
}

/* max_norm / (norm + 1e-6) for a norm above max_norm, and for one that is NaN. */
static bool scale(clip *c, const tern_module *module, double max_norm, double norm)
{
    double factor = max_norm / (norm + 1e-6);
    if (factor >= 1) return true;
    c->kernel = TERN__SCALE;
    c->attr.k[0] = factor;
    return each_grad(module, module, change, c);
}

tern_tensor *tern_clip_grad_norm(tern_scope *scope, tern_module *module, double max_norm, double norm_type)
{
    if (!check(scope, __func__, module, "max_norm", max_norm)) return NULL;
    if (!(norm_type > 0)) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "expected norm_type > 0, got %g", norm_type);
        return NULL;
    }
    clip c = {.scope = scope, .p = norm_type};
    if (!each_grad(module, module, add_powers, &c)) return NULL;
    double norm = isinf(c.p) ? c.sum : c.p == 2 ? sqrt(c.sum) : pow(c.sum, 1 / c.p);
    if (!scale(&c, module, max_norm, norm)) return NULL;
    tern_tensor *result = tern__result(scope, TERN_F32, TERN__PLAIN, 0, NULL);
    return result && tern__fill(scope, &result->view, norm) ? result : NULL;
}

void tern_clip_grad_value(tern_scope *scope, tern_module *module, double limit)
{
    if (!check(scope, __func__, module, "limit", limit)) return;
    clip c = {.scope = scope, .kernel = TERN__CLAMP, .attr = {{-limit, limit}}};
    each_grad(module, module, change, &c);
}
