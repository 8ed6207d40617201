/* view.c - sizes, strides and elements of views. */
#include "tensor/view.h"

#include "base/half.h"

#include <stdio.h>

int64_t tern__view_count(const tern__view *view)
{
    int64_t count = 1;
    for (int d = 0; d < view->ndim; d++) count *= view->shape[d];
    return count;
}

size_t tern__view_bytes(const tern__view *view)
{
    return (size_t)tern__view_count(view) * tern_dtype_bytes(view->dtype);
}

/* Even if a dimension is 0, the product of the others must fit, since strides are computed from it. */
static bool is_addressable(size_t element, int ndim, const int64_t *shape)
{
    int64_t bytes = (int64_t)element;
    for (int d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(bytes, TERN__MAX(shape[d], 1), &bytes)) return false;
    return true;
}

int tern__shape_check(const char *func, tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err)
{
    if ((int)dtype < 0 || dtype >= TERN_DTYPE_COUNT)
        return tern__error_set(err, func, TERN_E_DTYPE, "dtype %d does not exist", (int)dtype);
    if (ndim < 0 || ndim > TERN_NDIM_MAX)
        return tern__error_set(err, func, TERN_E_RANGE, "ndim %d is not in [0, %d]", ndim, TERN_NDIM_MAX);
    if (ndim > 0 && !shape)
        return tern__error_set(err, func, TERN_E_INVALID, "the shape of %d dimensions is NULL", ndim);
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0)
            return tern__error_set(err, func, TERN_E_SHAPE, "dimension %d is %lld", d, (long long)shape[d]);
    if (is_addressable(tern_dtype_bytes(dtype), ndim, shape)) return TERN_OK;
    tern__view view = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) view.shape[d] = shape[d];
    char text[TERN__SHAPE_TEXT];
    return tern__error_set(err, func, TERN_E_SHAPE, "%s has too many elements",
                           tern__shape_text(&view, text));
}

tern__view tern__view_make(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape)
{
    tern__view view = {.dtype = dtype, .layout = layout, .ndim = ndim};
    bool last = layout == TERN__CHANNELS_LAST;
    int64_t stride = last ? shape[1] : 1;
    for (int d = ndim - 1; d >= 0; d--) {
        view.shape[d] = shape[d];
        if (last && d == 1) continue;
        view.stride[d] = stride;
        stride *= shape[d];
    }
    if (last) view.stride[1] = 1;
    return view;
}

tern__view tern__view_span(const tern__view *first, const tern__view *last)
{
    const char *end = (const char *)last->data + tern__view_bytes(last);
    int64_t count = (end - (const char *)first->data) / (int64_t)tern_dtype_bytes(first->dtype);
    tern__view span = tern__view_make(first->dtype, TERN__PLAIN, 1, &count);
    span.data = first->data;
    return span;
}

bool tern__view_is_contiguous(const tern__view *view)
{
    if (view->layout != TERN__PLAIN) return false;
    int64_t stride = 1;
    for (int d = view->ndim - 1; d >= 0; d--) {
        if (view->shape[d] != 1 && view->stride[d] != stride) return false;
        stride *= view->shape[d];
    }
    return true;
}

bool tern__view_same_shape(const tern__view *a, const tern__view *b)
{
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

static int64_t plain_offset(const tern__view *view, int64_t i)
{
    int64_t offset = 0;
    for (int d = view->ndim - 1; d >= 0; d--) {
        offset += i % view->shape[d] * view->stride[d];
        i /= view->shape[d];
    }
    return offset;
}

static int64_t blocked_offset(const tern__view *view, int64_t i)
{
    int64_t spatial = 1;
    for (int d = 2; d < view->ndim; d++) spatial *= view->shape[d];
    int64_t channels = view->shape[1];
    int64_t at = i % spatial, c = i / spatial % channels, n = i / spatial / channels;
    return ((n * (channels / TERN__BLOCK) + c / TERN__BLOCK) * spatial + at) * TERN__BLOCK + c % TERN__BLOCK;
}

int64_t tern__view_offset(const tern__view *view, int64_t i)
{
    if (tern__view_is_contiguous(view)) return i;
    return view->layout == TERN__BLOCKED16 ? blocked_offset(view, i) : plain_offset(view, i);
}

double tern__view_get(const tern__view *view, int64_t i)
{
    int64_t at = tern__view_offset(view, i);
    switch (view->dtype) {
    case TERN_F32: return ((const float *)view->data)[at];
    case TERN_F64: return ((const double *)view->data)[at];
    case TERN_I64: return (double)((const int64_t *)view->data)[at];
    case TERN_I32: return ((const int32_t *)view->data)[at];
    case TERN_U8: return ((const uint8_t *)view->data)[at];
    case TERN_BF16: return tern__bf16_to_f32(((const uint16_t *)view->data)[at]);
    case TERN_F16: return tern__f16_to_f32(((const uint16_t *)view->data)[at]);
    case TERN_BOOL: return ((const bool *)view->data)[at];
    case TERN_I8: return ((const int8_t *)view->data)[at];
    case TERN_I16: return ((const int16_t *)view->data)[at];
    case TERN_DTYPE_COUNT:
    case TERN_DTYPE_NONE: break;
    }
    return 0;
}

void tern__view_set(const tern__view *view, int64_t i, double value)
{
    int64_t at = tern__view_offset(view, i);
    switch (view->dtype) {
    case TERN_F32: ((float *)view->data)[at] = (float)value; break;
    case TERN_F64: ((double *)view->data)[at] = value; break;
    case TERN_I64: ((int64_t *)view->data)[at] = (int64_t)value; break;
    case TERN_I32: ((int32_t *)view->data)[at] = (int32_t)value; break;
    case TERN_U8: ((uint8_t *)view->data)[at] = (uint8_t)(int64_t)value; break;
    case TERN_BF16: ((uint16_t *)view->data)[at] = tern__bf16_from_f32((float)value); break;
    case TERN_F16: ((uint16_t *)view->data)[at] = tern__f16_from_f32((float)value); break;
    case TERN_BOOL: ((bool *)view->data)[at] = value != 0; break;
    case TERN_I8: ((int8_t *)view->data)[at] = (int8_t)(int64_t)value; break;
    case TERN_I16: ((int16_t *)view->data)[at] = (int16_t)(int64_t)value; break;
    case TERN_DTYPE_COUNT:
    case TERN_DTYPE_NONE: break;
    }
}

int64_t tern__view_get_int(const tern__view *view, int64_t i)
{
    int64_t at = tern__view_offset(view, i);
    switch (view->dtype) {
    case TERN_I64: return ((const int64_t *)view->data)[at];
    case TERN_I32: return ((const int32_t *)view->data)[at];
    case TERN_U8: return ((const uint8_t *)view->data)[at];
    case TERN_BOOL: return ((const bool *)view->data)[at];
    case TERN_I8: return ((const int8_t *)view->data)[at];
    case TERN_I16: return ((const int16_t *)view->data)[at];
    default: return (int64_t)tern__view_get(view, i);
    }
}

void tern__view_set_int(const tern__view *view, int64_t i, int64_t value)
{
    int64_t at = tern__view_offset(view, i);
    switch (view->dtype) {
    case TERN_I64: ((int64_t *)view->data)[at] = value; break;
    case TERN_I32: ((int32_t *)view->data)[at] = (int32_t)value; break;
    case TERN_U8: ((uint8_t *)view->data)[at] = (uint8_t)value; break;
    case TERN_BOOL: ((bool *)view->data)[at] = value != 0; break;
    case TERN_I8: ((int8_t *)view->data)[at] = (int8_t)value; break;
    case TERN_I16: ((int16_t *)view->data)[at] = (int16_t)value; break;
    default: tern__view_set(view, i, (double)value);
    }
}

const char *tern__shape_text(const tern__view *view, char text[TERN__SHAPE_TEXT])
{
    int used = snprintf(text, TERN__SHAPE_TEXT, "(");
    for (int d = 0; d < view->ndim; d++)
        used += snprintf(text + used, (size_t)(TERN__SHAPE_TEXT - used), "%s%lld", d ? ", " : "",
                         (long long)view->shape[d]);
    snprintf(text + used, (size_t)(TERN__SHAPE_TEXT - used), ")");
    return text;
}

/* ---- broadcasting ---- */

/* Returns the size of dimension d of `ndim`, the last of which are those of `view`. */
static int64_t broadcast_size(const tern__view *view, int ndim, int d)
{
    int own = d - (ndim - view->ndim);
    return own < 0 ? 1 : view->shape[own];
}

bool tern__broadcast_shape(const tern__view *a, const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX])
{
    *ndim = TERN__MAX(a->ndim, b->ndim);
    for (int d = 0; d < *ndim; d++) {
        int64_t of_a = broadcast_size(a, *ndim, d), of_b = broadcast_size(b, *ndim, d);
        if (of_a != of_b && of_a != 1 && of_b != 1) return false;
        shape[d] = of_a == 1 ? of_b : of_a;
    }
    return true;
}

tern__view tern__broadcast_view(const tern__view *view, int ndim, const int64_t *shape)
{
    if (view->layout != TERN__PLAIN && view->ndim == ndim && view->shape[1] == shape[1]) return *view;
    tern__view seen = {.data = view->data, .dtype = view->dtype, .layout = TERN__PLAIN, .ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - view->ndim);
        seen.shape[d] = shape[d];
        seen.stride[d] = broadcast_size(view, ndim, d) == 1 ? 0 : view->stride[own];
    }
    return seen;
}
