/* group_norm.c - layer norm, root mean square norm and group norm. One kernel computes all of them, on x
 * viewed as (N, G, K, S) (kernels/group_norm.h). */
#include "kernels/group_norm.h"
#include "ops/ops.h"

#include <string.h>

/* The inputs, and the saved tensors. */
enum { X, WEIGHT, BIAS };
enum { SAVED_X, SAVED_MEAN, SAVED_INVERSE, SAVED_WEIGHT, SAVED_BIAS };

typedef struct record {
    tern__group_norm_attr attr;
    int64_t shape[4]; /* as which x is viewed */
} record;

static tern__view group_norm_seen_as(const tern__view *view, const record *r)
{
    tern__view seen = tern__view_make(view->dtype, TERN__PLAIN, 4, r->shape);
    seen.data = view->data;
    return seen;
}

/* ---- gradient ---- */

/* Opens the gradients that are wanted. dx overwrites dy if nothing else needs it. */
static int open_gradients(tern_scope *scope, tern__node *node, tern__call *call, bool in_place)
{
    for (int i = X; i <= BIAS; i++) {
        if (!tern__wants(node, i)) continue;
        bool over = i == X && in_place;
        call->out[i] = over ? tern__dy(node) : tern__grad_open(scope, node, i, &call->add[i]);
        if (!call->out[i]) return scope->error.code;
    }
    return TERN_OK;
}

static const tern__view *group_norm_saved(const tern__node *node, int slot)
{
    return node->saved[slot].view.data ? &node->saved[slot].view : NULL;
}

/* The weights come first: their bucket is small and is complete sooner. */
static int group_norm_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    bool in_place = tern__wants(node, X) && tern__owns_dy(node);
    tern__view dy = group_norm_seen_as(tern__dy(node), r),
               x = group_norm_seen_as(&node->saved[SAVED_X].view, r), dx;
    tern__call call = {.kernel = TERN__GROUP_NORM_GRAD,
                       .in = {&dy, &x, group_norm_saved(node, SAVED_MEAN), &node->saved[SAVED_INVERSE].view,
                              group_norm_saved(node, SAVED_WEIGHT)},
                       .attr = &r->attr};
    if (open_gradients(scope, node, &call, in_place)) return scope->error.code;
    if (call.out[X]) {
        dx = group_norm_seen_as(call.out[X], r);
        call.out[X] = &dx;
    }
    if (!tern__run(scope, &call)) return scope->error.code;
    for (int i = BIAS; i >= WEIGHT; i--)
        if (tern__wants(node, i) && tern__grad_done(scope, node, i)) return scope->error.code;
    if (!tern__wants(node, X)) return TERN_OK;
    return in_place ? tern__grad_give(scope, node, X, tern__dy(node)) : tern__grad_done(scope, node, X);
}

/* ---- forward ---- */

typedef struct args {
    const char *func, *op; /* for errors */
    tern_tensor *x, *weight, *bias;
} args;

static bool group_norm_enter(tern_scope *scope, args *a)
{
    return TERN__ENTER(scope, a->func, 1, &a->x, &a->weight, &a->bias);
}

/* Checks weight or bias: the shape is that of the last dimensions of `like`, the dtype x's, or f32 if x has
 * 16 bits. */
static int check_vector(tern_scope *scope, const args *a, const char *name, const tern_tensor *vector,
                        int ndim, const int64_t *shape)
{
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    tern_dtype dtype = a->x->view.dtype;
    if (!vector) return TERN_OK;
    tern__view like = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    if (!tern__view_same_shape(&vector->view, &like))
        return tern__scope_fail(scope, a->func, TERN_E_SHAPE, "%s%s: expected a %s of %s, got %s", a->op,
                                tern__layer_text(vector, layer), name, tern__shape_text(&like, want),
                                tern__shape_text(&vector->view, have));
    if (vector->view.dtype == dtype || (vector->view.dtype == TERN_F32 && dtype != TERN_F64)) return TERN_OK;
    return tern__scope_fail(scope, a->func, TERN_E_DTYPE, "%s%s: %s is %s but input is %s", a->op,
                            tern__layer_text(vector, layer), name, tern_dtype_name(vector->view.dtype),
                            tern_dtype_name(dtype));
}

static int group_norm_check(tern_scope *scope, const args *a, int ndim, const int64_t *shape)
{
    if (!tern__dtype_is_float(a->x->view.dtype))
        return tern__scope_fail(scope, a->func, TERN_E_DTYPE, "%s: expected floating point, got %s", a->op,
                                tern_dtype_name(a->x->view.dtype));
    int status = check_vector(scope, a, "weight", a->weight, ndim, shape);
    return status ? status : check_vector(scope, a, "bias", a->bias, ndim, shape);
}

static bool make_plain(tern_scope *scope, args *a)
{
    a->x = tern__plain(scope, a->x);
    if (a->x && a->weight) a->weight = tern__plain(scope, a->weight);
    if (a->x && a->bias) a->bias = tern__plain(scope, a->bias);
    return !scope->error.code;
}

/* What the kernel reads and writes; those that are absent are NULL. */
typedef struct operands {
    const tern__view *x, *weight, *bias, *y, *mean, *inverse;
} operands;

static bool group_norm_run(tern_scope *scope, const record *r, const operands *o)
{
    if (tern__view_count(o->y) == 0)
        return (!o->mean || tern__fill(scope, o->mean, 0)) && tern__fill(scope, o->inverse, 0);
    tern__view x = group_norm_seen_as(o->x, r), y = group_norm_seen_as(o->y, r);
    tern__call call = {.kernel = TERN__GROUP_NORM,
                       .in = {&x, o->weight, o->bias},
                       .out = {&y, o->mean, o->inverse},
                       .attr = &r->attr};
    return tern__run(scope, &call);
}

/* Writes mean and inverse again, too, which have the same bits. */
static bool group_norm_remake(tern_scope *scope, tern__node *node, const tern__view *y)
{
    return group_norm_run(scope, node->attr,
                          &(operands){.x = &node->saved[SAVED_X].view,
                                      .weight = group_norm_saved(node, SAVED_WEIGHT),
                                      .bias = group_norm_saved(node, SAVED_BIAS),
                                      .y = y,
                                      .mean = group_norm_saved(node, SAVED_MEAN),
                                      .inverse = &node->saved[SAVED_INVERSE].view});
}

static tern_tensor *normalise(tern_scope *scope, args *a, const record *r)
{
    if (!make_plain(scope, a)) return NULL;
    const tern__view *x = &a->x->view;
    int64_t rows = r->shape[0] * r->shape[1];
    tern_tensor *mean = r->attr.rms ? NULL : tern__result(scope, TERN_F64, TERN__PLAIN, 1, &rows);
    tern_tensor *inverse = tern__result(scope, TERN_F64, TERN__PLAIN, 1, &rows);
    tern_tensor *y = tern__result(scope, x->dtype, TERN__PLAIN, x->ndim, x->shape);
    if (scope->error.code) return NULL;
    operands o = {x,        a->weight ? &a->weight->view : NULL, a->bias ? &a->bias->view : NULL,
                  &y->view, mean ? &mean->view : NULL,           &inverse->view};
    if (!group_norm_run(scope, r, &o)) return NULL;
    tern__node *node =
        tern__record(scope, a->op, group_norm_gradient, y, 3, (tern_tensor *[]){a->x, a->weight, a->bias});
    tern__save_attr(scope, node, r, sizeof(*r));
    tern__save(node, SAVED_X, a->x);
    if (mean) tern__save(node, SAVED_MEAN, mean);
    tern__save(node, SAVED_INVERSE, inverse);
    tern__save(node, SAVED_WEIGHT, a->weight);
    tern__save(node, SAVED_BIAS, a->bias);
    if (node) node->remake = group_norm_remake;
    return y;
}

/* ---- layer norm and root mean square norm: over the last `ndim` dimensions ---- */

/* Checks the inputs and sees them as rows. */
static int check_rows(tern_scope *scope, const args *a, int ndim, record *r)
{
    const tern__view *v = &a->x->view;
    char shape[TERN__SHAPE_TEXT];
    if (ndim < 1 || ndim > v->ndim)
        return tern__scope_fail(scope, a->func, TERN_E_RANGE,
                                "%s: expected an ndim from 1 to %d for input %s, got %d", a->op, v->ndim,
                                tern__shape_text(v, shape), ndim);
    for (int d = 0; d < 4; d++) r->shape[d] = 1;
    for (int d = 0; d < v->ndim; d++) r->shape[d < v->ndim - ndim ? 0 : 2] *= v->shape[d];
    return group_norm_check(scope, a, ndim, v->shape + v->ndim - ndim);
}

tern_layer_norm_opts tern_layer_norm_defaults(void)
{
    return (tern_layer_norm_opts){.size = sizeof(tern_layer_norm_opts), .ndim = 1, .eps = 1e-5};
}

tern_tensor *tern_layer_norm(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                             const tern_layer_norm_opts *opts)
{
    args a = {__func__, "layer_norm", x, weight, bias};
    tern_layer_norm_opts o = tern_layer_norm_defaults();
    if (!group_norm_enter(scope, &a)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    record r = {.attr = {.eps = o.eps}};
    return check_rows(scope, &a, o.ndim, &r) ? NULL : normalise(scope, &a, &r);
}

tern_rms_norm_opts tern_rms_norm_defaults(void)
{
    return (tern_rms_norm_opts){.size = sizeof(tern_rms_norm_opts), .ndim = 1, .eps = -1};
}

tern_tensor *tern_rms_norm(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                           const tern_rms_norm_opts *opts)
{
    args a = {__func__, "rms_norm", x, weight, NULL};
    tern_rms_norm_opts o = tern_rms_norm_defaults();
    if (!group_norm_enter(scope, &a)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    record r = {.attr = {.eps = o.eps < 0 ? tern__dtype_epsilon(a.x->view.dtype) : o.eps, .rms = 1}};
    return check_rows(scope, &a, o.ndim, &r) ? NULL : normalise(scope, &a, &r);
}

/* ---- group norm ---- */

static int check_groups(tern_scope *scope, const tern__view *x, int64_t groups)
{
    char shape[TERN__SHAPE_TEXT];
    if (x->ndim < 2 || groups < 1 || x->shape[1] % groups)
        return tern__scope_fail(
            scope, "tern_group_norm", TERN_E_SHAPE,
            "group_norm: expected (N, C, ...) with channels that %lld groups divide, got %s",
            (long long)groups, tern__shape_text(x, shape));
    if (tern__view_count(x) != groups) return TERN_OK;
    return tern__scope_fail(scope, "tern_group_norm", TERN_E_SHAPE,
                            "group_norm: expected more than 1 value in a group, got %s in %lld groups",
                            tern__shape_text(x, shape), (long long)groups);
}

tern_tensor *tern_group_norm(tern_scope *scope, tern_tensor *x, int64_t groups, tern_tensor *weight,
                             tern_tensor *bias, double eps)
{
    args a = {__func__, "group_norm", x, weight, bias};
    if (!group_norm_enter(scope, &a) || check_groups(scope, &x->view, groups)) return NULL;
    if (group_norm_check(scope, &a, 1, &x->view.shape[1])) return NULL;
    record r = {.attr = {.eps = eps}, .shape = {x->view.shape[0], groups, x->view.shape[1] / groups, 1}};
    for (int d = 2; d < x->view.ndim; d++) r.shape[3] *= x->view.shape[d];
    return normalise(scope, &a, &r);
}
