/* broadcast.h - PyTorch's broadcasting: shapes are aligned at their last dimensions, and a dimension that is
 * missing or 1 is repeated. */
#ifndef TERN_SRC_OPS_BROADCAST_H
#define TERN_SRC_OPS_BROADCAST_H

#include "tensor/view.h"

/* Computes the common shape of a and b; false if they cannot be broadcast together. */
bool tern__broadcast_shape(const tern__view *a, const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX]);

/* Returns `view` with the given shape, with stride 0 along repeated dimensions. The result is plain unless
 * `view` has that shape already. */
tern__view tern__broadcast_view(const tern__view *view, int ndim, const int64_t *shape);

#endif
