/* join.c - cat and stack: copies the inputs into parts of the output, and the gradients out of them. */
#include "ops/ops.h"

#include <string.h>

/* Returns the part of `all` that begins at `start` and has the given shape, with the strides of `all`. */
static tern__view join_part_of(const tern__view *all, const int64_t *start, const int64_t *shape)
{
    tern__view part = *all;
    int64_t offset = 0;
    part.layout = TERN__PLAIN;
    for (int d = 0; d < all->ndim; d++) {
        part.shape[d] = shape[d];
        offset += start[d] * all->stride[d];
    }
    part.data = (char *)all->data + offset * (int64_t)tern_dtype_bytes(all->dtype);
    return part;
}

/* A part of the output and the input that belongs there, as views of one shape. */
typedef struct pair {
    tern__view part, input;
} pair;

/* Views a blocked tensor as a plain (N, C / 16, rest). */
static tern__view join_blocks_of(const tern__view *view)
{
    int64_t rest = TERN__BLOCK, shape[] = {view->shape[0], view->shape[1] / TERN__BLOCK, 0};
    for (int d = 2; d < view->ndim; d++) rest *= view->shape[d];
    shape[2] = rest;
    tern__view seen = tern__view_make(view->dtype, TERN__PLAIN, 3, shape);
    seen.data = view->data;
    return seen;
}

/* If `all` is blocked, the input is too, and `start` is at a whole block. */
static pair pair_of(const tern__view *all, const int64_t *start, const tern__view *input)
{
    if (all->layout != TERN__BLOCKED16) return (pair){join_part_of(all, start, input->shape), *input};
    tern__view blocks = join_blocks_of(all), own = join_blocks_of(input);
    return (pair){join_part_of(&blocks, (int64_t[]){start[0], start[1] / TERN__BLOCK, 0}, own.shape), own};
}

/* Adds the gradient of input i: the part of dy that begins at `start`. */
static int part_gradient(tern_scope *scope, tern__node *node, int i, const int64_t *start)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to) return scope->error.code;
    pair p = pair_of(tern__dy(node), start, to);
    if (!tern__copy_into(scope, &p.input, &p.part, add)) return scope->error.code;
    return tern__grad_done(scope, node, i);
}

/* ---- cat and stack ---- */

/* The start of each input along `dim`. */
typedef struct joint {
    int dim;
    int64_t start[];
} joint;

/* True if each part of the output is one piece of memory, so that no gradient need be copied: `dim` is the
 * outermost dimension that is not 1 (channels, in a batch of one). */
static bool is_in_pieces(const tern__view *all, int dim)
{
    if (all->layout == TERN__CHANNELS_LAST && dim == 1) return false;
    for (int d = 0; d < dim; d++)
        if (all->shape[d] != 1) return false;
    return tern__view_is_dense(all);
}

/* Gives input i its piece of dy, from `start` on. */
static int piece_gradient(tern_scope *scope, tern__node *node, int i, const int64_t *start)
{
    const tern__view *x = &node->in[i]->view;
    tern__view piece = tern__view_make(x->dtype, tern__dy(node)->layout, x->ndim, x->shape);
    piece.data = pair_of(tern__dy(node), start, &piece).part.data;
    return tern__grad_give(scope, node, i, &piece);
}

static int cat_gradient(tern_scope *scope, tern__node *node)
{
    const joint *j = node->attr;
    bool pieces = is_in_pieces(tern__dy(node), j->dim);
    for (int i = 0; i < node->in_count; i++) {
        int64_t start[TERN_NDIM_MAX] = {0};
        if (!tern__wants(node, i)) continue;
        start[j->dim] = j->start[i];
        bool give = pieces && !node->in[i]->leaf;
        if ((give ? piece_gradient : part_gradient)(scope, node, i, start)) return scope->error.code;
    }
    return TERN_OK;
}

static int fail_part(tern_scope *scope, const char *func, const tern_tensor *first, const tern_tensor *other,
                     int number)
{
    char one[TERN__SHAPE_TEXT], two[TERN__SHAPE_TEXT];
    bool dtype = first->view.dtype != other->view.dtype;
    return tern__scope_fail(scope, func, dtype ? TERN_E_DTYPE : TERN_E_SHAPE,
                            "input 0 is %s of %s, but input %d is %s of %s",
                            tern__shape_text(&first->view, one), tern_dtype_name(first->view.dtype), number,
                            tern__shape_text(&other->view, two), tern_dtype_name(other->view.dtype));
}

/* True if x can be joined to `first`: alike except for the size along `dim`. */
static bool join_fits(const tern__view *first, const tern__view *x, int dim)
{
    bool fit = first->dtype == x->dtype && first->ndim == x->ndim;
    for (int d = 0; d < first->ndim && fit; d++) fit = d == dim || first->shape[d] == x->shape[d];
    return fit;
}

/* Fills in the starts and the output's shape. */
static int line_up(tern_scope *scope, const char *func, int count, tern_tensor *const *x, joint *j,
                   int64_t *shape)
{
    int64_t at = 0;
    for (int d = 0; d < x[0]->view.ndim; d++) shape[d] = x[0]->view.shape[d];
    for (int i = 0; i < count; i++) {
        if (!join_fits(&x[0]->view, &x[i]->view, j->dim)) return fail_part(scope, func, x[0], x[i], i);
        j->start[i] = at;
        at += x[i]->view.shape[j->dim];
    }
    shape[j->dim] = at;
    return TERN_OK;
}

/* Whole blocks of channels beside each other stay blocks if any of the inputs stands so; channels that are
 * last in any stay last. */
static int settle_layout(tern_scope *scope, int count, tern_tensor **x, int dim, tern__layout *layout)
{
    bool any = false, last = false, whole = dim == 1 && x[0]->view.ndim > 2;
    for (int i = 0; i < count; i++) {
        any = any || x[i]->view.layout == TERN__BLOCKED16;
        last = last || x[i]->view.layout == TERN__CHANNELS_LAST;
        whole = whole && x[i]->view.shape[1] % TERN__BLOCK == 0;
    }
    *layout = any && whole ? TERN__BLOCKED16 : last ? TERN__CHANNELS_LAST : TERN__PLAIN;
    for (int i = 0; i < count && *layout == TERN__BLOCKED16; i++)
        if (!(x[i] = tern__laid_out(scope, x[i], *layout))) return scope->error.code;
    return TERN_OK;
}

static tern_tensor *cat(tern_scope *scope, const char *func, int count, tern_tensor **x, int dim)
{
    tern__layout layout;
    int64_t shape[TERN_NDIM_MAX], start[TERN_NDIM_MAX] = {0};
    joint *j = tern__scope_alloc(scope, sizeof(*j) + (size_t)count * sizeof(*j->start));
    if (!j) return NULL;
    j->dim = dim;
    if (line_up(scope, func, count, x, j, shape)) return NULL;
    if (!tern__can_be(scope, func, x[0]->view.dtype, x[0]->view.ndim, shape)) return NULL;
    if (settle_layout(scope, count, x, dim, &layout)) return NULL;
    tern_tensor *y = tern__result(scope, x[0]->view.dtype, layout, x[0]->view.ndim, shape);
    for (int i = 0; i < count && y; i++) {
        start[dim] = j->start[i];
        pair p = pair_of(&y->view, start, &x[i]->view);
        if (!tern__copy(scope, &p.part, &p.input)) return NULL;
    }
    if (!y) return NULL;
    tern__node *node = tern__record(scope, "cat", cat_gradient, y, count, x);
    if (node) node->attr = j;
    return y;
}

/* The inputs, in an array of our own; NULL after a failure. */
static tern_tensor **join_enter(tern_scope *scope, const char *func, int count, tern_tensor *const *x)
{
    if (!scope || scope->error.code) return NULL;
    if (count < 1) {
        tern__scope_fail(scope, func, TERN_E_INVALID, "expected at least one tensor, got %d", count);
        return NULL;
    }
    tern_tensor **own = tern__scope_alloc(scope, (size_t)count * sizeof(*own));
    if (own) memcpy(own, x, (size_t)count * sizeof(*own));
    return own && tern__op_enter(scope, func, count, count, own) ? own : NULL;
}

tern_tensor *tern_cat(tern_scope *scope, int count, tern_tensor *const *x, int dim)
{
    tern_tensor **own = join_enter(scope, __func__, count, x);
    if (!own || (dim = tern__dim_of(scope, __func__, own[0], dim)) < 0) return NULL;
    return cat(scope, __func__, count, own, dim);
}

/* x with a new dimension of 1. */
static tern_tensor *unsqueeze(tern_scope *scope, tern_tensor *x, int dim)
{
    int64_t shape[TERN_NDIM_MAX];
    for (int d = 0; d <= x->view.ndim; d++) shape[d] = d == dim ? 1 : x->view.shape[d - (d > dim)];
    return tern_reshape(scope, x, x->view.ndim + 1, shape);
}

tern_tensor *tern_stack(tern_scope *scope, int count, tern_tensor *const *x, int dim)
{
    tern_tensor **own = join_enter(scope, __func__, count, x);
    if (!own) return NULL;
    int ndim = own[0]->view.ndim + 1, at = dim < 0 ? dim + ndim : dim;
    if (at < 0 || at >= ndim || ndim > TERN_NDIM_MAX) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE,
                         "stack: dimension %d of %d (at most %d) does not exist", dim, ndim, TERN_NDIM_MAX);
        return NULL;
    }
    for (int i = 1; i < count; i++)
        if (!join_fits(&own[0]->view, &own[i]->view, -1)) {
            fail_part(scope, __func__, own[0], own[i], i);
            return NULL;
        }
    for (int i = 0; i < count; i++)
        if (!(own[i] = unsqueeze(scope, own[i], at))) return NULL;
    return cat(scope, __func__, count, own, at);
}
