/* attention.c - scaled dot product attention as one op. The tape keeps its operands, its result and a number
 * for each query, never the scores: backward computes them again (kernels/attention.h). */
#include "kernels/attention.h"
#include "ops/ops.h"

#include <tern/attention.h>

#include <math.h>

/* The inputs; their gradients are outputs of the same numbers. */
enum { Q, K, V, MASK, INPUTS };
enum { SAVED_Q, SAVED_K, SAVED_V, SAVED_MASK, SAVED_Y, SAVED_LSE };

#define NAME "scaled_dot_product_attention"
#define FUNC "tern_" NAME

/* (H, T, D) or (T, D) seen with all four dimensions, and (B, T, H, D) as (B, H, T, D). */
static tern__view attention_seen_as(const tern__view *x, bool bthd)
{
    tern__view seen = *x;
    if (bthd) {
        seen.shape[1] = x->shape[2], seen.stride[1] = x->stride[2];
        seen.shape[2] = x->shape[1], seen.stride[2] = x->stride[1];
        return seen;
    }
    int more = 4 - x->ndim;
    seen.ndim = 4;
    for (int d = 3; d >= 0; d--) {
        seen.shape[d] = d < more ? 1 : x->shape[d - more];
        seen.stride[d] = d < more ? 0 : x->stride[d - more];
    }
    return seen;
}

/* The shape of all scores. */
static void scores_shape(const tern__view *q, const tern__view *k, int64_t shape[4])
{
    for (int d = 0; d < 3; d++) shape[d] = q->shape[d];
    shape[3] = k->shape[2];
}

/* What the tape keeps. */
typedef struct attention_attr {
    tern__attention_attr kernel;
    bool bthd;
} attention_attr;

/* ---- gradient ---- */

typedef struct operands {
    tern__view view[INPUTS];
    const tern__view *at[INPUTS]; /* NULL: absent */
} operands;

static operands saved_operands(const tern__node *node, bool bthd)
{
    operands o = {0};
    for (int i = Q; i <= V; i++) o.view[i] = attention_seen_as(&node->saved[SAVED_Q + i].view, bthd);
    int64_t shape[4];
    scores_shape(&o.view[Q], &o.view[K], shape);
    if (node->saved[SAVED_MASK].view.data)
        o.view[MASK] = tern__broadcast_view(&node->saved[SAVED_MASK].view, 4, shape);
    return o;
}

/* Opens the gradients that are wanted. */
static int attention_open_gradients(tern_scope *scope, tern__node *node, tern__call *call, operands *grad)
{
    bool bthd = ((const attention_attr *)node->attr)->bthd;
    const int64_t *const shape = call->in[1 + MASK] ? call->in[1 + MASK]->shape : NULL;
    for (int i = Q; i < INPUTS; i++) {
        if (!tern__wants(node, i)) continue;
        tern__view to;
        if (!tern__grad_open_strided(scope, node, i, &to, &call->add[i])) return scope->error.code;
        grad->view[i] = i == MASK ? tern__broadcast_view(&to, 4, shape) : attention_seen_as(&to, bthd);
        call->out[i] = &grad->view[i];
    }
    return TERN_OK;
}

static int attention_gradient(tern_scope *scope, tern__node *node)
{
    const attention_attr *attr = node->attr;
    operands x = saved_operands(node, attr->bthd), grad = {0};
    tern__view dy = attention_seen_as(tern__dy(node), attr->bthd);
    tern__view y = attention_seen_as(&node->saved[SAVED_Y].view, attr->bthd);
    const tern__view *mask = x.view[MASK].data ? &x.view[MASK] : NULL;
    tern__call call = {
        .kernel = TERN__ATTENTION_GRAD,
        .in = {&dy, &x.view[Q], &x.view[K], &x.view[V], mask, &y, &node->saved[SAVED_LSE].view},
        .attr = &attr->kernel};
    if (attention_open_gradients(scope, node, &call, &grad)) return scope->error.code;
    bool done = tern__view_count(&dy) == 0 ? tern__fill_zeros(scope, &call) : tern__run(scope, &call);
    int status = done ? TERN_OK : scope->error.code;
    for (int i = Q; i < INPUTS && !status; i++)
        if (call.out[i]) status = tern__grad_done(scope, node, i);
    return status;
}

/* ---- checks ---- */

static int attention_check_dtypes(tern_scope *scope, tern_tensor *const in[INPUTS])
{
    tern_dtype q = in[Q]->view.dtype, k = in[K]->view.dtype, v = in[V]->view.dtype;
    if (!tern__dtype_is_float(q) || k != q || v != q)
        return tern__scope_fail(scope, FUNC, TERN_E_DTYPE,
                                NAME ": expected q, k and v of one floating-point dtype, got %s, %s and %s",
                                tern_dtype_name(q), tern_dtype_name(k), tern_dtype_name(v));
    if (!in[MASK]) return TERN_OK;
    tern_dtype mask = in[MASK]->view.dtype;
    bool is_half = tern__dtype_is_half(q);
    if (mask == TERN_BOOL || mask == q || (is_half && mask == TERN_F32)) return TERN_OK;
    return tern__scope_fail(scope, FUNC, TERN_E_DTYPE, NAME ": expected a mask of bool%s or %s, got %s",
                            is_half ? ", f32" : "", tern_dtype_name(q), tern_dtype_name(mask));
}

/* Whether k and v fit q. All have the same number of dimensions, two to four. */
static bool attention_heads_fit(const tern__view *q, const tern__view *k, const tern__view *v, bool gqa)
{
    bool fits = q->shape[0] == k->shape[0] && k->shape[0] == v->shape[0] && k->shape[1] == v->shape[1];
    fits &= k->shape[2] == v->shape[2] && q->shape[3] == k->shape[3];
    return fits && (q->shape[1] == k->shape[1] ||
                    (gqa && k->shape[1] > 0 && q->shape[1] > 0 && q->shape[1] % k->shape[1] == 0));
}

static int attention_check_shapes(tern_scope *scope, tern_tensor *const in[INPUTS], bool gqa, bool bthd)
{
    char qs[TERN__SHAPE_TEXT], ks[TERN__SHAPE_TEXT], vs[TERN__SHAPE_TEXT];
    const tern__view *q = &in[Q]->view, *k = &in[K]->view, *v = &in[V]->view;
    bool fits = q->ndim >= (bthd ? 4 : 2) && q->ndim <= 4 && k->ndim == q->ndim && v->ndim == q->ndim;
    tern__view all[3];
    for (int i = Q; i <= V && fits; i++) all[i] = attention_seen_as(&in[i]->view, bthd);
    if (fits && attention_heads_fit(&all[Q], &all[K], &all[V], gqa)) return TERN_OK;
    if (bthd)
        return tern__scope_fail(scope, FUNC, TERN_E_SHAPE,
                                NAME ": expected q (B, T, H, D), k (B, S, %s, D) and v (B, S, %s, E)%s, got "
                                     "%s, %s and %s",
                                gqa ? "G" : "H", gqa ? "G" : "H", gqa ? " with H a multiple of G" : "",
                                tern__shape_text(q, qs), tern__shape_text(k, ks), tern__shape_text(v, vs));
    return tern__scope_fail(scope, FUNC, TERN_E_SHAPE,
                            NAME
                            ": expected q ([[B,] H,] T, D), k ([[B,] %s,] S, D) and v ([[B,] %s,] S, E)%s, "
                            "got %s, %s and %s",
                            gqa ? "G" : "H", gqa ? "G" : "H", gqa ? " with H a multiple of G" : "",
                            tern__shape_text(q, qs), tern__shape_text(k, ks), tern__shape_text(v, vs));
}

static int attention_check_mask(tern_scope *scope, tern_tensor *const in[INPUTS], bool bthd)
{
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT];
    const tern__view *mask = &in[MASK]->view;
    tern__view scores = in[Q]->view, both = {0};
    scores.shape[scores.ndim - 1] = in[K]->view.shape[bthd ? 1 : scores.ndim - 2];
    if (bthd) {
        scores.shape[1] = in[Q]->view.shape[2];
        scores.shape[2] = in[Q]->view.shape[1];
    }
    if (tern__broadcast_shape(&scores, mask, &both.ndim, both.shape) && tern__view_same_shape(&scores, &both))
        return TERN_OK;
    return tern__scope_fail(scope, FUNC, TERN_E_SHAPE,
                            NAME ": expected a mask that is broadcast to %s, got %s",
                            tern__shape_text(&scores, want), tern__shape_text(mask, have));
}

static int attention_check_opts(tern_scope *scope, const tern_attention_opts *o, bool has_mask)
{
    if (o->is_causal && has_mask)
        return tern__scope_fail(scope, FUNC, TERN_E_INVALID, NAME ": expected a mask or is_causal, got both");
    if (o->dropout >= 0 && o->dropout <= 1) return TERN_OK;
    return tern__scope_fail(scope, FUNC, TERN_E_RANGE, NAME ": expected a dropout in [0, 1], got %g",
                            o->dropout);
}

/* `one`: at most one of a mask and is_causal may be given. */
static int attention_check(tern_scope *scope, tern_tensor *const in[INPUTS], const tern_attention_opts *o,
                           bool one)
{
    int status = attention_check_dtypes(scope, in);
    if (!status) status = attention_check_shapes(scope, in, o->enable_gqa, o->bthd);
    if (!status && in[MASK]) status = attention_check_mask(scope, in, o->bthd);
    return status ? status : attention_check_opts(scope, o, one && in[MASK]);
}

/* ---- forward ---- */

tern_attention_opts tern_attention_defaults(void)
{
    return (tern_attention_opts){.size = sizeof(tern_attention_opts)};
}

static tern__attention_attr attention_attr_of(tern_scope *scope, const tern_attention_opts *o, int64_t depth)
{
    tern__attention_attr attr = {.scale = o->scale != 0 ? o->scale : 1 / sqrt((double)depth),
                                 .is_causal = o->is_causal};
    if (o->dropout > 0) attr.dropout = tern__dropout_draw(scope, o->dropout);
    return attr;
}

/* Kernels take any strides, but the elements of a row must be adjacent. */
static bool make_rows(tern_scope *scope, tern_tensor *in[INPUTS])
{
    for (int i = Q; i < INPUTS; i++) {
        if (!in[i]) continue;
        const tern__view *x = &in[i]->view;
        int last = x->ndim - 1;
        bool is_strided = i != MASK && x->shape[last] > 1 && x->stride[last] != 1;
        if ((x->layout != TERN__PLAIN || is_strided) && !(in[i] = tern__plain(scope, in[i]))) return false;
    }
    return true;
}

/* Without a gradient nothing is saved, and lse is not computed. */
static bool wants_gradient(const tern_scope *scope, tern_tensor *const in[INPUTS])
{
    for (int i = Q; i < INPUTS; i++)
        if (in[i] && tern__is_taped(scope, in[i])) return true;
    return false;
}

static bool attention_forward(tern_scope *scope, tern_tensor *const in[INPUTS], tern_tensor *y,
                              tern_tensor *lse, const attention_attr *attr)
{
    tern__view q = attention_seen_as(&in[Q]->view, attr->bthd),
               k = attention_seen_as(&in[K]->view, attr->bthd);
    tern__view v = attention_seen_as(&in[V]->view, attr->bthd), to = attention_seen_as(&y->view, attr->bthd),
               mask;
    int64_t shape[4];
    scores_shape(&q, &k, shape);
    if (in[MASK]) mask = tern__broadcast_view(&in[MASK]->view, 4, shape);
    tern__call call = {.kernel = TERN__ATTENTION,
                       .in = {&q, &k, &v, in[MASK] ? &mask : NULL},
                       .out = {&to, lse ? &lse->view : NULL},
                       .attr = &attr->kernel};
    return tern__view_count(&to) == 0 || tern__run(scope, &call);
}

static tern_tensor *attention(tern_scope *scope, tern_tensor *in[INPUTS], const tern_attention_opts *o)
{
    tern__view shape = in[Q]->view, rows = attention_seen_as(&in[Q]->view, o->bthd);
    attention_attr attr = {attention_attr_of(scope, o, rows.shape[3]), o->bthd};
    bool is_taped = wants_gradient(scope, in);
    if (!make_rows(scope, in)) return NULL;
    tern_dtype dtype = shape.dtype == TERN_F64 ? TERN_F64 : TERN_F32;
    shape.shape[shape.ndim - 1] = in[V]->view.shape[shape.ndim - 1];
    tern_tensor *y = tern__result(scope, shape.dtype, TERN__PLAIN, shape.ndim, shape.shape);
    tern_tensor *lse = y && is_taped ? tern__result(scope, dtype, TERN__PLAIN, 3, rows.shape) : NULL;
    if (!y || (is_taped && !lse) || !attention_forward(scope, in, y, lse, &attr)) return NULL;
    tern__node *node = tern__record(scope, NAME, attention_gradient, y, INPUTS, in);
    for (int i = Q; i < INPUTS; i++) tern__save(node, SAVED_Q + i, in[i]);
    tern__save(node, SAVED_Y, y);
    tern__save(node, SAVED_LSE, lse);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return y;
}

static tern_tensor *attention_enter(tern_scope *scope, tern_tensor *q, tern_tensor *k, tern_tensor *v,
                                    tern_tensor *mask, const tern_attention_opts *opts, bool one)
{
    tern_attention_opts o = tern_attention_defaults();
    if (!TERN__ENTER(scope, FUNC, 3, &q, &k, &v, &mask)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, FUNC)) return NULL;
    tern_tensor *in[INPUTS] = {q, k, v, mask};
    return attention_check(scope, in, &o, one) ? NULL : attention(scope, in, &o);
}

tern_tensor *tern__attention(tern_scope *scope, tern_tensor *q, tern_tensor *k, tern_tensor *v,
                             tern_tensor *mask, const tern_attention_opts *opts)
{
    return attention_enter(scope, q, k, v, mask, opts, false);
}

tern_tensor *tern_scaled_dot_product_attention(tern_scope *scope, tern_tensor *q, tern_tensor *k,
                                               tern_tensor *v, tern_tensor *mask,
                                               const tern_attention_opts *opts)
{
    return attention_enter(scope, q, k, v, mask, opts, true);
}
