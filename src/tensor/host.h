/* host.h - gives the host access to a view's elements, whichever memory they are in. */
#ifndef TERN_SRC_TENSOR_HOST_H
#define TERN_SRC_TENSOR_HOST_H

#include "tensor/view.h"

/* Returns the bytes from a view's first element to the end of its last. The view must not be empty. */
size_t tern__view_reach(const tern__view *view);

/* A view that the host can read and write: the caller's view, or a view of a copy. */
typedef struct tern__host {
    tern__view view;
    void *home; /* the original memory of the copy; NULL: no copy */
    size_t bytes;
} tern__host;

/* Opens a view for the host; waits until the device has written it. E_MEMORY, or the device's error. */
int tern__host_open(tern__host *host, const tern__view *view, tern_error *err);
/* Frees the copy; with `written`, copies it back first. */
int tern__host_close(tern__host *host, bool written, tern_error *err);

/* Reads element 0 of a view. */
int tern__host_item(const tern__view *view, double *value, tern_error *err);
/* to = from, element by element, for equal shapes and any dtypes. Equal dtypes keep all bits, NaNs' too; else
 * values pass through double, or through int64 if both dtypes are integers. */
int tern__host_convert(const tern__view *to, const tern__view *from, tern_error *err);

#endif
