/* matmul.c - torch.matmul. A vector becomes a matrix of one row or column, and that dimension is dropped from
 * the result. Gradients are products with the other factor transposed. */
#include "ops/matmul.h"
#include "kernels/matmul.h"

/* ---- on views ---- */

static void swap(int64_t *a, int64_t *b)
{
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

tern__view tern__transposed(const tern__view *matrices)
{
    tern__view t = *matrices;
    swap(&t.shape[t.ndim - 2], &t.shape[t.ndim - 1]);
    swap(&t.stride[t.ndim - 2], &t.stride[t.ndim - 1]);
    return t;
}

/* Returns the batch dimensions: all before the last two. */
static tern__view batch_of(const tern__view *matrices)
{
    tern__view batch = *matrices;
    batch.ndim -= 2;
    return batch;
}

/* Computes the common batch shape; false if the batches do not fit. */
static bool join_batches(tern__view *batch, const tern__view *matrices)
{
    tern__view other = batch_of(matrices), both = {0};
    if (!tern__broadcast_shape(batch, &other, &both.ndim, both.shape)) return false;
    *batch = both;
    return true;
}

/* Views the matrices with that batch shape. */
static tern__view with_batch(const tern__view *matrices, const tern__view *batch)
{
    tern__view all = *batch;
    all.shape[all.ndim++] = matrices->shape[matrices->ndim - 2];
    all.shape[all.ndim++] = matrices->shape[matrices->ndim - 1];
    return tern__broadcast_view(matrices, all.ndim, all.shape);
}

/* Whether the result is empty, or a matrix of sums over nothing. */
static bool is_of_nothing(const tern__call *call)
{
    bool is_empty = tern__view_count(call->in[0]) == 0 || tern__view_count(call->in[1]) == 0;
    return tern__view_count(call->out[0]) == 0 || (is_empty && !call->in[2]);
}

/* Views all three with one batch dimension. */
static bool matmul_run(tern_scope *scope, tern__call *call)
{
    const tern__view *y = call->out[0], *a = call->in[0], *b = call->in[1];
    if (is_of_nothing(call)) return tern__fill_zeros(scope, call);
    if (y->ndim == 2 && a->ndim == 2 && b->ndim == 2) return tern__run(scope, call);
    tern__view batch = batch_of(y);
    if (!join_batches(&batch, a) || !join_batches(&batch, b)) return false;
    tern__view ys = with_batch(y, &batch), as = with_batch(a, &batch), bs = with_batch(b, &batch);
    call->out[0] = &ys;
    call->in[0] = &as;
    call->in[1] = &bs;
    return tern__run(scope, call);
}

bool tern__matmul(tern_scope *scope, const tern__view *y, const tern__view *a, const tern__view *b, bool add)
{
    tern__call call = {.kernel = TERN__MATMUL, .in = {a, b}, .out = {y}, .add = {add}};
    return matmul_run(scope, &call);
}

bool tern__matmul_act(tern_scope *scope, const tern__view *y, const tern__view *a, const tern__view *b,
                      const tern__view *bias, bool relu)
{
    static const tern__matmul_attr with_relu = {.relu = 1};
    tern__call call = {
        .kernel = TERN__MATMUL, .in = {a, b, bias}, .out = {y}, .attr = relu ? &with_relu : NULL};
    return matmul_run(scope, &call);
}

int tern__matmul_grad(tern_scope *scope, tern__node *node, int i, const tern__view *a, const tern__view *b)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to || !tern__matmul(scope, to, a, b, add)) return scope->error.code;
    return tern__grad_done(scope, node, i);
}

static bool has_step(const tern__view *x, int d)
{
    return x->stride[d] == 1 || x->shape[d] == 1;
}

tern_tensor *tern__matrices(tern_scope *scope, tern_tensor *x)
{
    const tern__view *v = &x->view;
    bool fits = v->layout == TERN__PLAIN && (has_step(v, v->ndim - 1) || has_step(v, v->ndim - 2));
    return fits ? x : tern__plain(scope, x);
}

/* ---- the op ---- */

static int matmul_gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node), *a = &node->saved[0].view, *b = &node->saved[1].view;
    int status = TERN_OK;
    if (tern__wants(node, 0)) {
        tern__view turned = tern__transposed(b);
        status = tern__matmul_grad(scope, node, 0, dy, &turned);
    }
    if (!status && tern__wants(node, 1)) {
        tern__view turned = tern__transposed(a);
        status = tern__matmul_grad(scope, node, 1, &turned, dy);
    }
    return status;
}

/* Multiplies tensors of at least two dimensions. */
static tern_tensor *matmul(tern_scope *scope, tern_tensor *a, tern_tensor *b, const tern__view *batch)
{
    if (!(a = tern__matrices(scope, a)) || !(b = tern__matrices(scope, b))) return NULL;
    tern__view all = *batch;
    all.shape[all.ndim++] = a->view.shape[a->view.ndim - 2];
    all.shape[all.ndim++] = b->view.shape[b->view.ndim - 1];
    tern_tensor *y = tern__result(scope, a->view.dtype, TERN__PLAIN, all.ndim, all.shape);
    if (!y || !tern__matmul(scope, &y->view, &a->view, &b->view, false)) return NULL;
    tern__node *node = tern__record(scope, "matmul", matmul_gradient, y, 2, (tern_tensor *[]){a, b});
    if (node && tern__wants(node, 1)) tern__save(node, 0, a);
    if (node && tern__wants(node, 0)) tern__save(node, 1, b);
    return y;
}

static bool matmul_dtypes_fit(tern_scope *scope, tern_dtype a, tern_dtype b)
{
    if (a == b && a != TERN_BOOL) return true;
    tern__scope_fail(scope, "tern_matmul", TERN_E_DTYPE,
                     "matmul: expected two matrices of one dtype, which is not bool; got %s and %s",
                     tern_dtype_name(a), tern_dtype_name(b));
    return false;
}

/* True if a's rows are as long as b's columns and the batches fit. Both have at least two dimensions. */
static bool matmul_shapes_fit(const tern__view *a, const tern__view *b, tern__view *batch)
{
    *batch = batch_of(a);
    return a->shape[a->ndim - 1] == b->shape[b->ndim - 2] && join_batches(batch, b);
}

/* Drops the dimensions that were added to vectors. */
static tern_tensor *without(tern_scope *scope, tern_tensor *y, bool row, bool column)
{
    if (!y || (!row && !column)) return y;
    int64_t shape[TERN_NDIM_MAX];
    int ndim = 0;
    for (int d = 0; d < y->view.ndim; d++) {
        bool added = (row && d == y->view.ndim - 2) || (column && d == y->view.ndim - 1);
        if (!added) shape[ndim++] = y->view.shape[d];
    }
    return tern_reshape(scope, y, ndim, shape);
}

tern_tensor *tern_matmul(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    tern__view batch;
    char as[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT];
    if (!TERN__ENTER(scope, __func__, 2, &a, &b) || !matmul_dtypes_fit(scope, a->view.dtype, b->view.dtype))
        return NULL;
    bool row = a->view.ndim == 1, column = b->view.ndim == 1;
    tern_tensor *am = row ? tern_reshape(scope, a, 2, (int64_t[]){1, -1}) : a;
    tern_tensor *bm = column ? tern_reshape(scope, b, 2, (int64_t[]){-1, 1}) : b;
    if (!am || !bm) return NULL;
    if (am->view.ndim > 1 && bm->view.ndim > 1 && matmul_shapes_fit(&am->view, &bm->view, &batch))
        return without(scope, matmul(scope, am, bm, &batch), row, column);
    tern__scope_fail(scope, __func__, TERN_E_SHAPE,
                     "matmul: expected (.., m, k) or (k) and (.., k, n) or (k), got %s and %s",
                     tern__shape_text(&a->view, as), tern__shape_text(&b->view, bs));
    return NULL;
}
