/* view.c - views of the same memory: transpose, permute, slice, select, split, detach. The gradient of a view
 * copies dy into the elements that the view shows. */
#include "ops/ops.h"

int tern__dim_of(tern_scope *scope, const char *func, const tern_tensor *x, int dim)
{
    int ndim = x->view.ndim, d = dim < 0 ? dim + ndim : dim;
    char shape[TERN__SHAPE_TEXT];
    if (d >= 0 && d < ndim) return d;
    tern__scope_fail(scope, func, TERN_E_RANGE, "dimension %d of %s is not in [-%d, %d)", dim,
                     tern__shape_text(&x->view, shape), ndim, ndim);
    return -1;
}

/* True if nothing moves x's memory while the scope lives. */
static bool stays(const tern_tensor *x)
{
    return x->scope || x->storage || (x->leaf && x->leaf->grad);
}

tern_tensor *tern__share(tern_scope *scope, tern_tensor *x, const tern__view *view)
{
    if (stays(x)) return tern__result_view(scope, x, view);
    tern_tensor *y = tern__result(scope, view->dtype, TERN__PLAIN, view->ndim, view->shape);
    return y && tern__copy(scope, &y->view, view) ? y : NULL;
}

/* A slice whose gradient was lent and to which nothing else was added is done. */
static int view_gradient(tern_scope *scope, tern__node *node)
{
    bool add;
    tern__view seen;
    if (!node->out->grad_storage) return TERN_OK;
    if (!tern__grad_open_part(scope, node, tern__dy(node), &seen, &add) ||
        !tern__copy_into(scope, &seen, tern__dy(node), add))
        return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

/* Describes `seen`, a view of x, in the memory of x's gradient, which is dense. */
static tern_tensor *view_of(tern_scope *scope, const char *op, tern_tensor *x, const tern__view *seen,
                            const tern__view_part *w)
{
    tern_tensor *y = tern__share(scope, x, seen);
    tern__node *node = y ? tern__record(scope, op, view_gradient, y, 1, &x) : NULL;
    tern__save_attr(scope, node, w, sizeof(*w));
    if (node) node->shows = node->attr;
    return y;
}

/* ---- permute ---- */

/* Resolves `dims` into `own`; negative ones count from the end. False if a dimension is missing. */
static bool find_order(int ndim, int count, const int *dims, int own[TERN_NDIM_MAX])
{
    bool seen[TERN_NDIM_MAX] = {false}, all = count == ndim;
    for (int i = 0; i < count && all; i++) {
        own[i] = dims[i] < 0 ? dims[i] + ndim : dims[i];
        all = own[i] >= 0 && own[i] < ndim && !seen[own[i]];
        if (all) seen[own[i]] = true;
    }
    return all;
}

static tern_tensor *permute(tern_scope *scope, const char *op, tern_tensor *x, const int *dims)
{
    if (!(x = x->view.layout == TERN__PLAIN ? x : tern__plain(scope, x))) return NULL;
    tern__view seen = x->view;
    tern__view grad = tern__view_make(seen.dtype, TERN__PLAIN, seen.ndim, seen.shape);
    tern__view_part w = {.dim = TERN__PART_WHOLE};
    for (int d = 0; d < seen.ndim; d++) {
        seen.shape[d] = x->view.shape[dims[d]];
        seen.stride[d] = x->view.stride[dims[d]];
        w.stride[d] = grad.stride[dims[d]];
    }
    return view_of(scope, op, x, &seen, &w);
}

tern_tensor *tern_permute(tern_scope *scope, tern_tensor *x, int count, const int *dims)
{
    int own[TERN_NDIM_MAX];
    char shape[TERN__SHAPE_TEXT];
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (find_order(x->view.ndim, count, dims, own)) return permute(scope, "permute", x, own);
    tern__scope_fail(scope, __func__, TERN_E_RANGE, "permute: expected each dimension of %s once",
                     tern__shape_text(&x->view, shape));
    return NULL;
}

tern_tensor *tern_transpose(tern_scope *scope, tern_tensor *x, int dim0, int dim1)
{
    int dims[TERN_NDIM_MAX];
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    for (int d = 0; d < x->view.ndim; d++) dims[d] = d;
    dim0 = tern__dim_of(scope, __func__, x, dim0);
    dim1 = dim0 < 0 ? -1 : tern__dim_of(scope, __func__, x, dim1);
    if (dim1 < 0) return NULL;
    dims[dim0] = dim1;
    dims[dim1] = dim0;
    return permute(scope, "transpose", x, dims);
}

/* ---- slice ---- */

/* Returns x[.., start : start + count * step : step, ..], without the dimension if `drop`. */
static tern_tensor *view_take(tern_scope *scope, const char *op, tern_tensor *x, int dim, int64_t start,
                              int64_t count, int64_t step, bool drop)
{
    if (!(x = x->view.layout == TERN__PLAIN ? x : tern__plain(scope, x))) return NULL;
    tern__view seen = x->view;
    tern__view grad = tern__view_make(seen.dtype, TERN__PLAIN, seen.ndim, seen.shape);
    bool is_whole = count == seen.shape[dim];
    tern__view_part w = {.offset = start * grad.stride[dim],
                         .dim = is_whole    ? TERN__PART_WHOLE
                                : step == 1 ? dim
                                            : TERN__PART_ODD,
                         .start = start,
                         .stop = start + count};
    seen.data = (char *)seen.data + start * seen.stride[dim] * (int64_t)tern_dtype_bytes(seen.dtype);
    seen.shape[dim] = count;
    seen.stride[dim] *= step;
    grad.stride[dim] *= step;
    seen.ndim = 0;
    for (int d = 0; d < x->view.ndim; d++) {
        if (drop && d == dim) continue;
        seen.shape[seen.ndim] = seen.shape[d];
        seen.stride[seen.ndim] = seen.stride[d];
        w.stride[seen.ndim++] = grad.stride[d];
    }
    return view_of(scope, op, x, &seen, &w);
}

/* Resolves an index as Python does: from the end if negative, then clamped. */
static int64_t view_clip(int64_t place, int64_t size)
{
    place = place < 0 ? place + size : place;
    return TERN__MIN(TERN__MAX(place, 0), size);
}

tern_tensor *tern_slice(tern_scope *scope, tern_tensor *x, int dim, int64_t start, int64_t stop, int64_t step)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || (dim = tern__dim_of(scope, __func__, x, dim)) < 0)
        return NULL;
    if (step < 1) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "slice: expected a step of at least 1, got %lld",
                         (long long)step);
        return NULL;
    }
    int64_t size = x->view.shape[dim];
    start = view_clip(start, size);
    stop = TERN__MAX(start, view_clip(stop, size));
    step = TERN__MIN(step, TERN__MAX(size, 1)); /* a larger step would only overflow */
    int64_t count = stop > start ? (stop - start - 1) / step + 1 : 0;
    return view_take(scope, "slice", x, dim, start, count, step, false);
}

tern_tensor *tern_select(tern_scope *scope, tern_tensor *x, int dim, int64_t index)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || (dim = tern__dim_of(scope, __func__, x, dim)) < 0)
        return NULL;
    int64_t size = x->view.shape[dim], at = index < 0 ? index + size : index;
    if (at >= 0 && at < size) return view_take(scope, "select", x, dim, at, 1, 1, true);
    tern__scope_fail(scope, __func__, TERN_E_RANGE, "select: index %lld is not in [-%lld, %lld)",
                     (long long)index, (long long)size, (long long)size);
    return NULL;
}

int tern_split(tern_scope *scope, tern_tensor *x, int64_t size, int dim, tern_tensor **parts, int room)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || (dim = tern__dim_of(scope, __func__, x, dim)) < 0) return 0;
    int64_t all = x->view.shape[dim], count = size > 0 ? TERN__MAX((all + size - 1) / size, 1) : 0;
    if (count < 1 || count > room) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE,
                         "split: parts of %lld of a dimension of %lld do not fit an array of %d",
                         (long long)size, (long long)all, room);
        return 0;
    }
    for (int64_t i = 0; i < count; i++)
        parts[i] = view_take(scope, "split", x, dim, i * size, TERN__MIN(size, all - i * size), 1, false);
    return (int)count;
}

/* ---- detach ---- */

tern_tensor *tern_detach(tern_scope *scope, tern_tensor *x)
{
    return TERN__ENTER(scope, __func__, 1, &x) ? tern__share(scope, x, &x->view) : NULL;
}
