/* view.h - shape, strides and layout over some memory: all that a kernel sees of a tensor. */
#ifndef TERN_SRC_TENSOR_VIEW_H
#define TERN_SRC_TENSOR_VIEW_H

#include "base/base.h"

#include <tern/tensor.h>

#define TERN__BLOCK 16 /* channels of a block */

/* BLOCKED16: (N, C, spatial..) with C % 16 == 0 stored as N, C / 16, spatial.., 16 and no gaps: oneDNN's
 * nC[dh]w16c. Its strides are not used. CHANNELS_LAST: (N, C, spatial..) stored as N, spatial.., C without
 * gaps, as its strides say: what GPUs convolve fastest. */
typedef enum tern__layout { TERN__PLAIN, TERN__BLOCKED16, TERN__CHANNELS_LAST } tern__layout;

/* Copies of a parameter that kernels keep in layouts of their own (kernels/pack.h). Whoever changes the
 * parameter counts `version` up; a copy of an older version is made anew at its next use. */
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
    tern__packs *packs;            /* NULL unless the view is a parameter's         */
} tern__view;

int64_t tern__view_count(const tern__view *view);
size_t tern__view_bytes(const tern__view *view);
/* TERN_OK if a tensor can be made so; E_DTYPE, E_RANGE (ndim) or E_SHAPE. */
int tern__shape_check(const char *func, tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err);
/* Shape and row-major strides (or the blocked layout); data stays NULL. */
tern__view tern__view_make(tern_dtype dtype, tern__layout layout, int ndim, const int64_t *shape);
/* A vector of all that lies from the begin of one view to the end of another one in the same memory, of the
 * same dtype, with what is between them. */
tern__view tern__view_span(const tern__view *first, const tern__view *last);
bool tern__view_is_contiguous(const tern__view *view); /* plain, row-major, no gaps */
/* Every byte between the first and the last element is one of them: blocked, or contiguous. */
static inline bool tern__view_is_dense(const tern__view *view)
{
    return view->layout != TERN__PLAIN || tern__view_is_contiguous(view);
}
bool tern__view_same_shape(const tern__view *a, const tern__view *b);

/* Offset in elements of the element with row-major number `i`, in any layout. */
int64_t tern__view_offset(const tern__view *view, int64_t i);
/* Element `i` in row-major order as a double, and back. For reference kernels, item and print. */
double tern__view_get(const tern__view *view, int64_t i);
void tern__view_set(const tern__view *view, int64_t i, double value);
/* The same exactly, for integers of any size. */
int64_t tern__view_get_int(const tern__view *view, int64_t i);
void tern__view_set_int(const tern__view *view, int64_t i, int64_t value);

/* "(64, 10)" into text; returns text. */
#define TERN__SHAPE_TEXT 128
const char *tern__shape_text(const tern__view *view, char text[TERN__SHAPE_TEXT]);

#endif
