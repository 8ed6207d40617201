/* host.h - a view's elements for the host, wherever they are. */
#ifndef TERN_SRC_TENSOR_HOST_H
#define TERN_SRC_TENSOR_HOST_H

#include "tensor/view.h"

/* Bytes from a view's first element, which there is, to the end of its last. */
size_t tern__view_reach(const tern__view *view);

/* A view as the host can read and write it: the caller's own, or one of a copy. */
typedef struct tern__host {
    tern__view view;
    void *home; /* what the copy is of, or NULL */
    size_t bytes;
} tern__host;

/* Waits until the device has written it. E_MEMORY, or the device's error. */
int tern__host_open(tern__host *host, const tern__view *view, tern_error *err);
/* With `written` what it holds becomes the view's. */
int tern__host_close(tern__host *host, bool written, tern_error *err);

/* Element 0 of a view. */
int tern__host_item(const tern__view *view, double *value, tern_error *err);
/* to = from, element by element through double, or through int64 between integers: one shape, any dtypes. */
int tern__host_convert(const tern__view *to, const tern__view *from, tern_error *err);

#endif
