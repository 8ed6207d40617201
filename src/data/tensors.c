/* tensors.c - a dataset of two tensors: the samples and their targets. */
#include "base/base.h"
#include "tensor/tensor.h"

#include <string.h>

#include <tern/data.h>

#define FUNC "tern_tensor_dataset_new"

/* One of the two tensors; `bytes` is the size of one sample. */
typedef struct column {
    tern__storage *storage; /* held */
    const char *data;
    size_t bytes;
} column;

typedef struct tensors {
    tern_dataset base;
    column x, y;
} tensors;

static int tensors_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                       tern_error *err)
{
    const tensors *t = (const tensors *)base;
    (void)epoch, (void)err;
    memcpy(x, t->x.data + (size_t)index * t->x.bytes, t->x.bytes);
    memcpy(y, t->y.data + (size_t)index * t->y.bytes, t->y.bytes);
    return TERN_OK;
}

static void tensors_free(tern_dataset *base)
{
    tensors *t = (tensors *)base;
    tern__storage_drop(t->x.storage);
    tern__storage_drop(t->y.storage);
    tern__free(t);
}

static int tensors_check(const char *name, const tern_tensor *tensor, tern_error *err)
{
    if (tern__tensor_check(tensor, FUNC, err)) return err->code;
    if (tensor->scope || !tensor->storage)
        return tern__error_set(err, FUNC, TERN_E_LIFETIME,
                               "%s belongs to a %s, which may end before the dataset: tern_keep it first",
                               name, tensor->scope ? "scope" : "module");
    if (tensor->view.ndim < 1 || tensor->view.ndim > 5)
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "%s has %d dimensions, expected 1 to 5", name,
                               tensor->view.ndim);
    if (!tern__view_is_contiguous(&tensor->view))
        return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                               "%s is not row-major without gaps: tern_keep it", name);
    return TERN_OK;
}

static int check_both(const tern_tensor *x, const tern_tensor *y, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (tensors_check("x", x, err) || tensors_check("y", y, err)) return err->code;
    if (y->view.ndim == 1 && y->view.dtype != TERN_I64)
        return tern__error_set(err, FUNC, TERN_E_DTYPE, "y is %s, expected labels of i64",
                               tern_dtype_name(y->view.dtype));
    if (x->view.shape[0] != y->view.shape[0])
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "x has %lld samples but y has %lld",
                               (long long)x->view.shape[0], (long long)y->view.shape[0]);
    return TERN_OK;
}

static column column_of(const tern_tensor *tensor)
{
    size_t bytes = tern_dtype_bytes(tensor->view.dtype);
    for (int d = 1; d < tensor->view.ndim; d++) bytes *= (size_t)tensor->view.shape[d];
    return (column){tern__storage_hold(tensor->storage), tensor->view.data, bytes};
}

tern_dataset *tern_tensor_dataset_new(const tern_tensor *x, const tern_tensor *y, tern_error *err)
{
    if (check_both(x, y, err)) return NULL;
    tensors *t = tern__alloc(sizeof(*t), FUNC, err);
    if (!t) return NULL;
    *t = (tensors){.base = {.length = x->view.shape[0],
                            .ndim = x->view.ndim > 1 ? x->view.ndim - 1 : 1,
                            .shape = {1},
                            .target_ndim = y->view.ndim - 1,
                            .target_dtype = y->view.dtype,
                            .get = tensors_get,
                            .free = tensors_free,
                            .dtype = x->view.dtype},
                   .x = column_of(x),
                   .y = column_of(y)};
    for (int d = 1; d < x->view.ndim; d++) t->base.shape[d - 1] = x->view.shape[d];
    for (int d = 1; d < y->view.ndim; d++) t->base.target_shape[d - 1] = y->view.shape[d];
    return &t->base;
}
