/* broadcast.h - PyTorch's broadcasting: shapes are aligned at their last dimensions, and a dimension that is
 * missing or 1 is repeated. */
#ifndef TERN_SRC_OPS_BROADCAST_H
#define TERN_SRC_OPS_BROADCAST_H

#include "tensor/view.h"

/* The shape of a combined with b; false if they do not fit. */
bool tern__broadcast_shape(const tern__view *a, const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX]);

/* `view` seen with the given shape, stride 0 where it is repeated. Plain unless it has that shape itself. */
tern__view tern__broadcast_view(const tern__view *view, int ndim, const int64_t *shape);

#endif
