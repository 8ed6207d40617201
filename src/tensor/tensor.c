/* tensor.c - storages, and tensors that outlive a scope: kept and wrapped ones. */
#include "tensor/host.h"
#include "tensor/tensor.h"
#include "base/pages.h"

#include <math.h>
#include <string.h>

void tern__storage_drop(tern__storage *storage)
{
    if (!storage || __atomic_sub_fetch(&storage->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (storage->release)
        storage->release(storage->ctx);
    else
        tern__device_free(storage->device, storage->data);
}

int tern__tensor_check(const tern_tensor *tensor, const char *func, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    if (!tensor) return tern__error_set(err, func, TERN_E_INVALID, "the tensor is NULL");
    if (tensor->clock && *tensor->clock != tensor->generation)
        return tern__error_set(
            err, func, TERN_E_LIFETIME,
            "tensor %s is used after its scope has ended; tern_keep gives a copy that lasts",
            tern__shape_text(&tensor->view, shape));
    if (tensor->released)
        return tern__error_set(
            err, func, TERN_E_LIFETIME,
            tensor->released == TERN__RELEASED_BY_MARK
                ? "tensor %s was made after a mark and is released; tern_scope_release keeps what it is given"
                : "tensor %s is an inner result of a module that has returned; return it or tern_keep it",
            tern__shape_text(&tensor->view, shape));
    return TERN_OK;
}

int tern_tensor_ndim(const tern_tensor *tensor)
{
    return tensor ? tensor->view.ndim : 0;
}

const int64_t *tern_tensor_shape(const tern_tensor *tensor)
{
    static const int64_t zeros[TERN_NDIM_MAX];
    return tensor ? tensor->view.shape : zeros;
}

int64_t tern_tensor_count(const tern_tensor *tensor)
{
    return tensor ? tern__view_count(&tensor->view) : 0;
}

tern_dtype tern_tensor_dtype(const tern_tensor *tensor)
{
    return tensor ? tensor->view.dtype : TERN_F32;
}

tern_device *tern_tensor_device(const tern_tensor *tensor)
{
    return tensor ? tensor->device : NULL;
}

int tern__view_copy(const tern__view *dst, const tern__view *src, tern_error *err)
{
    bool flat = (tern__view_is_contiguous(dst) && tern__view_is_contiguous(src)) ||
                (dst->layout == src->layout && dst->layout != TERN__PLAIN);
    return flat && dst->dtype == src->dtype
               ? tern__memory_copy(dst->data, src->data, tern__view_bytes(src), err)
               : tern__host_convert(dst, src, err);
}

static int tensor_check_bytes(const tern_tensor *tensor, size_t bytes, const char *func, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    int status = tern__tensor_check(tensor, func, err);
    if (status) return status;
    size_t expected = tern__view_bytes(&tensor->view);
    char shape[TERN__SHAPE_TEXT];
    if (bytes != expected)
        return tern__error_set(
            err, func, TERN_E_SHAPE, "tensor %s of %s has %zu bytes, but the buffer has %zu",
            tern__shape_text(&tensor->view, shape), tern_dtype_name(tensor->view.dtype), expected, bytes);
    return TERN_OK;
}

/* Returns a row-major view of the same shape over the caller's memory. */
static tern__view plain_over(const tern__view *like, const void *data)
{
    tern__view view = tern__view_make(like->dtype, TERN__PLAIN, like->ndim, like->shape);
    view.data = (void *)data;
    return view;
}

int tern_tensor_read(const tern_tensor *tensor, void *out, size_t bytes, tern_error *err)
{
    int status = tensor_check_bytes(tensor, bytes, __func__, err);
    if (status) return status;
    tern__view dst = plain_over(&tensor->view, out);
    return tern__view_copy(&dst, &tensor->view, err);
}

/* What was made of the values, or made them, does not know of what the program writes. */
static void tensor_expose(tern_tensor *tensor)
{
    if (tensor->view.packs) tensor->view.packs->version++;
    if (tensor->storage) tensor->storage->is_exposed = true;
}

int tern_tensor_write(tern_tensor *tensor, const void *in, size_t bytes, tern_error *err)
{
    int status = tensor_check_bytes(tensor, bytes, __func__, err);
    if (status) return status;
    tern__view src = plain_over(&tensor->view, in);
    tensor_expose(tensor);
    return tern__view_copy(&tensor->view, &src, err);
}

double tern_item(const tern_tensor *tensor)
{
    if (tern__tensor_check(tensor, __func__, NULL) || tern__view_count(&tensor->view) != 1) return NAN;
    double value;
    return tern__host_item(&tensor->view, &value, NULL) ? NAN : value;
}

static void release_own(void *ctx)
{
    tern__free(ctx);
}

/* Allocates one block: a cache line with the storage, and then its memory. */
tern__storage *tern__storage_new(size_t bytes, const char *func, tern_error *err)
{
    _Static_assert(sizeof(tern__storage) <= TERN__LINE, "a storage fits a cache line");
    tern__storage *storage = bytes <= SIZE_MAX / 2 ? tern__alloc_raw(TERN__LINE + bytes, TERN__LINE) : NULL;
    if (!storage) {
        tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    tern__pages_enlarge(storage, bytes);
    *storage = (tern__storage){
        .refs = 1, .data = (char *)storage + TERN__LINE, .release = release_own, .ctx = storage};
    return storage;
}

tern_tensor *tern__tensor_over(tern__storage *storage, void *data, tern_dtype dtype, int ndim,
                               const int64_t *shape, const int64_t *stride, const char *func, tern_error *err)
{
    tern_tensor *tensor = tern__alloc(sizeof(*tensor), func, err);
    if (!tensor) return NULL;
    tensor->view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    for (int d = 0; d < ndim; d++) tensor->view.stride[d] = stride[d];
    tensor->view.data = data;
    tensor->storage = tern__storage_hold(storage);
    return tensor;
}

tern_tensor *tern__tensor_new(tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    tern__storage *storage = tern__storage_new(tern__view_bytes(&view), "tern_keep", err);
    if (!storage) return NULL;
    tern_tensor *tensor =
        tern__tensor_over(storage, storage->data, dtype, ndim, shape, view.stride, "tern_keep", err);
    tern__storage_drop(storage);
    return tensor;
}

tern_tensor *tern_keep(const tern_tensor *tensor, tern_error *err)
{
    if (tern__is_set(err) || tern__tensor_check(tensor, __func__, err)) return NULL;
    tern_tensor *copy = tern__tensor_new(tensor->view.dtype, tensor->view.ndim, tensor->view.shape, err);
    if (!copy || !tern__view_copy(&copy->view, &tensor->view, err)) return copy;
    tern_tensor_free(copy);
    return NULL;
}

/* The storage of the caller's memory, with the function to call when its last user is gone. */
typedef struct wrapped {
    tern__storage storage;
    void (*release)(void *ctx);
    void *ctx;
} wrapped;

static void release_wrapped(void *ctx)
{
    wrapped own = *(wrapped *)ctx;
    tern__free(ctx);
    if (own.release) own.release(own.ctx);
}

static int check_wrap(const void *data, tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err)
{
    const char *func = "tern_tensor_wrap";
    int status = tern__shape_check(func, dtype, ndim, shape, err);
    if (status) return status;
    tern__view view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    if (!data && tern__view_count(&view)) return tern__error_set(err, func, TERN_E_INVALID, "data is NULL");
    if ((uintptr_t)data % tern_dtype_bytes(dtype))
        return tern__error_set(err, func, TERN_E_INVALID, "data at %p is not aligned to the %zu bytes of %s",
                               data, tern_dtype_bytes(dtype), tern_dtype_name(dtype));
    return TERN_OK;
}

tern_tensor *tern_tensor_wrap(void *data, tern_dtype dtype, int ndim, const int64_t *shape,
                              void (*release)(void *ctx), void *ctx, tern_error *err)
{
    if (tern__is_set(err) || check_wrap(data, dtype, ndim, shape, err)) return NULL;
    tern_tensor *tensor = tern__alloc(sizeof(*tensor), __func__, err);
    wrapped *own = tensor ? tern__alloc(sizeof(*own), __func__, err) : NULL;
    if (!own) {
        tern__free(tensor);
        return NULL;
    }
    data = data ? data : own; /* an empty tensor may point anywhere */
    *own = (wrapped){.storage = {.refs = 1, .data = data, .release = release_wrapped, .ctx = own},
                     .release = release,
                     .ctx = ctx};
    tensor->view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    tensor->view.data = data;
    tensor->storage = &own->storage;
    return tensor;
}

void *tern_tensor_data(tern_tensor *tensor)
{
    if (tern__tensor_check(tensor, __func__, NULL) || !tern__view_is_contiguous(&tensor->view)) return NULL;
    tensor_expose(tensor);
    return tensor->view.data;
}

/* Only kept and wrapped tensors have a storage and no scope. */
static bool is_the_callers(const tern_tensor *tensor)
{
    char shape[TERN__SHAPE_TEXT];
    if (tensor->storage && !tensor->scope) return true;
    tern__log(TERN_LOG_ERROR, "tern_tensor_free: tensor %s belongs to its %s, which frees it",
              tern__shape_text(&tensor->view, shape), tensor->scope ? "scope" : "module");
    return false;
}

void tern_tensor_free(tern_tensor *tensor)
{
    if (!tensor || !is_the_callers(tensor)) return;
    tern__storage_drop(tensor->storage);
    tern__free(tensor);
}
