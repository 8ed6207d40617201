/* linear_cross_entropy.c - the cross entropy of a linear layer's result, for layers with so many outputs
 * (words of a vocabulary) that their result must not be held as a whole.
 *
 * Rows are taken by chunks. A chunk's scores are made, and from them its losses and the scores' gradient,
 * which replaces the scores and at once becomes the chunk's part of the gradients of x, weight and bias. For
 * a sum or mean the loss's own gradient is one number, so this happens in the forward pass with 1 in its
 * place (Hsu et al. 2024, "Liger Kernel"), and backward multiplies by it: the scores are computed once. They
 * are computed again in backward for losses that are not reduced, each of which has a gradient of its own,
 * and in f16, where a gradient may be too small before a loss scale has multiplied it.
 *
 * The weight's gradient then waits for backward in memory of its own. If there are no more rows than
 * features, the scores' gradient is no larger: it waits instead, all rows are one chunk, and backward makes
 * the products where their results belong.
 *
 * Scores, their gradients, losses, and sums over chunks are f32, or f64 if x is. How many rows a chunk has
 * depends on the shapes alone, so every result has the same bits on any number of threads. */
#include "kernels/nll_loss.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"

#define OP   "linear_cross_entropy"
#define FUNC "tern_linear_cross_entropy"

/* A chunk has about SCORES scores, but at least ROWS rows: the products read the whole weight for each. */
#define SCORES (1 << 24)
#define ROWS   128

/* The inputs; the saved tensors of both gradients. */
enum { X, WEIGHT, BIAS, INPUTS };
enum { SAVED_GRADS, SAVED_CLASSES = INPUTS, SAVED_LABEL, SAVED_WEIGHTS }; /* not reduced: the inputs first */
enum { SAVED_SCORES = BIAS }; /* their gradient, with x and weight before it */

/* What backward has to do: multiply the gradients that forward has made, make them from the scores' gradient
 * that forward has kept, or make the scores again. */
typedef enum way { MADE, KEPT, AGAIN } way;

/* x (N, I), weight (O, I), [bias (O)], label (N), [classes (O): the classes' weights], and the f64 sum of the
 * labels' weights. Gradients are absent where they are not wanted; dx is in x's shape. `kept` (N, O): the
 * scores' gradient, if backward wants it. */
typedef struct chunked {
    const tern__view *in[INPUTS], *label, *classes, *weights;
    tern__view grad[INPUTS], kept;
    bool wants[INPUTS];
    tern__nll_attr attr;
    tern_dtype dtype; /* of the scores */
} chunked;

/* Saved for a gradient. */
typedef struct record {
    tern__nll_attr attr;
    int64_t dtype;
} record;

/* What all chunks use in turn. `halves`: the scores' gradient in x's 16-bit type. */
typedef struct buffers {
    tern__saved scores, logp, halves, sum;
} buffers;

static const tern__view *lce_saved(const tern__node *node, int slot)
{
    return node->saved[slot].view.data ? &node->saved[slot].view : NULL;
}

/* Elements, or rows of a matrix, first .. first + n - 1. */
static tern__view lce_rows(const tern__view *view, int64_t first, int64_t n)
{
    tern__view part = *view;
    part.shape[0] = n;
    part.data = (char *)view->data + first * view->stride[0] * (int64_t)tern_dtype_bytes(view->dtype);
    return part;
}

static tern__view lce_matrix(const tern__view *view, int64_t rows)
{
    tern__view m =
        tern__view_make(view->dtype, TERN__PLAIN, 2, (int64_t[]){rows, view->shape[view->ndim - 1]});
    m.data = view->data;
    return m;
}

static tern__view lce_flat(const tern__view *view)
{
    int64_t count = tern__view_count(view);
    tern__view flat = tern__view_make(view->dtype, TERN__PLAIN, 1, &count);
    flat.data = view->data;
    return flat;
}

/* Gradient i as the chunks make it. */
static tern__view lce_grad_like(const chunked *c, int i)
{
    tern_dtype dtype = i == X ? c->in[X]->dtype : c->dtype;
    return tern__view_make(dtype, TERN__PLAIN, c->in[i]->ndim, c->in[i]->shape);
}

/* ---- chunks ---- */

static int64_t lce_chunk_rows(int64_t rows, int64_t classes)
{
    int64_t most = TERN__MAX(SCORES / classes, ROWS), chunks = TERN__MAX((rows + most - 1) / most, 1);
    return (rows + chunks - 1) / chunks;
}

/* Memory for a chunk's scores in a dtype: that of their gradient, if it is kept in this dtype. */
static tern__saved lce_open_scores(tern_scope *scope, const chunked *c, tern_dtype dtype, int64_t rows)
{
    tern__view like = tern__view_make(dtype, TERN__PLAIN, 2, (int64_t[]){rows, c->in[WEIGHT]->shape[0]});
    if (c->kept.data && c->kept.dtype == dtype) return (tern__saved){.view = c->kept};
    return tern__temporary(scope, &like);
}

/* The CPU's kernels turn scores into log p, and log p into the gradient, in place. A GPU's look at the scores
 * again once log p is written. */
static bool lce_open_buffers(tern_scope *scope, const chunked *c, int64_t rows, buffers *b)
{
    tern__view one = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    tern_dtype half = c->in[X]->dtype;
    *b = (buffers){.scores = lce_open_scores(scope, c, c->dtype, rows)};
    b->logp.view = b->scores.view;
    if (!scope->error.code && scope->here->backend) b->logp = tern__temporary(scope, &b->scores.view);
    if (!scope->error.code) b->sum = tern__temporary(scope, &one);
    if (!scope->error.code && half != c->dtype) b->halves = lce_open_scores(scope, c, half, rows);
    return !scope->error.code;
}

static void lce_close_buffers(buffers *b)
{
    tern__saved_drop(&b->scores);
    tern__saved_drop(&b->logp);
    tern__saved_drop(&b->halves);
    tern__saved_drop(&b->sum);
}

/* One chunk: rows of the operands, of dx, and of the buffers. `halves` and dx are used only where they
 * are. */
typedef struct chunk {
    tern__view x, label, losses, dloss, scores, logp, halves, dx;
    bool is_first;
} chunk;

static chunk lce_chunk(const chunked *c, const buffers *b, const tern__view *losses, const tern__view *dloss,
                       int64_t first, int64_t n)
{
    chunk k = {.x = lce_rows(c->in[X], first, n),
               .label = lce_rows(c->label, first, n),
               .losses = lce_rows(losses, first, n),
               .scores = lce_rows(&b->scores.view, 0, n),
               .logp = lce_rows(&b->logp.view, 0, n),
               .is_first = first == 0};
    if (dloss) k.dloss = dloss->ndim ? lce_rows(dloss, first, n) : *dloss;
    if (b->halves.view.data) k.halves = lce_rows(&b->halves.view, 0, n);
    if (c->wants[X]) k.dx = lce_rows(&c->grad[X], first, n);
    return k;
}

/* The chunk's losses, and the logarithm of its softmax. */
static bool lce_losses(tern_scope *scope, const chunked *c, const chunk *k, const tern__view *sum)
{
    tern__nll_attr attr = c->attr;
    tern__view turned = tern__transposed(c->in[WEIGHT]);
    attr.mean = 0;
    attr.each = 1;
    tern__call call = {.kernel = TERN__CROSS_ENTROPY,
                       .in = {&k->scores, &k->label, c->classes},
                       .out = {&k->losses, sum, &k->logp},
                       .attr = &attr};
    return tern__matmul_act(scope, &k->scores, &k->x, &turned, c->in[BIAS], false) && tern__run(scope, &call);
}

/* The chunk's part of the gradients, of which dx is its own. Overwrites its scores. */
static bool lce_gradients(tern_scope *scope, const chunked *c, const chunk *k)
{
    static const tern__factor_attr one = {1};
    const tern__view *d = &k->scores;
    bool add = !k->is_first;
    tern__call call = {.kernel = TERN__CROSS_ENTROPY_GRAD,
                       .in = {&k->dloss, &k->logp, &k->label, c->classes, c->weights},
                       .out = {d},
                       .attr = &c->attr};
    if (!tern__run(scope, &call)) return false;
    if (c->wants[BIAS]) {
        tern__view seen = tern__broadcast_view(&c->grad[BIAS], d->ndim, d->shape);
        call = (tern__call){.kernel = TERN__SUM, .in = {d}, .out = {&seen}, .add = {add}, .attr = &one};
        if (!tern__run(scope, &call)) return false;
    }
    if (k->halves.data) {
        if (!tern__copy(scope, &k->halves, d)) return false;
        d = &k->halves;
    }
    tern__view turned = tern__transposed(d);
    if (c->wants[WEIGHT] && !tern__matmul(scope, &c->grad[WEIGHT], &turned, &k->x, add)) return false;
    return !c->wants[X] || tern__matmul(scope, &k->dx, d, c->in[WEIGHT], false);
}

/* Of nothing there are no chunks. */
static bool lce_zero_gradients(tern_scope *scope, const chunked *c)
{
    bool fine = true;
    for (int i = 0; i < INPUTS && fine; i++)
        if (c->wants[i] && tern__view_count(&c->grad[i]) > 0) fine = tern__fill(scope, &c->grad[i], 0);
    return fine;
}

/* Goes over all rows: fills `losses` (N), and the gradients that are wanted if there is a `dloss`, () or
 * (N). */
static bool lce_run(tern_scope *scope, const chunked *c, const tern__view *losses, const tern__view *dloss)
{
    int64_t all = c->in[X]->shape[0];
    int64_t most = c->kept.data ? all : lce_chunk_rows(all, c->in[WEIGHT]->shape[0]);
    buffers b;
    if (all == 0) return !dloss || lce_zero_gradients(scope, c);
    bool fine = lce_open_buffers(scope, c, most, &b);
    for (int64_t first = 0; fine && first < all; first += most) {
        chunk k = lce_chunk(c, &b, losses, dloss, first, TERN__MIN(most, all - first));
        fine = lce_losses(scope, c, &k, &b.sum.view) && (!dloss || lce_gradients(scope, c, &k));
    }
    lce_close_buffers(&b);
    return fine;
}

/* ---- gradients ---- */

/* Of a sum or mean: those that the forward pass has made, times the loss's. */
static int lce_gradient(tern_scope *scope, tern__node *node)
{
    static const tern__pointwise_attr none = {{0}};
    for (int i = INPUTS - 1; i >= 0; i--) {
        bool add;
        if (!tern__wants(node, i)) continue;
        const tern__view *made = &node->saved[SAVED_GRADS + i].view;
        const tern__view *to = tern__grad_open(scope, node, i, &add);
        if (!to) return scope->error.code;
        tern__view sent = tern__broadcast_view(tern__dy(node), made->ndim, made->shape);
        tern__call call = {
            .kernel = TERN__MUL, .in = {made, &sent}, .out = {to}, .add = {add}, .attr = &none};
        bool ran = tern__view_count(to) == 0 || tern__run(scope, &call);
        if (!ran || tern__grad_done(scope, node, i)) return scope->error.code;
    }
    return TERN_OK;
}

/* Of a sum or mean: those of a linear layer, from the scores' gradient times the loss's. */
static int lce_kept_gradient(tern_scope *scope, tern__node *node)
{
    static const tern__pointwise_attr none = {{0}};
    const tern__view *d = &node->saved[SAVED_SCORES].view;
    tern__view sent = tern__broadcast_view(tern__dy(node), d->ndim, d->shape), turned = tern__transposed(d);
    tern__call call = {.kernel = TERN__MUL, .in = {d, &sent}, .out = {d}, .attr = &none};
    int status = TERN_OK;
    if (!tern__dy_is_one(scope, node) && !tern__run(scope, &call)) return scope->error.code;
    if (tern__wants(node, BIAS)) status = tern__sum_into(scope, node, BIAS, d);
    if (!status) status = tern__matmul_grad(scope, node, WEIGHT, &turned, &node->saved[X].view);
    if (status || !tern__wants(node, X)) return status;
    return tern__matmul_grad(scope, node, X, d, &node->saved[WEIGHT].view);
}

/* The chunks once more, with the loss's own gradient. */
static int lce_again_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    chunked c = {.attr = r->attr,
                 .dtype = r->dtype,
                 .classes = lce_saved(node, SAVED_CLASSES),
                 .weights = lce_saved(node, SAVED_WEIGHTS)};
    tern__saved made[INPUTS] = {0};
    tern__view label = lce_flat(&node->saved[SAVED_LABEL].view), like = label, dloss = *tern__dy(node);
    tern__view x = lce_matrix(&node->saved[X].view, label.shape[0]);
    like.dtype = c.dtype;
    tern__saved losses = tern__temporary(scope, &like);
    if (c.attr.each) dloss = lce_flat(&dloss);
    c.in[X] = &x;
    c.in[WEIGHT] = &node->saved[WEIGHT].view;
    c.in[BIAS] = lce_saved(node, BIAS);
    c.label = &label;
    for (int i = 0; i < INPUTS && !scope->error.code; i++) {
        if (!(c.wants[i] = tern__wants(node, i))) continue;
        like = lce_grad_like(&c, i);
        made[i] = tern__temporary(scope, &like);
        c.grad[i] = made[i].view;
    }
    bool fine = !scope->error.code && lce_run(scope, &c, &losses.view, &dloss);
    for (int i = INPUTS - 1; i >= 0; i--) {
        if (fine && c.wants[i]) {
            tern__view given = made[i].view;
            if (i == X)
                given = tern__view_make(given.dtype, TERN__PLAIN, node->in[X]->view.ndim,
                                        node->in[X]->view.shape);
            given.data = made[i].view.data;
            fine = !tern__grad_store(scope, node, i, &given);
        }
        tern__saved_drop(&made[i]);
    }
    tern__saved_drop(&losses);
    return scope->error.code;
}

/* ---- forward ---- */

typedef struct operands {
    tern_tensor *in[INPUTS], *label, *classes;
    tern_cross_entropy_opts opts;
} operands;

static int lce_check_shapes(tern_scope *scope, const operands *o)
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], ls[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    const tern__view *x = &o->in[X]->view, *w = &o->in[WEIGHT]->view, *label = &o->label->view;
    const tern__view *bias = o->in[BIAS] ? &o->in[BIAS]->view : NULL;
    bool fit = x->ndim > 0 && w->ndim == 2 && w->shape[0] > 0 && x->shape[x->ndim - 1] == w->shape[1] &&
               label->ndim == x->ndim - 1;
    for (int d = 0; fit && d < label->ndim; d++) fit = label->shape[d] == x->shape[d];
    if (!fit)
        return tern__scope_fail(
            scope, FUNC, TERN_E_SHAPE,
            OP "%s: expected input (.., I), a weight (O, I) and label (..), got %s, %s and %s",
            tern__layer_text(o->in[WEIGHT], layer), tern__shape_text(x, xs), tern__shape_text(w, ws),
            tern__shape_text(label, ls));
    if (!bias || (bias->ndim == 1 && bias->shape[0] == w->shape[0])) return TERN_OK;
    return tern__scope_fail(scope, FUNC, TERN_E_SHAPE, OP "%s: weight is %s but bias is %s",
                            tern__layer_text(o->in[WEIGHT], layer), tern__shape_text(w, ws),
                            tern__shape_text(bias, xs));
}

static int lce_check_dtypes(tern_scope *scope, const operands *o)
{
    char layer[TERN__LAYER_TEXT];
    tern_dtype dtype = o->in[X]->view.dtype;
    int status = tern__entropy_check_dtypes(scope, FUNC, OP, dtype, o->label->view.dtype);
    for (int i = WEIGHT; i < INPUTS && !status; i++)
        if (o->in[i] && o->in[i]->view.dtype != dtype)
            status = tern__scope_fail(scope, FUNC, TERN_E_DTYPE, OP "%s: %s is %s but input is %s",
                                      tern__layer_text(o->in[WEIGHT], layer), i == BIAS ? "bias" : "weight",
                                      tern_dtype_name(o->in[i]->view.dtype), tern_dtype_name(dtype));
    return status;
}

/* Checks the operands and brings them into the form that chunks are made of. */
static int lce_prepare(tern_scope *scope, const tern_cross_entropy_opts *user, operands *o)
{
    tern_tensor **x = &o->in[X], **weight = &o->in[WEIGHT], **bias = &o->in[BIAS];
    if (!TERN__ENTER(scope, FUNC, 3, x, weight, &o->label, bias))
        return scope ? scope->error.code : TERN_E_INVALID;
    if (tern__entropy_read_opts(scope, FUNC, OP, user, &o->opts)) return scope->error.code;
    o->classes = o->opts.weight;
    if (!TERN__ENTER(scope, FUNC, 3, x, weight, &o->label, bias, &o->classes) || lce_check_shapes(scope, o) ||
        lce_check_dtypes(scope, o))
        return scope->error.code;
    tern_dtype scores = tern__dtype_is_half((*x)->view.dtype) ? TERN_F32 : (*x)->view.dtype;
    if (o->classes && tern__dtype_is_half(o->classes->view.dtype) && scores == TERN_F32)
        o->classes = tern__cast(scope, o->classes, scores);
    if (scope->error.code) return scope->error.code;
    if (o->classes &&
        tern__entropy_check_weight(scope, FUNC, OP, (*weight)->view.shape[0], scores, o->classes))
        return scope->error.code;
    *x = tern__plain(scope, *x);
    if (*x) *weight = tern__matrices(scope, *weight);
    if (*x && *weight && *bias) *bias = tern__plain(scope, *bias);
    if (!scope->error.code) o->label = tern__plain(scope, o->label);
    if (!scope->error.code && o->classes) o->classes = tern__plain(scope, o->classes);
    return scope->error.code;
}

/* The sum of the labels' weights, by which a mean is divided. Checks the labels. */
static tern_tensor *lce_weights(tern_scope *scope, const operands *o, const tern__nll_attr *nll)
{
    tern__label_weights_attr attr = {*nll, o->in[WEIGHT]->view.shape[0]};
    tern_tensor *sum = tern__result(scope, TERN_F64, TERN__PLAIN, 0, NULL);
    tern__call call = {.kernel = TERN__LABEL_WEIGHTS,
                       .in = {&o->label->view, o->classes ? &o->classes->view : NULL},
                       .out = {sum ? &sum->view : NULL},
                       .attr = &attr};
    return sum && tern__run(scope, &call) ? sum : NULL;
}

/* The sum of all losses, and their mean, which is NaN if the sum of the weights is 0, whatever smoothing
 * adds. */
static bool lce_reduce(tern_scope *scope, const tern__view *losses, const tern__view *weights, bool mean,
                       const tern__view *loss)
{
    static const tern__factor_attr one = {1};
    static const tern__pointwise_attr none = {{0}};
    static const float nan = NAN;
    tern__view seen = tern__broadcast_view(loss, 1, losses->shape), no_number = *loss;
    no_number.dtype = TERN_F32;
    no_number.data = (void *)&nan;
    tern__call sum = {.kernel = TERN__SUM, .in = {losses}, .out = {&seen}, .attr = &one};
    tern__call ratio = {.kernel = TERN__DIV, .in = {loss, weights}, .out = {loss}, .attr = &none};
    tern__call choice = {
        .kernel = TERN__WHERE, .in = {weights, loss, &no_number}, .out = {loss}, .attr = &none};
    if (tern__view_count(losses) == 0 ? !tern__fill(scope, loss, 0) : !tern__run(scope, &sum)) return false;
    return !mean || (tern__run(scope, &ratio) && tern__run(scope, &choice));
}

static bool lce_run_forward(tern_scope *scope, const chunked *c, const tern__view *losses,
                            bool with_gradients)
{
    tern__view scalar = tern__view_make(c->dtype, TERN__PLAIN, 0, NULL);
    if (!with_gradients) return lce_run(scope, c, losses, NULL);
    tern__saved one = tern__temporary(scope, &scalar);
    bool fine = one.storage && tern__fill(scope, &one.view, 1);
    fine = fine && lce_run(scope, c, losses, &one.view);
    tern__saved_drop(&one);
    return fine;
}

/* f16 does not hold gradients that no loss scale has multiplied. */
static way lce_way(const tern_scope *scope, const operands *o, const chunked *c)
{
    int64_t rows = c->in[X]->shape[0], features = c->in[X]->shape[1];
    bool is_smaller = rows > 0 && rows <= features && o->in[X]->view.ndim > 1;
    if (c->attr.each || c->in[X]->dtype == TERN_F16) return AGAIN;
    return is_smaller && tern__is_taped(scope, o->in[WEIGHT]) ? KEPT : MADE;
}

/* What backward gets of the forward pass: gradients by input, or the scores'. Returns whether it gets any. */
static bool lce_open_grads(tern_scope *scope, const operands *o, way how, chunked *c,
                           tern_tensor *made[INPUTS])
{
    bool has_any = false;
    for (int i = 0; i < INPUTS && how == MADE && !scope->error.code; i++) {
        if (!o->in[i] || !(c->wants[i] = tern__is_taped(scope, o->in[i]))) continue;
        tern__view like = lce_grad_like(c, i);
        made[i] = tern__result(scope, like.dtype, TERN__PLAIN, o->in[i]->view.ndim, o->in[i]->view.shape);
        if (made[i]) c->grad[i] = i == X ? lce_matrix(&made[i]->view, c->in[X]->shape[0]) : made[i]->view;
        has_any = true;
    }
    if (how != KEPT) return has_any;
    tern__view scores = o->in[X]->view;
    scores.shape[scores.ndim - 1] = c->in[WEIGHT]->shape[0];
    made[SAVED_SCORES] = tern__result(scope, scores.dtype, TERN__PLAIN, scores.ndim, scores.shape);
    if (made[SAVED_SCORES]) c->kept = lce_matrix(&made[SAVED_SCORES]->view, c->in[X]->shape[0]);
    return true;
}

/* Puts the op on the tape. `made`: what the forward pass has made for it. */
static void lce_record(tern_scope *scope, const operands *o, const chunked *c, way how, tern_tensor *loss,
                       tern_tensor *weights, tern_tensor *const made[INPUTS])
{
    static const tern__gradient_fn gradient_of[] = {lce_gradient, lce_kept_gradient, lce_again_gradient};
    record r = {.attr = c->attr, .dtype = c->dtype};
    tern__node *node = tern__record(scope, OP, gradient_of[how], loss, INPUTS, o->in);
    if (!node) return;
    tern__save_attr(scope, node, &r, sizeof(r));
    for (int i = 0; i < INPUTS; i++) {
        tern_tensor *saved = how == MADE || (how == KEPT && i == SAVED_SCORES) ? made[i] : o->in[i];
        if (saved) tern__save(node, i, saved);
    }
    if (how == AGAIN) {
        if (o->classes) tern__save(node, SAVED_CLASSES, o->classes);
        tern__save(node, SAVED_LABEL, o->label);
        tern__save(node, SAVED_WEIGHTS, weights);
    }
    if (c->attr.mean) tern__normaliser_keep(scope, node, weights);
}

static tern_tensor *lce_loss(tern_scope *scope, const operands *o, chunked *c)
{
    const tern__view *label = &o->label->view;
    tern__view x = lce_matrix(c->in[X], tern__view_count(label)), flat = lce_flat(label);
    tern_tensor *made[INPUTS] = {NULL}, *weights = lce_weights(scope, o, &c->attr);
    if (!weights) return NULL;
    bool each = c->attr.each != 0;
    tern_tensor *losses = tern__result(scope, c->dtype, TERN__PLAIN, label->ndim, label->shape);
    tern_tensor *loss = each ? losses : tern__result(scope, c->dtype, TERN__PLAIN, 0, NULL);
    c->in[X] = &x;
    c->label = &flat;
    c->weights = &weights->view;
    way how = lce_way(scope, o, c);
    bool with_gradients = lce_open_grads(scope, o, how, c, made);
    if (scope->error.code) return NULL;
    tern__view all = lce_flat(&losses->view);
    if (!lce_run_forward(scope, c, &all, with_gradients)) return NULL;
    if (!each && !lce_reduce(scope, &all, c->weights, c->attr.mean != 0, &loss->view)) return NULL;
    lce_record(scope, o, c, how, loss, weights, made);
    return scope->error.code ? NULL : loss;
}

tern_tensor *tern_linear_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                       tern_tensor *bias, tern_tensor *label,
                                       const tern_cross_entropy_opts *opts)
{
    operands o = {.in = {x, weight, bias}, .label = label};
    if (lce_prepare(scope, opts, &o)) return NULL;
    chunked c = {.attr = {.func = FUNC,
                          .op = OP,
                          .ignored = o.opts.ignore_index,
                          .smoothing = o.opts.label_smoothing,
                          .mean = o.opts.reduction == TERN_LOSS_MEAN,
                          .each = o.opts.reduction == TERN_LOSS_NONE}};
    for (int i = 0; i < INPUTS; i++) c.in[i] = o.in[i] ? &o.in[i]->view : NULL;
    c.dtype = tern__dtype_is_half(c.in[X]->dtype) ? TERN_F32 : c.in[X]->dtype;
    c.classes = o.classes ? &o.classes->view : NULL;
    return lce_loss(scope, &o, &c);
}
