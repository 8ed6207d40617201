/* pad.c - padding with a value, or with the tensor's own elements: reflected, replicated or circular.
 *
 * All of it is copies between parts of the result. x comes into the middle. Then each dimension, from the
 * last to the first, gets its two borders from lines of the result that are there already, with the borders
 * of the dimensions behind it, so corners come by themselves. Mirrored lines are walked with a negative
 * stride, repeated ones with stride 0. The gradient goes the other way in a copy of dy: from the first
 * dimension to the last, borders are added to the lines that they came from, and what the middle has become
 * is dx. 16 bits are added up in f32. */
#include "ops/ops.h"

/* ---- parts of a view ---- */

/* Views any layout by its strides; a blocked layout's channel block becomes one more, last dimension. */
static tern__view strided(const tern__view *view)
{
    int64_t shape[TERN_NDIM_MAX];
    tern__view seen = *view;
    seen.layout = TERN__PLAIN;
    if (view->layout != TERN__BLOCKED16) return seen;
    for (int d = 0; d < view->ndim; d++) shape[d] = view->shape[d];
    shape[1] /= TERN__BLOCK;
    shape[view->ndim] = TERN__BLOCK;
    seen = tern__view_make(view->dtype, TERN__PLAIN, view->ndim + 1, shape);
    seen.data = view->data;
    return seen;
}

/* Returns `count` lines along dimension d, beginning at `start`, `step` lines apart. */
static tern__view lines(const tern__view *all, int d, int64_t start, int64_t count, int64_t step)
{
    tern__view part = *all;
    part.data = (char *)all->data + start * all->stride[d] * (int64_t)tern_dtype_bytes(all->dtype);
    part.shape[d] = count;
    part.stride[d] *= step;
    return part;
}

/* Returns the view without the borders of its first `dims` dimensions. */
static tern__view middle_of(const tern__view *all, const tern__padding *p, int dims)
{
    tern__view part = *all;
    for (int d = 0; d < dims; d++)
        part = lines(&part, d, p->before[d], part.shape[d] - p->before[d] - p->after[d], 1);
    return part;
}

/* ---- borders ---- */

/* A border: its first line, the first line that it is copied from, and the number of lines. */
typedef struct border {
    int64_t start, source, step, count;
} border;

/* Returns the border before or after dimension d of the result, which has `size` lines. */
static border border_of(const tern__padding *p, int d, int64_t size, bool behind)
{
    int64_t before = p->before[d], end = size - p->after[d];
    border b = {.start = behind ? end : 0, .count = behind ? p->after[d] : before};
    if (p->mode == TERN_PADDING_MODE_REFLECT) {
        b.source = behind ? end - 2 : 2 * before;
        b.step = -1;
    } else if (p->mode == TERN_PADDING_MODE_REPLICATE) {
        b.source = behind ? end - 1 : before;
    } else {
        b.source = behind ? before : end - before;
        b.step = 1;
    }
    return b;
}

/* Adds a border to the lines that it was copied from, line by line where all come from one line. */
static bool add_back(tern_scope *scope, const tern__view *part, int d, const border *b)
{
    int64_t each = b->step ? b->count : 1;
    for (int64_t i = 0; i < b->count; i += each) {
        tern__view from = lines(part, d, b->start + i, each, 1),
                   to = lines(part, d, b->source, each, b->step);
        if (!tern__copy_into(scope, &to, &from, true)) return false;
    }
    return true;
}

static bool pad_fill(tern_scope *scope, const tern__view *part, const tern__padding *p, int d,
                     const border *b)
{
    tern__view to = lines(part, d, b->start, b->count, 1);
    if (p->mode == TERN_PADDING_MODE_ZEROS) return tern__fill(scope, &to, p->value);
    tern__view from = lines(part, d, b->source, b->count, b->step);
    return tern__copy(scope, &to, &from);
}

/* Fills both borders of dimension d, or adds them to the lines that they came from. Leaves out the borders of
 * the dimensions before d. */
static bool do_borders(tern_scope *scope, const tern__view *all, const tern__padding *p, int d, bool back)
{
    tern__view part = middle_of(all, p, d);
    for (int behind = 0; behind < 2; behind++) {
        border b = border_of(p, d, all->shape[d], behind);
        if (b.count == 0) continue;
        if (back ? !add_back(scope, &part, d, &b) : !pad_fill(scope, &part, p, d, &b)) return false;
    }
    return true;
}

/* ---- gradient ---- */

/* Adds all borders of dy to its middle. Works on a copy if something else holds dy, or if dy has 16 bits. The
 * result's data is NULL on failure. */
static tern__saved folded(tern_scope *scope, const tern__node *node, const tern__padding *p)
{
    const tern__view *dy = tern__dy(node);
    tern__saved own = {.view = *dy}, none = {0};
    bool narrow = tern_dtype_bytes(dy->dtype) == 2;
    if (narrow || !tern__owns_dy(node)) {
        tern__view like = *dy;
        if (narrow) like.dtype = TERN_F32;
        own = tern__temporary(scope, &like);
        if (!own.storage) return none;
        if (!tern__copy(scope, &own.view, dy)) tern__saved_drop(&own);
    }
    tern__view all = strided(&own.view);
    for (int d = 0; d < dy->ndim && own.view.data; d++)
        if (!do_borders(scope, &all, p, d, true)) tern__saved_drop(&own);
    return own;
}

static int pad_gradient(tern_scope *scope, tern__node *node)
{
    const tern__padding *p = node->attr;
    bool add;
    tern__saved own = {.view = *tern__dy(node)};
    if (p->mode != TERN_PADDING_MODE_ZEROS) own = folded(scope, node, p);
    const tern__view *to = scope->error.code ? NULL : tern__grad_open(scope, node, 0, &add);
    if (to) {
        tern__view all = strided(&own.view), middle = middle_of(&all, p, own.view.ndim);
        tern__view dx = to->layout == own.view.layout ? strided(to) : *to;
        tern__copy_into(scope, &dx, &middle, add);
    }
    tern__saved_drop(&own);
    return scope->error.code ? scope->error.code : tern__grad_done(scope, node, 0);
}

/* ---- forward ---- */

/* A blocked or channels-last layout is kept if only spatial dimensions are padded. */
static tern__layout layout_of(const tern__view *x, const tern__padding *p)
{
    bool around = p->before[0] || p->after[0] || p->before[1] || p->after[1];
    return around || x->ndim == TERN_NDIM_MAX ? TERN__PLAIN : x->layout;
}

static bool fill_all(tern_scope *scope, const tern__view *y, const tern__view *x, const tern__padding *p)
{
    tern__view all = strided(y), middle = middle_of(&all, p, y->ndim);
    tern__view from = x->layout == y->layout ? strided(x) : *x;
    bool done = tern__copy(scope, &middle, &from);
    for (int d = y->ndim - 1; d >= 0 && done; d--) done = do_borders(scope, &all, p, d, false);
    return done;
}

int tern__padding_mode_check(tern_scope *scope, const char *func, const char *op, int64_t mode)
{
    if (mode >= TERN_PADDING_MODE_ZEROS && mode <= TERN_PADDING_MODE_CIRCULAR) return TERN_OK;
    return tern__scope_fail(
        scope, func, TERN_E_INVALID,
        "%s: expected TERN_PADDING_MODE_ZEROS, _REFLECT, _REPLICATE or _CIRCULAR, got mode %lld", op,
        (long long)mode);
}

/* True if a dimension of this size has the lines that a border of `count` lines is copied from. */
static bool reaches(tern_padding_mode mode, int64_t count, int64_t size)
{
    if (count == 0 || mode == TERN_PADDING_MODE_ZEROS) return true;
    if (mode == TERN_PADDING_MODE_REPLICATE) return size > 0;
    return mode == TERN_PADDING_MODE_REFLECT ? count < size : count <= size;
}

static int check_borders(tern_scope *scope, const char *func, const tern__view *x, const tern__padding *p)
{
    static const char *const wanted[] = {
        [TERN_PADDING_MODE_REFLECT] = "reflection of less than the dimension",
        [TERN_PADDING_MODE_REPLICATE] = "replication of something",
        [TERN_PADDING_MODE_CIRCULAR] = "circular padding of at most the dimension",
    };
    char shape[TERN__SHAPE_TEXT];
    for (int d = 0; d < x->ndim; d++) {
        if (reaches(p->mode, TERN__MAX(p->before[d], p->after[d]), x->shape[d])) continue;
        return tern__scope_fail(
            scope, func, TERN_E_SHAPE, "pad: expected %s, got %lld before and %lld after dimension %d of %s",
            wanted[p->mode], (long long)p->before[d], (long long)p->after[d], d, tern__shape_text(x, shape));
    }
    return TERN_OK;
}

tern_tensor *tern__pad(tern_scope *scope, const char *func, tern_tensor *x, const tern__padding *p)
{
    int64_t shape[TERN_NDIM_MAX];
    if (check_borders(scope, func, &x->view, p)) return NULL;
    for (int d = 0; d < x->view.ndim; d++) shape[d] = x->view.shape[d] + p->before[d] + p->after[d];
    if (!tern__can_be(scope, func, x->view.dtype, x->view.ndim, shape)) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, layout_of(&x->view, p), x->view.ndim, shape);
    if (!y || !fill_all(scope, &y->view, &x->view, p)) return NULL;
    tern__save_attr(scope, tern__record(scope, "pad", pad_gradient, y, 1, &x), p, sizeof(*p));
    return y;
}

/* ---- public ---- */

/* Reads two numbers per dimension, the last dimension first, each at least `least`. Sizes must fit an
 * int64_t. */
static int pad_take(tern_scope *scope, const char *func, const tern__view *x, int count,
                    const int64_t *padding, int64_t least, tern__padding *p)
{
    bool fit = count >= 0 && count % 2 == 0 && count / 2 <= x->ndim;
    for (int i = 0; i < count && fit; i++) {
        int d = x->ndim - 1 - i / 2;
        int64_t sum;
        *(i % 2 ? &p->after[d] : &p->before[d]) = padding[i];
        fit = padding[i] >= least && !__builtin_add_overflow(x->shape[d], p->before[d], &sum) &&
              !__builtin_add_overflow(sum, p->after[d], &sum);
    }
    if (fit) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_RANGE,
                            "pad: expected two numbers%s for each of up to %d dimensions, got %d numbers",
                            least ? "" : " of at least 0", x->ndim, count);
}

/* Cuts from a dimension what negative numbers take away before and after it. */
static tern_tensor *pad_cut(tern_scope *scope, const char *func, tern_tensor *x, int d, int64_t *before,
                            int64_t *after)
{
    int64_t size = x->view.shape[d], first = TERN__MIN(*before, (int64_t)0),
            last = TERN__MIN(*after, (int64_t)0);
    if (!first && !last) return x;
    if (first < -size || last < -size - first) {
        tern__scope_fail(scope, func, TERN_E_RANGE, "pad: dimension %d is to lose %lld and %lld of %lld", d,
                         -(long long)first, -(long long)last, (long long)size);
        return NULL;
    }
    *before -= first;
    *after -= last;
    return tern_slice(scope, x, d, -first, size + last, 1);
}

tern_tensor *tern_pad(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding, double value)
{
    tern__padding p = {.mode = TERN_PADDING_MODE_ZEROS, .value = value};
    if (!TERN__ENTER(scope, __func__, 1, &x) ||
        pad_take(scope, __func__, &x->view, count, padding, -INT64_MAX, &p))
        return NULL;
    for (int d = 0; x && d < x->view.ndim; d++) x = pad_cut(scope, __func__, x, d, &p.before[d], &p.after[d]);
    return x ? tern__pad(scope, __func__, x, &p) : NULL;
}

/* The op's name in autocast's table: PyTorch lists these two, but no reflection of three dimensions. */
static const char *pad_row_of(int count, tern_padding_mode mode)
{
    if (mode == TERN_PADDING_MODE_REFLECT && count <= 4) return "tern_pad_reflect";
    return mode == TERN_PADDING_MODE_REPLICATE ? "tern_pad_replicate" : "tern_pad_mode";
}

tern_tensor *tern_pad_mode(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding,
                           tern_padding_mode mode)
{
    tern__padding p = {.mode = mode};
    if (!TERN__ENTER(scope, __func__, 1, &x) || tern__padding_mode_check(scope, __func__, "pad", (int)mode) ||
        pad_take(scope, __func__, &x->view, count, padding, 0, &p) ||
        !TERN__ENTER(scope, pad_row_of(count, mode), 1, &x))
        return NULL;
    return tern__pad(scope, __func__, x, &p);
}
