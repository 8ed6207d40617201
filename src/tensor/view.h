/* view.h - memory with shape, strides and layout: all that a kernel sees of a tensor. */
#ifndef TERN_SRC_TENSOR_VIEW_H
#define TERN_SRC_TENSOR_VIEW_H

#include "base/base.h"

#include <tern/tensor.h>

#define TERN__BLOCK 16 /* channels per block */

/* BLOCKED16: (N, C, spatial..) with C % 16 == 0, stored without gaps as N, C / 16, spatial.., 16: oneDNN's
 * nC[dh]w16c. Its strides are not used. CHANNELS_LAST: (N, C, spatial..), stored without gaps as N,
 * spatial.., C, with strides that say so: the fastest layout for convolutions on GPUs. */
typedef enum tern__layout { TERN__PLAIN, TERN__BLOCKED16, TERN__CHANNELS_LAST } tern__layout;

/* Copies of a parameter that kernels keep in other layouts (kernels/pack.h). Code that changes the parameter
 * increments `version`; a copy of an older version is rebuilt at its next use. */
typedef struct tern__packs {
    uint64_t version;
    struct tern__pack *first;
} tern__packs;
void tern__packs_free(tern__packs *packs);

typedef struct tern__view {
    void *data;
    tern_dtype dtype;
    tern__layout layout;
    int ndim;
    int64_t shape[TERN_NDIM_MAX];
    int64_t stride[TERN_NDIM_MAX]; /* in elements; 0 where a dimension is broadcast */
    tern__packs *packs;            /* NULL unless the view is of a parameter          */
} tern__view;

int64_t tern__view_count(const tern__view *view);
size_t tern__view_bytes(const tern__view *view);
/* Returns TERN_OK if such a tensor can exist; else E_DTYPE, E_RANGE (ndim) or E_SHAPE. */
int tern__shape_check(const char *func, tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err);
/* Makes a view with row-major strides, or in another layout; its data is NULL. */
tern__view tern__view_make(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape);
/* Returns a vector that spans the memory from the start of one view to the end of another one. Both are in
 * one block and have the same dtype. */
tern__view tern__view_span(const tern__view *first, const tern__view *last);
bool tern__view_is_contiguous(const tern__view *view); /* plain, row-major, no gaps */
/* Returns true if the elements have no gaps between them: contiguous, or in another layout. */
static inline bool tern__view_is_dense(const tern__view *view)
{
    return view->layout != TERN__PLAIN || tern__view_is_contiguous(view);
}
bool tern__view_same_shape(const tern__view *a, const tern__view *b);

/* Returns the offset, in elements, of the element with row-major index `i`, in any layout. */
int64_t tern__view_offset(const tern__view *view, int64_t i);
/* Read and write the element with row-major index `i` as a double. For reference kernels, item and print. */
double tern__view_get(const tern__view *view, int64_t i);
void tern__view_set(const tern__view *view, int64_t i, double value);
/* The same, exact for integers of any size. */
int64_t tern__view_get_int(const tern__view *view, int64_t i);
void tern__view_set_int(const tern__view *view, int64_t i, int64_t value);

/* ---- PyTorch's broadcasting: shapes are aligned at their last dimensions, and a dimension that is missing
 * or 1 is repeated ---- */

/* Computes the common shape of a and b; false if they cannot be broadcast together. */
bool tern__broadcast_shape(const tern__view *a, const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX]);

/* Returns `view` with the given shape, with stride 0 along repeated dimensions. The result is plain unless
 * `view` has that shape already. */
tern__view tern__broadcast_view(const tern__view *view, int ndim, const int64_t *shape);

/* Writes "(64, 10)" to text and returns it. */
#define TERN__SHAPE_TEXT 128
const char *tern__shape_text(const tern__view *view, char text[TERN__SHAPE_TEXT]);

#endif
