/* tensor.h - the tensor's internals: a view, the storage that it keeps alive, and autograd's fields
 * (autograd/). */
#ifndef TERN_SRC_TENSOR_TENSOR_H
#define TERN_SRC_TENSOR_TENSOR_H

#include "device/device.h"
#include "tensor/view.h"

/* A reference-counted block of memory. Handles, views and the tape each hold a reference; with replicas, from
 * several threads. */
typedef struct tern__storage {
    int refs;
    void *data;
    tern_device *device;
    void (*release)(void *ctx); /* NULL: the block goes back to the device's cache */
    void *ctx;
    bool is_exposed; /* the program has been told its address, and may have changed what is there */
} tern__storage;

static inline tern__storage *tern__storage_hold(tern__storage *storage)
{
    if (storage) __atomic_fetch_add(&storage->refs, 1, __ATOMIC_RELAXED);
    return storage;
}
static inline bool tern__storage_is_sole(const tern__storage *storage)
{
    return __atomic_load_n(&storage->refs, __ATOMIC_ACQUIRE) == 1;
}
void tern__storage_drop(tern__storage *storage);
/* Allocates a storage; its memory is not initialised. */
tern__storage *tern__storage_new(size_t bytes, const char *func, tern_error *err);

/* What has ended a tensor before its scope: a module call or a function that has returned, or a release. */
typedef enum tern__released {
    TERN__RELEASED_NOT,
    TERN__RELEASED_BY_CALL,
    TERN__RELEASED_BY_MARK
} tern__released;

struct tern_tensor {
    tern__view view;
    tern__storage *storage; /* NULL: memory owned elsewhere (a parameter's range) */
    tern_device *device;    /* where its ops run; NULL: anywhere                  */

    struct tern_scope *scope; /* NULL: a parameter, a buffer or a kept tensor            */
    const uint64_t *clock;    /* the scope's generation, which increases when the scope ends */
    uint64_t generation;      /* *clock when this tensor was made                        */
    int64_t order;            /* its number in its scope, or that of the mark whose release has kept it */
    tern__released released;
    tern_tensor *next; /* in the scope's list of this frame                       */

    bool requires_grad;
    struct tern__leaf *leaf;      /* a parameter's gradient record                           */
    struct tern__node *node;      /* the tape's entry that made it                           */
    tern_tensor *const *inner_of; /* the inputs of the tern_checkpoint in whose first pass it began to want a
                                   * gradient; else NULL */
    tern__view grad;              /* during backward, for a tensor that is not a leaf        */
    tern__storage *grad_storage;
    struct tern__grad_parts *grad_parts; /* the parts of the gradient that hold values; NULL: all */
    bool grad_is_lent;                   /* of a view: its gradient was written into that of its input */
    bool grad_is_cut; /* the gradient is already 0 where the ReLU that made the tensor returned 0 */
};

/* TERN_OK, or E_LIFETIME for a tensor whose scope has ended, E_INVALID for NULL. */
int tern__tensor_check(const tern_tensor *tensor, const char *func, tern_error *err);

/* Makes a tensor in plain layout with uninitialised memory; free it with tern_tensor_free. */
tern_tensor *tern__tensor_new(tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err);

/* Makes a tensor over `storage`, of which it holds a reference, starting at `data`: plain layout, strides in
 * elements. The caller has checked that all elements are inside the storage. */
tern_tensor *tern__tensor_over(tern__storage *storage, void *data, tern_dtype dtype, int ndim,
                               const int64_t *shape, const int64_t *stride, const char *func,
                               tern_error *err);

/* dst = src, element by element, for equal shapes, any dtypes, layouts and memories (tern__host_convert). Can
 * fail only if one of them is in a device's memory. */
int tern__view_copy(const tern__view *dst, const tern__view *src, tern_error *err);

#endif
