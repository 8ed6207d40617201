/* tensor.h - a tensor from inside: a view, the storage it keeps alive, and autograd's part (autograd/). */
#ifndef TERN_SRC_TENSOR_TENSOR_H
#define TERN_SRC_TENSOR_TENSOR_H

#include "device/device.h"
#include "tensor/view.h"

/* A block of the device, counted: handles, views and the tape each hold one reference; those of replicas on
 * several threads too. */
typedef struct tern__storage {
    int refs;
    void *data;
    tern_device *device;
    void (*release)(void *ctx); /* NULL: a block that goes back to the device's cache */
    void *ctx;
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
/* Memory of its own, of any content. */
tern__storage *tern__storage_new(size_t bytes, const char *func, tern_error *err);

struct tern_tensor {
    tern__view view;
    tern__storage *storage; /* NULL: memory that somebody else owns (a parameter's range) */
    tern_device *device;    /* where its ops run; NULL: anywhere                          */

    struct tern_scope *scope; /* NULL: a parameter, a buffer or a kept tensor            */
    const uint64_t *clock;    /* the scope's generation; it moves on when the scope ends */
    uint64_t generation;      /* its value when this tensor was made                     */
    bool released;            /* an inner result of a module call that has returned      */
    tern_tensor *next;        /* in the scope's list of this frame                       */

    bool requires_grad;
    struct tern__leaf *leaf;     /* a parameter's gradient record                           */
    struct tern__node *node;     /* the tape's entry that made it                           */
    const tern_tensor *inner_of; /* the input of the tern_checkpoint in whose first pass it began to want a
                                  * gradient; else NULL */
    tern__view grad;             /* during backward, of a tensor that is no leaf            */
    tern__storage *grad_storage;
    bool grad_is_cut; /* where the ReLU that made the tensor has cut it off the gradient is 0 already */
};

/* TERN_OK, or E_LIFETIME for a tensor whose scope has ended, E_INVALID for NULL. */
int tern__tensor_check(const tern_tensor *tensor, const char *func, tern_error *err);

/* A tensor of its own, plain layout, uninitialised memory; tern_tensor_free. */
tern_tensor *tern__tensor_new(tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err);

/* A view of `storage`, which it holds, from `data` in it on: in plain layout, with strides in elements. The
 * caller has checked that all elements lie in it. */
tern_tensor *tern__tensor_over(tern__storage *storage, void *data, tern_dtype dtype, int ndim,
                               const int64_t *shape, const int64_t *stride, const char *func,
                               tern_error *err);

/* dst = src, element by element, any layouts and memories, same shape; dtypes equal. Fails only where one is
 * in a device's memory. */
int tern__view_copy(const tern__view *dst, const tern__view *src, tern_error *err);

#endif
